"""Identifiers of content: equal for equal data, wherever it came from."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.labels import Classes

_BLOCK = 1 << 24


def digest(array: npt.NDArray[Any]) -> str:
    """Return the sha256 of an array's elements in row order, little-endian.

    >>> digest(np.arange(3, dtype="<i8")) == digest(np.arange(3, dtype=">i8"))
    True
    """
    sha = hashlib.sha256()
    for block in blocks_of(array):
        sha.update(block)
    return sha.hexdigest()


def combined(digests: Mapping[str, tuple[str, tuple[int, ...], str]], classes: Classes) -> str:
    """Return one identifier for columns given as name → (dtype, shape, digest) and the classes."""
    listing = [[name, dtype, list(shape), sha] for name, (dtype, shape, sha) in sorted(digests.items())]
    return hashlib.sha256(json.dumps([listing, list(classes)]).encode()).hexdigest()


def fingerprint(columns: Mapping[str, npt.NDArray[Any] | None], classes: Classes) -> str:
    """Return the identifier of a data set that is in memory; columns that are None do not count.

    >>> same = [fingerprint({"y": np.array([0, 1])}, classes) for classes in [(0, 1), (0, 1), ("a", "b")]]
    >>> same[0] == same[1], same[0] == same[2]
    (True, False)
    """
    return combined(
        {
            name: (array.dtype.newbyteorder("<").str, array.shape, digest(array))
            for name, array in columns.items()
            if array is not None
        },
        classes,
    )


def blocks_of(array: npt.NDArray[Any]) -> Iterable[bytes]:
    """Give an array's elements as bytes, by blocks, so that a memory-mapped array is never copied whole."""
    little = array.dtype.newbyteorder("<")
    row = max(1, array[:1].nbytes)
    step = max(1, _BLOCK // row)
    for start in range(0, len(array), step):
        yield np.ascontiguousarray(array[start : start + step], dtype=little).tobytes()

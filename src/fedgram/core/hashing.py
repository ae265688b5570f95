"""SHA-256 of texts, plain values, arrays and files, in hexadecimal: how content is known again.

Fingerprints, keys of finished runs and names in the cache are made of these: another way to hash would lose them all.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import WrongChecksum

_BLOCK = 1 << 24


def hash_bytes(parts: Iterable[bytes | memoryview]) -> str:
    """Return the hash of bytes that come in parts."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part)
    return sha.hexdigest()


def hash_text(text: str) -> str:
    """Return the hash of a text in UTF-8; file names may hold what is no character."""
    return hash_bytes([text.encode(errors="surrogatepass")])


def hash_json(value: Any) -> str:
    """Return the hash of plain values, as JSON writes them."""
    return hash_text(json.dumps(value))


def hash_array(array: npt.NDArray[Any]) -> str:
    """Return the hash of an array's elements in row order, little-endian.

    >>> hash_array(np.arange(3, dtype="<i8")) == hash_array(np.arange(3, dtype=">i8"))
    True
    """
    return hash_bytes(blocks_of(array))


def blocks_of(array: npt.NDArray[Any]) -> Iterator[bytes]:
    """Give an array's elements as bytes, by blocks, so that a memory-mapped array is never copied whole."""
    little = array.dtype.newbyteorder("<")
    row = max(1, array[:1].nbytes)
    step = max(1, _BLOCK // row)
    for start in range(0, len(array), step):
        yield np.ascontiguousarray(array[start : start + step], dtype=little).tobytes()


def hash_parts(*parts: object) -> str:
    """Return the hash of the parts: a path stands for its file's content, anything else for its `repr`.

    >>> hash_parts("a", 1) == hash_parts("a", 1), hash_parts("ab", "c") == hash_parts("a", "bc")
    (True, False)
    """
    hashes = (_hash_file(part) if isinstance(part, Path) else hash_text(repr(part)) for part in parts)
    return hash_bytes(map(bytes.fromhex, hashes))


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """Return the checksum of a file as `algorithm:hex`."""
    return f"{algorithm}:{_hash_file(path, algorithm)}"


def verify(path: Path, expected: str) -> None:
    """Raise `WrongChecksum` unless the file has the expected checksum, given as `algorithm:hex`."""
    found = checksum(path, expected.partition(":")[0])
    if found != expected:
        raise WrongChecksum(f"{path.name} has checksum {found}, expected {expected}")


def _hash_file(path: Path, algorithm: str = "sha256") -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()

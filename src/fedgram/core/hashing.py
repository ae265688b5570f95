"""SHA-256 of texts, plain values, arrays and files, in hexadecimal: the identity of content.

Fingerprints, keys of finished runs and names in the cache are made of these: another way to hash would lose them all.
Files have all 256 bits of a fingerprint, and `readable` writes 160 of them for people. Fewer are not enough: two
contents with the same 64 bits are found in minutes on one core.
"""

import hashlib
import json
from base64 import b32encode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import WrongChecksum

_BLOCK = 1 << 24
_READABLE = 20  # bytes of a hash that people compare


def hash_bytes(parts: Iterable[bytes | memoryview]) -> str:
    """Return the hash of bytes that come in parts."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part)
    return sha.hexdigest()


def hash_text(text: str) -> str:
    """Return the hash of a text in UTF-8; file names may hold bytes that are not characters."""
    return hash_bytes([text.encode(errors="surrogatepass")])


def hash_json(value: Any) -> str:
    """Return the hash of plain values, as JSON writes them."""
    return hash_text(json.dumps(value))


def readable(fingerprint: str) -> str:
    """Return the first 160 bits of a hash for people to compare: eight groups of four letters and digits (base32).

    "" stays "". The groups can be read over the telephone: 0, 1, 8 and 9 do not occur, and case does not matter.

    >>> readable("0123456789abcdef" * 4)
    'aeru-kz4j-vpg6-6ajd-ivty-tk6n-54as-grlh'
    """
    text = b32encode(bytes.fromhex(fingerprint)[:_READABLE]).decode().lower()
    return "-".join(text[start : start + 4] for start in range(0, len(text), 4))


def short(digest: str) -> str:
    """Return the first 160 bits of a hash, 40 hexadecimal digits: of files and of the ledger, for people to compare."""
    return digest[: 2 * _READABLE]


def hash_array(array: npt.NDArray[Any]) -> str:
    """Return the hash of an array's elements in row order, little-endian.

    >>> hash_array(np.arange(3, dtype="<i8")) == hash_array(np.arange(3, dtype=">i8"))
    True
    """
    return hash_bytes(blocks_of(array))


def blocks_of(array: npt.NDArray[Any]) -> Iterator[bytes]:
    """Yield an array's elements as bytes, by blocks, so that a memory-mapped array is never copied whole."""
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

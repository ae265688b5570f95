"""The bytes of an `.fgm` file before anything in them is believed: bounded, whole, and of a version that is known."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from fedgram.core import strict_json
from fedgram.core.errors import InvalidData, RefusedMessage
from fedgram.core.files import open_regular
from fedgram.core.wire import container
from fedgram.core.wire.container import DTYPES, MOST_BYTES, MOST_HEADER, Shapes
from fedgram.exchange.header import SCHEMA

BEGINNING = b'{"__metadata__":{"fgm":"'  # of the JSON header, after its length


def is_exchanged(path: str | os.PathLike[str]) -> bool:
    """Say whether a file begins like an `.fgm` file, whatever it is called."""
    try:
        with open_regular(path) as file:
            return file.read(8 + len(BEGINNING))[8:] == BEGINNING
    except OSError:
        return False


def load(path: Path, most: Mapping[str, int]) -> bytes:
    """Return a file's content; one whose header promises another length is not read any further.

    Neither is one that is larger than `most` says for its kind.
    """
    try:
        with open_regular(path, most=MOST_BYTES) as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(8 + len(BEGINNING))
            _check_beginning(start)
            head = start + _exactly(file, _header_length(start) - len(BEGINNING))
            entries = _entries(head)
            kind = str(entries["__metadata__"].get("kind"))
            if size > most.get(kind, MOST_BYTES):
                raise RefusedMessage(f"expected at most {most[kind]:,} bytes of a {kind} in this study, got {size:,}")
            if (end := _end(entries)) != size - len(head):
                raise RefusedMessage(f"{size} bytes, its header accounts for {len(head) + end}: it is not whole")
            file.seek(0)
            return _exactly(file, size)
    except OSError as error:
        raise InvalidData(f"cannot read it: {error.strerror or error}") from error


def _exactly(file: IO[bytes], count: int) -> bytes:
    found = file.read(count)
    if len(found) != count:
        raise RefusedMessage(f"it ends {count - len(found)} bytes too early: it is not whole")
    return found


def _check_beginning(data: bytes) -> None:
    if data[8 : 8 + len(BEGINNING)] != BEGINNING:
        raise RefusedMessage("it is not a file that fedgram exchanges")


def _header_length(data: bytes) -> int:
    length = int.from_bytes(data[:8], "little")
    if not len(BEGINNING) < length <= MOST_HEADER:
        raise RefusedMessage(f"a header of {length} bytes, which no file has")
    return length


def _entries(data: bytes) -> dict[str, Any]:
    """Return the safetensors header of these bytes."""
    length = _header_length(data)
    header = data[8 : 8 + length]
    container.check_header(header, length)
    try:
        entries = strict_json.parse(header)
    except ValueError as error:
        raise RefusedMessage(f"its header is damaged, or the file is not whole: {error}") from None
    if not isinstance(entries, dict) or not isinstance(entries.get("__metadata__"), dict):
        raise RefusedMessage("its header is damaged, or the file is not whole")
    return entries


def parse(data: bytes) -> tuple[dict[str, Any], Shapes]:
    """Return a file's metadata and what it says of its arrays; a file of a newer version is refused by name."""
    _check_beginning(data)
    entries = _entries(data)
    metadata = entries.pop("__metadata__")
    schema = metadata.get("fgm")
    if schema != str(SCHEMA):
        raise RefusedMessage(
            f"it is of schema {str(schema)[:40]!r}, and this version of fedgram reads schema {SCHEMA}: update fedgram"
        )
    for name in ("sha256", "fedgram"):
        if not isinstance(metadata.get(name), str):
            raise RefusedMessage(f"its header lacks {name!r}: it is damaged")
    return metadata, tuple((name, *_shape(name, entry)) for name, entry in entries.items())


def _shape(name: str, entry: Any) -> tuple[Any, tuple[int, ...]]:
    known = isinstance(entry, dict) and isinstance(entry.get("dtype"), str) and entry["dtype"] in DTYPES
    shape = entry.get("shape") if known else None
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size <= MOST_BYTES for size in shape):
        raise RefusedMessage(f"its array {name[:60]!r} is of no kind and shape that is ever sent")
    return DTYPES[entry["dtype"]], tuple(shape)


def _end(entries: dict[str, Any]) -> int:
    """Return where the last array ends, as a header says."""
    ends = [0]
    for name, entry in entries.items():
        if name != "__metadata__":
            offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
            if not isinstance(offsets, list) or len(offsets) != 2 or type(offsets[1]) is not int:
                raise RefusedMessage(f"its array {name[:60]!r} has no place in the file")
            ends.append(offsets[1])
    return max(ends)

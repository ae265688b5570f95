"""The bytes of a message: a safetensors header with our tree in it, then the arrays; sealed by a SHA-256 digest.

The format is written and read here rather than by its library, which copies every array twice on the way out and once
on the way in, and does not give back the header; tests check that each side reads the other's files.

JSON from other parties is read by `parse`, which accepts only texts that all readers understand alike. Python's reader
accepts more than others, or reads it differently: a name twice in an object (the last one wins, elsewhere the first),
NaN and Infinity, other encodings than UTF-8, and any depth. A text that two readers understand differently must not be
signed.

>>> parse('{"payload": 1, "payload": 2}')
Traceback (most recent call last):
ValueError: the name 'payload' stands twice in an object
"""

import json
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from math import isfinite, prod
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import RefusedMessage
from fedgram.core.hashing import hash_bytes

BEGINNING = b'{"__metadata__":{"fgm":"'  # of the header of a file that parties exchange, after its length
MOST_DEPTH = 640  # of nested lists and objects: a payload of 300 levels, each of which takes two
TOO_DEEP = f"lists and objects are nested deeper than {MOST_DEPTH} levels"


def is_exchanged(data: bytes) -> bool:
    """Return whether bytes begin like an `.fgm` file."""
    return data[8 : 8 + len(BEGINNING)] == BEGINNING


def parse(text: str | bytes, *, constants: bool = False) -> Any:
    """Return the value of a JSON text; raise ValueError, with a reason that can be shown, for anything else.

    Parameters
    ----------
    text
        The text, bytes in UTF-8.
    constants
        Whether the format allows NaN, Infinity and -Infinity, as a message between processes of one user does.

    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    readers: dict[str, Any] = {} if constants else {"parse_constant": _refuse, "parse_float": _finite}
    try:
        found = json.loads(text, object_pairs_hook=_unique, **readers)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if text.count("[") + text.count("{") > MOST_DEPTH and _is_deeper(found):
        raise ValueError(TOO_DEEP)
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the name {twice[:60]!r} stands twice in an object")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number in JSON")


def _finite(text: str) -> float:
    if not isfinite(number := float(text)):
        raise ValueError(f"{text[:40]} is too large a number")
    return number


def _is_deeper(value: Any) -> bool:
    """Return whether lists and objects are nested deeper than allowed, without recursion."""
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [
            item
            for outer in level
            for item in (outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ())
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


SCHEMA = 2
# The digest stands first, at a place that does not depend on the rest.
_PREFIX, DIGITS = b'{"__metadata__":{"sha256":"', 64
SEAL_AT = 8 + len(_PREFIX)
# The most that a header may be: some hundred thousand names.
MOST_HEADER = 16 * 2**20
# Only small headers are cached, so that a sender cannot fill the memory with headers.
_REMEMBERED = 4096
# The most that a file of one message may be: moments of some 45,000 columns.
MOST_BYTES = 1 << 33
# The longest side of an array without elements, whose shape costs its sender nothing.
LONGEST_EMPTY_SIDE = 2**16
AnyArray: TypeAlias = npt.NDArray[Any]
Shapes: TypeAlias = tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]

DTYPES = {
    code: np.dtype(name)
    for code, name in {
        "F64": "<f8",
        "F32": "<f4",
        "F16": "<f2",
        "I64": "<i8",
        "I32": "<i4",
        "I16": "<i2",
        "I8": "i1",
        "U64": "<u8",
        "U32": "<u4",
        "U16": "<u2",
        "U8": "u1",
        "BOOL": "bool",
    }.items()
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def write(tree: Any, arrays: dict[str, AnyArray], *, sealed: bool) -> bytes:
    """Return a payload's tree and its arrays, contiguous and little-endian, as bytes."""
    text, shapes = as_text(tree), shapes_of(arrays)
    header = (known_header if len(text) <= _REMEMBERED else _header)(text, shapes)
    contents = [array.data for array in arrays.values() if array.size]
    if sealed:
        header = header[:SEAL_AT] + hash_bytes((header, *contents)).encode() + header[SEAL_AT + DIGITS :]
    return b"".join((header, *contents))


def as_text(tree: Any) -> str:
    """Return a payload's tree as it stands in a header."""
    return _json({"schema": SCHEMA, "payload": tree})


def shapes_of(arrays: Mapping[str, AnyArray]) -> Shapes:
    """Return the entries of a header about arrays."""
    return tuple((name, array.dtype, array.shape) for name, array in arrays.items())


def check_digest(data: bytes) -> None:
    """Raise `RefusedMessage` for bytes that differ from those that were sealed."""
    if data[8:SEAL_AT] != _PREFIX:
        raise RefusedMessage(f"{len(data)} bytes that are not a fedgram message, or one of a version before digests")
    view, end = memoryview(data), SEAL_AT + DIGITS
    if hash_bytes((view[:SEAL_AT], b"0" * DIGITS, view[end:])).encode() != data[SEAL_AT:end]:
        raise RefusedMessage("its digest does not fit its content: it was damaged or changed on the way; send it again")


def read(data: bytes) -> tuple[Any, dict[str, AnyArray]]:
    """Return the payload's tree and its arrays, which are views of `data`: a message of gigabytes is not copied."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = data[8 : min(start, 9 + MOST_HEADER)]
    check_header(header, start - 8)
    try:
        if header.startswith(_PREFIX):  # without the digest, which differs for each message, headers can be cached
            header = _PREFIX + header[len(_PREFIX) + DIGITS :]
        schema, tree, entries = (known if len(header) <= _REMEMBERED else _parse)(header)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RefusedMessage(f"{len(data)} bytes that are not a fedgram message: {error}") from error
    if schema != SCHEMA:
        raise RefusedMessage(f"schema {schema!r}, this version reads schema {SCHEMA}: update the older side")
    arrays = {name: _view(data, start, name, entry) for name, entry in entries.items()}
    end = 0
    for begin, stop in sorted(entry["data_offsets"] for entry in entries.values()):
        if begin != end:
            raise RefusedMessage(f"its arrays overlap, or leave a gap, at byte {begin}")
        end = stop
    if start + end != len(data):
        raise RefusedMessage(f"{len(data)} bytes, its header accounts for {start + end}")
    return tree, arrays


def check_header(header: bytes, length: int) -> None:
    """Raise for a header, of `length` promised bytes, that would take far more memory than it has bytes."""
    # A list or dict in memory is many times as large as its brackets: more of them than content is an attack.
    if len(header) > MOST_HEADER or header.count(b"[") + header.count(b"{") > 64 + len(header) // 6:
        raise RefusedMessage(f"a header of {length} bytes that no payload of ours has")


def _header(tree: str, arrays: Shapes) -> bytes:
    """Return the header with its length in front, and zeros for the digest."""
    return layout({"sha256": "0" * DIGITS, "fedgram": tree}, arrays)


def layout(metadata: Mapping[str, str], arrays: Shapes) -> bytes:
    """Return a safetensors header with its length in front, for arrays that follow one another without gaps."""
    entries: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, dtype, shape in arrays:
        begin, end = end, end + prod(shape) * dtype.itemsize
        entries[name] = {"dtype": CODES[dtype], "shape": shape, "data_offsets": (begin, end)}
    header = _json(entries).encode()
    header += b" " * (-len(header) % 8)  # safetensors aligns the arrays
    return len(header).to_bytes(8, "little") + header


def _parse(header: bytes) -> tuple[Any, Any, dict[str, Any]]:
    """Return the schema, the tree and the places of the arrays."""
    entries = parse(header)
    # Values that are not finite are looked for later, field by field: within one process they may be sent.
    ours = parse(entries.pop("__metadata__")["fedgram"], constants=True)
    if ours.keys() != {"schema", "payload"}:
        raise ValueError("only schema and payload may be there")
    return ours["schema"], ours["payload"], entries


# Many clients answer with the same scalars and shapes; then their headers differ only in the digest.
known_header = lru_cache(maxsize=32)(_header)
known = lru_cache(maxsize=32)(_parse)


def _view(data: bytes, start: int, name: str, entry: Any) -> AnyArray:
    try:
        dtype, (begin, end) = DTYPES[entry["dtype"]], entry["data_offsets"]
        array: AnyArray = np.ndarray(entry["shape"], dtype, data, start + begin)
        if begin < 0 or end - begin != array.nbytes:
            raise ValueError(f"{end - begin} bytes for shape {entry['shape']} of {dtype}")
        if not array.size and max(array.shape) > LONGEST_EMPTY_SIDE:
            raise ValueError(f"shape {entry['shape']} without elements")
        return array
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise RefusedMessage(f"field {name[:60]!r} is damaged or of a kind never sent: {error}") from error

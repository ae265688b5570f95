"""Payloads ↔ bytes: safetensors for the arrays, JSON in its header for the rest, never pickle.

The safetensors format is written and read here rather than by its library, which copies every array twice on the
way out and once on the way in, and does not give back the header; tests check that each side reads the other's files.

A payload is None, a bool, number, string or array, a list or dict of payloads, or a registered message type. Array
fields of a registered type declare dtype and shape; schema version, dtype and shape are checked on every decoding.
What another party sent (`decode(..., sender="hospital-3")`) is also checked for finite values, and by the type's
own `check`; a failure names the sender, the field and the value.

Bytes that leave this process are sealed with a SHA-256 digest of everything else in them, so that no bit can change
unnoticed. What decoding costs is bounded by a small multiple of the message's own size: every array is a view of the
message, stands in it once and is referred to once, and an array without elements cannot claim to be large.

>>> data = encode({"step": 3, "w": np.eye(2)})
>>> decode(data)["w"]
array([[1., 0.],
       [0., 1.]])
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite, prod
from typing import Any, ClassVar, Protocol, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import FedgramError, RefusedMessage

SCHEMA = 2
# The digest stands first, at a place that does not depend on the rest.
_PREFIX, _DIGITS = b'{"__metadata__":{"sha256":"', 64
_AT = 8 + len(_PREFIX)
# The most that a header may be: some hundred thousand names.
MOST_HEADER = 16 * 2**20
# Only small headers are remembered, so that nobody can fill our memory with theirs.
_REMEMBERED = 4096
# The longest side of an array without elements, whose shape costs its sender nothing.
LONGEST_EMPTY_SIDE = 2**16
Payload: TypeAlias = Any
AnyArray: TypeAlias = npt.NDArray[Any]

_DTYPES = {
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
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_NAMES = {dtype: dtype.name for dtype in _CODES}
_SCALARS = (str, int, float, bool, type(None))
_PLAIN = frozenset((str, int, bool, type(None)))
_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


@dataclass(frozen=True)
class Field:
    """What an array field must be: its dtype and its shape, as sizes or as letters that agree within a message."""

    dtype: str
    shape: tuple[str | int, ...]
    optional: bool = False


class Message(Protocol):
    """A type that may cross the wire: it names its fields, can be taken apart and put together again."""

    wire_name: ClassVar[str]
    wire_version: ClassVar[int]
    wire_fields: ClassVar[Mapping[str, Field]]

    def to_fields(self) -> dict[str, Payload]:
        """Return payloads by field name."""
        ...

    @classmethod
    def from_fields(cls, fields: dict[str, Payload]) -> Self:
        """Put a message together; array fields have been checked against `wire_fields`."""
        ...

    def check(self) -> None:
        """Raise a FedgramError if this could not come from an honest sender. May cost O(d³)."""
        ...


M = TypeVar("M", bound=type[Message])
T = TypeVar("T")
_registered: dict[str, type[Message]] = {}
_late: list[Callable[[], None]] = []


def register_message(cls: M) -> M:
    """Register a message type (a class decorator)."""
    other = _registered.setdefault(cls.wire_name, cls)
    if other is not cls and other.__qualname__ != cls.__qualname__:
        raise ValueError(f"message type {cls.wire_name!r} is already {other.__qualname__}")
    _registered[cls.wire_name] = cls
    return cls


def when_unknown(load: Callable[[], None]) -> None:
    """Have `load` called when a message comes in whose type is not registered, to register types not loaded yet."""
    _late.append(load)


def _type_of(name: str) -> type[Message]:
    for load in _late:
        if name not in _registered:
            load()
    if name not in _registered:
        raise RefusedMessage(f"message type {name!r} is not registered; known: {sorted(_registered)}")
    return _registered[name]


def encode(payload: Payload, *, sealed: bool = True) -> bytes:
    """Return the payload as bytes, with their digest in the header.

    Bytes that never leave this process need none: `sealed=False` saves the time, and they are as long.
    """
    arrays: dict[str, AnyArray] = {}
    tree = _json({"schema": SCHEMA, "payload": _to_tree(payload, "", arrays)})
    shapes = tuple((name, array.dtype, array.shape) for name, array in arrays.items())
    header = (_known_header if len(tree) <= _REMEMBERED else _header)(tree, shapes)
    contents = [array.data for array in arrays.values() if array.size]
    if sealed:
        header = header[:_AT] + _digest(header, *contents) + header[_AT + _DIGITS :]
    return b"".join((header, *contents))


def decode(data: bytes, *, sender: str | None = None, finite: bool = False) -> Payload:
    """Return the payload of `data`.

    With a `sender` the bytes come from another party: digest and contents are checked too, and an error names the
    sender. With `finite` values that are not finite are refused from anybody.
    """
    try:
        if sender is not None:
            _check_digest(data)
        tree, arrays = _open(data)
        payload = _Reader(arrays, suspicious=sender is not None, finite=finite or sender is not None).read(tree, None)
        if arrays:
            raise RefusedMessage(f"array {next(iter(arrays))[:60]!r} belongs to no field")
        return payload
    except Exception as error:
        if sender is None and not isinstance(error, FedgramError):
            raise
        # Whatever another party's message makes go wrong, running out of memory included, is that message's fault.
        why = str(error) if isinstance(error, FedgramError) else f"{type(error).__name__}: {error}"
        raise RefusedMessage(f"message from {sender!r} refused: {why}" if sender else why) from error


def _digest(*parts: bytes | memoryview) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest().encode()


def _check_digest(data: bytes) -> None:
    if data[8:_AT] != _PREFIX:
        raise RefusedMessage(f"{len(data)} bytes that are not a fedgram message, or one of a version before digests")
    view = memoryview(data)
    if _digest(view[:_AT], b"0" * _DIGITS, view[_AT + _DIGITS :]) != data[_AT : _AT + _DIGITS]:
        raise RefusedMessage("its digest does not fit its content: it was damaged or changed on the way; send it again")


def _header(tree: str, arrays: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]) -> bytes:
    """Return the header with its length in front, and zeros for the digest."""
    entries: dict[str, Any] = {"__metadata__": {"sha256": "0" * _DIGITS, "fedgram": tree}}
    end = 0
    for name, dtype, shape in arrays:
        begin, end = end, end + prod(shape) * dtype.itemsize
        entries[name] = {"dtype": _CODES[dtype], "shape": shape, "data_offsets": (begin, end)}
    header = _json(entries).encode()
    header += b" " * (-len(header) % 8)  # safetensors aligns the arrays
    return len(header).to_bytes(8, "little") + header


def _parse(header: bytes) -> tuple[Any, Any, dict[str, Any]]:
    """Return schema, tree, and where the arrays are."""
    entries = json.loads(header)
    ours = json.loads(entries.pop("__metadata__")["fedgram"])
    return ours["schema"], ours["payload"], entries


# Many clients answer with the same scalars and shapes, hence with the same header but for the digest.
_known_header = lru_cache(maxsize=32)(_header)
_known = lru_cache(maxsize=32)(_parse)


def _open(data: bytes) -> tuple[Any, dict[str, AnyArray]]:
    """Return the payload's tree and its arrays, which are views of `data`: a message of gigabytes is not copied."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = data[8 : min(start, 9 + MOST_HEADER)]
    # A list or dict in memory is many times as large as its brackets: more of them than content is an attack.
    if len(header) > MOST_HEADER or header.count(b"[") + header.count(b"{") > 64 + len(header) // 6:
        raise RefusedMessage(f"a header of {start - 8} bytes that no payload of ours has")
    try:
        if header.startswith(_PREFIX):  # the digest is another one for each message, and nothing of the content
            header = _PREFIX + header[len(_PREFIX) + _DIGITS :]
        schema, tree, entries = (_known if len(header) <= _REMEMBERED else _parse)(header)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RefusedMessage(f"{len(data)} bytes that are not a fedgram message") from error
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


def _view(data: bytes, start: int, name: str, entry: Any) -> AnyArray:
    try:
        dtype, (begin, end) = _DTYPES[entry["dtype"]], entry["data_offsets"]
        array: AnyArray = np.ndarray(entry["shape"], dtype, data, start + begin)
        if begin < 0 or end - begin != array.nbytes:
            raise ValueError(f"{end - begin} bytes for shape {entry['shape']} of {dtype}")
        if not array.size and max(array.shape) > LONGEST_EMPTY_SIDE:
            raise ValueError(f"shape {entry['shape']} without elements")
        return array
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise RefusedMessage(f"field {name[:60]!r} is damaged or of a kind never sent: {error}") from error


def _to_tree(value: Payload, path: str, arrays: dict[str, AnyArray]) -> Any:
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, np.ndarray):
        dtype = value.dtype if value.dtype in _CODES else value.dtype.newbyteorder("<")
        if dtype not in _CODES:
            raise TypeError(f"field {path or 'payload'!r}: arrays of {value.dtype} cannot be sent")
        name = path or "payload"
        while name in arrays:  # {"a/b": …} and {"a": {"b": …}} have the same path
            name += "'"
        arrays[name] = np.asarray(value, dtype, order="C")
        return {"array": name}
    if isinstance(value, (list, tuple)):
        if _PLAIN.issuperset(map(type, value)):
            return {"plain": value}
        return {"list": [_to_tree(item, _join(path, i), arrays) for i, item in enumerate(value)]}
    cls = type(value)
    if _registered.get(getattr(cls, "wire_name", "")) is cls:
        return {
            "message": cls.wire_name,
            "version": cls.wire_version,
            "fields": _to_trees(value.to_fields(), path, arrays),
        }
    if isinstance(value, Mapping):
        return {"dict": _to_trees(value, path, arrays)}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(
        f"field {path or 'payload'!r}: a {type(value).__name__} cannot be sent; send arrays, numbers, strings, "
        "lists, dicts or a type registered with wire.register_message"
    )


def _to_trees(fields: Mapping[Any, Payload], path: str, arrays: dict[str, AnyArray]) -> dict[str, Any]:
    return {str(key): _to_tree(item, _join(path, key), arrays) for key, item in fields.items()}


Path: TypeAlias = "tuple[Path, str | int] | None"


@dataclass(frozen=True)
class _Reader:
    """Puts a payload together; `arrays` are those not yet used."""

    arrays: dict[str, AnyArray]
    suspicious: bool
    finite: bool

    def read(self, tree: Any, path: Path) -> Payload:
        """Return the payload of a tree."""
        if not isinstance(tree, dict):
            if isinstance(tree, list):
                raise RefusedMessage(f"field {_where(path)!r} is malformed")
            if self.finite and isinstance(tree, float) and not isfinite(tree):
                raise RefusedMessage(f"field {_where(path)!r} is {tree}")
            return tree
        if "array" in tree:
            array = self.arrays.pop(_expect(tree["array"], str, path), None)
            if array is None:
                raise RefusedMessage(
                    f"field {_where(path)!r}: its array {tree['array'][:60]!r} is missing, or another field's"
                )
            if self.finite:
                _check_finite(array, path)
            return array
        if "plain" in tree:
            plain = list(_expect(tree["plain"], list, path))
            if not _PLAIN.issuperset(map(type, plain)):
                raise RefusedMessage(f"field {_where(path)!r} is malformed")
            return plain
        if "list" in tree:
            return [self.read(item, (path, i)) for i, item in enumerate(_expect(tree["list"], list, path))]
        if "dict" in tree:
            return self._children(tree["dict"], path)
        if "message" in tree:
            return self._message(tree, path)
        raise RefusedMessage(f"field {_where(path)!r} is of no kind this version knows: {sorted(tree)[:5]}")

    def _children(self, tree: Any, path: Path) -> dict[str, Payload]:
        return {key: self.read(item, (path, key)) for key, item in _expect(tree, dict, path).items()}

    def _message(self, tree: dict[str, Any], path: Path) -> Message:
        cls = _type_of(_expect(tree["message"], str, path))
        if tree.get("version") != cls.wire_version:
            raise RefusedMessage(
                f"{cls.wire_name} version {tree.get('version')!r}, this side has {cls.wire_version}: "
                "update the older side"
            )
        fields = self._children(tree.get("fields"), path)
        _check_arrays(cls, fields)
        try:
            message = cls.from_fields(fields)
        except (KeyError, TypeError) as error:
            raise RefusedMessage(f"{cls.wire_name} has a missing or misshapen field: {error}") from error
        if self.suspicious:
            message.check()
        return message


def _check_arrays(cls: type[Message], fields: dict[str, Payload]) -> None:
    sizes: dict[str, int] = {}
    for name, field in cls.wire_fields.items():
        value = fields.get(name)
        if value is None:
            if field.optional:
                continue
            raise RefusedMessage(f"{cls.wire_name} lacks field {name!r}")
        got = _NAMES[value.dtype] if isinstance(value, np.ndarray) else type(value).__name__
        if got != field.dtype:
            raise RefusedMessage(f"{cls.wire_name} field {name!r} must be {field.dtype}, got {got}")
        if len(value.shape) != len(field.shape) or not all(
            size == (sizes.setdefault(want, size) if isinstance(want, str) else want)
            for size, want in zip(value.shape, field.shape, strict=True)
        ):
            known = f" with {sizes}" if sizes else ""
            raise RefusedMessage(
                f"{cls.wire_name} field {name!r} must have shape {field.shape}{known}, got {value.shape}"
            )


def _check_finite(array: AnyArray, path: Path) -> None:
    # One pass without a temporary: a sum is finite unless an element is not (or the sum overflows).
    if array.dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(array.sum(dtype=np.float64)):
                return
        bad = np.argwhere(~np.isfinite(array))
        if len(bad):
            at = tuple(int(i) for i in bad[0])
            raise RefusedMessage(f"field {_where(path)!r} is {array[at]} at {list(at)}")


def _expect(value: Any, kind: type[T], path: Path) -> T:
    if not isinstance(value, kind):
        raise RefusedMessage(f"field {_where(path)!r} is malformed")
    return value


def _where(path: Path) -> str:
    """Return a path as text. Only errors need it: long keys times many children would cost a lot."""
    keys: list[str] = []
    while path is not None:
        path, key = path
        keys.append(str(key)[:60])
    return "/".join(reversed(keys)) or "payload"


def _join(path: str, key: str | int) -> str:
    return f"{path}/{key}" if path else str(key)

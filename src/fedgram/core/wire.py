"""Payloads ↔ bytes: safetensors for the arrays, JSON in its header for the rest, never pickle.

A payload is None, a bool, number, string or array, a list or dict of payloads, or a message type. A dataclass becomes
a message type by `@message`, any other class by `register_message`. Arrays of a message declare dtype and shape;
schema version, dtype and shape are checked on every decoding. A message from another party
(`decode(..., sender="hospital-3")`) is also checked for finite values, and by the type's own `check`; a failure names
the sender, the field and the value.

Bytes that leave this process are sealed with a SHA-256 digest of everything else in them, so that no bit can change
unnoticed. The cost of decoding is bounded by a small multiple of the message's own size: every array is a view of the
message, stands in it once and is referred to once, and an array without elements cannot claim to be large.

>>> data = encode({"step": 3, "w": np.eye(2)})
>>> decode(data)["w"]
array([[1., 0.],
       [0., 1.]])

`@message` derives everything that a message type needs from the annotations of a dataclass:

>>> @message("line", version=1)
... @dataclass(frozen=True)
... class Line:
...     weights: Annotated[Array, Shape("d", "c")]
...     classes: Classes
...     intercept: Annotated[Array, Shape("c")] | None = None
>>> decode(encode(Line(np.eye(2), ("cat", "dog")))).classes
('cat', 'dog')
>>> decode(encode(Line(np.eye(2), ("cat", "dog"), np.ones(3))))
Traceback (most recent call last):
fedgram.core.errors.RefusedMessage: line field 'intercept' must have shape ('c',) with {'d': 2, 'c': 2}, got (3,)

Fields are sent in the order of the dataclass. An annotation is one of

- `Annotated[Array, Shape("d", "c")]`: an array of any dtype that a NumPy type names. A letter stands for the same size
  throughout a message. `Annotated[tuple[Array, ...], Shape(None, "c")]`: any number of arrays.
- `Classes`: c names, where c is the letter in the shapes of arrays; or NUMERIC for any number of numeric outcomes. If
  no required array has the letter c, the number of classes is sent, too, as `count`.
- `Columns`: d names, if an array has the letter d. Empty columns are not sent.
- `str`, `bool`, `int`, `float`, `tuple[int, ...]`.
- Another message, a protocol that messages may have (`Model`), or a dataclass of such plain values, which is sent as
  a table.

or one of these `| None`. A field that a message lacks takes its default: files of earlier versions keep loading.
`Annotated[float | None, Later()]` is a field that is not sent where it is None, so that messages without it are
written as they were before there was such a field.
"""

import os
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass, replace
from math import isfinite
from types import NoneType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from fedgram.core import container
from fedgram.core.arrays import Array
from fedgram.core.classes import NUMERIC, Classes, read_classes, shorten
from fedgram.core.columns import Columns, as_columns
from fedgram.core.container import CODES, AnyArray
from fedgram.core.errors import FedgramError, RefusedMessage
from fedgram.core.filesystem import replace_file, writing

__all__ = [
    "Field",
    "Later",
    "Message",
    "Payload",
    "Saved",
    "Shape",
    "decode",
    "encode",
    "message",
    "register_message",
    "when_unknown",
]

Payload: TypeAlias = Any
# A number, a letter that stands for the same number throughout a message, or None for any number.
Size: TypeAlias = str | int | None
Sizes: TypeAlias = dict[str, int]
# A field's place in a message, from the inside out.
Path: TypeAlias = "tuple[Path, str | int] | None"
T = TypeVar("T")
M = TypeVar("M", bound="type[Message]")

CLASSES, COLUMNS, COUNT = "c", "d", "count"  # letters for sizes, and the field that counts classes
MOST_WITHOUT_ARRAYS = 2**10  # classes of a message that has no arrays to confirm their number
LARGEST = 1e300  # beyond, a whole number has no float
_SCALARS = (str, int, float, bool, type(None))
_PLAIN_TYPES = frozenset((str, int, bool, type(None)))
_DTYPE_NAMES = {dtype: dtype.name for dtype in CODES}


@dataclass(frozen=True)
class Field:
    """The dtype and shape that an array field must have."""

    dtype: str
    shape: tuple[Size, ...]
    optional: bool = False


class Message(Protocol):
    """A type that may cross the wire: it names its fields, returns them and can be made of them."""

    wire_name: ClassVar[str]
    wire_version: ClassVar[int]
    wire_fields: ClassVar[Mapping[str, Field]]  # arrays to be checked before `from_fields` sees them

    def to_fields(self) -> dict[str, Payload]:
        """Return payloads by field name."""
        ...

    @classmethod
    def from_fields(cls, fields: dict[str, Payload]) -> Self:
        """Return the message made of its fields, which are payloads that any sender may have made."""
        ...

    def check(self) -> None:
        """Raise a FedgramError if no honest sender could have sent this. May cost O(d³)."""
        ...


registered: dict[str, type[Message]] = {}
_late: list[tuple[Callable[[], object], tuple[str, ...]]] = []


def register_message(cls: M) -> M:
    """Register a type with its own `to_fields` and `from_fields` (a class decorator); dataclasses take `message`."""
    other = registered.setdefault(cls.wire_name, cls)
    if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"message type {cls.wire_name!r} is already {other.__module__}.{other.__qualname__}")
    registered[cls.wire_name] = cls
    return cls


def when_unknown(load: Callable[[], object], *names: str) -> None:
    """Call `load` when a message of an unregistered type comes in, to register types that are not loaded yet.

    With names, it is called for a type of one of these names only.
    """
    _late.append((load, names))


def type_of(name: str) -> type[Message]:
    """Return the registered type of this name; raise `RefusedMessage` if there is none."""
    for load, names in _late:
        if name not in registered and (not names or name in names):
            load()
    if name not in registered:
        raise RefusedMessage(f"message type {name!r} is not registered; known: {sorted(registered)}")
    return registered[name]


def check_arrays(name: str, wanted: Mapping[str, Field], fields: Mapping[str, Payload]) -> dict[str, int]:
    """Return the sizes that a message's letters stand for; raise `RefusedMessage` if an array has another form."""
    sizes: dict[str, int] = {}
    for field_name, field in wanted.items():
        value = fields.get(field_name)
        if value is not None:
            check_array(f"{name} field {field_name!r}", value, field, sizes)
        elif not field.optional:
            raise RefusedMessage(f"{name} lacks field {field_name!r}")
    return sizes


def check_array(what: str, value: Payload, field: Field, sizes: dict[str, int]) -> None:
    """Raise `RefusedMessage` for an array of another dtype or shape; new sizes are added to `sizes`."""
    got = _DTYPE_NAMES.get(value.dtype) if isinstance(value, np.ndarray) else type(value).__name__
    if got != field.dtype:
        raise RefusedMessage(f"{what} must be {field.dtype}, got {got}")
    if len(value.shape) != len(field.shape) or not all(
        want is None or size == (sizes.setdefault(want, size) if isinstance(want, str) else want)
        for size, want in zip(value.shape, field.shape, strict=True)
    ):
        known = f" with {sizes}" if sizes else ""
        raise RefusedMessage(f"{what} must have shape {field.shape}{known}, got {value.shape}")


def encode(payload: Payload, *, sealed: bool = True) -> bytes:
    """Return the payload as bytes, with their digest in the header.

    Parameters
    ----------
    payload
        The payload.
    sealed
        Whether to compute the digest. Bytes that never leave this process need none; the length is the same.

    """
    arrays: dict[str, AnyArray] = {}
    return container.write(to_tree(payload, "", arrays), arrays, sealed=sealed)


def decode(data: bytes, *, sender: str | None = None, finite: bool = False, sealed: bool = True) -> Payload:
    """Return the payload of `data`.

    Parameters
    ----------
    data
        The bytes of a message.
    sender
        The party that sent the bytes. With a sender, digest and contents are checked, and errors name the sender.
    finite
        Whether to refuse values that are not finite even without a sender.
    sealed
        Whether the bytes have a digest; False where it stands elsewhere and has been checked.

    """
    try:
        if sender is not None and sealed:
            container.check_digest(data)
        tree, arrays = container.read(data)
        payload = Reader(arrays, suspicious=sender is not None, finite=finite or sender is not None).read(tree, None)
        if arrays:
            raise RefusedMessage(f"array {next(iter(arrays))[:60]!r} belongs to no field")
        return payload
    except Exception as error:
        if sender is None and not isinstance(error, FedgramError):
            raise
        # Any failure while reading another party's message, running out of memory included, is a fault of the message.
        why = str(error) if isinstance(error, FedgramError) else f"{type(error).__name__}: {error}"
        raise RefusedMessage(f"message from {sender!r} refused: {why}" if sender else why) from error


def to_tree(value: Payload, path: str, arrays: dict[str, AnyArray]) -> Any:
    """Return a payload as plain JSON values; its arrays go into `arrays`, by their paths."""
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, np.ndarray):
        dtype = value.dtype if value.dtype in CODES else value.dtype.newbyteorder("<")
        if dtype not in CODES:
            raise TypeError(f"field {path or 'payload'!r}: arrays of {value.dtype} cannot be sent")
        name = path or "payload"
        while name in arrays:  # {"a/b": …} and {"a": {"b": …}} have the same path
            name += "'"
        arrays[name] = np.asarray(value, dtype, order="C")
        return {"array": name}
    if isinstance(value, (list, tuple)):
        if _PLAIN_TYPES.issuperset(map(type, value)):
            return {"plain": value}
        return {"list": [to_tree(item, _join(path, i), arrays) for i, item in enumerate(value)]}
    cls = type(value)
    if registered.get(getattr(cls, "wire_name", "")) is cls:
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
        "lists, dicts or a dataclass made a message by wire.message"
    )


def _to_trees(fields: Mapping[Any, Payload], path: str, arrays: dict[str, AnyArray]) -> dict[str, Any]:
    return {str(key): to_tree(item, _join(path, key), arrays) for key, item in fields.items()}


class Saved:
    """Base of message types that users keep in files; `fedgram.load` reads them."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to one file, whole or not at all; `fedgram.load` reads it.

        Parameters
        ----------
        path : str or PathLike
            The file to write.

        """
        target = pathlib.Path(path)
        with writing(target):
            replace_file(target, encode(self))


@dataclass(frozen=True)
class Reader:
    """Reads a payload from its JSON values and arrays; `arrays` holds those not used so far."""

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
        if len(tree) != (3 if "message" in tree else 1):  # otherwise two readers could understand it differently
            raise RefusedMessage(f"field {_where(path)!r} is malformed")
        if "array" in tree:
            array = self.arrays.pop(_of_type(tree["array"], str, path), None)
            if array is None:
                raise RefusedMessage(
                    f"field {_where(path)!r}: its array {tree['array'][:60]!r} is missing, or another field's"
                )
            if self.finite:
                _check_finite(array, path)
            return array
        if "plain" in tree:
            plain = list(_of_type(tree["plain"], list, path))
            if not _PLAIN_TYPES.issuperset(map(type, plain)):
                raise RefusedMessage(f"field {_where(path)!r} is malformed")
            return plain
        if "list" in tree:
            return [self.read(item, (path, i)) for i, item in enumerate(_of_type(tree["list"], list, path))]
        if "dict" in tree:
            return self._children(tree["dict"], path)
        if "message" in tree:
            return self._message(tree, path)
        raise RefusedMessage(f"field {_where(path)!r} is of a kind that this version does not know: {sorted(tree)[:5]}")

    def _children(self, tree: Any, path: Path) -> dict[str, Payload]:
        return {key: self.read(item, (path, key)) for key, item in _of_type(tree, dict, path).items()}

    def _message(self, tree: dict[str, Any], path: Path) -> Message:
        cls = type_of(_of_type(tree["message"], str, path))
        if tree.get("version") != cls.wire_version:
            raise RefusedMessage(
                f"{cls.wire_name} version {tree.get('version')!r}, this side has {cls.wire_version}: "
                "update the older side"
            )
        fields = self._children(tree.get("fields"), path)
        check_arrays(cls.wire_name, cls.wire_fields, fields)
        try:
            message = cls.from_fields(fields)
        except (KeyError, TypeError) as error:
            raise RefusedMessage(f"{cls.wire_name} has a missing or misshapen field: {error}") from error
        if self.suspicious:
            message.check()
        return message


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


def _of_type(value: Any, kind: type[T], path: Path) -> T:
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


class Shape:
    """The shape of an array in a message, as sizes or letters: `Annotated[Array, Shape("d", "c")]`."""

    def __init__(self, *sizes: Size) -> None:
        self.sizes = sizes

    def __repr__(self) -> str:
        return f"shape ({', '.join(map(str, self.sizes))})"  # as `help` shows an annotation


class Later:
    """Marks a field that was added later, and is not sent where it is None: `Annotated[float | None, Later()]`."""

    def __repr__(self) -> str:
        return "optional"


@dataclass(frozen=True)
class _Part:
    """The way a field is sent and read; `read` gets the field's display name, the payload and the letters' sizes."""

    read: Callable[[str, Payload, Sizes], Any]
    send: Callable[[Any], Payload] = lambda value: value
    array: Field | None = None
    names: Any = None  # Classes or Columns, whose number other fields tell
    later: bool = False


def message(name: str, *, version: int) -> Callable[[type[T]], type[T]]:
    """Make a dataclass a message type of this name (a class decorator, above `@dataclass`).

    A class may have a `check` of its own, for what another party sends (see `Message`).
    """

    def decorate(cls: type[T]) -> type[T]:
        hints = get_type_hints(cls, include_extras=True)
        form = _Form(name, {field.name: _part(hints[field.name]) for field in fields(cast("Any", cls))}, _optional(cls))

        def to_fields(self: T) -> dict[str, Payload]:
            return form.take_apart(self)

        def from_fields(own: type[T], found: dict[str, Payload]) -> T:
            return own(**form.read(found))

        derived: dict[str, Any] = {
            "wire_name": name,
            "wire_version": version,
            "wire_fields": {},  # `from_fields` checks its arrays itself
            "to_fields": to_fields,
            "from_fields": classmethod(from_fields),
            "check": getattr(cls, "check", lambda self: None),
        }
        for attribute, value in derived.items():
            setattr(cls, attribute, value)
        register_message(cast("type[Message]", cls))
        return cls

    return decorate


class _Form:
    """The fields of a message type."""

    def __init__(self, name: str, parts: Mapping[str, _Part], optional: frozenset[str]) -> None:
        self._name, self._parts, self._optional = name, parts, optional
        self._arrays = {name: part.array for name, part in parts.items() if part.array is not None}
        sure = {size for field in self._arrays.values() if not field.optional for size in field.shape}
        self._counted = CLASSES not in sure and any(part.names is Classes for part in parts.values())
        self._known = {*parts, COUNT} if self._counted else {*parts}

    def take_apart(self, own: object) -> dict[str, Payload]:
        """Return a message's payloads by field name."""
        found: dict[str, Payload] = {}
        for name, part in self._parts.items():
            value = getattr(own, name)
            if (part.names is Columns and not value) or (part.later and value is None):
                continue
            found[name] = None if value is None else part.send(value)
            if self._counted and part.names is Classes:
                found[COUNT] = len(value)
        return found

    def read(self, found: Mapping[str, Payload]) -> dict[str, Any]:
        """Return the values of the dataclass's fields, all checked."""
        if unknown := found.keys() - self._known:
            raise RefusedMessage(
                f"{self._name} has a field {min(unknown)[:60]!r} that this version does not know: update the older side"
            )
        sizes = check_arrays(self._name, self._arrays, found)
        values: dict[str, Any] = {}
        named: list[str] = []
        for name, part in self._parts.items():
            if name not in found:
                if name not in self._optional:
                    raise RefusedMessage(f"{self._name} lacks field {name!r}")
            elif part.names is None:
                values[name] = part.read(f"{self._name} field {name!r}", found[name], sizes)
            else:
                named.append(name)  # once all sizes are known
        if self._counted:
            self._read_count(found.get(COUNT), values, sizes)
        for name in named:
            values[name] = self._parts[name].read(f"{self._name} field {name!r}", found[name], sizes)
        return values

    def _read_count(self, count: Payload, values: Mapping[str, Any], sizes: Sizes) -> None:
        """Read the number of classes; raise if the arrays contradict it.

        A sender could claim any number at no cost, and the receiver makes a list of that many names.
        """
        _expect(f"{self._name} field {COUNT!r}", "a whole number", count, int)
        if sizes.setdefault(CLASSES, count) != count:
            raise RefusedMessage(f"{self._name} has {count} classes, but arrays for {sizes[CLASSES]}")
        found = [item for value in values.values() for item in (value if isinstance(value, tuple) else [value])]
        numbers = sum(item.size for item in found if isinstance(item, np.ndarray))
        if count > (numbers or MOST_WITHOUT_ARRAYS):
            raise RefusedMessage(f"{self._name} has {count} classes, but arrays of {numbers} numbers")


def _optional(cls: type) -> frozenset[str]:
    """Return the names of a dataclass's fields that have defaults."""
    return frozenset(
        field.name
        for field in fields(cast("Any", cls))
        if field.default is not MISSING or field.default_factory is not MISSING
    )


def _part(hint: Any) -> _Part:
    """Return the way that a field with this annotation is sent and read."""
    if NoneType in get_args(hint):
        [inner] = [option for option in get_args(hint) if option is not NoneType]
        return _or_none(_part(inner))
    if hint == Classes:
        return _Part(_read_classes, shorten, names=Classes)
    if hint == Columns:
        return _Part(_read_columns, names=Columns)
    if hint in _PLAIN_PARTS:
        return _PLAIN_PARTS[hint]
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        if any(isinstance(note, Later) for note in notes):
            return replace(_part(kind), later=True)
        [shape] = [note.sizes for note in notes if isinstance(note, Shape)]
        return _array_part(kind, shape)
    if hasattr(hint, "wire_name"):
        return _Part(lambda what, value, sizes: _expect(what, f"a {hint.wire_name}", value, hint))
    if getattr(hint, "_is_runtime_protocol", False):
        return _Part(lambda what, value, sizes: _expect(what, f"a {hint.__name__.lower()}", value, hint))
    if is_dataclass(hint) and isinstance(hint, type):
        return _Part(lambda what, value, sizes: hint(**_expect(what, "a table", value, dict)), asdict)
    raise TypeError(f"a field of a message cannot be {hint}: see `fedgram.core.wire` for the types it can have")


def _array_part(kind: Any, shape: tuple[Size, ...]) -> _Part:
    if get_origin(kind) is tuple:
        field = Field(_dtype(get_args(kind)[0]), shape)
        return _Part(lambda what, value, sizes: _read_arrays(what, value, field, sizes), list)
    return _Part(lambda what, value, sizes: value, array=Field(_dtype(kind), shape))


def _dtype(kind: Any) -> str:
    """Return the dtype's name of a type such as NDArray[np.float64]."""
    _, dtype = get_args(kind)
    return str(np.dtype(get_args(dtype)[0]).name)


def _or_none(part: _Part) -> _Part:
    array = part.array and Field(part.array.dtype, part.array.shape, optional=True)
    return _Part(
        lambda what, value, sizes: None if value is None else part.read(what, value, sizes),
        part.send,
        array,
        part.names,
    )


def _read_classes(what: str, value: Payload, sizes: Sizes) -> Classes:
    # Numeric outcomes have one class, and an array has a column for each outcome.
    numeric = isinstance(value, list | tuple) and tuple(value) == NUMERIC
    return NUMERIC if numeric else read_classes(value, sizes[CLASSES])


def _read_columns(what: str, value: Payload, sizes: Sizes) -> Columns:
    return as_columns(_expect(what, "a list of names", value, list, tuple), sizes.get(COLUMNS))


def _read_arrays(what: str, value: Payload, field: Field, sizes: Sizes) -> tuple[Array, ...]:
    for place, array in enumerate(_expect(what, "a list of arrays", value, list)):
        check_array(f"{what}, place {place},", array, field, sizes)
    return tuple(value)


def _read_number(what: str, value: Payload, sizes: Sizes) -> float:
    number: float = _expect(what, "a number", value, int, float)
    if abs(number) > LARGEST:
        raise RefusedMessage(f"{what} must be a number up to {LARGEST}, got {number!r:.60}")
    return number


def _read_whole_numbers(what: str, value: Payload, sizes: Sizes) -> tuple[int, ...]:
    return tuple(
        _expect(f"{what}, place {place},", "a whole number", number, int)
        for place, number in enumerate(_expect(what, "a list", value, list, tuple))
    )


def _expect(what: str, kind: str, value: Payload, *types: type) -> Any:
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        shown = repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
        raise RefusedMessage(f"{what} must be {kind}, got {shown[:60]}")
    return value


_PLAIN_PARTS: Mapping[Any, _Part] = {
    str: _Part(lambda what, value, sizes: _expect(what, "text", value, str)),
    bool: _Part(lambda what, value, sizes: _expect(what, "true or false", value, bool)),
    int: _Part(lambda what, value, sizes: _expect(what, "a whole number", value, int)),
    float: _Part(_read_number),
    tuple[int, ...]: _Part(_read_whole_numbers),
}

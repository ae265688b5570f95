"""`@message`: a dataclass that may cross the wire, with all that this takes derived from its annotations.

>>> from fedgram.core import wire
>>> @wire.message("line", version=1)
... @dataclass(frozen=True)
... class Line:
...     weights: Annotated[Array, wire.Shape("d", "c")]
...     classes: Classes
...     intercept: Annotated[Array, wire.Shape("c")] | None = None
>>> wire.decode(wire.encode(Line(np.eye(2), ("cat", "dog")))).classes
('cat', 'dog')
>>> wire.decode(wire.encode(Line(np.eye(2), ("cat", "dog"), np.ones(3))))
Traceback (most recent call last):
fedgram.core.errors.RefusedMessage: line field 'intercept' must have shape ('c',) with {'d': 2, 'c': 2}, got (3,)

Fields are sent in the order of the dataclass. An annotation is one of

- `Annotated[Array, Shape("d", "c")]`, an array of any dtype that NumPy's type says; `Annotated[tuple[Array, ...],
  Shape(None, "c")]`, any number of them; letters stand for the same size throughout a message,
- `Classes`, as many as the letter c says, or NUMERIC for any number of numeric outcomes; where no array is sure to say
  their number, it is sent, too, as `count`,
- `Columns`, as many as the letter d says, if any array says it; not sent if there are none,
- `str`, `bool`, `int`, `float`, `tuple[int, ...]`,
- another message, a protocol that messages may have (`Model`), or a dataclass of such plain values, which is sent as
  a table,

or one of these `| None`. A field that a message lacks takes its default: files of earlier versions keep loading.
`Annotated[float | None, Later()]` is a field that is not sent where it is None, so that messages without it are
written as they were before there was such a field.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass, replace
from types import NoneType
from typing import Annotated, Any, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.columns import Columns, as_columns
from fedgram.core.errors import RefusedMessage
from fedgram.core.labels import NUMERIC, Classes, read_classes, shorten
from fedgram.core.wire.messages import Field, Message, Payload, Size, check_array, check_arrays, register_message

T = TypeVar("T")
Sizes: TypeAlias = dict[str, int]
CLASSES, COLUMNS, COUNT = "c", "d", "count"
# Classes of a message that has no arrays to bear their number out.
MOST_WITHOUT_ARRAYS = 2**10
# Beyond, a whole number has no float.
LARGEST = 1e300


class Shape:
    """The shape of an array in a message, as sizes or letters: `Annotated[Array, Shape("d", "c")]`."""

    def __init__(self, *sizes: Size) -> None:
        self.sizes = sizes


class Later:
    """Marks a field that was added later, and is not sent where it is None: `Annotated[float | None, Later()]`."""


@dataclass(frozen=True)
class _Part:
    """How a field is sent, and read again: `read` gets what to call it, the payload and the letters' sizes."""

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
        """Take the number of classes from the message, if its arrays do not say otherwise: it costs a sender nothing,
        and us a list of so many names.
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
    """Return how a field with this annotation is sent."""
    if NoneType in get_args(hint):
        [inner] = [option for option in get_args(hint) if option is not NoneType]
        return _or_none(_part(inner))
    if hint == Classes:
        return _Part(_read_classes, shorten, names=Classes)
    if hint == Columns:
        return _Part(_read_columns, names=Columns)
    if hint in _PLAIN:
        return _PLAIN[hint]
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
    raise TypeError(f"a field of a message cannot be {hint}: see `fedgram.core.wire.derive` for what it can be")


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


_PLAIN: Mapping[Any, _Part] = {
    str: _Part(lambda what, value, sizes: _expect(what, "text", value, str)),
    bool: _Part(lambda what, value, sizes: _expect(what, "true or false", value, bool)),
    int: _Part(lambda what, value, sizes: _expect(what, "a whole number", value, int)),
    float: _Part(_read_number),
    tuple[int, ...]: _Part(_read_whole_numbers),
}

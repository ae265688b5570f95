"""Types that may cross the wire: what a message type is, which ones are registered, and checks of their arrays."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, TypeAlias, TypeVar

import numpy as np

from fedgram.core.errors import RefusedMessage
from fedgram.core.wire.container import CODES

Payload: TypeAlias = Any
# A number, a letter that stands for the same number throughout a message, or None for any number.
Size: TypeAlias = str | int | None
_NAMES = {dtype: dtype.name for dtype in CODES}


@dataclass(frozen=True)
class Field:
    """What an array field must be: its dtype and its shape."""

    dtype: str
    shape: tuple[Size, ...]
    optional: bool = False


class Message(Protocol):
    """A type that may cross the wire: it names its fields, can be taken apart and put together again."""

    wire_name: ClassVar[str]
    wire_version: ClassVar[int]
    wire_fields: ClassVar[Mapping[str, Field]]  # arrays to be checked before `from_fields` sees them

    def to_fields(self) -> dict[str, Payload]:
        """Return payloads by field name."""
        ...

    @classmethod
    def from_fields(cls, fields: dict[str, Payload]) -> Self:
        """Put a message together; its fields are payloads that any sender may have made."""
        ...

    def check(self) -> None:
        """Raise a FedgramError if this could not come from an honest sender. May cost O(d³)."""
        ...


M = TypeVar("M", bound=type[Message])
registered: dict[str, type[Message]] = {}
_late: list[Callable[[], None]] = []


def register_message(cls: M) -> M:
    """Register a type that takes itself apart (a class decorator); a dataclass has `message` do that."""
    other = registered.setdefault(cls.wire_name, cls)
    if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"message type {cls.wire_name!r} is already {other.__module__}.{other.__qualname__}")
    registered[cls.wire_name] = cls
    return cls


def when_unknown(load: Callable[[], None]) -> None:
    """Have `load` called when a message comes in whose type is not registered, to register types not loaded yet."""
    _late.append(load)


def type_of(name: str) -> type[Message]:
    """Return the registered type of this name, or refuse."""
    for load in _late:
        if name not in registered:
            load()
    if name not in registered:
        raise RefusedMessage(f"message type {name!r} is not registered; known: {sorted(registered)}")
    return registered[name]


def check_arrays(name: str, wanted: Mapping[str, Field], fields: Mapping[str, Payload]) -> dict[str, int]:
    """Refuse arrays of a message that are not as wanted; return the sizes that its letters stand for."""
    sizes: dict[str, int] = {}
    for field_name, field in wanted.items():
        value = fields.get(field_name)
        if value is not None:
            check_array(f"{name} field {field_name!r}", value, field, sizes)
        elif not field.optional:
            raise RefusedMessage(f"{name} lacks field {field_name!r}")
    return sizes


def check_array(what: str, value: Payload, field: Field, sizes: dict[str, int]) -> None:
    """Refuse an array of another dtype or shape; sizes that are new are added to `sizes`."""
    got = _NAMES.get(value.dtype) if isinstance(value, np.ndarray) else type(value).__name__
    if got != field.dtype:
        raise RefusedMessage(f"{what} must be {field.dtype}, got {got}")
    if len(value.shape) != len(field.shape) or not all(
        want is None or size == (sizes.setdefault(want, size) if isinstance(want, str) else want)
        for size, want in zip(value.shape, field.shape, strict=True)
    ):
        known = f" with {sizes}" if sizes else ""
        raise RefusedMessage(f"{what} must have shape {field.shape}{known}, got {value.shape}")

"""Flower's values (text, numbers, true/false) as fields of a dataclass, and as settings of a method."""

import logging
from collections.abc import Iterable, Mapping
from typing import TypeVar

from fedgram.core.errors import InvalidParameter, UnknownName
from fedgram.protocol.method import Method
from fedgram.protocol.parameters import read_settings

T = TypeVar("T")
Config = Mapping[str, bool | float | int | str]

log = logging.getLogger("flwr")  # so that it shows where Flower's own lines do


def read_values(cls: type[T], config: Config, what: str, hidden: Iterable[str] = ()) -> T:
    """Return a dataclass from Flower's values; names are written with hyphens there."""
    defaults = {name.replace("_", "-"): getattr(cls, name) for name in cls.__dataclass_fields__ if name not in hidden}  # type: ignore[attr-defined]
    values = {}
    for key, value in config.items():
        if key not in defaults:
            raise UnknownName(f"name in {what}", key, defaults)
        kind = type(defaults[key])
        if (
            isinstance(value, bool)
            or (kind is not str and isinstance(value, str))
            or (kind is int and not float(value).is_integer())
        ):
            raise InvalidParameter(f"{what}: {key} must be {'text' if kind is str else 'a number'}, got {value!r}")
        values[key.replace("-", "_")] = kind(value)
    return cls(**values)


def split(text: str) -> list[str]:
    """Return what stands between commas.

    >>> split("cat, dog"), split("")
    (['cat', 'dog'], [])
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def taken_over(written: type[Method], chosen: type[Method], given: dict[str, str]) -> dict[str, str]:
    """Return what a run of another method takes over from an app: what was changed there and means the same here.

    The same name may mean another thing (alpha does), unless both methods have it from a common base.
    """
    usual = written().settings()
    changed = {name for name, value in read_settings(written, given).items() if value != usual[name]}
    bases = set(written.__mro__).intersection(chosen.__mro__)
    common = {name for name in usual if any(name in vars(base).get("__annotations__", {}) for base in bases)}
    if lost := sorted(changed - common):
        log.info("settings of %s that are not those of %s are left out: %s", written.name, chosen.name, ", ".join(lost))
    return {name: given[name] for name in changed & common}

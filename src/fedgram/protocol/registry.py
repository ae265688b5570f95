"""Methods by name: ours, and anyone's."""

import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, TypeVar

from fedgram.core.errors import UnknownName

if TYPE_CHECKING:
    from fedgram.protocol.method import Method

GROUP = "fedgram.methods"
M = TypeVar("M", bound="type[Method]")


class Registry(Mapping[str, "type[Method]"]):
    """Name → method class. Methods of other distributions (entry-point group `fedgram.methods`) load on first look."""

    def __init__(self) -> None:
        self._methods: dict[str, type[Method]] = {}
        self._looked_outside = False

    def register(self, cls: M) -> M:
        """Register a method under its name (a class decorator)."""
        if "__dataclass_fields__" not in cls.__dict__:
            raise TypeError(f"decorate {cls.__name__} with @dataclass(frozen=True, kw_only=True) below @register")
        name = cls.name
        known = self._methods.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"method name {name!r} is taken by {known.__module__}.{known.__qualname__}")
        self._methods[name] = cls
        return cls

    def _all(self) -> "dict[str, type[Method]]":
        if not self._looked_outside:
            self._looked_outside = True
            for entry in entry_points(group=GROUP):
                try:
                    self.register(entry.load())
                except Exception as error:
                    # Somebody else's broken package must not keep ours from working.
                    warnings.warn(f"method {entry.name!r} ({entry.value}) cannot be loaded: {error}", stacklevel=2)
        return self._methods

    def __getitem__(self, name: str) -> "type[Method]":
        if name not in self:
            raise UnknownName("method", str(name), self._methods)
        return self._methods[name.lower()]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._all()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._all()))

    def __len__(self) -> int:
        return len(self._all())


registry = Registry()
register = registry.register

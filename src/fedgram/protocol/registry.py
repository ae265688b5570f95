"""Methods by name, ours and those of other packages. A method's file is read when its name is first looked up."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, TypeVar

from fedgram.core import wire
from fedgram.core.errors import UnknownName

if TYPE_CHECKING:
    from fedgram.protocol.method import Method

GROUP = "fedgram.methods"
M = TypeVar("M", bound="type[Method]")


class Registry(Mapping[str, "type[Method]"]):
    """Name → method class. Methods register themselves when their modules are read.

    Modules of a package that was given to `discover` are read when a name is looked up: first the one that is called
    like the method, and only if that does not help all the others, and then the methods of other distributions
    (entry-point group `fedgram.methods`).
    """

    def __init__(self) -> None:
        self._methods: dict[str, type[Method]] = {}
        self._unread: list[str] = []  # modules
        self._packages: list[str] = []
        self._looked_outside = False

    def discover(self, package: str, folders: Iterable[str]) -> None:
        """Find the modules of a package, without reading any of them."""
        self._packages.append(f"{package}.")
        self._unread += _modules(package, folders)

    def register(self, cls: M) -> M:
        """Register a method under its name (a class decorator)."""
        if "__dataclass_fields__" not in cls.__dict__:
            raise TypeError(f"decorate {cls.__name__} with @dataclass(frozen=True, kw_only=True) below @register")
        if not cls.__module__.startswith(tuple(self._packages)):
            self._read()  # the name of a method that was found, but not read yet, stays taken
        known = self._methods.get(cls.name)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"method name {cls.name!r} is taken by {known.__module__}.{known.__qualname__}")
        self._methods[cls.name] = cls
        return cls

    def class_named(self, name: str) -> "type[Method] | None":
        """Return the method of a discovered package whose class has this name, if there is one."""
        for called in (name.lower(), None):
            self._read(called)
            for cls in self._methods.values():
                if cls.__name__ == name and cls.__module__.startswith(tuple(self._packages)):
                    return cls
        return None

    def read_all(self) -> None:
        """Read every module and every distribution that has methods."""
        self._read()
        if not self._looked_outside:
            self._looked_outside = True
            for entry in entry_points(group=GROUP):
                try:
                    self.register(entry.load())
                except Exception as error:
                    # A broken package of others must not keep ours from working.
                    warnings.warn(f"method {entry.name!r} ({entry.value}) cannot be loaded: {error}", stacklevel=2)

    def _read(self, called: str | None = None) -> None:
        """Read the modules of this name, or all."""
        chosen = [module for module in self._unread if called is None or module.rpartition(".")[2] == called]
        self._unread = [module for module in self._unread if module not in chosen]
        for module in chosen:
            import_module(module)

    def __getitem__(self, name: str) -> "type[Method]":
        if name not in self:
            raise UnknownName("method", str(name), self._methods)
        return self._methods[name.lower()]

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        wanted = name.lower()
        if wanted not in self._methods:
            self._read(wanted)
        if wanted not in self._methods:
            self.read_all()
        return wanted in self._methods

    def __iter__(self) -> Iterator[str]:
        self.read_all()
        return iter(sorted(self._methods))

    def __len__(self) -> int:
        self.read_all()
        return len(self._methods)


def _modules(package: str, folders: Iterable[str]) -> list[str]:
    """Return the names of a package's modules, those in its folders included."""
    found = []
    for folder in map(Path, folders):
        for _, name, is_folder in iter_modules([str(folder)]):
            inside = f"{package}.{name}"
            found += _modules(inside, [str(folder / name)]) if is_folder else [inside]
    return found


registry = Registry()
register = registry.register
# A method's own messages are registered with it: one that is not known yet may belong to a method not read yet.
wire.when_unknown(registry.read_all)

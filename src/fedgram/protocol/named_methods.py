"""Methods as users name them: a registered name, a file `path/to/file.py`, or `module:Class`.

Reading a file or a module runs its code. So this is for what users say themselves, on a command line, in an experiment
or in their own node's configuration; what another party says is looked up in `registry`, by name alone.
"""

import re
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TypeGuard

from fedgram.core.errors import InvalidParameter, UnknownName
from fedgram.core.hashing import hash_text
from fedgram.protocol.method import Method
from fedgram.protocol.registry import registry

_FILE = re.compile(r"(?P<path>.+\.py)(:(?P<name>\w+))?")
_MODULE = re.compile(r"(?P<module>[\w.]+):(?P<name>\w+)")

# By the names of their modules; another process that reads the same file has it under the same name.
files: dict[str, Path] = {}


def is_code(text: str) -> bool:
    """Return whether a method is named by a file or a module, so that finding it runs code.

    >>> is_code("afl"), is_code("own/average.py"), is_code("average.py:Average"), is_code("package.module:Average")
    (False, True, True, True)
    """
    return is_file(text) or bool(_MODULE.fullmatch(text))


def is_file(text: str) -> bool:
    """Return whether a method is named by a file, maybe with a class in it."""
    return bool(_FILE.fullmatch(text))


def resolve(text: str) -> type[Method]:
    """Return the method that a user names; one from a file or a module is registered, too."""
    if found := _FILE.fullmatch(text):
        module = read_file(Path(found["path"]))
    elif found := _MODULE.fullmatch(text):
        module = _imported(found["module"], text)
    else:
        return registry[text]
    cls = _chosen(module, found["name"], text)
    try:
        return registry.register(cls)
    except (TypeError, ValueError) as error:
        raise InvalidParameter(f"method {text!r}: {error}") from error


def read_file(path: Path) -> ModuleType:
    """Return a file as a module; one that was read before is not read again."""
    where = path.expanduser().resolve()
    name = f"fedgram_{where.stem}_{hash_text(str(where))[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, where)
    if not where.is_file() or spec is None or spec.loader is None:
        raise InvalidParameter(f"method {str(path)!r}: there is no such file; give the path of a Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InvalidParameter(
            f"method {str(path)!r}: the file cannot be run: {type(error).__name__}: {error}"
        ) from error
    files[name] = where
    return module


def files_of(method: Method) -> list[Path]:
    """Return the files that a method was read from, so that another process can read them."""
    return [files[cls.__module__] for cls in reversed(type(method).__mro__) if cls.__module__ in files]


def _imported(module: str, text: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise InvalidParameter(f"method {text!r}: {module} needs {error.name}, which is not installed") from error
        raise InvalidParameter(
            f"method {text!r}: there is no module {error.name!r}: install it, or put its folder into PYTHONPATH"
        ) from error
    except (Exception, SystemExit) as error:
        raise InvalidParameter(
            f"method {text!r}: {module} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _chosen(module: ModuleType, name: str | None, text: str) -> type[Method]:
    """Return a module's method of this name, or else its only one."""
    methods = {key: value for key, value in vars(module).items() if _is_method(value)}
    if name is not None:
        if name not in methods:
            raise UnknownName(f"method in {text.removesuffix(f':{name}')}: class", name, methods)
        return methods[name]
    own = [cls for cls in methods.values() if cls.__module__ == module.__name__]
    if len(own) != 1:
        names = ", ".join(cls.__name__ for cls in own)
        remedy = (
            f"it has {names}: name one, as in {text}:{own[0].__name__}"
            if own
            else "it has no class that extends fg.Method and defines serve"
        )
        raise InvalidParameter(f"method {text!r}: {remedy}")
    return own[0]


def _is_method(value: object) -> TypeGuard[type[Method]]:
    return isinstance(value, type) and issubclass(value, Method) and value.serve is not Method.serve

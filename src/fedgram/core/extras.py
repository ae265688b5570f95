"""Optional dependencies: imported on use; if one is missing, the error says which extra to install."""

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedgram.core.errors import MissingExtra
from fedgram.core.threads import waiting_passively


def require(module: str, extra: str, what: str) -> Any:
    """Return an optional module, which `what` needs and the extra `extra` installs.

    >>> require("no_such_module", "vision", "reading images")
    Traceback (most recent call last):
    fedgram.core.errors.MissingExtra: reading images needs the 'vision' extra (no_such_module is missing): pip install
    'fedgram[vision]'
    """
    with needing(extra, what), waiting_passively():
        importlib.import_module(module.partition(".")[0])
        return importlib.import_module(module)


@contextmanager
def needing(extra: str, what: str) -> Iterator[None]:
    """Import the packages that `what` needs inside; if one is missing, raise an error that names the extra."""
    try:
        yield
    except ImportError as error:
        raise _missing(error.name or str(error), extra, what) from error


def package_folder(package: str, extra: str, what: str) -> Path:
    """Return the folder of an optional package without importing it, which may take seconds."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise _missing(package, extra, what)
    return Path(spec.submodule_search_locations[0])


def _missing(module: str, extra: str, what: str) -> MissingExtra:
    return MissingExtra(f"{what} needs the {extra!r} extra ({module} is missing): pip install 'fedgram[{extra}]'")

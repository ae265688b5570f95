"""Settings that keep Flower and Ray to this machine: no reports home, updates, installations or open ports.

Flower and Ray read these settings from the environment, some of them as soon as they are imported. They are set where a
process is started, not where fedgram is imported.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fedgram.core.errors import InvalidParameter

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's own switch for "this machine only", meant for desktops: all its servers listen on loopback then.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Without this, a Ray worker that needs no GPU warns that a future version will hide GPUs from it.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# Values that modules have read from the environment when they were imported.
_ALREADY_READ = {
    "flwr.supercore.telemetry": ("FLWR_TELEMETRY_ENABLED", "0"),
    "ray._private.ray_constants": ("ENABLE_RAY_CLUSTER", False),
}


def be_quiet() -> None:
    """Set the environment of this process, and of those that it starts."""
    os.environ.update(QUIET)
    for module, (name, value) in _ALREADY_READ.items():
        if module in sys.modules:
            replace_name(module, name, value)


@contextmanager
def quiet() -> Iterator[None]:
    """Set the environment inside, and restore it afterwards, including the path for Python that Flower extends."""
    environment = {name: os.environ.get(name) for name in (*QUIET, "PYTHONPATH")}
    read = {module: getattr(sys.modules.get(module), name, None) for module, (name, _) in _ALREADY_READ.items()}
    be_quiet()
    try:
        yield
    finally:
        for variable, text in environment.items():
            if text is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = text
        for module, value in read.items():
            if value is not None:
                replace_name(module, _ALREADY_READ[module][0], value)


def replace_name(module: str, name: str, value: object) -> None:
    """Replace the value of a name in a module of Flower or Ray; raise if the module no longer has the name."""
    where = sys.modules[module]
    if not hasattr(where, name):
        raise InvalidParameter(f"this version of Flower or Ray has no {module}.{name}: pip install 'fedgram[flower]'")
    setattr(where, name, value)

"""Nothing that we start with Flower reports home, looks for updates, installs packages or listens to other machines.

Flower and Ray read that from the environment, some of it as soon as they are imported. It is set where a process is
started, not where fedgram is imported.
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
# What was made of the environment by modules that are imported already.
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
    """Be quiet inside, and leave all as it was, the path for Python that Flower adds to included."""
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
    """Give a name of Flower's or Ray's another value; a name that they no longer have is an error, not a gap."""
    where = sys.modules[module]
    if not hasattr(where, name):
        raise InvalidParameter(f"this version of Flower or Ray has no {module}.{name}: pip install 'fedgram[flower]'")
    setattr(where, name, value)

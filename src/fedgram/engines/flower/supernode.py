"""A SuperNode that runs only the app installed with it: `fedgram flower node`.

Flower's own SuperNode unpacks the app that the SuperLink sends and runs the code in it, so a user who can submit a run
decides how a node's data are used. Here Flower's three programs of a node (SuperNode, SuperExec, ClientApp) run
unchanged except for the few names replaced below: the bundle is never unpacked, and only the run's configuration is
read from it. The three talk over a port on loopback. Flower's SuperNode gives its messages to the first
process of the machine that asks there, and forwards that process's answers. Ours gives them only to a process that
knows a secret. The SuperNode hands the secret down in the environment, where other users cannot read it. Flower is
pinned to one minor version; if a replaced name no longer exists, the node stops with an error.

Flower starts a ClientApp for every message, which takes seconds to import what it needs. Where processes can be forked,
each ClientApp here is a fork of a process that has imported everything, has no threads, and has seen no data.
"""

import logging
import multiprocessing
import os
import secrets
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import flwr.supernode  # noqa: F401  so that a missing extra is noticed here
from flwr.app.user_config import UserConfig
from flwr.common.config import get_fused_config_from_fab
from flwr.supercore.run import Run

from fedgram.core.errors import InvalidParameter
from fedgram.core.terminal import visible
from fedgram.engines.flower.flower_messages import pull_and_inflate, pull_bounded
from fedgram.engines.flower.isolation import be_quiet, replace_name

MODULE = "fedgram.engines.flower.supernode"
LONGEST_CONFIG = 1 << 24  # bytes
UNREADABLE = "a configuration that this node cannot read"  # not the name of an option, so the app refuses it
CLIENT_APP = "flwr-clientapp"
log = logging.getLogger("flwr")  # Flower's log, so that our lines appear among its own
KEY_OPTION = "--auth-supernode-private-key"
SECRET = "FEDGRAM_NODE_SECRET"  # in the environment of a node's programs
FORBIDDEN = "--allow-runtime-dependency-installation"  # would install what the SuperLink's app asks for


def run(program: str, arguments: Sequence[str]) -> None:
    """Run one of a node's programs; the programs that it starts are run by this module, too."""
    if any(FORBIDDEN.startswith(argument.partition("=")[0]) for argument in arguments if argument.startswith("--al")):
        raise InvalidParameter(f"{FORBIDDEN} would install what the SuperLink's app names: install it beforehand")
    be_quiet()
    _warn_of_readable(arguments)
    prepare, module, function = PROGRAMS[program]
    prepare()
    sys.argv = [program, *arguments]
    getattr(import_module(module), function)()


def _warn_of_readable(arguments: Sequence[str]) -> None:
    """Warn of a private key that other users of this machine may read: with it they could act as this node."""
    words = iter(arguments)
    for word in words:
        option, _, path = word.partition("=")
        if option != KEY_OPTION or not (path := path or next(words, "")):
            continue
        found = Path(path).expanduser()
        mode = stat.S_IMODE(found.stat().st_mode) if os.name == "posix" and found.is_file() else 0
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            log.warning(
                "others on this machine may read the private key %s (mode %o), and could be this node: chmod 600",
                visible(path),
                mode,
            )


def _supernode() -> None:
    """Make every message a task for the ClientApp, because an AgentApp would run code of the bundle."""
    from flwr.supercore.constant import TaskType

    client = TaskType.CLIENT_APP
    module = "flwr.supernode.start_client_internal"
    _replace(module, "TaskType", SimpleNamespace(AGENT_APP=client, CLIENT_APP=client))
    _replace(module, "subprocess", SimpleNamespace(Popen=_start))
    _replace(module, "pull_objects", pull_bounded)
    _replace(module, "get_fused_config_from_fab", _run_config)
    os.environ[SECRET] = secrets.token_hex(32)
    module = "flwr.supernode.cli.flower_supernode"
    import_module(module)
    honest = sys.modules[module]._start_supernode_http_api
    _replace(module, "_start_supernode_http_api", lambda config, *rest: honest(_guarded(config), *rest))


def _guarded(config: Any) -> Any:
    """Return Flower's settings with our secret; refuse a SuperExec of the user's own, which would run an app's code."""
    if config.isolation != "subprocess":
        raise InvalidParameter(
            f"--isolation: expected subprocess, got {config.isolation}; a SuperExec that fedgram has not started would "
            "run the code that the SuperLink sends"
        )
    return replace(config, superexec_auth_secret=_secret())


def _secret() -> bytes:
    return bytes.fromhex(os.environ[SECRET])


def _run_config(bundle: bytes, run: Run) -> UserConfig:
    """Return a run's configuration, the only part of a bundle that is read; the app refuses an unreadable one.

    An error here would end the SuperNode, and the configuration of a small bundle can unfold to gigabytes.
    """
    try:
        with ZipFile(BytesIO(bundle)) as files:
            size = files.getinfo("pyproject.toml").file_size
        if size > LONGEST_CONFIG:
            raise ValueError(f"a configuration of {size} bytes: expected at most {LONGEST_CONFIG}")
        return get_fused_config_from_fab(bundle, run)
    except Exception as error:
        log.error("the configuration of run %d cannot be read: %r", run.run_id, error)
        return {UNREADABLE: True}


def _superexec() -> None:
    _replace("flwr.supercore.superexec.executor.subprocess_executor", "subprocess", SimpleNamespace(Popen=_start))
    module = "flwr.supercore.cli.flower_superexec"
    import_module(module)
    honest = sys.modules[module].run_superexec
    _replace(module, "run_superexec", lambda **given: honest(**given | {"superexec_auth_secret": _secret()}))


def _clientapp() -> None:
    """Load the installed app in place of the one that was sent."""
    module = "flwr.supernode.runtime.run_clientapp"
    _replace(module, "install_from_fab", lambda *_, **__: None)
    _replace(module, "install_app_dependencies", lambda *_, **__: None)
    _replace(module, "get_load_client_app_fn", lambda *_, **__: _load)
    _replace(module, "pull_and_inflate_object_from_tree", pull_and_inflate)


def _load(*_: str) -> Any:
    from flwr.clientapp.client_app import LoadClientAppError

    try:
        from fedgram.engines.flower.app import client
    except ImportError as error:  # whose text may name paths
        raise LoadClientAppError("the installed app cannot be loaded") from error
    return client


def _replace(module: str, name: str, value: object) -> None:
    import_module(module)
    replace_name(module, name, value)


def _start(command: Sequence[str], **options: Any) -> None:
    """Start one of a node's programs, and nothing else, by this module. Flower does not look at what this returns."""
    program, *arguments = command
    if program not in PROGRAMS:
        raise PermissionError(f"a node of fedgram does not start {program}")
    if program == CLIENT_APP and not options and "forkserver" in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([PROGRAMS[program][1], "fedgram.engines.flower.app"])
        context.Process(target=run, args=(program, arguments), daemon=True).start()  # ends with the SuperExec
    else:
        subprocess.Popen([sys.executable, "-P", "-m", MODULE, program, *arguments], **options)


PROGRAMS: dict[str, tuple[Callable[[], None], str, str]] = {
    "flower-supernode": (_supernode, "flwr.supernode.cli", "flower_supernode"),
    "flower-superexec": (_superexec, "flwr.supercore.cli", "flower_superexec"),
    CLIENT_APP: (_clientapp, "flwr.supernode.cli", "flwr_clientapp"),
}

if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])

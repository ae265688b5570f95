"""A SuperNode that runs only the app installed with it: `fedgram flower node`.

Flower's own SuperNode unpacks the app that the SuperLink sends and runs the code in it, so whoever can submit a run
decides what is done with a node's data. Here Flower's three programs of a node (SuperNode, SuperExec, ClientApp) run as
they are but for the few names replaced below: the bundle is never unpacked, and of it only the run's configuration is
read. Flower is pinned to one minor version; a name that it no longer has is an error, not a gap.

Flower starts a ClientApp for every message, which takes seconds to import what it needs. Where processes can be forked,
ours is forked from one that has imported it all, has no threads, and has seen no data.
"""

import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import flwr.supernode  # noqa: F401  so that a missing extra is noticed here

from fedgram.core.errors import InvalidParameter
from fedgram.engines.flower.quiet import be_quiet, replace_name

MODULE = "fedgram.engines.flower.installed"
CLIENT_APP = "flwr-clientapp"
FORBIDDEN = "--allow-runtime-dependency-installation"  # would install what the SuperLink's app asks for


def run(program: str, arguments: Sequence[str]) -> None:
    """Run one of a node's programs; the programs that it starts are run by this module, too."""
    if any(FORBIDDEN.startswith(argument.partition("=")[0]) for argument in arguments if argument.startswith("--al")):
        raise InvalidParameter(f"{FORBIDDEN} would install what the SuperLink's app names: install it beforehand")
    be_quiet()
    prepare, module, function = PROGRAMS[program]
    prepare()
    sys.argv = [program, *arguments]
    getattr(import_module(module), function)()


def _supernode() -> None:
    """Make every message a task for the ClientApp: an AgentApp is the bundle's code as well."""
    from flwr.supercore.constant import TaskType

    client = TaskType.CLIENT_APP
    module = "flwr.supernode.start_client_internal"
    _replace(module, "TaskType", SimpleNamespace(AGENT_APP=client, CLIENT_APP=client))
    _replace(module, "subprocess", SimpleNamespace(Popen=_start))


def _superexec() -> None:
    _replace("flwr.supercore.superexec.executor.subprocess_executor", "subprocess", SimpleNamespace(Popen=_start))


def _clientapp() -> None:
    """Give the installed app in place of the one that was sent."""
    module = "flwr.supernode.runtime.run_clientapp"
    _replace(module, "install_from_fab", lambda *_, **__: None)
    _replace(module, "install_app_dependencies", lambda *_, **__: None)
    _replace(module, "get_load_client_app_fn", lambda *_, **__: _load)


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

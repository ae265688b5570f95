"""Importing anything of fedgram changes nothing outside it."""

import json
import subprocess
import sys

# Prints a process's state after some imports, and the foreign modules that they loaded. Libraries do change things
# when they are imported: what is loaded besides fedgram is therefore loaded alone in a second process, to compare.
PROBE = """
import importlib, json, logging, os, pkgutil, signal, sys, warnings
import numpy

known = set(sys.modules)
for name in json.loads(sys.stdin.read()):
    try:
        importlib.import_module(name)
    except Exception:
        if name.startswith("fedgram"):
            raise
handlers = {"": logging.getLogger(), **logging.Logger.manager.loggerDict}
print(json.dumps({
    "environment": dict(os.environ),
    "filters of warnings": [str(entry) for entry in warnings.filters],
    "handlers of loggers": {name: [type(handler).__name__ for handler in getattr(logger, "handlers", ())]
                            for name, logger in handlers.items() if getattr(logger, "handlers", ())},
    "levels of loggers": {name: logger.level for name, logger in handlers.items() if getattr(logger, "level", 0)},
    "floating-point errors": numpy.geterr(),
    "signals": {number.name: str(signal.getsignal(number)) for number in signal.Signals},
    "path": sys.path,
    "hook for exceptions": sys.excepthook.__module__,
    "loaded": [name for name in sys.modules if name not in known and name.partition(".")[0] != "fedgram"],
}))
"""

HEAVY = {"scipy.optimize", "scipy.sparse", "scipy.stats", "torch", "sklearn", "pyarrow", "flwr"}

MODULES = """
import json, pkgutil
import fedgram
print(json.dumps(["fedgram", *(found.name for found in pkgutil.walk_packages(fedgram.__path__, "fedgram."))]))
"""


def run(code, given=""):
    done = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def state_after(modules):
    return run(PROBE, json.dumps(modules))


def test_importing_changes_nothing():
    modules = run(MODULES)
    assert {"fedgram.cli.run", "fedgram.engines.flower.simulation", "fedgram.nets.trained_net"} <= set(modules)
    ours = state_after(modules)
    theirs = state_after(ours["loaded"])
    for what in ours.keys() - {"loaded"}:
        assert ours[what] == theirs[what], what


def test_a_change_would_be_noticed(tmp_path, monkeypatch):
    (tmp_path / "guilty.py").write_text(
        "import logging, os, warnings\n"
        "os.environ['GUILTY'] = '1'\n"
        "warnings.simplefilter('ignore')\n"
        "logging.getLogger().addHandler(logging.NullHandler())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    before, after = state_after([]), state_after(["guilty"])
    changed = {what for what in before if before[what] != after[what]}
    assert {"environment", "filters of warnings", "handlers of loggers"} <= changed


def test_importing_fedgram_takes_little():
    """Slow imports happen where they are used: torch, and half of SciPy."""
    loaded = {".".join(name.split(".")[:2]) for name in state_after(["scipy.linalg", "fedgram"])["loaded"]}
    assert not loaded & {*HEAVY, "scipy.special"}


def test_a_command_imports_little():
    """A command does not wait for imports of other commands."""
    loaded = {".".join(name.split(".")[:2]) for name in state_after(["fedgram.cli.run", "fedgram.cli.join"])["loaded"]}
    assert not loaded & {*HEAVY, "scipy.ndimage", "matplotlib"}

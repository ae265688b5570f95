"""The command line: as a process of its own, or in this process where only its output matters."""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile

from fedgram.cli import COMMANDS
from support.waiting import PATIENCE

PROGRAM = (sys.executable, "-c", "from fedgram.cli import main; main()")

# Importing takes most of a second, and a hundred tests run a command. So one process imports, and is forked for each.
_forks = multiprocessing.get_context("forkserver") if "forkserver" in multiprocessing.get_all_start_methods() else None
if _forks is not None:
    # The command line itself imports a command's module when it is asked for.
    ours = [f"fedgram.cli.{name}" for name in COMMANDS]
    _forks.set_forkserver_preload([*ours, "fedgram.methods.analytic.afl", "scipy.optimize", "sklearn.datasets"])


def run(*arguments, env=None, cwd=None, fresh=False):
    """Run the command to its end and return its output; `env` adds to the environment.

    `fresh` starts a new Python.
    """
    words = list(map(str, arguments))
    environment = os.environ | {"COLUMNS": "200", "NO_COLOR": "1"} | (env or {})
    if fresh or _forks is None:
        options = {"capture_output": True, "text": True, "timeout": PATIENCE}
        return subprocess.run([*PROGRAM, *words], check=False, env=environment, cwd=cwd, **options)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        files = [multiprocessing.reduction.DupFd(stream.fileno()) for stream in (out, err)]
        process = _forks.Process(target=_main, args=(words, environment, cwd or os.getcwd(), *files))
        process.start()
        process.join(PATIENCE)
        if process.is_alive():
            process.kill()
            raise subprocess.TimeoutExpired(words, PATIENCE)
        out.seek(0), err.seek(0)
        return subprocess.CompletedProcess(words, process.exitcode, out.read(), err.read())


def _main(words, environment, folder, out, err):
    """Be the command, in a process that was forked for it."""
    for stream, file in ((1, out), (2, err)):
        os.dup2(file.detach(), stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["fedgram", *words]
    from fedgram.cli import main

    main()


def start(*arguments, **options):
    """Start the command and return its process."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen([*PROGRAM, *map(str, arguments)], **options)


def invoked(*options):
    """Run a command in this process and return its result; its error is raised."""
    from typer.testing import CliRunner

    from fedgram.cli import app

    done = CliRunner().invoke(app, list(map(str, options)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done


def fedgram(*options):
    """Return the output of a command that runs in this process."""
    return invoked(*options).stdout


def told(*options):
    """Return a command's JSON output."""
    return json.loads(fedgram(*options, "--json"))

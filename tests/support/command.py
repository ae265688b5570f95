"""The command line as a user has it: a process of its own."""

import os
import subprocess
import sys

from support.waiting import PATIENCE

PROGRAM = (sys.executable, "-c", "from fedgram.cli import main; main()")


def run(*arguments, env=None, **options):
    """Run the command to its end and return what it said; `env` adds to the environment."""
    environment = os.environ | {"COLUMNS": "200", "NO_COLOR": "1"} | (env or {})
    options = {"capture_output": True, "text": True, "timeout": PATIENCE} | options
    return subprocess.run([*PROGRAM, *map(str, arguments)], check=False, env=environment, **options)


def start(*arguments, **options):
    """Start the command and return its process."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen([*PROGRAM, *map(str, arguments)], **options)

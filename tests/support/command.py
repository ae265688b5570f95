"""The command line as a user has it: a process of its own."""

import os
import subprocess
import sys


def run(*arguments, env=None, **options):
    command = [sys.executable, "-c", "from fedgram.cli import main; main()", *arguments]
    environment = os.environ | {"COLUMNS": "200", "NO_COLOR": "1"} | (env or {})
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment, **options)

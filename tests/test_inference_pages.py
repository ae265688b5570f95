"""The guide for biostatisticians and the page of its results: commands run, and figures are those that are printed."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.command import run
from support.waiting import PATIENCE

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs" / "guides" / "biostatistician.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "docs" / "results" / "inference.md").read_text(encoding="utf-8")
pytest.importorskip("sklearn")
pytest.importorskip("cryptography")


def example(name, *arguments, cwd=None):
    """Run an example and return what it prints."""
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    environment = os.environ | {"PYTHONIOENCODING": "utf-8"}
    options = {"capture_output": True, "text": True, "encoding": "utf-8", "timeout": PATIENCE}
    done = subprocess.run(command, check=False, cwd=cwd, env=environment, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_guide_runs_and_prints_what_it_shows(tmp_path, monkeypatch):
    folder, printed, ran = tmp_path, "", []
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE):
        if kind == "text":
            assert block.strip() == printed.strip()
        for line in block.splitlines() if not kind else ():
            program, *arguments = shlex.split(line, comments=True)
            if program == "cd":
                folder /= arguments[0]
            elif program == "python":
                printed = example(Path(arguments[0]).name, *arguments[1:], cwd=folder)
            else:
                assert program == "fedgram"
                done = run(*arguments, cwd=folder)
                assert done.returncode == 0, f"{line}: {done.stderr}"
                printed = done.stdout
            ran.append(line)
    assert len(ran) > 12
    assert (folder / "table.html").is_file()
    pytest.importorskip("pandas")
    monkeypatch.chdir(folder)
    names = {}
    [block] = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    exec(block, names)
    assert names["table"].sites.effects == "fixed"


def test_the_tables_of_the_results_are_those_that_are_printed():
    printed = [line for line in example("compare_inference.py").splitlines() if line.startswith("|")]
    assert len(printed) > 20
    assert [line for line in printed if line not in RESULTS.splitlines()] == []

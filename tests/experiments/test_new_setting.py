"""A new setting needs a described field of the scenario, and a line of help for its option."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import fedgram as fg
from fedgram.experiments import Run, Scenario
from support.runner import records


def patched(path, *changes):
    text = path.read_text()
    for before, after in changes:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    path.write_text(text)


def said_by(source, commands):
    """Return each command's output or error, with the fedgram in the folder."""
    code = (
        "import json, sys, fedgram\n"
        "from typer.testing import CliRunner\n"
        "from fedgram.cli import app\n"
        "done = [CliRunner().invoke(app, command) for command in json.loads(sys.argv[1])]\n"
        "print(json.dumps([fedgram.__file__, *(str(one.exception or one.stdout) for one in done)]))\n"
    )
    program = [sys.executable, "-W", "ignore", "-c", code, json.dumps(commands)]
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=True, env=environment)
    imported, *said = json.loads(done.stdout)
    assert Path(imported).is_relative_to(source)
    return said


def test_a_new_setting_changes_one_file_besides_its_option(tmp_path):
    """A made-up setting, put into a copy of the package: both commands, files, keys, records and tables have it."""
    package = tmp_path / "src" / "fedgram"
    shutil.copytree(Path(fg.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    patched(
        package / "experiments" / "scenario.py",
        ("    on_bad: str | None = None\n", "    on_bad: str | None = None\n    damping: float | None = None\n"),
        (
            "        parts = spread(",
            "        if self.damping is not None:\n            data = replace(data, x=self.damping * data.x)\n"
            "        parts = spread(",
        ),
    )
    patched(
        package / "cli" / "options.py",
        ('    "test": "local', '    "damping": "Multiplies every feature.",\n    "test": "local'),
    )
    file, wrong, out = tmp_path / "one.toml", tmp_path / "wrong.toml", str(tmp_path / "out")
    about = 'data = "digits"\nclients = 4\nmethods = [{name = "local", ridge = 10}]\n'
    file.write_text(about + "damping = 2.5\n")
    wrong.write_text(about + 'damping = "much"\n')
    run = [
        "run",
        "--data",
        "digits",
        "--clients",
        "4",
        "--method",
        "local",
        "--set",
        "ridge=10",
        "--json",
        "--out",
        out,
    ]
    commands = [
        ["compare", str(file), "--out", out],
        [*run, "--damping", "2.5"],
        run,
        ["report", out, "--format", "csv"],
        ["report", out, "--format", "markdown"],
        ["compare", str(wrong), "--dry-run"],
    ]
    _, same, plain, rows, table, refused = said_by(package.parent, commands)
    same, plain, compared = json.loads(same), json.loads(plain), records(tmp_path / "out" / "results.jsonl")[1]
    assert (compared["damping"], same["damping"], plain["damping"]) == (2.5, 2.5, None)
    assert compared["key"] == same["key"] != plain["key"]
    assert compared["correct"] == same["correct"] != plain["correct"]
    usual = Run(Scenario(data="digits", clients=4), "local", fg.Local(ridge=10))
    assert plain["key"] == usual.key, "runs without the setting keep their keys"
    assert {row["damping"] for row in csv.DictReader(io.StringIO(rows))} == {"", "2.5"}
    assert "damping 2.5, 4 clients" in table
    assert refused == "damping: expected a number, got 'much'"

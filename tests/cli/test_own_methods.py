"""`fedgram run`, `compare` and `methods` with a method of the user's own: a file, or module:Class."""

import json
import os

import pytest

from support.command import run
from support.own_method import write_method

SMALL = ("--data", "digits", "--clients", "4", "--partition", "iid", "--samples", "300")


@pytest.mark.parametrize("how", ["file", "module"])
def test_run(how, tmp_path):
    write_method(tmp_path / "own_method_here.py")
    method = {"file": "own_method_here.py", "module": "own_method_here:Average"}[how]
    environment = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run(
        "run", "--method", method, *SMALL, "--set", "ridge=3", "--json",
        cwd=tmp_path, env={"PYTHONPATH": environment} if how == "module" else {}, fresh=how == "module",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["method"], record["settings"]) == ("average", {"ridge": 3.0})
    assert record["accuracy"]["pooled"] > 0.5


def test_compare(tmp_path):
    write_method(tmp_path / "own" / "mean.py")
    done = run(
        "compare", "--methods", "afl,own/mean.py", *SMALL, "--set", "own/mean.py.ridge=1,10", "--out", "out",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    ran = [(line["method"], line["settings"].get("ridge")) for line in lines if line["kind"] == "run"]
    assert {("average", 1.0), ("average", 10.0)} <= set(ran)


def test_methods_shows_its_parameters(tmp_path):
    done = run("methods", write_method(tmp_path / "mean.py"))
    assert done.returncode == 0, done.stderr
    assert "Average — the mean" in done.stdout
    assert "ridge" in done.stdout


@pytest.mark.parametrize("command", [("run", "--method"), ("compare", "--methods"), ("methods",)], ids=" ".join)
@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("no/such/file.py", "there is no such file; give the path of a Python file"),
        ("no_such_module:Average", "install it, or put its folder into PYTHONPATH"),
        ("fedgram.models:LinearModel", "class 'LinearModel'"),
    ],
)
def test_what_cannot_be_found_is_one_line(command, method, words, tmp_path):
    done = run(*command, method, *(SMALL if len(command) > 1 else ()), cwd=tmp_path)
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error:")

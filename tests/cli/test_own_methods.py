"""`fedgram run`, `compare`, `methods` and `check` with a method of the user's own: a file, or module:Class."""

import json
import os
from pathlib import Path

import pytest

from fedgram.checks import CHECKS
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


def lines_of(folder):
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "run"]


@pytest.mark.parametrize("prefix", ["average", "own/mean.py"])
def test_its_settings_go_by_its_name_or_its_file(prefix, tmp_path):
    write_method(tmp_path / "own" / "mean.py")
    done = run(
        "compare", "--methods", "afl,own/mean.py", *SMALL, "--set", f"{prefix}.ridge=1,10", "--out", "out",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ran = {(line["method"], line["settings"].get("ridge")) for line in lines_of(tmp_path / "out")}
    assert {("average", 1.0), ("average", 10.0)} <= ran


def test_an_unknown_prefix_is_answered_with_the_known_ones(tmp_path):
    write_method(tmp_path / "own" / "mean.py")
    done = run("compare", "--methods", "afl,own/mean.py", *SMALL, "--set", "mean.ridge=1", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "error: --set: expected METHOD.PARAMETER=VALUE, got 'mean.ridge=1'; METHOD may be afl or average or own/mean.py"
    )


@pytest.mark.parametrize("entry", ['"mean.py"', '{name = "mean.py:Average", ridge = 3}', '{name = "../own/mean.py"}'])
def test_an_experiment_names_its_files_from_its_own_folder(entry, tmp_path):
    write_method(tmp_path / "own" / "mean.py")
    (tmp_path / "own" / "it.toml").write_text(f'data = "digits"\nmethods = ["afl", {entry}]\n', encoding="utf-8")
    (elsewhere := tmp_path / "elsewhere").mkdir()
    done = run("compare", "../own/it.toml", *SMALL, "--out", "out", cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert "average" in {line["method"] for line in lines_of(elsewhere / "out")}


def test_the_contract_is_checked_with_a_line_for_each_check(tmp_path):
    done = run("check", write_method(tmp_path / "mean.py"), "--set", "ridge=2")
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, last = done.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["passed"] * len(CHECKS)
    assert last == f"average: {len(CHECKS)} of {len(CHECKS)} checks passed"


def test_a_check_that_fails_says_why_and_where(tmp_path):
    source = Path(write_method(tmp_path / "mean.py")).read_text(encoding="utf-8")
    drawn = "client.moments().solve(self.ridge) + np.random.default_rng().normal(size=(64, 10))"
    (tmp_path / "drawn.py").write_text(source.replace("client.moments().solve(self.ridge)", drawn), encoding="utf-8")
    done = run("check", tmp_path / "drawn.py")
    assert done.returncode == 1, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if "same seed" in line)
    assert line.startswith("failed")
    assert "random numbers that do not come from `client.rng`" in line

    misspelt = source.replace("client.moments", "client.momnets")
    (tmp_path / "misspelt.py").write_text(misspelt, encoding="utf-8")
    place = next(n for n, text in enumerate(misspelt.splitlines(), start=1) if "momnets" in text)
    done = run("check", tmp_path / "misspelt.py")
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("failed")]
    assert len(lines) == len(CHECKS) - 1  # only its settings are as they should be
    assert all(line.endswith(f"has no attribute 'momnets' (misspelt.py, line {place})") for line in lines)


@pytest.mark.parametrize("command", [("run", "--method"), ("compare", "--methods"), ("check",)], ids=" ".join)
def test_a_setting_without_a_default_must_be_given(command, tmp_path):
    source = Path(write_method(tmp_path / "mean.py")).read_text(encoding="utf-8")
    (tmp_path / "needs.py").write_text(source.replace("ridge: float = 1.0", "ridge: float"), encoding="utf-8")
    done = run(*command, "needs.py", *(SMALL if len(command) > 1 else ()), cwd=tmp_path)
    assert (done.returncode, done.stderr.strip()) == (
        2,
        "error: ridge: expected a number, got none; Average has no default for it, so give it a value",
    )

"""Senseless input, from the command line and from Python: one clear line, never a traceback."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import fedgram as fg
from fedgram.checks import some_clients
from fedgram.cli import app
from fedgram.core.errors import InvalidParameter
from fedgram.core.terminal import console, one_line, visible
from support.command import run as fedgram
from support.made_up import write
from support.report import record
from support.waiting import PATIENCE

ESCAPE = "\x1b]0;owned\x07\x1b[2J"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("inspect", "missing.fgm"), "missing.fgm"),
        (("evaluate", "\x1b[2J.fgm", "missing.csv"), "cannot read"),
        (("personalize", "table.csv", "table.csv"), "table.csv"),
        (("predict", "table.csv", "table.csv"), "expected a saved fit or model, got a text, such as a table"),
    ],
    ids=lambda found: found[0] if isinstance(found, tuple) else "",
)
def test_an_error_beside_json_is_json(tmp_path, command, words):
    (tmp_path / "table.csv").write_text("age,ill\n70,yes\n")
    told = fedgram(*command, "--json", cwd=tmp_path)
    assert (told.returncode, told.stdout) == (2, "")
    assert words in json.loads(told.stderr)["error"]
    assert "\x1b" not in told.stderr
    assert fedgram(*command, cwd=tmp_path).stderr.startswith("error: ")


@pytest.mark.parametrize("seed", ["x", -1, 1.5, None, True, [1], np.float64(2)])
def test_a_seed_is_a_whole_number(seed):
    for attempt in (
        lambda: fg.AFL().fit(some_clients(), classes=10, seed=seed),
        lambda: fg.partition.iid(30, clients=3, seed=seed),
        lambda: fg.make_clients(fg.data.digits(), [np.arange(9)], seed=seed),
    ):
        with pytest.raises(InvalidParameter, match="seed must be a whole number ≥ 0, got"):
            attempt()


def test_seeds_of_numpy_are_seeds():
    one, other = (fg.FedAvg(rounds=1).fit(some_clients(), classes=10, seed=seed) for seed in (3, np.int64(3)))
    assert other.seed == 3
    assert np.array_equal(one.model.weights, other.model.weights)


@pytest.mark.parametrize(
    "text",
    [
        "data = " + "[" * 3000 + "]" * 3000,
        "data = " + "{a = " * 3000 + "1" + "}" * 3000,
        "data" + ".a" * 3000 + " = 1",
        "[" + "a." * 3000 + "a]",
        'data = "digits"\nmethods = [{name = "afl", gamma = ' + "[" * 40 + "]" * 40 + "}]",
    ],
    ids=["lists", "tables", "keys", "headers", "a parameter"],
)
def test_deeply_nested_experiments(tmp_path, text):
    (tmp_path / "deep.toml").write_text(text)
    refused = CliRunner().invoke(app, ["compare", str(tmp_path / "deep.toml"), "--dry-run"]).exception
    assert isinstance(refused, InvalidParameter), refused
    assert str(refused).endswith("deep.toml is nested deeper than the 16 levels that an experiment may have")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("report", "a" * 5000), "aaaa…: File name too long"),
        (("run", "--data", "a" * 5000), "aaaa…: File name too long"),
        (("run", "--save", "."), "cannot write .: it is a folder"),
        (("run", "--data", f"{ESCAPE}.csv"), r"data '\x1b]0;owned\x07\x1b[2J.csv': there is no such file"),
        (("report", f"{ESCAPE}[/b].jsonl"), r"cannot read \x1b]0;owned\x07\x1b[2J[/b].jsonl: No such file"),
    ],
)
def test_one_clear_line_and_exit_code_2(arguments, words):
    done = fedgram(*arguments)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert words in line


def test_an_encoding_without_greek_letters(tmp_path):
    path = write(tmp_path / "results.jsonl", [record("afl", 0.9), record("afl", 0.8, seed=1)])
    done = fedgram("report", path, env={"PYTHONIOENCODING": "ascii"}, fresh=True)
    assert done.returncode == 0, done.stderr
    assert r"85.00 \xb1 7.07" in done.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_behind_standard_output():
    program = [sys.executable, "-c", "from fedgram.cli import main; main()", "methods", "afl"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
    assert done.returncode != 0
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--clients", "9" * 20), "clients must be at most 1,000,000"),
        (("--seed", "-1"), "seed must be a whole number ≥ 0, got -1"),
    ],
)
def test_numbers_out_of_range(arguments, words):
    refused = CliRunner().invoke(app, ["run", *arguments]).exception
    assert isinstance(refused, InvalidParameter)
    assert words in str(refused)


@pytest.mark.skipif(os.name == "nt" or not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_a_folder_that_may_not_be_read(tmp_path):
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    (tmp_path / "photos").chmod(0)
    try:
        done = fedgram("run", "--data", tmp_path / "photos")
    finally:
        (tmp_path / "photos").chmod(0o700)
    assert done.returncode == 2
    assert "Permission denied" in done.stderr
    assert "Traceback" not in done.stderr


def table(path, **columns):
    """Write a table of four clients and two classes with the names given."""
    names = columns.get("names", ["a", "b", "c", "d"])
    rows = [f'{i},{(i * i) % 7},"{names[i % 4]}",{i % 2}' for i in range(80)]
    path.write_text("x,z,client,label\n" + "\n".join(rows) + "\n")
    return path


def test_names_with_markup_and_escapes_are_shown_as_they_are(tmp_path):
    names = ["[/b] ward", f"{ESCAPE}ward", "a", "d"]
    path = table(tmp_path / "[red]patients.csv", names=names)
    done = fedgram("run", "--data", path, "--client-column", "client", "--test-fraction", "0")
    assert done.returncode == 0, done.stderr
    assert "afl on [red]patients" in done.stdout
    fit = fg.FedHiP().fit(
        [fg.Client(names[0], np.eye(3), [0, 1, 0]), fg.Client(names[1], np.zeros((0, 3)), np.zeros(0, dtype=int))],
        classes=2,
    )
    from fedgram.cli.run import _why_not

    with (shown := console(width=200, force_terminal=False)).capture() as captured:
        shown.print(one_line(_why_not(fit)))
    assert captured.get() == " (\\x1b]0;owned\\x07\\x1b[2Jward: no samples)\n"


@pytest.mark.skipif(os.name == "nt", reason="no pseudo-terminals")
def test_a_terminal_never_gets_the_controls_of_a_label_but_a_pipe_does(tmp_path):
    import pty

    label = "ill\x1b[2J"
    model = fg.Fit(fg.LinearModel(np.eye(2), (label, "well")), "afl", {}, 0, ("a",))
    model.save(tmp_path / "fit.safetensors")
    (tmp_path / "new.csv").write_text("x,z\n1,0\n0,1\n")
    arguments = ["predict", tmp_path / "fit.safetensors", tmp_path / "new.csv"]
    assert fedgram(*arguments).stdout == f"{label}\nwell\n"
    ours, theirs = pty.openpty()
    program = [sys.executable, "-c", "from fedgram.cli import main; main()", *map(str, arguments)]
    with subprocess.Popen(program, stdout=theirs) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:  # Linux's error for a closed other end
            pass
        finally:
            os.close(ours)
    assert process.returncode == 0
    assert shown == b"ill\\x1b[2J\r\nwell\r\n"


def test_what_is_visible():
    assert visible("a\x1b\x00\x9b\x7f\u202e\ud800 é日本✓\n") == "a\\x1b\\x00\\x9b\\x7f\\u202e\\ud800 é日本✓\\n"
    assert visible("a\u061c\u200e\u200f\u2066") == "a\\u061c\\u200e\\u200f\\u2066", "marks of direction"
    assert visible("a\tb\n\r", lines=True) == "a\tb\n\\r"
    shown = console(width=80, force_terminal=True, color_system="standard", highlight=False)
    with shown.capture() as captured:
        shown.print("[red]name[/]:", "\x1b]0;x\x1b[2J")
    assert captured.get() == "\x1b[31mname\x1b[0m: \\x1b]0;x\\x1b[2J\n", "our own colours stay"

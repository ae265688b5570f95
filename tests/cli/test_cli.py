"""The command line as a real process: output, refusals and exit codes."""

import json
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import fedgram as fg
from fedgram.cli import app
from support.command import run
from support.waiting import PATIENCE


def test_run_prints_a_table():
    done = run("run", "--method", "afl", "--data", "digits", "--clients", "10", "--partition", "dirichlet:0.1")
    assert done.returncode == 0, done.stderr
    for words in ("afl on digits", "10 of 10 contributed", "client mean", "worst decile", "traffic up"):
        assert words in done.stdout
    assert "rank 61 of 64" in done.stderr
    assert "Traceback" not in done.stderr


def test_one_test_set_has_one_accuracy():
    done = run("run", "--method", "afl", "--test", "held-out")
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("accuracy")]
    assert line.startswith("accuracy, test set")


def test_run_json_is_one_line_and_follows_from_the_seed():
    arguments = ("run", "--data", "digits", "--clients", "10", "--partition", "shards:2", "--seed", "3", "--json")
    first, again = (run(*arguments) for _ in range(2))
    assert first.stdout.count("\n") == 1
    record, repeated = json.loads(first.stdout), json.loads(again.stdout)
    assert record["method"] == "afl"
    assert set(record["accuracy"]) == {"client_mean", "pooled", "worst_decile"}
    assert 0.5 < record["accuracy"]["pooled"] <= 1
    assert record["traffic"]["up"] > 0
    for changing in ("seconds", "cpu_seconds", "timing", "total_seconds", "peak_memory", "finished"):
        record.pop(changing), repeated.pop(changing)
    assert record == repeated


def test_run_saves_a_fit(tmp_path):
    path = tmp_path / "fit.safetensors"
    assert run("run", "--clients", "5", "--save", str(path)).returncode == 0
    assert len(fg.load(path).contributors) == 5


def test_settings_reach_the_method():
    done = run("run", "--clients", "5", "--set", "ri=false", "--set", "gamma=2", "--json")
    assert json.loads(done.stdout)["settings"] == {"gamma": 2.0, "ri": False, "intercept": True}


def test_methods_are_listed():
    done = run("methods")
    assert "afl" in done.stdout
    assert "He et al." in done.stdout
    assert "gamma" in run("methods", "afl").stdout


@pytest.mark.parametrize("command", [(), ("run",), ("methods",)])
def test_help_shows_examples(command):
    done = run(*command, "--help")
    assert done.returncode == 0
    assert "Examples" in done.stdout
    assert "fedgram run" in done.stdout or "fedgram methods" in done.stdout


@pytest.mark.parametrize(("given", "meant"), [(("jion",), "join"), (("study", "shew"), "show")])
def test_a_misspelt_command_is_told_the_nearest_one(given, meant):
    done = run(*given)
    assert done.returncode == 2
    assert done.stderr.count(f"Did you mean '{meant}'?") == 1
    assert done.stderr.count("Did you mean") == 1


def test_a_command_like_no_other_is_told_nothing():
    done = run("xyzzy")
    assert done.returncode == 2
    assert "No such command 'xyzzy'" in done.stderr
    assert "Did you mean" not in done.stderr


def test_version():
    assert run("--version").stdout == f"fedgram {fg.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--method", "alf"), "unknown method 'alf': did you mean 'afl'?"),
        (("--data", "digit"), "unknown data set 'digit': did you mean 'digits'?"),
        (("--set", "gama=1"), "unknown parameter of AFL 'gama': did you mean 'gamma'?"),
        (("--set", "gamma=big"), "gamma: expected a number ≥ 0, got 'big'"),
        (("--set", "gamma=-1"), "gamma: expected a number ≥ 0, got -1.0"),
        (("--set", "gamma"), "--set takes NAME=VALUE, got 'gamma'"),
        (("--partition", "dirichlet:0"), "alpha must be a number > 0, got 0"),
        (("--partition", "dirichlet:-1"), "alpha must be a number > 0, got -1"),
        (("--partition", "shards:1000"), "use fewer clients or shards"),
        (("--partition", "iid", "--clients", "0"), "clients must be at least 1, got 0"),
        (("--test", "standard"), "or hold some back from all clients (test held-out)"),
        (("--data", "no/such.csv"), "there is no such file or folder"),
        (("--data", "digits", "--backbone", "lite0:96"), "holds features already: leave the backbone out"),
        (("--samples", "5000"), "samples must be 1 to the 1,797 that digits has, got 5000"),
        (("--test-fraction", "1"), "test_fraction must be"),
        (("--require", "most"), "require takes all, a number or a fraction, got 'most'"),
        (("--engine", "flower"), "unknown engine 'flower'"),
        (("--workers", "0"), "workers must be at least 1"),
        (("--save", "no/such/folder/fit"), "cannot write"),
        (("--set", "gamma=1", "--set", "gamma=2"), "names a parameter twice"),
        (("--data", ""), "unknown data set ''"),
        (("--method", "local", "--data", "mnist", "--backbone", "pixels", "--test", "standard"), "no global model"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(arguments, words):
    done = run("run", *arguments)
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert words in errors[0]
    assert "Traceback" not in done.stderr


def test_usage_errors_exit_with_2_too():
    done = run("run", "--client", "3")
    assert done.returncode == 2
    assert "No such option" in done.stderr


def test_no_accuracy_without_test_samples():
    done = run("run", "--clients", "3", "--test-fraction", "0", "--json")
    assert json.loads(done.stdout)["accuracy"] is None
    assert "no test samples" in run("run", "--clients", "3", "--test-fraction", "0").stdout


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_leaves_nothing_half_written(tmp_path):
    code = (
        "import fedgram as fg, time\n"
        "@fg.step\n"
        "def summarize(self, client):\n"
        "    print('started', flush=True); time.sleep(3600)\n"
        "fg.AFL.summarize = summarize\n"
        "from fedgram.cli import main; main()\n"
    )
    path = tmp_path / "fit.safetensors"
    command = [sys.executable, "-c", code, "run", "--save", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline().strip() == b"started"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE)  # far less than the step would take
        finally:
            process.kill()
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def test_import_is_light():
    """The core alone: nothing heavy is imported before it is asked for."""
    heavy = {"torch", "sklearn", "pandas", "matplotlib", "onnxruntime", "PIL", "pyarrow", "transformers"}
    code = f"import sys, fedgram; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "[]\n"


def test_help_groups_the_commands_by_who_uses_them():
    shown = CliRunner().invoke(app, ["--help"]).output
    groups = [shown.index(group) for group in ("Researcher", "Party", "Coordinator")]
    places = [shown.index(f"\u2502 {name} ") for name in ("compare", "summarize", "join")]
    assert sorted([*groups, *places]) == [groups[0], places[0], groups[1], places[1], groups[2], places[2]]


def test_the_outcome_may_be_called_label(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("age,bp,ill\n" + "".join(f"{i % 7},{i / 3},{'yn'[i % 2]}\n" for i in range(60)))
    options = ["run", "--data", str(path), "--clients", "2", "--partition", "iid", "--json"]
    found = [json.loads(CliRunner().invoke(app, [*options, name, "ill"]).stdout) for name in ("--outcome", "--label")]
    assert found[0]["key"] == found[1]["key"]

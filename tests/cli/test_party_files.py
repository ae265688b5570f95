"""A party's commands: keys, summarize, inspect, personalize, evaluate, predict, as it types them."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import fedgram as fg
from fedgram.cli import app
from fedgram.core.errors import (
    FedgramError,
    InvalidData,
    InvalidParameter,
    Mismatch,
    RefusedMessage,
    UnknownName,
)
from fedgram.exchange import files
from fedgram.exchange.rounds import Round
from fedgram.heads.logistic import Logistic
from fedgram.protocol.recipe import basis_of
from fedgram.studies import Study
from fedgram.studies.encoding import read_client
from support.command import fedgram, run, told
from support.exchange import PARTIES, key_of, table
from support.waiting import PATIENCE


@pytest.fixture
def published(folder):
    """Write what a coordinator publishes, and return the fit."""
    study = Study.read("study.toml")
    clients = [read_client(study, name, f"{name}.csv") for name in PARTIES]
    fit = fg.FedGram().fit(clients, study=study, classes=study.classes)
    told = fg.Fit(
        fit.model, fit.method, fit.settings, 0, fit.contributors, message=fit.published, recipe=study, basis=fit.basis
    )
    files.write("global.fgm", files.encode("global", told, study=study.fingerprint, party="coordinator", key=key_of(9)))
    return fit


def test_keys_are_made_shown_and_entered(folder):
    study = Study.read("study.toml")
    shown = {name: told("keys", "show", f"{name}.key") for name in PARTIES}
    assert {name: one["public"] for name, one in shown.items()} == dict(study.parties)
    assert told("keys", "show", "north.pub") == shown["north"] == {"party": "north", "public": study.parties["north"]}
    assert study.parties["north"] in fedgram("keys", "show", "north.key")
    with pytest.raises(InvalidData, match="never overwritten"):
        fedgram("keys", "new", "north")
    made = told("keys", "new", "west", "--in", "keys")
    assert (made["key"], made["party"]) == (os.path.join("keys", "west.key"), "west")
    with pytest.raises(UnknownName, match="west"):
        fedgram("study", "keys", "study.toml", "keys/west.pub")
    fedgram("keys", "new", "north", "--in", "keys")
    with pytest.raises(InvalidData, match="another key of 'north'"):
        fedgram("study", "keys", "study.toml", "keys/north.pub")
    with pytest.raises(InvalidParameter, match="another key in a file before"):
        fedgram("study", "keys", "study.toml", "north.pub", "keys/north.pub")
    assert told("study", "keys", "study.toml", "south.pub")["lacking"] == []
    assert Study.read("study.toml") == study
    assert study.parties["east"] in fedgram("study", "show", "study.toml")


def test_a_summary_and_its_passport(folder):
    said = fedgram("summarize", "study.toml", "north.csv", "--key", "north.key")
    assert "wrote north.fgm" in said
    for words in ("party", "samples", "60", "minimum_samples", "passed", "no single row", "steps", "category"):
        assert words in said
    file = files.read("north.fgm")
    file.verify(key := file.signer)
    assert key.text == Study.read("study.toml").parties["north"]
    passport = told("inspect", "north.fgm", "--html", "north.html")
    assert passport["digest"] == file.digest
    rows = (folder / "north.csv").read_text().splitlines()[1:]
    assert passport["classes"] == {label: sum(row.endswith(f",{label}") for row in rows) for label in ("ill", "well")}
    assert "<svg" in (folder / "north.html").read_text()
    again = told("summarize", "study.toml", "north.csv", "--key", "north.key", "--out", "again.fgm")
    assert (again["digest"], again["file"]) == (file.digest, "again.fgm")
    assert fedgram("inspect", "north.fgm") in said


def test_unsigned_summaries_say_so(folder):
    done = CliRunner().invoke(app, ["summarize", "study.toml", "north.csv", "--party", "north"])
    assert "it is not signed" in done.stderr
    assert files.read("north.fgm").signer is None


def test_a_small_group_is_pointed_out(folder):
    rows = (folder / "north.csv").read_text().splitlines()
    kept = [row for row in rows if not row.endswith(",,ill")]
    lone = ["P,50,4000,F,,ill"]  # the only one that is ill and whose smoking is not known
    (folder / "north.csv").write_text("\n".join([*kept, *lone]) + "\n")
    said = " ".join(fedgram("summarize", "study.toml", "north.csv", "--key", "north.key").split())
    assert "1 samples: ill, smoker missing; fewer than minimum_cell, which is about classes only" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--key", "south.key", "--party", "north"), "is not the key that study"),
        ((), "whose table is it"),
        (("--key", "none.key"), "cannot read the key"),
        (("--key", "north.pub"), "not a private key"),
        (("--key", "north.key", "--out", "north.csv"), "would be overwritten"),
        (("--key", "north.key", "--out", "none/north.fgm"), "cannot write"),
        (("--key", "north.key", "--round", "study.toml"), "not a file that fedgram exchanges"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(folder, options, words):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(FedgramError, match=words):
        fedgram("summarize", "study.toml", "north.csv", *options)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_bad_input_is_one_line_and_exit_code_2(folder):
    (folder / "bad.fgm").write_bytes(b"\0" * 100)
    for command in (
        ("inspect", "bad.fgm"),
        ("keys", "new", "\x1b[2J"),
        ("personalize", "bad.fgm", "north.csv", "--party", "north"),
        ("evaluate", "bad.fgm", "north.csv"),
    ):
        done = run(*command, cwd=folder)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert len(done.stderr.splitlines()) == 1
        assert "\x1b" not in done.stderr


@pytest.mark.parametrize("command", ["summarize", "inspect", "personalize", "evaluate"])
def test_help_shows_an_example(command):
    assert f"fedgram {command} " in fedgram(command, "--help")
    assert "Example" in fedgram(command, "--help")


def test_a_round_is_answered(folder):
    study = Study.read("study.toml")
    for name in PARTIES:
        fedgram("summarize", "study.toml", f"{name}.csv", "--key", f"{name}.key")
    total = files.read("north.fgm").payload + files.read("south.fgm").payload + files.read("east.fgm").payload
    basis = basis_of(study, total)
    ascent = Logistic(basis.moments(total), "auto")
    asked = Round(1, "fedlogit", {}, basis, {"model": ascent.ahead, "leverage": ascent.leverage})
    files.write("round-1.fgm", files.encode("round", asked, study=study, party="coordinator", key=key_of(9)))
    said = told("summarize", "study.toml", "north.csv", "--key", "north.key", "--round", "round-1.fgm")
    assert (said["file"], said["kind"], said["samples"]) == ("north-round-1.fgm", "answer", 60)
    assert "trust" in said["reveals"]
    assert "fedlogit, round 1" in told("inspect", "round-1.fgm")["reveals"]
    assert files.read("north.fgm").header.kind == "summary"


def test_own_models_predict_and_are_judged(folder, published):
    said = told("personalize", "global.fgm", "north.csv", "--key", "north.key")
    assert (said["party"], said["member"], said["samples"]) == ("north", True, 60)
    (folder / "new.csv").write_text(table(20, 40))
    study = Study.read("study.toml")
    client = read_client(study, "north", "new.csv")
    own = published.personalize(read_client(study, "north", "north.csv"))
    right = float((own.predict(client.x) == client.y).mean())
    judged = told("evaluate", "mine.fgm", "new.csv")
    assert judged["samples"] == 40
    assert judged["accuracy"] == pytest.approx(right)
    assert sum(one["samples"] for one in judged["classes"].values()) == 40
    assert sum(one["right"] for one in judged["classes"].values()) == round(40 * right)
    assert 0 <= judged["calibration"] <= 1
    assert 0 <= judged["brier"] <= 2
    assert f"{right:.2%}" in fedgram("evaluate", "mine.fgm", "new.csv")
    fedgram("predict", "mine.fgm", "new.csv", "--id", "patient", "--out", "predictions.csv")
    lines = (folder / "predictions.csv").read_text().splitlines()
    assert lines[0] == "patient,diagnosis,p(ill),p(well),problem"
    assert [line.split(",")[1] for line in lines[1:]] == own.predict(client.x).tolist()
    assert told("predict", "global.fgm", "new.csv")["labels"] == published.model.predict(client.x).tolist()
    assert told("evaluate", "global.fgm", "new.csv")["samples"] == 40


def test_newcomers_get_a_model_too(folder, published):
    (folder / "west.csv").write_text(table(21))
    said = told("personalize", "global.fgm", "west.csv", "--party", "west", "--out", "west.fgm")
    assert (said["party"], said["member"]) == ("west", False)
    forced = told("personalize", "global.fgm", "north.csv", "--key", "north.key", "--newcomer", "--out", "n.fgm")
    assert forced["member"] is False
    with pytest.raises(InvalidParameter, match="is not the key that study"):
        fedgram("personalize", "global.fgm", "west.csv", "--party", "north", "--key", "south.key")


def test_what_is_no_model_is_refused(folder, published):
    fedgram("summarize", "study.toml", "north.csv", "--key", "north.key")
    for command in (("predict", "north.fgm", "north.csv"), ("evaluate", "north.fgm", "north.csv")):
        with pytest.raises(Mismatch, match="global or personal file is wanted"):
            fedgram(*command)
    with pytest.raises(Mismatch, match="global file is wanted"):
        fedgram("personalize", "north.fgm", "north.csv", "--key", "north.key")
    damaged = bytearray((folder / "global.fgm").read_bytes())
    damaged[-1] ^= 1
    (folder / "global.fgm").write_bytes(damaged)
    with pytest.raises(RefusedMessage, match="digest does not fit"):
        fedgram("predict", "global.fgm", "north.csv")


def test_numeric_outcomes_are_judged_by_their_errors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = Study.parse(
        "[study]\nname = 'costs'\noutcome = 'cost'\n"
        "[columns.cost]\nkind = 'number'\nrange = [0, 400]\n[columns.age]\nkind = 'number'\nrange = [0, 100]\n"
    )
    rng = np.random.default_rng(0)
    for name in ("a", "b", "c", "new"):
        rows = ((age, 3 * age + 20 + rng.normal()) for age in rng.integers(0, 100, 50))
        (tmp_path / f"{name}.csv").write_text("age,cost\n" + "".join(f"{a},{c:.4f}\n" for a, c in rows))
    fit = fg.FedHiP().fit([read_client(study, name, f"{name}.csv") for name in "abc"], study=study)
    fit.save("fit.fedgram")
    judged = told("evaluate", "fit.fedgram", "new.csv")
    assert judged["errors"]["cost"]["rmse"] == pytest.approx(1.0, abs=0.3)
    assert judged["errors"]["cost"]["r2"] > 0.99
    assert "RMSE" in fedgram("evaluate", "fit.fedgram", "new.csv")
    assert "accuracy" not in judged


def test_models_without_a_study_are_for_predict(tmp_path):
    x = np.random.default_rng(0).normal(size=(12, 2))
    fit = fg.AFL().fit([fg.Client(str(k), x[k::3], np.arange(12)[k::3] % 2) for k in range(3)])
    fit.save(tmp_path / "fit.fedgram")
    with pytest.raises(InvalidParameter, match="fedgram predict"):
        fedgram("evaluate", tmp_path / "fit.fedgram", tmp_path / "new.csv")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_leaves_nothing_half_written(folder):
    code = (
        "import os, time\n"
        "from fedgram.core import files\n"
        "def slow(made, path):\n"
        "    print('writing', flush=True); time.sleep(3600)\n"
        "files.os.replace = slow\n"
        "from fedgram.cli import main; main()\n"
    )
    before = sorted(path.name for path in folder.iterdir())
    command = [sys.executable, "-c", code, "summarize", "study.toml", "north.csv", "--key", "north.key"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder) as process:
        try:
            assert process.stdout.readline().strip() == b"writing"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert sorted(path.name for path in folder.iterdir()) == before

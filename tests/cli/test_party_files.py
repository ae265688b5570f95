"""A party's commands: keys, summarize, inspect, personalize, evaluate, predict."""

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
    Skipped,
)
from fedgram.exchange.format import fgm
from fedgram.exchange.rounds.round_messages import Round
from fedgram.heads.logistic import Logistic
from fedgram.studies import Study
from fedgram.studies.encoding import read_client
from support.command import fedgram, run, told
from support.exchange import PARTIES, TEXT, key_of, table
from support.waiting import PATIENCE


@pytest.fixture
def published(folder):
    """Write a coordinator's published model, and return the fit."""
    study = Study.read("study.toml")
    clients = [read_client(study, name, f"{name}.csv") for name in PARTIES]
    fit = fg.FedGram().fit(clients, study=study, classes=study.classes)
    told = fg.Fit(
        fit.model, fit.method, fit.settings, 0, fit.contributors, message=fit.published, study=study, basis=fit.basis
    )
    fgm.write("global.fgm", fgm.encode("global", told, study=study.fingerprint, party="coordinator", key=key_of(9)))
    return fit


def test_keys_are_made_shown_and_entered(folder):
    study = Study.read("study.toml")
    shown = {name: told("keys", "show", f"{name}.key") for name in PARTIES}
    assert {name: one["public"] for name, one in shown.items()} == dict(study.parties)
    assert told("keys", "show", "north.pub") == shown["north"] == {"party": "north", "public": study.parties["north"]}
    assert study.parties["north"] in fedgram("keys", "show", "north.key")
    with pytest.raises(InvalidData, match="never overwritten"):
        fedgram("keys", "new", "north")
    made = told("keys", "new", "west", "--out", "keys")
    assert (made["key"], made["party"]) == (os.path.join("keys", "west.key"), "west")
    with pytest.raises(InvalidData, match="'west' is not listed.*fedgram amend STORE --add"):
        fedgram("study", "keys", "study.toml", "keys/west.pub")
    fedgram("keys", "new", "north", "--out", "keys")
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
    for words in ("party", "samples", "60", "minimum_samples", "passed", "not single samples", "steps", "category"):
        assert words in said
    file = fgm.read("north.fgm")
    file.verify(key := file.signer)
    assert key.text == Study.read("study.toml").parties["north"]
    passport = told("inspect", "north.fgm", "--html", "north.html")
    assert passport["digest"] == file.digest
    rows = (folder / "north.csv").read_text().splitlines()[1:]
    assert passport["classes"] == {label: sum(row.endswith(f",{label}") for row in rows) for label in ("ill", "well")}
    assert "<svg" in (folder / "north.html").read_text()
    again = told("summarize", "study.toml", "north.csv", "--key", "north.key", "--out", "again.fgm")
    assert (again["digest"], again["file"]) == (file.digest, "again.fgm")
    shown = fedgram("inspect", "north.fgm")
    assert all(line in said for line in shown.splitlines())
    assert "rows" in said
    assert "60 read: 60 used" in said


def test_unsigned_summaries_say_so_and_are_refused_where_the_study_lists_keys(folder):
    with pytest.raises(InvalidParameter, match="expected the private key of 'north'.*sign with --key"):
        fedgram("summarize", "study.toml", "north.csv", "--party", "north")
    assert not (folder / "north.fgm").exists()
    (folder / "study.toml").write_text(TEXT)
    done = CliRunner().invoke(app, ["summarize", "study.toml", "north.csv", "--party", "north"])
    assert "it is not signed" in done.stderr
    assert fgm.read("north.fgm").signer is None


@pytest.fixture
def coordinated(folder):
    """Enter a coordinator's key into the study."""
    fedgram("keys", "new", "coordinator")
    fedgram("study", "keys", "study.toml", "--coordinator", "coordinator.pub")
    return folder


def test_a_sealed_summary_from_the_party_to_the_store(coordinated):
    summarize = ("summarize", "study.toml", "north.csv", "--key", "north.key", "--seal")
    said, receiver = fedgram(*summarize), told("keys", "show", "coordinator.pub")["public"]
    assert "wrote north-sealed.fgm" in said
    assert "sealed to" in said
    assert not (coordinated / "north.fgm").exists()
    assert b"north" not in (coordinated / "north-sealed.fgm").read_bytes()
    for options in ((), ("--study", "study.toml")):
        assert f"{receiver}" in fedgram("inspect", "north-sealed.fgm", *options)
        shown = told("inspect", "north-sealed.fgm", *options)
        assert shown == {"kind": "sealed", "sealed_to": receiver, "size": 65_727}
    passport = told("inspect", "north-sealed.fgm", "--key", "coordinator.key", "--html", "north.html")
    assert (passport["party"], passport["samples"]) == ("north", 60)
    assert passport["sealed_to"] == f"the coordinator, {receiver}"
    assert receiver in (coordinated / "north.html").read_text()
    fedgram("summarize", "study.toml", "south.csv", "--key", "south.key")
    joined = told("join", "store", "north-sealed.fgm", "south.fgm", "--key", "coordinator.key")["files"]
    assert [each["outcome"] for each in joined] == ["joined", "joined"]
    assert joined[0]["digest"] == passport["digest"]
    with pytest.raises(InvalidParameter, match=r"north-sealed.fgm exists: .* --force"):
        fedgram(*summarize)
    fedgram(*summarize, "--force")
    assert told("join", "store", "north-sealed.fgm")["files"][0]["outcome"] == "already in"


def test_a_party_gets_the_page_of_a_sealed_file_with_the_rows_that_were_left_out(coordinated):
    lines = (coordinated / "north.csv").read_text().splitlines()
    (coordinated / "north.csv").write_text("\n".join([*lines, "P,50,4000,X,yes,ill"]) + "\n")
    summarize = ("summarize", "study.toml", "north.csv", "--key", "north.key", "--seal", "--on-bad", "skip")
    with pytest.raises(InvalidParameter, match=r"--html study.toml is study.toml itself"):
        fedgram(*summarize, "--html", "study.toml")
    with pytest.raises(InvalidParameter, match=r"--html north.html is the file that --out names"):
        fedgram(*summarize, "--out", "north.html", "--html", "north.html")
    assert not (coordinated / "north-sealed.fgm").exists()
    with pytest.warns(Skipped):
        assert "wrote north.html" in fedgram(*summarize, "--html", "north.html")
    page = (coordinated / "north.html").read_text()
    assert "61 read: 60 used" in page
    assert "1 refused and left out" in page
    assert "sealed to" in page
    with pytest.raises(InvalidParameter, match=r"north.html exists: .* --html, or --force"):
        fedgram(*summarize, "--out", "again.fgm", "--html", "north.html")
    assert not (coordinated / "again.fgm").exists()


def test_a_sealed_answer_to_a_round(coordinated):
    for name in PARTIES:
        fedgram("summarize", "study.toml", f"{name}.csv", "--key", f"{name}.key", "--seal")
    fedgram("join", "store", *(f"{name}-sealed.fgm" for name in PARTIES), "--key", "coordinator.key")
    fedgram("publish", "store", "--method", "fedlogit", "--set", "rounds=1")
    for name in PARTIES:
        answer = ("summarize", "study.toml", f"{name}.csv", "--key", f"{name}.key", "--round", "round-1.fgm", "--seal")
        assert told(*answer)["file"] == f"{name}-round-1-sealed.fgm"
    found = told("join", "store", *(f"{name}-round-1-sealed.fgm" for name in PARTIES))["files"]
    assert [each["outcome"] for each in found] == ["answered"] * 3


def test_a_seal_needs_its_keys(coordinated):
    fedgram("summarize", "study.toml", "north.csv", "--key", "north.key", "--seal", "--out", "sealed.fgm")
    for command, words in (
        (("inspect", "sealed.fgm", "--html", "page.html"), "its passport is inside: give --key"),
        (("inspect", "sealed.fgm", "--key", "south.key"), "is sealed to .* not the key"),
        (("predict", "sealed.fgm", "north.csv"), "is sealed to"),
    ):
        with pytest.raises(FedgramError, match=words):
            fedgram(*command)
    done = run("join", "store", "sealed.fgm", cwd=coordinated)
    assert done.returncode == 2
    assert "with --key" in done.stderr
    (coordinated / "study.toml").write_text(TEXT)
    with pytest.raises(InvalidParameter, match=r"study that names its coordinator's key.*study keys --coordinator"):
        fedgram("summarize", "study.toml", "north.csv", "--party", "north", "--seal")
    fedgram("keys", "new", "coordinator", "--out", "other")
    fedgram("study", "keys", "study.toml", "--coordinator", "other/coordinator.pub")
    with pytest.raises(RefusedMessage, match="as its coordinator's: seal it with this study"):
        fedgram("inspect", "sealed.fgm", "--study", "study.toml")


def test_a_small_group_is_pointed_out(folder):
    rows = (folder / "north.csv").read_text().splitlines()
    kept = [row for row in rows if not row.endswith(",,ill")]
    lone = ["P,50,4000,F,,ill"]  # the only ill person with unknown smoking
    (folder / "north.csv").write_text("\n".join([*kept, *lone]) + "\n")
    said = " ".join(fedgram("summarize", "study.toml", "north.csv", "--key", "north.key").split())
    assert "smallest group 7 samples: smoker missing" in said, "the sums of a group are those of all classes"
    alone = [row for row in rows if ",,ill" not in row and ",,well" not in row]
    (folder / "north.csv").write_text("\n".join([*alone, *lone]) + "\n")
    with pytest.raises(InvalidData, match=r"minimum_group: .* got smoker missing \(1 sample\)"):
        fedgram("summarize", "study.toml", "north.csv", "--key", "north.key", "--out", "alone.fgm")
    assert not (folder / "alone.fgm").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--key", "south.key", "--party", "north"), "is not the key that study"),
        ((), "expected a name or a key, got neither"),
        (("--key", "none.key"), "cannot read the key"),
        (("--key", "north.pub"), "not a private key"),
        (("--key", "north.key", "--out", "north.csv"), "would be overwritten"),
        (("--key", "north.key", "--out", "none/north.fgm"), "cannot write"),
        (("--key", "north.key", "--html", "none/north.html"), "cannot write"),
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
    total = fgm.read("north.fgm").payload + fgm.read("south.fgm").payload + fgm.read("east.fgm").payload
    basis = study.basis_of(total)
    ascent = Logistic(basis.moments(total), "auto")
    asked = Round(1, "fedlogit", {}, basis, {"model": ascent.ahead, "leverage": ascent.leverage})
    fgm.write("round-1.fgm", fgm.encode("round", asked, study=study, party="coordinator", key=key_of(9)))
    said = told("summarize", "study.toml", "north.csv", "--key", "north.key", "--round", "round-1.fgm")
    assert (said["file"], said["kind"], said["samples"]) == ("north-round-1.fgm", "answer", 60)
    assert "trust" in said["reveals"]
    assert "fedlogit, round 1" in told("inspect", "round-1.fgm")["reveals"]
    assert fgm.read("north.fgm").header.kind == "summary"


def test_own_models_predict_and_are_judged(folder, published):
    said = told("personalize", "global.fgm", "north.csv", "--key", "north.key", "--keep", "own")
    assert (said["party"], said["member"], said["samples"], said["kept"]) == ("north", True, 60, "own")
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
    shown = told("predict", "global.fgm", "new.csv", "--id", "patient")
    assert shown["labels"] == published.model.predict(client.x).tolist()
    assert shown["ids"] == [f"P20-{row}" for row in range(40)]
    assert shown["classes"] == ["ill", "well"]
    np.testing.assert_allclose(shown["probabilities"], published.model.predict_proba(client.x))
    assert shown["problems"] == [""] * 40
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
        with pytest.raises(Mismatch, match="expected a global or personal file"):
            fedgram(*command)
    with pytest.raises(Mismatch, match="expected a global file"):
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
def test_ctrl_c_leaves_nothing_half_written(coordinated):
    folder = coordinated
    code = (
        "import os, time\n"
        "from fedgram.core import filesystem\n"
        "def slow(made, path):\n"
        "    print('writing', flush=True); time.sleep(3600)\n"
        "filesystem.os.replace = slow\n"
        "from fedgram.cli import main; main()\n"
    )
    before = sorted(path.name for path in folder.iterdir())
    command = [sys.executable, "-c", code, "summarize", "study.toml", "north.csv", "--key", "north.key", "--seal"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder) as process:
        try:
            assert process.stdout.readline().strip() == b"writing"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 130
    assert b"Traceback" not in errors
    left = sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")  # a lock's file stays
    assert left == before

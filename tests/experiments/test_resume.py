"""Interrupted experiments resume, for any damage to the results on disk."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedgram as fg
from fedgram.cli import app
from fedgram.core.errors import InvalidParameter, JournalError, Mismatch, UnknownName
from fedgram.experiments import finished
from fedgram.experiments.journal import Damage, Journal, Line, heal, read
from fedgram.experiments.results import load_results
from support import command
from support.campaign import size
from support.gradual import Fragile
from support.runner import SMALL, compare, records, run
from support.waiting import PATIENCE, wait_for

pytestmark = pytest.mark.usefixtures("made_up_methods")

not_windows = pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")


def test_resume_repeats_nothing_and_tries_failures_again(tmp_path, monkeypatch):
    out = tmp_path / "out"
    compare(*SMALL[:-1], "fragile,local", "--out", str(out))
    monkeypatch.setattr(Fragile, "serve", fg.AFL.serve)
    again = compare(*SMALL[:-1], "fragile,local,afl", "--out", str(out), "--resume")
    assert again.exit_code == 0, again.output
    assert "2 of 4 runs are finished already" in again.output
    found = records(out / "results.jsonl")
    assert [(r["method"], r["status"]) for r in found] == [
        ("centralised", "ok"),
        ("fragile", "failed"),
        ("local", "ok"),
        ("fragile", "ok"),
        ("afl", "ok"),
    ]
    assert len(records(out / "results.jsonl", "setting")) == 1
    assert len(finished(out / "results.jsonl")[0].keys) == 4


def test_failed_runs_can_be_left_alone(tmp_path, monkeypatch):
    out = tmp_path / "out"
    compare(*SMALL[:-1], "fragile,local", "--out", str(out))
    monkeypatch.setattr(Fragile, "serve", fg.AFL.serve)
    again = compare(*SMALL[:-1], "fragile,local,afl", "--out", str(out), "--resume", "--skip-failed")
    assert again.exit_code == 0, again.output
    found = [(record["method"], record["status"]) for record in records(out / "results.jsonl")]
    assert found[2:] == [("local", "ok"), ("afl", "ok")]
    refused = compare(*SMALL, "--out", str(tmp_path / "new"), "--skip-failed").exception
    assert "--skip-failed needs --resume" in str(refused)


def test_resume_repeats_runs_of_an_older_revision(tmp_path, monkeypatch):
    out = tmp_path / "out"
    compare(*SMALL, "--out", str(out))
    monkeypatch.setattr(fg.Local, "revision", 2)
    again = compare(*SMALL, "--out", str(out), "--resume")
    assert "2 of 3 runs are finished already" in again.output
    assert "1 run of older revisions of the methods left out" in again.output
    before, after = (record for record in records(out / "results.jsonl") if record["method"] == "local")
    assert before["settings"] == after["settings"]
    assert (before["revision"], after["revision"]) == (1, 2)
    assert before["key"] != after["key"]
    assert [run.key for run in load_results([out / "results.jsonl"]).runs if run.method == "local"] == [after["key"]]


def test_revisions_are_not_mixed_in_a_mean(tmp_path, monkeypatch):
    """Seed 1 of the older revision is left out although the newer one has no such run."""
    out = tmp_path / "out"
    compare(*SMALL, "--seeds", "0,1", "--out", str(out))
    monkeypatch.setattr(fg.Local, "revision", 2)
    compare(*SMALL, "--out", str(out), "--resume")
    found = load_results([out / "results.jsonl"])
    assert [run.seed for run in found.runs if run.method == "local"] == [0]
    assert [run.seed for run in found.runs if run.method == "afl"] == [0, 1]
    assert found.outdated == 2


def test_results_are_never_lost_by_accident(tmp_path):
    out = tmp_path / "out"
    assert compare(*SMALL, "--out", str(out)).exit_code == 0
    before = (out / "results.jsonl").read_bytes()
    refused = compare(*SMALL, "--out", str(out))
    assert isinstance(refused.exception, InvalidParameter)
    assert "--resume" in str(refused.exception)
    assert "--overwrite" in str(refused.exception)
    assert (out / "results.jsonl").read_bytes() == before
    assert compare(*SMALL, "--out", str(out), "--overwrite").exit_code == 0
    assert len(records(out / "results.jsonl")) == 3


def test_overwrite_keeps_the_old_results_until_there_is_a_new_one(tmp_path):
    out = tmp_path / "out"
    compare(*SMALL, "--out", str(out))
    before = (out / "results.jsonl").read_bytes()
    assert before
    mistaken = compare("--data", "digitz", "--methods", "afl", "--out", str(out), "--overwrite")
    assert isinstance(mistaken.exception, UnknownName)
    assert (out / "results.jsonl").read_bytes() == before


def test_resume_shows_the_labels_of_now_and_names_other_runs(tmp_path):
    file, out = tmp_path / "one.toml", tmp_path / "out"
    about = 'data = "digits"\nclients = 4\ntitle = "My trial"\nmethods = [{name = "local", label = "LABEL"}]'
    file.write_text(about.replace("LABEL", "mine"))
    assert "other experiments" not in compare(str(file), "--out", str(out)).output
    file.write_text(about.replace("LABEL", "ours"))
    again = compare(str(file), "--out", str(out), "--resume").output
    assert "ours" in again
    assert "mine" not in again
    other = compare(str(file), "--samples", "300", "--out", str(out), "--resume")
    assert "results.jsonl also holds 2 runs of other experiments" in other.stderr
    assert "300 samples, 4 clients" in other.stdout
    page = CliRunner().invoke(app, ["report", str(out / "results.jsonl"), "--format", "html"]).output
    assert "<title>My trial" in page


def test_old_records_without_a_kind_or_status_are_finished(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"key":"a","method":"afl"}\n{"key":"b","method":"afl","status":"failed"}\n')
    assert finished(path)[0].keys == {"a"}
    assert [run.error is None for run in load_results([path]).finished] == [True]


@pytest.mark.parametrize("cut", [1, 40, 400])
def test_a_half_written_line_is_named_taken_away_and_repeated(tmp_path, cut):
    out = tmp_path / "out"
    compare(*SMALL, "--out", str(out))
    path = out / "results.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: -cut - 1])
    result = compare(*SMALL, "--out", str(out), "--resume")
    assert result.exit_code == 0, result.output
    assert "line 4: half-written" in result.output
    assert [record["method"] for record in records(path)] == ["centralised", "afl", "local"]


def test_a_damaged_line_in_the_middle_is_named_and_repeated(tmp_path):
    out = tmp_path / "out"
    compare(*SMALL, "--out", str(out))
    path = out / "results.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = b"\0" * 300 + b"\n"
    path.write_bytes(b"".join(lines))
    result = compare(*SMALL, "--out", str(out), "--resume")
    assert result.exit_code == 0, result.output
    assert "line 3: not JSON (301 bytes); left out" in result.output
    assert len(finished(path)[0].keys) == 3


def test_a_missing_last_newline_loses_nothing(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"kind":"run","key":"a"}\n{"kind":"run","key":"b"}')
    assert "line 2: its end of line was missing" in heal(path)
    assert [line.record["key"] for line in read(path)] == ["a", "b"]
    assert heal(path) is None


def test_reading_names_every_damaged_line(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_bytes(b'{"a": 1}\n\n[1]\n\xff\xfe\n{"b": 2}\n{"c"')
    lines = list(read(path))
    assert [line.number for line in lines if isinstance(line, Line)] == [1, 5]
    assert [(line.line, line.reason) for line in lines if isinstance(line, Damage)] == [
        (3, "not a JSON object"),
        (4, "not JSON (3 bytes)"),
        (6, "half-written: not JSON (4 bytes)"),
    ]
    with pytest.raises(JournalError, match="cannot read"):
        list(read(tmp_path / "none.jsonl"))


def test_a_full_disk_is_told_with_the_remedy(tmp_path, monkeypatch):
    with Journal(tmp_path / "results.jsonl") as journal:
        monkeypatch.setattr(os, "write", lambda file, line: len(line) // 2)
        with pytest.raises(JournalError, match="--resume"):
            journal.append({"a": 1})


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot write"):
        Journal(tmp_path / "file" / "results.jsonl")


def test_data_that_changed_are_not_mixed(tmp_path, monkeypatch):
    run(path := tmp_path / "results.jsonl", methods=["afl"])
    done, _ = finished(path)
    text = path.read_text().replace("digits-uci-1998", "another")
    path.write_text(text)
    done, _ = finished(path)
    with pytest.raises(Mismatch, match="have changed"):
        run(path, methods=["afl", "local"], done=done)


def test_ctrl_c_keeps_what_is_finished(tmp_path):
    out = tmp_path / "out"
    result = compare(*SMALL[:-1], "afl,stopped,local", "--out", str(out))
    assert result.exit_code == 130
    assert "go on with --resume" in result.output
    assert [record["method"] for record in records(out / "results.jsonl")] == ["centralised", "afl"]


def start(folder, seeds, lines):
    """Start a comparison as a user does, in a process of its own; wait until so many lines of results are there."""
    wanted = ",".join(map(str, range(seeds)))
    options = ["--data", "digits", "--clients", "40", "--methods", "afl,local", "--seeds", wanted, "--out", str(folder)]
    process = command.start("compare", *options, stdout=subprocess.DEVNULL)
    path = Path(folder) / "results.jsonl"

    def some_are_there():
        assert process.poll() is None, process.stderr.read()
        return path.exists() and path.read_bytes().count(b"\n") >= lines

    wait_for(some_are_there, "the first runs", pause=0.01)
    return process, options, path


@not_windows
@pytest.mark.campaign
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGKILL", -9)])
def test_a_killed_comparison_goes_on_where_it_was(tmp_path, name, code):
    for attempt in range(size(1)):
        process, options, path = start(tmp_path / f"out-{attempt}", seeds=8, lines=4 + attempt)
        process.send_signal(getattr(signal, name))
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == code, errors
        assert ("--resume" in errors) == (name == "SIGINT")
        before = path.read_bytes()
        done = len(finished(path)[0].keys)
        assert 0 < done < 24
        result = compare(*options, "--resume")
        assert result.exit_code == 0, result.output
        assert path.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
        keys = [record["key"] for record in records(path)]
        assert len(keys) == len(set(keys)) == 24

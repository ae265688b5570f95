"""The coordinator's commands: join, status, publish, remove, combine, log, verify."""

import json
import signal
import sqlite3
import sys
import time

import pytest
from typer.testing import CliRunner

from fedgram.cli import app
from fedgram.core.errors import FedgramError, InvalidData, InvalidParameter, RefusedMessage, StoreError, UnknownName
from fedgram.core.filesystem import only_writer
from fedgram.exchange.format import fgm
from fedgram.exchange.store.study_store import Store
from fedgram.exchange.store.verification import check_total, problems
from support.command import run, start
from support.stores import KEYS, answered, keyed, summary
from support.waiting import PATIENCE

NAMES = ("north", "south", "east")
STUDY = keyed()


def fedgram(*options, code=0):
    done = CliRunner().invoke(app, list(map(str, options)))
    if isinstance(done.exception, FedgramError):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.stdout if not code else done.output


def told(*options, **kept):
    return json.loads(fedgram(*options, "--json", **kept).splitlines()[0])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with three signed summaries, and change into it."""
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        (tmp_path / f"{name}.fgm").write_bytes(summary(name, study=STUDY, key=KEYS[name]))
    return tmp_path


@pytest.fixture
def store(folder):
    fedgram("join", "store", *(f"{name}.fgm" for name in NAMES))
    return folder / "store"


def test_a_consortium_from_join_to_verify(folder):
    (folder / "junk.fgm").write_bytes(b"junk")
    said = fedgram("join", "store", "north.fgm", "junk.fgm", "south.fgm", code=2)
    assert "north: joined, 40 samples" in said
    assert "error: junk.fgm refused: it is not a file that fedgram exchanges" in said
    assert "south: joined" in said
    again = told("join", "store", "east.fgm", "north.fgm")["files"]
    assert [(each["party"], each["outcome"]) for each in again] == [("east", "joined"), ("north", "already in")]
    found = told("publish", "store")
    assert (found["version"], found["method"], found["samples"]) == (1, "fedgram", 120)
    assert set(found["sites"]) == set(NAMES)
    assert fgm.read(found["file"]).header.kind == "global"
    state = told("status", "store")
    assert [each["party"] for each in state["contributions"]] == list(NAMES)
    assert {each["key"] for each in state["contributions"]} == {"listed in the study"}
    assert state["ledger"]["head"] == found["head"]
    removed = told("remove", "store", "south")
    assert removed["certificate"] == "south-removed.fgm"
    assert "add up to the total after" in fedgram("verify", "store", "south-removed.fgm")
    assert told("verify", "store")["wrong"] == []
    assert told("status", "store")["missing"] == ["south"]
    log = told("log", "store", "--expect", "global.fgm")
    assert [entry["what"] for entry in log["entries"]] == ["open", *["join"] * 3, "publish", "remove"]
    assert log["problems"] == []
    assert "the ledger is whole" in fedgram("log", "store", "--expect", again[0]["receipt"])
    for neither in ("missing.fgm", "."):
        with pytest.raises(InvalidParameter, match="expected a head of the ledger or a file with one, got"):
            fedgram("log", "store", "--expect", neither)


def test_folders_join_with_the_files_that_are_in_them(folder):
    inbox = folder / "inbox"
    (inbox / "older").mkdir(parents=True)
    for name, place in zip(NAMES, ("b.fgm", "a.FGM", "older/c.fgm"), strict=True):
        (folder / f"{name}.fgm").rename(inbox / place)
    (inbox / "read-me.txt").write_text("mail")
    (inbox / "d.fgm").mkdir()
    found = told("join", "store", "inbox")["files"]
    assert [(each["party"], each["outcome"]) for each in found] == [("south", "joined"), ("north", "joined")]
    assert "inbox: 2 .fgm files" in CliRunner().invoke(app, ["join", "store", "inbox"]).stderr
    again = told("join", "store", "inbox", "inbox/older/c.fgm")["files"]
    assert [each["outcome"] for each in again] == ["already in", "already in", "joined"]
    (folder / "empty").mkdir()
    with pytest.raises(InvalidParameter, match=r"empty: expected a folder with .fgm files, got one without"):
        fedgram("join", "store", "empty")
    assert "inbox/" in fedgram("join", "--help")


def test_the_study_of_a_file_or_a_store_is_shown(store):
    publication = told("publish", "store")["file"]
    wanted = told("study", "show", "store")
    assert wanted["fingerprint"] == STUDY.fingerprint
    for path in ("north.fgm", publication):
        assert told("study", "show", path) == wanted
    assert "steps" in fedgram("study", "show", "north.fgm")
    receipt = next((store / "receipts").iterdir())
    with pytest.raises(InvalidData, match="got one with no more than the fingerprint"):
        fedgram("study", "show", receipt)
    with pytest.raises(InvalidParameter, match="is not a store"):
        fedgram("study", "show", store.parent)
    data = bytearray((store.parent / "north.fgm").read_bytes())
    data[-1] ^= 1
    (store.parent / "north.fgm").write_bytes(bytes(data))
    with pytest.raises(RefusedMessage):
        fedgram("study", "show", "north.fgm")


def test_what_people_read_names_everything(store):
    said = fedgram("publish", "store", "--method", "afl")
    assert "version 1: afl of 3 parties, 120 samples; wrote global.fgm" in said
    shown = fedgram("status", "store", "--sites")
    assert "How well a model of the other parties predicts each party (Brier score; lower is better)." in said
    for text in ("walks", "3 parties, 120 samples", "listed in", "published version 1", "by the others"):
        assert text in shown
    assert "total before" in fedgram("remove", "store", "north", "--out", "certificate.fgm")
    assert "Does not prove: That all copies were deleted" in fedgram("remove", "store", "north", "--out", "again.fgm")
    assert fgm.read("again.fgm").digest == fgm.read("certificate.fgm").digest


def test_hyper_parameters_are_given_by_set(store):
    found = told("publish", "store", "--method", "fedhip", "--set", "beta=2", "--no-sites")
    assert fgm.read(found["file"]).payload.settings["beta"] == 2.0
    assert found["sites"] == {}


def test_fedlogit_by_files(store):
    asked = told("publish", "store", "--method", "fedlogit", "--set", "rounds=1")
    assert (asked["round"], asked["file"]) == (1, "round-1.fgm")
    request = (store.parent / "round-1.fgm").read_bytes()
    for name in NAMES:
        data = answered(name, request, study=STUDY, key=KEYS[name])
        (store.parent / f"{name}-1.fgm").write_bytes(data)
    fedgram("join", "store", "north-1.fgm")
    assert told("status", "store")["waiting"] == ["south", "east"]
    fedgram("join", "store", "south-1.fgm", "east-1.fgm")
    found = told("publish", "store", "--method", "fedlogit", "--set", "rounds=1")
    assert fgm.read(found["file"]).payload.method == "fedlogit"


def test_regions_combine(folder):
    fedgram("join", "a", "north.fgm", "south.fgm")
    found = told("combine", "a", "--name", "north", "--out", "region.fgm")
    assert (found["party"], found["summaries"], found["samples"]) == ("north", 2, 80)
    said = fedgram("join", "country", "region.fgm", code=2)
    assert "is signed with the key" in " ".join(said.split())  # the study lists another key for that name


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (("status", "."), InvalidParameter),
        (("join", "south.fgm", "north.fgm"), InvalidParameter),
        (("publish", "store", "--method", "fedavg"), InvalidParameter),
        (("publish", "store", "--method", "nothing"), UnknownName),
        (("publish", "store", "--set", "shrinkage"), InvalidParameter),
        (("remove", "store", "nobody"), UnknownName),
        (("verify", "store", "north.fgm"), FedgramError),
    ],
)
def test_bad_input_is_refused(store, options, kind):
    try:
        fedgram(*options, code=1)  # a file that is not a certificate was checked, and failed
    except kind:
        return
    assert options[0] == "verify"


def test_a_rewritten_ledger_and_a_wrong_total_are_told(store):
    head = told("log", "store")["head"]
    with sqlite3.connect(store / "index.sqlite") as database:
        database.execute("DROP TRIGGER ledger_keeps_entries")
        database.execute("DELETE FROM ledger WHERE number = 4")
        database.execute("DELETE FROM contributions WHERE party = 'east'")
    database.close()
    wrong = told("log", "store", code=1)["problems"]
    assert [text.split()[0] for text in wrong[:2]] == ["total.bin", "receipts/east-4.fgm"]  # the chain itself is whole
    assert "restored from an older backup: the ledger ends with entry 3, and entry 4 is missing" in wrong[2]
    for kept in ("total.bin", "receipts/east-4.fgm"):
        (store / kept).unlink()
    (store.parent / "store.head").unlink()
    assert told("log", "store", code=0)["problems"] == []  # nothing mentions the entry any more
    assert "no entry with the head" in " ".join(fedgram("log", "store", "--expect", head, code=1).split())


def test_another_coordinator_is_waited_for_or_told(store):
    more = store.parent / "more.fgm"
    more.write_bytes(summary("north", seed=1, study=STUDY, key=KEYS["north"]))
    with only_writer(store, who="coordinator"):
        told_off = run("join", store, more, "--replace")
        assert told_off.returncode == 2
        assert "another coordinator is writing to" in told_off.stderr
        waiting = start("join", str(store), str(more), "--replace", "--wait")
        assert "waiting: another coordinator" in waiting.stderr.readline()
    out, _ = waiting.communicate(timeout=PATIENCE)
    assert waiting.returncode == 0
    assert "north: replaced" in out


@pytest.mark.usefixtures("interruptible")
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_leaves_nothing_half_written(store):
    paths = [store.parent / f"{number}.fgm" for number in range(200)]
    for number, path in enumerate(paths):
        path.write_bytes(summary("north", seed=number + 1, n=6, study=STUDY, key=KEYS["north"]))
    process = start("join", str(store), *map(str, paths), "--replace")
    entries = len(Store(store).log())
    while process.poll() is None and len(Store(store).log()) == entries:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    left = Store(store)
    assert problems(left) == []
    check_total(left)
    assert not [path for path in store.rglob(".*") if path.name not in (".lock", ".holder")]


def test_a_read_only_store_can_be_read(store, monkeypatch):
    monkeypatch.setattr("fedgram.exchange.store.index._may_write", lambda *_: False)
    assert told("status", "store")["samples"] == 120
    assert told("log", "store")["problems"] == []
    assert told("verify", "store")["wrong"] == []
    with pytest.raises(StoreError, match="readonly.*what has been accepted is kept"):
        fedgram("remove", "store", "north")


def test_help_has_examples():
    for command in ("join", "status", "publish", "remove", "combine", "log", "verify"):
        assert f"fedgram {command} " in fedgram(command, "--help")

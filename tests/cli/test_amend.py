"""`fedgram amend` and `fedgram keys rotate`: a consortium that changes after it has begun."""

import json
import os
from pathlib import Path

import pytest

from fedgram.core.errors import Doubtful, InvalidData, InvalidParameter
from fedgram.core.hashing import readable
from fedgram.exchange.format import fgm
from fedgram.exchange.store.saved_total import problems
from fedgram.exchange.store.study_store import Store
from fedgram.exchange.store.verification import check_total
from fedgram.studies import Study
from support.command import fedgram, run, told
from support.exchange import TEXT, table

NAMES = ("north", "south", "east", "stmary", "centre")
LATE = "westcoast"
BARE = TEXT.replace('parties = ["north", "south", "east"]\n', "")


def keyed_files(names):
    """Write a study file with the keys of these parties and of the coordinator, and their tables."""
    Path("study.toml").write_text(BARE)
    for seed, name in enumerate(names):
        fedgram("keys", "new", name)
        Path(f"{name}.csv").write_text(table(seed, 100))  # in which no group is small
    fedgram("keys", "new", "coordinator")
    fedgram("study", "keys", "study.toml", *(f"{name}.pub" for name in names), "--coordinator", "coordinator.pub")


@pytest.fixture
def consortium(tmp_path, monkeypatch):
    """Let five hospitals agree on a keyed study and join."""
    monkeypatch.chdir(tmp_path)
    keyed_files(NAMES)
    for name in NAMES:
        fedgram("summarize", "study.toml", f"{name}.csv", "--key", f"{name}.key")
    fedgram("join", "store", *(f"{name}.fgm" for name in NAMES), "--key", "coordinator.key")
    return tmp_path


def contents(folder):
    """Return the files of a folder except the coordinator's `store.head`."""
    return {path: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.suffix != ".head"}


def test_a_late_hospital_is_one_command_at_the_coordinator(consortium):
    fedgram("publish", "store", "--out", "first.fgm")
    agreed, before = Study.read("study.toml"), contents(consortium)
    fedgram("keys", "new", LATE)
    Path(f"{LATE}.csv").write_text(table(9))
    made = run("summarize", "study.toml", f"{LATE}.csv", "--key", f"{LATE}.key")
    assert made.returncode == 0, made.stderr
    note = f"party '{LATE}' is not listed in study 'walks' (did you mean 'east'?); the store takes its files"
    assert f"{note} only after the coordinator's fedgram amend STORE --add {LATE}.pub" in " ".join(made.stderr.split())
    refused = run("join", "store", f"{LATE}.fgm")
    assert refused.returncode == 2
    assert f"party '{LATE}' is not listed in study 'walks'" in refused.stderr
    assert f"fedgram amend STORE --add {LATE}.pub" in refused.stderr

    said = fedgram("amend", "store", "--add", f"{LATE}.pub")
    assert f"amendment 1: '{LATE}' added on" in said
    assert readable(agreed.agreement) in said
    joined = fedgram("join", "store", f"{LATE}.fgm")
    assert f"{LATE}: joined" in joined
    assert before.items() <= contents(consortium).items(), "nothing that the others have changes"

    found = told("status", "store")
    assert [(each["number"], each["what"], each["party"]) for each in found["amendments"]] == [(1, "add", LATE)]
    assert found["study"]["genesis"] == agreed.agreement != found["study"]["agreement"]
    assert found["study"]["fingerprint"] == agreed.fingerprint
    assert f"amendment 1: '{LATE}' added on" in fedgram("status", "store", "--html", "status.html", "--no-sites")
    assert "Amendments" in Path("status.html").read_text()
    receipt = fgm.read(next(Path("store/receipts").glob(f"{LATE}-*.fgm")))
    assert receipt.payload["amendments"][0].startswith(f"1: '{LATE}' added on")

    fedgram("publish", "store", "--out", "second.fgm")
    assert LATE in fedgram("inspect", "second.fgm", "--study", "study.toml")
    own = run("personalize", "second.fgm", "north.csv", "--key", "north.key", "--study", "study.toml")
    assert own.returncode == 0, own.stderr
    assert f"since study.toml: amendment 1: '{LATE}' added on" in own.stderr
    assert "is signed by the coordinator of study 'walks'" in own.stderr
    told("personalize", "second.fgm", f"{LATE}.csv", "--key", f"{LATE}.key", "--study", "study.toml", "--out", "w.fgm")

    # The same to the bit as if all six had agreed at the beginning
    lines = Path("study.toml").read_text() + Path(f"{LATE}.pub").read_text()
    Path("six.toml").write_text(lines)
    names = (LATE, *NAMES)
    with pytest.warns(Doubtful, match="the same rules and other parties or keys"):
        fedgram("join", "six", *(f"{name}.fgm" for name in names), "--study", "six.toml", "--key", "coordinator.key")
    one, other = Store("store"), Store("six")
    assert one.total().digest == other.total().digest
    assert one.terms.study == other.terms.study == Study.read("six.toml")
    assert problems(one) == problems(other) == []
    check_total(one)
    log = told("log", "store")
    assert [entry["what"] for entry in log["entries"]] == ["open", *["join"] * 5, "publish", "amend", "join", "publish"]
    fedgram("log", "store", "--expect", "second.fgm")


def test_a_changed_key_is_entered_with_and_without_the_former(consortium):
    said = fedgram("keys", "rotate", "north.key", "--out", "new")
    assert "north.rotation" in said
    [record] = Path().glob("north-*.answers")  # without it, a correction of one row would go unnoticed
    assert sorted(path.name for path in Path("new").iterdir()) == [
        record.name,
        "north.key",
        "north.pub",
        "north.rotation",
    ]
    assert (Path("new") / record.name).read_bytes() == record.read_bytes()
    if os.name == "posix":
        assert (Path("new") / record.name).stat().st_mode & 0o777 == 0o600
    one_less = Path("north.csv").read_text().splitlines()[:-1]
    Path("one-less.csv").write_text("\n".join(one_less) + "\n")
    less = run("summarize", "study.toml", "one-less.csv", "--key", "new/north.key", "--out", "less.fgm")
    assert less.returncode == 2
    assert "come or gone since an earlier summary, and in each group of them, got 1 sample" in less.stderr
    with pytest.raises(InvalidData, match=r"north\.rotation exists, and is not overwritten"):
        fedgram("keys", "rotate", "north.key", "--out", "new")
    assert "countersigned with the key before" in fedgram("amend", "store", "--rotate", "new/north.rotation")
    old = run("join", "store", "north.fgm")
    assert old.returncode == 2
    assert "it is signed with the key that 'north' had until" in old.stderr
    Path("north.csv").write_text(table(20))
    made = run("summarize", "study.toml", "north.csv", "--key", "new/north.key", "--out", "again.fgm")
    assert made.returncode == 0, made.stderr
    assert "is not the key that study 'walks' lists for 'north'" in " ".join(made.stderr.split())
    assert "BUT the study lists another key for 'north'" in " ".join(made.stdout.split())
    assert "north: replaced" in fedgram("join", "store", "again.fgm", "--replace")

    fedgram("keys", "new", "south", "--out", "found")  # the former is lost
    assert "NOT countersigned" in fedgram("amend", "store", "--rotate", "found/south.pub")
    keys = {each["party"]: each["key"] for each in told("status", "store")["contributions"]}
    assert (keys["north"], keys["south"]) == ("listed in the study", "its key before an amendment")
    fedgram("publish", "store", "--out", "global.fgm")
    told_so = fedgram("inspect", "global.fgm", "--study", "study.toml")
    assert "since study.toml: amendment 2: 'south' has a new key" in told_so
    assert told("inspect", "global.fgm")["amendments"][1].endswith("(NOT countersigned: compare it)")


def test_a_file_under_the_wrong_name_is_withdrawn(consortium):
    Path("swapped.csv").write_text(table(9))  # the table of a hospital that has not joined yet
    fedgram("summarize", "study.toml", "swapped.csv", "--key", "stmary.key", "--out", "swapped.fgm")
    fedgram("keys", "new", LATE)
    fedgram("amend", "store", "--add", f"{LATE}.pub")
    fedgram("join", "store", "swapped.fgm", "--replace")
    run("summarize", "study.toml", "swapped.csv", "--key", f"{LATE}.key")
    said = run("join", "store", f"{LATE}.fgm")
    assert (said.returncode, "fedgram amend --mistake" in said.stderr) == (2, True)
    assert "withdrawn as a mistake" in fedgram("amend", "store", "--mistake", fgm.read("swapped.fgm").digest[:20])
    assert f"{LATE}: joined" in fedgram("join", "store", f"{LATE}.fgm")
    fedgram("summarize", "study.toml", "stmary.csv", "--key", "stmary.key", "--force")
    back = run("join", "store", "stmary.fgm")
    assert back.returncode in (0, 2)  # within one second of its replacement the signature is not later yet
    assert "mistake" in fedgram("status", "store")
    fedgram("verify", "store")


def test_what_cannot_be_amended(consortium):
    with pytest.raises(InvalidParameter, match="nothing to amend"):
        fedgram("amend", "store")
    with pytest.raises(InvalidData, match="is not a rotation"):
        fedgram("amend", "store", "--rotate", "north.key")
    with pytest.raises(InvalidData, match="listed in study 'walks' already: for a new key give --rotate"):
        fedgram("amend", "store", "--add", "north.pub")
    fedgram("keys", "new", LATE)
    told_all = told("amend", "store", "--add", f"{LATE}.pub")
    assert [each["party"] for each in told_all["amendments"]] == [LATE]
    assert told_all["genesis"] == Study.read("study.toml").agreement
    with pytest.raises(InvalidData, match="afterwards leave the file as it is: fedgram amend STORE --add"):
        fedgram("study", "keys", "study.toml", f"{LATE}.pub")
    shown = json.loads(fedgram("study", "show", "study.toml", "--json"))
    assert {"fingerprint", "agreement"} <= shown.keys()

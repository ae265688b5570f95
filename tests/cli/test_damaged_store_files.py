"""Damaged stores and false files end in one line, never in a traceback."""

import sqlite3

import pytest
from typer.testing import CliRunner

from fedgram.cli import app
from fedgram.core.errors import FedgramError
from fedgram.exchange.format import fgm
from fedgram.exchange.store.study_store import Store
from support.stores import KEYS, STUDY, answered, store_of, summary

NAMES = ("north", "south", "east")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with a store after a removal and a publication, and change into it."""
    monkeypatch.chdir(tmp_path)
    with store_of(tmp_path / "store", *NAMES, "west") as store:
        (tmp_path / "certificate.fgm").write_bytes(store.certificate("west") if store.remove("west") else b"")
        (tmp_path / "global.fgm").write_bytes(store.publish("afl").data)
    return tmp_path


def ended(*options):
    """Return a command's exit code and output; a traceback fails."""
    done = CliRunner().invoke(app, list(map(str, options)))
    if isinstance(done.exception, FedgramError):  # printed in one line by the command line
        return 2, str(done.exception)
    if not isinstance(done.exception, SystemExit | None):
        raise done.exception
    return done.exit_code, " ".join(done.output.split())


def stated(store, **changes):
    """Return a receipt of the first contribution, signed by the coordinator, with false statements."""
    entry = store.log()[1]
    told = {name: entry.says[name] for name in ("what", "party", "digest", "samples", "time")}
    told |= {"number": entry.number, "head": entry.hash} | changes
    about = {"study": STUDY.fingerprint, "party": "north", "created": entry.says["time"]}
    return fgm.encode("receipt", told, key=store.key, **about)


@pytest.mark.parametrize(
    ("name", "value"), [("party", "south"), ("digest", "e" * 64), ("samples", 41), ("what", "replace")]
)
def test_a_false_receipt_is_told(folder, name, value):
    store = Store("store")
    (folder / "true.fgm").write_bytes(stated(store))
    assert ended("log", "store", "--expect", "true.fgm")[0] == 0
    (folder / "false.fgm").write_bytes(stated(store, **{name: value}))
    code, said = ended("log", "store", "--expect", "false.fgm")
    assert code == 1
    assert f"false.fgm says {name} {value}, and the ledger's entry 2 says" in said


def test_files_that_another_key_has_signed_are_told(folder):
    for name in ("certificate", "global"):
        assert ended("log", "store", "--expect", f"{name}.fgm")[0] == 0
        file = fgm.read(folder / f"{name}.fgm")
        about = {"study": STUDY.fingerprint, "party": file.header.party, "key": KEYS["north"]}
        (folder / "forged.fgm").write_bytes(fgm.encode(name, file.payload, **about))
        code, said = ended("log", "store", "--expect", "forged.fgm")
        assert code == 1
        assert "forged.fgm: expected the signature of this store's key" in said


def test_a_publication_that_the_ledger_lacks_is_told(folder):
    store, fit = Store("store"), fgm.read(folder / "global.fgm").payload
    fit.notes["ledger"]["version"] = 7
    (folder / "other.fgm").write_bytes(
        fgm.encode("global", fit, study=STUDY.fingerprint, party="coordinator", key=store.key)
    )
    code, said = ended("log", "store", "--expect", "other.fgm")
    assert code == 1
    assert "which the ledger does not have" in said


@pytest.mark.parametrize("kind", ["receipt", "certificate", "global"])
@pytest.mark.parametrize("payload", [None, 1, [1], {}, {"head": 5}], ids=str)
def test_files_of_odd_content_are_refused(folder, kind, payload):
    data = fgm.encode(kind, payload, study=STUDY.fingerprint, party="north", key=Store("store").key)
    (folder / "odd.fgm").write_bytes(data)
    for command in (("log", "store", "--expect", "odd.fgm"), ("verify", "store", "odd.fgm")):
        code, said = ended(*command)
        assert code in (1, 2)
        assert "odd.fgm" in said


@pytest.mark.parametrize("gone", ["head", "party", "before", "after", "remaining", "digest", "samples"])
def test_a_certificate_that_lacks_something_is_refused(folder, gone):
    told = {name: value for name, value in fgm.read(folder / "certificate.fgm").payload.items() if name != gone}
    assert ended("verify", "store", "certificate.fgm")[0] == 0
    about = {"study": STUDY.fingerprint, "party": "west", "key": Store("store").key}
    (folder / "less.fgm").write_bytes(fgm.encode("certificate", told, **about))
    code, said = ended("verify", "store", "less.fgm")
    assert code in (1, 2)
    assert "less.fgm" in said


DAMAGES = {
    "no JSON": "UPDATE ledger SET text = 'xx' WHERE number = 2",
    "the last is not JSON": "UPDATE ledger SET text = 'xx' WHERE number = 7",
    "empty": "DELETE FROM ledger",
    "no digest": """UPDATE ledger SET text = replace(text, '"digest"', '"dig"') WHERE number = 3""",
    "no version": """UPDATE ledger SET text = replace(text, '"version"', '"v"') WHERE number = 7""",
    "no party": """UPDATE ledger SET text = replace(text, '"party"', '"p"') WHERE number = 6""",
    "no key": """UPDATE ledger SET text = replace(text, '"key"', '"k"') WHERE number = 1""",
    "a note of numbers": """UPDATE ledger SET text = '{"note":5}' WHERE number = 2""",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_ledgers_are_told_in_one_line(folder, damage):
    with sqlite3.connect(folder / "store" / "index.sqlite") as database:
        database.execute("DROP TRIGGER ledger_keeps_entries")
        database.execute("DROP TRIGGER ledger_keeps_texts")
        database.execute(DAMAGES[damage])
    database.close()
    (folder / "more.fgm").write_bytes(summary("west", seed=1))
    wrong = "empty" if damage == "empty" else "was changed"
    for command, codes in {
        ("log", "store"): (1, 2),
        ("status", "store"): (1, 2),
        ("status", "store", "--html", "page.html"): (1, 2),
        ("verify", "store"): (1, 2),
        ("verify", "store", "certificate.fgm"): (1, 2),
        ("publish", "store", "--out", "g.fgm"): (2,),
        ("publish", "store", "--method", "fedlogit", "--out", "g.fgm"): (2,),
        ("remove", "store", "south", "--out", "c.fgm"): (2,),
        ("combine", "store", "--name", "region", "--out", "c.fgm"): (2,),
        ("join", "store", "more.fgm"): (2,),
    }.items():
        code, said = ended(*command)
        assert code == (2 if damage == "empty" else codes[0]), (command, said)
        assert wrong in said or command[0] in ("verify", "status"), (command, said)
    assert not (folder / "c.fgm").exists()
    assert not (folder / "g.fgm").exists()


def test_rounds_are_begun_anew_only_when_told_so(folder):
    options = ("publish", "store", "--method", "fedlogit", "--out", "round.fgm")
    assert ended(*options, "--set", "rounds=2")[0] == 0
    request = (folder / "round.fgm").read_bytes()
    (folder / "north.fgm").write_bytes(answered("north", request))
    assert ended("join", "store", "north.fgm")[0] == 0
    code, said = ended(*options)
    assert code == 2
    assert "--set rounds=2" in said
    assert "--restart" in said
    assert ended(*options, "--restart")[0] == 0
    assert Store("store").index.answers() == {}
    code, said = ended("publish", "store", "--method", "afl", "--restart")
    assert code == 2
    assert "leave it out" in said

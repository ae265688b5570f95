"""A ledger whose end was cut off, and an index that differs from the ledger, stop every command.

Known heads are in the signed total, in receipts, and in publications.
"""

import shutil
import sqlite3
from contextlib import closing

import pytest
from typer.testing import CliRunner

from fedgram.cli import app
from fedgram.core.errors import FedgramError
from fedgram.exchange.format import fgm
from fedgram.exchange.store.study_store import Store
from support.stores import store_of, summary

COMMANDS = {
    "log": ("log", "store"),
    "verify": ("verify", "store"),
    "verify certificate": ("verify", "store", "east.fgm"),
    "status": ("status", "store"),
    "publish": ("publish", "store", "--out", "other.fgm", "--no-sites"),
    "join": ("join", "store", "up.fgm"),
    "remove": ("remove", "store", "north", "--out", "north.fgm"),
    "remove again": ("remove", "store", "east", "--out", "again.fgm"),
    "combine": ("combine", "store", "--out", "region.fgm"),
}
CHECKS = ("log", "verify", "verify certificate", "status")  # which exit with 1, because the check fails


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Return a folder with a store after a publication and the removal of east, and its issued files."""
    folder = tmp_path_factory.mktemp("contradictions")
    with store_of(folder / "store", "north", "south", "east", "west") as store:
        store.remove("east")
        (folder / "east.fgm").write_bytes(store.certificate("east"))
        store.join(summary("extra"))
        store.publish("afl")
    (folder / "up.fgm").write_bytes(summary("up"))
    return folder


@pytest.fixture
def folder(original, tmp_path, monkeypatch):
    """Return a copy of the folder, and change into it."""
    monkeypatch.chdir(shutil.copytree(original, tmp_path / "copy"))
    return tmp_path / "copy"


def edit(folder, *commands):
    with closing(sqlite3.connect(folder / "store" / "index.sqlite")) as database, database:
        for trigger in ("ledger_keeps_entries", "ledger_keeps_texts"):
            database.execute(f"DROP TRIGGER IF EXISTS {trigger}")
        for command in commands:
            database.execute(command)


def ended(*options):
    """Return a command's exit code and output; a traceback fails."""
    done = CliRunner().invoke(app, list(map(str, options)))
    if isinstance(done.exception, FedgramError):
        return 2, str(done.exception)
    if not isinstance(done.exception, SystemExit | None):
        raise done.exception
    return done.exit_code, " ".join(done.output.split())


def cut(folder, number):
    """Cut off all entries from this number on, with the rows and the time that would reveal it."""
    party = "DELETE FROM contributions WHERE party = 'extra'"
    edit(folder, f"DELETE FROM ledger WHERE number >= {number}", *([party] if number <= 7 else []))


EVIDENCE = {
    "total.bin": "total.bin was signed after entry 7",
    "receipts/extra-7.fgm": "receipts/extra-7.fgm was signed after entry 7",
    "published": "published/",
}


@pytest.mark.parametrize("kept", EVIDENCE)
def test_a_ledger_that_was_cut_off_stops_every_command(folder, kept):
    cut(folder, 7)
    for name in EVIDENCE:
        if name != kept:
            path = folder / "store" / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = {path: path.read_bytes() for path in (folder / "store" / "contributions").iterdir()}
    for name, command in COMMANDS.items():
        code, said = ended(*command)
        assert code == (1 if name in CHECKS else 2), said
        assert EVIDENCE[kept] in said
        assert "taken away" in said
    assert before == {path: path.read_bytes() for path in (folder / "store" / "contributions").iterdir()}


def test_a_publication_alone_that_was_cut_off_is_named(folder):
    with Store("store") as store:
        digest = store.log()[-1].says["digest"]
    edit(folder, "DELETE FROM ledger WHERE number = 8")
    code, said = ended("log", "store")
    assert code == 1
    assert f"{digest}.fgm was published, and the ledger does not have it" in said
    assert ended("publish", "store", "--out", "other.fgm")[0] == 2


def test_a_receipt_of_another_key_says_nothing(folder):
    stranger = store_of(folder / "other", "north", "south", "east")
    shutil.copy(stranger.path / "receipts" / "east-4.fgm", folder / "store" / "receipts" / "other-9.fgm")
    (folder / "store" / "receipts" / "torn-9.fgm").write_bytes(b"torn")
    assert ended("log", "store")[0] == 0


CONTRADICTIONS = {
    "DELETE FROM contributions WHERE party = 'south'": "is missing, which the ledger has as joined",
    "UPDATE contributions SET samples = 41 WHERE party = 'north'": "the index has samples 41",
    "UPDATE leaves SET party = 'nord' WHERE party = 'north'": "as the summary of another party",
    "UPDATE names SET signer = 'x' WHERE party = 'north'": "the index has key",
    "DELETE FROM gone": "the index does not know it any more",
}


@pytest.mark.parametrize("edited", CONTRADICTIONS)
def test_an_index_that_contradicts_the_ledger_stops_every_command(folder, edited):
    edit(folder, edited)
    before = Store("store").index.entries()
    for name, command in COMMANDS.items():
        code, said = ended(*command)
        assert code == (1 if name in CHECKS else 2), said
        assert CONTRADICTIONS[edited] in said
        assert code == 1 or "restore the store from a copy" in said
    assert Store("store").index.entries() == before


def test_no_command_is_stopped_where_all_agrees(folder):
    for command in COMMANDS.values():
        assert ended(*command)[0] == 0, command


def test_a_killed_publication_is_no_contradiction(folder):
    """The file is staged until the ledger has it: a killed change does not count as cut off."""
    with Store("store") as store:
        staged = fgm.encode("global", store.publish("afl").entry.says, study=store.terms.fingerprint, party="x")
        digest = fgm.read(staged, checked=True).digest
        store.published.stage(digest, staged)  # killed before the ledger had it
        known = store.log()[-1].says["digest"]
        (store.published.path(known)).rename(store.published.staged(known))  # killed after that
    assert ended("log", "store")[0] == 0
    assert ended("publish", "store", "--method", "afl", "--out", "again.fgm")[0] == 0
    assert fgm.read("again.fgm").digest == known
    (folder / "store" / "checked.json").unlink()  # as a kill leaves it
    assert ended("join", "store", "up.fgm")[0] == 0
    with Store("store") as store:
        assert store.published.digests() == [known]
        assert not store.published.staged(digest).exists()

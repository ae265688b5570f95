"""`fedgram verify` with several statements, and without the store; `fedgram log --accept-restored`."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from fedgram.cli import app
from fedgram.core.errors import FedgramError, InvalidParameter
from fedgram.exchange.store import amending
from fedgram.exchange.store.study_store import Store
from support.command import run
from support.stores import KEYS, keyed, store_of, summary


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with a store that south has left, its certificate, and three publications."""
    monkeypatch.chdir(tmp_path)
    with store_of(tmp_path / "store", "north", "south", "east", "centre") as store:
        store.publish("afl", out="first.fgm")
        shutil.copytree("store", "backup")
        store.remove("south", out=".")
        store.publish("afl", out="second.fgm")
        store.join(summary("west"))
        store.publish("afl", out="third.fgm")
    return tmp_path


def fedgram(*options, code=0):
    done = CliRunner().invoke(app, list(map(str, options)))
    if isinstance(done.exception, FedgramError):
        raise done.exception
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


def test_a_certificate_without_the_store(folder):
    shutil.rmtree("store")
    said = fedgram("verify", "south-removed.fgm", "--published", "second.fgm")
    for text in ("40 samples", "exactly the total after the removal", "This does not prove: - That the coordinator"):
        assert text in said
    assert "was made before the removal" in fedgram("verify", "south-removed.fgm", "--published", "first.fgm", code=1)
    told = json.loads(fedgram("verify", "south-removed.fgm", "--published", "third.fgm", "--json"))
    assert (len(told["right"]), told["wrong"], len(told["not_proved"])) == (4, [], 2)
    told = json.loads(fedgram("verify", "south-removed.fgm", "--published", "first.fgm", "--json", code=1))
    assert (told["right"], len(told["wrong"])) == ([], 1)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (("south-removed.fgm",), "expected a store's folder first"),
        (("store", "--study", "study.toml"), "expected a store's folder first"),
        (("south-removed.fgm", "third.fgm", "--published", "third.fgm"), "without a store: leave out third.fgm"),
        (("third.fgm", "--published", "third.fgm"), "is a global file, not a certificate"),
        (("south-removed.fgm", "--published", "south-removed.fgm"), "is a certificate file, not a publication"),
    ],
)
def test_wrong_usage_is_told(folder, options, wanted):
    with pytest.raises(InvalidParameter, match=wanted):
        fedgram("verify", *options)


def test_several_statements_of_a_store(folder):
    receipt = next((folder / "store" / "receipts").glob("west*"))
    said = fedgram("verify", "store", "south-removed.fgm", receipt, "third.fgm")
    assert "add up to the total after" in said
    assert "west-9.fgm: entry 9 of the ledger has the head that it names" in said
    assert "third.fgm: entry 9" in said


def test_inspect_shows_sentences(folder):
    said = fedgram("inspect", "south-removed.fgm", "--html", "page.html")
    assert said.startswith("Certificate of removal for south The contribution of south (40 samples) was removed")
    assert "says " not in said
    assert "Output check" not in (folder / "page.html").read_text()
    assert json.loads(fedgram("inspect", "south-removed.fgm", "--json"))["says"]["samples"] == 40


def test_a_restored_backup_is_told_and_accepted(folder):
    shutil.rmtree("store")
    shutil.copytree("backup", "store")
    for command in (("status",), ("log",), ("verify",)):
        said = fedgram(*command, "store", code=1)
        assert "restored from an older backup: the ledger ends with entry 6, and entries 7 to 10 are missing" in said
    for command in (("publish", "store"), ("remove", "store", "north"), ("join", "store", "third.fgm")):
        done = run(*command)
        assert done.returncode == 2
        assert "was restored from an older backup" in done.stderr
        assert "--accept-restored" in done.stderr
    said = fedgram("log", "store", "--accept-restored")
    assert "accepted as entry 7: repeat the changes up to entry 10, removals first" in said
    assert "was lost when the store was restored" in fedgram("verify", "store", "south-removed.fgm", code=1)
    fedgram("remove", "store", "south", "--out", "again.fgm")
    assert "version 4" in fedgram("publish", "store", "--out", "fourth.fgm", "--no-sites")
    assert "the ledger is whole" in fedgram("log", "store")


def test_a_newer_receipt_is_enough(folder):
    shutil.copy(next((folder / "store" / "receipts").glob("west*")), "receipt.fgm")
    (folder / "store.head").unlink()
    shutil.rmtree("store")
    shutil.copytree("backup", "store")
    fedgram("verify", "store")
    assert "entries 7 to 9 are missing" in fedgram("verify", "store", "receipt.fgm", code=1)
    assert "entries 7 to 9 are missing" in fedgram("status", "store", code=1)


def test_a_certificate_goes_into_a_folder_that_is_named(folder):
    (folder / "out").mkdir()
    (folder / "out" / "other").touch()
    assert "wrote out/north-removed.fgm" in fedgram("remove", "store", "north", "--out", "out")
    assert "wrote out/again.fgm" in fedgram("remove", "store", "north", "--out", "out/again.fgm")
    with pytest.raises(FedgramError, match="nowhere is not a folder"):
        fedgram("remove", "store", "east", "--out", "nowhere/east.fgm")
    with pytest.raises(FedgramError, match="nowhere is not a folder"):
        fedgram("publish", "store", "--out", "nowhere/model.fgm")
    assert "published version 4" not in fedgram("status", "store")


def test_the_file_beside_the_store_is_not_overwritten(folder):
    with pytest.raises(InvalidParameter, match="would be overwritten"):
        fedgram("publish", "store", "--out", "store.head", "--force")


def test_a_receipt_shows_the_amendments_before_it(folder):
    [old, new] = KEYS["east"], KEYS["west"]
    with Store("keyed", study=keyed(("north", "south"))) as store:
        store.join(summary("north", study=keyed(("north", "south")), key=KEYS["north"]))
        amending.add(store, "east", old.public)
        amending.rotate(store, "east", new.public)
        [joined] = store.join(summary("south", study=keyed(("north", "south")), key=KEYS["south"]))
        store.remove("north", out=".")
    said = fedgram("inspect", joined.receipt)
    assert said.count("amendment before it") == 2
    assert fedgram("verify", "keyed", joined.receipt, "north-removed.fgm").count("the ledger is whole") == 2
    assert (folder / "keyed.head").exists()

"""An index that was edited by hand is detected by its ledger and its files."""

import sqlite3
from contextlib import closing

import pytest

from fedgram.core.errors import Mismatch
from fedgram.exchange.format import fgm
from fedgram.exchange.store.study_store import Store
from fedgram.exchange.store.verification import check_total, problems, verify
from support.stores import EARLIER, KEYS, LATER, STUDY, Clock, store_of, summary

KEY = KEYS["west"].public.text
EDITS = {
    "UPDATE contributions SET samples = 41 WHERE party = 'north'": "the index has samples 41, and it is 40",
    "UPDATE contributions SET party = 'nord' WHERE party = 'north'": "the index has party 'nord', and it is 'north'",
    f"UPDATE contributions SET digest = '{'e' * 64}' WHERE party = 'north'": "is in the index, and the ledger does not",
    f"UPDATE contributions SET signer = '{KEY}' WHERE party = 'north'": f"the index has signer '{KEY}', and it is",
    "UPDATE contributions SET joined = '2020-01-01T00:00:00Z'": "the index has joined '2020-01-01T00:00:00Z'",
    f"UPDATE names SET signer = '{KEY}' WHERE party = 'north'": f"'north': the index has key '{KEY}', and it is",
    "DELETE FROM names WHERE party = 'north'": "'north': the index has key None",
    "UPDATE leaves SET samples = 7 WHERE party = 'north'": "the summaries in it do not have its samples",
    "UPDATE leaves SET party = 'nord' WHERE party = 'north'": "as the summary of another party",
    "DELETE FROM gone": "of 'east': it left with entry 5, and the index does not know it any more",
    "UPDATE gone SET time = '2020-01-01T00:00:00Z'": "the index has time '2020-01-01T00:00:00Z'",
    "UPDATE gone SET contribution = 'other'": "has left by the index, and the ledger does not say so",
    "UPDATE gone SET party = 'zz'": "it has left, and the index has party 'zz', and it is 'east'",
    f"UPDATE gone SET digest = '{'e' * 64}', content = ''": "of 'east': it left with entry 5, and the index does not",
    "DELETE FROM settings WHERE name = 'latest'": "the index has nothing as the latest time",
}
IN_FILES_ONLY = {
    "UPDATE contributions SET kind = 'combined' WHERE party = 'north'": "kind 'combined', and it is 'summary' in its",
    "UPDATE contributions SET counts = '[20, 20]' WHERE party = 'north'": r"counts \(20, 20\), and it is",
    "UPDATE contributions SET size = 1 WHERE party = 'north'": "size 1, and it is",
    "UPDATE contributions SET created = '2020-01-01T00:00:00Z' WHERE party = 'north'": "created '2020-01-01T00:00:00Z'",
    # Which party's is looked at first depends on the digests.
    "DELETE FROM marks": "has lost the marks of '(north|south)'",
    "UPDATE settings SET value = x'00' WHERE name = 'secret'": "has lost the marks of '(north|south)'",
    f"UPDATE leaves SET content = '{'e' * 64}' WHERE party = 'north'": "lists other summaries in it than its file",
}


@pytest.fixture
def folder(tmp_path):
    """Return the folder of a store of north and south after east's removal."""
    with Store(tmp_path, study=STUDY) as store:
        store.join(*(summary(name, key=KEYS[name]) for name in ("north", "south", "east")))
        store.remove("east")
        assert problems(store) == []
    return tmp_path


def edit(folder, command):
    with closing(sqlite3.connect(folder / "index.sqlite")) as database, database:
        assert database.execute(command).rowcount


@pytest.mark.parametrize("command", EDITS, ids=lambda command: command.replace(KEY, "another key"))
def test_what_the_ledger_says_otherwise_is_named(folder, command):
    certificate = fgm.read(Store(folder).certificate("east"))
    edit(folder, command)
    store = Store(folder)
    assert any(EDITS[command] in text for text in problems(store)), problems(store)
    with pytest.raises(Mismatch, match="the store is not as its ledger says"):
        verify(store, certificate)


@pytest.mark.parametrize("command", IN_FILES_ONLY, ids=lambda command: command.replace(KEY, "another key"))
def test_what_a_file_says_otherwise_is_named(folder, command):
    certificate = fgm.read(Store(folder).certificate("east"))
    edit(folder, command)
    store = Store(folder)
    with pytest.raises(Mismatch, match=IN_FILES_ONLY[command]):
        check_total(store)
    with pytest.raises(Mismatch, match=IN_FILES_ONLY[command]):
        verify(store, certificate)


def test_a_certificate_stays_true_when_its_party_comes_back(tmp_path):
    clock = Clock(EARLIER)
    store = store_of(tmp_path, "north", "south", clock=clock, created="2025-12-31T00:00:00Z")
    store.remove("south")
    certificate = fgm.read(store.certificate("south"))
    clock.time = LATER
    [back] = store.join(summary("south", created=LATER))
    assert back.outcome == "joined"
    *_, last = verify(store, certificate)
    assert last == f"the removed contribution is back since {LATER}: entry 5, signed anew by 'south'"
    lying = certificate.payload | {"remaining": [*certificate.payload["remaining"], back.digest]}
    about = {"study": STUDY.fingerprint, "party": "south", "created": certificate.header.created}
    forged = fgm.encode("certificate", lying, key=store.key, **about)
    with pytest.raises(Mismatch, match="says remaining .* and the ledger's entry 4 says"):
        verify(store, fgm.read(forged))

"""A coordinator's statements can be recomputed, and tampered files are named."""

import shutil
import sqlite3

import pytest

from fedgram.core.errors import Mismatch, StoreError, UnknownName
from fedgram.exchange.format import fgm
from fedgram.exchange.store.combined import sum_of
from fedgram.exchange.store.study_store import Store
from fedgram.exchange.store.verification import check_total, problems, verify
from fedgram.secure.signing_keys import PrivateKey
from support.stores import STUDY, store_of, summary

NAMES = ("north", "south", "east", "west")


def test_certificates_are_recomputed_from_the_files(tmp_path):
    store = store_of(tmp_path / "store", *NAMES)
    store.remove("south")
    first = fgm.read(store.certificate("south"))
    assert len(verify(store, first)) == 4
    assert "has stated, with its signature" in first.payload["proves"]
    assert first.payload["does_not_prove"].startswith("That all copies were deleted")
    # A removed party can check that subtracting its file leads from one total to the other.
    assert (store.total() + sum_of(fgm.read(summary("south")))).digest == first.payload["before"]
    store.join(summary("south", seed=4))
    assert len(verify(store, first)) == 4  # later parties do not matter
    store.remove("east")
    with pytest.raises(Exception, match="cannot be recomputed any more"):
        verify(store, first)
    forged = fgm.encode("certificate", first.payload, study=STUDY.fingerprint, party="south", key=PrivateKey.new())
    with pytest.raises(Exception, match="expected the signature of this store's key"):
        verify(store, fgm.read(forged))
    lying = first.payload | {"samples": 1}
    about = {"study": STUDY.fingerprint, "party": "south", "created": first.header.created}
    forged = fgm.encode("certificate", lying, key=store.key, **about)
    with pytest.raises(Mismatch, match="says samples 1"):
        verify(store, fgm.read(forged))
    with pytest.raises(UnknownName, match="removed"):
        store.certificate("north")


def test_a_certificate_is_wrong_if_a_file_was_exchanged(tmp_path):
    store = store_of(tmp_path / "store", "north", "south", "east")
    store.remove("south")
    certificate = fgm.read(store.certificate("south"))
    [kept] = [each for each in store.contributions() if each.party == "north"]
    store.objects.path(kept.digest).write_bytes(summary("north", seed=8))
    with pytest.raises(StoreError, match="content of another file"):
        verify(store, certificate)
    store.objects.path(kept.digest).unlink()
    with pytest.raises(StoreError, match="lost or damaged"):
        check_total(store)


def test_an_older_or_damaged_total_is_made_good(tmp_path):
    store = store_of(tmp_path / "store", "north", "south")
    older = (tmp_path / "store" / "total.bin").read_bytes()
    store.join(summary("east"))
    store.remove("north")
    wanted = store.total()
    kept = store_of(tmp_path / "other", "north").objects
    # As after a crash: the file that left is there until the total without it is saved.
    shutil.copy(kept.path(fgm.read(summary("north")).digest), store.objects.folder)
    for content in (older, older[:100], older[:-1] + b"x", b"", wanted.digest.encode()):
        (tmp_path / "store" / "total.bin").write_bytes(content)
        assert Store(store.path).total() == wanted
    (tmp_path / "store" / "total.bin").unlink()
    assert Store(store.path).total() == wanted
    store.join(summary("west"))
    assert len(list(store.objects.folder.iterdir())) == 3


def test_a_ledger_that_was_changed_is_named(tmp_path):
    store = store_of(tmp_path / "store", "north", "south", "east")
    with sqlite3.connect(tmp_path / "store" / "index.sqlite") as database:
        with pytest.raises(sqlite3.DatabaseError, match="only grows"):
            database.execute("DELETE FROM ledger WHERE number = 2")
        database.execute("DROP TRIGGER ledger_keeps_entries")
        database.execute("DELETE FROM ledger WHERE number = 2")
    database.close()
    assert problems(Store(store.path)) == ["entry 2 is missing"]
    other = store_of(tmp_path / "other", "north", "south")
    with sqlite3.connect(tmp_path / "other" / "index.sqlite") as database:
        database.execute("DELETE FROM contributions WHERE party = 'north'")
    database.close()
    assert "missing, which the ledger has as joined" in problems(Store(other.path))[0]


def test_receipts_carry_the_ledgers_head(tmp_path):
    store = store_of(tmp_path, "north", "south")
    for number, name in enumerate(("north", "south"), start=2):
        receipt = fgm.read(tmp_path / "receipts" / f"{name}-{number}.fgm")
        receipt.verify(store.key.public)
        assert receipt.payload["head"] == store.log()[number - 1].hash
        assert receipt.payload["digest"] == store.contribution(name).digest

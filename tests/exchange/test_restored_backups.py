"""A store that was restored from an older backup is noticed, and a copied or moved store is not taken for one."""

import json
import os
import shutil
import stat

import pytest

from fedgram.core.errors import FedgramError, InvalidData, Mismatch, StoreError
from fedgram.exchange.format import fgm
from fedgram.exchange.rounds.round_server import advance
from fedgram.exchange.store.seen_head import Seen, load, path_of, save
from fedgram.exchange.store.study_store import Store
from fedgram.exchange.store.verification import check_statement, problems
from fedgram.secure.signing_keys import PrivateKey
from support.stores import STUDY, store_of, summary

NAMES = ("north", "south", "east")
CHANGES = {
    "join": lambda store: store.join(summary("west")),
    "remove": lambda store: store.remove("north"),
    "combine": lambda store: store.combine("region"),
    "publish": lambda store: store.publish("afl"),
    "round": lambda store: advance(store, "fedlogit"),
}


@pytest.fixture
def backup(tmp_path):
    """Return a store whose backup was made before south left and a second model was published."""
    with store_of(tmp_path / "store", *NAMES) as store:
        store.publish("afl")
    shutil.copytree(tmp_path / "store", tmp_path / "backup")
    with Store(tmp_path / "store") as store:
        store.remove("south", out=tmp_path)
        store.publish("afl", out=tmp_path)
    return tmp_path


def restore(folder):
    shutil.rmtree(folder / "store")
    shutil.copytree(folder / "backup", folder / "store")
    return Store(folder / "store")


@pytest.mark.parametrize("change", CHANGES)
def test_an_older_backup_changes_nothing_until_it_is_accepted(backup, change):
    with restore(backup) as store:
        head = store.log()[-1]
        wanted = "was restored from an older backup: the ledger ends with entry 5, and entries 6 to 7 are missing"
        with pytest.raises(StoreError, match=f"{wanted}.*--accept-restored.*removals first"):
            CHANGES[change](store)
        assert store.log()[-1] == head
        assert [wanted in text for text in problems(store)] == [True]
        entry = store.accept_restored()
        assert (entry.says["what"], entry.says["seen"], entry.says["version"]) == ("restored", 7, 2)
        assert problems(store) == []
        CHANGES[change](store)
        assert problems(store) == []


def test_version_numbers_are_not_used_twice(backup):
    with restore(backup) as store:
        store.accept_restored()
        assert store.publish("afl").version == 3
        store.remove("south")
        assert store.publish("afl").version == 4


def test_the_file_is_private_beside_the_folder_and_follows_every_change(tmp_path):
    with store_of(tmp_path / "store", *NAMES) as store:
        path = path_of(store.path)
        assert path == tmp_path / "store.head"
        if os.name == "posix":
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for change in CHANGES.values():
            change(store)
            assert load(store).head == store.log()[-1].hash
        if os.name == "posix":
            (tmp_path / "link").symlink_to("store")
            assert path_of(tmp_path / "link") == path
        assert path_of(tmp_path / "store" / ".." / "store") == path


def test_copied_and_moved_stores_are_not_taken_for_older_ones(backup):
    shutil.copytree(backup / "store", backup / "elsewhere" / "store")
    for folder in (backup / "elsewhere" / "store", backup / "moved"):
        if folder.name == "moved":
            shutil.move(backup / "store", folder)
        with Store(folder) as store:
            assert problems(store) == []
            assert store.publish("afl").version == 2
            store.join(summary("west"))
            assert problems(store) == []
    with store_of(backup / "store", "north", "east") as fresh:  # another ledger in the old place, with its own key
        assert problems(fresh) == []
        assert fresh.publish("afl").version == 1
    shutil.copytree(backup / "elsewhere", backup / "third")  # with the file beside it
    with Store(backup / "third" / "store") as store:
        assert problems(store) == []
        store.remove("west")


def test_a_store_that_went_on_elsewhere_is_told(backup):
    """Both copies have as many entries, and others."""
    with Store(backup / "backup") as other:
        other.join(summary("west"))
        other.publish("afl")
    with restore(backup) as store:
        with pytest.raises(StoreError, match="restored from an older backup: entry 7 is another one than the ledger"):
            store.join(summary("west"))
        assert store.accept_restored().number == 8
        assert problems(store) == []


@pytest.mark.parametrize("name", ["receipt", "south-removed.fgm", "global.fgm"])
def test_a_newer_statement_is_noticed_and_remembered_without_the_file_beside(backup, name):
    with Store(backup / "store") as store:
        [joined] = store.join(summary("west"))
        file = fgm.read(joined.receipt if name == "receipt" else backup / name)
    missing = {"receipt": "entries 6 to 8 are", "south-removed.fgm": "entry 6 is", "global.fgm": "entries 6 to 7 are"}
    path_of(backup / "store").unlink()
    with restore(backup) as store:
        assert problems(store) == []
        with pytest.raises(Mismatch, match=f"restored from an older backup: .*{missing[name]} missing"):
            check_statement(store, file)
        with pytest.raises(StoreError, match=missing[name]):
            store.publish("afl")
        store.accept_restored()
        with pytest.raises(Mismatch, match="which was lost when the store was restored from an older backup, as the"):
            check_statement(store, file)
        store.remove("south")
        assert problems(store) == []


def test_a_statement_of_another_ledger_or_key_is_not_remembered(backup):
    with store_of(backup / "other", *NAMES) as other:
        for name in NAMES[:2]:
            other.remove(name)
        forged = fgm.read(other.certificate("south"))
    with restore(backup) as store:
        path_of(store.path).unlink()
        with pytest.raises(FedgramError, match="expected the signature"):
            check_statement(store, forged)
        assert load(store) is None
        assert problems(store) == []


@pytest.mark.parametrize("damage", ["cut", "key", "number", "first", "empty", "list", "folder"])
def test_a_file_that_the_store_has_not_signed_says_nothing(backup, damage):
    store = restore(backup)
    path, seen = path_of(store.path), load(store)
    told = json.loads(path.read_text())
    if damage == "key":
        signature = PrivateKey.new().sign("head", seen.signed).hex()
        path.write_text(json.dumps(told | {"signature": signature}))
    elif damage == "first":
        save(store, Seen("0" * 64, seen.number, seen.head, seen.version))
    elif damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        texts = {"cut": path.read_text()[:40], "number": json.dumps(told | {"number": 3}), "empty": "", "list": "[1]"}
        path.write_text(texts[damage])
    assert load(store) is None
    assert problems(store) == []
    assert store.publish("afl").version == 1


def test_a_copy_without_the_key_reads_and_compares(backup):
    certificate = fgm.read(backup / "south-removed.fgm")
    for name in ("store", "backup"):
        (backup / name / "coordinator.key").unlink()
    with Store(backup / "store") as copy:
        assert problems(copy) == []
        check_statement(copy, certificate)
    with Store(backup / "backup") as copy:
        assert problems(copy) == []
        with pytest.raises(Mismatch, match="entry 6 is missing"):
            check_statement(copy, certificate)
    assert not (backup / "backup.head").exists()


def test_nothing_is_accepted_without_need(tmp_path):
    with store_of(tmp_path / "store", *NAMES) as store:
        with pytest.raises(InvalidData, match="nothing is to be accepted"):
            store.accept_restored()
        assert len(store.log()) == 4


def test_a_folder_that_cannot_be_written_to_costs_only_the_comparison(tmp_path, monkeypatch):
    def refuse(path, *_, **__):
        raise PermissionError(13, "no", str(path))

    monkeypatch.setattr("fedgram.exchange.store.seen_head.replace_file", refuse)
    with store_of(tmp_path / "store", *NAMES, study=STUDY) as store:
        assert store.publish("afl").version == 1
        assert not path_of(store.path).exists()

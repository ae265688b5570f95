"""A change that is killed before any of its writes: afterwards the ledger and the files outside the store agree."""

import os
import shutil

import pytest

from fedgram.core.errors import Doubtful, FedgramError, InvalidData, InvalidParameter, StoreError
from fedgram.exchange.format import fgm
from fedgram.exchange.rounds.round_server import advance
from fedgram.exchange.store import delivery, ledger
from fedgram.exchange.store.index import Index
from fedgram.exchange.store.study_store import Store
from fedgram.exchange.store.verification import check_statement, check_total, problems
from support import campaign
from support.kills import killed_before
from support.stores import STUDY, store_of, summary

NAMES = ("north", "south", "east")
EVERY = 7 if campaign.QUICK else 1 if campaign.FULL else 2  # of the writes
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def published(store):
    return [entry for entry in store.log() if entry.says["what"] == ledger.PUBLISH]


def publish(folder, **options):
    with Store(folder / "store") as store:
        store.publish("afl", out=folder / "out" / "global.fgm", **options)


def remove(folder):
    with Store(folder / "store") as store:
        store.remove("south", out=folder / "out")


def ask(folder):
    with Store(folder / "store") as store:
        advance(store, "fedlogit", {"rounds": 2}, out=folder / "out")


def join(folder):
    with Store(folder / "store") as store:
        store.join(summary("west", seed=1), summary("north", seed=2), b"junk", replace=True)


# What each change says in the ledger, and the name of its file.
CHANGES = {
    "publish": (publish, ledger.PUBLISH, "global.fgm"),
    "remove": (remove, ledger.REMOVE, "south-removed.fgm"),
    "ask": (ask, ledger.ROUND, "round-1.fgm"),
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Return a folder with a store of three parties."""
    folder = tmp_path_factory.mktemp("begun")
    store_of(folder / "store", *NAMES).index.close()
    return folder


@pytest.fixture
def fresh(begun, tmp_path):
    """Return a function that makes `folder` a copy of the begun one, with an empty folder `out`."""

    def copied():
        folder = tmp_path / "copy"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(begun, folder)
        (folder / "out").mkdir()
        return folder

    return copied


def every_write(fresh, change, prepare=lambda folder: None):
    """Kill a change before every of its writes, and yield the folder each time."""
    number, killed = 0, True
    while killed:
        folder = fresh()
        prepare(folder)
        killed = killed_before(number, lambda: change(folder))  # noqa: B023
        yield folder
        number += EVERY
    assert number > 3 * EVERY


@needs_fork
@pytest.mark.parametrize("name", CHANGES)
def test_a_file_is_there_if_and_only_if_the_ledger_has_its_entry(fresh, name):
    change, what, target = CHANGES[name]
    outcomes = set()
    for folder in every_write(fresh, change):
        with Store(folder / "store") as store:
            store.finish_interrupted()
            assert problems(store) == []
            check_total(store)
            entries = [entry for entry in store.log() if entry.says["what"] == what]
            found = sorted(path.name for path in (folder / "out").iterdir())
            assert found == [target] * len(entries)  # nothing without an entry, and no temporary file
            outcomes.add(len(entries))
            if entries and what != ledger.ROUND:
                check_statement(store, fgm.read(folder / "out" / target))
            if not entries or what != ledger.REMOVE:
                change(folder)  # once more: nothing doubled
            assert len([entry for entry in store.log() if entry.says["what"] == what]) == 1
            assert sorted(path.name for path in (folder / "out").iterdir()) == [target]
    assert outcomes == {0, 1}


@needs_fork
def test_a_removal_leaves_no_temporary_file_of_a_killed_change(fresh):
    def leave(folder):
        with Store(folder / "store") as store:
            store.remove("north")

    for folder in every_write(fresh, join):
        leave(folder)
        assert not [path for name in (".total*", ".checked*", ".store*") for path in folder.rglob(name)]


@needs_fork
def test_a_forced_publication_takes_the_place_of_an_earlier_one_with_its_entry(fresh):
    def earlier(folder):
        publish(folder)
        with Store(folder / "store") as store:
            store.join(summary("west"))

    for folder in every_write(fresh, lambda folder: publish(folder, force=True), earlier):
        with Store(folder / "store") as store:
            store.finish_interrupted()
            assert fgm.read(folder / "out" / "global.fgm").digest == published(store)[-1].says["digest"]
            assert len(list((folder / "out").iterdir())) == 1


@needs_fork
def test_every_entry_of_a_joined_file_has_its_receipt(fresh):
    outcomes = set()
    for folder in every_write(fresh, join):
        with Store(folder / "store") as store:
            store.finish_interrupted()
            assert problems(store) == []
            check_total(store)
            joined = [entry for entry in store.log() if entry.says["what"] in (ledger.JOIN, ledger.REPLACE)]
            outcomes.add(len(joined))
            receipts = [fgm.read(path) for path in (folder / "store" / "receipts").iterdir()]
            assert sorted(file.payload["number"] for file in receipts) == [entry.number for entry in joined]
            for file in receipts:
                check_statement(store, file)
    assert outcomes == {3, 5}


@needs_fork
def test_recovery_may_be_killed_as_well(fresh):
    def interrupted(folder):
        number = 0
        while not list((folder / "out").glob(".*")):  # killed with a file on its way
            assert killed_before(number, lambda: publish(folder))
            number += 1
        shutil.rmtree(folder / "before", ignore_errors=True)

    def recovered(folder):
        with Store(folder / "store") as store:
            store.finish_interrupted()

    for folder in every_write(fresh, recovered, interrupted):
        recovered(folder)
        with Store(folder / "store") as store:
            assert len(published(store)) == len(list((folder / "out").iterdir()))
            assert problems(store) == []


@pytest.mark.parametrize("out", ["nowhere/global.fgm", "earlier.fgm", "store/index.sqlite/global.fgm"])
def test_what_cannot_be_written_is_not_published(fresh, out):
    folder = fresh()
    (folder / "earlier.fgm").write_text("mine")
    with Store(folder / "store") as store:
        head = store.log()[-1]
        for change in (
            lambda: store.publish("afl", out=folder / out),
            lambda: store.remove("south", out=folder / out),
            lambda: advance(store, "fedlogit", out=folder / out),
        ):
            with pytest.raises((InvalidData, InvalidParameter)):
                change()
        assert store.log()[-1] == head
        assert len(store.contributions()) == 3
        assert store.published.digests() == []
        assert (folder / "earlier.fgm").read_text() == "mine"


def test_a_disk_that_fails_while_the_file_is_written_leaves_no_entry(fresh, monkeypatch):
    folder = fresh()

    def fail(file, data):
        raise OSError(28, "No space left on device")

    with Store(folder / "store") as store:
        head = store.log()[-1]
        monkeypatch.setattr(delivery.objects, "write_whole", fail)
        with pytest.raises(FedgramError, match="No space left"):
            store.remove("south", out=folder / "out")
        monkeypatch.undo()
        assert store.log()[-1] == head
        assert list((folder / "out").iterdir()) == []
        check_total(store)


def test_a_name_that_is_taken_after_the_entry_is_told(fresh, monkeypatch):
    """The entry cannot be taken back, so the error says where the file is."""
    folder = fresh()
    target = folder / "out" / "global.fgm"
    with Store(folder / "store") as store:
        keep = store.published.keep
        monkeypatch.setattr(store.published, "keep", lambda digest: (keep(digest), target.write_text("mine")))
        with pytest.raises(StoreError, match="the ledger has the entry, .*holds something else.*another --out"):
            store.publish("afl", out=target)
        assert target.read_text() == "mine"
        assert [path.name for path in (folder / "out").iterdir()] == ["global.fgm"]
        monkeypatch.undo()
        again = store.publish("afl", out=folder / "out" / "other.fgm")
        assert (again.version, again.data) == (1, again.path.read_bytes())


@needs_fork
def test_a_copy_of_a_store_leaves_the_files_of_a_killed_change_alone(fresh):
    folder, number = fresh(), 0
    while not list((folder / "out").glob(".*")):
        assert killed_before(number, lambda: publish(folder))
        number += 1
    before = list((folder / "out").iterdir())
    shutil.copytree(folder / "store", folder / "copy")
    with Store(folder / "copy") as copy:
        copy.join(summary("west"))
        assert not delivery.is_under_way(copy)
    assert list((folder / "out").iterdir()) == before


def test_a_record_that_the_store_has_not_signed_touches_nothing(fresh):
    folder = fresh()
    victim = folder / "out" / "victim"
    victim.write_text("mine")
    with Store(folder / "store") as store:
        told = f'{{"store":"{folder / "store"}","target":"{victim}","made":"{victim}","force":true,"entered":false}}'
        for record in (f"{'00' * 64} {told}", told, "00", "\udcff"):
            with store.index.changing():
                store.index.set(delivery.DELIVERY, record.encode(errors="surrogateescape"))
            store.join(summary("west"))
            assert victim.read_text() == "mine"
            assert not delivery.is_under_way(store)


def test_a_folder_gets_the_usual_names(fresh):
    folder = fresh()
    with Store(folder / "store") as store:
        assert store.publish("afl", out=folder / "out").path == folder / "out" / "global.fgm"
        assert advance(store, "fedlogit", out=folder / "out").path.name == "round-1.fgm"
        store.remove("south", out=folder / "out")
    assert len(list((folder / "out").iterdir())) == 3


def test_without_a_key_no_file_joins(fresh):
    folder = fresh()
    (folder / "store" / "coordinator.key").unlink()
    with Store(folder / "store") as store:
        with pytest.raises(FedgramError, match="has lost its private key"):
            store.join(summary("west"))
        assert len(store.contributions()) == 3


def test_a_receipt_that_cannot_be_written_is_made_up_for(fresh, monkeypatch):
    folder = fresh()
    with Store(folder / "store", study=STUDY) as store, monkeypatch.context() as patch:
        patch.setattr("fedgram.exchange.store.study_store._receipt", lambda *_: (_ for _ in ()).throw(Doubtful("full")))
        with pytest.raises(Doubtful):
            store.join(summary("west"))
    with Store(folder / "store") as store:
        store.finish_interrupted()
        assert (folder / "store" / "receipts" / "west-5.fgm").exists()


def test_a_removal_whose_certificate_finds_no_place_has_the_right_total(fresh, monkeypatch):
    folder = fresh()
    target, recover = folder / "out" / "south.fgm", delivery.recover
    monkeypatch.setattr(delivery, "recover", lambda store: (target.write_text("mine"), recover(store))[1])
    with Store(folder / "store") as store, pytest.raises(StoreError, match="the ledger has the entry"):
        store.remove("south", out=target)
    monkeypatch.undo()
    with Store(folder / "store") as store:
        assert problems(store) == []
        check_total(store)
        assert store.total().n == 80
        assert fgm.read(store.certificate("south")).payload["after"] == store.total().digest


def test_ctrl_c_right_after_an_entry_keeps_the_total_right(fresh, monkeypatch):
    folder, execute = fresh(), Index._execute

    def interrupted(index, commands):
        execute(index, commands)
        if tuple(commands) == ("COMMIT",) and index.last().says["what"] == ledger.REMOVE:
            monkeypatch.undo()
            raise KeyboardInterrupt

    with Store(folder / "store") as store:
        monkeypatch.setattr(Index, "_execute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.remove("south")
    with Store(folder / "store") as store:
        assert store.total().n == 80
        check_total(store)
        assert store.publish("afl").entry.says["samples"] == 80

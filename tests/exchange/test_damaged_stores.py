"""Commands do no further damage to a damaged store or to a user's own folder."""

import sqlite3

import pytest

from fedgram.core.errors import StoreError
from fedgram.exchange.store.study_store import Store
from fedgram.exchange.store.verification import check_total
from support.stores import store_of, summary


def contents(folder):
    """Return all files below a folder, except its lock."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name not in (".lock", ".holder"))
    return {path.relative_to(folder): path.read_bytes() for path in found}


def lose_index(path):
    for part in path.glob("index.sqlite*"):
        part.unlink()


def test_a_store_that_lost_its_index_is_not_made_anew(tmp_path):
    with store_of(tmp_path, "north", "south"):
        pass
    lose_index(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(StoreError, match=r"has contributions and coordinator\.key but no index.*restore index\.sqlite"):
        Store(tmp_path).join(summary("east"))
    assert contents(tmp_path) == before


def test_an_index_that_was_emptied_costs_no_contribution(tmp_path):
    with store_of(tmp_path, "north", "south"):
        pass
    lose_index(tmp_path)
    before = contents(tmp_path)
    (tmp_path / "index.sqlite").touch()
    with pytest.raises(StoreError, match="has contributions but no index"):
        Store(tmp_path).join(summary("east"))
    assert before.items() <= contents(tmp_path).items()


@pytest.mark.parametrize("name", ["contributions/north.fgm", "coordinator.key"])
def test_a_folder_with_files_of_ones_own_is_not_made_a_store(tmp_path, name):
    own = tmp_path / name
    own.parent.mkdir(exist_ok=True)
    own.write_bytes(summary("north"))
    with pytest.raises(StoreError, match="use another folder"):
        Store(tmp_path).join(own)
    assert contents(tmp_path) == {own.relative_to(tmp_path): own.read_bytes()}


def test_only_files_of_the_store_are_swept(tmp_path):
    store = store_of(tmp_path, "north")
    folder = store.objects.folder
    (folder / "old").mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / f"{'0' * 64}.fgm").mkdir()
    (folder / f"{'1' * 64}.fgm").write_bytes(b"left by a crash")
    store.join(summary("south"))
    kept = {f"{each.digest}.fgm" for each in store.contributions()}
    assert {path.name for path in folder.iterdir()} == kept | {"old", "notes.txt", f"{'0' * 64}.fgm"}


def rewrite(path, *commands):
    """Change a store's index without the store."""
    with sqlite3.connect(path / "index.sqlite") as database:
        for trigger in ("ledger_keeps_entries", "ledger_keeps_texts"):
            database.execute(f"DROP TRIGGER {trigger}")
        for command in commands:
            database.execute(command)
    database.close()


CHANGES = {
    "join": lambda store: store.join(summary("west")),
    "remove": lambda store: store.remove("south"),
    "combine": lambda store: store.combine("region"),
    "publish": lambda store: store.publish("afl"),
    "total": lambda store: store.total(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_damaged_ledger_is_named_before_anything_is_counted(tmp_path, change):
    store_of(tmp_path, "north", "south", "east")
    rewrite(tmp_path, "UPDATE ledger SET text = 'xx' WHERE number = 2")
    store = Store(tmp_path)
    before = store.log()
    with pytest.raises(StoreError, match="entry 2 was changed.*restore the store from a copy"):
        CHANGES[change](store)
    assert store.log() == before
    assert len(store.contributions()) == 3


def test_an_older_total_that_was_put_back_is_not_needed(tmp_path):
    store = store_of(tmp_path, "north", "south")
    older = (tmp_path / "total.bin").read_bytes()
    store.remove("north")
    wanted = store.total()
    (tmp_path / "total.bin").write_bytes(older)
    again = Store(tmp_path)
    assert again.total() == wanted
    assert [each.outcome for each in again.join(summary("east"))] == ["joined"]
    check_total(again)

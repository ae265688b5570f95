"""An index with values of any kind in any column ends in one line, never in a traceback."""

import shutil
import sqlite3
from contextlib import closing

import pytest
from typer.testing import CliRunner

from fedgram.cli import app
from fedgram.core.errors import FedgramError
from fedgram.exchange.rounds.round_server import advance
from fedgram.exchange.store.index import statements
from support import campaign
from support.stores import answered, store_of, summary

VALUES = {
    "nothing": None,
    "a whole number": 5,
    "a negative number": -1,
    "the largest number": 2**63 - 1,
    "a fraction": 0.5,
    "text": "x",
    "JSON": '[1,"a",{}]',
    "nested JSON": "[" * 100_000,
    "bytes": b"x",
    "text that is not UTF-8": b"\xff\xfe",
}
COMMANDS = {
    "log": ("log", "store"),
    "status": ("status", "store"),
    "verify": ("verify", "store"),
    "join": ("join", "store", "west.fgm", "answer.fgm"),
    "fedlogit": ("publish", "store", "--method", "fedlogit", "--set", "rounds=2", "--out", "round.fgm"),
    "remove": ("remove", "store", "north", "--out", "north.fgm"),
    "combine": ("combine", "store", "--out", "region.fgm"),
}
QUICK = ("status", "fedlogit")  # each of their tables is read


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Return a folder with a store in the middle of a round, with something in each of its tables."""
    folder = tmp_path_factory.mktemp("rows")
    with store_of(folder / "store", "north", "south", "east") as store:
        store.remove("east")
        asked = advance(store, "fedlogit", {"rounds": 2}).data
        store.join(answered("north", asked))
    (folder / "answer.fgm").write_bytes(answered("south", asked))
    (folder / "west.fgm").write_bytes(summary("west"))
    return folder


def columns():
    """Return all columns of all tables of an index."""
    with closing(sqlite3.connect(":memory:")) as database:
        for statement in statements():
            database.execute(statement)
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return [(table, row[1]) for table in tables for row in database.execute(f"PRAGMA table_info({table})")]


def put(path, table, column, value, *, text=False):
    """Write a value into the first row of a table without constraints, as an edited file could have it."""
    with closing(sqlite3.connect(path / "index.sqlite")) as database, database:
        names = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        rows = database.execute(f"SELECT {', '.join(names)} FROM {table}").fetchall()
        assert rows, f"{table} is empty"
        database.execute(f"DROP TABLE {table}")
        database.execute(f"CREATE TABLE {table} ({', '.join(names)})")
        places = ", ".join("?" * len(names))
        database.executemany(f"INSERT INTO {table} VALUES ({places})", rows)
        given = "CAST(? AS TEXT)" if text else "?"
        database.execute(f"UPDATE {table} SET {column} = {given} WHERE rowid = 1", (value,))


def ended(command):
    """Return a command's exit code and output; a traceback fails."""
    done = CliRunner().invoke(app, list(command))
    if isinstance(done.exception, FedgramError):
        return 2, str(done.exception)
    if not isinstance(done.exception, SystemExit | None):
        raise done.exception
    return done.exit_code, done.output


@pytest.mark.parametrize(("table", "column"), columns())
def test_any_value_in_any_column_ends_in_one_line(original, tmp_path, monkeypatch, table, column):
    noticed = 0
    for kind, value in VALUES.items():
        folder = tmp_path / kind
        shutil.copytree(original, folder)
        monkeypatch.chdir(folder)
        put(folder / "store", table, column, value, text="not UTF-8" in kind)
        for name in COMMANDS if campaign.size(1) > 1 else QUICK:
            code, _ = ended(COMMANDS[name])
            assert code in (0, 1, 2), (kind, name)
            noticed += code != 0
    assert noticed

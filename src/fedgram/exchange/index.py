"""The index of a store: an SQLite database of who is in, what has left, which key a name has, and the ledger.

A change is one transaction, on the disk when it returns (`synchronous=FULL`): a process that is killed leaves all of it
or none. The ledger's table takes new rows only.
"""

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any, Self

from fedgram.core.errors import StoreError
from fedgram.exchange.ledger import Entry
from fedgram.exchange.records import AskedRound, Contribution, Gone, Leaf
from fedgram.exchange.tables import SCHEMA, statements

LATEST = "latest"  # the setting


class Index:
    """The database, open."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        with self._telling():
            self._database = _connect(path, create=create)

    @classmethod
    def created(cls, path: Path, settings: dict[str, bytes], first: Entry) -> Self:
        """Return a new index with these settings and the ledger's first entry; a half-made one is made anew."""
        index = cls(path, create=True)
        with index._telling():
            if not index._rows("SELECT 1 FROM sqlite_master WHERE name = 'ledger'"):
                with index.changing():
                    for statement in statements():
                        index._do(statement)
                    index._do(f"PRAGMA user_version = {SCHEMA}")
                    for name, value in settings.items():
                        index.set(name, value)
                    index.append(first)
        return index

    @property
    def ready(self) -> bool:
        """Whether it has been made; a process killed while it made one leaves an empty file."""
        return bool(self._rows("SELECT 1 FROM sqlite_master WHERE name = 'ledger'"))

    def check_schema(self) -> None:
        """Refuse the index of another version."""
        [(schema,)] = self._rows("PRAGMA user_version")
        if schema != SCHEMA:
            remedy = "update fedgram" if schema > SCHEMA else "make a new store of its files with fedgram join"
            raise StoreError(f"{self.path} has schema {schema}, this version of fedgram reads {SCHEMA}: {remedy}")

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def checkpoint(self) -> None:
        """Bring what stands in the journal into the database file, so that `stamp` can tell whether it changes."""
        self._rows("PRAGMA wal_checkpoint(TRUNCATE)")

    def stamp(self) -> str:
        """Return a text that changes when anybody writes to the database; "" while something is in its journal.

        The file itself is only looked at: opening and closing it here would undo SQLite's locks on it.
        """
        journal = journal_of(self.path)
        if journal.exists() and journal.stat().st_size:
            return ""
        about = self.path.stat()
        [(schema,)] = self._rows("PRAGMA schema_version")
        return f"{about.st_ino} {about.st_size} {about.st_mtime_ns} {schema}"

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Make all changes inside or none; they are on the disk at the end, or at that of a change around this one."""
        if self._database.in_transaction:
            yield
            return
        with self._telling():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    # Settings
    def get(self, name: str) -> bytes | None:
        """Return a setting."""
        found = self._rows("SELECT value FROM settings WHERE name = ?", name)
        return bytes(found[0][0]) if found else None

    def set(self, name: str, value: bytes) -> None:
        """Write a setting."""
        self._do("INSERT OR REPLACE INTO settings VALUES (?, ?)", name, value)

    # Who is in
    def contributions(self) -> list[Contribution]:
        """Return all contributions, in the order in which they joined."""
        return [_contribution(row) for row in self._rows("SELECT * FROM contributions ORDER BY rowid")]

    def contribution(self, **known: str) -> Contribution | None:
        """Return the contribution with this digest, or of this party."""
        [(column, value)] = known.items()
        found = self._rows(f"SELECT * FROM contributions WHERE {column} = ?", value)
        return _contribution(found[0]) if found else None

    def leaves(self, contribution: str | None = None) -> list[Leaf]:
        """Return the leaves of a contribution, or all, in the order in which they joined."""
        columns = ", ".join(field.name for field in fields(Leaf))
        where, values = ("", ()) if contribution is None else ("WHERE contribution = ?", (contribution,))
        return [Leaf(*row) for row in self._rows(f"SELECT {columns} FROM leaves {where} ORDER BY rowid", *values)]

    def overlap(self, leaf: Leaf, *, besides: str = "") -> tuple[Leaf, Contribution] | None:
        """Return a leaf of this digest, party or content, and what it is part of, `besides` one contribution."""
        found = self._rows(
            "SELECT digest, party, content, samples, created, contribution FROM leaves "
            "WHERE (digest = ? OR party = ? OR content = ?) AND contribution <> ?",
            *(leaf.digest, leaf.party, leaf.content, besides),
        )
        if not found:
            return None
        of = self.contribution(digest=found[0][-1])
        assert of is not None
        return Leaf(*found[0][:-1]), of

    def add(self, contribution: Contribution, leaves: list[Leaf], marks: Iterable[str] = ()) -> None:
        """Write a contribution with its leaves, and the marks of its moments where it is a single summary."""
        row = list(astuple(contribution))
        row[4] = json.dumps(row[4])
        self._do(f"INSERT INTO contributions VALUES ({', '.join('?' * len(row))})", *row)
        self._do("DELETE FROM gone WHERE digest = ?", contribution.digest)
        for leaf in leaves:
            self._do("INSERT INTO leaves VALUES (?, ?, ?, ?, ?, ?)", *astuple(leaf), contribution.digest)
            self._do("DELETE FROM gone WHERE digest = ?", leaf.digest)
        for mark in marks:
            self._do("INSERT OR IGNORE INTO marks VALUES (?, ?)", mark, contribution.digest)

    # What is known again
    def drop(self, contribution: Contribution, time: str) -> None:
        """Take a contribution out, and remember that its leaves have left, and when.

        A summary that says it was signed later than that is not let in again on the strength of the same signature.
        """
        for leaf in self.leaves(contribution.digest):
            row = (leaf.digest, leaf.party, leaf.content, contribution.digest, max(time, leaf.created))
            self._do("INSERT OR REPLACE INTO gone VALUES (?, ?, ?, ?, ?)", *row)
        # A sum of others is none of its leaves, and these may all be in the one that takes its place.
        itself = (contribution.digest, contribution.party, "", contribution.digest, max(time, contribution.created))
        self._do("INSERT OR IGNORE INTO gone VALUES (?, ?, ?, ?, ?)", *itself)
        self._do("DELETE FROM contributions WHERE digest = ?", contribution.digest)

    def marked(self, marks: Iterable[str]) -> list[str]:
        """Return the digests of leaves, present or gone, that share one of these marks."""
        found = {leaf: None for mark in marks for (leaf,) in self._rows("SELECT leaf FROM marks WHERE mark = ?", mark)}
        return list(found)

    def gone(self, leaf: Leaf | None = None, alike: Iterable[str] = ()) -> list[Gone]:
        """Return what has left; of a leaf, only what is the same, by digest or content, or is listed in `alike`."""
        query, values = f"SELECT {', '.join(field.name for field in fields(Gone))} FROM gone", list[str]()
        if leaf is not None:
            values = [leaf.content, leaf.digest, *alike]
            query += f" WHERE content = ? OR digest IN ({', '.join('?' * (len(values) - 1))})"
        return [Gone(*row) for row in self._rows(query, *values)]

    # Names and keys
    def key_of(self, party: str) -> str | None:
        """Return the key that a name came with first, "" if that was not signed, None if it never came."""
        found = self._rows("SELECT signer FROM names WHERE party = ?", party)
        return str(found[0][0]) if found else None

    def names(self) -> dict[str, str]:
        """Return the key of each name that has come."""
        return dict(self._rows("SELECT party, signer FROM names"))

    def bind(self, party: str, signer: str) -> None:
        """Remember the key of a name."""
        self._do("INSERT OR REPLACE INTO names VALUES (?, ?)", party, signer)

    # Rounds
    def rounds(self) -> list[AskedRound]:
        """Return the rounds of the present run."""
        return [AskedRound(*row) for row in self._rows("SELECT * FROM rounds ORDER BY number")]

    def ask(self, round: AskedRound) -> None:
        """Write a round that is asked now; nobody has answered it."""
        self._do("INSERT INTO rounds VALUES (?, ?, ?, ?)", *astuple(round))
        self._do("DELETE FROM answers")

    def close_round(self, number: int, said: bytes) -> None:
        """Write what all have answered."""
        self._do("UPDATE rounds SET said = ? WHERE number = ?", said, number)

    def end_rounds(self) -> None:
        """Forget all rounds and answers."""
        self._do("DELETE FROM rounds")
        self._do("DELETE FROM answers")

    def answers(self) -> dict[str, str]:
        """Return the digests of the answers to the last round, by party."""
        return dict(self._rows("SELECT party, digest FROM answers ORDER BY rowid"))

    def answer(self, party: str, digest: str) -> None:
        """Write an answer to the last round, in the place of an earlier one of the same party."""
        self._do("INSERT OR REPLACE INTO answers VALUES (?, ?)", party, digest)

    # The ledger
    def entries(self) -> list[Entry]:
        """Return all entries, in the order of their numbers."""
        return self._entries("ORDER BY number")

    def last(self) -> Entry | None:
        """Return the last entry."""
        return next(iter(self._entries("ORDER BY number DESC LIMIT 1")), None)

    def first(self) -> Entry | None:
        """Return the first entry."""
        return next(iter(self._entries("ORDER BY number LIMIT 1")), None)

    def entry_of(self, digest: str) -> Entry:
        """Return the entry by which a contribution joined last."""
        for found in self._entries("WHERE text LIKE ? ORDER BY number DESC LIMIT 1", f'%"digest":"{digest}"%'):
            return found
        raise StoreError(f"the ledger has no entry of contribution {digest[:16]}: fedgram log says what is missing")

    def _entries(self, which: str, *values: Any) -> list[Entry]:
        return [Entry(*row) for row in self._rows(f"SELECT number, text, hash FROM ledger {which}", *values)]

    def append(self, entry: Entry) -> None:
        """Write an entry."""
        self._do("INSERT INTO ledger VALUES (?, ?, ?)", entry.number, entry.text, entry.hash)
        self._do(
            "INSERT INTO settings VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)",
            LATEST,
            entry.detail("time").encode(),
        )

    def latest(self) -> str:
        """Return the latest time of any entry; that of the last one is earlier if a clock went back."""
        return (self.get(LATEST) or b"").decode()

    def _rows(self, query: str, *values: Any) -> list[Any]:
        with self._telling():
            return self._database.execute(query, values).fetchall()

    def _do(self, command: str, *values: Any) -> None:
        with self._telling():
            self._database.execute(command, values)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Turn SQLite's words into one line."""
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(
                f"cannot use the store's index {self.path}: {error}; see that the disk has room and can be written "
                "to, what has been accepted is kept"
            ) from error


def _connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """Open the database; on a disk that cannot be written to, as it stands there."""
    quoted = path.absolute().as_uri()
    if not create and not _may_write(path.parent):
        # What was written last may still stand in a journal beside it, which only who may write can bring in.
        journal = journal_of(path)
        mode = "mode=ro" if journal.exists() and journal.stat().st_size else "immutable=1"
        return sqlite3.connect(f"{quoted}?{mode}", uri=True, isolation_level=None)
    database = sqlite3.connect(f"{quoted}?mode={'rwc' if create else 'rw'}", uri=True, isolation_level=None, timeout=60)
    # Rows that are deleted are overwritten, too: not every SQLite does that of its own accord.
    for setting in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "secure_delete = ON"):
        database.execute(f"PRAGMA {setting}")
    return database


def journal_of(path: Path) -> Path:
    """Return where SQLite keeps what is not in the database file yet."""
    return path.with_name(f"{path.name}-wal")


def _may_write(folder: Path) -> bool:
    return os.access(folder, os.W_OK)


def _contribution(row: tuple[Any, ...]) -> Contribution:
    found = dict(zip((field.name for field in fields(Contribution)), row, strict=True))
    return Contribution(**found | {"counts": tuple(json.loads(found["counts"]))})

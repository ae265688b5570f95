"""The index of a store: an SQLite database of contributions, departures, keys of names, and the ledger.

A change is one transaction, on the disk when it returns (`synchronous=FULL`): a process that is killed leaves all of it
or nothing. The ledger's table takes new rows only.
"""

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from fedgram.core.errors import StoreError
from fedgram.core.filesystem import PRIVATE, check_regular
from fedgram.exchange.format.header import is_time
from fedgram.exchange.store.ledger import AMEND, Entry

SCHEMA = 2
# `gone` and `marks` are records of departures; docs/guides/consortium.md says what they disclose.
_SCRIPT = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE contributions (
  digest TEXT PRIMARY KEY, party TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, samples INTEGER NOT NULL,
  counts TEXT NOT NULL, size INTEGER NOT NULL, signer TEXT NOT NULL, created TEXT NOT NULL, joined TEXT NOT NULL
);
CREATE TABLE leaves (
  digest TEXT PRIMARY KEY, party TEXT NOT NULL UNIQUE, content TEXT NOT NULL UNIQUE, samples INTEGER NOT NULL,
  created TEXT NOT NULL, contribution TEXT NOT NULL REFERENCES contributions (digest) ON DELETE CASCADE
);
CREATE TABLE gone (
  digest TEXT PRIMARY KEY, party TEXT NOT NULL, content TEXT NOT NULL, contribution TEXT NOT NULL, time TEXT NOT NULL
);
CREATE INDEX gone_contents ON gone (content);
CREATE TABLE marks (mark TEXT NOT NULL, leaf TEXT NOT NULL, PRIMARY KEY (mark, leaf)) WITHOUT ROWID;
CREATE TABLE names (party TEXT PRIMARY KEY, signer TEXT NOT NULL);
CREATE TABLE rounds (number INTEGER PRIMARY KEY, digest TEXT NOT NULL, run TEXT NOT NULL, said BLOB);
CREATE TABLE answers (party TEXT PRIMARY KEY, digest TEXT NOT NULL UNIQUE);
CREATE TABLE ledger (number INTEGER PRIMARY KEY, text TEXT NOT NULL, hash TEXT NOT NULL);
CREATE INDEX amendments ON ledger (number) WHERE instr(text, '"what":"amend"');
CREATE TRIGGER ledger_keeps_entries BEFORE DELETE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END;
CREATE TRIGGER ledger_keeps_texts BEFORE UPDATE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END;
"""


def statements() -> Iterator[str]:
    """Yield the commands that make the tables, one at a time: a script would end the transaction."""
    statement = ""
    for line in _SCRIPT.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


T = TypeVar("T")
LATEST = "latest"  # name of a setting
# Types of the columns that do not hold text; SQLite itself accepts a value of any type in any column.
KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("number", "samples", "size"), (int,)),
    "value": (bytes,),
    "said": (bytes, type(None)),
}


@dataclass(frozen=True)
class Contribution:
    """A file in the total: its party, samples, class counts and key."""

    digest: str
    party: str
    kind: str
    samples: int
    counts: tuple[int, ...]
    size: int  # bytes
    signer: str
    created: str
    joined: str


@dataclass(frozen=True)
class Leaf:
    """A party's own summary, joined as such or in a combined file.

    `digest` is that of its file; `content` recognises its samples under any other name.
    """

    digest: str
    party: str
    content: str
    samples: int
    created: str


@dataclass(frozen=True)
class Gone:
    """A summary that has left, with its former contribution; a signature after `time` lets it return."""

    digest: str
    party: str
    contribution: str
    time: str

    @property
    def is_summary(self) -> bool:
        """Whether the summary had joined by itself, not in a combined file."""
        return self.digest == self.contribution


@dataclass(frozen=True)
class AskedRound:
    """A round of a run: the digest of its file, and the sum of all answers once it is closed."""

    number: int
    digest: str
    run: str
    said: bytes | None


class Index:
    """The open database."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        for name in (path, *(path.with_name(f"{path.name}{ending}") for ending in ("-wal", "-shm", "-journal"))):
            self._check_regular(name)
        with self._telling():
            self._database = _connect(path, create=create)

    def _check_regular(self, name: Path) -> None:
        """Raise if a file is really a pipe or a device, for which SQLite would wait forever."""
        try:
            check_regular(name)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StoreError(f"cannot use {name}: {error.strerror}; restore the store from a copy") from error

    @classmethod
    def created(cls, path: Path, settings: dict[str, bytes], first: Entry) -> Self:
        """Return a new index with these settings and the ledger's first entry; complete an unfinished one."""
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
        """Whether the tables exist; a process that was killed before leaves an empty file."""
        return bool(self._rows("SELECT 1 FROM sqlite_master WHERE name = 'ledger'"))

    def check_schema(self) -> None:
        """Raise if the index has another schema version."""
        [(schema,)] = self._rows("PRAGMA user_version")
        if schema != SCHEMA:
            remedy = "update fedgram" if schema > SCHEMA else "make a new store of its files with fedgram join"
            raise StoreError(f"{self.path}: expected schema {SCHEMA}, got {schema}; {remedy}")

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def checkpoint(self) -> None:
        """Move the journal's content into the database file, so that `stamp` can tell whether it changes."""
        self._rows("PRAGMA wal_checkpoint(TRUNCATE)")

    def stamp(self) -> str:
        """Return a text that changes with every write to the database; "" while its journal is not empty.

        The file itself is not opened: opening and closing it here would undo SQLite's locks on it.
        """
        journal = journal_of(self.path)
        if journal.exists() and journal.stat().st_size:
            return ""
        about = self.path.stat()
        [(schema,)] = self._rows("PRAGMA schema_version")
        return f"{about.st_ino} {about.st_size} {about.st_mtime_ns} {schema}"

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Make all changes inside or none; they are on the disk at the end of the outermost such block."""
        within = self._database.in_transaction
        begin, keep, undo = (
            (("SAVEPOINT inner",), ("RELEASE inner",), ("ROLLBACK TO inner", "RELEASE inner"))
            if within
            else (("BEGIN IMMEDIATE",), ("COMMIT",), ("ROLLBACK",))
        )
        with self._telling():
            self._execute(begin)
            try:
                yield
                self._execute(keep)
            except BaseException:
                if self._database.in_transaction:
                    self._execute(undo)
                raise

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read all rows inside as of one moment, also while another process writes."""
        if self._database.in_transaction:
            yield
            return
        with self._telling():
            self._execute(("BEGIN", "SELECT 1 FROM ledger LIMIT 1"))  # the first reading fixes the moment
        try:
            yield
        finally:
            with self._telling():
                self._execute(("COMMIT",))

    def version(self) -> int:
        """Return a number that changes when another process writes to the database."""
        [(found,)] = self._rows("PRAGMA data_version")
        return int(found)

    def _execute(self, commands: Iterable[str]) -> None:
        for command in commands:
            self._database.execute(command)

    # Settings
    def get(self, name: str) -> bytes | None:
        """Return a setting."""
        found = self._table("settings", ("value",), "WHERE name = ?", name)
        return found[0][0] if found else None

    def set(self, name: str, value: bytes) -> None:
        """Write a setting."""
        self._do("INSERT OR REPLACE INTO settings VALUES (?, ?)", name, value)

    # Contributions
    def contributions(self) -> list[Contribution]:
        """Return all contributions, in the order in which they joined."""
        return self._contributions("ORDER BY rowid")

    def contribution(self, **known: str) -> Contribution | None:
        """Return the contribution with this digest or of this party, None if it is not in."""
        [(column, value)] = known.items()
        return next(iter(self._contributions(f"WHERE {column} = ?", value)), None)

    def _contributions(self, which: str, *values: str) -> list[Contribution]:
        found = self._records("contributions", Contribution, which, *values)
        return [replace(each, counts=self._counts(each)) for each in found]

    def _counts(self, found: Contribution) -> tuple[int, ...]:
        """Return the class counts of a row, which the table has as text."""
        try:
            counts = json.loads(str(found.counts))
        except (ValueError, RecursionError):
            counts = None
        if not isinstance(counts, list) or not all(type(count) is int for count in counts):
            raise self._damaged("contributions", "counts", "a list of whole numbers", found.counts)
        return tuple(counts)

    def leaves(self, contribution: str | None = None) -> list[Leaf]:
        """Return the summaries in a contribution, or in all, in the order in which they joined."""
        where, values = ("", ()) if contribution is None else ("WHERE contribution = ?", (contribution,))
        return self._records("leaves", Leaf, f"{where} ORDER BY rowid", *values)

    def overlap(self, leaf: Leaf, *, besides: str = "") -> tuple[Leaf, Contribution] | None:
        """Return a summary with this digest, party or content, and its contribution, looking past `besides`."""
        columns = *(field.name for field in fields(Leaf)), "contribution"
        which = "WHERE (digest = ? OR party = ? OR content = ?) AND contribution <> ?"
        found = self._table("leaves", columns, which, leaf.digest, leaf.party, leaf.content, besides)
        if not found:
            return None
        *row, digest = found[0]
        if (whole := self.contribution(digest=digest)) is None:
            raise self._damaged("leaves", "contribution", "the digest of a contribution", digest)
        return Leaf(*row), whole

    def whole_of(self, leaf: str) -> Contribution | None:
        """Return the contribution that holds the summary with this digest."""
        return next(
            iter(self._contributions("WHERE digest = (SELECT contribution FROM leaves WHERE digest = ?)", leaf)), None
        )

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

    # Departures
    def drop(self, contribution: Contribution, time: str) -> None:
        """Delete a contribution, and record that its summaries have left, and when.

        A summary signed at a later time than that (by a wrong clock) needs another signature to return.
        """
        for leaf in self.leaves(contribution.digest):
            row = (leaf.digest, leaf.party, leaf.content, contribution.digest, max(time, leaf.created))
            self._do("INSERT OR REPLACE INTO gone VALUES (?, ?, ?, ?, ?)", *row)
        # The combined file is recorded, too: its summaries may all return in the file that replaces it.
        itself = (contribution.digest, contribution.party, "", contribution.digest, max(time, contribution.created))
        self._do("INSERT OR IGNORE INTO gone VALUES (?, ?, ?, ?, ?)", *itself)
        self._do("DELETE FROM contributions WHERE digest = ?", contribution.digest)

    def marked(self, marks: Iterable[str]) -> list[str]:
        """Return the digests of summaries, present or gone, that share one of these marks."""
        found = (self._table("marks", ("leaf",), "WHERE mark = ?", mark) for mark in marks)
        return list(dict.fromkeys(leaf for rows in found for (leaf,) in rows))

    def gone(self, leaf: Leaf | None = None, alike: Iterable[str] = ()) -> list[Gone]:
        """Return departures: all, or those of a summary with the same digest or content, or listed in `alike`."""
        if leaf is None:
            return self._records("gone", Gone)
        digests = [leaf.digest, *alike]
        which = f"WHERE content = ? OR digest IN ({', '.join('?' * len(digests))})"
        return self._records("gone", Gone, which, leaf.content, *digests)

    def free(self, digest: str) -> None:
        """Let other files bring the samples of a summary that has left; the summary itself still cannot return."""
        self._do("UPDATE gone SET content = '' WHERE digest = ?", digest)
        self._do("DELETE FROM marks WHERE leaf = ?", digest)

    # Names and keys
    def key_of(self, party: str) -> str | None:
        """Return the key of a name's first file, "" if it was not signed, None for an unknown name."""
        found = self._table("names", ("signer",), "WHERE party = ?", party)
        return found[0][0] if found else None

    def names(self) -> dict[str, str]:
        """Return the key of each known name."""
        return dict(self._table("names", ("party", "signer")))

    def bind(self, party: str, signer: str) -> None:
        """Record the key of a name."""
        self._do("INSERT OR REPLACE INTO names VALUES (?, ?)", party, signer)

    # Rounds
    def rounds(self) -> list[AskedRound]:
        """Return the rounds of the present run."""
        return self._records("rounds", AskedRound, "ORDER BY number")

    def ask(self, round: AskedRound) -> None:
        """Record a new round, which has no answers yet."""
        self._do("INSERT INTO rounds VALUES (?, ?, ?, ?)", *astuple(round))
        self._do("DELETE FROM answers")

    def close_round(self, number: int, said: bytes) -> None:
        """Record the sum of all answers to a round."""
        self._do("UPDATE rounds SET said = ? WHERE number = ?", said, number)

    def end_rounds(self) -> None:
        """Delete all rounds and answers."""
        self._do("DELETE FROM rounds")
        self._do("DELETE FROM answers")

    def answers(self) -> dict[str, str]:
        """Return the digests of the answers to the last round, by party."""
        return dict(self._table("answers", ("party", "digest"), "ORDER BY rowid"))

    def forget_answer(self, party: str) -> None:
        """Delete a party's answer to the last round, if it has answered."""
        self._do("DELETE FROM answers WHERE party = ?", party)

    def answer(self, party: str, digest: str) -> None:
        """Record a party's answer to the last round, in the place of an earlier answer."""
        self._do("INSERT OR REPLACE INTO answers VALUES (?, ?)", party, digest)

    # The ledger
    def entries(self, *, after: int = 0) -> list[Entry]:
        """Return the entries with larger numbers than `after`, in the order of their numbers."""
        return self._entries("WHERE number > ? ORDER BY number", after)

    def entry(self, number: int) -> Entry:
        """Return the entry with this number; raise if it is missing."""
        for found in self._entries("WHERE number = ?", number):
            return found
        raise StoreError(f"the ledger has no entry {number}: fedgram log says what is missing")

    def last(self) -> Entry | None:
        """Return the last entry."""
        return next(iter(self._entries("ORDER BY number DESC LIMIT 1")), None)

    def first(self) -> Entry | None:
        """Return the first entry."""
        return next(iter(self._entries("ORDER BY number LIMIT 1")), None)

    def amendments(self) -> list[Entry]:
        """Return the entries of amendments, which an index of their own finds without reading the whole ledger."""
        found = self._entries("""WHERE instr(text, '"what":"amend"') ORDER BY number""")
        return [entry for entry in found if entry.says.get("what") == AMEND]

    def entry_of(self, digest: str) -> Entry:
        """Return the entry by which a contribution joined last."""
        for found in self._entries("WHERE text LIKE ? ORDER BY number DESC LIMIT 1", f'%"digest":"{digest}"%'):
            return found
        raise StoreError(f"the ledger has no entry of contribution {digest[:16]}: fedgram log says what is missing")

    def _entries(self, which: str, *values: Any) -> list[Entry]:
        return self._records("ledger", Entry, which, *values)

    def append(self, entry: Entry) -> None:
        """Write an entry."""
        self._do("INSERT INTO ledger VALUES (?, ?, ?)", entry.number, entry.text, entry.hash)
        self._do(
            "INSERT INTO settings VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)",
            LATEST,
            entry.detail("time").encode(),
        )

    def latest(self) -> str:
        """Return the latest time of all entries; the last entry has an earlier time if a clock went back."""
        time = self.get(LATEST) or b""
        if time and not is_time(time.decode(errors="replace")):
            raise self._damaged("settings", LATEST, "a time", time)
        return time.decode()

    def _records(self, table: str, record: type[T], which: str = "", *values: Any) -> list[T]:
        """Return rows of a table as records, whose fields are its columns."""
        columns = tuple(field.name for field in fields(record))  # type: ignore[arg-type]
        return [record(*row) for row in self._table(table, columns, which, *values)]

    def _table(self, table: str, columns: tuple[str, ...], which: str = "", *values: Any) -> list[Any]:
        """Return these columns of a table; raise if a value does not have the column's type."""
        found = self._rows(f"SELECT {', '.join(columns)} FROM {table} {which}", *values)
        for place, column in enumerate(columns):
            kinds = KINDS.get(column, (str,))
            for row in found:
                if type(row[place]) not in kinds:
                    raise self._damaged(table, column, _NAMED[kinds[0]], row[place])
        return found

    def _damaged(self, table: str, column: str, wanted: str, found: Any) -> StoreError:
        kind = _NAMED.get(type(found), "a number with a fraction")
        return StoreError(
            f"the index {self.path}, table {table}, column {column}: expected {wanted}, got {kind} {found!r:.60}; "
            "restore the store from a copy"
        )

    def _rows(self, query: str, *values: Any) -> list[Any]:
        with self._telling():
            return self._database.execute(query, values).fetchall()

    def _do(self, command: str, *values: Any) -> None:
        with self._telling():
            self._database.execute(command, values)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Turn errors of SQLite into a `StoreError` of one line."""
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(
                f"cannot use the store's index {self.path}: {error}; check that the disk has room and can be "
                "written to: what has been accepted is kept"
            ) from error


class _Undecodable(bytes):
    """Text of the database that is not UTF-8."""


_NAMED: dict[type, str] = {
    int: "a whole number",
    str: "text",
    bytes: "bytes",
    _Undecodable: "text that is not UTF-8",
    type(None): "nothing,",
}


def _text(raw: bytes) -> str | _Undecodable:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _Undecodable(raw)


def _connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """Open the database, read-only on a disk that cannot be written to."""
    quoted = path.absolute().as_uri()
    if not create and not _may_write(path.parent):
        # The last changes may still be in a journal beside it, which only a writer can bring in.
        journal = journal_of(path)
        mode = "mode=ro" if journal.exists() and journal.stat().st_size else "immutable=1"
        database = sqlite3.connect(f"{quoted}?{mode}", uri=True, isolation_level=None)
        database.text_factory = _text
        return database
    if create:
        path.touch(mode=PRIVATE)  # SQLite gives its journals the rights of the database
    database = sqlite3.connect(f"{quoted}?mode={'rwc' if create else 'rw'}", uri=True, isolation_level=None, timeout=60)
    database.text_factory = _text
    # Deleted rows are overwritten with zeros, too, which is not the default of every SQLite.
    for setting in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "secure_delete = ON"):
        database.execute(f"PRAGMA {setting}")
    return database


def journal_of(path: Path) -> Path:
    """Return the path of SQLite's journal, which holds changes before the database file does."""
    return path.with_name(f"{path.name}-wal")


def _may_write(folder: Path) -> bool:
    return os.access(folder, os.W_OK)

"""The sets that a witness has answered, and the rule by which it refuses another one.

A coordinator that knows the sums over two sets knows their difference, too. So a witness keeps all sets that it has
ever answered in a study, over all runs, steps and rounds, and judges a new one together with them. An element of a set
is a party's training rows or its test rows, with their version. Two elements are alike if they are in the same sets.
Any combination of the sums counts alike elements equally often, so it cannot tell them apart. The rule is that each
class of alike elements has as many parties as the study requires.

>>> everyone = frozenset(("abcdef"[k], TRAINING, "1") for k in range(6))
>>> allowed([everyone, frozenset(list(everyone)[:3])], least=3)
True
>>> allowed([everyone, frozenset(list(everyone)[:5])], least=3)  # the difference is a single party
False
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self, TypeAlias

from fedgram.core.errors import InvalidData, RefusedMessage
from fedgram.core.filesystem import new_file

Element: TypeAlias = tuple[str, str, str]  # a party, which of its rows, and their version
Members: TypeAlias = frozenset[Element]  # of a set that is answered
TRAINING, TEST = "training", "test"  # rows of a party; sums over the ones say nothing of the others
_SCHEMA = 1
_BEGIN = (
    "CREATE TABLE study (schema INTEGER NOT NULL, study TEXT NOT NULL, least INTEGER NOT NULL)",
    "CREATE TABLE answered (number INTEGER PRIMARY KEY, members TEXT NOT NULL UNIQUE)",
)
_NEW_KEYS = "a witness without its whole ledger needs new keys in the study"


def smallest_class(sets: Iterable[Members]) -> int:
    """Return the number of elements in the smallest class of alike elements that are in some set; 0 without sets."""
    places: dict[Element, list[int]] = {}
    for place, members in enumerate(sets):
        for element in members:
            places.setdefault(element, []).append(place)
    return min(Counter(map(tuple, places.values())).values(), default=0)


def allowed(sets: Sequence[Members], least: int) -> bool:
    """Return whether the sums over all these sets together show no group of fewer than `least` elements."""
    return not any(sets) or smallest_class(sets) >= least


class WitnessLedger:
    """A witness's record of the sets that it has answered in a study, on disk before an answer leaves the witness.

    A lost or restored ledger forgets sets. So a missing file is never begun by itself: `begin` does that, once.

    Parameters
    ----------
    connection
        The database.
    where
        Its name in errors.

    """

    def __init__(self, connection: sqlite3.Connection, where: str) -> None:
        self._connection, self._where = connection, where

    @classmethod
    def begin(cls, study: str, least: int, path: Path | None = None) -> Self:
        """Return an empty ledger for a study, in a new file, or in memory for a witness of a single run."""
        if path is not None:
            try:
                new_file(path, b"", mode=0o600)
            except FileExistsError as error:
                raise InvalidData(
                    f"ledger: expected a new file, got {path}, which exists: open it, or give another name"
                ) from error
        ledger = cls(_connected(path), "the ledger" if path is None else str(path))
        with ledger._writing() as write:
            for statement in _BEGIN:
                write.execute(statement)
            write.execute("INSERT INTO study VALUES (?, ?, ?)", (_SCHEMA, study, least))
        return ledger

    @classmethod
    def open(cls, path: Path, study: str) -> Self:
        """Return the ledger in a file; raise if it is missing, damaged or of another study."""
        if not path.is_file():
            raise InvalidData(f"ledger: expected the file {path}, got none; {_NEW_KEYS}")
        ledger = cls(_connected(path), str(path))
        found = ledger._study()
        if found[:2] != (_SCHEMA, study):
            raise InvalidData(f"{path}: expected the ledger of study {study[:16]}, got that of {found[1][:16]!r}")
        return ledger

    @property
    def sets(self) -> list[Members]:
        """The sets that were answered, in order."""
        return self._sets(self._connection)

    def admit(self, members: Members) -> None:
        """Record a set that is going to be answered; raise if its sum, with earlier ones, would show too few parties.

        A set that was answered before may be answered again.
        """
        with self._writing() as write:
            known = self._sets(write)
            if members not in known:
                self._add(write, known, [members])

    def follow(self, chain: Sequence[Members]) -> None:
        """Record a chain of sets, which continues the recorded one; raise for another chain, or sets not allowed.

        Witnesses of which not all must answer see the same sets in the same order, so that none lacks a part.
        """
        with self._writing() as write:
            known = self._sets(write)
            if len(set(chain)) < len(chain) or list(chain[: len(known)]) != known[: len(chain)]:
                raise RefusedMessage(
                    f"chain of sets: expected one that continues the {len(known)} sets of {self._where}, got another; "
                    "the coordinator has asked other witnesses for other sums, which must not be answered"
                )
            self._add(write, known, chain[len(known) :])

    def _add(self, write: sqlite3.Connection, known: list[Members], added: Sequence[Members]) -> None:
        least = self._study()[2]
        for members in added:
            versions = {(party, rows): version for each in known for party, rows, version in each}
            if len({party for party, *_ in members}) < len(members):
                raise RefusedMessage("set of parties: expected each once, got one twice")
            for party, rows, version in sorted(members):
                if versions.get((party, rows), version) != version:
                    raise RefusedMessage(
                        f"version of the {rows} rows of {party!r}: expected the one in earlier answers, got another; "
                        "the difference of two sums would show what has changed: agree on a new study"
                    )
            known.append(members)
            if not allowed(known, least):
                raise RefusedMessage(
                    f"set of parties: expected at least {least} in each group that sums tell apart, got "
                    f"{smallest_class(known)}; earlier answers with this one would show that group: ask for "
                    f"the same parties as before, or for {least} more or fewer"
                )
            text = json.dumps(sorted(members))
            write.execute("INSERT INTO answered (number, members) VALUES (?, ?)", (len(known), text))

    def _sets(self, connection: sqlite3.Connection) -> list[Members]:
        try:
            rows = connection.execute("SELECT number, members FROM answered ORDER BY number").fetchall()
            if [number for number, _ in rows] != list(range(1, len(rows) + 1)):
                raise ValueError(f"of {len(rows)} sets some are missing")
            return [frozenset((party, rows, version) for party, rows, version in json.loads(text)) for _, text in rows]
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise _damaged(self._where, error) from error

    def _study(self) -> tuple[int, str, int]:
        try:
            [(schema, study, least)] = self._connection.execute("SELECT schema, study, least FROM study").fetchall()
        except (sqlite3.Error, ValueError) as error:
            raise _damaged(self._where, error) from error
        return schema, study, least

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection in a transaction that other processes wait for, and that is on disk at its end."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise _damaged(self._where, error) from error
        try:
            yield self._connection
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def _connected(path: Path | None) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:" if path is None else path, isolation_level=None, timeout=60)
    try:
        connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.Error as error:
        raise _damaged(str(path), error) from error
    return connection


def _damaged(where: str, error: Exception) -> InvalidData:
    return InvalidData(f"{where}: expected a witness's ledger, got a damaged file ({error}); {_NEW_KEYS}")

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
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self, TypeAlias

from fedgram.core.errors import InvalidData, RefusedMessage
from fedgram.core.filesystem import PRIVATE, new_file

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
    """The sets that a witness has answered in a single run, which end with it; `StoredLedger` keeps those of a study.

    Parameters
    ----------
    least
        The fewest parties of a group that sums may show.

    """

    where = "the ledger"  # its name in errors

    def __init__(self, least: int) -> None:
        self._sets: list[Members] = []
        self._least = least

    @property
    def sets(self) -> list[Members]:
        """The sets that were answered, in order."""
        return list(self._sets)

    def admit(self, members: Members) -> None:
        """Record a set that is going to be answered; raise if its sum, with earlier ones, would show too few parties.

        A set that was answered before may be answered again.
        """
        with self._changing() as known:
            if members not in known:
                self._add(known, members)

    def follow(self, chain: Sequence[Members]) -> None:
        """Record a chain of sets, which continues the recorded one; raise for another chain, or sets not allowed.

        Witnesses of which not all must answer see the same sets in the same order, so that none lacks a part.
        """
        with self._changing() as known:
            if len(set(chain)) < len(chain) or list(chain[: len(known)]) != known[: len(chain)]:
                raise RefusedMessage(
                    f"chain of sets: expected one that continues the {len(known)} sets of {self.where}, got another; "
                    "the coordinator has asked other witnesses for other sums, which must not be answered"
                )
            for members in chain[len(known) :]:
                self._add(known, members)

    def _add(self, known: list[Members], members: Members) -> None:
        """Add a set to those that are known; raise if it must not be answered."""
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
        if not allowed(known, self._least):
            raise RefusedMessage(
                f"set of parties: expected at least {self._least} in each group that sums tell apart, got "
                f"{smallest_class(known)}; earlier answers with this one would show that group: ask for "
                f"the same parties as before, or for {self._least} more or fewer"
            )

    @contextmanager
    def _changing(self) -> Iterator[list[Members]]:
        """Yield the sets, to be added to; they are kept if nothing is raised."""
        known = self.sets
        yield known
        self._sets = known


class StoredLedger(WitnessLedger):
    """A witness's ledger in a file: a set is on disk before the witness answers for it.

    A lost or restored ledger forgets sets. So a missing file is never begun by itself: `begin` does that, once.

    Parameters
    ----------
    path
        The file.
    study
        The identity of the study.

    """

    def __init__(self, path: Path, study: str) -> None:
        if not path.is_file():
            raise InvalidData(f"ledger: expected the file {path}, got none; {_NEW_KEYS}")
        self._path, self.where = path, str(path)
        with self._open() as database:
            found = database.execute("SELECT schema, study, least FROM study").fetchall()
            if len(found) != 1 or found[0][0] != _SCHEMA:
                raise sqlite3.DatabaseError("it has no study, or one of another version")
        if found[0][1] != study:
            raise InvalidData(f"{path}: expected the ledger of study {study[:16]}, got that of {found[0][1][:16]!r}")
        super().__init__(found[0][2])

    @classmethod
    def begin(cls, path: Path, study: str, least: int) -> Self:
        """Return an empty ledger for a study, in a new file that only its owner may read."""
        try:
            new_file(path, b"", mode=PRIVATE)
        except FileExistsError as error:
            raise InvalidData(
                f"ledger: expected a new file, got {path}, which exists: open it, or give another name"
            ) from error
        with closing(sqlite3.connect(path)) as database, database:
            for statement in _BEGIN:
                database.execute(statement)
            database.execute("INSERT INTO study VALUES (?, ?, ?)", (_SCHEMA, study, least))
        return cls(path, study)

    @property
    def sets(self) -> list[Members]:
        """The sets that were answered, in order."""
        with self._open() as database:
            return _read(database)

    @contextmanager
    def _changing(self) -> Iterator[list[Members]]:
        """Yield the sets, to be added to, while no other process can; what is added is on disk at the end."""
        with self._open() as database:
            known = _read(database)
            before = len(known)
            yield known
            rows = [(number, json.dumps(sorted(known[number - 1]))) for number in range(before + 1, len(known) + 1)]
            database.executemany("INSERT INTO answered (number, members) VALUES (?, ?)", rows)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Yield the database in a transaction, which ends without a change if something is raised."""
        try:
            with closing(sqlite3.connect(self._path, isolation_level=None, timeout=60)) as database:
                database.execute("PRAGMA synchronous = FULL")
                database.execute("BEGIN IMMEDIATE")
                yield database
                database.execute("COMMIT")
        except sqlite3.Error as error:
            raise InvalidData(
                f"{self.where}: expected a witness's ledger, got one that cannot be used ({error}); {_NEW_KEYS}"
            ) from error


def _read(database: sqlite3.Connection) -> list[Members]:
    """Return the sets in a database; raise sqlite3.DatabaseError if some are missing or not sets."""
    rows = database.execute("SELECT number, members FROM answered ORDER BY number").fetchall()
    try:
        if [number for number, _ in rows] != list(range(1, len(rows) + 1)):
            raise ValueError(f"of {len(rows)} sets some are missing")
        return [frozenset((party, kind, version) for party, kind, version in json.loads(text)) for _, text in rows]
    except (ValueError, TypeError) as error:
        raise sqlite3.DatabaseError(str(error)) from error

"""Encoding of a party's table into the columns that a study sends: by name, cell by cell, block by block.

The path of a table, for `run`, `compare`, `summarize`, models of a study and nodes under a study:

1. `data.own.blocks.open_table` opens it, and yields blocks of numbers and texts. Reading options of a party's own file,
   such as a decimal comma, belong there.
2. `studies.drafting.draft` makes a study of it, where the parties have not agreed on one.
3. `open_for` finds the study's columns by name, and `StudyTable` encodes each block, with the rows that break a rule. A
   column that is computed from others is made before it is encoded. Rows that a study leaves out for missing values do
   not count as bad (`Rows.good`, `Rows.bad`).
4. `studies.streams.collect` keeps the rows, or reads them anew on each pass.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.columns import listed
from fedgram.core.errors import Mismatch, Skipped
from fedgram.core.progress_bars import with_bar
from fedgram.data.client import Client
from fedgram.data.own.bad import SHOWN, OnBad, Reason, check_on_bad, settle
from fedgram.data.own.blocks import TableFile, open_table
from fedgram.data.own.cells import Block, Coded, Mask, is_missing
from fedgram.data.own.labels import one_form
from fedgram.studies import streams
from fedgram.studies.kinds import Column, Flag, Ignore, NotNumbers, Number, Problem, same_unit, spelt, split_unit
from fedgram.studies.media import Media
from fedgram.studies.streams import collect
from fedgram.studies.study import Study

WIDE_ROWS = 4096  # rows at a time, if a cell becomes a thousand features


@dataclass(frozen=True)
class Rows:
    """Some rows of a table as they are sent: x (n, columns), labels if there are any, and the problems found.

    The next rows overwrite `x`, whose columns are contiguous. `values` (n, t) are numeric outcomes that rows may lack,
    NaN if they do.
    """

    start: int
    x: Array
    labels: Coded | None
    groups: Coded | None
    keys: Coded | None
    problems: list[Problem]
    share: float  # of the table that has been read
    media: tuple[Coded, ...] = ()  # raw cells of the columns from which backbones make features
    values: Array | None = None
    also: tuple[Coded, ...] = ()  # cells of columns that are not used

    @property
    def good(self) -> Mask:
        """The mask of rows that keep all rules and have all values that they need."""
        good = np.ones(len(self.x), dtype=bool)
        for problem in self.problems:
            good &= ~problem.cells
        return good

    @property
    def bad(self) -> Mask:
        """The mask of rows that break a rule; rows that only lack a value that they need are not bad."""
        bad = np.zeros(len(self.x), dtype=bool)
        for problem in self.problems:
            if not problem.column:
                bad |= problem.cells
        return bad

    def only(self, chosen: Mask) -> "Rows":
        """Return some of the rows, without their problems."""
        labels, groups, keys = (
            None if cells is None else cells.rows(chosen) for cells in (self.labels, self.groups, self.keys)
        )
        x, media = np.asfortranarray(self.x[chosen]), tuple(cells.rows(chosen) for cells in self.media)
        return Rows(self.start, x, labels, groups, keys, [], self.share, media)

    def reasons(self, row: int) -> str:
        """Return the problems of a row, as text."""
        return "; ".join(problem.of(row) for problem in self.problems if problem.cells[row])


@dataclass
class LeftOut:
    """Counts of the rows that one pass through a table left out.

    Attributes
    ----------
    bad
        Rows that break a rule, left out because the party chose so (`on_bad="skip"`).
    dropped
        Rows that lack a value in a column with `missing = "drop"`, and break no rule.
    by_column
        How many of these lack each such column; a row may lack several.

    """

    bad: int = 0
    dropped: int = 0
    by_column: dict[str, int] = field(default_factory=dict)

    def clear(self) -> None:
        """Begin to count anew."""
        self.bad = self.dropped = 0
        self.by_column = {}

    def add(self, rows: Rows) -> Mask:
        """Count the rows of a block, and return the mask of the bad ones."""
        bad = rows.bad
        self.bad += int(np.count_nonzero(bad))
        dropping = [problem for problem in rows.problems if problem.column]
        if dropping:
            self.dropped += int(np.count_nonzero(~rows.good & ~bad))
        for problem in dropping:
            lacking = int(np.count_nonzero(problem.cells & ~bad))
            self.by_column[problem.column] = self.by_column.get(problem.column, 0) + lacking
        return bad

    def __str__(self) -> str:
        """Return the dropped rows in words.

        >>> str(LeftOut(dropped=12, by_column={"crp": 10, "bmi": 3}))
        '12 rows left out for missing values (crp 10, bmi 3)'
        """
        each = ", ".join(f"{name} {count:,}" for name, count in self.by_column.items() if count)
        return f"{self.dropped:,} row{'s' * (self.dropped != 1)} left out for missing values ({each})"


@dataclass(frozen=True)
class StudyTable:
    """A party's table with its columns assigned to those of a study.

    `left_out` counts the rows that `good_rows` left out the last time.
    """

    study: Study
    table: TableFile
    places: dict[str, str]  # the table's column for each of the study's
    outcome: str | None  # the table's column with the classes
    labelled: bool = True  # whether rows must have one
    group: str | None = None
    key: str | None = None
    values: tuple[str | None, ...] = ()  # the table's columns with numeric outcomes, if rows may lack them
    also: tuple[str, ...] = ()  # columns of the table that are read as texts, beside those that are used
    left_out: LeftOut = field(default_factory=LeftOut, compare=False)
    remedy: str = ""  # the advice about bad rows, where none can be left out

    @property
    def folder(self) -> Path:
        """The folder of files that the table names: its own, or the current folder if it is in memory."""
        return self.table.source.parent if isinstance(self.table.source, Path) else Path()

    @cached_property
    def _used(self) -> dict[str, Column]:
        """The columns that are encoded; numeric outcomes come last, and are left out if rows may lack them."""
        here = self.places.keys() | self.study.derived.keys()
        return {name: column for name, column in self.study.used.items() if name in here}

    @cached_property
    def _read(self) -> dict[str, Column]:
        """The columns that are read; an ignored column is read, as numbers, if another is computed from it."""
        columns = self.study.columns
        ignored = [name for name in self.study.needed if isinstance(columns.get(name), Ignore)]
        return self._used | dict.fromkeys(ignored, Number(missing="mean"))

    @property
    def ignored(self) -> list[str]:
        """The table's columns that the study ignores."""
        return [
            self.places[name]
            for name, column in self.study.columns.items()
            if isinstance(column, Ignore) and name in self.places
        ]

    @cached_property
    def media(self) -> list[str]:
        """The columns from which backbones make features."""
        return [name for name, column in self._used.items() if isinstance(column, Media)]

    def rows(self) -> Iterator[Rows]:
        """Yield the rows in blocks, as they are sent."""
        read = {name: column for name, column in self._read.items() if name in self.places}
        numbers = [self.places[name] for name, column in read.items() if column.numeric]
        numbers += [name for name in self.values if name is not None]
        texts = [self.places[name] for name, column in read.items() if not column.numeric]
        others = [*self.also, *(name for name in (self.outcome, self.group, self.key) if name is not None)]
        space = np.zeros(0)
        for block in self.table.blocks(numbers, list(dict.fromkeys([*texts, *others]))):
            for part in _parts(block) if self.media else [block]:
                if space.size < part.rows * self._width:
                    space = np.empty(part.rows * self._width)  # used again: new memory costs more than filling it
                yield self._encoded(part, space[: part.rows * self._width].reshape(self._width, -1).T)

    @cached_property
    def _width(self) -> int:
        return sum(len(column.sent(name)) for name, column in self._used.items())

    def _encoded(self, block: Block, x: Array) -> Rows:
        problems = [] if block.ragged is None else [Problem(block.ragged, "a row must have a value for each column")]
        end = 0
        for name, column in self._used.items():
            start = end
            end += len(column.sent(name))
            out = x[:, start:end]
            if name in self.study.derived:
                problems += self._derived(name, column, block, out)
                continue
            cells, bad = self._cells(name, column, block)
            if isinstance(column, Media):
                problems += column.encode(name, cells, bad, out, self.folder)
            else:
                problems += column.encode(name, cells, bad, out)
        for name, column in self._read.items():
            if name not in self._used:
                problems += column.encode(name, *self._cells(name, column, block), np.empty((block.rows, 2)))
        labels, groups, keys = (
            None if name is None else self._texts(block, name) for name in (self.outcome, self.group, self.key)
        )
        labels = None if labels is None else spelt(labels, self.study.classes)
        if labels is not None and self.labelled:
            problems += self._wrong_labels(labels)
        if groups is not None and (empty := groups.map(is_missing, bool)).any():
            problems.append(Problem(empty, f"column {self.group!r} must not be empty"))
        if block.ragged is not None:  # in such a row, cells cannot be assigned to columns
            others = [replace(problem, cells=problem.cells & ~block.ragged) for problem in problems[1:]]
            problems = [problems[0], *(problem for problem in others if problem.cells.any())]
        media = tuple(block.texts[self.places[name]] for name in self.media)
        also = tuple(block.texts[name].stripped() for name in self.also)
        return Rows(block.start, x, labels, groups, keys, problems, block.share, media, self._values(block), also)

    def _cells(self, name: str, column: Column, block: Block) -> tuple[Any, NotNumbers | None]:
        """Return the cells of a column, and those that should be numbers and are not."""
        place = self.places[name]
        cells: Any = block.numbers[place] if column.numeric else self._texts(block, place)
        wrong = block.bad.get(place)
        return cells, None if wrong is None else NotNumbers(wrong, block.odd.get(place), self.table.notation)

    def _derived(self, name: str, column: Column, block: Block, out: Array) -> list[Problem]:
        """Write a derived column, computed from the values of a block, and return the rows that break its rules."""
        known: dict[str, Array] = {}
        for of in self.study.expressions[name].columns:
            kind = self._read[of]
            cells, bad = self._cells(of, kind, block)
            known[of] = kind.known(cells) if isinstance(kind, Flag) else cast("Number", kind).known(cells, bad)
        found = column.encode(name, self.study.expressions[name].values(known), None, out)
        return [replace(problem, rule=f"{problem.rule} (it is {self.study.derived[name]})") for problem in found]

    def _texts(self, block: Block, name: str) -> Coded:
        return self.table.notation.texts(block.texts[name].stripped())

    def _values(self, block: Block) -> Array | None:
        """Return the numeric outcomes of rows that may lack them, NaN if missing or against the study's rules."""
        if not any(self.values):
            return None
        found, outcomes = np.full((block.rows, len(self.values)), np.nan), self.study.targets
        for place, (name, given) in enumerate(zip(outcomes.names, self.values, strict=True)):
            if given is not None:
                out = found[:, place : place + 1]
                wrong = None if given not in block.bad else NotNumbers(block.bad[given])
                for problem in self.study.columns[name].encode(name, block.numbers[given], wrong, out):
                    out[problem.cells] = np.nan
        return outcomes.as_outcomes(found)

    def _wrong_labels(self, labels: Coded) -> list[Problem]:
        known, name = set(self.study.classes), self.study.outcome
        strange = labels.map(lambda label: label not in known, bool)
        if not strange.any():
            return []
        empty = labels.map(is_missing, bool) & strange
        wrong = strange & ~empty
        classes = ", ".join(map(repr, self.study.classes[:8])) + (", …" if len(self.study.classes) > 8 else "")
        found = []
        if empty.any():
            found.append(Problem(empty, f"outcome {name!r} must not be empty"))
        if wrong.any():
            rule = f"outcome {name!r} must be one of {classes}"
            found.append(Problem(wrong, rule, labels, tuple(str(label) for label in self.study.classes)))
        return found

    def clean_rows(self) -> Iterator[Rows]:
        """Yield the rows that keep all rules, in blocks; to be used after `good_rows`, which reports the others."""
        for rows in self.rows():
            good = rows.good
            yield rows if good.all() else rows.only(good)

    def good_rows(self, on_bad: OnBad) -> Iterator[Rows]:
        """Yield the rows that keep all rules, in blocks; bad ones raise at the end, or are left out.

        Rows that lack a value that they need (`missing = "drop"`) are left out. `left_out` counts both.
        """
        check_on_bad(on_bad)
        kept, out = 0, self.left_out
        out.clear()
        described: dict[int, Reason] = {}
        for rows in with_bar(self.rows(), f"reading {self.table.title}"):
            good = rows.good
            used = int(np.count_nonzero(good))
            kept += used
            if used < len(good):
                for row in np.flatnonzero(out.add(rows))[: SHOWN - len(described)].tolist():
                    rules = "; ".join(problem.rule for problem in rows.problems if problem.cells[row])
                    described[rows.start + row] = Reason(rows.reasons(row), rules)
            yield rows if used == len(good) else rows.only(good)
        where = self.table.find(described)
        reasons = [reason.at(where[place][0]) for place, reason in described.items()]
        remedy = str(out) if out.dropped and not kept else self.remedy
        settle(reasons, kept, self.table.title, "row", on_bad, total=out.bad, remedy=remedy)
        if out.dropped:
            warnings.warn(f"{self.table.title}: {out}, as study {self.study.name!r} says", Skipped, stacklevel=2)


def open_for(
    study: Study, source: Any, *, labelled: bool = True, group: str | None = None, key: str | None = None
) -> StudyTable:
    """Return a table, of a file or in memory, with its columns matched to the study's by name.

    `group` and `key` are the columns with a row's client and with its id. Without `labelled` the outcome may be
    missing, and is not checked if it is there.
    """
    table = open_table(source)
    asked = {"client": group, "id": key}
    for what, name in asked.items():
        if name is not None and name not in table.names:
            raise Mismatch(f"{table.title} has no {what} column {name!r}: it has {listed(table.names)}")
    found = _matched(study, table)
    missing = [name for name in study.needed if name not in found and (labelled or name not in study.outcomes)]
    outcome = found.get(study.outcomes[0]) if study.classes else None
    if missing:
        raise Mismatch(
            f"{table.title} lacks {listed(missing)}, which study {study.name!r} has; it has {listed(table.names)}"
        ).telling(f"the table lacks {listed(missing)}")
    known = {*found.values(), *(name for name in asked.values() if name)}
    if unknown := [name for name in table.names if name not in known]:
        raise _unknown_columns(study, table, unknown)
    places = {name: place for name, place in found.items() if labelled or name not in study.outcomes}
    values = () if labelled else tuple(found.get(name) for name in study.numeric_outcomes)
    return StudyTable(study, table, places, outcome, labelled, group, key, values)


def read_client(study: Study, name: str, source: Any, *, on_bad: OnBad = "refuse", **options: Any) -> Client:
    """Return a party's table as a client of the study; rows that break a rule raise, with their lines, or are left out.

    Rows of a large file are not held: the client reads them in blocks whenever they are needed (`streams`).
    """
    x, labels = collect(open_for(study, source, **options), on_bad, held=streams.HELD_BYTES).samples()
    return as_client(study, name, x, labels)


def as_client(study: Study, name: str, x: Any, labels: Any, **test: Any) -> Client:
    """Return encoded rows as a client; with a numeric outcome, all rows are of one class."""
    return Client(name, x, labels, features=study.features, columns=study.sent, **test)


def gather(table: StudyTable, on_bad: OnBad) -> tuple[Array, Any, Any]:
    """Return all rows that keep all rules, with their labels and groups."""
    found = collect(table, on_bad)
    groups = Coded.joined(found.groups).map(one_form, np.str_) if table.group is not None else None
    return *found.samples(), groups


def _parts(block: Block) -> Iterator[Block]:
    """Yield the rows of a block in smaller blocks."""
    for first in range(0, block.rows, WIDE_ROWS):
        some = slice(first, min(first + WIDE_ROWS, block.rows))
        yield Block(
            block.start + first,
            some.stop - first,
            {name: column[some] for name, column in block.numbers.items()},
            {name: column.rows(some) for name, column in block.texts.items()},
            {name: marked[some] for name, marked in block.bad.items()},
            None if block.ragged is None else block.ragged[some],
            block.share,
            {name: column.rows(some) for name, column in block.odd.items()},
        )


def _matched(study: Study, table: TableFile) -> dict[str, str]:
    """Return the table's columns by the study's names; raise if units in brackets are not the study's.

    The names of ignored columns match without regard to upper and lower case, and without a unit.
    """
    if twice := [name for name in study.derived if name in table.names]:
        raise Mismatch(
            f"{table.title} has {listed(twice)}, which study {study.name!r} computes: rename or remove what the table "
            "has"
        ).telling(f"the table has {listed(twice)}, which the study computes")
    wanted = [name for name in dict.fromkeys((*study.columns, *study.outcomes)) if name not in study.derived]
    ignored = {name.casefold(): name for name, column in study.columns.items() if isinstance(column, Ignore)}
    found = {name: name for name in wanted if name in table.names}
    wrong: list[str] = []
    for header in table.names:
        if header in wanted:
            continue
        name, unit = split_unit(header) or (header, None)
        ignore = next((ignored[each] for each in (header.casefold(), name.casefold()) if each in ignored), None)
        if ignore is not None:
            found.setdefault(ignore, header)
        elif unit is not None and name in wanted and name not in found:
            found[name] = header
            agreed = getattr(study.columns.get(name), "unit", "")
            if not same_unit(unit, agreed):
                wrong.append(f"column {header!r} is in {unit!r}, and the study has {name!r} in {agreed or 'no unit'!r}")
    if wrong:
        raise Mismatch(
            f"{table.title}: {'; '.join(wrong)}: convert the values, or correct the header if it is wrong"
        ).telling("columns have other units than the study")
    return found


def _unknown_columns(study: Study, table: TableFile, unknown: Sequence[str]) -> Mismatch:
    near = get_close_matches(unknown[0], [*study.columns, *study.outcomes], n=1, cutoff=0.6)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return Mismatch(
        f"{table.title} has unknown {listed(unknown)}{hint}: describe what is new in the study, with kind = 'ignore' "
        "if it is not used, or remove it from the table"
    ).telling(f"the table has columns that study {study.name!r} does not know")

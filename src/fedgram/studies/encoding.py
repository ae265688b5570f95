"""From a party's table to the columns that a study sends: aligned by name, checked cell by cell, block by block."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.columns import listed
from fedgram.core.errors import Mismatch
from fedgram.core.progress import with_bar
from fedgram.data.client import Client
from fedgram.data.own.bad import SHOWN, OnBad, Reason, check_on_bad, settle
from fedgram.data.own.blocks import TableFile, open_table
from fedgram.data.own.cells import Block, Coded, Mask, is_missing
from fedgram.data.own.labels import one_form
from fedgram.studies import streams
from fedgram.studies.kinds import Column, Problem, spelt
from fedgram.studies.media import Media
from fedgram.studies.streams import collect
from fedgram.studies.study import Study

WIDE_ROWS = 4096  # at a time, where a cell becomes a thousand features
_WITH_UNIT = re.compile(r"(?P<name>.*\S)\s*[\[(](?P<unit>[^\[\]()]*)[\])]\s*")


@dataclass(frozen=True)
class Rows:
    """Some rows of a table as they are sent: x (n, columns), labels if there are any, and what is wrong with them.

    `x` is written over when the next rows are asked for. Its columns are contiguous. `values` (n, t) are
    numeric outcomes that rows may have and need not, NaN where they have none.
    """

    start: int
    x: Array
    labels: Coded | None
    groups: Coded | None
    keys: Coded | None
    problems: list[Problem]
    share: float  # of the table that has been read
    media: tuple[Coded, ...] = ()  # cells as they stand in the table, of columns that backbones make features of
    values: Array | None = None

    @property
    def good(self) -> Mask:
        """The rows that break no rule."""
        good = np.ones(len(self.x), dtype=bool)
        for problem in self.problems:
            good &= ~problem.cells
        return good

    def only(self, chosen: Mask) -> "Rows":
        """Return some of the rows, without what is wrong with them."""
        labels, groups, keys = (
            None if cells is None else cells.rows(chosen) for cells in (self.labels, self.groups, self.keys)
        )
        x, media = np.asfortranarray(self.x[chosen]), tuple(cells.rows(chosen) for cells in self.media)
        return Rows(self.start, x, labels, groups, keys, [], self.share, media)

    def reasons(self, row: int) -> str:
        """Say what is wrong with a row of these."""
        return "; ".join(problem.of(row) for problem in self.problems if problem.cells[row])


@dataclass(frozen=True)
class StudyTable:
    """A party's table as a study sees it: which of its columns is which of the study's."""

    study: Study
    table: TableFile
    places: dict[str, str]  # the table's column for each of the study's
    outcome: str | None  # the table's column with the classes
    labelled: bool = True  # whether rows must have one
    group: str | None = None
    key: str | None = None
    values: tuple[str | None, ...] = ()  # the table's columns with numeric outcomes, where rows need not have them

    @property
    def folder(self) -> Path:
        """Where files that the table names are: beside it, or in the current folder if it is in memory."""
        return self.table.source.parent if isinstance(self.table.source, Path) else Path()

    @property
    def _used(self) -> dict[str, Column]:
        """The columns that are read; numeric outcomes are the last of them, and only of rows that must have them."""
        return {name: column for name, column in self.study.used.items() if name in self.places}

    @cached_property
    def media(self) -> list[str]:
        """The columns that backbones make features of."""
        return [name for name, column in self._used.items() if isinstance(column, Media)]

    def rows(self) -> Iterator[Rows]:
        """Yield the rows in blocks, as they are sent."""
        used = self._used
        numbers = [self.places[name] for name, column in used.items() if column.numeric]
        numbers += [name for name in self.values if name is not None]
        texts = [self.places[name] for name, column in used.items() if not column.numeric]
        others = [name for name in (self.outcome, self.group, self.key) if name is not None]
        space = np.zeros(0)
        for block in self.table.blocks(numbers, list(dict.fromkeys([*texts, *others]))):
            for part in _parts(block) if self.media else [block]:
                if space.size < part.rows * self._width:
                    space = np.empty(part.rows * self._width)  # fresh memory for each block costs more than to fill it
                yield self._encoded(part, space[: part.rows * self._width].reshape(self._width, -1).T)

    @cached_property
    def _width(self) -> int:
        return sum(len(column.sent(name)) for name, column in self._used.items())

    def _encoded(self, block: Block, x: Array) -> Rows:
        problems = [] if block.ragged is None else [Problem(block.ragged, "a row must have a value for each column")]
        end = 0
        for name, column in self._used.items():
            place, start = self.places[name], end
            end += len(column.sent(name))
            cells: Any = block.numbers[place] if column.numeric else block.texts[place].stripped()
            bad, out = block.bad.get(place), x[:, start:end]
            if isinstance(column, Media):
                problems += column.encode(name, cells, bad, out, self.folder)
            else:
                problems += column.encode(name, cells, bad, out)
        labels, groups, keys = (
            None if name is None else block.texts[name].stripped() for name in (self.outcome, self.group, self.key)
        )
        labels = None if labels is None else spelt(labels, self.study.classes)
        if labels is not None and self.labelled:
            problems += self._wrong_labels(labels)
        if groups is not None and (empty := groups.map(is_missing, bool)).any():
            problems.append(Problem(empty, f"column {self.group!r} must not be empty"))
        if block.ragged is not None:  # of such a row nobody knows which cell is which
            others = [replace(problem, cells=problem.cells & ~block.ragged) for problem in problems[1:]]
            problems = [problems[0], *(problem for problem in others if problem.cells.any())]
        media = tuple(block.texts[self.places[name]] for name in self.media)
        return Rows(block.start, x, labels, groups, keys, problems, block.share, media, self._values(block))

    def _values(self, block: Block) -> Array | None:
        """Return the numeric outcomes of rows that need not have them, NaN where a rule of the study refuses one."""
        if not any(self.values):
            return None
        found, outcomes = np.full((block.rows, len(self.values)), np.nan), self.study.numeric({})
        assert outcomes is not None
        for place, (name, given) in enumerate(zip(outcomes.names, self.values, strict=True)):
            if given is not None:
                out = found[:, place : place + 1]
                for problem in self.study.columns[name].encode(name, block.numbers[given], block.bad.get(given), out):
                    out[problem.cells] = np.nan
        return outcomes.in_own_unit(found)

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
        """Yield the rows that break no rule, in blocks, once `good_rows` has settled what becomes of the others."""
        for rows in self.rows():
            good = rows.good
            yield rows if good.all() else rows.only(good)

    def good_rows(self, on_bad: OnBad) -> Iterator[Rows]:
        """Yield the rows that break no rule, in blocks; the others are refused at the end, or left out."""
        check_on_bad(on_bad)
        kept = bad = 0
        described: dict[int, Reason] = {}
        for rows in with_bar(self.rows(), f"reading {self.table.title}"):
            good = rows.good
            wrong = np.flatnonzero(~good).tolist()
            for row in wrong[: SHOWN - len(described)]:
                rules = "; ".join(problem.rule for problem in rows.problems if problem.cells[row])
                described[rows.start + row] = Reason(rows.reasons(row), rules)
            bad += len(wrong)
            kept += len(good) - len(wrong)
            yield rows.only(good) if wrong else rows
        where = self.table.find(described)
        reasons = [reason.at(where[place][0]) for place, reason in described.items()]
        settle(reasons, kept, self.table.title, "row", on_bad, total=bad)


def open_for(
    study: Study, source: Any, *, labelled: bool = True, group: str | None = None, key: str | None = None
) -> StudyTable:
    """Return a table (a file, or one in memory) as the study sees it; columns are matched by name, or refused.

    `group` and `key` are columns that say whose a row is, and which. Without `labelled` the outcome may be missing, and
    is not checked where it is there.
    """
    table = open_table(source)
    asked = {"client": group, "id": key}
    for what, name in asked.items():
        if name is not None and name not in table.names:
            raise Mismatch(f"{table.title} has no {what} column {name!r}: it has {listed(table.names)}")
    found = _matched(study, table)
    missing = [name for name in study.used if name not in found and (labelled or name not in study.outcomes)]
    outcome = None
    if study.classes:
        [name] = study.outcomes
        outcome = found.get(name)
        if outcome is None and labelled:
            missing.append(name)
    if missing:
        raise Mismatch(
            f"{table.title} lacks {listed(missing)}, which study {study.name!r} has; it has {listed(table.names)}"
        ).telling(f"the table lacks {listed(missing)}")
    known = {*found.values(), *(name for name in asked.values() if name)}
    if unknown := [name for name in table.names if name not in known]:
        raise _unknown_columns(study, table, unknown)
    places = {name: place for name, place in found.items() if labelled or name not in study.outcomes}
    values = () if labelled else tuple(found.get(name) for name in study.targets)
    return StudyTable(study, table, places, outcome, labelled, group, key, values)


def read_client(study: Study, name: str, source: Any, *, on_bad: OnBad = "refuse", **options: Any) -> Client:
    """Return a party's table as a client of the study; rows that break a rule are refused by line, or left out.

    Rows of a large file are not held: the client reads them in blocks whenever they are needed (`streams`).
    """
    x, labels = collect(open_for(study, source, **options), on_bad, held=streams.HELD_BYTES).samples()
    return as_client(study, name, x, labels)


def as_client(study: Study, name: str, x: Any, labels: Any, **test: Any) -> Client:
    """Return encoded rows as a client; where the outcome is a number, all rows are of one class."""
    return Client(name, x, labels, features=study.features, columns=study.sent, **test)


def gather(table: StudyTable, on_bad: OnBad) -> tuple[Array, Any, Any]:
    """Return all rows that break no rule, their labels and groups."""
    found = collect(table, on_bad)
    groups = Coded.joined(found.groups).map(one_form, np.str_) if table.group is not None else None
    return *found.samples(), groups


def _parts(block: Block) -> Iterator[Block]:
    """Yield the rows of a block in smaller ones."""
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
        )


def _matched(study: Study, table: TableFile) -> dict[str, str]:
    """Return the table's column for each of the study's that it has; a unit in brackets must be the study's."""
    wanted = [*study.columns, *(name for name in study.outcomes if name not in study.columns)]
    found = {name: name for name in wanted if name in table.names}
    for name in table.names:
        given = _WITH_UNIT.fullmatch(name)
        if name in wanted or given is None or given["name"] not in wanted or given["name"] in found:
            continue
        unit = getattr(study.columns.get(given["name"]), "unit", "")
        if given["unit"].strip() != unit:
            raise Mismatch(
                f"{table.title}: column {name!r} is in {given['unit'].strip()!r}, and the study has {given['name']!r} "
                f"in {unit or 'no unit'!r}: convert it"
            ).telling(f"column {given['name']!r} has another unit than the study")
        found[given["name"]] = name
    return found


def _unknown_columns(study: Study, table: TableFile, unknown: Sequence[str]) -> Mismatch:
    near = get_close_matches(unknown[0], [*study.columns, *study.outcomes], n=1, cutoff=0.6)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return Mismatch(
        f"{table.title} has unknown {listed(unknown)}{hint}: describe what is new in the study, with kind = 'ignore' "
        "if it is not used, or remove it from the table"
    ).telling(f"the table has columns that study {study.name!r} does not know")

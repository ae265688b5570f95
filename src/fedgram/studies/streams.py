"""Rows of a party's table as samples: in memory if they are few, otherwise read anew from the file on each pass."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.threads import beside_reading
from fedgram.data.client import StreamedLabels, StreamedRows
from fedgram.data.own.bad import OnBad
from fedgram.data.own.blocks import stacked
from fedgram.data.own.cells import Coded, Mask

if TYPE_CHECKING:
    from fedgram.studies.encoding import Rows, StudyTable

# Most bytes of encoded rows that are held: 130,000 rows of 64 columns. Some steps take several times that memory.
HELD_BYTES = 1 << 26
Samples: TypeAlias = tuple[Any, Any]  # x and y: arrays, or StreamedRows and StreamedLabels


@dataclass
class Collected:
    """The rows of a table that keep all rules, with their labels and clients.

    `parts` is None if the rows are too many for memory. `aside` marks, block by block, the rows that are set aside.
    """

    table: "StudyTable"
    parts: list[Array] | None = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    labels: list[Coded] = field(default_factory=list)
    groups: list[Coded] = field(default_factory=list)
    aside: list[Mask] = field(default_factory=list)

    def samples(self) -> Samples:
        """Return all samples and their labels."""
        return self._streamed(None) if self.parts is None else self._held()

    def split(self) -> tuple[Samples, Samples]:
        """Return the samples that were not set aside, and those that were."""
        aside = np.concatenate([np.zeros(0, dtype=bool), *self.aside])
        if self.parts is None:
            return self._streamed(~aside), self._streamed(aside)
        x, labels = self._held()
        return (x[~aside], labels[~aside]), (x[aside], labels[aside])

    def _held(self) -> Samples:
        assert self.parts is not None
        width = self.parts[0].shape[1] if self.parts else len(self.table.study.sent)
        x = stacked(self.parts, width)
        if self.table.outcome is None:
            return x, np.zeros(len(x), dtype=np.int64)
        return x, Coded.joined(self.labels).map(str, np.str_)

    def _streamed(self, chosen: Mask | None) -> Samples:
        labels, table = self._compact(), self.table.table
        # The table may be read again from another working folder.
        study_table = replace(self.table, table=replace(table, source=table.source.absolute()))
        if chosen is None:
            return TableRows(study_table, tuple(self.sizes)), labels
        ends = np.cumsum([0, *self.sizes])
        counts = [int(np.count_nonzero(chosen[a:b])) for a, b in pairwise(ends)]
        rows = TableRows(study_table, tuple(count for count in counts if count), chosen)
        return rows, StreamedLabels(labels.values, labels.codes[chosen])

    def _compact(self) -> StreamedLabels:
        """Return the labels as codes of few bytes."""
        if self.table.outcome is None:
            return StreamedLabels((0,), np.zeros(sum(self.sizes), dtype=np.uint8))
        labels = Coded.joined(self.labels)
        return StreamedLabels(tuple(labels.values), labels.codes)


@dataclass(frozen=True, eq=False)
class TableRows(StreamedRows):
    """The rows of a table's file as a study sends them, read and encoded anew on each pass.

    `chosen` selects among the rows that keep all rules, None for all. A file that has changed since it was first
    read is refused, because its rows would no longer fit their labels.
    """

    table: "StudyTable"
    sizes: tuple[int, ...]
    chosen: Mask | None = None

    @property
    def width(self) -> int:
        """The number of columns that the study sends."""
        return len(self.table.study.sent)

    def __iter__(self) -> Iterator[Array]:
        with beside_reading(self.width):
            yield from self._blocks()

    def _blocks(self) -> Iterator[Array]:
        start, sizes = 0, iter(self.sizes)
        for rows in self.table.clean_rows():
            end = start + len(rows.x)
            x = rows.x if self.chosen is None else rows.x[self.chosen[start:end]]
            start = end
            if len(x):
                if len(x) != next(sizes, None):
                    raise self.table.table.changed()
                yield np.array(x, order="C")  # a copy: the next block overwrites the rows
        if next(sizes, None) is not None:
            raise self.table.table.changed()


def collect(
    table: "StudyTable",
    on_bad: OnBad,
    *,
    held: float = inf,
    aside: "Callable[[Rows], Mask] | None" = None,
) -> Collected:
    """Return the rows of a table, read once; if they take more than `held` bytes, they are not kept.

    `aside` returns a mask of the rows of a block to set aside.
    """
    if not isinstance(table.table.source, Path):
        held = inf  # it is in memory already
    found = Collected(table)
    if (table.table.rows or 0) * len(table.study.sent) * 8 > held:
        found.parts = None
    for rows in table.good_rows(on_bad):
        found.sizes += [len(rows.x)] if len(rows.x) else []
        found.labels += [] if rows.labels is None else [rows.labels.compact()]
        found.groups += [] if rows.groups is None else [rows.groups]
        if aside is not None:
            found.aside.append(aside(rows))
        if found.parts is not None:
            found.parts.append(np.array(rows.x, order="C"))
            if sum(found.sizes) * rows.x.shape[1] * 8 > held:
                found.parts = None
    return found

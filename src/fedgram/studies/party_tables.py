"""A party's table under a study, read block by block: the rows that do not fit, and the moments that are sent."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.core.classes import Label
from fedgram.core.errors import Withheld
from fedgram.core.progress_bars import with_bar
from fedgram.core.threads import beside_reading
from fedgram.data.own.bad import OnBad
from fedgram.data.own.cells import Mask, is_missing
from fedgram.data.own.labels import names_identifier
from fedgram.moments.accumulate import Accumulator
from fedgram.moments.moments import Moments
from fedgram.studies.encoding import LeftOut, Rows, StudyTable, open_for
from fedgram.studies.kinds import unknown
from fedgram.studies.small_groups import Group, Keys, Patterns
from fedgram.studies.study import Study

Seen: TypeAlias = Callable[[Array, npt.NDArray[np.int64], Keys], None]


@dataclass(frozen=True)
class PartySums:
    """The moments of a party's table, and counts that moments do not hold.

    Attributes
    ----------
    moments
        The sums that are sent.
    left_out
        Counts of the rows that are not in them.
    imputed
        How many rows have a missing value for which a model will take the pooled mean.
    groups
        Groups below the usual limit that the study allows the sums to single out.

    """

    moments: Moments
    left_out: LeftOut
    imputed: int
    groups: tuple[Group, ...]

    def dropped(self, least: int) -> dict[str, int]:
        """Return the rows that were left out by the column that they lack, without counts below `least`."""
        return {name: count for name, count in self.left_out.by_column.items() if count >= max(least, 1)}


def summarize(study: Study, party: str, source: Any, *, on_bad: OnBad = "refuse") -> Moments:
    """Return the moments of a party's table (a file, or one in memory), as a fit would ask the party for.

    Rows that break a rule raise with their lines, or are left out; a party below the study's thresholds raises. Only a
    block of the table is in memory at a time.
    """
    return sum_up(study, party, source, on_bad=on_bad).moments


def sum_up(study: Study, party: str, source: Any, *, on_bad: OnBad = "refuse", seen: Seen | None = None) -> PartySums:
    """Return the moments of a party's table as `summarize` does, with the counts of rows left out and imputed.

    `seen` is called with the rows, classes and patterns of each block.
    """
    table, kind = open_for(study, source), study.schema
    total = Accumulator(kind.dimension, len(kind.classes))
    counts = np.zeros(len(kind.classes), dtype=np.int64)
    patterns, imputed = Patterns(study), 0
    with beside_reading(kind.dimension):
        for rows in table.good_rows(on_bad):
            labels = _class_indices(study, rows)
            total.add_columns(rows.x, labels)
            counts += np.bincount(labels, minlength=len(counts))
            keys = patterns.see(rows.x, labels)
            imputed += patterns.imputed(keys)
            if seen is not None:
                seen(rows.x, labels, keys)
    study.admit_patterns(party, counts, patterns)
    moments = Moments(kind, sums=total.sums[counts > 0], counts=counts, packed=total.packed)
    allowed = patterns.small(Study.minimum_cell) if study.smallest_group < Study.minimum_cell else []
    return PartySums(moments, table.left_out, imputed, tuple(allowed))


def _class_indices(study: Study, rows: Rows) -> npt.NDArray[np.int64]:
    """Return the classes of rows that keep all rules, as places among those of the study."""
    if rows.labels is None:
        return np.zeros(len(rows.x), dtype=np.int64)
    place = {label: index for index, label in enumerate(study.classes)}
    # Texts that only rows left out have are not classes; -1 is never used for a row.
    return rows.labels.map(lambda text: place.get(text, -1), np.int64)


def _why_refused(study: Study, title: str, counts: npt.NDArray[np.int64], patterns: Patterns) -> list[str]:
    """Return the reason why `summarize` would refuse the rows that fit, if it would."""
    try:
        study.admit_patterns(title, counts, patterns)
    except Withheld as error:
        return [str(error)]
    return []


def missing_counts(study: Study, moments: Moments) -> dict[str, dict[Label, int]]:
    """Return by column and class the number of samples with a missing value, exactly, for columns that allow it.

    With a numeric outcome, all samples are of one class.
    """
    places = {name: index for index, name in enumerate(study.sent)}
    return {
        name: dict(zip(moments.classes, map(int, moments.cross[places[unknown(name)]]), strict=True))
        for name in study.used
        if unknown(name) in places
    }


SHOWN = 5  # lines of each rule


@dataclass
class Findings:
    """The findings in a table: rows, samples by class, and the lines that break each rule.

    `refused` has the reason if the rows that fit may not be sent. `repeated` has rows and ids that occur more than
    once, which may be right.
    """

    rows: int = 0
    good: int = 0
    classes: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    left_out: LeftOut = field(default_factory=LeftOut)
    broken: dict[str, list[str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        """Whether every row can be used, and they are enough to be sent."""
        return not self.broken and not self.refused

    def lines(self) -> Iterator[str]:
        """Yield a line of text for each rule that is broken."""
        for rule, examples in self.broken.items():
            more = self.counts[rule] - len(examples)
            yield f"{rule}: {'; '.join(examples)}" + (f"; and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class Again:
    """Rows that repeat an earlier one: how many, and a few pairs of row numbers."""

    rows: int
    pairs: list[tuple[int, int]]

    @property
    def places(self) -> set[int]:
        """The row numbers in the pairs."""
        return {place for pair in self.pairs for place in pair}

    def told(self, column: str, where: dict[int, tuple[str, list[str]]]) -> str:
        """Return a line on rows that are copies, or that have the id of another one in a column."""
        pairs = "; ".join(f"{where[one][0]} and {where[other][0]}" for one, other in self.pairs)
        more = "; …" if self.rows > len(self.pairs) else ""
        one = self.rows == 1
        if column:
            what = f"{'row has' if one else 'rows have'} an id in column {column!r} that another row has"
        else:
            what = "row is a copy of another row" if one else "rows are copies of another row"
        return f"{self.rows:,} {what}: {pairs}{more}"


@dataclass
class Repeats:
    """A search for equal rows by a hash of 64 bits for each, in 16 bytes a row."""

    hashes: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    places: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def add(self, hashes: npt.NDArray[np.uint64], start: int, chosen: Mask | None = None) -> None:
        """Add a block of rows, or those that are chosen."""
        places = np.arange(start, start + len(hashes))
        self.hashes.append(hashes if chosen is None else hashes[chosen])
        self.places.append(places if chosen is None else places[chosen])

    def found(self, wanted: bool = True) -> Again:
        """Return the rows that repeat an earlier one; none if most do, unless rows are `wanted` to differ."""
        hashes = np.concatenate([np.zeros(0, np.uint64), *self.hashes])
        places = np.concatenate([np.zeros(0, np.int64), *self.places])
        order = np.argsort(hashes, kind="stable")
        again = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
        if not wanted and len(again) > len(hashes) / 2:
            return Again(0, [])
        first = [(int(places[order[i]]), int(places[order[i + 1]])) for i in again[:SHOWN].tolist()]
        return Again(len(again), sorted(first, key=lambda pair: pair[1]))


def _is_id(table: StudyTable, name: str) -> bool:
    """Return whether a column of a table looks like one of ids, and the study ignores it."""
    return name in table.ignored and names_identifier(name)


def _hashed(rows: Rows) -> npt.NDArray[np.uint64]:
    """Return a hash of each row with all of its cells."""
    found = np.zeros(len(rows.x), dtype=np.uint64)
    texts = [cells for cells in (*rows.also, *rows.media, rows.labels) if cells is not None]
    columns = (rows.x[:, place] + 0.0 for place in range(rows.x.shape[1]))  # -0.0 becomes 0.0
    for hashes in (*(column.view(np.uint64) for column in columns), *(cells.map(_hash, np.uint64) for cells in texts)):
        found = (found ^ hashes) * _FACTOR
        found ^= found >> np.uint64(29)
    return found


_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, with many digits: neighbours end far apart


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "little")


def check_table(study: Study, source: Any, *, group: str | None = None, key: str | None = None) -> Findings:
    """Return the findings, with line numbers; a missing or unknown column raises at once.

    `group` is the column with a row's client, and `key` one of ids.
    """
    table = open_for(study, source, group=group, key=key)
    ids = {name: Repeats() for name in table.table.names if name != group and (name == key or _is_id(table, name))}
    patterns, counts = Patterns(study), np.zeros(max(len(study.classes), 1), dtype=np.int64)
    table = replace(table, also=tuple(dict.fromkeys((*table.ignored, *ids))))
    whole = Repeats()
    found = Findings(classes=dict.fromkeys(map(str, study.classes), 0))
    places = {name: place for place, name in enumerate(study.sent)}
    may_lack = [unknown(name) for name, column in study.used.items() if unknown(name) in column.sent(name)]
    examples: dict[str, dict[int, str]] = {}  # of each rule, what is said of a row
    for rows in with_bar(table.rows(), f"reading {table.table.title}"):
        good = rows.good
        found.rows += len(good)
        found.good += int(good.sum())
        if rows.labels is not None:
            for label, count in rows.labels.rows(good).counts().items():
                found.classes[label] += count
        for name in may_lack:
            found.missing[name] = found.missing.get(name, 0) + int(rows.x[good, places[name]].sum())
        found.left_out.add(rows)
        fit = rows.only(good)
        labels = _class_indices(study, fit)
        counts += np.bincount(labels, minlength=len(counts))
        patterns.see(fit.x, labels)
        whole.add(_hashed(rows), rows.start)
        for name, repeats in ids.items():
            cells = rows.also[table.also.index(name)]
            repeats.add(cells.map(_hash, np.uint64), rows.start, ~cells.map(is_missing, bool))
        for problem in rows.problems:
            if problem.column:
                continue
            shown = examples.setdefault(problem.rule, {})
            for row in np.flatnonzero(problem.cells)[: SHOWN - len(shown)].tolist():
                shown[rows.start + row] = problem.of(row).removeprefix(problem.rule).lstrip(", ")
            found.counts[problem.rule] = found.counts.get(problem.rule, 0) + int(problem.cells.sum())
    twice = {"": whole.found()} | {
        name: again for name, repeats in ids.items() if (again := repeats.found(name == key))
    }
    found.refused = _why_refused(study, table.table.title, counts, patterns)
    named = {place for shown in examples.values() for place in shown}
    where = table.table.find(named.union(*(again.places for again in twice.values())))
    found.repeated = [again.told(name, where) for name, again in twice.items() if again.rows]
    for rule, shown in examples.items():
        found.broken[rule] = [f"{where[row][0]} ({told})" if told else where[row][0] for row, told in shown.items()]
    return found

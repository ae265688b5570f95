"""Small groups: samples that the sums of a party single out, so that their values can be read.

XᵀX has a row for every indicator (of a level, a flag or a gap). If one patient alone has a level, that row is the
patient. A difference of two rows can be a patient, too, as can any combination of rows. So the rule is about the span
of all indicators: the constant, the classes, levels, flags and gaps. A group can be read if the vector with 1 for its
samples and 0 for all others lies in that span.

All samples with the same indicators form a pattern, and such a vector is constant on each pattern. `Patterns` counts
the patterns while a table is read. Two searches follow:

- By columns, which needs only the Gram matrix of the indicators: each indicator, its complement, and the first level
  of a category. Of two indicators, the difference if one includes the other, and the rest if they exclude each other.
- By patterns: each pattern, each two of them, and more, as far as these are at most `MOST_SETS` sets. A pattern is in
  the span if its leverage, times its count, is 1. This finds every single sample and every two samples in any
  combination of columns.

Columns of numbers are searched in two ways. Each alone is looked at for a few samples that are far from all others
(`Extremes`). And all columns together, of numbers and indicators, span vectors that are 0 for all but few samples: with
a flag for intensive care, the days in it show the one patient who had more than one day, and a difference of two
patients shows in which columns they differ (`Combined`).

A larger group of three and more patterns is not found if there are too many sets and no two columns single it out. If a
table has more patterns than fit into `MOST_BYTES`, only the first search is made.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import ceil, comb
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.studies.kinds import Category, Flag, Number, unknown

if TYPE_CHECKING:
    from fedgram.moments.moments import Moments
    from fedgram.studies.study import Study

MOST_BYTES = 1 << 26  # of distinct patterns with their counts
CELLS = 1 << 21  # of indicators that are unpacked at a time
WORD = 52  # bits of a word that are used: sums of so many powers of two are exact as floats
WORD_BYTES = 8
LOST = 1e-11  # eigenvalues below this share count as zero: the indicators are linearly dependent
IN_SPAN = 1e-6  # squared distance from the span at which a vector counts as in it
MOST_PAIRED = 2000  # patterns
MOST_SETS = 100_000  # of three and more patterns
MOST_PRUNED = 60  # indicators of a combination that are tried one by one for whether it needs them
ROUNDING = 1e-9  # of the number of rows that columns need
NEARLY = 1e-3  # share of a column's squared deviations that may belong to other samples
MOST_COLUMNS = 300  # of numbers and indicators together
MOST_COMBINED = 1000  # samples that are looked at in pairs
LEVERAGE = 0.02  # below which a sample is not looked at; so of two samples, one may count seven times the other
EXACTLY = 1e-8  # the same share where samples are so few that combinations nearly belong to some by chance
ROWS = 1 << 11  # of all columns that are added at a time
SHOWN = 5  # columns of a combination, groups of an error

Keys: TypeAlias = npt.NDArray[np.uint64]  # (words, patterns): a bit for each indicator, then the class
Counts: TypeAlias = npt.NDArray[np.int64]


class Group(NamedTuple):
    """Samples that can be singled out: how many, by what name, and by which columns of the study."""

    samples: int
    name: str
    columns: tuple[str, ...]
    gap: bool = False  # whether a missing value singles them out


@dataclass(frozen=True)
class Vector:
    """A vector of 0 and 1 that a reader of the sums knows: indicators of the table, added with these factors."""

    name: str
    column: str  # of the study, "" for the constant
    factors: dict[int, float]  # by place in `Indicators.names`
    gap: bool = False


class Indicators:
    """The columns of 0 and 1 in what a study sends: the constant, a column per class, levels, flags and gaps.

    `names` are those of all of them in this order, `places` those of levels, flags and gaps among the columns sent,
    `imputed` which of these are gaps that a model fills with the pooled mean.
    """

    def __init__(self, study: "Study") -> None:
        self.classes = study.targets.classes if study.classes else ()
        self.names = ["samples", *map(str, self.classes)]
        self.places: list[int] = []
        self.imputed: list[int] = []
        constant = {0: 1.0}
        self.vectors = [Vector(str(label), study.outcomes[0], {k: 1.0}) for k, label in enumerate(self.classes, 1)]
        place, others = 0, []
        for name, column in study.used.items():
            own: list[int] = []
            for sent in column.sent(name):
                is_gap = sent == unknown(name)
                if is_gap or isinstance(column, Category | Flag):
                    own.append(len(self.names))
                    shown = f"{name}=yes" if isinstance(column, Flag) and not is_gap else sent
                    self.vectors.append(Vector(shown, name, {own[-1]: 1.0}, is_gap))
                    self.names.append(sent)
                    self.imputed += [len(self.places)] if is_gap and not isinstance(column, Category) else []
                    self.places.append(place)
                place += 1
            rest = constant | dict.fromkeys(own, -1.0)
            if isinstance(column, Category):  # the first level has no column of its own
                others.append(Vector(f"{name}={column.values[0]}", name, rest))
            elif isinstance(column, Flag):
                others.append(Vector(f"{name}=no", name, rest))
        self.vectors += others

    @property
    def matrix(self) -> Array:
        """The factors of all vectors, (vectors, indicators)."""
        found = np.zeros((len(self.vectors), len(self.names)))
        for row, vector in enumerate(self.vectors):
            found[row, list(vector.factors)] = list(vector.factors.values())
        return found

    def gram(self, moments: "Moments") -> Array:
        """Return the Gram matrix of the indicators, which moments hold."""
        c = 1 + len(self.classes)
        found = np.zeros((len(self.names), len(self.names)))
        found[0, 0] = moments.n
        if self.classes:
            found[0, 1:c] = moments.counts
            found[range(1, c), range(1, c)] = moments.counts
            found[1:c, c:] = moments.cross[self.places].T
        found[0, c:] = moments.cross[self.places].sum(axis=1)
        found[c:, c:] = moments.gram[np.ix_(self.places, self.places)]
        return np.rint(np.triu(found) + np.triu(found, 1).T)


def groups_by_columns(indicators: Indicators, gram: Array, least: int) -> list[Group]:
    """Return the groups of 1 to `least` - 1 samples that one or two vectors single out, by their Gram matrix."""
    vectors, matrix, n = indicators.vectors, indicators.matrix, int(gram[0, 0])
    pairs = np.rint(matrix @ gram @ matrix.T)
    counts = np.diagonal(pairs)
    varies = (counts > 0) & (counts < n)
    found: dict[frozenset[str], Group] = {}

    def note(size: float, name: str, *of: Vector) -> None:
        columns = tuple(dict.fromkeys(vector.column for vector in of))
        found.setdefault(frozenset(columns), Group(int(size), name, columns, any(vector.gap for vector in of)))

    def few(sizes: Array) -> npt.NDArray[np.bool_]:
        return (sizes > 0) & (sizes < min(least, n))

    for k in np.flatnonzero(few(counts)).tolist():
        note(counts[k], vectors[k].name, vectors[k])
    for k in np.flatnonzero(few(n - counts)).tolist():
        note(n - counts[k], f"not {vectors[k].name}", vectors[k])
    pairwise = (
        ("{} but not {}", lambda k: (pairs[k] == counts, counts[k] - counts)),
        ("neither {} nor {}", lambda k: (pairs[k] == 0, n - counts[k] - counts)),
        ("{} and {}", lambda k: (counts[k] + counts - pairs[k] == n, pairs[k])),
    )
    plain = varies & np.array(
        [len(vector.factors) == 1 for vector in vectors], dtype=bool
    )  # they have the simpler names
    for among, (text, of) in () if found else product((plain, varies), pairwise):
        for k in np.flatnonzero(among).tolist():
            is_one, sizes = of(k)
            for other in np.flatnonzero(among & is_one & few(sizes)).tolist():
                name = text.format(vectors[k].name, vectors[other].name)
                note(sizes[other], name, vectors[k], vectors[other])
    return sorted(found.values())


def groups_in_classes(indicators: Indicators, gram: Array, least: int) -> list[Group]:
    """Return the groups of 1 to `least` - 1 samples of one class that share a level, a flag or a gap."""
    matrix = indicators.matrix
    of_class = np.rint(matrix @ gram[:, 1 : 1 + len(indicators.classes)])
    found = []
    for row, place in zip(*np.nonzero((of_class > 0) & (of_class < least)), strict=True):
        vector = indicators.vectors[int(row)]
        if row >= len(indicators.classes):
            name = f"{indicators.classes[int(place)]}, {vector.name}"
            found.append(Group(int(of_class[row, place]), name, (vector.column,), vector.gap))
    return sorted(found)


class Extremes:
    """The largest deviations of columns of numbers from their usual values, collected block by block.

    A number that is the same for all but few samples singles these out, such as a count that is 0 for all but one; so
    does a column that the study computes, such as a product of two flags or, by intent, exp(-1000 * abs(age - 97)).
    Less its usual value, such a column is as good as an indicator of these samples.
    """

    def __init__(self, study: "Study") -> None:
        places = {sent: place for place, sent in enumerate(study.sent)}
        numbers = {name: column for name, column in study.used.items() if isinstance(column, Number)}
        # Name, place, and place of the gap of the columns that may still have so few.
        self.open = [(name, places[name], places.get(unknown(name))) for name in numbers]
        self._most = max(study.smallest_group, type(study).minimum_cell, 2) - 1
        # In units of the range a value is at most 2 from another one. If the other samples deviate by more than this in
        # all, no samples to come can have nearly all deviations.
        enough = 4 * self._most * NEARLY / (1 - NEARLY)
        self._enough = {name: np.inf if column.range is None else enough for name, column in numbers.items()}
        self._usual: dict[str, float] = {}
        self._sums = dict.fromkeys(numbers, 0.0)
        self._largest = {name: np.zeros(0) for name in numbers}

    def add(self, x: Array) -> None:
        """Add some samples (n, columns) as they are sent."""
        left = []
        for name, place, gap in self.open:
            known = x[:, place] if gap is None else x[x[:, gap] == 0, place]
            if len(known):
                far = np.square(known - self._usual.setdefault(name, float(np.median(known))))
                self._sums[name] += float(far.sum())
                both = np.concatenate([self._largest[name], far])
                self._largest[name] = np.sort(
                    np.partition(both, -self._most)[-self._most :] if len(both) > self._most else both
                )
            if self._sums[name] - self._largest[name].sum() <= self._enough[name]:
                left.append((name, place, gap))
        self.open = left

    def groups(self, least: int) -> list[Group]:
        """Return the groups of 1 to `least` - 1 samples to which nearly all deviations from a usual value belong."""
        found = []
        for name, _, _ in self.open:
            total = self._sums[name]
            share = np.cumsum(self._largest[name][::-1][: least - 1]) >= (1 - NEARLY) * total
            if total > 0 and share.any():
                found.append(Group(int(share.argmax()) + 1, f"{name} far from its usual value", (name,)))
        return found


class Combined:
    """The samples that columns of numbers and indicators together may single out, collected block by block.

    These are samples to which nearly all of some combination belongs: of a number that is a sum of two others but for
    one typing error, the error shows the sample. Such samples have a large leverage in the span of all columns but
    features of backbones. More samples make a leverage smaller, and all leverages add up to the number of columns. So
    few rows are kept, however long the table.
    """

    def __init__(self, study: "Study", indicators: Indicators) -> None:
        places = {sent: place for place, sent in enumerate(study.sent)}
        self._indicators = indicators
        self._numbers = [name for name, column in study.used.items() if isinstance(column, Number)]
        self._places = [*indicators.places, *(places[name] for name in self._numbers)]
        size = len(indicators.names) + len(self._numbers)
        self._searched = bool(self._numbers) and size <= MOST_COLUMNS
        self._usual: Array | None = None
        self._gram = np.zeros((size, size) if self._searched else (0, 0))
        self._kept, self._new = np.zeros((0, size)), list[Array]()

    def add(self, x: Array, labels: npt.NDArray[np.int64]) -> None:
        """Add some samples (n, columns) as they are sent, and their classes."""
        if not self._searched or not len(x):
            return
        first = len(self._indicators.names) - len(self._indicators.places)
        rows = np.zeros((len(x), self._kept.shape[1]))
        rows[:, 0] = 1.0
        if self._indicators.classes:
            rows[np.arange(len(rows)), 1 + labels] = 1.0
        rows[:, first:] = x[:, self._places]
        numbers = rows[:, len(self._indicators.names) :]
        if self._usual is None:  # numbers far from zero lose digits
            self._usual = np.median(numbers, axis=0)
        numbers -= self._usual
        self._new.append(rows)
        if sum(len(new) for new in self._new) > max(ROWS, 8 * len(self._gram)):
            self._merge()

    def _merge(self) -> None:
        new = np.concatenate([self._kept[:0], *self._new])
        self._gram += new.T @ new
        self._kept, self._new = np.concatenate([self._kept, new]), []
        self._kept = self._kept[np.square(self._inside(self._kept)).sum(axis=1) > LEVERAGE]

    def _inside(self, rows: Array) -> Array:
        """Return rows as seen in the span of all columns, (n, rank)."""
        scale = 1 / np.sqrt(np.maximum(np.diagonal(self._gram), np.finfo(float).tiny))
        values, directions = np.linalg.eigh(self._gram * np.outer(scale, scale))
        kept = values > LOST
        return np.asarray((rows * scale) @ (directions[:, kept] / np.sqrt(values[kept])))

    def groups(self, least: int) -> list[Group]:
        """Return groups of 1 to `least` - 1 samples to which nearly all of some combination of columns belongs."""
        if not self._searched or least < 2:
            return []
        self._merge()
        inside = self._inside(self._kept)
        n, reach = round(self._gram[0, 0]), np.square(inside).sum(axis=1)
        spare = n - inside.shape[1]
        if spare < least:  # some combination belongs to any so few samples, and a reader cannot tell which
            return []
        tolerance = NEARLY if spare >= 2 * least else EXACTLY
        few = np.argsort(-reach)[:MOST_COMBINED]
        left = np.eye(len(few)) - inside[few] @ inside[few].T
        for sets in _sets(len(few), least):
            # The share that a combination has outside of these samples, at the least.
            outside = np.linalg.eigvalsh(left[sets[:, :, None], sets[:, None, :]])[:, 0]
            found = sets[outside < tolerance]
            if len(found):
                return [self._named(few[chosen], left[np.ix_(chosen, chosen)]) for chosen in found[:SHOWN]]
        return []

    def _named(self, chosen: npt.NDArray[np.intp], left: Array) -> Group:
        """Return the group of some samples, named after the columns of the combination that belongs to them."""
        weights, known = np.linalg.eigh(left)[1][:, 0], len(self._indicators.names)
        needed = _needed(self._gram, weights @ self._kept[chosen], 1.0, 2 * NEARLY)
        by_name = {next(iter(v.factors)): v for v in self._indicators.vectors if len(v.factors) == 1}
        vectors = [by_name[place] for place in needed if place in by_name]
        names = [self._numbers[place - known] for place in needed if place >= known]
        columns = tuple(dict.fromkeys([*(vector.column for vector in vectors), *names]))
        name = _combination([*(vector.name for vector in vectors), *names])
        return Group(len(chosen), name, columns, any(vector.gap for vector in vectors))


class Patterns:
    """The distinct rows of indicators in a table, with their counts, collected block by block."""

    def __init__(self, study: "Study") -> None:
        self.indicators = Indicators(study)
        self._extremes, self._combined = Extremes(study), Combined(study, self.indicators)
        self._bits = len(self.indicators.places)
        self._class_bits = max(len(self.indicators.classes) - 1, 0).bit_length()
        self._words = max(1, -(-(self._bits + self._class_bits) // WORD))
        self._gaps: Keys = np.zeros((self._words, 1), dtype=np.uint64)
        for bit in self.indicators.imputed:
            self._gaps[bit // WORD] |= np.uint64(1 << bit % WORD)
        self._keys: Keys = np.zeros((self._words, 0), dtype=np.uint64)
        self._counts: Counts = np.zeros(0, dtype=np.int64)
        self._new: list[tuple[Keys, Counts]] = []
        self._dropped: Array | None = None  # Gram matrix of patterns for which there was no room

    @property
    def width(self) -> int:
        """The bytes of a packed pattern."""
        return self._words * WORD_BYTES

    def keys(self, x: Array, labels: npt.NDArray[np.int64]) -> Keys:
        """Return the patterns of some samples, as packed bits (words, n)."""
        keys = np.zeros((self._words, len(x)), dtype=np.uint64)
        for word in range(-(-self._bits // WORD)):
            places = self.indicators.places[word * WORD : (word + 1) * WORD]
            chosen = (x[:, places] != 0).astype(np.float64)
            keys[word] = chosen @ np.exp2(np.arange(len(places)))  # faster than to shift bits
        codes = labels.astype(np.uint64)
        for bit in range(self._class_bits):
            place = self._bits + bit
            keys[place // WORD] |= ((codes >> np.uint64(bit)) & np.uint64(1)) << np.uint64(place % WORD)
        return keys

    def imputed(self, keys: Keys) -> int:
        """Return the number of samples with a missing value that is imputed, by their patterns."""
        return int(np.count_nonzero((keys & self._gaps).any(axis=0)))

    def see(self, x: Array, labels: npt.NDArray[np.int64]) -> Keys:
        """Add some samples as they are sent, and return their patterns."""
        self._extremes.add(x)
        self._combined.add(x, labels)
        self.add(keys := self.keys(x, labels))
        return keys

    def add(self, keys: Keys) -> None:
        """Count some samples by their patterns."""
        self._new.append(_distinct(keys))
        if sum(new.shape[1] for new, _ in self._new) > max(2 * len(self._counts), CELLS // WORD):
            self._merge()

    def _merge(self) -> None:
        keys = np.concatenate([self._keys, *(keys for keys, _ in self._new)], axis=1)
        self._keys, self._counts = _distinct(keys, np.concatenate([self._counts, *(some for _, some in self._new)]))
        self._new = []
        if self._keys.nbytes + self._counts.nbytes > MOST_BYTES:
            self._dropped = self.gram
            self._keys, self._counts = self._keys[:, :0], self._counts[:0]

    @property
    def whole(self) -> bool:
        """Whether all patterns are there."""
        return self._dropped is None

    @property
    def gram(self) -> Array:
        """The Gram matrix of the indicators."""
        if self._new:
            self._merge()
        size = len(self.indicators.names)
        found = np.zeros((size, size)) if self._dropped is None else self._dropped.copy()
        for some, rows in self._rows():
            found += rows.T @ (rows * self._counts[some][:, None])
        return found

    def _rows(self) -> Iterator[tuple[slice, Array]]:
        """Yield the indicators of some patterns at a time, (k, indicators)."""
        step = max(1, CELLS // len(self.indicators.names))
        for first in range(0, len(self._counts), step):
            some = slice(first, min(first + step, len(self._counts)))
            yield some, self._unpacked(self._keys[:, some])

    def _unpacked(self, keys: Keys) -> Array:
        """Return the indicators of some patterns, (k, indicators)."""
        size, one = len(self.indicators.names), np.uint64(1)
        rows = np.zeros((keys.shape[1], size))
        rows[:, 0] = 1.0
        for bit in range(self._bits):
            rows[:, size - self._bits + bit] = (keys[bit // WORD] >> np.uint64(bit % WORD)) & one
        codes = np.zeros(len(rows), dtype=np.int64)
        for bit in range(self._class_bits):
            place = self._bits + bit
            codes |= ((keys[place // WORD] >> np.uint64(place % WORD)) & one).astype(np.int64) << bit
        if self.indicators.classes:
            rows[np.arange(len(rows)), 1 + codes] = 1.0
        return rows

    def small(self, least: int) -> list[Group]:
        """Return groups of 1 to `least` - 1 samples that can be singled out: by columns, otherwise by patterns."""
        gram = self.gram
        n = int(gram[0, 0])
        if least < 2 or not n:
            return []
        found = groups_by_columns(self.indicators, gram, least) or (
            self._by_patterns(gram, least) if self.whole else []
        )
        found += self._extremes.groups(least)
        return found or self._combined.groups(least)

    def _by_patterns(self, gram: Array, least: int) -> list[Group]:
        """Return the groups that are one pattern or several, by their distance from the span of the indicators."""
        n, counts = int(gram[0, 0]), self._counts
        if not (counts < least).any():
            return []
        scale = 1 / np.sqrt(np.maximum(np.diagonal(gram), 1.0))
        values, directions = np.linalg.eigh(gram * np.outer(scale, scale))
        kept = values > LOST
        basis = (directions[:, kept] / np.sqrt(values[kept])) * scale[:, None]
        reach = np.zeros(len(counts))  # of a pattern's own vector, the share that lies in the span
        for some, rows in self._rows():
            reach[some] = counts[some] * np.square(rows @ basis).sum(axis=1)
        # If the vector of a group lies in the span, each of the group's patterns has a `reach` of at least its share of
        # the group. All values of `reach` add up to the rank, so only few patterns can belong to such a group.
        few = np.flatnonzero((counts < least) & (reach > counts / (least - 1) - IN_SPAN))
        if len(few) > MOST_PAIRED:  # which takes about a thousand indicators
            few = few[reach[few] > 1 - IN_SPAN]
        sizes, inside = counts[few], self._sums(few[:, None]) @ basis
        left = np.diag(sizes) - inside @ inside.T  # products of what these vectors have outside of the span
        for sets in _sets(len(few), least):
            distances = left[sets[:, :, None], sets[:, None, :]].sum(axis=(1, 2))
            total = sizes[sets].sum(axis=1)
            found = sets[(distances < IN_SPAN) & (total < min(least, n))]
            if len(found):
                return [self._named(few[chosen], gram) for chosen in found[:SHOWN]]
        return []

    def _sums(self, sets: npt.NDArray[np.intp]) -> Array:
        """Return the sums of the indicators over the samples of some sets of patterns (k, size), (k, indicators)."""
        rows = self._unpacked(self._keys[:, sets.ravel()]) * self._counts[sets.ravel()][:, None]
        return np.asarray(rows.reshape(*sets.shape, rows.shape[1]).sum(axis=1))

    def _named(self, chosen: npt.NDArray[np.intp], gram: Array) -> Group:
        """Return the group of some patterns, named after the columns whose combination singles it out."""
        size, [sums] = int(self._counts[chosen].sum()), self._sums(chosen[None])
        needed = _needed(gram, sums, size, IN_SPAN)
        by_name = {next(iter(v.factors)): v for v in self.indicators.vectors if len(v.factors) == 1}
        vectors = [by_name[place] for place in needed if place in by_name]
        columns = tuple(dict.fromkeys(vector.column for vector in vectors))
        name = _combination([vector.name for vector in vectors])
        return Group(size, name, columns, any(vector.gap for vector in vectors))


def _needed(gram: Array, sums: Array, size: float, tolerance: float) -> list[int]:
    """Return the columns, by place, that a combination needs to give a vector, those of most weight first.

    `gram` is the Gram matrix of all columns, `sums` are their products with the vector, `size` is that with itself.
    """
    scale = 1 / np.sqrt(np.maximum(np.diagonal(gram), np.finfo(float).tiny))
    scaled, wanted = gram * np.outer(scale, scale), sums * scale

    def factors(places: list[int]) -> Array:
        part = scaled[np.ix_(places, places)]
        return np.asarray(np.linalg.lstsq(part, wanted[places], rcond=LOST)[0])

    weights = np.abs(factors(list(range(len(gram)))))
    needed = [place for place in np.argsort(weights).tolist() if weights[place] > IN_SPAN]
    for place in list(needed) if len(needed) <= MOST_PRUNED else ():
        rest = [other for other in needed if other != place]
        if rest and size - wanted[rest] @ factors(rest) < tolerance:
            needed = rest
    return needed[::-1]


def _combination(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more columns" if len(names) > SHOWN else ""
    return f"a combination of {', '.join(names[:SHOWN])}{more}"


def _sets(k: int, least: int) -> Iterator[npt.NDArray[np.intp]]:
    """Yield the sets of 1, 2 and up to `least` - 1 of `k` patterns; stop at a size with too many sets."""
    yield np.arange(k)[:, None]
    if least > 2:
        yield np.stack(np.triu_indices(k, 1), axis=1)
    for size in range(3, least):
        if comb(k, size) > MOST_SETS:
            return
        yield np.array(list(combinations(range(k), size)), dtype=np.intp).reshape(-1, size)


def _distinct(keys: Keys, counts: Counts | None = None) -> tuple[Keys, Counts]:
    """Return the different columns of `keys`, sorted, with the sums of their counts; without `counts` each counts 1."""
    if counts is None and len(keys) == 1:
        values, numbers = np.unique(keys[0], return_counts=True)
        return values[None], numbers
    counts = np.ones(keys.shape[1], dtype=np.int64) if counts is None else counts
    if not keys.shape[1]:
        return keys, counts
    order = np.argsort(keys[0]) if len(keys) == 1 else np.lexsort(keys)
    keys, counts = keys[:, order], counts[order]
    starts = np.flatnonzero(np.concatenate([[True], (keys[:, 1:] != keys[:, :-1]).any(axis=0)]))
    return keys[:, starts], np.add.reduceat(counts, starts)


def listed_groups(groups: Sequence[Group]) -> str:
    """Return groups with their sizes, as text."""
    shown = [f"{group.name} ({group.samples} sample{'s' * (group.samples > 1)})" for group in groups[:SHOWN]]
    more = f", and {len(groups) - SHOWN} more" if len(groups) > SHOWN else ""
    return ", ".join(shown) + more


def remedy(study: "Study", groups: Sequence[Group]) -> str:
    """Return a text on changes of the study after which such groups are not singled out."""
    columns = dict.fromkeys(name for group in groups for name in group.columns)
    found = []
    levels = [name for name in columns if isinstance(study.columns.get(name), Category)]
    if levels:
        found.append(f"merge levels of {', '.join(map(repr, levels[:SHOWN]))}")
    if any(name in study.outcomes for name in columns):
        found.append("merge classes")
    if any(group.gap for group in groups):
        found.append("set missing = 'drop' or 'refuse' for a column with few gaps")
    dropped = [name for name in columns if name not in study.outcomes]
    if dropped:
        found.append(f"drop {', '.join(map(repr, dropped[:SHOWN]))}")
    return ", or ".join(found)


def columns_per_row(study: "Study", columns: Collection[str] | None = None) -> tuple[int, int]:
    """Return the number of columns that count for `maximum_columns_per_row`: of the tables, and of backbones.

    Gap columns do not count. `columns` are the study's columns to count, by default all that are sent.
    """
    plain = features = 0
    for name, column in study.used.items():
        if columns is not None and name not in columns:
            continue
        sent = sum(each != unknown(name) for each in column.sent(name))
        if isinstance(column, Number | Flag | Category):
            plain += sent
        else:
            features += sent
    return plain, features


def rows_needed(study: "Study", limit: float, columns: Collection[str] | None = None) -> int:
    """Return the least number of samples of a party under a limit of columns per row; 0 without a limit.

    A feature of a backbone needs one sample, unless the limit allows more features than that. `columns` are the study's
    columns to count, by default all that are sent.
    """
    plain, features = columns_per_row(study, columns)
    return ceil(plain / limit + features / max(limit, 1.0) - ROUNDING) if limit else 0

"""The table of descriptives that opens a medical paper ("Table 1"), from moments alone: of each site, and pooled.

Counts, means, standard deviations, shares, standardised differences between sites, and correlations, in the study's
units. Nothing is asked of a party for it: the sums that it has sent hold all of these.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidData
from fedgram.inference.descriptives import (
    Spread,
    correlations,
    standardised_difference_of_shares,
    standardised_differences,
)
from fedgram.moments.moments import Moments, Total
from fedgram.studies.kinds import Category, Column, Flag, Number, unknown
from fedgram.studies.study import Study

FORMULAE = (
    "mean (standard deviation, with n - 1) of known values, count (share of known values)",
    "standardised difference of a site from all other sites together: (m1 - m2) / sqrt((s1² + s2²) / 2), for shares "
    "with s² = p (1 - p), for categories sqrt((p - q)' S⁻¹ (p - q)) with S the mean of both covariances",
)


@dataclass(frozen=True)
class Site:
    """A contribution: a party's own, or that of a region, which is a sum of `summaries` parties."""

    name: str
    samples: int
    summaries: int = 1


@dataclass(frozen=True)
class Figures:
    """A column at one site, or pooled.

    Attributes
    ----------
    known, missing
        Samples with and without a value.
    mean, deviation
        Mean and standard deviation of a number's known values, in the study's unit; None where too few are known.
    counts
        Samples with each level of a category, with a yes, or of each class; () for a number.

    """

    known: int
    missing: int
    mean: float | None = None
    deviation: float | None = None
    counts: tuple[int, ...] = ()

    @property
    def shares(self) -> tuple[float | None, ...]:
        """The counts as shares of known values, None without any."""
        return tuple(count / self.known if self.known else None for count in self.counts)

    def fields(self) -> dict[str, Any]:
        """Return the figures as plain values for JSON."""
        found = {name: value for name, value in asdict(self).items() if value is not None and value != ()}
        return found | ({"counts": list(self.counts), "shares": list(self.shares)} if self.counts else {})


@dataclass(frozen=True)
class Variable:
    """A column of the study, or the outcome's classes, with its figures.

    Attributes
    ----------
    name, kind, unit, levels
        Those of the study; a flag has the level "yes".
    may_lack
        Whether samples without a value are used.
    pooled
        Figures of all samples; None if they are withheld.
    sites
        Figures of each site; all None if those of one must be withheld, which could be computed from the others.
    differences
        Standardised difference of each site from the others; None where it is not known or infinite.

    """

    name: str
    kind: str
    unit: str
    levels: tuple[str, ...]
    may_lack: bool
    pooled: Figures | None
    sites: tuple[Figures | None, ...]
    differences: tuple[float | None, ...]

    def fields(self, sites: Sequence[Site]) -> dict[str, Any]:
        """Return the variable as plain values for JSON."""
        by_site = zip(sites, self.sites, self.differences, strict=True)
        return {
            "name": self.name,
            "kind": self.kind,
            "unit": self.unit,
            "levels": list(self.levels),
            "pooled": None if self.pooled is None else self.pooled.fields(),
            "sites": {
                site.name: None if found is None else found.fields() | {"difference": difference}
                for site, found, difference in by_site
            },
        }


@dataclass(frozen=True, eq=False)
class Correlations:
    """Pooled correlations of numbers and flags, with notes for the reader.

    Attributes
    ----------
    names
        The columns.
    values
        The correlations (d, d), NaN where they are not known or withheld.
    samples
        The samples in which both columns are known, (d, d); 0 where the correlation is withheld.
    notes
        What the values are, and which are withheld.

    """

    names: tuple[str, ...]
    values: Array
    samples: npt.NDArray[np.int64]
    notes: tuple[str, ...]

    def fields(self) -> dict[str, Any]:
        """Return the correlations as plain values for JSON, with None for NaN."""
        values = [[_known(value) for value in row] for row in self.values.tolist()]
        return {"names": list(self.names), "values": values, "samples": self.samples.tolist(), "notes": [*self.notes]}


@dataclass(frozen=True)
class TableOne:
    """Descriptives under a study: sites, variables in the study's order, and notes for the reader.

    Attributes
    ----------
    study
        The study.
    sites
        The contributions that the figures are of.
    samples
        The number of all samples.
    variables
        The outcome's classes, the columns, and the numeric outcomes.
    notes
        What the figures are, which are withheld, and what they do not show.

    """

    study: Study
    sites: tuple[Site, ...]
    samples: int
    variables: tuple[Variable, ...]
    notes: tuple[str, ...]
    _pooled: Moments = field(repr=False, compare=False)

    @cached_property
    def correlations(self) -> Correlations:
        """The pooled correlations of numbers and flags."""
        return _correlations(self.study, self._pooled, {each.name for each in self.variables if each.pooled is None})

    def fields(self) -> dict[str, Any]:
        """Return the table as plain values for JSON, without correlations."""
        return {
            "study": self.study.name,
            "samples": self.samples,
            "sites": [asdict(site) for site in self.sites],
            "variables": [variable.fields(self.sites) for variable in self.variables],
            "notes": list(self.notes),
        }


def describe(
    study: Study,
    parts: Iterable[tuple[str, Moments]],
    *,
    total: Moments | None = None,
    summaries: Mapping[str, int] | None = None,
) -> TableOne:
    """Return the descriptives of sites and of all samples, from the sites' moments.

    Moments are taken one at a time, and of each only its sums and sums of squares are kept.

    Parameters
    ----------
    study : Study
        The study that the moments were made under.
    parts : Iterable[tuple[str, Moments]]
        The sites' names with their moments.
    total : Moments or None
        The sum of all parts, if it is known already.
    summaries : Mapping[str, int] or None
        The number of parties in a part, by name, for parts that are sums themselves.

    Examples
    --------
    >>> from fedgram.studies import Study, summarize
    >>> from fedgram.studies.kinds import Number
    >>> columns = {"age": Number(range=(0, 120)), "cost": Number()}
    >>> ages = Study("ages", "cost", columns, minimum_samples=3, minimum_cell=1, maximum_columns_per_row=1)
    >>> class Rows(dict):
    ...     columns = property(list)
    ...     def __len__(self):
    ...         return len(self["age"])
    >>> north = Rows(age=np.array([30.0, 60.0, 90.0]), cost=np.array([1.0, 2.0, 4.0]))
    >>> found = describe(ages, [("north", summarize(ages, "north", north))])
    >>> found.variables[0].pooled
    Figures(known=3, missing=0, mean=60.0, deviation=30.0, counts=())

    """
    columns, running, gathered, sites = tuple(_columns(study)), Total(), list[tuple[Array, ...]](), list[Site]()
    for name, moments in parts:
        study.schema.check_same(moments.schema)
        sites.append(Site(name, moments.n, (summaries or {}).get(name, 1)))
        gathered.append((moments.cross.sum(axis=1), moments.squares, moments.counts.astype(np.float64)))
        if total is None:
            running.add(moments)
    whole = running.moments() if total is None else total
    study.schema.check_same(whole.schema)
    if not whole.n:
        raise InvalidData("moments: expected at least one sample to describe, got none; join some files first")
    if (found := sum(site.samples for site in sites)) != whole.n:
        raise InvalidData(f"total: expected the {found:,} samples of all parts, got {whole.n:,}; give their sum")
    sums = whole.cross.sum(axis=1)
    study.warn_of_lost(sums, whole.squares, whole.n)
    by_site = _Sums(columns, *(np.array(rows) for rows in zip(*gathered, strict=True)))
    pooled = _Sums(columns, sums[None], whole.squares[None], whole.counts[None].astype(np.float64))
    withheld = list[str]()
    variables = tuple(each.variable(by_site, pooled, sites, study, withheld) for each in columns)
    return TableOne(study, tuple(sites), whole.n, variables, (*FORMULAE, *withheld, *_notes(study, sites)), whole)


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums and sums of squares of the columns sent (k, d), and samples by class (k, c), of k sites."""

    columns: "tuple[_Made, ...]"
    sums: Array
    squares: Array
    counts: Array

    @cached_property
    def n(self) -> Array:
        """The samples of each site, (k,)."""
        return np.asarray(self.counts.sum(axis=1), dtype=np.float64)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The place of each number in `spread` and `differences`."""
        return {each.name: place for place, each in enumerate(filter(_is_number, self.columns))}

    @cached_property
    def spread(self) -> Spread:
        """The spread of numbers' known values in units of half their ranges, (k, numbers)."""
        chosen = list(filter(_is_number, self.columns))
        places = [each.places[0] for each in chosen]
        known = np.column_stack([self.n - each.missing(self) for each in chosen])
        return Spread.of(known, self.sums[:, places], self.squares[:, places])

    @cached_property
    def differences(self) -> Array:
        """The standardised difference of each site from all others together, (k, numbers)."""
        return standardised_differences(self.spread, self.spread.others())


@dataclass(frozen=True)
class _Made:
    """The places of a variable among the columns sent: of its numbers, and of the indicator of gaps."""

    name: str
    column: Column | None  # None: the classes
    levels: tuple[str, ...]
    places: tuple[int, ...]
    gap: int | None

    def variable(
        self, by_site: _Sums, pooled: _Sums, sites: Sequence[Site], study: Study, withheld: list[str]
    ) -> Variable:
        """Return the variable with its figures; those that rest on too few samples are added to `withheld`."""
        least, rule = study.smallest_group, "minimum_group"
        if self.column is None and study.minimum_cell > least:
            least, rule = study.minimum_cell, "minimum_cell"
        hidden = bool(_few(self._groups(pooled), pooled.n, least).any())
        few = _few(self._groups(by_site), by_site.n, least)
        where = ", ".join(site.name for site, found in zip(sites, few.tolist(), strict=True) if found)
        reason = f"has fewer than {least} samples ({rule})"
        if hidden:
            withheld.append(f"figures of {self.name!r} are withheld, because a group in them {reason}")
        elif where:
            withheld.append(f"figures by site of {self.name!r} are withheld, because a group at {where} {reason}")
        nothing = (None,) * len(sites)
        return Variable(
            self.name,
            "class" if self.column is None else self.column.kind,
            getattr(self.column, "unit", ""),
            self.levels,
            self.gap is not None,
            None if hidden else next(self._figures(pooled)),
            nothing if hidden or where else tuple(self._figures(by_site)),
            nothing if hidden or where else tuple(self._differences(by_site)),
        )

    def missing(self, of: _Sums) -> Array:
        """Return the samples without a value, (k,)."""
        return np.zeros(len(of.n)) if self.gap is None else of.sums[:, self.gap]

    def _counts(self, of: _Sums) -> Array:
        """Return the samples with each level (k, l)."""
        if self.column is None:
            return of.counts
        if isinstance(self.column, Category):  # the first level has no column of its own
            rest = of.sums[:, self.places]
            return np.column_stack([of.n - self.missing(of) - rest.sum(axis=1), rest])
        return of.sums[:, self.places] if isinstance(self.column, Flag) else np.zeros((len(of.n), 0))

    def _groups(self, of: _Sums) -> Array:
        """Return the sizes of the groups whose figures are shown, or follow from those, (k, groups)."""
        counts, missing = self._counts(of), self.missing(of)[:, None]
        no = of.n[:, None] - missing - counts if isinstance(self.column, Flag) else counts[:, :0]
        return np.column_stack([of.n, missing, counts, no])

    def _figures(self, of: _Sums) -> Iterator[Figures]:
        missing = np.rint(self.missing(of)).astype(int)
        known = (of.n.astype(int) - missing).tolist()
        if isinstance(self.column, Number):
            place = of.numbers[self.name]
            means = self.column.centre + self.column.half * of.spread.mean[:, place]
            deviations = self.column.half * of.spread.deviation[:, place]
            for n, gap, mean, deviation in zip(
                known, missing.tolist(), means.tolist(), deviations.tolist(), strict=True
            ):
                yield Figures(n, gap, _known(mean), _known(deviation))
        else:
            counts = np.rint(self._counts(of)).astype(int).tolist()
            for n, gap, row in zip(known, missing.tolist(), counts, strict=True):
                yield Figures(n, gap, counts=tuple(row))

    def _differences(self, of: _Sums) -> list[float | None]:
        """Return the standardised difference of each site from all others together."""
        if len(of.n) < 2:
            return [None] * len(of.n)
        if isinstance(self.column, Number):
            return [_known(found) for found in of.differences[:, of.numbers[self.name]].tolist()]
        counts = self._counts(of)
        if not counts.shape[1]:
            return [None] * len(counts)
        if isinstance(self.column, Flag):  # the share of yes has a sign
            counts = np.column_stack([of.n - self.missing(of) - counts[:, 0], counts[:, 0]])
        rest = counts.sum(axis=0) - counts  # exact: these are whole numbers
        shares, other_shares = (_shares(each) for each in (counts, rest))
        found = [standardised_difference_of_shares(one, other) for one, other in zip(shares, other_shares, strict=True)]
        if isinstance(self.column, Flag):
            found = np.copysign(found, shares[:, 1] - other_shares[:, 1]).tolist()
        return [_known(each) for each in found]


def _columns(study: Study) -> Iterator[_Made]:
    """Yield the variables of a study: classes first, then columns, numeric outcomes last."""
    if study.classes:
        classes = tuple(map(str, study.classes))
        yield _Made(study.outcomes[0], None, classes, (), None)
    place = 0
    for name, column in study.used.items():
        sent = column.sent(name)
        gap = next((place + k for k, each in enumerate(sent) if each == unknown(name)), None)
        places = tuple(place + k for k, each in enumerate(sent) if each != unknown(name))
        levels = column.values if isinstance(column, Category) else ("yes",) if isinstance(column, Flag) else ()
        yield _Made(name, column, levels, places, gap)
        place += len(sent)


def _is_number(made: _Made) -> bool:
    return isinstance(made.column, Number)


def _few(groups: Array, n: Array, least: int) -> npt.NDArray[np.bool_]:
    """Return which sites have a group, or all samples but a group, of 1 to `least` - 1 samples, (k,)."""
    sizes = np.rint(np.column_stack([groups, n[:, None] - groups]))
    return np.asarray(((sizes > 0) & (sizes < least)).any(axis=1))


def _shares(counts: Array) -> Array:
    known = counts.sum(axis=1, keepdims=True)
    found: Array = np.divide(counts, known, out=np.full(counts.shape, np.nan), where=known > 0)
    return found


def _correlations(study: Study, whole: Moments, hidden: Collection[str]) -> Correlations:
    """Return the correlations of columns whose pooled figures are not hidden."""
    known = [each for each in _columns(study) if isinstance(each.column, Number | Flag)]
    chosen, left_out = ([each for each in known if (each.name in hidden) is left] for left in (False, True))
    names, places = tuple(each.name for each in chosen), np.array([each.places[0] for each in chosen], dtype=np.int64)
    has_gap = np.array([each.gap is not None for each in chosen], dtype=bool)
    gaps = np.array([each.places[0] if each.gap is None else each.gap for each in chosen], dtype=np.int64)
    gram, sums = whole.gram, whole.cross.sum(axis=1)[places]
    own = gram[np.ix_(places, places)]
    gap_products = gram[np.ix_(places, gaps)] * has_gap
    found, both = correlations(
        float(whole.n), own, sums, gram[np.ix_(gaps, gaps)] * np.outer(has_gap, has_gap), gap_products
    )
    flags = np.array([isinstance(each.column, Flag) for each in chosen], dtype=bool)
    few, least = np.zeros(both.shape, dtype=bool), study.smallest_group
    for sizes in _groups_behind(whole.n, both.astype(np.float64), flags, own, sums[:, None] - gap_products):
        few |= (sizes > 0.5) & (sizes < least - 0.5)
    notes = []
    if has_gap.any():
        notes.append(
            "columns with missing values: the covariance over samples in which both are known, divided by the standard "
            "deviations of all known values"
        )
    if pairs := [f"{names[i]} and {names[j]}" for i, j in np.argwhere(np.triu(few, 1)).tolist()]:
        notes.append(
            f"withheld, because a group that they tell of has fewer than {least} samples (minimum_group): "
            f"{', '.join(pairs)}"
        )
    if left_out:
        notes.append(f"left out, because their own figures are withheld: {', '.join(each.name for each in left_out)}")
    return Correlations(names, np.where(few, np.nan, found), np.where(few, 0, both), tuple(notes))


def _groups_behind(n: int, both: Array, flags: npt.NDArray[np.bool_], products: Array, known: Array) -> Iterator[Array]:
    """Yield the sizes of the groups that a correlation of two columns tells of, (d, d), 0 where there is none.

    `both` counts samples in which both columns are known; `known` are sums of each row's column in these. Of a flag,
    those with a yes and with a no are groups; of two flags, the four cells of their table.
    """
    yield both
    yield n - both
    for yes, flag in ((known, flags[:, None]), (known.T, flags[None, :])):
        yield np.where(flag, yes, 0.0)
        yield np.where(flag, both - yes, 0.0)
    pairs = np.outer(flags, flags)
    for cell in (products, known - products, known.T - products, both - known - known.T + products):
        yield np.where(pairs, cell, 0.0)


def _notes(study: Study, sites: Sequence[Site]) -> Iterator[str]:
    """Yield sentences on what the figures do not show."""
    used = study.used.items()
    filled = [name for name, column in used if getattr(column, "filled", False)]
    if filled:
        yield (
            f"a model takes the pooled mean for missing values of {', '.join(filled)}; the figures here are of known "
            "values alone"
        )
    dropped = [name for name, column in used if getattr(column, "missing", "") == "drop"]
    yield (
        "rows that a party left out are not in its summary"
        + (f" (a missing value in {', '.join(dropped)}, by missing = 'drop')" if dropped else "")
        + ", so how many is not known here; the passport that summarize prints has the number"
    )
    clipped = [name for name, column in used if isinstance(column, Number) and column.outside == "clip"]
    if clipped:
        yield f"values outside the range count as its nearer end: {', '.join(clipped)}"
    for site in sites:
        if site.summaries > 1:
            yield f"{site.name} is the sum of {site.summaries} parties: a region has no figures of single parties"


def _known(value: float) -> float | None:
    return value if isfinite(value) else None

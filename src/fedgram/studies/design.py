"""The regression table of a study with a numeric outcome, from the moments that its parties send.

Sums are of columns in units of their ranges, with indicators of missing values. `Design` turns them into sums about the
means in the study's units, with the pooled mean in the place of missing values, for any of the columns. So no party is
asked again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self, TypeAlias

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch, UnknownName
from fedgram.inference.linear import LeastSquares, Sums, check_level
from fedgram.inference.site_effects import BySite
from fedgram.inference.table import Coefficients, Gap
from fedgram.moments.moments import Moments
from fedgram.studies.kinds import Category, Flag, MayBeMissing, Number, unknown
from fedgram.studies.small_groups import rows_needed
from fedgram.studies.study import Study

SiteEffects: TypeAlias = Literal["none", "fixed", "random"]
Likelihood: TypeAlias = Literal["reml", "ml"]
TREATMENTS: Mapping[str, Literal["imputed", "flagged", "category"]] = {
    "mean": "imputed",
    "flag": "flagged",
    "category": "category",
}
SHOWN = 5  # columns in a note


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of a regression table.

    Parameters
    ----------
    outcome : str or None
        The outcome's column; needed only in a study with several.
    columns : Sequence[str] or None
        The study's columns in the model; by default all.
    site_effects : {"none", "fixed", "random"}
        Whether each site has an intercept: of its own, or drawn from a normal distribution.
    likelihood : {"reml", "ml"}
        The likelihood that random effects maximise, restricted or plain.
    robust : bool
        Whether standard errors are robust to correlation within sites.
    heterogeneity : bool
        Whether to compare the coefficients of the sites.
    ridge : float or None
        The penalty on squared coefficients of standardised columns; None for least squares.
    level : float
        The confidence level of intervals.

    """

    outcome: str | None = None
    columns: Sequence[str] | None = None
    site_effects: SiteEffects = "none"
    likelihood: Likelihood = "reml"
    robust: bool = False
    heterogeneity: bool = False
    ridge: float | None = None
    level: float = 0.95

    def __post_init__(self) -> None:
        """Raise for options that do not exist or contradict each other."""
        check_level(self.level)
        for name, known in (("site_effects", ("none", "fixed", "random")), ("likelihood", ("reml", "ml"))):
            if getattr(self, name) not in known:
                raise UnknownName(name.replace("_", " "), str(getattr(self, name)), known)
        if isinstance(self.columns, str):
            raise InvalidParameter(
                f"columns: expected a list of names, got the text {self.columns!r}; put it in a list"
            )
        if self.robust and self.site_effects != "none":
            raise InvalidParameter(
                f"robust errors: expected a model without site effects, got {self.site_effects} ones; choose one"
            )
        if self.ridge is not None and self.by_site:
            raise InvalidParameter(
                "ridge: expected neither site effects, robust errors nor heterogeneity, got one of them; a ridge has "
                "no standard errors, so choose one"
            )

    @property
    def by_site(self) -> bool:
        """Whether the model needs the sums of each site."""
        return self.site_effects != "none" or self.robust or self.heterogeneity


@dataclass(frozen=True, eq=False)
class Design:
    """The terms of a regression under a study, and their sums from those that parties send.

    Parameters
    ----------
    study : Study
        The study.
    outcome : str
        The outcome's column.
    columns : tuple[str, ...]
        The study's columns in the model.
    pooled : Moments
        The moments of all parties, as they are sent.

    """

    study: Study
    outcome: str
    columns: tuple[str, ...]
    pooled: Moments

    @classmethod
    def of(cls, study: Study, pooled: Moments, *, outcome: str | None, columns: Sequence[str] | None) -> Self:
        """Return the design of these columns; raise for an outcome or columns that the study does not have."""
        known = study.numeric_outcomes
        if not known:
            raise InvalidData(
                f"outcome {study.outcome!r}: expected a number, got classes; fedgram publish --method logistic makes "
                "the table of a logistic model"
            )
        if outcome is None and len(known) > 1:
            raise InvalidParameter(f"outcome: expected one of {', '.join(known)}; name it with --outcome")
        chosen = known[0] if outcome is None else outcome
        if chosen not in known and chosen in study.columns:
            raise InvalidParameter(
                f"outcome: expected a numeric outcome of the study ({', '.join(known)}), got the column {chosen!r}; "
                "choose one of these"
            )
        if chosen not in known:
            raise UnknownName("outcome", chosen, known, where=f"study {study.name!r}")
        usable = [name for name in study.used if name not in known]
        for name in columns or ():
            if name not in usable:
                raise UnknownName("column for a model", name, usable, where=f"study {study.name!r}")
        names = usable if columns is None else list(dict.fromkeys(columns))
        if not pooled.n:
            raise InvalidData("rows: expected some, got none; all parties' rows were left out")
        return cls(study, chosen, tuple(names), pooled)

    @cached_property
    def _made(self) -> dict[str, tuple[str, dict[str, float], float]]:
        """Each term's column, the columns sent that it is made of in the term's unit, and the number that is added."""
        sums = dict(zip(self.study.sent, self.pooled.cross.sum(axis=1).tolist(), strict=True))
        made = {}
        for name in (*self.columns, self.outcome):
            column = self.study.used[name]
            for term, parts in column.design(name, sums, self.pooled.n).items():
                if term == unknown(name) and not sums[term]:  # no row has the gap
                    continue
                number = isinstance(column, Number) and term == name
                half, centre = (column.half, column.centre) if isinstance(column, Number) and number else (1.0, 0.0)
                made[term] = name, {part: value * half for part, value in parts.items()}, centre
        return made

    @property
    def terms(self) -> tuple[str, ...]:
        """The names of the terms, the outcome last."""
        return tuple(self._made)

    @cached_property
    def column_of(self) -> dict[str, str]:
        """The study's column of each term."""
        return {term: name for term, (name, _, _) in self._made.items()}

    @cached_property
    def indicators(self) -> frozenset[str]:
        """The terms that are 0 or 1."""
        found = set()
        for term, (name, _, _) in self._made.items():
            if isinstance(self.study.used[name], Flag | Category) or term == unknown(name):
                found.add(term)
        return frozenset(found)

    @cached_property
    def _map(self) -> tuple[list[int], Any, Array]:
        """The places of the columns sent that are used, the sparse matrix from these to the terms, and the origin."""
        from scipy.sparse import csr_array  # takes a while, and only tables of a study need it

        parts_used = {part for _, parts, _ in self._made.values() for part in parts}
        used = [at for at, part in enumerate(self.study.sent) if part in parts_used]
        place = {self.study.sent[at]: i for i, at in enumerate(used)}
        elements = [
            (place[part], j, value)
            for j, (_, parts, _) in enumerate(self._made.values())
            for part, value in parts.items()
        ]
        rows, columns, values = zip(*elements, strict=True)
        matrix = csr_array((values, (rows, columns)), shape=(len(used), len(self._made)))
        return used, matrix, np.array([centre for _, _, centre in self._made.values()])

    def sums(self, sent: Moments) -> Sums:
        """Return the sums of the terms about their means, in the study's units."""
        used, matrix, origin = self._map
        names = [self.study.sent[place] for place in used]
        whole = sent.cross.sum(axis=1)[used]
        own = Sums.about(np.zeros(len(used)), names, sent.n, whole, sent.gram[np.ix_(used, used)])
        half = np.asarray(matrix.T @ own.scatter)
        scatter = np.asarray(matrix.T @ half.T)
        return Sums(
            self.terms,
            sent.n,
            origin,
            np.asarray(matrix.T @ own.mean),
            (scatter + scatter.T) / 2,
            np.asarray((matrix * matrix).T @ own.noise),
        )

    # Thresholds
    def check_groups(self) -> None:
        """Raise if a row of the table would rest on fewer samples than the study's smallest group."""
        least, n = self.study.smallest_group, self.pooled.n
        sums = dict(zip(self.study.sent, self.pooled.cross.sum(axis=1).tolist(), strict=True))
        for name in self.columns:
            column = self.study.used[name]
            groups = {each: sums[each] for each in column.sent(name) if each in self.indicators}
            if isinstance(column, Category | Flag):
                rest = f"{name}={column.values[0]}" if isinstance(column, Category) else f"{name}, no"
                groups[rest] = n - sum(sums[each] for each in column.sent(name))
            for group, count in groups.items():
                if 0.5 < count < least - 0.5:
                    raise InvalidData(
                        f"minimum_group: expected at least {least} samples behind each row of the table, got fewer "
                        f"behind {group!r}; leave {name!r} out with --columns, or merge its levels in the study"
                    )

    def check_parties(self, rows: Mapping[str, int]) -> None:
        """Raise if a party has too few rows for the number of columns."""
        limit = self.study.maximum_columns_per_row
        needed = rows_needed(self.study, limit, {*self.columns, self.outcome})
        few = [name for name, n in rows.items() if n < needed]
        if few:
            raise InvalidData(
                f"rows: expected at least {needed} of each party for these columns, by maximum_columns_per_row = "
                f"{limit:g}, got fewer of {', '.join(map(repr, few[:SHOWN]))}; use fewer columns with --columns"
            )

    # Missing values
    def gaps(self, site: str, sent: Moments) -> list[Gap]:
        """Return the missing cells of the model's columns in some moments."""
        sums = dict(zip(self.study.sent, sent.cross.sum(axis=1).tolist(), strict=True))
        found = []
        for name in self.columns:
            column = self.study.used[name]
            treatment = TREATMENTS.get(getattr(column, "missing", ""))
            count = round(sums.get(unknown(name), 0.0))
            if treatment is not None and count:
                found.append(Gap(name, site, count, treatment))
        return found

    @property
    def has_gaps(self) -> bool:
        """Whether a column of the model may have missing values that are counted."""
        filled = not {unknown(name) for name in self.columns}.isdisjoint(self.study.sent)
        return filled or bool(self.study.dropping)

    def notes(self, gaps: Iterable[Gap]) -> list[str]:
        """Return notes on missing values."""
        imputed: dict[str, int] = {}
        for gap in gaps:
            if isinstance(self.study.used[gap.column], MayBeMissing):
                imputed[gap.column] = imputed.get(gap.column, 0) + gap.cells
        notes = []
        if imputed:
            notes.append(
                f"The pooled mean stands in for missing values: {_listed(imputed)}. Standard errors take these for "
                "known, so they are too small; missing = 'drop' in the study leaves such rows out instead."
            )
        if self.study.dropping:
            notes.append(
                f"Rows without {', '.join(self.study.dropping[:SHOWN])} were left out at the parties: the table is of "
                "complete cases. Parties do not tell counts below minimum_group, nor do regions."
            )
        return notes


def _listed(counts: Mapping[str, int]) -> str:
    shown = [f"{name} ({count:,} cells)" if count != 1 else f"{name} (1 cell)" for name, count in counts.items()]
    return ", ".join(shown[:SHOWN]) + (f" and {len(shown) - SHOWN} more columns" if len(shown) > SHOWN else "")


def coefficients(
    study: Study,
    pooled: Moments,
    request: Request,
    *,
    sites: Iterable[tuple[str, Moments]] | None = None,
    rows: Mapping[str, int] | None = None,
    dropped: Mapping[str, Mapping[str, int]] | None = None,
) -> Coefficients:
    """Return the regression table of a study.

    Parameters
    ----------
    study : Study
        The study, with a numeric outcome.
    pooled : Moments
        The moments of all parties, as they are sent.
    request : Request
        The options.
    sites : Iterable or None
        Each site's name and moments, which are looked at once, one after the other. They are asked for only where the
        model or the counts of missing cells need them.
    rows : Mapping or None
        The number of rows of each site, where it is known.
    dropped : Mapping or None
        Each site's rows that were left out, by the column that they lack; looked at after its moments.

    """
    design = Design.of(study, pooled, outcome=request.outcome, columns=request.columns)
    design.check_parties(rows or {})
    design.check_groups()
    fit, by_site = LeastSquares(design.sums(pooled)), None
    if request.by_site:
        if sites is None:
            raise InvalidParameter(
                "site effects, robust errors and heterogeneity: expected the sums of each site, got none"
            )
        by_site = BySite(fit, design.indicators, study.smallest_group)
    gaps: list[Gap] = design.gaps("", pooled) if sites is None else []
    if sites is not None and (by_site is not None or design.has_gaps):
        seen: dict[str, int] = {}
        for name, sent in sites:
            seen[name] = sent.n
            gaps += design.gaps(name, sent)
            gaps += (Gap(column, name, count, "dropped") for column, count in (dropped or {}).get(name, {}).items())
            if by_site is not None:
                by_site.add(name, design.sums(sent), alone=request.heterogeneity)
        if (found := sum(seen.values())) != pooled.n:
            raise Mismatch(
                f"sites: expected the {pooled.n} rows of the pooled moments, got {found}; give all sites again"
            )
        rows = rows or seen
    unit = study.plain(design.outcome).get("unit", "")
    options: dict[str, Any] = {"columns": design.column_of, "unit": unit, "level": request.level}
    if by_site is not None:
        table = _by_site(by_site, request, options)
    else:
        table = fit.table(**options) if request.ridge is None else _ridge(fit, request.ridge, options)
        table = replace(table, sites=replace(table.sites, rows=dict(rows or {})))
    return replace(table, missing=tuple(gaps), notes=(*table.notes, *design.notes(gaps)))


def _ridge(fit: LeastSquares, ridge: float, options: Mapping[str, Any]) -> Coefficients:
    sums = fit.sums
    table = fit.ridge(ridge, np.sqrt(np.maximum(sums.scatter.diagonal()[:-1], 0.0) / sums.n), **options)
    return replace(table, notes=(*table.notes, "The penalty is on coefficients of columns with standard deviation 1."))


def _by_site(sites: BySite, request: Request, options: Mapping[str, Any]) -> Coefficients:
    if request.site_effects == "fixed":
        table = sites.fixed(**options)
    elif request.site_effects == "random":
        table = sites.random(**options, method=request.likelihood)
    elif request.robust:
        table = sites.robust(**options)
    else:
        table = sites.plain(**options)
    return replace(table, heterogeneity=sites.heterogeneity()) if request.heterogeneity else table

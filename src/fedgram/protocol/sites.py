"""Errors of the other parties' model at each party, from the moments that they have sent anyway.

The squared error of a linear model on a site is a quadratic form in that site's moments, and the moments of all the
other sites are a sum. So leave-one-site-out validation takes one factorisation for each site.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from typing import Any, Self

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidData
from fedgram.moments.basis import Basis
from fedgram.moments.moments import Moments
from fedgram.moments.regression import Ridge
from fedgram.moments.targets import ClassTargets, NumericTargets, Targets
from fedgram.protocol.transport import Reply

MOST_SITES = 64


@dataclass(frozen=True, eq=False)
class SiteError:
    """A model's errors on a site's n samples: for each target, the sums of squares (t,) of errors and about the mean.

    Targets are numeric outcomes, or the classes as 0 and 1. Means are NaN for a site without samples.
    """

    n: int
    squared_errors: Array
    squares_about_mean: Array

    @property
    def mse(self) -> float:
        """The mean squared error, over samples and targets."""
        return self.brier / len(self.squared_errors)

    @property
    def brier(self) -> float:
        """The mean squared distance of the scores from the targets: for classes, the Brier score of the scores."""
        return float(self.squared_errors.sum()) / self.n if self.n else float("nan")

    @property
    def rmse(self) -> Array:
        """The root mean squared error of each target (t,)."""
        found: Array = np.sqrt(self.squared_errors / self.n) if self.n else np.full(len(self.squared_errors), np.nan)
        return found

    @property
    def r2(self) -> float:
        """The explained share of the site's variance: below 0, its mean predicts better; NaN without variance."""
        about = float(self.squares_about_mean.sum())
        return 1 - float(self.squared_errors.sum()) / about if about > 0 else float("nan")


@dataclass(frozen=True)
class SiteValidation:
    """A site's errors under three models: of the other sites, of all sites, and of its own samples alone.

    The last two models have seen the samples that they are judged by, so they look better than they are.
    """

    left_out: SiteError
    pooled: SiteError
    own: SiteError


def validate_sites(
    sites: Mapping[str, Moments], *, ridge: Ridge = "auto", intercept: bool = True, targets: Targets | None = None
) -> dict[str, SiteValidation]:
    """Return each site's errors, by its name; at least two sites must have samples, and at most 64 can be given.

    `ridge` "auto" is chosen for each model by generalised cross-validation on the model's own moments.
    `targets` are those that the moments hold, by default the classes; for numeric outcomes, the moments are those of
    `joint_moments`.

    >>> sites = {
    ...     name: Moments.of([[0.0], [1.0]], labels, classes=["ill", "well"])
    ...     for name, labels in {"north": ["ill", "well"], "south": ["ill", "well"], "east": ["well", "ill"]}.items()
    ... }
    >>> {name: round(site.left_out.brier, 2) for name, site in validate_sites(sites, ridge=0.0).items()}
    {'north': 0.5, 'south': 0.5, 'east': 2.0}
    """
    if len(sites) > MOST_SITES:
        raise InvalidData(f"{len(sites)} sites are more than the {MOST_SITES} that are validated: choose some of them")
    names, parts = list(sites), list(sites.values())
    if sum(part.n > 0 for part in parts) < 2:
        raise InvalidData(f"leaving one site out needs two or more with samples, got {len(names)} sites: {names}")
    parts = [part.aligned(parts[0].schema) for part in parts]

    judge = Judge(Moments.sum(parts), ridge=ridge, intercept=intercept, targets=targets)
    both = zip(names, parts, without_each(parts), strict=True)
    return {name: judge.site(part, others) for name, part, others in both}


class Judge:
    """The computation of errors on one site after another, given the pooled moments of all sites."""

    def __init__(
        self,
        pooled: Moments,
        *,
        ridge: Ridge = "auto",
        intercept: bool = True,
        targets: Targets | None = None,
    ) -> None:
        self._ridge, self._intercept = ridge, intercept
        self._targets = targets or ClassTargets(pooled.classes)
        self._pooled = self._model(pooled)

    def site(self, part: Moments, others: Moments) -> SiteValidation:
        """Return a site's errors, given its own moments and those of all the others."""
        site = self._targets.joint(part)
        models = self._model(others), self._pooled, self._model(part)
        return SiteValidation(
            *(SiteError(site.n, site.squared_errors(*model), site.squares_about_mean()) for model in models)
        )

    def _model(self, trained_on: Moments) -> tuple[Array, Array | None]:
        problem = self._targets.joint(trained_on).regression(intercept=self._intercept)
        weights, _ = problem.solve(self._ridge)
        return weights, problem.offset(weights)


def without_each(parts: Sequence[Moments], outside: Moments | None = None) -> Iterator[Moments]:
    """Yield for each of two or more parts the sum of the others, and of `outside`.

    Nothing is subtracted, so a large site leaves no rounding errors behind. The parts are split in halves again and
    again, and each half adds the other one to `outside`: k log k additions in all, and log k sums in memory.
    """
    if len(parts) == 1 and outside is not None:
        yield outside
        return
    half = len(parts) // 2
    for mine, others in ((parts[:half], parts[half:]), (parts[half:], parts[:half])):
        yield from without_each(mine, Moments.sum(others if outside is None else (outside, *others)))


# Most parties times columns³: leaving each party out then takes seconds, and their moments less than 100 MB.
MOST_WORK = 1e10


@dataclass(frozen=True, eq=False)
class Sites:
    """The moments of each party, unless keeping them or leaving parties out is expensive, as `why_not` then says.

    With `made`, their columns are those that methods see; otherwise `basis` maps the clients' columns to these.
    `targets` are those of the run.
    """

    moments: Mapping[str, Moments]
    made: bool = True
    why_not: str = ""
    basis: Basis | None = None
    targets: Targets | None = None

    def agreed(self, basis: Basis | None, targets: Targets) -> Self:
        """Return the same moments with the agreed basis and targets."""
        return replace(self, basis=None if self.made else basis, targets=targets)

    @cached_property
    def validation(self) -> dict[str, SiteValidation]:
        """Errors of least squares with an intercept at each party, by name; empty with fewer than two parties.

        Errors of numeric outcomes are in the outcomes' own units.
        """
        if sum(part.n > 0 for part in self.moments.values()) < 2:
            return {}
        seen = {name: part if self.basis is None else self.basis.moments(part) for name, part in self.moments.items()}
        found = validate_sites(seen, targets=self.targets)
        return {name: in_own_units(site, self.targets) for name, site in found.items()}

    def report(self) -> dict[str, Any]:
        """Return each party's errors under the three models of `SiteValidation`, or the reason why they are left out.

        Errors are lists in the order of `names`: by numeric outcome, or for classes under the name "".
        """
        if self.why_not:
            return {"left_out": self.why_not}
        found = self.validation
        if not found:
            return {"left_out": "fewer than two parties have samples"}
        names = () if self.targets is None else self.targets.names
        targets = _places(names) if names else {"": slice(None)}
        return {
            "names": list(found),
            "samples": [site.left_out.n for site in found.values()],
            "errors": {
                target: {
                    which: {
                        measure: [_number(of(_at(getattr(site, which), place))) for site in found.values()]
                        for measure, of in _MEASURES.items()
                        if target == "" or measure != "brier"
                    }
                    for which in ("left_out", "pooled", "own")
                }
                for target, place in targets.items()
            },
        }


def in_own_units(site: SiteValidation, targets: Targets | None) -> SiteValidation:
    """Return errors of numeric outcomes in the outcomes' own units, and those of classes as they are."""
    if not isinstance(targets, NumericTargets):
        return site
    return SiteValidation(*(_scaled(error, targets.unit) for error in (site.left_out, site.pooled, site.own)))


def _scaled(error: SiteError, unit: Array) -> SiteError:
    squared, about = error.squared_errors * unit**2, error.squares_about_mean * unit**2
    return replace(error, squared_errors=squared, squares_about_mean=about)


class SiteKeeper:
    """Keeper of moments that pass through on their way into a sum."""

    def __init__(self, *, made: bool) -> None:
        self._moments: dict[str, Moments] = {}
        self._made, self._why_not = made, ""

    def passing(self, replies: Iterable[Reply]) -> Iterator[Reply]:
        """Yield the replies again; moments among them are kept until there are too many."""
        for reply in replies:
            if isinstance(reply.value, Moments) and not self._why_not:
                self._keep(reply.client, reply.value)
            yield reply

    def _keep(self, name: str, moments: Moments) -> None:
        self._moments[name] = moments
        count = len(self._moments)
        if count > MOST_SITES:
            self._why_not = f"there are more than {MOST_SITES} parties"
        elif count * float(moments.d) ** 3 > MOST_WORK:
            self._why_not = f"{moments.d:,} columns are too many to leave out each of {count} or more parties in turn"
        if self._why_not:
            self._moments.clear()

    def sites(self, names: Iterable[str]) -> Sites:
        """Return the moments of these parties, as far as they were kept."""
        kept = {name: self._moments[name] for name in names if name in self._moments}
        return Sites(kept, self._made, self._why_not)


_MEASURES: dict[str, Callable[[SiteError], float]] = {
    "mse": lambda error: error.mse,
    "r2": lambda error: error.r2,
    "brier": lambda error: error.brier,
}


def _places(names: tuple[str, ...]) -> dict[str, slice]:
    return {name: slice(place, place + 1) for place, name in enumerate(names)}


def _at(error: SiteError, place: slice) -> SiteError:
    return replace(
        error, squared_errors=error.squared_errors[place], squares_about_mean=error.squares_about_mean[place]
    )


def _number(value: float) -> float | None:
    """Return a number for JSON, which has no NaN."""
    return float(np.float64(value)) if isfinite(value) else None

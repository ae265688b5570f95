"""How well models predict sites that they have not seen, from the sites' moments alone, without a further message.

The squared error of a linear model on a site is a quadratic form in that site's moments, and the moments of all the
other sites are a sum. So leave-one-site-out validation takes one factorisation for each site.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidData
from fedgram.moments.moments import Moments
from fedgram.moments.outcomes import Joint
from fedgram.moments.regression import Ridge

MOST_SITES = 64


@dataclass(frozen=True, eq=False)
class SiteError:
    """How a model errs on a site's n samples: sums of squares (t,), one for each target, of errors and about the mean.

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
    def r2(self) -> float:
        """The share of the site's variance that is explained: below 0, its own mean does better. NaN without any."""
        about = float(self.squares_about_mean.sum())
        return 1 - float(self.squared_errors.sum()) / about if about > 0 else float("nan")


@dataclass(frozen=True)
class SiteValidation:
    """A site's errors under the model of the other sites, of all sites, and under its own, which has seen it alone.

    The last two models have seen the samples that they are judged by, so they look better than they are.
    """

    left_out: SiteError
    pooled: SiteError
    own: SiteError


def validate_sites(
    sites: Mapping[str, Moments], *, ridge: Ridge = "auto", intercept: bool = True, outcomes: int = 0
) -> dict[str, SiteValidation]:
    """Return each site's errors, by its name; at least two sites must have samples, and at most 64 can be given.

    `ridge` "auto" is chosen anew for each model, by generalised cross-validation on the moments that it is made of.
    For numeric outcomes, `outcomes` says how many, and the moments are those of `joint_moments`.

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
    parts = [part.aligned(parts[0].kind) for part in parts]

    judge = Judge(Moments.sum(parts), ridge=ridge, intercept=intercept, outcomes=outcomes)
    both = zip(names, parts, without_each(parts), strict=True)
    return {name: judge.site(part, others) for name, part, others in both}


class Judge:
    """Says how models err on one site after another, given what all sites have pooled."""

    def __init__(self, pooled: Moments, *, ridge: Ridge = "auto", intercept: bool = True, outcomes: int = 0) -> None:
        self._ridge, self._intercept, self._outcomes = ridge, intercept, outcomes
        self._pooled = self._model(pooled)

    def site(self, part: Moments, others: Moments) -> SiteValidation:
        """Return a site's errors, given its own moments and those of all the others."""
        site = Joint.of(part, outcomes=self._outcomes)
        models = self._model(others), self._pooled, self._model(part)
        return SiteValidation(
            *(SiteError(site.n, site.squared_errors(*model), site.squares_about_mean()) for model in models)
        )

    def _model(self, trained_on: Moments) -> tuple[Array, Array | None]:
        problem = Joint.of(trained_on, outcomes=self._outcomes).regression(intercept=self._intercept)
        weights, _ = problem.solve(self._ridge)
        return weights, problem.offset(weights)


def without_each(parts: Sequence[Moments], outside: Moments | None = None) -> Iterator[Moments]:
    """Yield for each of two or more parts the sum of the others, and of `outside`.

    Nothing is subtracted, so a large site leaves no rounding errors behind. Halves are added to each other's outside:
    k log k additions in all, and log k sums in memory.
    """
    if len(parts) == 1 and outside is not None:
        yield outside
        return
    half = len(parts) // 2
    for mine, others in ((parts[:half], parts[half:]), (parts[half:], parts[:half])):
        yield from without_each(mine, Moments.sum(others if outside is None else (outside, *others)))

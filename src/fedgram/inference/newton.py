"""Newton's method for logistic and Poisson models, from sums over rows that parties add up. Arrays only.

At coefficients β, rows x (with a 1 for the intercept) and outcomes y have three sums: the gradient Xᵀ(y - μ), the
information XᵀWX and the log-likelihood. Newton's step is the gradient divided by the information.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from math import log, sqrt
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit, gammaln, xlogy

from fedgram.core.arrays import Array

EPS = float(np.finfo(np.float64).eps)
# Largest linear predictor of a count that is computed with: e²⁰ = 5 · 10⁸. A step that leads further lowers the
# log-likelihood in any case, and sums fit into the fixed point of a store.
HIGHEST = 20.0
LOWEST = -50.0  # by which Pearson's statistic divides; a positive count is impossible in any case
ROWS = 1 << 12  # rows that are weighted at a time
# Along separated outcomes each step adds about 1 to the linear predictor, gains less and less, and shrinks the next
# gain by e: λ by √e = 1.65. Where there is a maximum nearby, λ is squared instead. Two such steps with gains below
# `GAINED` are taken for separation.
GAINED, LINEAR = 1e-2, 0.5
ROUNDED = 1e-11  # share of the terms of a log-likelihood that may be lost to rounding


class Sums(NamedTuple):
    """The sums over rows at coefficients (p,), the intercept's last. Those of different rows add up.

    `log_likelihood` is without the terms that do not depend on the coefficients. For counts these terms are
    -`constant` = -Σ log y!, `saturated` is the log-likelihood for μ = y, and `pearson` is Σ (y - μ)²/μ. For classes all
    three are 0.
    """

    gradient: Array  # (p,)
    information: Array  # (p, p)
    log_likelihood: float
    constant: float = 0.0
    saturated: float = 0.0
    pearson: float = 0.0

    @property
    def size(self) -> float:
        """The size of the terms of the log-likelihood; for counts Σ yη and Σ μ may cancel."""
        return max(abs(self.log_likelihood), float(self.information[-1, -1]), 1.0)


class Family(ABC):
    """A distribution of outcomes, whose mean μ depends on a linear predictor η by the canonical link."""

    @abstractmethod
    def weights(self, eta: Array, y: Array) -> tuple[Array, Array]:
        """Return the residuals y - μ and the weights W = ∂μ/∂η of rows, (n,) each."""

    @abstractmethod
    def figures(self, eta: Array, y: Array) -> tuple[float, float, float, float]:
        """Return the last four fields of `Sums`."""

    @abstractmethod
    def link(self, mean: float) -> float:
        """Return the η of a mean."""

    @abstractmethod
    def null(self, total: float, n: float) -> tuple[float, float]:
        """Return the weight of each row and the log-likelihood of n equal means of outcomes that add up to `total`."""


class Classes(Family):
    """Outcomes 0 and 1 with μ = 1/(1 + e^-η).

    >>> Classes().weights(np.array([0.0]), np.array([1.0]))
    (array([0.5]), array([0.25]))
    """

    def weights(self, eta: Array, y: Array) -> tuple[Array, Array]:
        """Return y - μ without cancellation, and μ(1 - μ)."""
        sign = 2 * y - 1
        return sign * expit(-sign * eta), expit(eta) * expit(-eta)

    def figures(self, eta: Array, y: Array) -> tuple[float, float, float, float]:
        """Return the log-likelihood."""
        return -float(np.logaddexp(0, (1 - 2 * y) * eta).sum()), 0.0, 0.0, 0.0

    def link(self, mean: float) -> float:
        """Return log μ/(1 - μ)."""
        return log(mean / (1 - mean))

    def null(self, total: float, n: float) -> tuple[float, float]:
        """Return s(1 - s) and n times the entropy of the share s of ones."""
        share = total / n
        return share * (1 - share), float(xlogy(total, share) + xlogy(n - total, 1 - share))


class Counts(Family):
    """Whole numbers from 0 with Poisson's distribution and μ = e^η.

    >>> Counts().weights(np.array([0.0]), np.array([3.0]))
    (array([2.]), array([1.]))
    """

    def weights(self, eta: Array, y: Array) -> tuple[Array, Array]:
        """Return y - μ and μ."""
        mean = np.exp(np.minimum(eta, HIGHEST))
        return y - mean, mean

    def figures(self, eta: Array, y: Array) -> tuple[float, float, float, float]:
        """Return the log-likelihood, Σ log y!, the log-likelihood for μ = y, and Pearson's statistic."""
        capped = np.minimum(eta, HIGHEST)
        mean = np.exp(capped)
        pearson = np.square((y - mean) * np.exp(-np.maximum(capped, LOWEST) / 2)).sum()
        return (
            float((y * eta - mean * (1 + eta - capped)).sum()),  # beyond `HIGHEST` its tangent there
            float(gammaln(y + 1).sum()),
            float((xlogy(y, y) - y).sum()),
            float(pearson),
        )

    def link(self, mean: float) -> float:
        """Return log μ."""
        return log(mean)

    def null(self, total: float, n: float) -> tuple[float, float]:
        """Return the mean and the log-likelihood of equal rates."""
        return total / n, float(xlogy(total, total / n)) - total


def predictors(
    blocks: Iterable[tuple[npt.NDArray[Any], Array]], coefficients: Array
) -> Iterator[tuple[Array, Array, Array]]:
    """Yield rows (n, d + 1) with a last column of ones, their linear predictors and outcomes, some at a time."""
    for x, y in blocks:
        for start in range(0, len(x), ROWS):
            part = np.asarray(x[start : start + ROWS], dtype=np.float64)
            rows = np.column_stack([part, np.ones(len(part))])
            yield rows, rows @ coefficients, y[start : start + ROWS]


def sums(
    family: Family,
    blocks: Iterable[tuple[npt.NDArray[Any], Array]],
    coefficients: Array,
    estimated: npt.NDArray[np.int64],
) -> Sums:
    """Return the sums over rows, which come as blocks of x (n, d) and y (n,).

    Parameters
    ----------
    family : Family
        The distribution of y.
    blocks : Iterable[tuple[NDArray, Array]]
        The rows.
    coefficients : Array
        The coefficients of all columns, (d + 1,), the intercept last.
    estimated : NDArray
        The places of the coefficients that are estimated, (p,): the columns of gradient and information.

    """
    p = len(estimated)
    gradient, information, figures = np.zeros(p), np.zeros((p, p)), np.zeros(4)
    for rows, eta, y in predictors(blocks, coefficients):
        residual, weight = family.weights(eta, y)
        design = rows[:, estimated]
        gradient += design.T @ residual
        weighted = design * np.sqrt(weight)[:, None]
        information += weighted.T @ weighted
        figures += family.figures(eta, y)
    return Sums(gradient, information, *figures.tolist())


class Point(NamedTuple):
    """Coefficients (p,), the sums there, Newton's step from there, and its length in standard errors."""

    beta: Array
    sums: Sums
    step: Array
    decrement: float

    @classmethod
    def of(cls, beta: Array, found: Sums) -> Self:
        """Return the point; raise `Singular` if the information cannot be inverted."""
        step = inverse(found.information) @ found.gradient
        return cls(beta, found, step, sqrt(max(float(step @ found.gradient), 0.0)))


class Singular(Exception):
    """An information matrix without an inverse; `direction` (p,) is the one in which the rows say nothing."""

    def __init__(self, direction: Array) -> None:
        super().__init__()
        self.direction = direction


def inverse(information: Array) -> Array:
    """Return the inverse of an information matrix (p, p), the covariance of the estimates; raise `Singular`.

    >>> inverse(np.diag([4.0, 0.25]))
    array([[0.25, 0.  ],
           [0.  , 4.  ]])
    """
    sizes = np.sqrt(np.diag(information))
    if (sizes > 0).all():
        scaled = information / np.outer(sizes, sizes)
        values, vectors = np.linalg.eigh(scaled)
        if values[0] > len(values) * EPS:
            whole = cho_solve(cho_factor(scaled, lower=True), np.eye(len(scaled)))
            return np.asarray((whole + whole.T) / 2 / np.outer(sizes, sizes))
        raise Singular(vectors[:, 0] / sizes)
    raise Singular((sizes == 0).astype(np.float64))


class Newton:
    """Newton's method with step halving: a point at a time, whose sums the caller gets from all parties.

    The last coefficient is the intercept's.

    `point` is where the sums are wanted next. After `take`, `found` is the best point so far and `converged` says
    whether it is the maximum: whether the next step is at most `tolerance` standard errors long. That step is then part
    of `solution`, whose error is the square of it.

    >>> rows, y = np.array([[0.0], [0.0], [1.0], [1.0]]), np.array([0.0, 1.0, 1.0, 1.0])
    >>> newton = Newton(np.zeros(2))
    >>> newton.take(sums(Classes(), [(rows, y)], newton.point, np.arange(2)))
    >>> newton.point, newton.converged
    (array([2., 0.]), False)
    """

    def __init__(self, start: Array, *, tolerance: float = 1e-9) -> None:
        self.point = start
        self.found: Point | None = None
        self.decrements: list[float] = []  # of the points since the last halved step
        self._tolerance = tolerance

    def take(self, found: Sums, *, anew: bool = False) -> None:
        """Take the sums at `point`; with `anew` they are of other rows than the sums before."""
        best = None if anew else self.found
        if best is not None and found.log_likelihood < best.sums.log_likelihood - ROUNDED * best.sums.size:
            self.point = best.beta + (self.point - best.beta) / 2
            self.decrements = [best.decrement]
            return
        self.found = Point.of(self.point, found)
        self.decrements = [*([] if anew else self.decrements), self.found.decrement]
        self.point = self.solution

    @property
    def solution(self) -> Array:
        """The best point so far, and Newton's step from there."""
        assert self.found is not None
        return np.asarray(self.found.beta + self.found.step)

    @property
    def converged(self) -> bool:
        """Whether the next step is of no account."""
        return self.found is not None and self.found.decrement <= max(self._tolerance, self._noise())

    @property
    def runs_away(self) -> bool:
        """Whether steps gain nearly nothing and still do not become much shorter: there is no maximum nearby."""
        last = self.decrements[-3:]
        return len(last) == 3 and last[-1] < GAINED and min(last[1] / last[0], last[2] / last[1]) > LINEAR

    def _noise(self) -> float:
        """Return the decrement that rounding errors of the gradient can cause."""
        assert self.found is not None
        information = self.found.sums.information
        sizes = np.sqrt(np.diag(information))
        least = float(np.linalg.eigvalsh(information / np.outer(sizes, sizes))[0])
        # Rounding of Σ x r is a few ε times the root of Σ x² r², about the root of the information.
        return 64 * EPS * sqrt(len(sizes) / max(least, EPS))

"""Linear regression from sums about the means: estimates, standard errors, tests, and figures of the whole model.

Sums about the means do not cancel as XᵀX and yᵀy about zero do, and they are scaled to a unit diagonal before they are
factored. So columns such as 2026 ± 1 or 10⁵ ± 10 keep their digits, as far as the sums have them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite, log, pi, sqrt
from typing import Self

import numpy as np
import numpy.typing as npt
from scipy import special
from scipy.linalg import lapack

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidData, InvalidParameter
from fedgram.inference.table import INTERCEPT, Coefficient, Coefficients, JointTest

EPS = float(np.finfo(np.float64).eps)
# A column of which earlier columns explain all but this share of the variance is aliased. R's limit is 1e-14, which
# sums of squares cannot tell from rounding.
ALIASED = 1e-12
ROUNDINGS = 16.0  # a sum of squares of at most so many rounding errors is taken for zero
# Rounding errors of sums of squares about zero, in units of EPS: 20 for a hundred rows, 300 for ten thousand or more,
# in which BLAS adds up blocks. A constant column is then within `ROUNDINGS` times this.
PRODUCTS = 64.0
DIGITS = 1e-7  # relative errors above this are told in a note; as a rule they are a hundredth of this bound
AIC_NOTE = "AIC and BIC count the coefficients, not the residual variance, as statsmodels does; R counts one more."


@dataclass(frozen=True, eq=False)
class Sums:
    """The sums of some columns over n rows, the outcome's last, about their means.

    Parameters
    ----------
    names : tuple[str, ...]
        The terms, and the outcome.
    n : int
        The number of rows.
    origin : Array
        The number that was subtracted from each column before it was summed, (d,).
    mean : Array
        The mean of each column less its origin, (d,).
    scatter : Array
        The sums of products about the means, (d, d).
    noise : Array
        The size of the rounding errors on the diagonal of `scatter`, (d,).

    Examples
    --------
    >>> rows = [[1.0, 2.0], [3.0, 5.0], [4.0, 4.0]]
    >>> (Sums.of(rows[:2], ("x", "y")) + Sums.of(rows[2:], ("x", "y"))).scatter
    array([[4.66666667, 3.66666667],
           [3.66666667, 4.66666667]])

    """

    names: tuple[str, ...]
    n: int
    origin: Array
    mean: Array
    scatter: Array
    noise: Array

    @classmethod
    def of(cls, rows: npt.ArrayLike, names: Sequence[str]) -> Self:
        """Return the sums of rows (n, d)."""
        found = np.asarray(rows, dtype=np.float64)
        origin = found.mean(axis=0)
        centred = found - origin
        mean = centred.mean(axis=0)  # what rounding has left
        centred -= mean
        scatter = centred.T @ centred
        noise = EPS * scatter.diagonal() + len(found) * (EPS * mean) ** 2
        return cls(tuple(names), len(found), origin, mean, scatter, noise)

    @classmethod
    def about(cls, origin: Array, names: Sequence[str], n: int, sums: Array, products: Array) -> Self:
        """Return the sums from those of columns less an `origin` (d,): sums (d,) and products (d, d)."""
        mean = sums / max(n, 1)
        scatter = products - n * np.outer(mean, mean)
        return cls(tuple(names), n, origin, mean, scatter, PRODUCTS * EPS * products.diagonal())

    def __add__(self, other: Self) -> Self:
        """Return the sums over the rows of both (Chan's update)."""
        n = self.n + other.n
        apart = (other.origin - self.origin) + (other.mean - self.mean)
        between = self.n * other.n / max(n, 1)
        return replace(
            self,
            n=n,
            mean=self.mean + apart * (other.n / max(n, 1)),
            scatter=self.scatter + other.scatter + between * np.outer(apart, apart),
            noise=self.noise + other.noise + EPS * between * apart**2,
        )

    def chosen(self, names: Sequence[str]) -> Self:
        """Return the sums of these columns, in this order."""
        places = [self.names.index(name) for name in names]
        return replace(
            self,
            names=tuple(names),
            origin=self.origin[places],
            mean=self.mean[places],
            scatter=self.scatter[np.ix_(places, places)],
            noise=self.noise[places],
        )

    @property
    def means(self) -> Array:
        """The mean of each column, (d,)."""
        return self.origin + self.mean


@dataclass(frozen=True, eq=False)
class Solved:
    """The least-squares solution for the columns that are not aliased.

    Parameters
    ----------
    kept, aliased : list[int]
        The places of the terms that have a coefficient, and of those that are combinations of earlier ones.
    varies : NDArray
        Whether each term varies at all, (q,).
    slopes : Array
        The coefficients of the kept terms, (r,).
    inverse : Array
        The inverse of their sums of products, (r, r).
    vif : Array
        Their variance inflation factors, (r,).
    squares, errors : float
        The sum of squares of the outcome about its mean, and that of the residuals.
    off : Array
        The relative errors that rounding may have caused in what the kept terms have beside the others, (r,).
    log_determinant : float
        The logarithm of the determinant of the kept terms' sums of products.

    """

    kept: list[int]
    aliased: list[int]
    varies: npt.NDArray[np.bool_]
    slopes: Array
    inverse: Array
    vif: Array
    squares: float
    errors: float
    off: Array
    log_determinant: float

    @classmethod
    def of(cls, scatter: Array, noise: Array) -> Self:
        """Return the solution for sums of products about the means (d, d), the outcome's last."""
        diagonal, squares, cross = scatter.diagonal()[:-1], float(scatter[-1, -1]), scatter[:-1, -1]
        size = np.sqrt(np.maximum(diagonal, 0.0))
        varies = diagonal > ROUNDINGS * noise[:-1]
        size = np.where(varies, size, 1.0)
        unit = np.where(np.outer(varies, varies), scatter[:-1, :-1] / np.outer(size, size), 0.0)
        lost = np.where(varies, noise[:-1] / size**2, 0.0)
        triangle, kept = _cholesky(unit, varies, np.maximum(ALIASED, ROUNDINGS * np.maximum.accumulate(lost)))
        aliased = sorted(set(range(len(diagonal))).difference(kept))
        size, lost = size[kept], lost[kept]
        inverse = _inverse(triangle)
        slopes = _refined(unit[np.ix_(kept, kept)], inverse, cross[kept] / size)
        errors = squares - float(slopes @ (cross[kept] / size))
        vif = inverse.diagonal().copy()
        off = vif * np.maximum(lost, EPS)
        log_determinant = 2 * float(np.log(triangle.diagonal()).sum() + np.log(size).sum())
        scale = np.outer(size, size)
        return cls(
            kept, aliased, varies, slopes / size, inverse / scale, vif, squares, max(errors, 0.0), off, log_determinant
        )


def _cholesky(unit: Array, varies: npt.NDArray[np.bool_], least: Array) -> tuple[Array, list[int]]:
    """Return the lower Cholesky factor of the columns that earlier ones do not explain, and their places.

    The square of a diagonal element of the factor is the share of a column that earlier ones leave.
    """
    if varies.all() and len(unit):
        whole, failed = lapack.dpotrf(unit, lower=1, clean=1)
        if not failed and (whole.diagonal() ** 2 > least).all():
            return np.asarray(whole), list(range(len(unit)))
    factor, kept = np.zeros(unit.shape), list[int]()
    for place in np.flatnonzero(varies).tolist():
        r = len(kept)
        row = lapack.dtrtrs(factor[:r, :r], unit[kept, place], lower=1)[0] if r else np.zeros(0)
        left = float(unit[place, place] - row @ row)
        if left > least[place]:
            factor[r, :r], factor[r, r] = row, sqrt(left)
            kept.append(place)
    return factor[: len(kept), : len(kept)].copy(), kept


def _inverse(triangle: Array) -> Array:
    if not len(triangle):
        return np.zeros((0, 0))
    found = np.tril(lapack.dpotri(triangle, lower=1)[0])
    return np.asarray(found + np.tril(found, -1).T)


def _refined(unit: Array, inverse: Array, cross: Array) -> Array:
    """Return the solution of the normal equations after one step of refinement, which costs O(d²)."""
    slopes = inverse @ cross
    return np.asarray(slopes + inverse @ (cross - unit @ slopes))


def check_level(level: float) -> float:
    """Return a confidence level; raise unless it is between 0 and 1."""
    if not (isfinite(level) and 0 < level < 1):
        raise InvalidParameter(f"level: expected a number between 0 and 1, got {level:g}; 0.95 is usual")
    return float(level)


def is_perfect(solved: Solved, sums: Sums) -> bool:
    """Return whether the residuals are not distinguished from rounding errors."""
    return solved.errors <= max(ALIASED * solved.squares, ROUNDINGS * float(sums.noise[-1]))


def check_solved(solved: Solved, sums: Sums, *, parameters: int, where: str = "") -> None:
    """Raise for an outcome that does not vary (`where`), too few rows, or a perfect fit."""
    outcome = sums.names[-1]
    if not solved.squares > ROUNDINGS * float(sums.noise[-1]):
        raise InvalidData(
            f"outcome {outcome!r}: expected numbers that vary{where}, got the same in all {sums.n:,} rows{where}; "
            "choose another outcome"
        )
    if sums.n <= parameters:
        raise InvalidData(
            f"rows: expected more than the {parameters} parameters of the model, got {sums.n}; use fewer columns"
        )
    if is_perfect(solved, sums):
        raise InvalidData(
            f"outcome {outcome!r}: expected residuals, got a perfect fit; a column or a combination of columns is the "
            "outcome itself, so leave it out"
        )


def tabulated(
    terms: Sequence[str],
    estimates: Array,
    covariance: Array,
    columns: Mapping[str, str],
    *,
    df: float | None,
    level: float,
) -> tuple[tuple[Coefficient, ...], tuple[JointTest, ...]]:
    """Return the rows of a table and the joint tests of columns with several terms.

    Parameters
    ----------
    terms
        The terms, in the order of `estimates` (r,) and `covariance` (r, r).
    estimates, covariance
        The coefficients and their covariance.
    columns
        The study's column of each term but the intercept.
    df
        The degrees of freedom of the t and F statistics; None for z and chi-square.
    level
        The confidence level of the intervals.

    """
    errors = np.sqrt(covariance.diagonal())
    with np.errstate(divide="ignore", invalid="ignore"):  # robust errors of few sites may be 0
        statistics = estimates / errors
    if df is None:
        p, reach = 2 * special.ndtr(-np.abs(statistics)), float(special.ndtri((1 + level) / 2))
    else:
        p, reach = 2 * special.stdtr(df, -np.abs(statistics)), float(special.stdtrit(df, (1 + level) / 2))
    arrays = (estimates, errors, statistics, p, estimates - reach * errors, estimates + reach * errors)
    figures = zip(*(array.tolist() for array in arrays), strict=True)
    rows = tuple(Coefficient(term, columns.get(term, ""), *line) for term, line in zip(terms, figures, strict=True))
    places: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        if row.column:
            places.setdefault(row.column, []).append(place)
    several = {column: found for column, found in places.items() if len(found) > 1}
    tests = (joint_test(column, estimates[at], covariance[np.ix_(at, at)], df) for column, at in several.items())
    return rows, tuple(test for test in tests if test is not None)


def joint_test(column: str, estimates: Array, covariance: Array, df: float | None) -> JointTest | None:
    """Return the Wald test that all coefficients are 0; None for a covariance without full rank."""
    size = np.sqrt(covariance.diagonal())
    factor, failed = lapack.dpotrf(covariance / np.outer(size, size), lower=1, clean=1)
    if failed or (factor.diagonal() ** 2 < ALIASED).any():
        return None
    half = lapack.dtrtrs(factor, estimates / size, lower=1)[0]
    wald, q = float(half @ half), len(estimates)
    if df is None:
        return JointTest(column, wald, q, None, float(special.chdtrc(q, wald)))
    return JointTest(column, wald / q, q, df, float(special.fdtrc(q, df, wald / q)))


@dataclass(frozen=True, eq=False)
class LeastSquares:
    """An ordinary least-squares fit with an intercept.

    Parameters
    ----------
    sums : Sums
        The sums of all terms and the outcome.

    """

    sums: Sums

    @cached_property
    def solved(self) -> Solved:
        """The solution; raises where there is nothing to estimate."""
        solved = Solved.of(self.sums.scatter, self.sums.noise)
        check_solved(solved, self.sums, parameters=len(solved.kept) + 1)
        return solved

    @property
    def terms(self) -> list[str]:
        """The terms that have a coefficient, without the intercept."""
        return [self.sums.names[place] for place in self.solved.kept]

    @property
    def df(self) -> int:
        """The residual degrees of freedom."""
        return self.sums.n - len(self.solved.kept) - 1

    @cached_property
    def to_zero(self) -> Array:
        """The matrix (r + 1, r + 1) that takes (mean of the outcome, slopes) to (intercept at 0, slopes)."""
        found = np.eye(len(self.solved.kept) + 1)
        found[0, 1:] = -self.sums.means[self.solved.kept]
        return found

    @cached_property
    def estimates(self) -> Array:
        """The intercept and the slopes, (r + 1,)."""
        return np.asarray(self.to_zero @ np.append(self.sums.means[-1], self.solved.slopes))

    def covariance(self, about_means: Array) -> Array:
        """Return the covariance of the estimates, from that of (mean of the outcome, slopes)."""
        return np.asarray(self.to_zero @ about_means @ self.to_zero.T)

    @cached_property
    def bread(self) -> Array:
        """(XᵀX)⁻¹ for columns about their means, with an intercept, (r + 1, r + 1)."""
        r = len(self.solved.kept)
        found = np.zeros((r + 1, r + 1))
        found[0, 0], found[1:, 1:] = 1 / self.sums.n, self.solved.inverse
        return found

    @cached_property
    def condition_number(self) -> float:
        """The ratio of the largest to the smallest singular value of the design, with its intercept, in its units."""
        kept, means = self.solved.kept, self.sums.means
        about = np.zeros_like(self.bread)
        about[0, 0], about[1:, 1:] = self.sums.n, self.sums.scatter[np.ix_(kept, kept)]
        back = np.eye(len(about))
        back[0, 1:] = means[kept]
        largest = np.linalg.eigvalsh(back.T @ about @ back)[-1]
        return sqrt(float(largest * np.linalg.eigvalsh(self.covariance(self.bread))[-1]))

    def table(self, columns: Mapping[str, str], *, unit: str = "", level: float = 0.95) -> Coefficients:
        """Return the table; `columns` has the study's column of each term."""
        solved, sums, df = self.solved, self.sums, self.df
        q, variance = len(solved.kept), solved.errors / self.df
        covariance = self.covariance(self.bread) * variance
        terms = [INTERCEPT, *self.terms]
        rows, joint = tabulated(terms, self.estimates, covariance, columns, df=df, level=check_level(level))
        explained = solved.squares - solved.errors
        figures = whole_model(sums.n, q + 1, solved.squares, solved.errors, df=df)
        if q:
            f = explained / q / variance
            figures |= {"f": f, "f_p": float(special.fdtrc(q, df, f))}
        return Coefficients(
            "linear",
            sums.names[-1],
            unit,
            "Least squares",
            "classical",
            rows,
            joint,
            level,
            float(df),
            figures | {"condition_number": self.condition_number},
            dict(zip(self.terms, solved.vif.tolist(), strict=True)),
            tuple(sums.names[place] for place in solved.aliased),
            (AIC_NOTE, *notes_of(solved, sums)),
        )

    def ridge(
        self, ridge: float, scale: Array, columns: Mapping[str, str], *, unit: str = "", level: float = 0.95
    ) -> Coefficients:
        """Return the table of a ridge regression, which has estimates and no tests.

        Parameters
        ----------
        ridge
            The penalty on the squares of the coefficients, times `scale`.
        scale
            The unit of each term in which its coefficient is shrunk, (q,): standard deviations, or ones.
        columns, unit, level
            Those of `table`.

        """
        check_level(level)
        sums, squares = self.sums, float(self.sums.scatter[-1, -1])
        if not (isfinite(ridge) and ridge > 0):
            raise InvalidParameter(f"ridge: expected a number above 0, got {ridge:g}; leave it out for least squares")
        alone = sums.chosen([sums.names[-1]])
        check_solved(Solved.of(alone.scatter, alone.noise), alone, parameters=1)
        varies = (sums.scatter.diagonal() > ROUNDINGS * sums.noise)[:-1] & (scale > 0)
        kept = np.flatnonzero(varies)
        size = scale[kept]
        gram = sums.scatter[np.ix_(kept, kept)] / np.outer(size, size)
        values, vectors = np.linalg.eigh(gram)
        values = np.maximum(values, 0.0)
        cross = sums.scatter[kept, -1] / size
        slopes = vectors @ (vectors.T @ cross / (values + ridge))
        errors = max(squares - float(slopes @ (2 * cross - gram @ slopes)), 0.0)
        effective = float((values / (values + ridge)).sum()) + 1
        slopes = slopes / size
        terms = [sums.names[place] for place in kept]
        first = Coefficient(INTERCEPT, "", float(sums.means[-1] - sums.means[kept] @ slopes))
        others = (
            Coefficient(term, columns.get(term, ""), slope) for term, slope in zip(terms, slopes.tolist(), strict=True)
        )
        return Coefficients(
            "linear",
            sums.names[-1],
            unit,
            "Ridge",
            "none",
            (first, *others),
            level=level,
            summary={
                "n": sums.n,
                "ridge": ridge,
                "effective_df": effective,
                "r_squared": 1 - errors / squares,
                "residual_sd": sqrt(errors / max(sums.n - effective, 1.0)),
            },
            aliased=tuple(name for name in sums.names[:-1] if name not in terms),
            notes=(
                "A ridge has no p values: its coefficients are shrunk on purpose, by an amount that depends on the "
                "unknown coefficients, so an estimate divided by its standard error has no known distribution.",
            ),
        )


def whole_model(n: int, parameters: int, squares: float, errors: float, *, df: int) -> dict[str, float]:
    """Return the figures of a least-squares model, in statsmodels' conventions.

    Parameters
    ----------
    n, parameters
        The numbers of rows and of coefficients, the intercept included.
    squares, errors
        The sums of squares of the outcome about its mean, and of the residuals.
    df
        The residual degrees of freedom.

    """
    likelihood = -n / 2 * (log(2 * pi * errors / n) + 1)
    return {
        "n": n,
        "parameters": parameters,
        "df_residual": df,
        "r_squared": 1 - errors / squares,
        "adjusted_r_squared": 1 - errors / squares * (n - 1) / df,
        "residual_sd": sqrt(errors / df),
        "log_likelihood": likelihood,
        "aic": 2 * parameters - 2 * likelihood,
        "bic": log(n) * parameters - 2 * likelihood,
    }


def notes_of(solved: Solved, sums: Sums) -> tuple[str, ...]:
    """Return notes about aliased terms, and about digits that were lost."""
    notes = []
    lost = max(float(sums.noise[-1]), EPS * solved.squares) / solved.errors
    if lost > DIGITS:
        notes.append(
            "The fit is nearly perfect, or the outcome is far from zero (the middle of its range) for its spread: "
            f"residuals and standard errors may be off by a share of {lost:.0e}."
        )
    if solved.aliased:
        listed = ", ".join(sums.names[place] for place in solved.aliased)
        notes.append(f"Left out as constant, or as combinations of earlier terms: {listed}.")
    if (worst := float(solved.off.max(initial=0.0))) > DIGITS:
        term = sums.names[solved.kept[int(solved.off.argmax())]]
        notes.append(
            f"{term} is nearly a combination of other terms, or far from zero (the middle of its range) for its "
            f"spread: coefficients may be off by a share of {worst:.0e}."
        )
    return tuple(notes)

"""Means, standard deviations, standardised differences and correlations, from sums over samples. Arrays only."""

from dataclasses import dataclass
from math import sqrt
from typing import Self

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array

EXACT = 2.0**53  # sums of whole numbers are exact below
EPS = float(np.finfo(np.float64).eps)
BEYOND = 1 + 1e-9  # what rounding may make of a correlation of 1
_SPLIT = 2.0**27 + 1


def rounding(n: Array) -> Array:
    """Return the share of a sum of n squares that may be rounding: errors of blocked sums grow like √n."""
    return np.asarray(8 * EPS * (1 + np.sqrt(n)))


def products_about_means(n: Array, products: Array, sums: Array, others: Array) -> Array:
    """Return Σ(x - mean x)(y - mean y) from n, Σxy, Σx and Σy, all of one shape; 0 where n is 0.

    The difference n Σxy - Σx Σy is computed in twice the usual precision: it loses none of the digits that the sums
    have, however far from zero a column is.

    >>> years = np.array([2025.0, 2026.0, 2027.0])
    >>> total = np.array(years.sum())
    >>> products_about_means(np.array(3.0), np.array(years @ years), total, total)
    array(2.)
    """
    high, low = _product(n, products)
    other_high, other_low = _product(sums, others)
    difference = (high - other_high) + (low - other_low)
    return np.divide(difference, n, out=np.zeros(np.shape(difference)), where=n > 0)


def _product(one: Array, other: Array) -> tuple[Array, Array]:
    """Return the rounded products, and what rounding took away (Dekker 1971)."""
    product = np.asarray(one * other)
    (a, b), (c, d) = _halves(one), _halves(other)
    return product, np.asarray(((a * c - product) + a * d + b * c) + b * d)


def _halves(number: Array) -> tuple[Array, Array]:
    """Return numbers as sums of two with half of the digits each."""
    scaled = _SPLIT * number
    high = scaled - (scaled - number)
    return high, number - high


@dataclass(frozen=True, eq=False)
class Spread:
    """Counts, means and sums of squares about the mean of columns; those of different samples add up.

    Parameters
    ----------
    n : Array
        The number of values of each column.
    mean : Array
        Their means, NaN where there are none.
    about : Array
        Their sums of squares about the mean.

    Examples
    --------
    >>> one, other = (Spread.of(*map(np.array, sums)) for sums in ((2.0, 4.0, 10.0), (1.0, 5.0, 25.0)))
    >>> both = one + other
    >>> both.mean, both.deviation
    (array(3.), array(2.))

    """

    n: Array
    mean: Array
    about: Array

    @classmethod
    def of(cls, n: Array, sums: Array, squares: Array) -> Self:
        """Return the spread of columns with these counts, sums and sums of squares.

        A column whose squares about the mean are no more than rounding does not vary.
        """
        about = products_about_means(n, squares, sums, sums)
        whole = (squares < EXACT) & (squares == np.rint(squares)) & (sums == np.rint(sums))  # then nothing was rounded
        about = np.where(whole | (about > rounding(n) * squares), np.maximum(about, 0.0), 0.0)
        return cls(n, np.divide(sums, n, out=np.full(np.shape(about), np.nan), where=n > 0), about)

    @property
    def variance(self) -> Array:
        """The variances, with n - 1; NaN for fewer than two values."""
        few = np.full(np.shape(self.about), np.nan)
        found: Array = np.divide(self.about, self.n - 1, out=few, where=self.n > 1)
        return found

    @property
    def deviation(self) -> Array:
        """The standard deviations, with n - 1; NaN for fewer than two values."""
        return np.asarray(np.sqrt(self.variance))

    def __add__(self, other: Self) -> "Spread":
        """Return the spread of the values of both together (Chan, Golub & LeVeque 1983)."""
        n = self.n + other.n
        share = np.divide(other.n, n, out=np.zeros(np.shape(n)), where=n > 0)
        apart = np.where((self.n > 0) & (other.n > 0), other.mean - self.mean, 0.0)
        mean = np.where(self.n > 0, self.mean + share * apart, other.mean)
        return Spread(n, mean, self.about + other.about + self.n * share * apart**2)

    def others(self) -> "Spread":
        """Return, for groups in rows (k, d), the spread of all other groups together, in the same rows.

        Nothing is subtracted, so a large group leaves no rounding errors behind.
        """
        groups = [Spread(*row) for row in zip(self.n, self.mean, self.about, strict=True)]
        nothing = Spread(*(np.full(self.n.shape[1:], value) for value in (0.0, np.nan, 0.0)))
        before, after = [nothing], [nothing]
        for one in groups[:-1]:
            before.append(before[-1] + one)
        for one in groups[:0:-1]:
            after.append(one + after[-1])
        both = [one + other for one, other in zip(before, after[::-1], strict=True)]
        return Spread(*(np.array([getattr(one, name) for one in both]) for name in ("n", "mean", "about")))


def standardised_differences(one: Spread, other: Spread) -> Array:
    """Return (m₁ - m₂) / √((s₁² + s₂²)/2) for columns of two groups; NaN where it is not known or infinite.

    >>> one, other = (Spread.of(*map(np.array, sums)) for sums in ((2.0, 2.0, 4.0), (2.0, 6.0, 20.0)))
    >>> float(standardised_differences(one, other).round(3))
    -1.414
    """
    return _ratio(one.mean - other.mean, (one.variance + other.variance) / 2)


def standardised_difference_of_shares(one: Array, other: Array) -> float:
    """Return the standardised difference of two groups in a category, from their shares of each level (l,).

    It is √((p - q)ᵀ S⁻¹ (p - q)), where S is the mean of both groups' multinomial covariances (Yang & Dalton 2012). For
    two levels it is |p - q| / √((p(1 - p) + q(1 - q))/2). NaN where the groups have no level in common: it is infinite.

    >>> round(standardised_difference_of_shares(np.array([0.5, 0.5]), np.array([0.8, 0.2])), 4)
    0.6626
    """
    present = one + other > 0
    p, q = one[present], other[present]
    if not (p * q).any():  # also where one of them is NaN
        return float("nan")
    # Any level may be left out; with one level less the covariance has full rank, because the groups share a level.
    apart, p, q = (p - q)[1:], p[1:], q[1:]
    covariance = np.diag(p + q) / 2 - (np.outer(p, p) + np.outer(q, q)) / 2
    return sqrt(max(float(apart @ np.linalg.solve(covariance, apart)), 0.0)) if len(apart) else 0.0


def _ratio(difference: Array, variance: Array) -> Array:
    """Return differences in units of the root of a variance; 0 where they are 0, NaN where only the variance is."""
    found = np.divide(difference, np.sqrt(variance), out=np.full(np.shape(difference), np.nan), where=variance > 0)
    return np.where((variance == 0) & (difference == 0), 0.0, found)


def correlations(
    n: float, gram: Array, sums: Array, gap_gram: Array, gap_products: Array
) -> tuple[Array, npt.NDArray[np.int64]]:
    """Return the correlations of columns with missing values, (d, d), and the numbers of samples behind them.

    A correlation is the covariance over samples in which both columns are known, divided by the standard deviations of
    all known values of each. Without missing values it is Pearson's. NaN where a column does not vary, or the quotient
    is beyond ±1, as missing values may make it.

    Parameters
    ----------
    n : float
        The number of samples.
    gram, sums : Array
        Sums of products (d, d) and sums (d,) of the columns, which are 0 where missing.
    gap_gram : Array
        Sums of products of the indicators of missing values, (d, d), 0 for columns without.
    gap_products : Array
        Sums of products of columns (rows) with indicators (columns), (d, d).

    """
    gaps = gap_gram.diagonal()
    both = n - gaps[:, None] - gaps[None, :] + gap_gram
    known = sums[:, None] - gap_products  # sums of each row's column where the other is known
    about = products_about_means(both, gram, known, known.T)
    covariance = np.divide(about, both - 1, out=np.full(about.shape, np.nan), where=both > 1)
    deviation = Spread.of(n - gaps, sums, gram.diagonal()).deviation
    scale = np.outer(deviation, deviation)
    found = np.divide(covariance, scale, out=np.full(about.shape, np.nan), where=scale > 0)
    found[np.abs(found) > BEYOND] = np.nan
    found = np.clip(found, -1.0, 1.0)
    varies = deviation > 0
    found[varies, varies] = 1.0
    return found, np.rint(both).astype(np.int64)

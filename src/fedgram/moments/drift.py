"""The distance between the features of two data sets, from their moments: has what comes in changed?"""

from dataclasses import dataclass

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.columns import Columns, order
from fedgram.core.errors import InvalidData, Mismatch
from fedgram.moments import packing, solve
from fedgram.moments.decayed import DecayedMoments
from fedgram.moments.moments import Moments
from fedgram.moments.weighted import SLACK, WeightedMoments

_SHOWN = 3


@dataclass(frozen=True, eq=False)
class Drift:
    """The distances between two data sets, column by column and of all columns together, and what chance explains.

    Parameters
    ----------
    columns : Array
        The distance of each column, (d,), in its standard deviations: √((μ₁ - μ₂)² + (σ₁ - σ₂)²) / σ with
        σ² = (σ₁² + σ₂²) / 2. Infinite for columns that are constant at two different values.
    total : float
        The distance of all columns together: the Fréchet distance of normal distributions with these means and
        covariances, columns in their standard deviations. It is at least √Σ columns²; what is beyond, correlations have
        changed.
    by_chance : Array
        The distance of each column to expect of two random samples of one normal distribution, (d,).
    total_by_chance : float
        The distance of all columns together to expect of these.
    names : Columns
        The names of the columns, () where they have none.

    """

    columns: Array
    total: float
    by_chance: Array
    total_by_chance: float
    names: Columns = ()

    def __repr__(self) -> str:
        worst = np.argsort(-self.columns, kind="stable")[:_SHOWN].tolist()
        shown = ", ".join(f"{self.names[k] if self.names else k}: {self.columns[k]:.3g}" for k in worst)
        return f"Drift(total={self.total:.3g}, by chance {self.total_by_chance:.3g}; largest {shown})"


def drift(before: Moments | WeightedMoments, after: Moments | WeightedMoments) -> Drift:
    """Return the distance between the features of two data sets.

    A distance of 1 means that a column has moved by its standard deviation. Distances about those expected by chance
    say nothing; three times as large is hardly chance, if samples are independent. What changes neither means nor
    covariances is not seen. Weights count as numbers of samples: decayed moments are of more samples than their weight,
    so chance explains less than it says.

    Parameters
    ----------
    before : Moments or WeightedMoments
        The moments of one data set, such as those of the last weeks: `fg.Moments`, such as the `total` of a fit, or
        decayed ones, or the `moments_` of an estimator.
    after : Moments or WeightedMoments
        The moments of the other, of the same columns.

    Examples
    --------
    >>> import fedgram as fg
    >>> rng = np.random.default_rng(0)
    >>> days = [rng.normal(size=(500, 2)) + shift for shift in ([0.0, 0.0], [0.0, 0.0], [1.0, 0.0])]
    >>> sums = [fg.Moments.of(day, [0] * 500, classes=2, columns=["age", "bmi"]) for day in days]
    >>> drift(sums[0], sums[1])
    Drift(total=0.143, by chance 0.118; largest age: 0.131, bmi: 0.0451)
    >>> drift(sums[0], sums[2])
    Drift(total=1.07, by chance 0.118; largest age: 1.06, bmi: 0.0447)

    """
    one, two = _weighted(before), _weighted(after)
    names, others = _names(one), _names(two)
    if len(one.mean) != len(two.mean):
        raise Mismatch(
            f"drift: expected moments of the same features, got {len(one.mean)} and {len(two.mean)} features"
        )
    where = order(others, names) if names and others else np.arange(len(one.mean))
    (spread, near), (other_spread, far) = _covariance(one), _covariance(two)
    mean, other_spread, far = two.mean[where], other_spread[where], far[np.ix_(where, where)]
    scale = np.sqrt((spread + other_spread) / 2)
    apart = np.abs(one.mean - mean)
    # Means of a constant column differ by rounding.
    apart[apart <= SLACK * solve.EPS * (np.abs(one.mean) + np.abs(mean))] = 0.0
    varies = scale > 0
    unit = np.where(varies, scale, 1.0)
    change = np.hypot(apart, np.sqrt(spread) - np.sqrt(other_spread)) / unit
    columns = np.where(varies | (apart == 0), change, np.inf)
    near, far = near / np.outer(unit, unit), far / np.outer(unit, unit)
    chance = 1 / one.weight + 1 / two.weight
    total = float(np.sum((apart / unit)[varies] ** 2)) + _between(near, far)
    # Rounding must not bring it below what the columns alone amount to.
    return Drift(
        columns,
        float(np.sqrt(max(total, float(np.sum(columns**2))))),
        np.where(varies, np.sqrt(1.5 * chance), 0.0),
        _by_chance((near + far) / 2, chance),
        names or others,
    )


def _weighted(moments: Moments | WeightedMoments) -> WeightedMoments:
    if isinstance(moments, Moments):
        return DecayedMoments.of_moments(moments)
    if not isinstance(moments, WeightedMoments):
        raise InvalidData(
            f"drift: expected moments, got {type(moments).__name__}; of a fit, give its total, of an estimator its "
            "moments_"
        )
    return moments


def _names(moments: WeightedMoments) -> Columns:
    return moments.columns if isinstance(moments, DecayedMoments) else ()


def _covariance(moments: WeightedMoments) -> tuple[Array, Array]:
    """Return the variances (d,) and the covariance (d, d)."""
    covariance = packing.unpack(moments.packed, len(moments.mean)) / moments.weight
    return np.maximum(covariance.diagonal(), 0.0), covariance


def _between(one: Array, two: Array) -> float:
    """Return tr(A + B - 2 (√A B √A)^½), the squared distance of two centred normal distributions."""
    # The trace of (√A B √A)^½ is the sum of the singular values of √A √B.
    product = _root(one).T @ _root(two)
    both = float(np.linalg.svd(product, compute_uv=False).sum())
    return max(float(np.trace(one) + np.trace(two)) - 2 * both, 0.0)


def _root(covariance: Array) -> Array:
    """Return R with RRᵀ = A."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def _by_chance(covariance: Array, chance: float) -> float:
    """Return the distance to expect of samples with this covariance, `chance` being 1/n₁ + 1/n₂.

    A mean scatters by λ chance along each eigenvector. A covariance scatters by λᵢλⱼ(1 + δᵢⱼ) chance, and a small
    change Δ of it is a squared distance of ½ Σ Δᵢⱼ² / (λᵢ + λⱼ).
    """
    values = np.linalg.eigvalsh(covariance)
    values = values[values > solve.EPS * len(values) * max(float(values[-1]), 0.0)]
    if not len(values):
        return 0.0
    pairs = np.outer(values, values) / np.add.outer(values, values)
    return float(np.sqrt(chance * (values.sum() + 0.5 * (pairs.sum() + np.trace(pairs)))))

"""Bootstrap intervals of the errors of predicted numbers. Arrays only."""

import numpy as np

from fedgram.core.arrays import Array
from fedgram.inference.descriptives import rounding

MOST, FEWEST = 2000, 200  # resamples of a small table, and of a very large one
DRAWN = 2 * 10**8  # samples in all resamples together, where that is more than FEWEST
MEASURES = ("rmse", "mae", "r2")


def bootstrap_intervals(
    errors: Array, values: Array, *, level: float, seed: int = 0
) -> tuple[list[dict[str, tuple[float, float] | None]], int]:
    """Return percentile intervals of RMSE, MAE and R² for each outcome, and the number of resamples.

    Samples are drawn with replacement, the same ones for all outcomes. An interval is None for fewer than two samples.
    That of R² leaves out resamples in which the outcome does not vary, and is None if these are more than one tail.

    Parameters
    ----------
    errors : Array
        Predicted less observed outcomes, (n, t).
    values : Array
        Observed outcomes, (n, t).
    level : float
        The level of the intervals.
    seed : int
        The seed of the draws: the same table gives the same intervals.

    Examples
    --------
    >>> errors, values = np.array([[1.0], [-1.0], [1.0]]), np.array([[1.0], [2.0], [3.0]])
    >>> [found], resamples = bootstrap_intervals(errors, values, level=0.95)
    >>> found["rmse"], resamples
    ((1.0, 1.0), 2000)

    """
    n, t = errors.shape
    if n < 2:
        return [dict.fromkeys(MEASURES) for _ in range(t)], 0
    resamples = max(FEWEST, min(MOST, DRAWN // n))
    about = values - values.mean(axis=0)
    rows = np.hstack([np.square(errors), np.abs(errors), about, np.square(about)])
    rng = np.random.default_rng(seed)
    means = np.empty((resamples, 4, t))
    for one in means:
        times = np.bincount(rng.integers(0, n, n), minlength=n).astype(np.float64)
        one[:] = (times @ rows / n).reshape(4, t)
    squared, absolute, mean, square = np.moveaxis(means, 1, 0)
    spread = square - mean**2
    varies = spread > rounding(np.array(n)) * square  # not where all values drawn are the same
    explained = 1 - np.divide(squared, spread, out=np.full(spread.shape, np.nan), where=varies)
    ends = (1 - level) / 2, (1 + level) / 2
    found = []
    for place in range(t):
        drawn = np.sqrt(squared[:, place]), absolute[:, place], explained[:, place]
        found.append({name: _between(one, *ends) for name, one in zip(MEASURES, drawn, strict=True)})
    return found, resamples


def _between(drawn: Array, low: float, high: float) -> tuple[float, float] | None:
    undefined = np.isnan(drawn)
    if undefined.mean() > low:
        return None
    return float(np.quantile(drawn[~undefined], low)), float(np.quantile(drawn[~undefined], high))

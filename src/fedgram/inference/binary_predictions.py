"""How well probabilities predict an event, with confidence intervals. Arrays only.

The area under the ROC curve (AUROC), sensitivity and the like at a threshold, and calibration.
"""

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array

Mask: TypeAlias = npt.NDArray[np.bool_]
How: TypeAlias = Literal["DeLong", "Newcombe", "Wilson", "Wald", "bootstrap", ""]
GROUPS = 10  # of samples by their probability, in each of which the share of events is compared with it
NEAREST = 1e-12  # to 0 or 1 that a probability may be where its logarithm is taken
STEPS, SETTLED = 100, 1e-10  # of Newton's method; the largest change of a coefficient at its end
HALVINGS = 60  # of an interval that holds a limit


@dataclass(frozen=True)
class Estimate:
    """A figure with its confidence interval.

    Attributes
    ----------
    value
        The figure; None where it is not defined.
    low, high
        The ends of the interval; None where they are not known.
    how
        The method of the interval, "" without one.
    why
        Why there is no figure or no interval, or another method was taken; "" where all is as usual.

    """

    value: float | None
    low: float | None = None
    high: float | None = None
    how: How = ""
    why: str = ""

    @classmethod
    def around(cls, value: float, error: float, level: float) -> "Estimate":
        """Return a coefficient with Wald's interval, from its standard error."""
        half = quantile(level) * error
        return cls(value, value - half, value + half, "Wald")


def quantile(level: float) -> float:
    """Return the quantile of the normal distribution that two-sided intervals of this level take.

    >>> round(quantile(0.95), 6)
    1.959964
    """
    return NormalDist().inv_cdf((1 + level) / 2)


def wilson(count: int, n: int, level: float) -> Estimate:
    """Return a share with Wilson's score interval (1927); of no samples there is none.

    Parameters
    ----------
    count, n : int
        The samples that have a property, and all samples.
    level : float
        The level of the interval.

    Examples
    --------
    >>> found = wilson(8, 10, 0.95)
    >>> round(found.low, 4), round(found.high, 4)
    (0.4902, 0.9433)

    """
    if not n:
        return Estimate(None, why="no samples")
    z, share = quantile(level), count / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # At 0 and n an end is 0 or 1 exactly.
    return Estimate(share, middle - half if count else 0.0, middle + half if count < n else 1.0, "Wilson")


def auroc(scores: Array, event: Mask, level: float) -> Estimate:
    """Return the area under the ROC curve, in which ties count half, with DeLong's interval (1988).

    DeLong's variance is 0 if the scores of events and others do not overlap, or are all the same, and is not defined
    for one event or one other. Newcombe's interval (2006, method 5) is taken then: it solves |θ - A| = z √V(θ) with the
    variance at its own end, as Wilson's does for a share.

    Parameters
    ----------
    scores : Array
        A number for each sample (n,), larger where the event is more likely.
    event : Mask
        Whether the event happened, (n,).
    level : float
        The level of the interval.

    Examples
    --------
    >>> found = auroc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]), 0.95)
    >>> found.value, round(found.low, 4), found.high
    (0.75, 0.057, 1.0)

    """
    m, n = int(np.count_nonzero(event)), int(np.count_nonzero(~event))
    if not m or not n:
        return Estimate(None, why="no samples of the class" if not m else "no samples of another class")
    # All that matters is how many events and others have each score, and how many have a smaller one.
    values, places = np.unique(scores, return_inverse=True)
    events = np.bincount(places[event], minlength=len(values)).astype(np.float64)
    others = np.bincount(places[~event], minlength=len(values)).astype(np.float64)
    below = (np.cumsum(others) - others / 2) / n  # of an event with this score, the share of others that it beats
    above = (m - np.cumsum(events) + events / 2) / m  # of another, the share of events that beat it
    area = float(events @ (np.cumsum(others) - others / 2)) / (m * n)
    if min(m, n) > 1:
        variance = float(events @ (below - area) ** 2) / (m - 1) / m + float(others @ (above - area) ** 2) / (n - 1) / n
        # Where all differences are rounding errors, so is the variance.
        if variance > (64 * np.finfo(np.float64).eps) ** 2:
            half = quantile(level) * sqrt(variance)
            return Estimate(area, max(area - half, 0.0), min(area + half, 1.0), "DeLong")
        same = "all scores are equal" if len(values) == 1 else "the scores of events and others do not overlap"
        why = f"DeLong's interval has no width, because {same}"
    else:
        why = "DeLong's interval needs two events and two others"
    low, high = _newcombe(area, m, n, quantile(level))
    return Estimate(area, low, high, "Newcombe", why)


def _newcombe(area: float, m: int, n: int, z: float) -> tuple[float, float]:
    """Return the ends of Newcombe's interval for an area of m events and n others."""
    half = (m + n) / 2 - 1

    def width(at: float) -> float:
        variance = at * (1 - at) * (1 + half * (1 - at) / (2 - at) + half * at / (1 + at)) / (m * n)
        return z * sqrt(max(variance, 0.0))

    def lowest(area: float) -> float:
        """Return the lower end: below it, the area is further away than z standard deviations."""
        low, high = 0.0, area
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if area - middle > width(middle) else (low, middle)
        return low

    return lowest(area), 1 - lowest(1 - area)


@dataclass(frozen=True)
class Group:
    """Samples of similar probability: how many, the mean probability, and the observed share of events."""

    samples: int
    predicted: float
    observed: Estimate


@dataclass(frozen=True)
class EventScores:
    """The scores of probabilities (n,) as predictions of one event.

    Attributes
    ----------
    threshold
        The event is predicted where its probability is at least this.
    hits, missed, false_alarms, rejected
        Events that are predicted and not, and others that are predicted as events and not.
    auroc, sensitivity, specificity, ppv, npv
        With intervals: DeLong's for the first, Wilson's for the others.
    brier
        The mean squared difference of the probability from 1 for an event and 0 for others.
    intercept, slope
        Of logistic regressions of the event on the log odds that were predicted, 0 and 1 if these are right. The
        intercept is that beside a slope of 1 ("calibration in the large").
    groups
        Samples by tenths of the probability; equal probabilities stay together.

    """

    threshold: float
    hits: int
    missed: int
    false_alarms: int
    rejected: int
    auroc: Estimate
    sensitivity: Estimate
    specificity: Estimate
    ppv: Estimate
    npv: Estimate
    brier: float
    intercept: Estimate
    slope: Estimate
    groups: tuple[Group, ...]

    @classmethod
    def of(cls, probabilities: Array, event: Mask, *, threshold: float, level: float) -> "EventScores":
        """Return the scores of an event's probabilities.

        Parameters
        ----------
        probabilities : Array
            The probability of the event for each sample (n,), of at least one.
        event : Mask
            Whether the event happened, (n,).
        threshold : float
            The probability from which on the event is predicted.
        level : float
            The level of intervals.

        """
        named = probabilities >= threshold
        hits, false_alarms = (int(np.count_nonzero(named & truth)) for truth in (event, ~event))
        missed, rejected = (int(np.count_nonzero(~named & truth)) for truth in (event, ~event))
        intercept, slope = calibration_line(probabilities, event, level)
        return cls(
            threshold,
            hits,
            missed,
            false_alarms,
            rejected,
            auroc(probabilities, event, level),
            wilson(hits, hits + missed, level),
            wilson(rejected, rejected + false_alarms, level),
            wilson(hits, hits + false_alarms, level),
            wilson(rejected, rejected + missed, level),
            float(np.mean(np.square(probabilities - event))),
            intercept,
            slope,
            tuple(calibration_groups(probabilities, event, level)),
        )


def calibration_groups(probabilities: Array, event: Mask, level: float) -> list[Group]:
    """Return the samples in tenths by their probability, from low to high; equal probabilities stay together."""
    edges = np.unique(np.quantile(probabilities, np.arange(1, GROUPS) / GROUPS, method="inverted_cdf"))
    places = np.searchsorted(edges, probabilities, side="left")
    samples, events = (np.bincount(some, minlength=GROUPS).tolist() for some in (places, places[event]))
    sums = np.bincount(places, weights=probabilities, minlength=GROUPS).tolist()
    return [Group(n, total / n, wilson(k, n, level)) for n, k, total in zip(samples, events, sums, strict=True) if n]


def calibration_line(probabilities: Array, event: Mask, level: float) -> tuple[Estimate, Estimate]:
    """Return the calibration in the large, and the calibration slope (Cox 1958), with Wald's intervals.

    Probabilities nearer to 0 or 1 than 1e-12 are taken as 1e-12 away.
    """
    if event.all() or not event.any():
        missing = Estimate(None, why="all samples are of one kind")
        return missing, missing
    clipped = np.clip(probabilities, NEAREST, 1 - NEAREST)
    odds = np.log(clipped) - np.log1p(-clipped)
    truth = event.astype(np.float64)
    found = _logistic(np.ones((len(odds), 1)), odds, truth)
    intercept = _unsettled() if found is None else Estimate.around(float(found[0][0]), found[1][0], level)
    happened, others = odds[event], odds[~event]
    if others.max() <= happened.min() or happened.max() <= others.min():
        separated = odds.min() != odds.max()
        why = "events and others are separated by the probability" if separated else "all probabilities are equal"
        return intercept, Estimate(None, why=why)
    # About the mean and in units of the spread, so that steps are well scaled.
    mean, spread = float(odds.mean()), float(odds.std())
    found = _logistic(np.column_stack([np.ones(len(odds)), (odds - mean) / spread]), np.zeros(len(odds)), truth)
    slope = _unsettled() if found is None else Estimate.around(found[0][1] / spread, found[1][1] / spread, level)
    return intercept, slope


def _unsettled() -> Estimate:
    return Estimate(None, why="the logistic regression did not settle")


def _logistic(x: Array, offset: Array, truth: Array) -> tuple[list[float], list[float]] | None:
    """Return the coefficients of a logistic regression with their standard errors; None if it does not settle."""
    beta, fit = np.zeros(x.shape[1]), _likelihood(offset, truth)
    for _ in range(STEPS):
        chance = (1 + np.tanh((offset + x @ beta) / 2)) / 2  # an exponential would overflow
        information = x.T @ (x * (chance * (1 - chance))[:, None])
        try:
            step = np.linalg.solve(information, x.T @ (truth - chance))
            error = np.sqrt(np.linalg.inv(information).diagonal())
        except np.linalg.LinAlgError:
            return None
        while (after := _likelihood(offset + x @ (beta + step), truth)) < fit and np.abs(step).max() > SETTLED:
            step /= 2
        beta, fit = beta + step, after
        if np.abs(step).max() <= SETTLED * max(1.0, np.abs(beta).max()):
            return beta.tolist(), error.tolist()
    return None


def _likelihood(odds: Array, truth: Array) -> float:
    """Return the log-likelihood of log odds."""
    return float(np.sum(truth * odds - np.logaddexp(0.0, odds)))

"""Log-likelihood of labels, and the weights of scores that maximise it. Arrays only."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax

from fedgram.core.arrays import Array

Labels = npt.NDArray[np.int64]
# Newton's steps in all, and those at the end that gain less than `UNSEEN`, relative to the log-likelihood.
MOST_STEPS, LAST_STEPS, UNSEEN = 100, 2, 1e-10


class Expert(NamedTuple):
    """Scores (n, c), and what their weight is expected to be, give or take a standard deviation."""

    scores: Array
    expected: float
    deviation: float


class Weights(NamedTuple):
    """Weights ≥ 0 of some scores, and the penalised log-likelihood of the labels under them."""

    values: Array
    log_likelihood: float


def best_weights(experts: Sequence[Expert], offset: Array, labels: Labels) -> Weights:
    """Return the weights w ≥ 0 for which offset + Σ w_e · scores_e, (n, c), explains the labels best.

    Few samples cannot tell a weight, and separable ones send it to infinity, so each has an expected value and a
    standard deviation. What is maximised is concave: Newton's steps, halved where they overshoot, find its top.

    >>> right = np.eye(2)[[0, 1, 1]]
    >>> sure, unsure = (Expert(right, 1.0, deviation) for deviation in (0.1, 10.0))
    >>> best_weights([sure], 0 * right, np.array([0, 1, 1])).values.round(1)
    array([1.])
    >>> best_weights([unsure], 0 * right, np.array([0, 1, 1])).values > 3
    array([ True])
    """
    scores = np.stack([expert.scores for expert in experts])
    expected, deviations = (np.array(column, dtype=float) for column in list(zip(*experts, strict=True))[1:])
    rows = np.arange(len(labels))
    own = scores[:, rows, labels].sum(axis=1)

    def at(weights: Array) -> tuple[float, Array, Array]:
        """Return the value at some weights, its gradient and its negative second derivatives."""
        log_p = log_softmax(offset + np.tensordot(weights, scores, axes=1), axis=1)
        weighted = np.exp(log_p) * scores
        means = weighted.sum(axis=2)
        spread = np.tensordot(weighted, scores, axes=((1, 2), (1, 2))) - means @ means.T
        away = (weights - expected) / deviations
        value = float(log_p[rows, labels].sum() - away @ away / 2)
        return value, own - means.sum(axis=1) - away / deviations, spread + np.diag(deviations**-2.0)

    weights = expected
    value, gradient, curvature = at(weights)
    near = 0
    for _ in range(MOST_STEPS):
        step = _newton(weights, gradient, curvature)
        # Near the top a step gains less than the value's rounding errors: it cannot be judged, and need not be.
        near += int(gradient @ step <= UNSEEN * (1 + abs(value)))
        ahead = np.maximum(weights + step, 0.0)
        found = at(ahead)
        while not near and found[0] < value:
            step /= 2
            ahead = np.maximum(weights + step, 0.0)
            found = at(ahead)
        weights, (value, gradient, curvature) = ahead, found
        if near == LAST_STEPS:
            break
    return Weights(weights, value)


def _newton(weights: Array, gradient: Array, curvature: Array) -> Array:
    """Return Newton's step among the weights that may move: one that is 0 and would become negative stays."""
    free = (weights > 0) | (gradient > 0)
    step = np.zeros(len(weights))
    step[free] = np.linalg.solve(curvature[np.ix_(free, free)], gradient[free])
    return step

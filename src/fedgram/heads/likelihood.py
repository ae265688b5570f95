"""Log-likelihood of labels, and the weights of scores that maximise it. Arrays only."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax

from fedgram.core.arrays import Array, Blocks, as_blocks, lazily

Labels = npt.NDArray[np.int64]
# Newton's steps in all, and those at the end that gain less than `UNSEEN`, relative to the log-likelihood.
MOST_STEPS, LAST_STEPS, UNSEEN = 100, 2, 1e-10
# The gain in log-likelihood from which own samples are used: two weights, as FedGram's, gain about one by chance.
WORTHWHILE = 1.0


class Expert(NamedTuple):
    """Scores (n, c), the expected value and standard deviation of their weight, and its least value."""

    scores: Array | Blocks[Array]
    expected: float
    deviation: float
    least: float = 0.0


class Weights(NamedTuple):
    """Weights of some scores, and the penalised log-likelihood of the labels under them."""

    values: Array
    log_likelihood: float


def best_weights(
    experts: Sequence[Expert], offset: Array | Blocks[Array], labels: Labels | Blocks[Labels] | Array
) -> Weights:
    """Return the weights w for which offset + Σ w_e · scores_e, (n, c), explains the labels best.

    All three may be in blocks of samples. Labels may also be numbers of samples of each class, (n, c). Few samples do
    not determine a weight, and separable samples make it infinite, so each has an expected value and a standard
    deviation. No weight is below its least value. The maximised function is concave: Newton's steps, halved where they
    overshoot, find its top.

    >>> right = np.eye(2)[[0, 1, 1]]
    >>> sure, unsure = (Expert(right, 1.0, deviation) for deviation in (0.1, 10.0))
    >>> best_weights([sure], 0 * right, np.array([0, 1, 1])).values.round(1)
    array([1.])
    >>> best_weights([unsure], 0 * right, np.array([0, 1, 1])).values > 3
    array([ True])
    """
    scores = lazily(_together, *(as_blocks(expert.scores) for expert in experts))
    offsets, known = as_blocks(offset), as_blocks(labels)
    expected, deviations, least = (np.array(column, dtype=float) for column in list(zip(*experts, strict=True))[1:])

    def at(weights: Array) -> tuple[float, Array, Array]:
        """Return the value at some weights, its gradient and its negative second derivatives."""
        away = (weights - expected) / deviations
        value, gradient, curvature = float(-away @ away / 2), -away / deviations, np.diag(deviations**-2.0)
        for some, start, right in zip(scores, offsets, known, strict=True):
            shares = np.eye(start.shape[1])[right] if right.ndim == 1 else right
            mass = shares.sum(axis=1)
            log_p = log_softmax(start + np.tensordot(weights, some, axes=1), axis=1)
            weighted = np.exp(log_p) * some
            means = weighted.sum(axis=2)
            value += float(np.vdot(shares, log_p))
            gradient = gradient + np.tensordot(some, shares, axes=2) - means @ mass
            weighted *= mass[:, None]
            curvature = curvature + np.tensordot(weighted, some, axes=((1, 2), (1, 2))) - (means * mass) @ means.T
        return value, gradient, curvature

    weights = expected
    value, gradient, curvature = at(weights)
    near = 0
    for _ in range(MOST_STEPS):
        step = _newton(weights > least, gradient, curvature)
        # Near the top a step gains less than the value's rounding errors: it cannot be judged, and need not be.
        near += int(gradient @ step <= UNSEEN * (1 + abs(value)))
        ahead = np.maximum(weights + step, least)
        found = at(ahead)
        while not near and found[0] < value:
            step /= 2
            ahead = np.maximum(weights + step, least)
            found = at(ahead)
        weights, (value, gradient, curvature) = ahead, found
        if near == LAST_STEPS:
            break
    return Weights(weights, value)


def _together(*scores: Array) -> Array:
    """Return the scores of all experts, (experts, n, c), each sample's about their mean.

    A constant that all classes of a sample share changes no probability, but the rounding errors of a large one would.
    """
    stacked = np.stack(scores)
    return np.asarray(stacked - stacked.mean(axis=2, keepdims=True))


def _newton(above: npt.NDArray[np.bool_], gradient: Array, curvature: Array) -> Array:
    """Return Newton's step; a weight that is not `above` its least value, and would become smaller, stays."""
    free = above | (gradient > 0)
    step = np.zeros(len(gradient))
    step[free] = np.linalg.solve(curvature[np.ix_(free, free)], gradient[free])
    return step

"""Log-likelihood of labels, and the scale of scores that maximises it. Arrays only."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax

from fedgram.core.arrays import Array

Labels = npt.NDArray[np.int64]


class Weight(NamedTuple):
    """A weight ≥ 0 of some scores, and the penalised log-likelihood of the labels under it."""

    value: float
    log_likelihood: float


def of_labels(logits: Array, labels: Labels) -> float:
    """Return the log-likelihood of labels (n,), given logits (n, c) of the classes.

    >>> bool(np.isclose(of_labels(np.zeros((3, 4)), np.array([0, 1, 3])), 3 * np.log(1 / 4)))
    True
    """
    return float(log_softmax(logits, axis=1)[np.arange(len(labels)), labels].sum())


def best_weight(scores: Array, offset: Array, labels: Labels, *, expected: float, deviation: float) -> Weight:
    """Return the weight w ≥ 0 for which offset + w · scores (n, c) explains the labels best.

    Few samples cannot tell w, and separable ones send it to infinity, so it is expected to be about `expected`, give
    or take `deviation`. What is maximised is concave in w: Newton's steps, halved where they overshoot, find its top.
    """
    rows = np.arange(len(labels))
    own = scores[rows, labels]

    def at(weight: float) -> tuple[float, float, float]:
        log_p = log_softmax(offset + weight * scores, axis=1)
        p, pull = np.exp(log_p), (expected - weight) / deviation**2
        mean = (p * scores).sum(axis=1)
        spread = (p * (scores - mean[:, None]) ** 2).sum()
        value = log_p[rows, labels].sum() - (expected - weight) ** 2 / (2 * deviation**2)
        return float(value), float((own - mean).sum() + pull), float(spread + 1 / deviation**2)

    weight, (value, slope, curvature) = expected, at(expected)
    for _ in range(100):
        step = max(slope / curvature, -weight)
        if abs(step) <= 1e-12 * (1 + weight):
            break
        next_value, *derivatives = at(weight + step)
        while next_value < value and abs(step) > 1e-12 * (1 + weight):
            step /= 2
            next_value, *derivatives = at(weight + step)
        weight, value, (slope, curvature) = weight + step, next_value, derivatives
    return Weight(weight, value)

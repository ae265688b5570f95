"""A client's own model from the shared head: Bayes' rule, and what a regression on its own samples adds to it."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.heads.adapt import own_ridge
from fedgram.heads.head import Head
from fedgram.heads.likelihood import Expert, Labels, best_weights
from fedgram.models import LinearModel

# How many imaginary samples per class a client adds to its own counts.
SMOOTHINGS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
# How far from what is expected the weights of the head's and of the client's own scores may well be. Own scores are
# expected to be worth nothing; where they are right they are near 0 and 1, so a weight of 10 makes them sure.
HEAD_DEVIATION, OWN_DEVIATION = 0.5, 10.0
# What own scores must gain in log-likelihood to be used, in all and per sample: a free weight gains half by chance, and
# less than a fiftieth per sample is no sign that the client's features differ from the others'.
WORTHWHILE, WORTHWHILE_PER_SAMPLE = 1.0, 0.02
# What a difference in log-likelihood must exceed to be more than rounding.
INDIFFERENT = 1e-9


def personal_model(
    head: Head, x: npt.NDArray[Any], labels: Labels, *, temperature: float, member: bool, refine: bool = True
) -> LinearModel:
    """Return the head with the client's own class frequencies, and with its own regression if that is worth it.

    Both are experts: their scores add up, weighted for the likelihood of left-out samples. `temperature` is what the
    head's scores should be multiplied by if own samples have nothing to say on it. `member` says whether these are
    among the samples that made the head.
    """
    rows = x.astype(np.float64)
    scores = rows @ head.weights + head.intercept
    if member:
        scores = head.left_out_scores(scores, labels)
    smoothing, weight, log_likelihood = _most_likely(head, scores, labels, temperature)
    weights = weight * head.weights
    intercept = weight * head.intercept + head.log_frequencies(labels, smoothing)
    own = own_ridge(rows, np.eye(len(head.classes))[labels], intercept=True) if refine else None
    if own is not None:
        experts = Expert(scores, temperature, HEAD_DEVIATION), Expert(own.left_out, 0.0, OWN_DEVIATION)
        found = best_weights(experts, head.left_out_log_frequencies(labels, smoothing), labels)
        if found.log_likelihood - log_likelihood > max(WORTHWHILE, WORTHWHILE_PER_SAMPLE * len(labels)):
            of_head, of_own = found.values
            weights = of_head * head.weights + of_own * own.weights
            intercept = of_head * head.intercept + of_own * own.intercept + head.log_frequencies(labels, smoothing)
    return LinearModel(weights, head.classes, intercept, head.features, head.columns)


def _most_likely(head: Head, scores: Array, labels: Labels, expected: float) -> tuple[float, float, float]:
    """Return the smoothing and the head's weight under which left-out samples are most likely, and how likely."""
    candidates = []
    for smoothing in SMOOTHINGS:
        frequencies = head.left_out_log_frequencies(labels, smoothing)
        found = best_weights([Expert(scores, expected, HEAD_DEVIATION)], frequencies, labels)
        candidates.append((smoothing, float(found.values[0]), found.log_likelihood))
    best = max(log_likelihood for *_, log_likelihood in candidates)
    # Somebody with one sample cannot tell them apart: rounding must not choose, so the largest does.
    return [found for found in candidates if found[-1] >= best - INDIFFERENT * (1 + abs(best))][-1]

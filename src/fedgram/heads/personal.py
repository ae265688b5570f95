"""A client's own model from the published head: Bayes' rule, and what its own samples add to it."""

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from fedgram.core.arrays import Array
from fedgram.heads import likelihood
from fedgram.heads.adapt import Spectrum
from fedgram.heads.head import Head
from fedgram.heads.likelihood import Labels, best_weight
from fedgram.models import LinearModel

# How many imaginary samples per class a client adds to its own counts.
SMOOTHINGS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
RIDGES = np.geomspace(0.01, 100, 9)
# How far from what is expected the strengths of head and refinement may well be.
TEMPERATURE_DEVIATION, REFINEMENT_DEVIATION = 0.5, 4.0
# What a refinement must gain in log-likelihood to be believed: its two free numbers gain about one by chance.
WORTHWHILE = 1.0
# What a difference in log-likelihood must exceed to be more than rounding.
INDIFFERENT = 1e-9


def personal_model(
    head: Head, x: npt.NDArray[Any], labels: Labels, *, temperature: float, refine: bool = True
) -> LinearModel:
    """Return Bayes' rule with the client's own class frequencies, and the refinement if it is worth it.

    `temperature` is what the head's scores should be multiplied by if own samples have nothing to say on it.
    """
    rows = x.astype(np.float64)
    scores = rows @ head.weights + head.intercept
    smoothing, temperature = _most_likely(head, scores, labels, temperature)
    weights = temperature * head.weights
    intercept = temperature * head.intercept + head.log_frequencies(labels, smoothing)
    if refine:
        left_out = temperature * scores + head.left_out_log_frequencies(labels, smoothing)
        center, change = _refinement(rows, head.scale, left_out, labels)
        weights, intercept = weights + change, intercept - center @ change
    return LinearModel(weights, head.classes, intercept, head.features, head.columns)


def _most_likely(head: Head, scores: Array, labels: Labels, expected: float) -> tuple[float, float]:
    """Return the smoothing and the temperature under which left-out samples are most likely."""
    candidates = []
    for smoothing in SMOOTHINGS:
        frequencies = head.left_out_log_frequencies(labels, smoothing)
        temperature, value = best_weight(
            scores, frequencies, labels, expected=expected, deviation=TEMPERATURE_DEVIATION
        )
        candidates.append((value, smoothing, temperature))
    best, *_ = max(candidates)
    # Somebody with one sample cannot tell them apart: rounding must not choose, so the largest does.
    return [(s, t) for value, s, t in candidates if value >= best - INDIFFERENT * (1 + abs(best))][-1]


def _refinement(x: Array, scale: Array, logits: Array, labels: Labels) -> tuple[Array, Array]:
    """Return the center (d,) and the change (d, c) of the weights that own samples call for; no change if it gains
    nothing.

    It is one step of boosting: a ridge on what the probabilities leave unexplained, as long as the likelihood of
    left-out samples asks for.
    """
    d, center = x.shape[1], x.mean(axis=0)
    unit = scale * np.sqrt(d)  # the mean square of a row is about 1, whatever d is
    spectrum = Spectrum.of(np.ascontiguousarray(((x - center) / unit).T))
    unexplained = np.eye(logits.shape[1])[labels] - softmax(logits, axis=1)
    best, chosen = likelihood.of_labels(logits, labels) + WORTHWHILE, None
    for ridge, predicted in zip(RIDGES.tolist(), spectrum.predict_left_out(unexplained, 1 / RIDGES), strict=True):
        strength, value = best_weight(predicted, logits, labels, expected=0.0, deviation=REFINEMENT_DEVIATION)
        if value > best:
            best, chosen = value, (strength, ridge)
    if chosen is None:
        return center, np.zeros((d, logits.shape[1]))
    strength, ridge = chosen
    return center, strength * spectrum.correction(unexplained, 1 / ridge) / unit[:, None]

"""FedGram: Bayes' rule from everybody's moments, and what a client's own samples add to it."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import softmax

from fedgram import likelihood
from fedgram.adapt import Spectrum
from fedgram.errors import InvalidParameter
from fedgram.gaussian import GaussianHead
from fedgram.likelihood import Labels, best_weight
from fedgram.methods.base import step
from fedgram.methods.clientside import ClientSide
from fedgram.methods.fit import Pool
from fedgram.methods.onemessage import OneMessage
from fedgram.methods.registry import register
from fedgram.models import LinearModel
from fedgram.solve import Array

# How many imaginary samples per class a client adds to its own counts.
SMOOTHINGS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
RIDGES = np.geomspace(0.01, 100, 9)
# A Gaussian head is too sure of itself, since features depend on each other more than it knows.
TEMPERATURE = {"expected": 0.5, "deviation": 0.5}
REFINEMENT = {"expected": 0.0, "deviation": 4.0}
# What a refinement must gain in log-likelihood to be believed: its two free numbers gain about one by chance.
WORTHWHILE = 1.0


@register
@dataclass(frozen=True, kw_only=True)
class FedGram(OneMessage):
    """FedGram — ours: Bayes' rule with everybody's Gaussians and a client's own class frequencies, refined.

    Everybody's moments give the classes' means and their common covariance, hence a head for all. A client
    multiplies in how often it has seen each class, with a temperature for the head's over-confidence. Then it
    regresses what is left unexplained on its own features, for the case that these are shifted. All that is
    chosen, is chosen for the likelihood of samples that were left out; a refinement that gains nothing there is
    not used. The result is a linear model with calibrated scores: log-probabilities but for a constant.

    One message up, d × c numbers down. `docs/fedgram.md` says why it works and what else was tried.
    """

    personal = True

    shrinkage: float | Literal["auto"] = "auto"
    refine: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shrinkage != "auto" and not 0 < self.shrinkage < float("inf"):
            raise InvalidParameter(f"shrinkage must be 'auto' or a number > 0, got {self.shrinkage}")

    # server
    def publish(self, pool: Pool) -> GaussianHead:
        """Turn everybody's moments into means and a covariance."""
        return GaussianHead.of(pool.total, self.shrinkage)

    def global_model(self, published: GaussianHead) -> LinearModel:
        """Return the head with everybody's class frequencies."""
        return published.model()

    # client
    @step
    def personalize(self, client: ClientSide, published: GaussianHead) -> None:
        """Keep Bayes' rule with the client's own frequencies, and the refinement if it is worth it."""
        head, x, y = published, client.x.astype(np.float64), client.y
        scores = x @ head.weights + head.intercept
        smoothing, temperature = _most_likely(head, scores, y)
        weights = temperature * head.weights
        intercept = temperature * head.intercept + head.log_frequencies(y, smoothing)
        if self.refine:
            left_out = temperature * scores + head.left_out_log_frequencies(y, smoothing)
            center, change = _refinement(x, head.scale, left_out, y)
            weights, intercept = weights + change, intercept - center @ change
        client.keep(LinearModel(weights, head.classes, intercept, head.features))


def _most_likely(head: GaussianHead, scores: Array, labels: Labels) -> tuple[float, float]:
    """Return the smoothing and the temperature under which left-out samples are most likely."""
    candidates = []
    for smoothing in SMOOTHINGS:
        frequencies = head.left_out_log_frequencies(labels, smoothing)
        temperature, value = best_weight(scores, frequencies, labels, **TEMPERATURE)
        candidates.append((value, smoothing, temperature))
    _, smoothing, temperature = max(candidates)
    return smoothing, temperature


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
        strength, value = best_weight(predicted, logits, labels, **REFINEMENT)
        if value > best:
            best, chosen = value, (strength, ridge)
    if chosen is None:
        return center, np.zeros((d, logits.shape[1]))
    strength, ridge = chosen
    return center, strength * spectrum.correction(unexplained, 1 / ridge) / unit[:, None]

"""The least-squares model of moments, and the temperature that turns its scores into probabilities.

Scores of least squares are not probabilities; softmax(scores / temperature) are, for the right temperature. It is
chosen from moments alone, so equal moments give equal temperatures. Moments tell the means of the scores in each class
and their covariance within classes, and the scores are taken to be normal. Two things keep them from looking better
than they are:

- A model has seen the samples of its moments. Leaving a sample out moves its score away from its target y, to
  y - (y - s)/(1 - h) with leverage h; here the mean leverage is taken, as in generalised cross-validation.
- Right answers on all samples do not prove certainty: each class is expected a little more often than it was seen.

A client has samples: it takes the temperature under which its labels are most likely, by scores of models without them.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri, softmax

from fedgram.core.arrays import Array, Blocks, as_blocks, lazily
from fedgram.heads.adapt import OwnRidge
from fedgram.heads.likelihood import Expert, Labels, best_weights
from fedgram.models import LinearModel
from fedgram.moments import packing
from fedgram.moments.moments import Moments
from fedgram.moments.regression import Regression
from fedgram.moments.targets import ClassTargets, Targets

# Unseen samples that are expected of each class. With 1, probabilities are too cautious for the 142 samples of wine.
DOUBT = 0.1
POINTS = 2048  # points at which the likelihood is evaluated, and as many mirrored ones
MOST_CLASSES = 256  # classes whose samples are considered; of more, every second or third and so on
# The temperatures that are considered, in units of the size of targets.
COLDEST, HOTTEST = 1e-6, 1e3
# The expected temperature of a client's own regression: its right scores are near 0 and 1, so nearly sure.
EXPECTED = 0.1


class ClassScores(NamedTuple):
    """The distribution of a classifier's scores, from moments.

    `means` (c, c) has a row of mean scores for each class, `targets` (c, c) the scores aimed at, `covariance` (c, c)
    the scores' covariance within classes. `frequencies` (c,) are those of the classes, `leverage` is the samples' mean
    leverage, `n` their number.
    """

    means: Array
    targets: Array
    covariance: Array
    frequencies: Array
    leverage: float
    n: float


def temperature(known: ClassScores) -> float:
    """Return the temperature of the largest expected log-likelihood.

    >>> targets = np.eye(2)
    >>> sure, unsure = (
    ...     ClassScores(targets, targets, spread * np.eye(2), np.array([0.5, 0.5]), leverage=0.01, n=1000)
    ...     for spread in (0.01, 1.0)
    ... )
    >>> temperature(sure) < 0.2 < 0.8 < temperature(unsure)
    True
    """
    from scipy.optimize import brentq  # which takes as long to import as the rest of us

    [present] = known.frequencies.nonzero()
    present = present[:: -(-len(present) // MOST_CLASSES)]
    count = len(known.frequencies)
    kept = 1 - min(known.leverage, known.n / (known.n + 1))
    values, vectors = np.linalg.eigh(known.covariance)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T / kept
    centres = known.targets - (known.targets - known.means) / kept
    points = _points(count, POINTS // len(present)) @ root
    scores = centres[present, None, :] + points  # (present, points, c)
    weights = known.frequencies[present] / known.frequencies[present].sum()
    hoped = np.full((len(present), count), DOUBT / (known.n + DOUBT * count))
    hoped[np.arange(len(present)), present] += known.n / (known.n + DOUBT * count)
    wanted = float(weights @ (hoped * centres[present]).sum(axis=1))  # mirrored points cancel

    def gradient(log_sharpness: float) -> float:
        """Return the derivative of the expected log-likelihood by 1 / temperature, which falls steadily."""
        probabilities = softmax(np.exp(log_sharpness) * scores, axis=2)
        return wanted - float(weights @ (probabilities * scores).sum(axis=2).mean(axis=1))

    size = float(np.abs(known.targets).max())
    low, high = -np.log(HOTTEST * size), -np.log(COLDEST * size)
    if gradient(low) <= 0:
        return HOTTEST * size  # the scores say nothing
    if gradient(high) >= 0:
        return COLDEST * size
    return float(np.exp(-brentq(gradient, low, high, xtol=1e-13)))


def of_regression(problem: Regression, counts: Array, weights: Array, freedom: float) -> float:
    """Return the temperature of weights (d, c) that solve the regression of classes, with `counts` (c,) samples.

    `freedom` is the trace of the hat matrix without the intercept.
    """
    # Where there is no sample of a class, its mean is of no account.
    apart = (problem.cross / np.where(counts > 0, counts, 1.0)).T @ weights
    scatter = weights.T @ packing.unpack(problem.packed, len(weights)) @ weights - (apart.T * counts) @ apart
    n = problem.n
    leverage = (freedom + problem.intercept) / n
    scores = apart + problem.target_mean
    return temperature(ClassScores(scores, np.eye(len(counts)), scatter / n, counts / n, leverage, n))


class Calibrated(NamedTuple):
    """The temperature of left-out samples' scores, and how likely the labels are under it: their log-likelihood."""

    temperature: float
    log_likelihood: float


def calibrated(scores: Array | Blocks[Array], labels: Labels | Blocks[Labels], expected: float) -> Calibrated:
    """Return the temperature for scores (n, c) of samples by models that have not seen them; both may be in blocks.

    `expected` is the temperature to take if the samples say nothing about it. It is a weak prior: the standard
    deviation of 1 / temperature is as large as its mean.
    """
    sharpness = 1 / expected
    offset = lazily(np.zeros_like, as_blocks(scores))
    found = best_weights([Expert(scores, sharpness, sharpness)], offset, labels)
    return Calibrated(1 / max(float(found.values[0]), sharpness / HOTTEST), found.log_likelihood)


def _points(dimensions: int, count: int) -> Array:
    """Return evenly spread points of the normal distribution, and their mirror images."""
    from scipy.stats import qmc  # loading it takes half a second, and few ask for probabilities

    exponent = int(np.log2(max(count, 1)))
    # Not scrambled, the points are corners of a grid of steps 2^-exponent; half a step further, none is 0.
    uniform = qmc.Sobol(dimensions, scramble=False).random_base2(exponent) + 0.5 ** (exponent + 1)
    points = np.asarray(ndtri(uniform))
    return np.concatenate([points, -points])


def least_squares(moments: Moments, ridge: float, targets: Targets | None = None, *, intercept: bool) -> LinearModel:
    """Return the model of least squared error; for classes, with the temperature of its probabilities.

    Parameters
    ----------
    moments : Moments
        The moments of the samples.
    ridge : float
        The ridge, which does not shrink the intercept.
    targets : Targets or None
        The targets in the moments; None for their classes.
    intercept : bool
        Whether the model has an intercept.

    """
    targets = targets or ClassTargets(moments.classes)
    problem = targets.regression(moments, intercept=intercept)
    factor = problem.factor(ridge)
    weights = factor.solve(problem.cross)
    temperature = None
    if targets.has_classes:
        temperature = of_regression(problem, moments.counts.astype(float), weights, factor.freedom(ridge))
    columns, features = targets.feature_columns(moments), moments.schema.features
    return LinearModel(weights, targets.scored, problem.offset(weights), features, columns, temperature)


def own_classifier(moments: Moments, own: OwnRidge, labels: Labels | Blocks[Labels], *, intercept: bool) -> LinearModel:
    """Return the classifier of a client's own samples with the chosen ridge, and a temperature from left-out scores."""
    model = moments.model(own.ridge, intercept=intercept)
    return replace(model, temperature=calibrated(own.left_out, labels, EXPECTED).temperature)

"""How sure a least-squares classifier may be: a temperature that turns its scores into probabilities. Arrays only.

Scores of least squares are not probabilities; softmax(scores / temperature) are, for the right temperature. It is
chosen from moments alone, so that whoever has the same moments gets the same: what is known of the scores are their
means in each class and their covariance within classes, and they are taken to be normal. Two things keep them from
looking better than they are:

- a model has seen the samples that its moments are of. Leaving a sample out moves its score away from its target y, to
  y - (y - s)/(1 - h) with h its leverage; here the mean leverage is taken, as in generalised cross-validation;
- samples that were all right do not prove certainty: each class is expected a little more often than it was seen.

A client has samples: it takes the temperature under which its labels are most likely, by scores of models without them.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import ndtri, softmax

from fedgram.core.arrays import Array
from fedgram.core.blocks import Blocks, as_blocks, lazily
from fedgram.heads.likelihood import Expert, Labels, best_weights
from fedgram.moments import packing
from fedgram.moments.regression import Regression

# How many samples of each class are expected that nobody saw. A whole one is too unsure for the 142 samples of wine.
DOUBT = 0.1
POINTS = 2048  # at which the likelihood is evaluated, and as many mirrored ones
MOST_CLASSES = 256  # whose samples are considered; of more, every second or third and so on
# The temperatures that are considered, in units of the size of targets.
COLDEST, HOTTEST = 1e-6, 1e3


class ClassScores(NamedTuple):
    """What moments say of a classifier's scores.

    `means` (c, c) has a row of mean scores for each class, `targets` (c, c) what they should be, `covariance` (c, c) is
    that within classes, `frequencies` (c,) are the classes', `leverage` is the mean of the samples', `n` their number.
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
        """Return that of the expected log-likelihood with respect to 1 / temperature, which falls steadily."""
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

    `expected` is what to take if these samples have nothing to say on it. Twice as sure may well be, too.
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

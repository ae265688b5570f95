"""The least-squares model of moments, and what turns its scores into probabilities.

Scores of least squares are not probabilities; softmax(scores / temperature + offsets) are, for the right temperature
and offsets. Offsets are the rarity of the classes, -log(frequency), times a factor: where classes differ in frequency,
least squares scores the rare ones too low, and no temperature mends that. If all classes are equally frequent, there
are no offsets, and the highest score has the highest probability.

Temperature and factor are chosen from moments alone, so equal moments give equal probabilities. Moments tell the means
of the scores in each class and their covariance within classes, pooled. They do not tell how classes differ in that,
nor the shape of the distributions. So labels are made most likely on average over two assumptions, both with the pooled
covariance:

- All classes scatter alike.
- A class scatters as probabilities with its means would. A class with scores near its target scatters little, and a
  rare class half-way to its target most: classes of real tables are closer to this.

Three things keep scores from looking better than they are:

- Their distribution has heavy tails. This costs little if scores are normal, and gains much if they are not.
- A model has seen the samples of its moments. Leaving a sample out moves its score away from its target y, to
  y - (y - s)/(1 - h) with leverage h. The mean leverage is known, and samples far out have more.
- Right answers on all samples do not prove certainty: each class has a part of a sample more, of unknown label.

A client has samples: it takes the temperature under which its labels are most likely, by scores of models without them.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincinv, ndtri

from fedgram.core.arrays import Array, Blocks, as_blocks, lazily
from fedgram.heads.adapt import OwnRidge
from fedgram.heads.likelihood import Expert, Labels, best_weights
from fedgram.models import LinearModel
from fedgram.moments import packing
from fedgram.moments.moments import Moments
from fedgram.moments.regression import Regression
from fedgram.moments.targets import ClassTargets, Targets

# Imaginary samples of each class whose label may be any. With 1, probabilities are too cautious for the 142 samples of
# wine; with 0.2, too sure of spam of which there are a dozen e-mails.
DOUBT = 0.5
# Degrees of freedom of the scores' distribution, Student's. Where 1 % of samples are positive and scores are normal, 7
# costs 4 % of log-loss and 10 costs 2 %; for counted words of e-mails, 14 costs 3 % more than 10.
TAILS = 10.0
# Points at which the likelihood is evaluated: this number divided by that of the classes, or the second number.
POINTS, FEWEST_POINTS = 2**14, 2**11
MOST_CLASSES = 256  # classes whose samples are considered; of more, every second or third and so on
MOST_SAMPLES = 1e6  # as many have the likelihood: with more, its rounding errors hide what a step gains
# The temperatures that are considered.
COLDEST, HOTTEST = 1e-6, 1e3
TINY, MOST_LEVERAGE = 1e-300, 1 - 1e-9
# The expected temperature of a client's own regression: its right scores are near 0 and 1, so nearly sure.
EXPECTED = 0.1
# The expected factor of rarity. Samples find 0.2 to 0.8 where scores tell the classes apart.
FACTOR = 0.5


class ClassScores(NamedTuple):
    """The distribution of a classifier's scores, from moments.

    `means` (c, c) has a row of mean scores for each class, `covariance` (c, c) is that of scores within classes, and
    `counts` (c,) are the classes' samples. `leverage` is the samples' mean leverage if the classifier has seen them.
    `targeted` says that scores aim at 1 for the sample's class and at 0 for the others, as in least squares.
    """

    means: Array
    covariance: Array
    counts: Array
    leverage: float = 0.0
    targeted: bool = True


class Confidence(NamedTuple):
    """What turns scores into log-probabilities: scores / temperature + offsets (c,). None stands for 1 and for 0."""

    temperature: float | None = None
    offsets: Array | None = None


def confidence(known: ClassScores) -> Confidence:
    """Return the temperature and the offsets of the largest expected log-likelihood; offsets for targeted scores only.

    >>> means, covariance = np.array([[0.9, 0.1], [0.6, 0.4]]), 0.01 * np.array([[1.0, -1.0], [-1.0, 1.0]])
    >>> confidence(ClassScores(means, covariance, np.array([500.0, 500.0]))).offsets
    array([0., 0.])
    >>> common, rare = confidence(ClassScores(means, covariance, np.array([990.0, 10.0]))).offsets
    >>> bool(rare > common)
    True
    """
    [present] = known.counts.nonzero()
    present = present[:: -(-len(present) // MOST_CLASSES)]
    count, seen = len(known.counts), known.counts[present]
    doubt = (DOUBT / (seen + DOUBT))[:, None]
    labels = (1 - doubt) * np.eye(count)[present] + doubt / count
    points = _points(known._replace(means=known.means[present], counts=seen), present, doubt)
    each, scores = points.shape[1], points.reshape(-1, count)
    experts = [Expert(scores, 0.0, 1 / COLDEST)]  # Newton's steps start at 0, where no probability is 0 or 1
    rarity = rarity_of(known.counts)
    if known.targeted:
        experts.append(Expert(np.broadcast_to(rarity, scores.shape), FACTOR, _deviation(rarity), -np.inf))
    seen = seen * min(1.0, MOST_SAMPLES / seen.sum())
    mass = np.repeat(labels * (seen / each)[:, None], each, axis=0)
    sharpness, *factors = best_weights(experts, np.zeros_like(scores), mass).values.tolist()
    return Confidence(1 / max(sharpness, 1 / HOTTEST), factors[0] * rarity if factors else None)


def rarity_of(counts: Array) -> Array:
    """Return the rarity of each class, (c,): 0 for the most frequent one, and for classes without samples."""
    return np.asarray(np.log(counts.max() / np.where(counts > 0, counts, counts.max())))


def _deviation(rarity: Array) -> float:
    """Return the standard deviation of the factor of rarity.

    It is the factor for two normal classes, the rarest and the most frequent one, that scores can hardly tell apart:
    1 for classes of nearly the same frequency, 11 if a class has 1 % of the samples.
    """
    largest = float(rarity.max())
    return float(np.sinh(largest) / largest) if largest else 1.0


def _points(known: ClassScores, labels: npt.NDArray[np.intp], doubt: Array) -> Array:
    """Return points of the distribution of some classes' scores, (classes, points, c): half for each assumption.

    `labels` (classes,) are the classes in `known`, `doubt` (classes, 1) is the share of samples with any label.
    """
    classes, count = known.means.shape
    root, means = _power(known.covariance, 0.5), known.means[:, None, :]
    points, squares = _heavy_tailed(classes, max(POINTS // count, FEWEST_POINTS) // classes // 2, count)
    alike, share = points @ root, known.counts / known.counts.sum()
    if not known.targeted:
        return np.asarray(means + alike)
    # Probabilities with the means m scatter as diag(m) - mmᵀ, which √m∘z - m√mᵀz does for normal z.
    likely = np.maximum(known.means, 0.0)
    likely = (1 - doubt) * likely / np.maximum(likely.sum(axis=1, keepdims=True), TINY) + doubt / count
    roots = np.sqrt(likely)[:, None, :]
    apart = roots * points - (points * roots).sum(axis=2, keepdims=True) * likely[:, None, :]
    pooled = np.diag(share @ likely) - (likely.T * share) @ likely
    # The components of `apart` add up to 0, so what is added to `pooled`, for an inverse, changes nothing.
    apart = apart @ _power(pooled + 1 / count, -0.5) @ root
    targets = np.eye(count)[labels][:, None, :]
    errors = targets - means - np.concatenate([alike, apart], axis=1)
    return np.asarray(targets - errors * _left_out(np.tile(squares, (1, 2, 1)), known))


def _left_out(squares: Array, known: ClassScores) -> Array:
    """Return the factors by which the errors at some points grow if these samples are left out.

    They are 1 / (1 - h) = 1 + qu, where u is the square of how much further out a point is than a normal one, and q
    gives the mean leverage.
    """
    from scipy.optimize import brentq  # which takes as long to import as the rest of us

    n = float(known.counts.sum())
    leverage = min(known.leverage, n / (n + 1), MOST_LEVERAGE)
    if leverage <= 0:
        return np.ones_like(squares)

    def missing(log_q: float) -> float:
        kept: float = (1 / (1 + np.exp(log_q) * squares)).mean()
        return kept - (1 - leverage)

    return np.asarray(1 + np.exp(brentq(missing, -80.0, 80.0, xtol=1e-13)) * squares)


def _power(symmetric: Array, exponent: float) -> Array:
    """Return the power of a symmetric matrix without negative eigenvalues."""
    values, vectors = np.linalg.eigh(symmetric)
    return np.asarray((vectors * np.maximum(values, TINY) ** exponent) @ vectors.T)


def _heavy_tailed(classes: int, count: int, dimensions: int) -> tuple[Array, Array]:
    """Return points of Student's distribution with the covariance 1 and their mirror images, (classes, points, d), and
    the squared factors, (classes, points, 1), by which they are further out than normal points.

    All points together are evenly spread, and so are those of each class, at most `count` before mirroring.
    """
    from scipy.stats import qmc  # loading it takes half a second, and few ask for probabilities

    each = 1 << (max(count, 1).bit_length() - 1)
    exponent = (classes * each - 1).bit_length()
    # Not scrambled, the points are corners of a grid of steps 2^-exponent; half a step further, none is 0.
    uniform = qmc.Sobol(dimensions + 1, scramble=False).random_base2(exponent) + 0.5 ** (exponent + 1)
    uniform = uniform[: classes * each].reshape(classes, each, dimensions + 1)
    lengths = np.sqrt((TAILS / 2 - 1) / gammaincinv(TAILS / 2, uniform[..., -1:]))
    points = np.asarray(ndtri(uniform[..., :-1]) * lengths)
    return np.concatenate([points, -points], axis=1), np.tile(lengths**2, (1, 2, 1))


def of_regression(problem: Regression, counts: Array, weights: Array, freedom: float) -> Confidence:
    """Return the confidence of weights (d, c) that solve the regression of classes.

    `counts` (c,) are the samples of each class, or the sums of their weights. `freedom` is the trace of the hat matrix
    without the intercept.
    """
    return _of_weights(problem, counts, weights, problem.target_mean, (freedom + problem.intercept) / problem.n)


def with_confidence(model: LinearModel, moments: Moments, leverage: float = 0.0) -> LinearModel:
    """Return a linear model whose scores aim at 1 and 0, with the temperature and offsets that moments give them.

    Parameters
    ----------
    model : LinearModel
        The model, as of a method that solves for weights in its own way.
    moments : Moments
        The moments of samples.
    leverage : float
        The mean leverage of these samples, if the model was made from them: how much a sample counts for its own score.
        In least squares it is at most the number of features, and 1 for the intercept, divided by that of samples.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.normal(size=(500, 2)), rng.integers(0, 2, 500)
    >>> x[y == 1] += 1
    >>> total = Moments.of(x, y, classes=2)
    >>> plain = LinearModel(total.solve(1.0), (0, 1))
    >>> sure = with_confidence(plain, total, leverage=2 / 500)
    >>> unsure, likely = (model.predict_proba([[1.0, 1.0]])[0, 1] for model in (plain, sure))
    >>> bool(unsure < 0.65 < 0.75 < likely)
    True

    """
    problem = ClassTargets(moments.classes).regression(moments, intercept=True)
    level = problem.mean @ model.weights + (0.0 if model.intercept is None else model.intercept)
    sure = _of_weights(problem, moments.counts.astype(float), model.weights, level, leverage)
    return replace(model, temperature=sure.temperature, offsets=sure.offsets)


def _of_weights(problem: Regression, counts: Array, weights: Array, level: Array, leverage: float) -> Confidence:
    """Return the confidence of weights (d, c) whose scores are `level` (c,) at the samples' mean."""
    # Where there is no sample of a class, its mean does not count.
    apart = (problem.cross / np.where(counts > 0, counts, 1.0)).T @ weights
    scatter = weights.T @ packing.unpack(problem.packed, len(weights)) @ weights - (apart.T * counts) @ apart
    total = counts.sum()
    return confidence(ClassScores(apart + level, scatter / total, counts * (problem.n / total), leverage))


class Calibrated(NamedTuple):
    """The confidence of left-out samples' scores, and the labels' log-likelihood under a temperature alone.

    Without offsets, the likelihood compares models by their scores, as accuracy does.
    """

    temperature: float
    log_likelihood: float
    offsets: Array | None = None


def calibrated(
    scores: Array | Blocks[Array],
    labels: Labels | Blocks[Labels],
    expected: float,
    offsets: Array | None = None,
    deviation: float = 1.0,
) -> Calibrated:
    """Return the confidence for scores (n, c) of samples by models that have not seen them; both may be in blocks.

    `expected` is the temperature to take if the samples say nothing about it, and `offsets` are the offsets to take, or
    else a multiple. These are weak priors: the standard deviation of 1 / temperature is as large as its mean, and that
    of the multiple is `deviation`.
    """
    sharpness = 1 / expected
    zeros = lazily(np.zeros_like, as_blocks(scores))
    of_scores = Expert(scores, sharpness, sharpness)
    found = best_weights([of_scores], zeros, labels)
    weight, likelihood = float(found.values[0]), found.log_likelihood
    if offsets is not None and offsets.any():
        usual = offsets
        same = lazily(lambda block: np.broadcast_to(usual, block.shape), as_blocks(scores))
        both = [of_scores, Expert(same, 1.0, deviation, -np.inf)]
        weight, factor = best_weights(both, zeros, labels).values.tolist()
        offsets = factor * usual
    return Calibrated(1 / max(weight, sharpness / HOTTEST), likelihood, offsets)


def least_squares(moments: Moments, ridge: float, targets: Targets | None = None, *, intercept: bool) -> LinearModel:
    """Return the model of least squared error; for classes, with the confidence of its scores.

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
    sure = Confidence()
    if targets.has_classes:
        sure = of_regression(problem, moments.counts.astype(float), weights, factor.freedom(ridge))
    columns, features = targets.feature_columns(moments), moments.schema.features
    return LinearModel(weights, targets.scored, problem.offset(weights), features, columns, *sure)


def own_classifier(moments: Moments, own: OwnRidge, labels: Labels | Blocks[Labels], *, intercept: bool) -> LinearModel:
    """Return the classifier of a client's own samples with the chosen ridge, and the confidence of left-out scores."""
    model = moments.model(own.ridge, intercept=intercept)
    rarity = rarity_of(moments.counts.astype(float))
    found = calibrated(own.left_out, labels, EXPECTED, FACTOR * rarity, _deviation(rarity) / FACTOR)
    return replace(model, temperature=found.temperature, offsets=found.offsets)

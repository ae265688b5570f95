"""The shared head, a linear classifier without class priors, and the personal models that clients make of it.

A client adds its own class frequencies (Bayes' rule), and regressions on its own samples where they help.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, cholesky, lapack
from scipy.special import softmax

from fedgram.core import wire
from fedgram.core.arrays import Array, Blocks, as_blocks, each, lazily, together
from fedgram.core.classes import Classes
from fedgram.core.columns import Columns
from fedgram.core.errors import InvalidData, Mismatch
from fedgram.heads.adapt import Design, OwnRidge, Rows
from fedgram.heads.least_squares import ClassScores, confidence
from fedgram.heads.likelihood import WORTHWHILE, Expert, Labels, best_weights
from fedgram.models import LinearModel, Temperature
from fedgram.moments import packing, solve
from fedgram.moments.moments import Moments

SHRINKAGES = np.geomspace(1e-4, 1e3, 29)
# The score of a class without samples: it never wins, and it is finite.
NEVER = -1e300
# Fewest imaginary samples of all classes together that a client has never seen: three, because a class of frequency 3/n
# stays unseen in n samples one time in twenty, but at most this share of the client's samples. The share is larger for
# clients of a single class, whose samples do not tell classes apart.
UNSEEN, UNSEEN_SHARE, UNSEEN_SHARE_OF_ONE = 3.0, 0.02, 0.05
# Candidates for the imaginary samples per class that a client adds to its own counts.
SMOOTHINGS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
# Standard deviations of the priors of two weights: of the head's scores, and of the client's own scores. The weight of
# the own scores is expected to be 0. Right own scores are near 0 and 1, so a weight of 10 makes them nearly certain.
HEAD_DEVIATION, OWN_DEVIATION = 0.5, 10.0
# Differences in log-likelihood up to this share are rounding.
INDIFFERENT = 1e-9


@wire.message("head", version=1)
@dataclass(frozen=True, eq=False)
class Head:
    """A linear classifier whose scores treat all classes as equally frequent; log-frequencies are added to them.

    `scale` has the features' standard deviations within classes, `counts` the classes' numbers of samples. `leverage`
    is the mean influence of a sample on its own scores, which `left_out_scores` removes: by the formula for class means
    if `gaussian`, else by the formula for a logistic model. `temperature` is that of the global model's scores.
    """

    weights: Annotated[Array, wire.Shape("d", "c")]
    intercept: Annotated[Array, wire.Shape("c")]
    scale: Annotated[Array, wire.Shape("d")]
    counts: Annotated[Array, wire.Shape("c")]
    classes: Classes
    features: str = ""
    columns: Columns = ()
    leverage: float = 0.0
    gaussian: bool = False
    temperature: Temperature = None

    @classmethod
    def of_gaussians(cls, total: Moments, shrinkage: float | Literal["auto"]) -> Self:
        """Return the head of the pooled moments as Gaussians: scores xᵀΣ⁻¹μ_c - ½μ_cᵀΣ⁻¹μ_c.

        μ_c are the class means, Σ is their common covariance, shrunk towards its diagonal.
        """
        total.warn_of_lost_digits()
        counts, n = total.counts.astype(np.float64), total.n
        means = total.cross / np.maximum(counts, 1)  # μ_c, (d, c)
        within = (total.gram - (means * counts) @ means.T) / n  # Σ
        scale, constant = deviations(total)
        means, within = means / scale[:, None], within / np.outer(scale, scale)
        means[constant], within[constant], within[:, constant] = 0.0, 0.0, 0.0
        if shrinkage == "auto":
            shrinkage = _cross_validated(total, np.where(constant, 0.0, 1 / scale))
        within[np.diag_indices(total.d)] += shrinkage
        lower = cholesky(within, lower=True, overwrite_a=True, check_finite=False)
        weights = cho_solve((lower, True), means, check_finite=False)
        intercept = np.where(counts > 0, -0.5 * (means * weights).sum(axis=0), 0.0)
        # tr(Σ_r⁻¹Σ): how far samples lie from the mean of their class on average, in the head's own metric
        inverse, _ = lapack.dtrtri(lower, lower=1, overwrite_c=1)
        leverage = max(total.d - shrinkage * float(np.vdot(inverse, inverse)), 0.0)
        # Remove the constant that all scores of a sample share: it grows with the features, but changes no probability.
        apart = np.eye(len(counts)) - (counts > 0) / np.count_nonzero(counts)
        # (Σ + rI) W = μ, hence WᵀΣW, the covariance of scores within classes
        covariance = apart @ (means.T @ weights - shrinkage * weights.T @ weights) @ apart.T
        scores = means.T @ weights + intercept + log_frequencies(counts)
        schema = total.schema
        return cls(
            weights / scale[:, None],
            intercept,
            scale,
            counts,
            schema.classes,
            schema.features,
            schema.columns,
            leverage=leverage,
            gaussian=True,
            temperature=_temperature(scores, covariance, counts, leverage),
        )

    @classmethod
    def of_model(cls, model: LinearModel, total: Moments, leverage: float = 0.0) -> Self:
        """Return the head of a model whose scores are log-probabilities for the pooled class frequencies.

        `leverage` is the mean pull of a sample on its own scores, per unit of its residual.
        """
        counts = total.counts.astype(np.float64)
        constant = 0.0 if model.intercept is None else model.intercept
        intercept = np.where(counts > 0, constant - log_frequencies(counts), 0.0)
        scale, _ = deviations(total)
        return cls(
            model.weights, intercept, scale, counts, model.classes, model.features, model.columns, leverage=leverage
        )

    def left_out_scores(self, scores: Array, labels: Labels) -> Array:
        """Return the scores (n, c) that samples would get from a head made without them, to first order.

        A sample pulls the mean of its class towards itself, or a logistic model by its residual. With about
        as many features as samples, this pull is most of the evidence for its own class.

        In a logistic model with mean leverage h, a sample whose own class has probability p has the weight
        w = p (1 - p) in the curvature and the leverage h / (1 + w h). If classes can be separated, most weights are
        near 0 and h is large, but samples with a residual have a larger weight.
        """
        own = np.eye(len(self.classes))[labels]
        if self.gaussian:
            return scores - own * (self.leverage / np.maximum(self.counts - 1, 1))
        p = softmax(scores + log_frequencies(self.counts), axis=1)
        of_own = (own * p).sum(axis=1, keepdims=True)
        leverage = self.leverage / (1 + of_own * (1 - of_own) * self.leverage)
        return np.asarray(scores - leverage * (own - p))

    def changes_for(self, x: npt.NDArray[Any], labels: Labels) -> tuple[Array, Array]:
        """Return the changes of scores of samples x (n, d), by the head and by its `model`, if each was left out."""
        scores, own = _scores(self, _checked(self, x), labels, member=False), np.eye(len(self.classes))[labels]
        change = self.left_out_scores(scores, labels) - scores
        return change, change + log_frequencies(self.counts - own) - log_frequencies(self.counts)

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """Marks of the classes that had samples, (c,)."""
        return self.counts > 0

    def log_frequencies(self, own: Array, smoothing: float) -> Array:
        """Return the log-frequencies (c,) of classes for a client with `own` (c,) samples of each.

        Each class gets `smoothing` imaginary samples on average, more if it is frequent in the pool. The classes that
        the client has never seen get at least `UNSEEN` together: left-out samples say nothing about them, yet they must
        stay possible, so that clear evidence wins.
        """
        return self._smoothed(own, own, smoothing)

    def left_out_log_frequencies(self, own: Array, labels: Labels, smoothing: float) -> Array:
        """Return `log_frequencies` for each of some own samples, counted without that sample, (n, c)."""
        return self._smoothed(own - np.eye(len(self.classes))[labels], own, smoothing)

    def count(self, labels: Labels) -> Array:
        """Return the number of labels of each class, (c,)."""
        return np.bincount(labels, minlength=len(self.classes)).astype(np.float64)

    def model(self) -> LinearModel:
        """Return the model for the pooled class frequencies."""
        intercept = self.intercept + log_frequencies(self.counts)
        return LinearModel(self.weights, self.classes, intercept, self.features, self.columns, self.temperature)

    def _smoothed(self, counts: Array, own: Array, smoothing: float) -> Array:
        # Half a sample more, because a later client may have a class that no client had.
        pooled, never = self.counts + 0.5, (self.counts == 0) & (own == 0)
        imagined = smoothing * pooled / pooled.mean()
        unseen = (counts == 0) & ~never
        several = np.count_nonzero(counts, axis=-1, keepdims=True) > 1
        share = np.where(several, UNSEEN_SHARE, UNSEEN_SHARE_OF_ONE)
        least = np.minimum(UNSEEN, share * counts.sum(axis=-1, keepdims=True))
        together = np.where(unseen, imagined, 0.0).sum(axis=-1, keepdims=True)
        more = np.maximum(least / np.where(together > 0, together, np.inf), 1.0)
        smoothed = counts + imagined * np.where(unseen, more, 1.0)
        logs = np.log(smoothed / smoothed.sum(axis=-1, keepdims=True))
        logs[..., never] = NEVER
        return np.asarray(logs)

    def check(self) -> None:
        """Raise for impossible standard deviations, counts or leverage."""
        if self.leverage < 0:
            raise Mismatch(f"field 'leverage' must be at least 0, got {self.leverage}")
        if not (self.scale > 0).all() or not (self.counts >= 0).all() or not self.counts.any():
            raise Mismatch("field 'scale' must be positive, and 'counts' at least 0 and not all 0")


def log_frequencies(counts: npt.ArrayLike) -> Array:
    """Return the logarithms of the classes' frequencies, given counts (c,) or (n, c)."""
    frequencies = np.asarray(counts) / np.sum(counts, axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return np.asarray(np.maximum(np.log(frequencies), NEVER))


def deviations(total: Moments) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Return the features' standard deviations within classes, and a mask of zero ones, which count as 1."""
    squares = total.packed[packing.diagonal(total.d)] / total.n
    means = total.cross / np.maximum(total.counts, 1)
    variances = squares - means**2 @ (total.counts / total.n)
    # A feature that never varies within a class cannot be told from one that never varies.
    constant = variances <= solve.rounding_level(total.d, total.n) * np.maximum(squares, 1e-300)
    return np.sqrt(np.where(constant, 1.0, variances)), constant


def _temperature(scores: Array, covariance: Array, counts: Array, leverage: float) -> float | None:
    """Return the temperature of a Gaussian head from the classes' mean scores, a row per class, and their covariance.

    Scores are corrected as in `left_out_scores`: without a sample, the mean of its class lies further away.
    """
    seen = counts > 0
    left_out = scores[np.ix_(seen, seen)] - np.diag(leverage / np.maximum(counts[seen] - 1, 1))
    return confidence(ClassScores(left_out, covariance[np.ix_(seen, seen)], counts[seen], targeted=False)).temperature


def _cross_validated(total: Moments, factors: Array) -> float:
    """Return the shrinkage of least generalised cross-validation error in regressing the classes on the features.

    The solution of that regression has the same directions as the head, and its error follows from moments alone.
    """
    problem = total.regression(intercept=True).scaled(factors)
    return problem.cross_validated(total.n * SHRINKAGES) / total.n


class Personal(NamedTuple):
    """A client's own model, and the weight of the shared head's scores in it."""

    model: LinearModel
    of_head: float


def personal_model(
    head: Head,
    x: Rows,
    labels: Labels | Blocks[Labels],
    *,
    temperature: float,
    member: bool,
    refine: bool = True,
) -> Personal:
    """Return the head with the client's own class frequencies, and with its own regressions if they help.

    Head and regressions are experts whose scores add up, weighted for the likelihood of left-out samples.

    Parameters
    ----------
    head
        The shared head.
    x, labels
        The client's samples (n, d) and their label indices; both may be in blocks.
    temperature
        The factor of the head's scores that is expected before own samples are seen.
    member
        Whether these samples are among those that made the head.
    refine
        Whether to try regressions on own samples.

    """
    known = as_blocks(labels)
    rows = lazily(lambda block: _checked(head, block), as_blocks(x))
    scores = each(lambda block, right: _scores(head, block, right, member=member), rows, known)
    own_counts = np.sum([head.count(right) for right in known], axis=0)
    smoothing, weight, log_likelihood = _most_likely(head, own_counts, scores, known, temperature)
    of_head, weights, intercept = weight, weight * head.weights, weight * head.intercept
    frequencies = _frequencies(head, own_counts, known, smoothing)
    owns: tuple[OwnRidge, ...] = ()
    if refine:
        logits = lazily(lambda some, usual: weight * some + usual, scores, frequencies)
        owns = _own_regressions(rows, known, logits, own_counts > 0)
    if owns:
        experts = Expert(scores, temperature, HEAD_DEVIATION), *(Expert(o.left_out, 0.0, OWN_DEVIATION) for o in owns)
        found = best_weights(experts, frequencies, known)
        if found.log_likelihood - log_likelihood > WORTHWHILE:
            of_head, *of_owns = found.values.tolist()
            weights, intercept = of_head * head.weights, of_head * head.intercept
            for value, own in zip(of_owns, owns, strict=True):
                weights, intercept = weights + value * own.weights, intercept + value * own.intercept
    intercept = intercept + head.log_frequencies(own_counts, smoothing)
    return Personal(LinearModel(weights, head.classes, intercept, head.features, head.columns), of_head)


def _checked(head: Head, x: npt.NDArray[Any]) -> Array:
    if x.shape[1:] != head.scale.shape:
        raise InvalidData(f"this head scores samples of shape (n, {len(head.scale)}), got {x.shape}")
    return np.ascontiguousarray(x, dtype=np.float64)


def _scores(head: Head, rows: Array, labels: Labels, *, member: bool) -> Array:
    """Return the head's scores of samples; for a member, those of a head without the sample."""
    scores = np.asarray(rows @ head.weights + head.intercept)
    return head.left_out_scores(scores, labels) if member else scores


def _frequencies(head: Head, own: Array, labels: Blocks[Labels], smoothing: float) -> Blocks[Array]:
    return lazily(lambda block: head.left_out_log_frequencies(own, block, smoothing), labels)


def _own_regressions(
    rows: Blocks[Array], labels: Blocks[Labels], logits: Blocks[Array], seen: npt.NDArray[np.bool_]
) -> tuple[OwnRidge, ...]:
    """Return two regressions on the client's own samples: of the labels, and of the head's residuals.

    The first suits a client for which the head is of little use, the second one for which it is nearly right. `seen`
    (c,) marks the classes that the client has.
    """
    design = Design.of(rows, intercept=True)
    if design is None:
        return ()
    targets = lazily(lambda block: np.eye(len(seen))[block], labels)
    unexplained = lazily(lambda block, some: block - softmax(some, axis=1), targets, logits)
    return _undecided(design.regress(targets), seen), _undecided(design.regress(unexplained), seen)


def _undecided(own: OwnRidge, seen: npt.NDArray[np.bool_]) -> OwnRidge:
    """Return the regression with the mean score of the seen classes for those that the client has never seen.

    A regression without samples of a class would score it low for every sample, and outweigh any smoothing.
    """

    def levelled(scores: Array) -> Array:
        return np.where(seen, scores, scores[..., seen].mean(axis=-1, keepdims=True))

    left_out = together(lazily(levelled, as_blocks(own.left_out)))
    return own._replace(left_out=left_out, weights=levelled(own.weights), intercept=levelled(own.intercept))


def _most_likely(
    head: Head, own: Array, scores: Blocks[Array], labels: Blocks[Labels], expected: float
) -> tuple[float, float, float]:
    """Return the smoothing and the head's weight that make left-out samples most likely, and their log-likelihood."""
    candidates = []
    for smoothing in SMOOTHINGS:
        frequencies = _frequencies(head, own, labels, smoothing)
        found = best_weights([Expert(scores, expected, HEAD_DEVIATION)], frequencies, labels)
        candidates.append((smoothing, float(found.values[0]), found.log_likelihood))
    best = max(log_likelihood for *_, log_likelihood in candidates)
    if not np.isfinite(best):
        raise InvalidData(
            "published model: expected scores that this client's samples can have, got scores without a finite "
            "likelihood; ask for the model again"
        )
    # With one sample all candidates are equally likely. Rounding must not choose, so the largest smoothing is taken.
    return [found for found in candidates if found[-1] >= best - INDIFFERENT * (1 + abs(best))][-1]

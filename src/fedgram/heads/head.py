"""A shared linear classifier without class priors; each client adds its own."""

from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, cholesky, lapack
from scipy.special import softmax

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.columns import Columns
from fedgram.core.errors import Mismatch
from fedgram.core.labels import Classes
from fedgram.heads.likelihood import Labels
from fedgram.heads.temperature import ClassScores
from fedgram.heads.temperature import temperature as best_temperature
from fedgram.models import LinearModel, Temperature
from fedgram.moments import digits, packing, solve
from fedgram.moments.moments import Moments

SHRINKAGES = np.geomspace(1e-4, 1e3, 29)
# The score of a class that nobody has: it never wins, and it is a number still.
NEVER = -1e300
# How many samples are imagined of all classes together that a client has never seen: at least three, since what has a
# frequency of 3/n stays unseen in n samples one time in twenty; but of few samples not more than a share. The share is
# larger for clients of a single class, whose samples do not tell classes apart.
UNSEEN, UNSEEN_SHARE, UNSEEN_SHARE_OF_ONE = 3.0, 0.02, 0.05


@wire.message("head", version=1)
@dataclass(frozen=True, eq=False)
class Head:
    """Scores of the classes as if all were equally frequent; to them log-frequencies are added.

    `scale` has the features' standard deviations within classes, `counts` the classes' samples. `leverage` says how
    much a sample's own scores owe to the sample, on average (`left_out_scores`); `gaussian`, in which of two ways.
    `temperature` is that of the global model's scores.
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
        digits.warn_of_lost(total)
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
        # What a sample's scores have in common changes no probability; it grows with the distance of features from 0.
        apart = np.eye(len(counts)) - (counts > 0) / np.count_nonzero(counts)
        # (Σ + rI) W = μ, hence WᵀΣW, the covariance of scores within classes
        covariance = apart @ (means.T @ weights - shrinkage * weights.T @ weights) @ apart.T
        scores = means.T @ weights + intercept + log_frequencies(counts)
        kind = total.kind
        return cls(
            weights / scale[:, None],
            intercept,
            scale,
            counts,
            kind.classes,
            kind.features,
            kind.columns,
            leverage=leverage,
            gaussian=True,
            temperature=_temperature(scores, covariance, counts, leverage),
        )

    @classmethod
    def of_model(cls, model: LinearModel, total: Moments, leverage: float = 0.0) -> Self:
        """Return the head of a model whose scores are log-probabilities for the pooled class frequencies.

        `leverage` is what part of its residual a sample's scores would lack without it, on average.
        """
        counts = total.counts.astype(np.float64)
        constant = 0.0 if model.intercept is None else model.intercept
        intercept = np.where(counts > 0, constant - log_frequencies(counts), 0.0)
        scale, _ = deviations(total)
        return cls(
            model.weights, intercept, scale, counts, model.classes, model.features, model.columns, leverage=leverage
        )

    def left_out_scores(self, scores: Array, labels: Labels) -> Array:
        """Return the scores (n, c) that samples would have by a head that has not seen them, to first order.

        A sample pulls the mean of its class towards itself, or a logistic model by its residual. Where features are
        about as many as samples, that is most of what speaks for its own class.
        """
        own = np.eye(len(self.classes))[labels]
        if self.gaussian:
            return scores - own * (self.leverage / np.maximum(self.counts - 1, 1))
        return np.asarray(scores - self.leverage * (own - softmax(scores + log_frequencies(self.counts), axis=1)))

    def log_frequencies(self, own: Array, smoothing: float) -> Array:
        """Return the log-frequencies (c,) of classes for somebody with `own` (c,) samples of each.

        To each class go `smoothing` samples on average, more to those that are frequent in the pool. Left-out samples
        of a client's classes say nothing about the others, so these have a least frequency (`UNSEEN`): what was never
        seen here must stay possible, so that clear evidence wins.
        """
        return self._smoothed(own, own, smoothing)

    def left_out_log_frequencies(self, own: Array, labels: Labels, smoothing: float) -> Array:
        """Return the same for some of these samples, each by the labels of the others alone, (n, c)."""
        return self._smoothed(own - np.eye(len(self.classes))[labels], own, smoothing)

    def count(self, labels: Labels) -> Array:
        """Return how many of the labels are of each class, (c,)."""
        return np.bincount(labels, minlength=len(self.classes)).astype(np.float64)

    def model(self) -> LinearModel:
        """Return the model for the pooled class frequencies."""
        intercept = self.intercept + log_frequencies(self.counts)
        return LinearModel(self.weights, self.classes, intercept, self.features, self.columns, self.temperature)

    def _smoothed(self, counts: Array, own: Array, smoothing: float) -> Array:
        # Half a sample more, because somebody may have a class that no client had.
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
        """Refuse standard deviations, counts and a leverage that cannot be."""
        if self.leverage < 0:
            raise Mismatch(f"field 'leverage' must be at least 0, got {self.leverage}")
        if not (self.scale > 0).all() or not (self.counts >= 0).all() or not self.counts.any():
            raise Mismatch("field 'scale' must be positive, and 'counts' at least 0 and not all 0")


def log_frequencies(counts: npt.ArrayLike) -> Array:
    """Return the logarithms of the classes' frequencies."""
    frequencies = np.asarray(counts) / np.sum(counts)
    with np.errstate(divide="ignore"):
        return np.asarray(np.maximum(np.log(frequencies), NEVER))


def deviations(total: Moments) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Return the features' standard deviations within classes, and where there is none (they count as 1 there)."""
    squares = total.packed[packing.diagonal(total.d)] / total.n
    means = total.cross / np.maximum(total.counts, 1)
    variances = squares - means**2 @ (total.counts / total.n)
    # A feature that never varies within a class cannot be told from one that never varies.
    constant = variances <= solve.rounding_level(total.d, total.n) * np.maximum(squares, 1e-300)
    return np.sqrt(np.where(constant, 1.0, variances)), constant


def _temperature(scores: Array, covariance: Array, counts: Array, leverage: float) -> float:
    """Return that of a Gaussian head, given its mean scores of each class's samples, a row for each, and their spread.

    Without a sample, the mean of its class is further away from it: see `left_out_scores`.
    """
    seen = counts > 0
    left_out = scores[np.ix_(seen, seen)] - np.diag(leverage / np.maximum(counts[seen] - 1, 1))
    n, targets = counts.sum(), np.eye(len(left_out))
    known = ClassScores(left_out, targets, covariance[np.ix_(seen, seen)], counts[seen] / n, leverage=0.0, n=n)
    return best_temperature(known)


def _cross_validated(total: Moments, factors: Array) -> float:
    """Return the shrinkage of least generalised cross-validation error in regressing the classes on the features.

    That regression's solution has the same directions as the head, and moments are all that its error takes.
    """
    problem = total.regression(intercept=True).scaled(factors)
    return problem.cross_validated(total.n * SHRINKAGES) / total.n

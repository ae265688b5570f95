"""A shared linear classifier without class priors; each client adds its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from fedgram.core.arrays import Array
from fedgram.core.columns import Columns, as_columns
from fedgram.core.errors import Mismatch
from fedgram.core.labels import Classes, read_classes, shorten
from fedgram.core.wire import Field, register_message
from fedgram.heads.likelihood import Labels
from fedgram.models import LinearModel, sent_columns
from fedgram.moments import solve
from fedgram.moments.moments import Moments

SHRINKAGES = np.geomspace(1e-4, 1e3, 29)
# The score of a class that nobody has: it never wins, and it is a number still.
NEVER = -1e300


@register_message
@dataclass(frozen=True, eq=False)
class Head:
    """Scores of the classes as if all were equally frequent; to them log-frequencies are added.

    `scale` has the features' standard deviations within classes, `counts` the classes' samples.
    """

    weights: Array
    intercept: Array
    scale: Array
    counts: Array
    classes: Classes
    features: str = ""
    columns: Columns = ()

    wire_name: ClassVar[str] = "head"
    wire_version: ClassVar[int] = 1
    wire_fields: ClassVar[Mapping[str, Field]] = {
        "weights": Field("float64", ("d", "c")),
        "intercept": Field("float64", ("c",)),
        "scale": Field("float64", ("d",)),
        "counts": Field("float64", ("c",)),
    }

    @classmethod
    def of_gaussians(cls, total: Moments, shrinkage: float | Literal["auto"]) -> Self:
        """Return the head of the pooled moments as Gaussians: scores xᵀΣ⁻¹μ_c - ½μ_cᵀΣ⁻¹μ_c.

        μ_c are the class means, Σ is their common covariance, shrunk towards its diagonal.
        """
        counts, n = total.counts.astype(np.float64), total.n
        means = total.cross / np.maximum(counts, 1)  # μ_c, (d, c)
        within = (total.gram - (means * counts) @ means.T) / n  # Σ
        scale, constant = deviations(total)
        means, within = means / scale[:, None], within / np.outer(scale, scale)
        means[constant], within[constant], within[:, constant] = 0.0, 0.0, 0.0
        if shrinkage == "auto":
            shrinkage = _cross_validated(total, np.where(constant, 0.0, 1 / scale))
        within[np.diag_indices(total.d)] += shrinkage
        weights = cho_solve(cho_factor(within, lower=True, check_finite=False), means, check_finite=False)
        intercept = np.where(counts > 0, -0.5 * (means * weights).sum(axis=0), 0.0)
        return cls(
            weights / scale[:, None], intercept, scale, counts, total.classes, total.kind.features, total.kind.columns
        )

    @classmethod
    def of_model(cls, model: LinearModel, total: Moments) -> Self:
        """Return the head of a model whose scores are log-probabilities for the pooled class frequencies."""
        assert model.intercept is not None
        counts = total.counts.astype(np.float64)
        intercept = np.where(counts > 0, model.intercept - log_frequencies(counts), 0.0)
        return cls(model.weights, intercept, deviations(total)[0], counts, model.classes, model.features, model.columns)

    def log_frequencies(self, labels: Labels, smoothing: float) -> Array:
        """Return the log-frequencies (c,) of classes for somebody with these labels.

        To each class go `smoothing` samples on average, more to those that are frequent in the pool.
        """
        return self._smoothed(self._count(labels), labels, smoothing)

    def left_out_log_frequencies(self, labels: Labels, smoothing: float) -> Array:
        """Return the same for each sample by the labels of the others alone, (n, c)."""
        return self._smoothed(self._count(labels) - np.eye(len(self.classes))[labels], labels, smoothing)

    def model(self) -> LinearModel:
        """Return the model for the pooled class frequencies."""
        intercept = self.intercept + log_frequencies(self.counts)
        return LinearModel(self.weights, self.classes, intercept, self.features, self.columns)

    def _count(self, labels: Labels) -> Array:
        return np.bincount(labels, minlength=len(self.classes)).astype(np.float64)

    def _smoothed(self, counts: Array, labels: Labels, smoothing: float) -> Array:
        # Half a sample more, because somebody may have a class that was new to everybody.
        everybody = self.counts + 0.5
        smoothed = counts + smoothing * everybody / everybody.mean()
        logs = np.log(smoothed / smoothed.sum(axis=-1, keepdims=True))
        logs[..., (self.counts == 0) & (self._count(labels) == 0)] = NEVER
        return np.asarray(logs)

    def to_fields(self) -> dict[str, Any]:
        """Take the head apart for the wire."""
        arrays = {name: getattr(self, name) for name in self.wire_fields}
        return arrays | {"classes": shorten(self.classes), "features": self.features} | sent_columns(self.columns)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Put a head together from the wire."""
        d, c = fields["weights"].shape
        columns = as_columns(fields.get("columns", ()), d)
        return cls(**fields | {"classes": read_classes(fields["classes"], c), "columns": columns})

    def check(self) -> None:
        """Refuse standard deviations and counts that cannot be."""
        if not (self.scale > 0).all() or not (self.counts >= 0).all() or not self.counts.any():
            raise Mismatch("field 'scale' must be positive, and 'counts' at least 0 and not all 0")


def log_frequencies(counts: npt.ArrayLike) -> Array:
    """Return the logarithms of the classes' frequencies."""
    frequencies = np.asarray(counts) / np.sum(counts)
    with np.errstate(divide="ignore"):
        return np.asarray(np.maximum(np.log(frequencies), NEVER))


def deviations(total: Moments) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Return the features' standard deviations within classes, and where there is none (they count as 1 there)."""
    squares = total.packed[solve.packed_diagonal(total.d)] / total.n
    means = total.cross / np.maximum(total.counts, 1)
    variances = squares - means**2 @ (total.counts / total.n)
    # A feature that never varies within a class cannot be told from one that never varies.
    constant = variances <= solve.rounding_level(total.d, total.n) * np.maximum(squares, 1e-300)
    return np.sqrt(np.where(constant, 1.0, variances)), constant


def _cross_validated(total: Moments, factors: Array) -> float:
    """Return the shrinkage of least generalised cross-validation error in regressing the classes on the features.

    That regression's solution has the same directions as the head, and moments are all that its error takes.
    """
    problem = total.regression(intercept=True).scaled(factors)
    return problem.cross_validated(total.n * SHRINKAGES) / total.n

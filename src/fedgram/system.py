"""Everybody's least-squares system, factored: what a client needs in order to personalize."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import blas, lapack

from fedgram import adapt, solve
from fedgram.accumulate import as_features
from fedgram.columns import Columns, as_columns
from fedgram.errors import InvalidData, InvalidParameter, NotMoments
from fedgram.labels import Classes, read_classes, shorten
from fedgram.models import LinearModel, sent_columns
from fedgram.moments import Moments
from fedgram.solve import Array
from fedgram.wire import Field, register_message

# Where "auto" looks: from not at all to own samples only, five steps a decade.
ALPHAS = (0.0, *np.geomspace(0.1, 1e5, 31).tolist())


@register_message
@dataclass(frozen=True, eq=False)
class System:
    """S = XᵀX + βI = LLᵀ over everybody's samples, and the global model G = S⁻¹XᵀY.

    `lower` is L, packed like a symmetric matrix: d(d + 1)/2 numbers to download.
    """

    lower: Array
    weights: Array
    classes: Classes
    features: str = ""
    columns: Columns = ()

    wire_name: ClassVar[str] = "system"
    wire_version: ClassVar[int] = 1
    wire_fields: ClassVar[Mapping[str, Field]] = {
        "lower": Field("float64", ("p",)),
        "weights": Field("float64", ("d", "c")),
    }

    @classmethod
    def of(cls, total: Moments, *, ridge: float) -> Self:
        """Factor everybody's moments."""
        factor = solve.factor(total.packed, total.d, ridge=ridge, n=total.n)
        if factor.lower is None or factor.scale is None:
            raise InvalidParameter(
                f"a ridge of {ridge} leaves the pooled features singular (rank {factor.rank} of {total.d}): "
                "use a larger one to personalize"
            )
        lower = np.tril(factor.lower) / factor.scale[:, None]
        return cls(solve.pack(lower), factor.solve(total.cross), total.classes, total.kind.features, total.kind.columns)

    def model(self) -> LinearModel:
        """Return the global model."""
        return LinearModel(self.weights, self.classes, features=self.features, columns=self.columns)

    def personalize(
        self, x: npt.ArrayLike, y: npt.NDArray[np.int64], alpha: float | Literal["auto"], *, member: bool = True
    ) -> LinearModel:
        """Return a client's own model: (S + αX_kᵀX_k)⁻¹(XᵀY + αX_kᵀY_k) for its samples x (n, d) with label
        indices y (n,).

        "auto" takes the α of least squared leave-one-out error. `member` says whether the client's samples are in
        the total.
        """
        rows = np.ascontiguousarray(as_features(x), dtype=np.float64)
        if rows.shape[1] != len(self.weights) or len(rows) != len(y):
            raise InvalidData(f"samples {rows.shape} with {len(y)} labels do not fit {len(self.weights)} features")
        residual = np.eye(len(self.classes))[y] - rows @ self.weights
        lower = self._lower()
        v = blas.dtrsm(1.0, lower, rows.T, lower=1)
        if alpha == "auto":
            spectrum = adapt.Spectrum.of(v)
            best = int(spectrum.leave_one_out(residual, ALPHAS, member=member).argmin())
            change = spectrum.correction(residual, ALPHAS[best])
        else:
            change = adapt.correction(v, residual, alpha)
        change = blas.dtrsm(1.0, lower, change, lower=1, trans_a=1)
        return LinearModel(self.weights + change, self.classes, features=self.features, columns=self.columns)

    def influence(self, rows: Array) -> adapt.Influence:
        """Return what samples (n, d) that are in the total have done to G."""
        return adapt.Influence.of(blas.dtrsm(1.0, self._lower(), rows.T, lower=1))

    def _lower(self) -> Array:
        lower, _ = lapack.dtfttr(len(self.weights), self.lower, uplo="L")
        return np.asarray(lower)

    def to_fields(self) -> dict[str, Any]:
        """Take the system apart for the wire."""
        return {
            "lower": self.lower,
            "weights": self.weights,
            "classes": shorten(self.classes),
            "features": self.features,
            **sent_columns(self.columns),
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Put a system together from the wire."""
        d, c = fields["weights"].shape
        if len(fields["lower"]) != solve.packed_size(d):
            raise NotMoments(
                f"field 'lower' has {len(fields['lower'])} numbers; {d} dimensions need {solve.packed_size(d)}"
            )
        columns = as_columns(fields.get("columns", ()), d)
        return cls(**fields | {"classes": read_classes(fields["classes"], c), "columns": columns})

    def check(self) -> None:
        """Refuse a factor whose diagonal is not positive."""
        diagonal = self.lower[solve.packed_diagonal(len(self.weights))]
        if not (diagonal > 0).all():
            raise NotMoments(f"field 'lower' has {diagonal.min()} on its diagonal: not a Cholesky factor")

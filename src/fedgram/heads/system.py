"""The pooled least-squares system, factored, from which a client can personalize."""

from dataclasses import dataclass, replace
from math import sqrt
from typing import Annotated, Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, cholesky, lapack

from fedgram.core import wire
from fedgram.core.arrays import Array, Blocks, as_blocks, each, lazily
from fedgram.core.classes import Classes
from fedgram.core.columns import Columns
from fedgram.core.errors import InvalidData, InvalidParameter, NotMoments
from fedgram.heads import adapt
from fedgram.heads.least_squares import Confidence, calibrated, of_regression
from fedgram.models import LinearModel, Offsets, Temperature
from fedgram.moments import packing
from fedgram.moments.accumulate import as_features
from fedgram.moments.blas import solve_triangular
from fedgram.moments.moments import Moments
from fedgram.moments.regression import Ridge
from fedgram.moments.solve import as_good
from fedgram.moments.targets import ClassTargets, Targets

# Label indices (m,), or one-hot rows or numeric outcomes (m, c); or these in blocks.
TargetRows: TypeAlias = adapt.Rows
# Candidates of "auto": 0, which ignores own samples, to almost own samples only, five per decade.
ALPHAS = (0.0, *np.geomspace(0.1, 1e5, 31).tolist())


@wire.message("system", version=2)
@dataclass(frozen=True, eq=False)
class System:
    """S = XᵀX + βI = LLᵀ over all clients' samples, and the global model G = S⁻¹XᵀY.

    `lower` is L, packed like a symmetric matrix: d(d + 1)/2 numbers to download.

    An intercept is a last feature that is always 1, and that β does not shrink. The other features are centred at their
    `mean` over all n samples, so their products with it vanish in S: L only gets √n as a last diagonal element, and G
    the class `frequencies` as a last row. For numeric outcomes, c is the number of outcomes, the classes are NUMERIC,
    and `frequencies` are the outcomes' means.
    """

    lower: Annotated[Array, wire.Shape("p")]
    weights: Annotated[Array, wire.Shape("d", "c")]
    classes: Classes
    features: str = ""
    mean: Annotated[Array, wire.Shape("d")] | None = None
    frequencies: Annotated[Array, wire.Shape("c")] | None = None
    n: int = 0
    columns: Columns = ()
    temperature: Temperature = None  # of the global model's scores
    offsets: Offsets = None

    @classmethod
    def of(cls, total: Moments, *, ridge: Ridge, intercept: bool = False, targets: Targets | None = None) -> Self:
        """Return the system of the pooled moments; "auto" takes the ridge of least generalised cross-validation error.

        `targets` are those in the moments, by default their classes.
        """
        targets = targets or ClassTargets(total.classes)
        problem = targets.regression(total, intercept=intercept)
        ridge = problem.cross_validated() if ridge == "auto" else ridge
        factor = problem.factor(ridge)
        if factor.lower is None or factor.scale is None:
            raise InvalidParameter(
                f"a ridge of {ridge} leaves the pooled features singular (rank {factor.rank} of {len(problem.mean)}): "
                "use a larger one to personalize"
            )
        lower = packing.pack(np.tril(factor.lower) / factor.scale[:, None])
        mean, frequencies, n = (problem.mean, problem.target_mean, total.n) if intercept else (None, None, 0)
        weights, features = factor.solve(problem.cross), total.schema.features
        columns, sure = targets.feature_columns(total), Confidence()
        if targets.has_classes:
            sure = of_regression(problem, total.counts.astype(float), weights, factor.freedom(ridge))
        return cls(lower, weights, targets.scored, features, mean, frequencies, n, columns, *sure)

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """Marks of the classes that had samples, (c,); without an intercept nothing is known of that."""
        return np.ones(len(self.classes), dtype=bool) if self.frequencies is None else self.frequencies > 0

    def model(self) -> LinearModel:
        """Return the global model."""
        return self._as_model(self.weights, self.frequencies, self._confidence)

    def emphasize(self, x: adapt.Rows, y: TargetRows, alpha: float) -> LinearModel:
        """Return a client's own model: (S + αX_kᵀX_k)⁻¹(XᵀY + αX_kᵀY_k) for its samples x (m, d) with label
        indices y (m,) or targets y (m, c).

        Probabilities have the global model's temperature and offsets. Samples and targets may be in blocks.
        """
        lower = self._lower()
        v, residual = self._seen_by(x, y, lower)
        return self._changed(adapt.correction(v, residual, alpha), lower, self._confidence)

    def choose(self, x: adapt.Rows, y: TargetRows, *, member: bool = True) -> tuple[LinearModel, adapt.Chosen]:
        """Return a client's own model with the α of least squared leave-one-out error, and the evidence for it."""
        lower = self._lower()
        v, residual = self._seen_by(x, y, lower)
        projected = adapt.Spectrum.of(v).project(residual)
        errors = projected.leave_one_out(ALPHAS, member=member)
        best = int(as_good(errors)[0])  # with one sample all α are as good: the first is 0, which changes nothing
        sure, log_likelihood = self._confidence, None
        if sure.temperature is not None:
            left_out = projected.left_out(ALPHAS[best], member=member)
            targets = lazily(self._targets, as_blocks(y))
            scores = each(np.subtract, targets, as_blocks(left_out))
            labels = lazily(lambda block: block.argmax(axis=1), targets)
            found = calibrated(scores, labels, sure.temperature, sure.offsets)
            sure, log_likelihood = Confidence(found.temperature, found.offsets), found.log_likelihood
        model = self._changed(projected.correction(ALPHAS[best]), lower, sure)
        return model, adapt.Chosen(ALPHAS[best], float(errors[best]), log_likelihood)

    @property
    def _confidence(self) -> Confidence:
        return Confidence(self.temperature, self.offsets)

    def _changed(self, change: Array, lower: Array, sure: Confidence) -> LinearModel:
        """Return the model whose weights, in terms of V, differ from G by `change`."""
        d = len(self.weights)
        weights = self.weights + solve_triangular(lower, change[:d], transposed=True)
        own = None if self.frequencies is None else self.frequencies + change[d] / sqrt(self.n)
        return self._as_model(weights, own, sure)

    def leave_one_out(self, x: adapt.Rows, y: TargetRows, alphas: npt.ArrayLike, *, member: bool = True) -> Array:
        """Return the mean squared error of a client's own models on its samples, each left out, for each α."""
        v, residual = self._seen_by(x, y, self._lower())
        return adapt.Spectrum.of(v).project(residual).leave_one_out(alphas, member=member)

    def _seen_by(self, x: adapt.Rows, y: TargetRows, lower: Array) -> tuple[Blocks[Array], Blocks[Array]]:
        """Return V of a client's samples, and the residuals of their labels or outcomes under G."""
        rows = lazily(self._about_mean, as_blocks(x))
        residual = each(self._left, rows, as_blocks(y))
        return lazily(lambda block: self._whitened(block, lower), rows), residual

    def _about_mean(self, x: npt.NDArray[Any]) -> Array:
        rows = np.ascontiguousarray(as_features(x), dtype=np.float64)
        if rows.shape[1] != len(self.weights):
            raise InvalidData(f"samples {rows.shape} do not fit {len(self.weights)} features")
        return rows if self.mean is None else rows - self.mean

    def _left(self, rows: Array, y: npt.NDArray[Any]) -> Array:
        """Return the residuals of labels or outcomes under G, for rows from which the mean was subtracted."""
        if len(rows) != len(y):
            raise InvalidData(f"{len(rows)} samples have {len(y)} labels")
        residual = self._targets(y) - rows @ self.weights
        return residual if self.frequencies is None else residual - self.frequencies

    def _targets(self, y: npt.NDArray[Any]) -> Array:
        return y if y.ndim == 2 else np.eye(len(self.classes))[y]

    def without(self, x: adapt.Rows, y: TargetRows) -> Self:
        """Return the system of the other samples, with the same ridge, for samples x (m, d) that are in this one.

        Raises NotMoments if no system is left without them.
        """
        lower, rows = self._lower(), lazily(self._about_mean, as_blocks(x))
        scatter, products, m = np.tril(lower) @ np.tril(lower).T, np.zeros_like(self.weights), 0
        sums, off = np.zeros(len(self.weights)), np.zeros(self.weights.shape[1])
        for block, known in zip(rows, as_blocks(y), strict=True):
            residual = self._left(block, known)
            scatter -= block.T @ block
            products += block.T @ residual
            m, sums, off = m + len(block), sums + block.sum(axis=0), off + residual.sum(axis=0)
        mean, frequencies, n = self.mean, self.frequencies, self.n
        if mean is not None and frequencies is not None:
            n -= m
            if n <= 0:
                raise NotMoments(f"samples to be left out: expected fewer than the {self.n} in the system, got {m}")
            scatter -= np.outer(sums, sums) / n
            products += np.outer(sums, off) / n
            mean, frequencies = mean - sums / n, frequencies - (off + sums @ self.weights) / n
        try:
            left = cholesky(scatter, lower=True)
        except np.linalg.LinAlgError:
            raise NotMoments("samples to be left out: expected samples of the system, got others") from None
        weights = self.weights - cho_solve((left, True), products)
        return replace(self, lower=packing.pack(left), weights=weights, mean=mean, frequencies=frequencies, n=n)

    def influence(self, rows: Array) -> adapt.Influence:
        """Return the influence on G of samples (m, d) that are in the total."""
        return adapt.Influence.of(self._whitened(rows if self.mean is None else rows - self.mean, self._lower()))

    def _whitened(self, rows: Array, lower: Array) -> Array:
        """Return V = L⁻¹X_kᵀ for centred rows (m, d); its last row is that of the intercept."""
        v = solve_triangular(lower, rows.T)
        return v if self.mean is None else np.vstack([v, np.full(len(rows), 1 / sqrt(self.n))])

    def _as_model(self, weights: Array, level: Array | None, sure: Confidence) -> LinearModel:
        """Return the model with weights (d, c), and scores `level` (c,) at the mean."""
        intercept = None if level is None or self.mean is None else level - self.mean @ weights
        return LinearModel(weights, self.classes, intercept, self.features, self.columns, *sure)

    def _lower(self) -> Array:
        lower, _ = lapack.dtfttr(len(self.weights), self.lower, uplo="L")
        return np.asarray(lower)

    def check(self) -> None:
        """Raise for a factor whose diagonal is not positive, or an intercept without all of its fields."""
        d, size = len(self.weights), len(self.lower)
        if size != packing.size(d):
            raise NotMoments(f"field 'lower' has {size} numbers; {d} dimensions need {packing.size(d)}")
        diagonal = self.lower[packing.diagonal(d)]
        if not (diagonal > 0).all():
            raise NotMoments(f"field 'lower' has {diagonal.min()} on its diagonal: not a Cholesky factor")
        whole = (self.mean is None, self.frequencies is None, self.n <= 0)
        if len(set(whole)) > 1:
            raise NotMoments(f"fields 'mean', 'frequencies' and 'n' ({self.n!r}) go together: some are missing")

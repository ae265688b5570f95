"""Personal models in closed form: the global solution, corrected by a client's own samples. Arrays only.

The global solution is G = S⁻¹B with S = LLᵀ. A client with samples X (n, d) and targets Y (n, c) that weighs its
own samples by α more gets

    P = (S + αXᵀX)⁻¹(B + αXᵀY) = G + α L⁻ᵀ V (I + αVᵀV)⁻¹ (Y - XG),    V = L⁻¹Xᵀ (d, n),

which is FedHiP's (14), and with S = I a ridge towards G with ridge 1/α. All below is in terms of V and the
residual Y - XG.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.moments.blas import solve_positive_definite
from fedgram.moments.regression import STEPS
from fedgram.moments.solve import rounding_level

# Up to this n/d the n × n system is the quicker one, as measured at d = 1,280.
DUAL_UP_TO = 0.5


def correction(v: Array, residual: Array, alpha: float) -> Array:
    """Return α V (I + αVᵀV)⁻¹ residual, (d, c), from the smaller of the n × n and the equal d × d system.

    >>> rng = np.random.default_rng(0)
    >>> v, r = rng.normal(size=(4, 3)), rng.normal(size=(3, 2))
    >>> want = 2 * v @ np.linalg.solve(np.eye(3) + 2 * v.T @ v, r)
    >>> bool(np.allclose(correction(v, r, 2.0), want))
    True
    """
    d, n = v.shape
    if n <= DUAL_UP_TO * d:
        return np.asarray(alpha * (v @ _solve_shifted(v.T, residual, alpha)))
    return _solve_shifted(v, alpha * (v @ residual), alpha)


def _solve_shifted(rows: Array, rhs: Array, alpha: float) -> Array:
    """Return (I + α rows rowsᵀ)⁻¹ rhs."""
    system: Array = rows @ rows.T
    system *= alpha
    system[np.diag_indices(len(rows))] += 1.0
    return solve_positive_definite(system, rhs)


@dataclass(frozen=True)
class Spectrum:
    """V = directions · diag(√values) · Uᵀ, and `loadings` = U · diag(√values): all α at the price of one
    decomposition.
    """

    directions: Array  # (d, r)
    values: Array  # (r,)
    loadings: Array  # (n, r)

    @classmethod
    def of(cls, v: Array) -> "Spectrum":
        """Decompose V (d, n) by the smaller of VᵀV and VVᵀ."""
        d, n = v.shape
        small = v.T if n <= d else v
        # NumPy's driver (`evd`) is the quicker one here, its vectors are the more orthogonal, and it needs no lock.
        values, vectors = np.linalg.eigh(small @ small.T)
        kept = values > rounding_level(d, n) * max(float(values[-1]), 0.0)
        values, vectors = values[kept], vectors[:, kept]
        if n <= d:
            return cls(v @ (vectors / np.sqrt(values)), values, vectors * np.sqrt(values))
        return cls(vectors, values, v.T @ vectors)

    def correction(self, residual: Array, alpha: float) -> Array:
        """Return what the function of this name returns."""
        weights = alpha / (1 + alpha * self.values)
        return np.asarray(self.directions @ (weights[:, None] * (self.loadings.T @ residual)))

    def predict_left_out(
        self, residual: Array, alphas: npt.ArrayLike, influence: "Influence | None" = None
    ) -> Iterator[Array]:
        """Yield for each α the correction's prediction (n, c) for each sample by the others alone.

        Where the samples have had an influence on G, leaving one out changes the others' residuals, too.
        """
        projected, squares = self.loadings.T @ residual, self.loadings**2
        moves = None if influence is None else self.loadings * (influence.matrix @ self.loadings)
        for alpha in np.asarray(alphas, dtype=np.float64):
            if len(residual) == 1:
                yield np.zeros_like(residual)  # there are no others; rounding would look like a prediction
                continue
            weights = alpha / (1 + alpha * self.values)
            leverage = (squares @ weights)[:, None]
            others = self.loadings @ (weights[:, None] * projected) - leverage * residual
            if influence is not None and moves is not None:
                others += ((moves @ weights)[:, None] - leverage * influence.own) * influence.left_out(residual)
            yield others / (1 - leverage)

    def leave_one_out(self, residual: Array, alphas: npt.ArrayLike, *, member: bool, centred: bool = False) -> Array:
        """Return the mean squared residual for each α, sample by sample left out everywhere."""
        left_out = self.left_out_residuals(residual, alphas, member=member, centred=centred)
        return np.array([np.mean(errors**2) for errors in left_out])

    def left_out_residuals(
        self, residual: Array, alphas: npt.ArrayLike, *, member: bool, centred: bool = False
    ) -> Iterator[Array]:
        """Yield for each α the residuals (n, c), sample by sample left out everywhere: exact, without refitting.

        `member` says whether the samples are also among those that made S and B, from where they are left out, too;
        `centred` whether V and residual are about these samples' own mean, which then is found anew without each.
        """
        projected, squares = self.loadings.T @ residual, self.loadings**2
        for alpha in np.atleast_1d(np.asarray(alphas, dtype=np.float64)):
            shrink = 1 / (1 + alpha * self.values)
            left = residual - alpha * (self.loadings @ (shrink[:, None] * projected))
            leverage = (alpha + member) * (squares @ shrink) + centred / len(residual)
            yield left / (1 - leverage)[:, None]


class Chosen(NamedTuple):
    """A value that was chosen, and the mean squared error on left-out samples that speaks for it."""

    value: float
    error: float


class OwnRidge(NamedTuple):
    """A regression of targets (n, c) on a client's own rows, with the ridge of least squared leave-one-out error.

    `left_out` (n, c) are its predictions for each sample by the others alone.
    """

    ridge: float
    error: float
    left_out: Array
    weights: Array  # (d, c)
    intercept: Array  # (c,), zero without an intercept


@dataclass(frozen=True)
class Design:
    """A client's rows (n, d), less their mean if there is an intercept, decomposed once for any targets.

    >>> x, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([[1.0], [3.0], [5.0], [7.0]])
    >>> own = Design.of(x, intercept=True).regress(y)
    >>> own.left_out.round(2).ravel(), own.weights.round(2), own.intercept.round(2)
    (array([1., 3., 5., 7.]), array([[2.]]), array([1.]))
    """

    center: Array
    spectrum: Spectrum
    intercept: bool

    @classmethod
    def of(cls, rows: Array, *, intercept: bool) -> "Design | None":
        """Decompose rows; None where nothing can be learned from the others, and any ridge is as good."""
        center = rows.mean(axis=0) * intercept
        spectrum = Spectrum.of(np.ascontiguousarray((rows - center).T))
        return cls(center, spectrum, intercept) if len(rows) > 1 and len(spectrum.values) else None

    def regress(self, targets: Array) -> OwnRidge:
        """Regress targets (n, c) on the rows."""
        mean = targets.mean(axis=0) * self.intercept
        residual, ridges = targets - mean, (STEPS * self.spectrum.values.mean()).tolist()
        left_out = self.spectrum.left_out_residuals(
            residual, 1 / np.array(ridges), member=False, centred=self.intercept
        )
        judged = ((float(np.mean(errors**2)), ridge, errors) for ridge, errors in zip(ridges, left_out, strict=True))
        error, ridge, errors = min(judged, key=lambda found: found[0])
        weights = self.spectrum.correction(residual, 1 / ridge)
        return OwnRidge(ridge, error, targets - errors, weights, mean - self.center @ weights)


def own_ridge(rows: Array, targets: Array, *, intercept: bool) -> OwnRidge | None:
    """Return a client's own regression; None where nothing can be learned from the others."""
    design = Design.of(rows, intercept=intercept)
    return None if design is None else design.regress(targets)


@dataclass(frozen=True)
class Influence:
    """What samples have done to G: without sample i, sample j's residual grows by `matrix`_ji times sample i's own."""

    matrix: Array  # X S⁻¹ Xᵀ, (n, n)

    @classmethod
    def of(cls, v: Array) -> "Influence":
        """Return the influence of samples with V = L⁻¹Xᵀ (d, n)."""
        return cls(v.T @ v)

    @property
    def own(self) -> Array:
        """Each sample's influence on itself, (n, 1)."""
        return np.diag(self.matrix)[:, None]

    def left_out(self, residual: Array) -> Array:
        """Return each sample's residual under the G that has not seen it, (n, c)."""
        return np.asarray(residual / (1 - self.own))

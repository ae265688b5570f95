"""Ridge regression from moments, with an intercept, which the ridge does not shrink, or without. Arrays only.

The W and b that minimise ‖Y - XW - 1bᵀ‖² + r‖W‖² are the ridge solution for centred features and targets, and
b = mean(Y) - Wᵀ mean(X). Targets are numbers, or classes as one-hot rows.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack

from fedgram.core.arrays import Array
from fedgram.moments import packing, solve

Ridge: TypeAlias = float | Literal["auto"]
# Candidates of "auto" for the ridge, in units of the mean eigenvalue: from almost no ridge to weights of almost 0.
STEPS = np.geomspace(1e-5, 1e3, 49)


@dataclass(frozen=True, eq=False)
class Regression:
    """The sums of a regression: XᵀX packed, XᵀY (d, t) and ‖Y‖² (`squares`), about the means if with an intercept.

    `mean` (d,) and `target_mean` (t,) are these means, zero without an intercept. `removed` (d,) is the diagonal of
    the matrix that centring has subtracted from XᵀX, from which the size of rounding errors follows. `n` is the number
    of samples, or the sum of their weights.
    """

    packed: Array
    cross: Array
    mean: Array
    target_mean: Array
    n: float
    intercept: bool
    squares: float
    removed: Array

    @classmethod
    def of(
        cls, packed: Array, cross: Array, sums: Array, target_sums: Array, squares: float, n: int, *, intercept: bool
    ) -> Self:
        """Return the regression of a packed XᵀX, XᵀY, the sums of features (d,) and targets (t,), and ‖Y‖².

        With an intercept, a feature that does not vary beyond rounding becomes exactly zero, and so will its weight. So
        does one whose squares are too small for a floating-point number.

        >>> x, y = np.array([[1.0, 7.0], [3.0, 7.0]]), np.eye(2)
        >>> centred = Regression.of(
        ...     packing.pack(x.T @ x), x.T @ y, x.sum(axis=0), y.sum(axis=0), squares=2.0, n=2, intercept=True
        ... )
        >>> packing.unpack(centred.packed, 2), centred.mean
        (array([[2., 0.],
               [0., 0.]]), array([2., 7.]))
        """
        d, t = cross.shape
        if not intercept:
            return cls(packed, cross, np.zeros(d), np.zeros(t), n, intercept, squares, np.zeros(d))
        mean, target_mean, diagonal = sums / max(n, 1), target_sums / max(n, 1), packing.diagonal(d)
        centred = np.asarray(lapack.dsfrk(d, 1, -float(n), mean[:, None], 1.0, packed, trans="N", uplo="L"))
        about = max(squares - n * float(target_mean @ target_mean), 0.0)
        varies = centred[diagonal] > np.maximum(solve.rounding_level(d, n) * packed[diagonal], solve.SMALLEST)
        removed = np.where(varies, n * mean**2, 0.0)
        whole = cls(centred, cross - np.outer(mean, target_sums), mean, target_mean, n, intercept, about, removed)
        return whole if varies.all() else replace(whole.scaled(np.where(varies, 1.0, 0.0)), mean=mean)

    def scaled(self, factors: Array) -> Self:
        """Return the regression on features that have been multiplied by `factors` (d,)."""
        full = packing.unpack(self.packed, len(factors))
        full *= factors
        full *= factors[:, None]
        return replace(
            self,
            packed=packing.pack(full),
            cross=self.cross * factors[:, None],
            mean=self.mean * factors,
            removed=self.removed * factors**2,
        )

    @cached_property
    def eigenpairs(self) -> tuple[Array, Array]:
        """Eigenvalues > 0 of XᵀX, and their vectors (d, r)."""
        return solve.eigenpairs(self.packed, len(self.mean), self.n, self.removed)

    def factor(self, ridge: float) -> solve.Factor:
        """Factor XᵀX with a ridge."""
        return solve.factor(self.packed, len(self.mean), ridge=ridge, n=self.n, removed=self.removed)

    def solve(self, ridge: Ridge) -> tuple[Array, float]:
        """Return the weights (d, t) and their ridge; for "auto", one decomposition gives both."""
        if ridge != "auto":
            return self.factor(ridge).solve(self.cross), ridge
        best, (values, vectors) = self.cross_validated(), self.eigenpairs
        return vectors @ (vectors.T @ self.cross / (values + best)[:, None]), best

    def offset(self, weights: Array) -> Array | None:
        """Return the intercept (t,) that goes with weights (d, t), None for a regression without an intercept."""
        return self.target_mean - self.mean @ weights if self.intercept else None

    def degrees_of_freedom(self, ridge: float) -> float:
        """Return the trace of the hat matrix, the effective number of parameters of a fit with this ridge."""
        values, _ = self.eigenpairs
        return float((values / (values + ridge)).sum()) + self.intercept

    def cross_validated(self, ridges: npt.ArrayLike | None = None) -> float:
        """Return the ridge of least generalised cross-validation error, among `STEPS` mean eigenvalues by default.

        If no feature varies, every ridge gives the same fit, and 1 is returned.
        """
        values, vectors = self.eigenpairs
        if not len(values):
            return 1.0
        return solve.generalised_cross_validation(
            values,
            vectors.T @ self.cross,
            STEPS * values.mean() if ridges is None else ridges,
            freedom=self.n - self.intercept,
            squares=self.squares,
        )

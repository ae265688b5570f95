"""Ridge regression from moments, with an intercept that no ridge shrinks, or none. Arrays only.

The W and b that minimise ‖Y - XW - 1bᵀ‖² + r‖W‖² are the ridge solution of features and targets less their means,
and b = mean(Y) - Wᵀ mean(X). Both means are in the moments: the class sums of X add up to nμ.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack

from fedgram.core.arrays import Array
from fedgram.moments import solve

Ridge: TypeAlias = float | Literal["auto"]
# Where "auto" looks for a ridge, in units of the mean eigenvalue: from hardly any ridge to hardly any weights.
STEPS = np.geomspace(1e-5, 1e3, 49)


@dataclass(frozen=True, eq=False)
class Regression:
    """XᵀX, packed, and XᵀY (d, c) for one-hot Y of n samples; with an intercept, of both less their means.

    `mean` (d,) and `frequencies` (c,) are these means, zero without an intercept.
    """

    packed: Array
    cross: Array
    mean: Array
    frequencies: Array
    n: int
    intercept: bool

    @classmethod
    def of(cls, packed: Array, cross: Array, counts: npt.NDArray[np.int64], *, intercept: bool) -> Self:
        """Return the regression of a packed XᵀX, XᵀY and the class counts.

        With an intercept, a feature that does not vary beyond rounding becomes exactly zero, and so will its weight.

        >>> x, y = np.array([[1.0, 7.0], [3.0, 7.0]]), np.eye(2)
        >>> centred = Regression.of(solve.pack(x.T @ x), x.T @ y, np.array([1, 1]), intercept=True)
        >>> solve.unpack(centred.packed, 2), centred.mean
        (array([[2., 0.],
               [0., 0.]]), array([2., 7.]))
        """
        (d, c), n = cross.shape, int(counts.sum())
        if not intercept:
            return cls(packed, cross, np.zeros(d), np.zeros(c), n, intercept)
        mean, diagonal = cross.sum(axis=1) / max(n, 1), solve.packed_diagonal(d)
        centred = np.asarray(lapack.dsfrk(d, 1, -float(n), mean[:, None], 1.0, packed, trans="N", uplo="L"))
        whole = cls(centred, cross - np.outer(mean, counts), mean, counts / max(n, 1), n, intercept)
        constant = centred[diagonal] <= solve.rounding_level(d, n) * packed[diagonal]
        return replace(whole.scaled(np.where(constant, 0.0, 1.0)), mean=mean) if constant.any() else whole

    def scaled(self, factors: Array) -> Self:
        """Return the regression on features that have been multiplied by `factors` (d,)."""
        full = solve.unpack(self.packed, len(factors))
        full *= factors
        full *= factors[:, None]
        return replace(self, packed=solve.pack(full), cross=self.cross * factors[:, None], mean=self.mean * factors)

    @property
    def removed(self) -> Array:
        """The diagonal (d,) of nμμᵀ where features vary: what centring has subtracted, and left its rounding errors."""
        varies = self.packed[solve.packed_diagonal(len(self.mean))] > 0
        return np.where(varies, self.n * self.mean**2, 0.0)

    @cached_property
    def eigenpairs(self) -> tuple[Array, Array]:
        """Eigenvalues > 0 of XᵀX, and their vectors (d, r)."""
        return solve.eigenpairs(self.packed, len(self.mean), self.n, self.removed)

    def factor(self, ridge: float) -> solve.Factor:
        """Factor XᵀX with a ridge."""
        return solve.factor(self.packed, len(self.mean), ridge=ridge, n=self.n, removed=self.removed)

    def offset(self, weights: Array) -> Array | None:
        """Return the intercept (c,) that goes with weights (d, c), None for a regression without."""
        return self.frequencies - self.mean @ weights if self.intercept else None

    def cross_validated(self, ridges: npt.ArrayLike | None = None) -> float:
        """Return the ridge of least generalised cross-validation error, among `STEPS` mean eigenvalues by default.

        Where nothing varies, any ridge gives the same: 1.
        """
        values, vectors = self.eigenpairs
        if not len(values):
            return 1.0
        return solve.generalised_cross_validation(
            values,
            vectors.T @ self.cross,
            STEPS * values.mean() if ridges is None else ridges,
            freedom=self.n - self.intercept,
            squares=self.n * (1 - (self.frequencies**2).sum()),  # ‖Y‖² of one-hot targets less their means
        )

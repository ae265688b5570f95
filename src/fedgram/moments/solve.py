"""Exact solves with Gram matrices. Arrays in, arrays out; nothing here knows of clients or classes.

Matrices are packed, see `packing`. Normal equations lose cond(X)² · eps: a solution here is as good as that allows, and
no better.
"""

import warnings
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh, lapack, qr

from fedgram.core import threads
from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidData, InvalidParameter, RankDeficient
from fedgram.moments import choice, lowrank, packing
from fedgram.moments.packing import COLUMNS_AT_ONCE

EPS = float(np.finfo(np.float64).eps)


def triangular_factor(rows: Array) -> Array:
    """Return R (m, d) with RᵀR = rowsᵀ rows, for rows (m, d) with m ≤ d: upper trapezoidal, if need be after a
    permutation.

    R says exactly what the Gram matrix says and no more of the rows or their order: a triangular factor is unique
    once its diagonal is positive, and `geqrfp` makes it so. Rows that have no features in common stand in it as they
    are, as they do in the Gram matrix. The reflections are found on the leading m columns and applied to all as one
    product, which for small m is quicker than LAPACK's own way.
    """
    m = len(rows)
    if not m:
        return rows.copy()
    reflections, tau, _ = lapack.dgeqrfp(rows[:, :m], lwork=32 * m)
    diagonal = reflections.diagonal()
    if not diagonal.min() > sqrt(EPS) * diagonal.max():
        return _pivoted_factor(rows)
    q, _, _ = lapack.dorgqr(reflections, tau, lwork=32 * m, overwrite_a=1)
    r: Array = q.T @ rows
    r[:, :m][_below_diagonal(m)] = 0.0  # not just to rounding
    return r


def _pivoted_factor(rows: Array) -> Array:
    """Return a factor where the leading columns determine none, as the white borders of images do not.

    Without reflections to make, R would be the rows themselves, in clear. The largest columns first, then; rows of
    R beyond the rank are nothing but rounding, and are made zero.
    """
    r, order = qr(rows, mode="r", pivoting=True, check_finite=False)
    diagonal = r.diagonal()
    r *= np.copysign(1.0, diagonal)[:, None]
    r[np.abs(diagonal) <= rounding_level(*rows.shape[::-1]) * np.abs(diagonal[0])] = 0.0
    factor = np.empty_like(rows)
    factor[:, order] = r
    return factor


@lru_cache(maxsize=32)
def _below_diagonal(m: int) -> npt.NDArray[np.bool_]:
    return np.tri(m, k=-1, dtype=np.bool_)


def rounding_level(d: int, n: float) -> float:
    """Return the size, relative to the largest eigenvalue, below which an eigenvalue of a Gram matrix is noise.

    Each element is a sum of n products; rounding errors of BLAS' blocked sums grow like √n, and d of them meet in
    an eigenvalue.
    """
    return (d + sqrt(n)) * EPS


def is_positive_semidefinite(packed: Array, d: int, slack: float) -> bool:
    """Say whether all eigenvalues are at least about -slack: one packed Cholesky factorisation of A + slack I."""
    shifted = packed.copy()
    shifted[packing.diagonal(d)] += slack
    with threads.symmetric(d):
        _, info = lapack.dpftrf(d, shifted, uplo="L", overwrite_a=1)
    return bool(info == 0)


def rank(packed: Array, d: int, slack: float) -> int:
    """Return the rank of a semidefinite matrix, taking what is smaller than `slack` for zero: a pivoted Cholesky."""
    if packed[packing.diagonal(d)].max() <= slack:
        return 0  # LAPACK takes the first pivot whatever its size
    with threads.symmetric(d):
        _, _, found, _ = lapack.dpstrf(packing.lower_triangle(packed, d), tol=slack, lower=1, overwrite_a=1)
    return int(found)


@dataclass(frozen=True)
class Factor:
    """A factored symmetric positive definite system: solve for many right-hand sides.

    Either `lower` is the Cholesky factor of the system scaled to a unit diagonal, or, where it is singular to
    rounding, `vectors` and
    `values` are the eigenpairs above the rounding level, and `solve` gives the minimum-norm solution.
    """

    d: int
    rank: int
    lower: Array | None = None
    scale: Array | None = None
    vectors: Array | None = None
    values: Array | None = None

    def solve(self, rhs: Array) -> Array:
        """Return the solution (d, c) for right-hand sides (d, c)."""
        if self.lower is not None:
            assert self.scale is not None
            solution, _ = lapack.dpotrs(self.lower, rhs * self.scale[:, None], lower=1, overwrite_b=1)
            solution *= self.scale[:, None]
            # In C order, as it will be after travelling: BLAS rounds otherwise for another order of memory.
            return np.ascontiguousarray(solution)
        assert self.vectors is not None
        assert self.values is not None
        projected = self.vectors.T @ rhs
        projected /= self.values[:, None]
        return self.vectors @ projected

    def freedom(self, ridge: float) -> float:
        """Return tr A(A + ridge I)⁻¹: how many degrees of freedom a fit with this ridge, the system's own, has."""
        if not ridge:
            return self.rank
        if self.values is not None:
            return float((1 - ridge / self.values).sum())
        inverse, _ = lapack.dtrtri(self.lower, lower=1)
        return self.d - ridge * float(np.square(np.tril(inverse) * self.scale).sum())


def factor(packed: Array, d: int, *, ridge: float = 0.0, n: float = 0, removed: Array | None = None) -> Factor:
    """Factor A + ridge · I once, A being the packed Gram matrix of n samples.

    Where it is singular to rounding, warn with the rank and keep the eigenpairs that mean something. `removed` (d,) is
    the diagonal of what has been subtracted to get A: its rounding errors are still there.

    >>> x = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    >>> factor(packing.pack(x.T @ x), 2).solve(x.T @ np.ones((3, 1))).round(6)
    array([[0.777778],
           [0.444444]])
    """
    check_ridge(ridge)
    system = packing.lower_triangle(packed, d)
    system[np.diag_indices(d)] += ridge
    # A unit diagonal: which units the features are in should not decide what is singular.
    diagonal = system.diagonal()
    scale = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    system *= scale[:, None]
    system *= scale
    norm = _norm(system)
    if not np.isfinite(norm):
        raise InvalidData("the Gram matrix is not finite: features are too large to be squared; rescale them")
    with threads.symmetric(d):
        lower, info = lapack.dpotrf(system, lower=1, clean=0, overwrite_a=1)
    if info == 0:
        reciprocal_condition, _ = lapack.dpocon(lower, norm, uplo="L")
        cancelled = 0.0 if removed is None else float((removed * scale**2).max())
        if reciprocal_condition > rounding_level(d, n) * (1 + cancelled):
            return Factor(d, rank=d, lower=lower, scale=scale)
    values, vectors = eigenpairs(packed, d, n, removed)
    kept = len(values)
    if kept < d:
        warnings.warn(
            f"the pooled features have rank {kept} of {d}: taking the minimum-norm solution; "
            "a larger ridge or more data makes it unique",
            RankDeficient,
            stacklevel=2,
        )
    return Factor(d, rank=kept, vectors=vectors, values=values + ridge)


def _norm(lower: Array) -> float:
    """Return the largest sum of sizes in a column of the symmetric matrix whose lower triangle this is."""
    sums = -np.abs(lower.diagonal())
    for start in range(0, len(lower), COLUMNS_AT_ONCE):
        columns = slice(start, start + COLUMNS_AT_ONCE)
        sizes = np.abs(lower[:, columns])
        sums += sizes.sum(axis=1)
        sums[columns] += sizes.sum(axis=0)
    return float(sums.max())


def generalised_cross_validation(
    values: Array, projected: Array, ridges: npt.ArrayLike, *, freedom: float, squares: float
) -> float:
    """Return the ridge of least generalised cross-validation error of a regression: moments are all that is needed.

    `values` are the eigenvalues > 0 of XᵀX, `projected` is XᵀY in their eigenvectors (r, c), `squares` is ‖Y‖².
    `freedom` is how many numbers the samples hold: n, or n - 1 if X and Y are centred, since the mean has taken one.
    """
    steps, rest = np.asarray(ridges, dtype=np.float64), max(freedom - len(values), 0)
    explained = (projected**2).sum(axis=1) / values  # ‖Y‖² along each direction
    # As many directions as samples explain all of Y; a difference would be rounding, and decide.
    beyond = max(squares - explained.sum(), 0.0) if rest else 0.0
    left = steps[:, None] / (values + steps[:, None])
    errors = (beyond + left**2 @ explained) / (rest + left.sum(axis=1)) ** 2
    return choice.least(steps, errors)


def check_ridge(ridge: float) -> None:
    """Refuse a ridge that is negative or not a number."""
    if not (np.isfinite(ridge) and ridge >= 0):
        raise InvalidParameter(f"ridge must be a number ≥ 0, got {ridge}")


def eigenpairs(packed: Array, d: int, n: float, removed: Array | None = None) -> tuple[Array, Array]:
    """Return the eigenvalues of a packed Gram matrix above the rounding level, ascending, and their vectors (d, r).

    `removed` is as in `factor`.
    """
    lower, cancelled, found = packing.lower_triangle(packed, d), 0.0 if removed is None else float(removed.sum()), None
    if n <= lowrank.FEW * d:
        found = lowrank.eigenpairs(lower, rounding_level(d, n) * (float(lower.diagonal().max()) + cancelled))
    with threads.symmetric(d):
        values, vectors = found or eigh(lower, lower=True, overwrite_a=True, check_finite=False)
    size = max(float(values[-1]), 0.0) + cancelled
    kept = values > rounding_level(d, n) * size
    return values[kept], vectors[:, kept]

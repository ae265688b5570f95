"""Exact solves with Gram matrices, without clients or classes: arrays in, arrays out.

Matrices are packed, see `packing`. Normal equations lose cond(X)² · eps: a solution here is as good as that allows, and
no better.
"""

import warnings
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite, sqrt

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh, lapack, qr

from fedgram.core import threads
from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidData, InvalidParameter, RankDeficient
from fedgram.moments import packing
from fedgram.moments.packing import COLUMNS_AT_ONCE

EPS = float(np.finfo(np.float64).eps)
# Sums of squares below this have lost digits, because their rounding is of a fixed size: numbers below 1e-146.
SMALLEST = float(np.finfo(np.float64).tiny) / EPS
# Errors that differ by less than this, relative to their size, differ by rounding.
AS_GOOD = 1e-9
# Beyond this ratio of sizes, features that are singular together are decomposed in units of their sizes.
UNEQUAL = 1e4
# Up to this n/d the decomposition costs less in the span of the samples: a twentieth for n = d/20 and d = 1,024.
FEW = 1 / 3


def triangular_factor(rows: Array) -> Array:
    """Return R (m, d) with RᵀR = rowsᵀ rows, for rows (m, d) with m ≤ d: upper trapezoidal, if need be after a
    permutation.

    R and the Gram matrix determine each other, so R reveals no more of the rows or their order: a triangular factor
    with a positive diagonal is unique, and `geqrfp` makes it positive. Rows without common features can be read from
    R, as they can from the Gram matrix. The reflections are found on the leading m columns and applied to all as one
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
    """Return a factor of rows whose leading columns do not determine it, such as the white borders of images.

    Without pivoting there would be no reflections to make, and R would be the rows themselves. So the largest columns
    come first. Rows of R beyond the rank are rounding errors, and are set to zero.
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
    """Return whether all eigenvalues are at least about -slack, by a packed Cholesky factorisation of A + slack I."""
    shifted = packed.copy()
    shifted[packing.diagonal(d)] += slack
    with threads.symmetric(d):
        _, info = lapack.dpftrf(d, shifted, uplo="L", overwrite_a=1)
    return bool(info == 0)


def rank(packed: Array, d: int, slack: float) -> int:
    """Return the rank of a semidefinite matrix by a pivoted Cholesky; pivots up to `slack` count as zero."""
    if packed[packing.diagonal(d)].max() <= slack:
        return 0  # LAPACK takes the first pivot even if it is below `tol`
    with threads.symmetric(d):
        _, _, found, _ = lapack.dpstrf(packing.lower_triangle(packed, d), tol=slack, lower=1, overwrite_a=1)
    return int(found)


@dataclass(frozen=True)
class Factor:
    """A factored symmetric positive definite system: solve for many right-hand sides.

    Either `lower` is the Cholesky factor of the system scaled to a unit diagonal, or, where it is singular to
    rounding, `vectors` and `values` are the eigenpairs above the rounding level, and `solve` gives the minimum-norm
    solution. Where features have very unequal units, they are eigenpairs of the scaled system, and the vectors are
    scaled back: the norm is of weights in units of each feature's size.
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
        """Return tr A(A + ridge I)⁻¹, the degrees of freedom of a fit with this ridge, the system's own."""
        if not ridge:
            return self.rank
        if self.values is not None:
            assert self.vectors is not None
            return float((1 - ridge * np.square(self.vectors).sum(axis=0) / self.values).sum())
        inverse, _ = lapack.dtrtri(self.lower, lower=1)
        return self.d - ridge * float(np.square(np.tril(inverse) * self.scale).sum())


def factor(packed: Array, d: int, *, ridge: float = 0.0, n: float = 0, removed: Array | None = None) -> Factor:
    """Factor A + ridge · I once, A being the packed Gram matrix of n samples.

    If it is singular to rounding, warn with the rank and keep the eigenpairs above the rounding level. `removed` (d,)
    is the diagonal of the matrices that were subtracted to get A, whose rounding errors remain in A.

    >>> x = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    >>> factor(packing.pack(x.T @ x), 2).solve(x.T @ np.ones((3, 1))).round(6)
    array([[0.777778],
           [0.444444]])
    """
    check_ridge(ridge)
    system, scale = _scaled(packed, d, ridge)
    norm = _norm(system)
    if not np.isfinite(norm):
        raise InvalidData("the Gram matrix is not finite: features are too large to be squared; rescale them")
    with threads.symmetric(d):
        lower, info = lapack.dpotrf(system, lower=1, clean=0, overwrite_a=1)
    cancelled = 0.0 if removed is None else float((removed * scale**2).max())
    if info == 0:
        reciprocal_condition, _ = lapack.dpocon(lower, norm, uplo="L")
        if reciprocal_condition > rounding_level(d, n) * (1 + cancelled):
            return Factor(d, rank=d, lower=lower, scale=scale)
    if not ridge and scale.max() > UNEQUAL * scale[scale > 0].min(initial=np.inf):
        # Eigenvalues of features in much smaller units than others would be lost in the rounding of the others.
        with threads.symmetric(d):
            values, vectors = eigh(_scaled(packed, d, ridge)[0], lower=True, overwrite_a=True, check_finite=False)
        # Scaling rounds each element twice more.
        large = values > 2 * rounding_level(d, n) * (max(float(values[-1]), 0.0) + cancelled)
        values, vectors = values[large], scale[:, None] * vectors[:, large]
    else:
        values, vectors = eigenpairs(packed, d, n, removed)
        values, vectors[scale == 0] = values + ridge, 0.0  # rounding would count if the feature is large
    kept = len(values)
    if kept < d:
        warnings.warn(
            f"the pooled features have rank {kept} of {d}: taking the minimum-norm solution; "
            "a larger ridge or more data makes it unique",
            RankDeficient,
            stacklevel=2,
        )
    return Factor(d, rank=kept, vectors=vectors, values=values)


def _scaled(packed: Array, d: int, ridge: float) -> tuple[Array, Array]:
    """Return the lower triangle of A + ridge · I with a unit diagonal, and the factors of rows and columns.

    The units of the features should not decide whether the system is singular.
    """
    system = packing.lower_triangle(packed, d)
    system[np.diag_indices(d)] += float(ridge)  # older NumPy does not add whole numbers beyond 64 bits
    diagonal = system.diagonal()
    there = diagonal > SMALLEST
    scale = np.where(there, 1 / np.sqrt(np.where(there, diagonal, 1.0)), 0.0)  # a feature that is zero stays zero
    system *= scale[:, None]
    system *= scale
    return system, scale


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
    `freedom` is the number of degrees of freedom of the samples: n, or n - 1 if X and Y are centred.
    """
    steps, rest = np.asarray(ridges, dtype=np.float64), max(freedom - len(values), 0)
    explained = (projected**2).sum(axis=1) / values  # ‖Y‖² along each direction
    # With as many directions as samples all of Y is explained; a difference is rounding and must not decide.
    beyond = max(squares - explained.sum(), 0.0) if rest else 0.0
    left = steps[:, None] / (values + steps[:, None])
    errors = (beyond + left**2 @ explained) / (rest + left.sum(axis=1)) ** 2
    return least(steps, errors)


def check_ridge(ridge: float) -> None:
    """Raise for a ridge that is negative or not a number."""
    if not (isfinite(ridge) and ridge >= 0):
        raise InvalidParameter(f"ridge must be a number ≥ 0, got {ridge}")


def eigenpairs(packed: Array, d: int, n: float, removed: Array | None = None) -> tuple[Array, Array]:
    """Return the eigenvalues of a packed Gram matrix above the rounding level, ascending, and their vectors (d, r).

    `removed` is as in `factor`.
    """
    lower, cancelled, found = packing.lower_triangle(packed, d), 0.0 if removed is None else float(removed.sum()), None
    if n <= FEW * d:
        found = eigenpairs_of_few(lower, rounding_level(d, n) * (float(lower.diagonal().max()) + cancelled))
    with threads.symmetric(d):
        values, vectors = found or eigh(lower, lower=True, overwrite_a=True, check_finite=False)
    size = max(float(values[-1]), 0.0) + cancelled
    kept = values > rounding_level(d, n) * size
    return values[kept], vectors[:, kept]


def eigenpairs_of_few(lower: Array, tolerance: float) -> tuple[Array, Array] | None:
    """Return the eigenvalues > 0 of a positive semidefinite matrix of low rank r, ascending, and their vectors (d, r).

    The price is that of the rank rather than of the dimension. `lower` is the matrix's lower triangle. Returns None if
    the rank turns out to be more than FEW · d, or no eigenvalue is above the tolerance.

    >>> x = np.array([[3.0, 0.0, 0.0, 4.0]])
    >>> values, vectors = eigenpairs_of_few(x.T @ x, 1e-12)
    >>> values.round(9), np.abs(vectors.T).round(9)
    (array([25.]), array([[0.6, 0. , 0. , 0.8]]))
    """
    # A = LLᵀ with L (d, r): Cholesky's factorisation with pivots ends where nothing is left. What is left of a column
    # is judged by the column's own size, or those in large units would hide all others.
    sizes = np.sqrt(lower.diagonal())
    largest = float(sizes.max())
    if not largest > 0:
        return None
    scale = np.where(sizes > 0, sizes, largest)
    factor, order, rank, _ = lapack.dpstrf(lower / scale / scale[:, None], tol=tolerance / largest**2, lower=1)
    if not 0 < rank <= FEW * len(lower):
        return None
    tall = np.empty((len(lower), rank))
    tall[order - 1] = np.tril(factor[:, :rank])
    tall *= scale[:, None]
    # Not by LᵀL, which would square the condition number once more. An SVD has many small parts: where others want the
    # processors too, threads that wait for each other after every one of them make it twenty times longer.
    with threads.decomposing(*tall.shape):
        vectors, roots, _ = np.linalg.svd(tall, full_matrices=False)
    return roots[::-1] ** 2, np.ascontiguousarray(vectors[:, ::-1])


def least(steps: Array, errors: Array) -> float:
    """Return the step of least error, and among steps that only rounding tells apart the last.

    >>> least(np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.5 + 1e-15, 0.7]))
    2.0
    """
    return float(steps[as_good(errors)[-1]])


def as_good(errors: Array) -> npt.NDArray[np.intp]:
    """Return the places of the least error, and of errors that only rounding tells from it.

    >>> as_good(np.array([2.0, 1.0, 3.0, 1.0 + 1e-12]))
    array([1, 3])
    """
    return np.flatnonzero(~(errors > errors.min() * (1 + AS_GOOD)))

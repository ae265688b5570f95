"""Exact solves with Gram matrices. Arrays in, arrays out; nothing here knows of clients or classes.

A symmetric d × d matrix is kept *packed*: d(d + 1)/2 numbers in LAPACK's rectangular full packed format
(lower triangle, not transposed). That is half the memory, and unlike the older packed format BLAS-3 works on it
directly: a client's `sfrk` (the rank-k update `syrk` for this format) writes what goes on the wire, and the
server adds it as a plain vector.

Normal equations lose cond(X)² · eps: a solution here is as good as that allows, and no better.
"""

import warnings
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh, lapack, qr
from scipy.linalg.blas import dsymv

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidData, InvalidParameter, RankDeficient
from fedgram.moments import blas, choice, lowrank

EPS = float(np.finfo(np.float64).eps)
COLUMNS_AT_ONCE = 256


def packed_size(d: int) -> int:
    """Return how many numbers a symmetric d × d matrix takes."""
    return d * (d + 1) // 2


def pack(matrix: npt.ArrayLike) -> Array:
    """Pack the lower triangle of a symmetric (d, d) matrix.

    >>> pack([[1.0, 0.0], [2.0, 3.0]]).shape
    (3,)
    """
    packed, _ = lapack.dtrttf(np.asfortranarray(matrix, dtype=np.float64), uplo="L")
    return np.asarray(packed)


def unpack(packed: Array, d: int) -> Array:
    """Return the full symmetric (d, d) matrix, in Fortran order.

    >>> unpack(pack([[1.0, 0.0], [2.0, 3.0]]), 2)
    array([[1., 2.],
           [2., 3.]])
    """
    full = _lower_triangle(packed, d)
    full += np.tril(full, -1).T
    return full


def _lower_triangle(packed: Array, d: int) -> Array:
    lower, _ = lapack.dtfttr(d, packed, uplo="L")
    for start in range(0, d, COLUMNS_AT_ONCE):  # above the diagonal it has not been written to
        end = min(start + COLUMNS_AT_ONCE, d)
        lower[:start, start:end] = 0.0
        lower[start:end, start:end] = np.tril(lower[start:end, start:end])
    return np.asarray(lower)


@lru_cache(maxsize=32)
def packed_diagonal(d: int) -> npt.NDArray[np.intp]:
    """Return where the d diagonal elements stand in the packed vector.

    The format is a rectangle by columns: the left half of the matrix with the transposed rest in the corner that
    is free.
    """
    even, half = 1 - d % 2, (d + 1) // 2
    height, j = d + even, np.arange(d)
    left, rest = j * height + j + even, (j - half + 1 - even) * height + j - half
    return np.where(j < half, left, rest)


def times(packed: Array, vector: Array) -> Array:
    """Return the packed symmetric (d, d) matrix times a vector (d,).

    In the rectangle that the format is, two triangles share a square, and the rest is the block between them.

    >>> times(pack([[1.0, 0.0], [2.0, 3.0]]), np.array([1.0, 1.0]))
    array([3., 5.])
    """
    d = len(vector)
    if d < 2:
        return packed * vector
    even, half = 1 - d % 2, (d + 1) // 2
    rectangle = packed.reshape(half, d + even).T
    block, left, right = rectangle[half + even :], vector[:half], vector[half:]
    upper = dsymv(1.0, rectangle[even : half + even], left, lower=1) + block.T @ right
    lower = dsymv(1.0, rectangle[: d - half, 1 - even :], right) + block @ left
    return np.concatenate([upper, lower])


def add_gram(packed: Array, rows: Array, *, by_columns: bool = False) -> None:
    """Add rowsᵀ rows to `packed` in place; `rows` is (m, d) in C order, or in Fortran's with `by_columns`.

    Half the operations of a matrix product, and no copy; clients can do it side by side.
    """
    if len(rows):
        blas.add_gram(packed, rows, by_columns=by_columns)


def add_block(packed: Array, d: int, row: int, column: int, block: Array) -> None:
    """Add a block (m, k) to the packed (d, d) matrix in place, at an element on or below its diagonal.

    Of a block on the diagonal the lower triangle is taken; any other must lie below the diagonal as a whole.

    >>> packed = np.zeros(6)
    >>> add_block(packed, 3, 1, 0, np.array([[1.0], [2.0]]))
    >>> unpack(packed, 3)
    array([[0., 1., 2.],
           [1., 0., 0.],
           [2., 0., 0.]])
    """
    (m, k), even, half = block.shape, 1 - d % 2, (d + 1) // 2
    lower = np.tril(block) if row == column else block
    rectangle, left = packed.reshape(half, d + even).T, min(max(half - column, 0), k)
    rectangle[row + even : row + even + m, column : column + left] += lower[:, :left]
    if left < k:  # what is right of the middle, and so below it too, stands transposed in the free corner
        first, shift = max(row, half), 1 - even - half
        corner = rectangle[column + left - half : column + k - half, first + shift : row + m + shift]
        corner += lower[first - row :, left:].T


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
    shifted[packed_diagonal(d)] += slack
    _, info = lapack.dpftrf(d, shifted, uplo="L", overwrite_a=1)
    return bool(info == 0)


def rank(packed: Array, d: int, slack: float) -> int:
    """Return the rank of a semidefinite matrix, taking what is smaller than `slack` for zero: a pivoted Cholesky."""
    if packed[packed_diagonal(d)].max() <= slack:
        return 0  # LAPACK takes the first pivot whatever its size
    _, _, found, _ = lapack.dpstrf(_lower_triangle(packed, d), tol=slack, lower=1, overwrite_a=1)
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
    >>> factor(pack(x.T @ x), 2).solve(x.T @ np.ones((3, 1))).round(6)
    array([[0.777778],
           [0.444444]])
    """
    check_ridge(ridge)
    system = _lower_triangle(packed, d)
    system[np.diag_indices(d)] += ridge
    # A unit diagonal: which units the features are in should not decide what is singular.
    diagonal = system.diagonal()
    scale = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    system *= scale[:, None]
    system *= scale
    norm = _norm(system)
    if not np.isfinite(norm):
        raise InvalidData("the Gram matrix is not finite: features are too large to be squared; rescale them")
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
    for start in range(0, len(lower), COLUMNS_AT_ONCE):  # a second matrix of this size may be too much
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
    lower, cancelled, found = _lower_triangle(packed, d), 0.0 if removed is None else float(removed.sum()), None
    if n <= lowrank.FEW * d:
        found = lowrank.eigenpairs(lower, rounding_level(d, n) * (float(lower.diagonal().max()) + cancelled))
    values, vectors = found or eigh(lower, lower=True, overwrite_a=True, check_finite=False)
    size = max(float(values[-1]), 0.0) + cancelled
    kept = values > rounding_level(d, n) * size
    return values[kept], vectors[:, kept]

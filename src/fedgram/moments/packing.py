"""Symmetric matrices packed into half the memory, and operations on the packed form. Arrays only.

A symmetric d × d matrix is kept as d(d + 1)/2 numbers in LAPACK's rectangular full packed format (lower triangle, not
transposed). BLAS-3 works on this format directly, which it cannot do with the older packed format. A client's `sfrk`
(the rank-k update `syrk` for this format) writes the vector that is sent, and the server adds it as it is.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack
from scipy.linalg.blas import dsymm, dsymv

from fedgram.core import threads
from fedgram.core.arrays import Array
from fedgram.moments import blas

COLUMNS_AT_ONCE = 256  # block width in passes over a whole matrix: a single pass would need a second matrix


def size(d: int) -> int:
    """Return the number of values of a packed symmetric d × d matrix."""
    return d * (d + 1) // 2


def pack(matrix: npt.ArrayLike) -> Array:
    """Return the packed lower triangle of a symmetric (d, d) matrix.

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
    full = lower_triangle(packed, d)
    for start in range(0, d, COLUMNS_AT_ONCE):
        end = min(start + COLUMNS_AT_ONCE, d)
        full[start:end, end:] = full[end:, start:end].T
        full[start:end, start:end] += np.tril(full[start:end, start:end], -1).T
    return full


def lower_triangle(packed: Array, d: int) -> Array:
    """Return the matrix with zeros above its diagonal, (d, d) in Fortran order."""
    lower, _ = lapack.dtfttr(d, packed, uplo="L")
    for start in range(0, d, COLUMNS_AT_ONCE):  # LAPACK writes nothing above the diagonal
        end = min(start + COLUMNS_AT_ONCE, d)
        lower[:start, start:end] = 0.0
        lower[start:end, start:end] = np.tril(lower[start:end, start:end])
    return np.asarray(lower)


@lru_cache(maxsize=32)
def diagonal(d: int) -> npt.NDArray[np.intp]:
    """Return the places of the d diagonal elements in the packed vector.

    The format is a rectangle stored by columns: the left half of the lower triangle, and in its free upper corner the
    right half, transposed.
    """
    even, half = 1 - d % 2, (d + 1) // 2
    height, j = d + even, np.arange(d)
    left, rest = j * height + j + even, (j - half + 1 - even) * height + j - half
    return np.where(j < half, left, rest)


def times(packed: Array, matrix: Array) -> Array:
    """Return the packed symmetric (d, d) matrix times a vector (d,) or a matrix (d, k).

    The packed rectangle holds two triangles, which together fill a square, and below it the block between them.

    >>> times(pack([[1.0, 0.0], [2.0, 3.0]]), np.array([1.0, 1.0]))
    array([3., 5.])
    """
    d = len(matrix)
    if d < 2:
        return packed * matrix
    even, half = 1 - d % 2, (d + 1) // 2
    rectangle, multiply = packed.reshape(half, d + even).T, dsymv if matrix.ndim == 1 else dsymm
    block, left, right = rectangle[half + even :], matrix[:half], matrix[half:]
    upper = multiply(1.0, rectangle[even : half + even], left, lower=1) + block.T @ right
    lower = multiply(1.0, rectangle[: d - half, 1 - even :], right) + block @ left
    return np.concatenate([upper, lower])


def add_gram(packed: Array, rows: Array, *, by_columns: bool = False) -> None:
    """Add rowsᵀ rows to `packed` in place; `rows` is (m, d) in C order, or in Fortran's with `by_columns`.

    Half the operations of a matrix product, and no copy; clients can do it side by side.
    """
    if len(rows):
        with threads.symmetric((rows.shape[1] + 1) // 2):  # sfrk is a syrk on either half
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
    if left < k:  # columns of the right half are stored transposed in the free corner
        first, shift = max(row, half), 1 - even - half
        corner = rectangle[column + left - half : column + k - half, first + shift : row + m + shift]
        corner += lower[first - row :, left:].T

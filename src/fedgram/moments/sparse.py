"""Gram matrices of sparse rows, without a dense copy of them.

Sparse columns are multiplied as they are. Columns that are filled (a bias, an age beside a thousand words) are made
dense a few thousand rows at a time, because BLAS is quicker for them, and because only they can be far from zero: a
column with nine zeros in ten is less than half a standard deviation away.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.linalg.blas import dsyrk

from fedgram.core import threads
from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidData
from fedgram.moments.accumulate import ROWS_AT_ONCE, not_finite_at

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# The share of rows with a value beyond which a column counts as filled; BLAS is quicker from 5 to 10 % on.
FILLED = 0.1


def gram(rows: "csr_array", *, roots: Array | None = None, shifted: int = 0) -> tuple[Array, Array]:
    """Return XᵀWX (d, d) of sparse rows X (n, d) less a shift, and the shift (d,).

    Parameters
    ----------
    rows
        The rows, float64. Values stored twice count as their sum.
    roots
        The square roots of the weights W, (n,); None for ones.
    shifted
        The number of leading columns to shift: from those that are filled, the value of the first row is subtracted,
        so that a constant column becomes exactly zero.

    """
    from scipy.sparse import csr_array

    if not rows.has_canonical_format:  # a sum of two rounded products would not be constant
        rows = rows.copy()
        rows.sum_duplicates()
    n, d = rows.shape
    filled = np.bincount(rows.indices, minlength=d) > FILLED * n
    [places] = filled.nonzero()
    shift = np.where(filled & (np.arange(d) < shifted), rows[:1].toarray().sum(axis=0), 0.0)
    each = None if roots is None else np.repeat(roots, np.diff(rows.indptr))
    scaled = csr_array((rows.data if each is None else rows.data * each, rows.indices, rows.indptr), shape=(n, d))
    rest = scaled.copy()
    rest.data[filled[rest.indices]] = 0.0
    rest.eliminate_zeros()
    whole: Array = (rest.T @ rest).toarray(order="F")
    columns, own, cross = scaled[:, places], np.zeros((len(places),) * 2, order="F"), np.zeros((d, len(places)))
    for start in range(0, n, ROWS_AT_ONCE) if len(places) else ():
        block = slice(start, start + ROWS_AT_ONCE)
        dense = columns[block].toarray()
        dense -= shift[places] if roots is None else np.outer(roots[block], shift[places])
        with threads.symmetric(len(places)):
            own = dsyrk(1.0, dense.T, beta=1.0, c=own, lower=1, overwrite_c=1)
        cross += rest[block].T @ dense
    whole[:, places], whole[places] = cross, cross.T
    whole[np.ix_(places, places)] = np.tril(own) + np.tril(own, -1).T
    return whole, shift


def sums(rows: "csr_array", labels: npt.NDArray[np.int64], classes: int, *, bias: bool = False) -> tuple[Array, Array]:
    """Return XᵀX (d, d) and the sum of each class (c, d) of sparse rows X, with a last column of ones if `bias`.

    >>> from scipy.sparse import csr_array
    >>> sums(csr_array([[1.0, 0.0], [2.0, 3.0]]), np.array([1, 1]), 2)
    (array([[5., 6.],
           [6., 9.]]), array([[0., 0.],
           [3., 3.]]))
    """
    from scipy.sparse import csr_array, hstack

    n, d = rows.shape[0], rows.shape[1] + bias
    parts = [rows, *([csr_array(np.ones((n, 1)))] if bias else []), one_hot(labels, classes)]
    whole, _ = gram(csr_array(hstack(parts, format="csr")))
    return np.asfortranarray(whole[:d, :d]), whole[d:, :d]


def one_hot(labels: npt.NDArray[np.int64], classes: int) -> "csr_array":
    """Return label indices (n,) as sparse rows (n, c).

    >>> one_hot(np.array([1, 0]), 2).toarray()
    array([[0., 1.],
           [1., 0.]])
    """
    from scipy.sparse import csr_array

    n = len(labels)
    return csr_array((np.ones(n), labels, np.arange(n + 1)), shape=(n, classes))


def not_finite(rows: "csr_array") -> InvalidData:
    """Return an error that says where sparse rows are not finite, or that their squares are not."""
    [stored] = (~np.isfinite(rows.data)).nonzero()
    places: npt.NDArray[Any] = rows.indptr.searchsorted(stored, side="right") - 1
    return not_finite_at(places, rows.indices[stored], rows.data[stored])

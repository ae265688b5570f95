"""Gram matrix and class sums of rows of features, block by block, in float64."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array, dense
from fedgram.core.errors import InvalidData
from fedgram.moments import packing

ROWS_AT_ONCE = 2048
# Factors are stacked up to so many bytes, or up to so many rows where that is more.
STACKED_BYTES, STACKED_ROWS = 2**26, 512
Indices = npt.NDArray[np.int64]


class Accumulator:
    """Running XᵀX (packed) and sums per class, in O(d²) memory for any number of samples."""

    def __init__(self, d: int, classes: int) -> None:
        self.packed = np.zeros(packing.size(d))
        self.sums = np.zeros((classes, d))
        self._stacked = np.empty((0, d))
        self._height = 0

    def add_samples(
        self, rows: npt.NDArray[Any], labels: Indices, *, bias: bool = False, centre: Array | None = None
    ) -> None:
        """Add samples (n, d), float32 or float64, less a centre, without a float64 copy of all of them."""
        for start in range(0, len(rows), ROWS_AT_ONCE):
            block = as_block(rows[start : start + ROWS_AT_ONCE], bias=bias, centre=centre)
            packing.add_gram(self.packed, block)
            self.sums += class_sums(block, labels[start : start + ROWS_AT_ONCE], len(self.sums))

    def add_columns(self, x: Array, labels: Indices) -> None:
        """Add samples (n, d) in Fortran's order, as tables have them, without a copy."""
        packing.add_gram(self.packed, x, by_columns=True)
        self.sums += (labels == np.arange(len(self.sums))[:, None]).astype(np.float64) @ x

    def add_factor(self, factor: Array) -> None:
        """Add RᵀR. Factors are stacked, so that BLAS gets tall blocks instead of slivers."""
        m, d = factor.shape
        at_once = min(ROWS_AT_ONCE, 2 * d, max(STACKED_ROWS, STACKED_BYTES // (8 * d)))
        if m > at_once:  # tall enough by itself
            packing.add_gram(self.packed, factor)
            return
        if not len(self._stacked):
            self._stacked = np.empty((at_once, d))
        if self._height + m > len(self._stacked):
            self.flush()
        self._stacked[self._height : self._height + m] = factor
        self._height += m

    def flush(self) -> None:
        """Bring stacked factors into `packed`."""
        packing.add_gram(self.packed, self._stacked[: self._height])
        self._height = 0


def as_features(x: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return features as an (n, d) array of numbers; raise for other shapes and types."""
    try:
        rows = dense(x, "features")
    except ValueError as error:  # numpy's word for rows of unequal length
        raise InvalidData(f"features are not an array of numbers: {error}") from error
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise InvalidData(f"features must have shape (n, d) with d ≥ 1, got {rows.shape}")
    if rows.dtype.kind not in "fiub":
        raise InvalidData(f"features must be numbers, got {rows.dtype}")
    return rows


def as_block(rows: npt.NDArray[Any], *, bias: bool, centre: Array | None = None) -> Array:
    """Return the rows less a centre (d,), in float64 and C order, with a last column of ones if `bias`."""
    if not bias and centre is None:
        return np.ascontiguousarray(rows, dtype=np.float64)
    n, d = rows.shape
    block = np.ones((n, d + bias))
    np.subtract(rows, 0.0 if centre is None else centre, out=block[:, :d])
    return block


def class_sums(block: Array, labels: Indices, classes: int) -> Array:
    """Return YᵀX (c, d) for one-hot Y: n · d additions, where a matrix product would take c times as many."""
    from scipy.sparse import csc_array

    n = len(block)
    return np.asarray(csc_array((np.ones(n), labels, np.arange(n + 1)), shape=(classes, n)) @ block)


def check_finite(x: npt.NDArray[Any]) -> None:
    """Raise for samples (n, …) that are not finite."""
    # A sum is finite unless an element is not, or the sum overflows; it needs no second array.
    if not np.isfinite(x.sum()) and not np.isfinite(x).all():
        raise not_finite(x.reshape(len(x), -1))


def not_finite(rows: npt.NDArray[Any]) -> InvalidData:
    """Return an error that says where features are not finite."""
    places, columns = (~np.isfinite(rows)).nonzero()
    return not_finite_at(places, columns, rows[places, columns])


def not_finite_at(rows: npt.NDArray[Any], columns: npt.NDArray[Any], values: npt.NDArray[Any]) -> InvalidData:
    """Return an error about values that are not finite, by row and column; without any, about squares that are not."""
    if not len(rows):
        return InvalidData("features are so large that their squares overflow: rescale them")
    return InvalidData(
        f"features are not finite: {values[0]} in row {rows[0]}, column {columns[0]} "
        f"({len(np.unique(rows))} rows in all): remove or mend these samples"
    ).telling(f"features are not finite in column {columns[0]}")

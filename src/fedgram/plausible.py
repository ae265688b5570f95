"""Could any data set have these arrays as its moments? Arrays only; what is refused is named as a field of the message.

The matrix [X Y]ᵀ[X Y] must be positive semidefinite. Since YᵀY is the diagonal of class counts, that is the scatter
within classes, XᵀX - MᵀM, being so, where the rows of M are the classes' sums divided by the roots of their counts.
"""

from math import isfinite

import numpy as np

from fedgram import solve
from fedgram.errors import NotMoments
from fedgram.solve import Array

TINY = float(np.finfo(np.float64).tiny)


def check_gram(packed: Array, means: Array, ones: int | None, noise: float) -> None:
    """Check a packed XᵀX (d, d) with M (p, d), but for rounding errors up to `noise`.

    `ones` is the number of samples where the last feature is a column of ones.
    """
    d = means.shape[1]
    diagonal = packed[solve.packed_diagonal(d)]
    if not isfinite(noise):
        raise NotMoments(f"field 'gram' has {diagonal.max()} on its diagonal: too large")
    noise = max(noise, TINY)
    if ones is not None and abs(diagonal[-1] - ones) > noise:
        raise NotMoments(f"field 'gram' counts {diagonal[-1]} samples, field 'counts' {ones}")
    between = np.zeros_like(packed)
    solve.add_gram(between, means)
    if not solve.is_positive_semidefinite(packed - between, d, noise):
        raise NotMoments("field 'gram' with field 'sums' is not positive semidefinite: no samples have these moments")


def check_factor(factor: Array, means: Array, ones: int | None) -> None:
    """Check R (n, d) with RᵀR = XᵀX, without a d × d matrix: M must be a matrix of norm at most 1, times R."""
    squares = np.vdot(factor, factor)
    if not isfinite(squares):
        raise NotMoments("field 'factor' is too large to be squared")
    if ones is not None and abs(float(factor[:, -1] @ factor[:, -1]) - ones) > 1e-6 * ones:
        raise NotMoments(f"field 'factor' counts other samples than field 'counts', {ones}")
    mixing = np.linalg.lstsq(factor.T, means.T, rcond=None)[0]
    missed = np.abs(mixing.T @ factor - means).max(initial=0.0)
    if missed > 1e-6 * np.abs(means).max(initial=0.0) or np.linalg.norm(mixing, 2) > 1 + 1e-6:
        raise NotMoments("field 'factor' with field 'sums' is not positive semidefinite: no samples have these moments")

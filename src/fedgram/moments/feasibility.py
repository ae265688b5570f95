"""Checks whether any data set can have given arrays as its moments. Arrays only; errors name fields of the message.

The matrix [X Y]ᵀ[X Y] must be positive semidefinite. YᵀY is the diagonal matrix of class counts. So the condition is
that the scatter within classes, XᵀX - MᵀM, is positive semidefinite. The rows of M are the classes' sums divided by
the roots of their counts.
"""

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh

from fedgram.core.arrays import Array
from fedgram.core.errors import NotMoments
from fedgram.moments import packing, solve

# More samples than any party has, and few enough that thousands of parties' counts add up without overflowing.
MOST_SAMPLES = 2**48
# Largest sum of squares whose own square does not overflow; estimates of a model's errors square it.
LARGEST_SQUARES = 1e150
TINY = float(np.finfo(np.float64).tiny)
# Rounding grows in a pivoted factorisation; beyond this many times the noise, a pivot is not rounding.
RANK_NOISE = 10.0


def check_counts(counts: npt.NDArray[np.int64]) -> None:
    """Raise `NotMoments` for impossible numbers of samples per class."""
    if (counts < 0).any():
        raise NotMoments(f"field 'counts' has a negative count: {counts.min()}")
    if sum(counts.tolist()) > MOST_SAMPLES:
        raise NotMoments(f"field 'counts' adds up to {sum(counts.tolist())}: more than the {MOST_SAMPLES} that can be")


def check_size(squares: Array, field: str) -> None:
    """Raise `NotMoments` for sums of squares of features that are too large."""
    if squares.size and not squares.max() <= LARGEST_SQUARES:
        raise NotMoments(
            f"field '{field}' has a sum of squares of {squares.max():g}: too large, up to {LARGEST_SQUARES:g} is "
            "expected; scale the features"
        )


def check_gram(packed: Array, means: Array, n: int, noise: float, *, bias: bool, field: str = "gram") -> None:
    """Raise `NotMoments` if no n samples with M (p, d) have this packed XᵀX (d, d), up to rounding errors of `noise`.

    With `bias` the last feature is a column of ones. `field` is the matrix's field in the message.
    """
    d = means.shape[1]
    if not n and packed.any():
        raise NotMoments("field 'gram' is not zero, but field 'counts' has no samples")
    diagonal = packed[packing.diagonal(d)]
    check_size(diagonal, field)
    noise = max(noise, TINY)
    if bias and abs(diagonal[-1] - n) > noise:
        raise NotMoments(f"field 'gram' counts {diagonal[-1]} samples, field 'counts' {n}")
    scatter = packed - _between(means)
    if not solve.is_positive_semidefinite(scatter, d, noise):
        raise _impossible(field)
    # Within classes n samples span n - p dimensions at the most.
    if n - len(means) < d and (rank := solve.rank(scatter, d, RANK_NOISE * noise)) > n - len(means):
        raise NotMoments(
            f"field '{field}' has rank {rank} within classes, where {n} samples have at most {n - len(means)}"
        )


def nearest(packed: Array, means: Array, n: int, *, bias: bool) -> Array:
    """Return the nearest packed matrix that n samples with M (p, d) can have: semidefinite within classes, of rank
    n - p.
    """
    d, between = means.shape[1], _between(means)
    scatter = packing.unpack(packed - between, d)
    if bias:
        scatter[-1] = scatter[:, -1] = 0.0  # a column of ones does not vary
    values, vectors = eigh(scatter, overwrite_a=True, check_finite=False)
    kept = np.flatnonzero(values > 0)[::-1][: max(n - len(means), 0)]
    return packing.pack((vectors[:, kept] * values[kept]) @ vectors[:, kept].T) + between


def _between(means: Array) -> Array:
    between = np.zeros(packing.size(means.shape[1]))
    packing.add_gram(between, means)
    return between


def check_factor(factor: Array, means: Array, noise: float, *, bias: bool) -> None:
    """Raise `NotMoments` for an impossible R (n, d) with RᵀR = XᵀX, without making a d × d matrix.

    The check works in the space that the rows of R span, which has at most n dimensions.

    M = CR for a C with orthonormal rows, so M lies in them. C itself is not checked: samples that are nearly
    equal make it uncertain, even if they are honest.
    """
    n = len(factor)
    if not n:
        return
    with np.errstate(over="ignore"):
        check_size(np.square(factor).sum(axis=0), "factor")
    if bias and abs(float(factor[:, -1] @ factor[:, -1]) - n) > 1e-6 * n:
        raise NotMoments(f"field 'factor' counts other samples than field 'counts', {n}")
    axes, parts = np.linalg.qr(factor.T)
    spanned = means @ axes
    missed = np.abs(spanned @ axes.T - means).max(initial=0.0)
    if missed > noise / max(float(np.linalg.norm(factor)), TINY):
        raise _impossible("factor")
    check_gram(packing.pack(parts @ parts.T), spanned, n, noise, bias=False, field="factor")


def _impossible(field: str) -> NotMoments:
    return NotMoments(f"field '{field}' with field 'sums' is not positive semidefinite: no samples have these moments")

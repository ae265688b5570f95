"""Columns far from zero: how to find them, centre them, and warn of the digits that their sums of squares lose.

A variance is the difference of a mean square and a squared mean. If the mean is R standard deviations, both are about
R² times the variance, and of sixteen digits 2 log₁₀ R are lost. So a centre is subtracted from columns before they are
summed: under a study the middle of their range, without a study a centre that all clients agree on.
"""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.core.errors import LostPrecision
from fedgram.moments.solve import SMALLEST

# Standard deviations from zero beyond which columns get a centre, so that a variance loses three digits at most, and
# beyond which a warning says that ten digits are lost.
FAR, LOST = 16.0, 1e5
# Most rows, fewest rows, and most numbers in them, by which a client's columns are judged to be far from zero.
LOOKED_AT, FEWEST, NUMBERS = 64, 16, 1 << 18
EXACT = 2.0**53  # sums of whole numbers are exact below
NOTHING = 1e-14  # relative to the largest column, below which a column counts as zero
_SHOWN = 3
_UNIT = "give it in a smaller unit, so that its numbers are larger"


def far(sums: Array, squares: Array, n: float, deviations: float = FAR) -> npt.NDArray[np.bool_]:
    """Return a mask of columns further from zero than so many standard deviations, from sums and sums of squares (d,).

    A constant column counts as far from zero, unless it is zero.

    >>> far(np.array([30.0, 300.0]), np.array([302.0, 30002.0]), 3)
    array([False,  True])
    """
    means = sums / max(n, 1)
    squared = means**2
    return np.asarray(squared > deviations**2 * np.maximum(squares / max(n, 1) - squared, 0.0))


def centre(sums: Array, squares: Array, n: float) -> Array | None:
    """Return the centre to subtract from columns, (d,): means of columns far from zero; None if there are none."""
    found = np.where(far(sums, squares, n), sums / max(n, 1), 0.0)
    return found if found.any() else None


def far_in(rows: npt.NDArray[np.generic], deviations: float = FAR) -> npt.NDArray[np.bool_]:
    """Return a mask of the columns of samples (n, d) that are far from zero, judged by some of the rows."""
    most = max(min(LOOKED_AT, NUMBERS // rows.shape[1]), FEWEST)
    some = rows[:: -(-len(rows) // most)]
    low, high = some.min(axis=0).astype(np.float64), some.max(axis=0).astype(np.float64)
    # Of n numbers the deviation is at least their range divided by √(2n), and the mean is between them.
    found = np.maximum(high, -low) > deviations / np.sqrt(2 * len(some)) * (high - low)
    if found.any():
        chosen = np.asarray(some[:, found], dtype=np.float64)
        means = chosen.mean(axis=0)
        found[found] = np.abs(means) > deviations * np.sqrt(np.square(chosen - means).mean(axis=0))
    return np.asarray(found)


def warn(
    names: Sequence[str], sums: Array, squares: Array, n: float, remedy: Callable[[int], str], *, level: float
) -> None:
    """Warn of columns beyond `LOST` standard deviations, given pooled sums (d,) that are rounded by a share of `level`,
    and of columns whose squares are too small for a floating-point number.

    A column whose variance is below rounding may be constant or not. A column of whole numbers has exact sums, so it is
    known whether it is constant; a constant column has lost nothing.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        beyond = np.flatnonzero(far(sums, squares, n, LOST)).tolist() if n > 1 else []
    # A constant column minus its own mean leaves only rounding errors, which are not worth a warning.
    nothing = NOTHING**2 * squares.max(initial=0.0)
    there = [place for place in beyond if squares[place] > nothing]
    lost, told = [place for place in there if not _constant(float(sums[place]), float(squares[place]), n)], []
    for place in lost[:_SHOWN]:
        mean, mean_square = float(sums[place] / n), float(squares[place] / n)
        variance = mean_square - mean * mean  # a power raises where this is infinite
        known = variance > 64 * level * mean_square
        what = (
            f"its mean is {abs(mean) / np.sqrt(variance):.1g} standard deviations, so that sums of squares keep few "
            "digits of its variance"
            if known
            else f"its variance is less than the rounding of its sums, beside a mean of {mean:.6g}, and so not known"
        )
        told.append(f"{names[place]} is far from zero: {what}; {remedy(place)}")
    small = np.flatnonzero((squares < SMALLEST) & ((squares > 0) | (sums != 0))).tolist()
    told += [
        f"{names[place]} is so small that its squares keep few digits or none; {_UNIT}" for place in small[:_SHOWN]
    ]
    if told:
        rest = len(lost) + len(small) - len(told)
        more = f"; and {rest} more columns" if rest else ""
        warnings.warn("; ".join(told) + more, LostPrecision, stacklevel=3)


def _constant(total: float, square: float, n: float) -> bool:
    """Return whether a column of whole numbers is known to be constant, from exact sums."""
    return square < EXACT and total.is_integer() and square.is_integer() and int(n) * int(square) == int(total) ** 2

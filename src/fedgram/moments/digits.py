"""Columns far from zero: which ones are, how many digits their sums of squares lose by it, and what to do.

A variance is the difference of a mean square and a squared mean. Where the mean is R standard deviations, the two agree
in their first R² parts, and of sixteen digits 2 log₁₀ R are lost. So columns are summed less a centre: under a study
the middle of their range, in a run without a study one that all clients agree on.
"""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.core.errors import LostPrecision
from fedgram.moments import solve
from fedgram.moments.statistic import Statistic

# Standard deviations from zero beyond which columns get a centre, so that a variance loses three digits at most; and
# beyond which it is said that ten are lost.
FAR, LOST = 16.0, 1e5
# Rows of a client that say whether its columns are far from zero, and numbers in them.
LOOKED_AT, FEWEST, NUMBERS = 64, 16, 1 << 18
EXACT = 2.0**53  # sums of whole numbers are exact below
NOTHING = 1e-14  # beside the largest column
_SHOWN = 3


def far(sums: Array, squares: Array, n: float, deviations: float = FAR) -> npt.NDArray[np.bool_]:
    """Return which columns are further from zero than so many standard deviations, from sums and sums of squares (d,).

    A column that does not vary is, unless it is zero.

    >>> far(np.array([30.0, 300.0]), np.array([302.0, 30002.0]), 3)
    array([False,  True])
    """
    means = sums / max(n, 1)
    squared = means**2
    return np.asarray(squared > deviations**2 * np.maximum(squares / max(n, 1) - squared, 0.0))


def centre(sums: Array, squares: Array, n: float) -> Array | None:
    """Return what is subtracted from columns, (d,): the means of those far from zero; None if there are none."""
    found = np.where(far(sums, squares, n), sums / max(n, 1), 0.0)
    return found if found.any() else None


def far_in(rows: npt.NDArray[np.generic], deviations: float = FAR) -> npt.NDArray[np.bool_]:
    """Return which columns of samples (n, d) are far from zero, judged by some of the rows."""
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


def warn_of_lost(moments: Statistic) -> None:
    """Warn of columns whose variance the moments hardly have any more, by name or number."""
    kind, sums, n = moments.kind, moments.cross.sum(axis=1), moments.n
    width, made = (
        moments.d - kind.bias,
        bool(kind.features) and not kind.study,
    )  # of other columns, by a map or backbone
    named = kind.columns if len(kind.columns) == width and not made else tuple(range(width))
    names = [f"{'feature' if made else 'column'} {name!r}" for name in named]
    level = solve.rounding_level(1, n)
    if kind.centre:  # what is left of a constant beside its centre is the centre's rounding, not a mean
        rounded = 8 * level * np.append(np.abs(kind.centre), np.zeros(int(kind.bias))) * n
        sums = np.where(np.abs(sums) > rounded, sums, 0.0)

    def remedy(place: int) -> str:
        if made:
            return "standardise the columns that features are made of"
        return f"subtract {sums[place] / n:.6g} from it, or give it a range in a study"

    warn(names, sums[: len(names)], moments.squares[: len(names)], n, remedy, level=level)


def warn(
    names: Sequence[str], sums: Array, squares: Array, n: float, remedy: Callable[[int], str], *, level: float
) -> None:
    """Warn of columns beyond `LOST` standard deviations, given pooled sums (d,); `level` is how far sums are rounded.

    Of a column whose variance is below rounding it is not known whether it varies. Sums of whole numbers are exact, so
    one of these is then known to be constant, and lost nothing.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        beyond = np.flatnonzero(far(sums, squares, n, LOST)).tolist() if n > 1 else []
    # What is left of a constant column about its own mean is rounding, and no column.
    nothing = NOTHING**2 * squares.max(initial=0.0)
    there = [place for place in beyond if squares[place] > nothing]
    lost, told = [place for place in there if not _constant(float(sums[place]), float(squares[place]), n)], []
    for place in lost[:_SHOWN]:
        mean, mean_square = float(sums[place] / n), float(squares[place] / n)
        variance = mean_square - mean**2
        known = variance > 64 * level * mean_square
        what = (
            f"its mean is {abs(mean) / np.sqrt(variance):.1g} standard deviations, so that sums of squares keep few "
            "digits of how it varies"
            if known
            else f"beside its mean of {mean:.6g}, how it varies is less than the rounding of its sums, and not known"
        )
        told.append(f"{names[place]} is far from zero: {what}; {remedy(place)}")
    if told:
        more = f"; and {len(lost) - len(told)} more columns" if len(lost) > len(told) else ""
        warnings.warn("; ".join(told) + more, LostPrecision, stacklevel=3)


def _constant(total: float, square: float, n: float) -> bool:
    """Say whether a column is known not to vary: of whole numbers, by sums that are exact."""
    return square < EXACT and total.is_integer() and square.is_integer() and int(n) * int(square) == int(total) ** 2

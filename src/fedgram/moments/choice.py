"""Which of several candidates has the least error, without leaving it to rounding."""

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array

# Errors that differ by less than this, relative to their size, differ by rounding.
AS_GOOD = 1e-9


def least(steps: Array, errors: Array) -> float:
    """Return the step of least error. Rounding must not choose between steps as good as each other: the last is taken.

    >>> least(np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.5 + 1e-15, 0.7]))
    2.0
    """
    return float(steps[as_good(errors)[-1]])


def as_good(errors: Array) -> npt.NDArray[np.intp]:
    """Return the places of the least error, and of those that only rounding tells from it.

    >>> as_good(np.array([2.0, 1.0, 3.0, 1.0 + 1e-12]))
    array([1, 3])
    """
    return np.flatnonzero(~(errors > errors.min() * (1 + AS_GOOD)))

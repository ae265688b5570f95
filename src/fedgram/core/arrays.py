"""The arrays that everything is computed with."""

from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import InvalidData

Array: TypeAlias = npt.NDArray[np.float64]
T = TypeVar("T")


def unmasked(x: T, what: str) -> T:
    """Return an array as it is; refuse a masked one, whose values under the mask would be used as if they were there.

    >>> unmasked(np.ma.masked_equal([1.0, -99.0], -99.0), "features")
    Traceback (most recent call last):
    fedgram.core.errors.InvalidData: features: expected an array without a mask, got a masked array with 1 of 2 ...
    """
    if isinstance(x, np.ma.MaskedArray):
        array: Any = x
        raise InvalidData(
            f"{what}: expected an array without a mask, got a masked array with {np.ma.getmaskarray(array).sum():,} of "
            f"{array.size:,} values masked; impute them first, or give x.filled(value)"
        ).telling(f"{what} must not be masked")
    return x

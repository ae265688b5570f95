"""Handwritten digits, 1,797 images of 8 × 8: small enough to come with the package."""

from importlib.resources import files

import numpy as np

from fedgram.data.dataset import Dataset


def digits() -> Dataset:
    """Return the digits as 64 features in [0, 1].

    E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998,
    CC BY 4.0 (its test part, as in scikit-learn). It has no further split of its own.

    >>> data = digits()
    >>> data.x.shape, len(data.classes)
    ((1797, 64), 10)
    """
    with files("fedgram.data").joinpath("digits.npz").open("rb") as stream, np.load(stream) as stored:
        x, y = stored["x"], stored["y"]
    return Dataset("digits", x / 16.0, y.astype(np.int64), tuple(range(10)), fingerprint="digits-uci-1998")

"""Means of features by class: what methods with prototypes share instead of weights."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.nets.layers import Vector
from fedgram.nets.model import outputs
from fedgram.nets.vector import Net


def class_sums(
    net: Net, vector: Vector, x: npt.NDArray[Any], y: npt.NDArray[np.int64]
) -> tuple[Array, npt.NDArray[np.int32]]:
    """Return the sums (c, width) of the features of each class, and how many samples each has."""
    sums = np.zeros((net.classes, net.features))
    start = 0
    for features, _ in outputs(net, vector, x):
        np.add.at(sums, y[start : start + len(features)], features.astype(np.float64))
        start += len(features)
    return sums, np.bincount(y, minlength=net.classes).astype(np.int32)


def class_means(sums: Array, counts: npt.NDArray[Any]) -> Array:
    """Return the means of the classes; zeros where there is no sample."""
    return np.asarray(sums / np.maximum(counts, 1)[:, None])

"""Means of features by class: what methods with prototypes share instead of weights."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.nets.layers import Vector
from fedgram.nets.model import outputs
from fedgram.nets.vector import Net


def class_sums(
    net: Net, vector: Vector, x: npt.NDArray[Any], y: npt.NDArray[np.int64], *, unit: bool = False
) -> tuple[Array, npt.NDArray[np.int32]]:
    """Return the sums (c, width) of the features of each class, and how many samples each has.

    With `unit` each sample's features are brought to length one first.
    """
    sums = np.zeros((net.classes, net.features))
    start = 0
    for features, _ in outputs(net, vector, x):
        rows = features.astype(np.float64)
        np.add.at(sums, y[start : start + len(rows)], on_sphere(rows) if unit else rows)
        start += len(features)
    return sums, np.bincount(y, minlength=net.classes).astype(np.int32)


def on_sphere(features: Array) -> Array:
    """Return rows (n, width) of length one; a row of zeros stays one.

    >>> on_sphere(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8],
           [0. , 0. ]])
    """
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return np.asarray(features / np.where(lengths > 0, lengths, 1))


def class_means(sums: Array, counts: npt.NDArray[Any]) -> Array:
    """Return the means of the classes; zeros where there is no sample."""
    return np.asarray(sums / np.maximum(counts, 1)[:, None])


def filled(known: npt.NDArray[np.bool_], means: Vector) -> Vector:
    """Return the mean set over clients, and behind it every client's set with that mean where it lacks a class.

    `known` (p, c) says which classes each of p clients has, `means` has a row for each of these, client by client. The
    mean of a class is the plain one over the clients that have it. Returns (1 + p, c, width).
    """
    sets = np.zeros((*known.shape, means.shape[1]))
    sets[known] = means
    mean = class_means(sets.sum(axis=0), known.sum(axis=0))
    return np.concatenate([mean[None], np.where(known[..., None], sets, mean)]).astype(np.float32)

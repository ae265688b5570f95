"""Means of features by class, which methods with prototypes share instead of weights."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.moments.accumulate import class_sums as sums_by_label
from fedgram.nets.layers import Tensor, Vector
from fedgram.nets.sgd import Now
from fedgram.nets.trained_net import outputs
from fedgram.nets.vector import Net

Counts: TypeAlias = npt.NDArray[np.int32]


def class_sums(
    net: Net, vector: Vector, x: npt.NDArray[Any], y: npt.NDArray[np.int64], *, unit: bool = False
) -> tuple[Array, Counts]:
    """Return the sums (c, width) of the features of each class, and how many samples each has.

    With `unit` each sample's features are brought to length one first.
    """
    sums, counts, _ = class_sums_and_square(net, vector, x, y, unit=unit)
    return sums, counts


def class_sums_and_square(
    net: Net, vector: Vector, x: npt.NDArray[Any], y: npt.NDArray[np.int64], *, unit: bool = False
) -> tuple[Array, Counts, float]:
    """Return the result of `class_sums`, and Σ‖z‖² over all samples."""
    sums, square, start = np.zeros((net.classes, net.features)), 0.0, 0
    for block, _ in outputs(net, vector, x):
        features = block.astype(np.float64, order="C")  # networks give columns, sums want rows
        features = on_sphere(features) if unit else features
        sums += sums_by_label(features, y[start : start + len(features)], net.classes)
        square += float(np.square(features).sum())
        start += len(features)
    return sums, np.bincount(y, minlength=net.classes).astype(np.int32), square


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


def only_present(counts: npt.NDArray[Any], /, **tables: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """Return the rows (present, …) of classes that have samples, and these classes, as `ByClass` expects."""
    present = np.flatnonzero(counts)
    return {"classes": present.astype(np.int32), **{name: table[present] for name, table in tables.items()}}


def all_classes(rows: Mapping[str, npt.NDArray[Any]], name: str, classes: int) -> Array:
    """Return the table (c, …) from the rows that `only_present` kept; rows of the other classes are zeros."""
    table = np.zeros((classes, *rows[name].shape[1:]))
    table[rows["classes"]] = rows[name]
    return table


def pooled_means(told: Sequence[Mapping[str, npt.NDArray[Any]]], classes: int) -> dict[str, npt.NDArray[Any]]:
    """Return the means of all clients' features of each class that one of them has, from their sums and counts."""
    sums, counts = (np.sum([all_classes(own, part, classes) for own in told], axis=0) for part in ("sums", "counts"))
    return only_present(counts, means=class_means(sums, counts).astype(np.float32))


def aims(sums: Array, counts: npt.NDArray[Any], sent: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
    """Return class means (c, width): those that were sent, and the client's own mean for a class without one."""
    means = class_means(sums, counts).astype(np.float32)
    means[sent["classes"]] = sent["means"]
    return means


def away(now: Now, prototypes: Tensor) -> Tensor:
    """Return (clients, batch): the mean over the features z of (z - C_y)², for prototypes C (clients, c, width)."""
    wanted = prototypes.transpose(1, 2).gather(2, now.y.unsqueeze(1).expand(-1, now.net.features, -1))
    return (now.features - wanted).square().mean(1)


def filled(known: npt.NDArray[np.bool_], means: Vector) -> Vector:
    """Return the means over clients, then each client's means, completed by the first for classes that it lacks.

    `known` (p, c) says which classes each of p clients has, `means` has a row for each of these, client by client. The
    mean of a class is the plain one over the clients that have it. Returns (1 + p, c, width).
    """
    sets = np.zeros((*known.shape, means.shape[1]))
    sets[known] = means
    mean = class_means(sets.sum(axis=0), known.sum(axis=0))
    return np.concatenate([mean[None], np.where(known[..., None], sets, mean)]).astype(np.float32)

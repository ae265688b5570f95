"""Moments of what a layer sees of the data: its rows and their labels, accumulated batch by batch."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.layerwise.layers import rows_per_sample
from fedgram.layerwise.network import Network, slices
from fedgram.moments import packing
from fedgram.moments.accumulate import Indices, class_sums, not_finite
from fedgram.moments.kind import Kind
from fedgram.moments.moments import Moments


def layer_moments(network: Network, x: npt.NDArray[Any], y: Indices, *, batch: int) -> Moments:
    """Return the moments of the first untrained layer's rows, for samples x (n, …) with label indices y (n,).

    `batch` samples at a time run through the layers below (6), and not all their patches are there at once, so memory
    grows neither with the samples nor with the positions. Every position of an image has its label.
    """
    layer, shape = network.next_layer, network.next_shape
    d, positions = layer.fan_in(shape), rows_per_sample(layer, shape)
    network.checked(x)
    if len(x) * positions < d / 4:
        rows = layer.rows(network.forward(x))
        labels = np.repeat(y, positions)
        return Moments.of_indices(rows, labels, classes=network.classes, features=network.features)
    counts = np.bincount(y, minlength=len(network.classes))
    [present] = counts.nonzero()
    gram, sums, ranks = layer.gram(shape, min(len(x), batch)), np.zeros((len(present), d)), present.searchsorted(y)
    for part in slices(len(x), batch):
        inputs = network.forward(x[part])
        gram.add(inputs)
        sums += class_sums(layer.row_sums(inputs), ranks[part], len(present))
    packed = gram.packed()
    if not np.isfinite(packed[packing.diagonal(d)].sum()):
        raise not_finite(x.reshape(len(x), -1))
    return Moments(Kind(network.classes, d, network.features), sums=sums, counts=counts * positions, packed=packed)

"""The trace of the empirical Fisher matrix: how strongly a client's own samples pull at its weights."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedgram.nets.byhand import squared_norms
from fedgram.nets.layers import Vector, as_numbers
from fedgram.nets.sgd import CHUNK_BYTES
from fedgram.nets.vector import Net

if TYPE_CHECKING:
    from torch import Tensor


def fisher_trace(net: Net, vector: Vector, x: npt.NDArray[Any], y: npt.NDArray[np.int64]) -> float:
    """Return the mean over samples of ‖∇ log p(y|x)‖², the gradient by all that is trained; batch norm as in scoring.

    Every sample has a gradient of its own: the squared norm of a batch's mean gradient would depend on its size.
    """
    return sum(_norms(net, vector, as_numbers(x), y)) / len(y)


def _norms(net: Net, vector: Vector, x: npt.NDArray[np.float32], y: npt.NDArray[np.int64]) -> Iterator[float]:
    """Yield the sums of the samples' squared norms, block by block."""
    import torch

    buffers, weights = torch.from_numpy(np.array(vector)).unsqueeze(0).tensor_split([net.buffers], dim=1)
    # Where samples have their gradients side by side, no more of these than a processor's cache takes.
    size = max(1, CHUNK_BYTES // (4 * net.size)) if net.one_by_one else net.at_once
    for start in range(0, len(y), size):
        samples = net.prepare(torch.tensor(x[start : start + size]).unsqueeze(0))
        labels = torch.from_numpy(y[start : start + size])
        if net.one_by_one:
            yield _by_autograd(net, weights, buffers, samples, labels)
        else:
            yield float(squared_norms(net, weights, samples, labels.unsqueeze(0)).sum(dtype=torch.float64))


def _by_autograd(net: Net, weights: "Tensor", buffers: "Tensor", x: "Tensor", y: "Tensor") -> float:
    from torch.func import grad, vmap
    from torch.nn.functional import cross_entropy

    def loss(parts: list["Tensor"], sample: "Tensor", label: "Tensor") -> "Tensor":
        _, scores = net.forward(parts, buffers, sample.unsqueeze(0))
        return cross_entropy(scores, label.view(1, 1))

    def norm(pieces: list["Tensor"]) -> float:
        return sum(piece.double().square().sum().item() for piece in pieces)

    parts, gradient = net.parts(weights), grad(loss)
    try:
        return norm(vmap(gradient, (None, 0, 0))(parts, x, y))
    except RuntimeError:
        # Not every module can be vectorised: some write in place, some look at values.
        return sum(norm(gradient(parts, *sample)) for sample in zip(x, y, strict=True))

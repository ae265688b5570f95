"""The trace of the empirical Fisher matrix: how strongly a client's own samples pull at its weights."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedgram.core.threads import torch_threads
from fedgram.nets.layers import BatchNorm, Convolution, Layer, MaxPool, PooledConvolution, Vector, as_numbers
from fedgram.nets.network import BuiltIn
from fedgram.nets.sgd import CHUNK_BYTES
from fedgram.nets.vector import Net, split

if TYPE_CHECKING:
    from torch import Tensor

AT_ONCE = 64  # samples of a network that fedgram brings along


def fisher_trace(net: Net, vector: Vector, x: npt.NDArray[Any], y: npt.NDArray[np.int64]) -> float:
    """Return the mean over samples of ‖∇ log p(y|x)‖², the gradient by all that is trained; batch norm as in scoring.

    Every sample has a gradient of its own: the squared norm of a batch's mean gradient would depend on its size. For
    networks without memory.
    """
    import torch

    numbers = torch.from_numpy(np.array(vector)).unsqueeze(0)
    buffers, weights = numbers.tensor_split([net.buffers], dim=1)
    samples, total = as_numbers(x), 0.0
    # Where samples have their gradients side by side, no more of these than a processor's cache takes.
    size = AT_ONCE if isinstance(net, BuiltIn) else max(1, CHUNK_BYTES // (4 * net.size))
    for start in range(0, len(y), size):
        block = net.prepare(torch.tensor(samples[start : start + size]).unsqueeze(0))
        labels = torch.from_numpy(y[start : start + size])
        with torch_threads(len(labels) * net.multiplications, pieces=len(net.layer_slices)):
            if isinstance(net, BuiltIn):
                total += sum(_by_layer(net, weights, buffers, block, labels))
            else:
                total += _by_sample(net, weights, buffers, block, labels)
    return total / len(y)


def _by_layer(net: BuiltIn, weights: "Tensor", buffers: "Tensor", x: "Tensor", y: "Tensor") -> Iterator[float]:
    """Yield each layer's part, from what it sees and the gradient by what it says: one backward pass for all."""
    import torch
    from torch.nn.functional import cross_entropy

    trained, kept = iter(net.parts(weights)), iter(split(buffers, net.buffer_shapes))
    passed: list[tuple[Layer, Tensor, Tensor, list[Tensor]]] = []
    for layer in _unpooled(net.layers):
        own, means = [next(trained) for _ in layer.parameters], [next(kept) for _ in layer.buffers]
        said = layer.apply(x, own, means, False)
        if own:
            passed.append((layer, x, said.requires_grad_(), means))
            said = said.clone()  # the next layer may change it in place
        x = said
    loss = cross_entropy(x, y.unsqueeze(0), reduction="sum")
    errors = torch.autograd.grad(loss, [said for _, _, said, _ in passed])
    for (layer, seen, _, means), error in zip(passed, errors, strict=True):
        yield float(_norms(layer, seen.detach(), error, means).sum(dtype=torch.float64))


def _unpooled(layers: tuple[Layer, ...]) -> Iterator[Layer]:
    """Yield the layers with convolutions and their pooling apart: the same values."""
    for layer in layers:
        if isinstance(layer, PooledConvolution):
            yield from (Convolution(layer.channels, layer.width, layer.kernel), MaxPool())
        else:
            yield layer


def _norms(layer: Layer, seen: "Tensor", error: "Tensor", means: list["Tensor"]) -> "Tensor":
    """Return ‖∇‖² of each sample by a layer's parameters, from what it saw and the gradient by what it said."""
    from torch.nn.functional import batch_norm, unfold

    if isinstance(layer, Convolution):
        patches, flat = unfold(seen, layer.kernel), error.flatten(2)
        return flat.bmm(patches.transpose(1, 2)).square().sum((1, 2)) + flat.sum(2).square().sum(1)
    if isinstance(layer, BatchNorm):
        normal = batch_norm(seen, means[0][0], means[1][0])
        return (error * normal).sum((2, 3)).square().sum(1) + error.sum((2, 3)).square().sum(1)
    # A dense layer's gradient is error · inputᵀ, whose norm is a product of two.
    return error.square().sum(1) * (seen.square().sum(1) + 1)


def _by_sample(net: Net, weights: "Tensor", buffers: "Tensor", x: "Tensor", y: "Tensor") -> float:
    """Return what autograd says of each sample: right for any module."""
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

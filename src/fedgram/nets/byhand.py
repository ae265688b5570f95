"""The gradient of dense layers, written out.

Autograd gives the same; but for products as small as these its bookkeeping takes several times as long as they do.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fedgram.nets.vector import Net

if TYPE_CHECKING:
    from torch import Tensor


def gradient(
    net: Net, weights: "Tensor", x: "Tensor", y: "Tensor", share: "Tensor"
) -> tuple["Tensor", "Tensor", "Tensor"]:
    """Return the gradient (clients, trained) of each client's mean cross entropy, and the features and scores."""
    import torch

    parts, gradients = net.parts(weights), torch.empty_like(weights)
    outs = net.parts(gradients)
    memory = parts.pop() if net.memory else None
    inputs, features, scores = _forward(parts, memory, x)
    for place, error in _errors(parts, [*inputs[:-1], features], scores, y, share):
        torch.bmm(error, inputs[place].transpose(1, 2), out=outs[2 * place])
        torch.sum(error, 2, out=outs[2 * place + 1])
        if memory is not None and place == len(inputs) - 1:
            torch.sum(parts[-2].transpose(1, 2).bmm(error), 2, out=outs[-1])
    return gradients, features, scores


def squared_norms(net: Net, weights: "Tensor", x: "Tensor", y: "Tensor") -> "Tensor":
    """Return ‖∇‖² (clients, samples) of each sample's own cross entropy; for networks without memory.

    The gradient of one sample by a dense layer's matrix is error · inputᵀ, whose norm is a product of two.
    """
    import torch

    parts = net.parts(weights)
    inputs, _, scores = _forward(parts, None, x)
    errors = _errors(parts, inputs, scores, y, torch.ones_like(y, dtype=weights.dtype))
    norms = [error.square().sum(1) * (inputs[place].square().sum(1) + 1) for place, error in errors]
    return torch.stack(norms).sum(0)


def _forward(
    parts: Sequence["Tensor"], memory: "Tensor | None", x: "Tensor"
) -> tuple[list["Tensor"], "Tensor", "Tensor"]:
    """Return what each layer sees, the features before any memory, and the scores."""
    inputs = [x]
    for weight, bias in zip(parts[:-2:2], parts[1:-2:2], strict=True):
        inputs.append(bias.unsqueeze(2).baddbmm(weight, inputs[-1]).relu_())
    features = inputs[-1]
    if memory is not None:
        inputs[-1] = features + memory.unsqueeze(2)
    return inputs, features, parts[-1].unsqueeze(2).baddbmm(parts[-2], inputs[-1])


def _errors(
    parts: Sequence["Tensor"], below: Sequence["Tensor"], scores: "Tensor", y: "Tensor", share: "Tensor"
) -> Iterator[tuple[int, "Tensor"]]:
    """Yield the loss's gradient by each layer's output, from the head down; `below` is what ReLU put under it."""
    one = scores.new_full((1, 1, 1), -1.0).expand(len(y), 1, y.shape[1])
    error = scores.softmax(1).scatter_add_(1, y.unsqueeze(1), one).mul_(share.unsqueeze(1))
    for place in reversed(range(len(below))):
        yield place, error
        if place:
            error = parts[2 * place].transpose(1, 2).bmm(error).mul_(below[place] > 0)

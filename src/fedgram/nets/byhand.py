"""The gradient of dense layers, written out.

Autograd gives the same; but for products as small as these its bookkeeping takes several times as long as they do.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedgram.nets.vector import Net

if TYPE_CHECKING:
    from torch import Tensor


def gradient(
    net: Net,
    weights: "Tensor",
    x: "Tensor",
    y: "Tensor",
    share: "Tensor",
    more: Callable[["Tensor", "Tensor"], "Tensor"] | None = None,
) -> tuple["Tensor", "Tensor", "Tensor"]:
    """Return the gradient (clients, trained) of each client's mean cross entropy, and the features and scores.

    `more` is given features and scores, and returns the gradient of further terms by the scores.
    """
    import torch

    parts, gradients = net.parts(weights), torch.empty_like(weights)
    outs = net.parts(gradients)
    memory = parts.pop() if net.memory else None
    layers = list(zip(parts[::2], parts[1::2], outs[::2], outs[1::2], strict=False))
    seen = [x]
    for weight, bias, *_ in layers[:-1]:
        seen.append(bias.unsqueeze(2).baddbmm(weight, seen[-1]).relu_())
    features = seen[-1]
    if memory is not None:
        seen[-1] = features + memory.unsqueeze(2)
    head, constants, *_ = layers[-1]
    scores = constants.unsqueeze(2).baddbmm(head, seen[-1])
    one = scores.new_full((1, 1, 1), -1.0).expand(len(y), 1, y.shape[1])
    error = scores.softmax(1).scatter_add_(1, y.unsqueeze(1), one).mul_(share.unsqueeze(1))
    if more is not None:
        error += more(features, scores)
    for place in reversed(range(len(layers))):
        weight, _, weight_gradient, bias_gradient = layers[place]
        torch.bmm(error, seen[place].transpose(1, 2), out=weight_gradient)
        torch.sum(error, 2, out=bias_gradient)
        if memory is not None and place == len(layers) - 1:
            torch.sum(weight.transpose(1, 2).bmm(error), 2, out=outs[-1])
        if place:
            below = features if place == len(layers) - 1 else seen[place]
            error = weight.transpose(1, 2).bmm(error).mul_(below > 0)
    return gradients, features, scores

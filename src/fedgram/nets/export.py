"""The networks that fedgram brings along as ordinary torch modules, which predict the same without fedgram."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from fedgram.core.extras import require
from fedgram.nets.layers import BatchNorm, Convolution, Dense, Flatten, MaxPool, PooledConvolution, Relu, Vector

if TYPE_CHECKING:
    from torch import nn

    from fedgram.nets.network import BuiltIn


def sequential(net: "BuiltIn", vector: Vector) -> "nn.Sequential":
    """Return the layers with the numbers of a vector; a memory goes into the head's constants."""
    torch = require("torch", "nets", "a network as a torch module")
    module = torch.nn.Sequential(*_modules(net))
    numbers = torch.from_numpy(np.array(vector))
    torch.nn.utils.vector_to_parameters(numbers[net.buffers : net.own.start], module.parameters())
    means = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    with torch.no_grad():
        for buffer, values in zip(means, numbers[: net.buffers].split([len(b) for b in means]), strict=True):
            buffer.copy_(values)
        if net.memory:
            module[-1].bias += module[-1].weight @ numbers[net.own]
        if not net.one_by_one and len(net.shape) > 1:
            # Images come as planes there; ours become rows with the channels last.
            first = next(layer for layer in module if isinstance(layer, torch.nn.Linear)).weight
            height, width, *channels = net.shape
            planes = first.reshape(len(first), height, width, *(channels or [1])).permute(0, 3, 1, 2)
            first.copy_(planes.reshape(first.shape).clone())
    return module.eval()  # type: ignore[no-any-return]


def _modules(net: "BuiltIn") -> Iterator["nn.Module"]:
    """Yield a module for each layer, and before them what `prepare` does."""
    from torch import nn

    if net.one_by_one:
        yield centered()
    elif len(net.shape) > 1:
        yield nn.Flatten()
    for layer in net.layers:
        match layer:
            case Convolution(channels, width, kernel):
                yield nn.Conv2d(channels, width, kernel)
                if isinstance(layer, PooledConvolution):
                    yield nn.MaxPool2d(2)
            case BatchNorm(channels):
                yield nn.BatchNorm2d(channels)
            case Dense(fan_in, width):
                yield nn.Linear(fan_in, width)
            case MaxPool():
                yield nn.MaxPool2d(2)
            case Relu():
                yield nn.ReLU()
            case Flatten():
                yield nn.Flatten()


def centered() -> "nn.Module":
    """Return a layer that takes images from 0 … 1 to -1 … 1."""
    import torch
    from torch import nn

    class Centered(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images * 2 - 1

    return Centered()

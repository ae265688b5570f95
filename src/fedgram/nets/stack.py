"""Networks written as a line of layers, the one that layer-wise methods take, as torch modules for gradient methods.

>>> is_stack("conv:32:5:leaky_relu pool:2 flatten"), is_stack("dcnn"), is_stack("mlp:128:64")
(True, True, False)
"""

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from fedgram.features.projection import TORCH_ACTIVATIONS
from fedgram.layerwise.export import normalization
from fedgram.layerwise.layers import AveragePooling, Convolution, Dense, Flatten, Normalization
from fedgram.layerwise.network import Network
from fedgram.layerwise.stack import PRESETS
from fedgram.nets.export import centered
from fedgram.nets.layers import Shape

if TYPE_CHECKING:
    from torch import nn

LAYERS = ("normalize", "conv", "pool", "flatten", "dense")


def is_stack(network: str) -> bool:
    """Say whether a network's name is a line of layers, or a preset that stands for one."""
    first = network.split(maxsplit=1)[0] if network.strip() else ""
    return first in PRESETS or first.partition(":")[0] in LAYERS


def check_stack(network: str, shape: Shape, classes: int) -> None:
    """Refuse layers that do not follow upon each other for samples (height, width, channels) or (d,)."""
    _ = Network(network, shape, tuple(range(classes)), seed=0)


def stack_module(network: str, shape: Shape, classes: int) -> "nn.Sequential":
    """Return a new module for images (channels, height, width) or rows (d,); layers have biases, as usual in torch.

    Images from 0 … 1 are taken to -1 … 1 first, unless the line begins with a normalisation of its own.
    """
    from torch import nn

    return nn.Sequential(*_modules(network, shape, classes))


def _modules(network: str, shape: Shape, classes: int) -> Iterator["nn.Module"]:
    from torch import nn

    stack = Network(network, (*shape[1:], shape[0]) if len(shape) == 3 else shape, tuple(range(classes)), seed=0)
    if len(shape) == 3 and not isinstance(stack.layers[0], Normalization):
        yield centered()
    for layer, before in zip(stack.layers, stack.shapes, strict=False):
        match layer:
            case Normalization():
                yield normalization(layer, before)
            case Convolution():
                yield nn.Conv2d(before[-1], layer.width, layer.size)
            case Dense():
                yield nn.Linear(prod(before), layer.width)
            case AveragePooling():
                yield nn.AvgPool2d(layer.size)
            case Flatten():
                yield nn.Flatten()
        if (activation := getattr(layer, "activation", "identity")) != "identity":
            yield getattr(nn, TORCH_ACTIVATIONS[activation])()

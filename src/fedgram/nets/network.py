"""The built-in networks, made of the few layers of `layers`, and `net_for`, which finds any network by name."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from itertools import accumulate, pairwise
from math import prod

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import InvalidParameter
from fedgram.core.extras import require
from fedgram.layerwise.layer_types import read_stack
from fedgram.layerwise.layered_network import Network
from fedgram.nets.factories import BUILT_IN, is_import, is_stack
from fedgram.nets.layers import (
    BatchNorm,
    Convolution,
    Dense,
    Flatten,
    Layer,
    MaxPool,
    Module,
    PooledConvolution,
    Relu,
    Shape,
    Tensor,
    Vector,
    centered,
)
from fedgram.nets.module import ModuleNet
from fedgram.nets.vector import Net, channels_first, split

NETWORKS = (
    "auto, linear, mlp, mlp:WIDTH:…, lenet5, cnn, layers such as conv:32:5 pool:2 flatten, or package.module:factory"
)
MLP = (128, 64)


def read_network(name: str) -> tuple[str, tuple[int, ...]]:
    """Return a network's kind and the widths of its hidden layers; nothing is imported.

    >>> read_network("mlp:200:100"), read_network("lenet5"), read_network("package.module:factory")
    (('mlp', (200, 100)), ('lenet5', ()), ('package.module:factory', ()))
    """
    if is_import(name):
        return name, ()
    if is_stack(name):
        read_stack(name)
        return name, ()
    kind, *widths = name.split(":")
    if kind not in BUILT_IN or (widths and kind != "mlp"):
        raise InvalidParameter(f"unknown network {name!r}: known are {NETWORKS}")
    if not all(width.isdecimal() and int(width) > 0 for width in widths):
        raise InvalidParameter(f"widths of an mlp are whole numbers ≥ 1, such as mlp:128:64; got {name!r}")
    return kind, tuple(map(int, widths))


@dataclass(frozen=True)
class BuiltIn(Net):
    """A network that fedgram brings along.

    "linear" is a single layer, "mlp" a perceptron with ReLU, "lenet5" LeNet-5 as in FedAPA, "cnn" two convolutions with
    batch normalisation. "auto" is lenet5 for images and linear for rows of features.

    >>> net = BuiltIn("lenet5", (32, 32, 3), 10)
    >>> net.size, net.head, net.features
    (62006, slice(61156, 62006, None), 84)
    """

    def __post_init__(self) -> None:
        """Refuse images that are too small for the network."""
        if any(size < 1 for shape in self._shapes for size in shape):
            raise InvalidParameter(f"samples of shape {self.shape} are too small for {self.network!r}")

    @cached_property
    def kind(self) -> str:
        """The kind of network, with "auto" replaced by what it stands for."""
        kind, _ = read_network(self.network)
        kind = kind if kind != "auto" else "lenet5" if len(self.shape) > 1 else "linear"
        if kind in ("lenet5", "cnn") and len(self.shape) not in (2, 3):
            raise InvalidParameter(
                f"{kind} takes images, these samples have shape {self.shape}: use linear or mlp, or the backbone images"
            )
        return kind

    @cached_property
    def one_by_one(self) -> bool:
        """Whether clients train one after another, because stacked convolutions were measured to be slower."""
        return self.kind in ("lenet5", "cnn")

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers in order; the last is the head."""
        if not self.one_by_one:
            widths = (read_network(self.network)[1] or MLP) if self.kind == "mlp" else ()
            return _dense(prod(self.shape), *widths, self.classes)
        first = channels_first(self.shape)
        channels = first[0]
        # ReLU after pooling gives the same values at a quarter of the cost.
        if self.kind == "lenet5":
            maps: list[Layer] = [PooledConvolution(channels, 6, 5), Relu()]
            maps += [PooledConvolution(6, 16, 5), Relu(), Flatten()]
            widths = (120, 84)
        else:
            maps = [Convolution(channels, 32, 3), BatchNorm(32), MaxPool(), Relu()]
            maps += [Convolution(32, 64, 3), BatchNorm(64), MaxPool(), Relu(), Flatten()]
            widths = (128,)
        behind = reduce(lambda shape, layer: layer.shape_out(shape), maps, first)
        return (*maps, *_dense(prod(behind), *widths, self.classes))

    @cached_property
    def _shapes(self) -> list[Shape]:
        first = channels_first(self.shape) if self.one_by_one else (prod(self.shape),)
        return list(accumulate(self.layers, lambda shape, layer: layer.shape_out(shape), initial=first))

    @property
    def features(self) -> int:
        """The number of features, which are the head's inputs."""
        head = self.layers[-1]
        assert isinstance(head, Dense)
        return head.fan_in

    @cached_property
    def buffer_shapes(self) -> list[Shape]:
        """Shapes of the running means and variances of batch normalisation."""
        return [shape for layer in self.layers for shape in layer.buffers]

    @cached_property
    def layer_shapes(self) -> list[tuple[Shape, ...]]:
        """Shapes of each layer's parameters."""
        return [layer.parameters for layer in self.layers]

    @cached_property
    def norms(self) -> npt.NDArray[np.bool_]:
        """The mask of the vector's numbers that belong to batch normalisation; other layers have no buffers."""
        are = [isinstance(layer, BatchNorm) for layer in self.layers if layer.parameters]
        lengths = [part.stop - part.start for part in self.layer_slices]
        return np.repeat([True, *are, False], [self.buffers, *lengths, self.size - self.own.start])

    @cached_property
    def multiplications(self) -> int:
        """The number of multiplications for scoring a sample."""
        return sum(layer.multiplications(shape) for layer, shape in zip(self.layers, self._shapes, strict=False))

    def initial(self, rng: np.random.Generator) -> Vector:
        """Return a vector of initial numbers."""
        buffers = [
            np.repeat(np.array([0, 1], dtype=np.float32), [prod(s) for s in layer.buffers])  # means, variances
            for layer in self.layers
            if layer.buffers
        ]
        memory = np.zeros(self.features if self.memory else 0, dtype=np.float32)
        return np.concatenate([*buffers, *(layer.initial(rng) for layer in self.layers), memory])

    def prepare(self, x: Tensor) -> Tensor:
        """Return samples (clients, n, …) in the form of the first layer's inputs; images are changed in place."""
        if not self.one_by_one:
            return x.flatten(2).transpose(1, 2)
        images = x[0] if len(self.shape) == 3 else x[0].unsqueeze(-1)
        return images.mul_(2).sub_(1).permute(0, 3, 1, 2)  # from 0 … 1 to -1 … 1

    def forward(
        self, parts: Sequence[Tensor], buffers: Tensor, x: Tensor, *, training: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return features (clients, width, n) before any memory, and scores (clients, classes, n), of prepared samples.

        `parts` are views of the trained part of the vectors, `buffers` (clients, …) is the part before it.
        """
        trained = iter(parts)
        kept = iter(split(buffers, self.buffer_shapes))
        for layer in self.layers[:-1]:
            own = [next(trained) for _ in layer.parameters]
            x = layer.apply(x, own, [next(kept) for _ in layer.buffers], training)
        head = [next(trained), next(trained)]
        seen = x + next(trained).unsqueeze(2) if self.memory else x
        return x, self.layers[-1].apply(seen, head, (), training)

    def module(self, vector: Vector) -> Module:
        """Return the layers as a `torch.nn.Sequential` with these numbers; a memory goes into the head's constants."""
        torch = require("torch", "nets", "a network as a torch module")
        module = torch.nn.Sequential(*_modules(self))
        numbers = torch.from_numpy(np.array(vector))
        torch.nn.utils.vector_to_parameters(numbers[self.buffers : self.own.start], module.parameters())
        means = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
        with torch.no_grad():
            for buffer, values in zip(means, numbers[: self.buffers].split([len(b) for b in means]), strict=True):
                buffer.copy_(values)
            if self.memory:
                module[-1].bias += module[-1].weight @ numbers[self.own]
            if not self.one_by_one and len(self.shape) > 1:
                # Torch flattens images channels first, fedgram channels last.
                first = next(layer for layer in module if isinstance(layer, torch.nn.Linear)).weight
                height, width, *channels = self.shape
                planes = first.reshape(len(first), height, width, *(channels or [1])).permute(0, 3, 1, 2)
                first.copy_(planes.reshape(first.shape).clone())
        return module.eval()  # type: ignore[no-any-return]


def net_for(network: str, shape: Shape, classes: int, *, memory: bool = False) -> Net:
    """Return a network by name; it is built once for all clients and rounds."""
    return (_module_net if is_import(network) or is_stack(network) else _built_in)(network, shape, classes, memory)


@lru_cache(maxsize=64)
def _built_in(network: str, shape: Shape, classes: int, memory: bool) -> Net:
    return BuiltIn(network, shape, classes, memory)


@lru_cache(maxsize=8)  # each holds a module with its numbers
def _module_net(network: str, shape: Shape, classes: int, memory: bool) -> Net:
    if is_stack(network):
        _ = Network(network, shape, tuple(range(classes)), seed=0)  # raises for layers that cannot follow each other
    return ModuleNet(network, shape, classes, memory)


def _dense(*widths: int) -> tuple[Layer, ...]:
    layers: list[Layer] = []
    for fan_in, width in pairwise(widths):
        layers += [Dense(fan_in, width), Relu()]
    return tuple(layers[:-1])  # no ReLU behind the scores


def _modules(net: BuiltIn) -> Iterator[Module]:
    """Yield a module for the scaling of `prepare`, if any, and one for each layer."""
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

"""A network whose parameters are one vector: [buffers | base | head | memory].

Methods mix, compare and pull parameters as whole vectors, as their papers write them; a message is such a vector, or
its shared part. The base is all but the last layer, which is the head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from fedgram.core.errors import InvalidParameter
from fedgram.nets.layers import (
    BatchNorm,
    Convolution,
    Dense,
    Flatten,
    Layer,
    MaxPool,
    PooledConvolution,
    Relu,
    Shape,
    Vector,
)

if TYPE_CHECKING:
    from torch import Tensor

NETWORKS = "auto, linear, mlp, mlp:WIDTH:…, lenet5, cnn"
MLP = (128, 64)


def read_network(name: str) -> tuple[str, tuple[int, ...]]:
    """Return a network's kind and the widths of its hidden layers.

    >>> read_network("mlp:200:100"), read_network("lenet5")
    (('mlp', (200, 100)), ('lenet5', ()))
    """
    kind, *widths = name.split(":")
    if kind not in ("auto", "linear", "mlp", "lenet5", "cnn") or (widths and kind != "mlp"):
        raise InvalidParameter(f"unknown network {name!r}: known are {NETWORKS}")
    if not all(width.isdecimal() and int(width) > 0 for width in widths):
        raise InvalidParameter(f"widths of an mlp are whole numbers ≥ 1, such as mlp:128:64; got {name!r}")
    return kind, tuple(map(int, widths))


@dataclass(frozen=True)
class Net:
    """A network for samples of some shape. It holds no numbers: they come as vectors, one for each client.

    "linear" is a single layer, "mlp" a perceptron with ReLU, "lenet5" LeNet-5 as in FedAPA, "cnn" two convolutions with
    batch normalisation. "auto" is lenet5 for images and linear for rows of features. With `memory` the vector ends
    with numbers that are added to the features before the head (FedDBE's personal bias).

    >>> net = Net("lenet5", (32, 32, 3), 10)
    >>> net.size, net.head, net.features
    (62006, slice(61156, 62006, None), 84)
    """

    network: str
    shape: Shape  # of a sample
    classes: int
    memory: bool = False

    def __post_init__(self) -> None:
        """Refuse images that are too small for the network."""
        if any(size < 1 for shape in self._shapes for size in shape):
            raise InvalidParameter(f"samples of shape {self.shape} are too small for {self.network!r}")

    @cached_property
    def kind(self) -> str:
        """What "auto" stands for here."""
        kind, _ = read_network(self.network)
        kind = kind if kind != "auto" else "lenet5" if len(self.shape) > 1 else "linear"
        if kind in ("lenet5", "cnn") and len(self.shape) not in (2, 3):
            raise InvalidParameter(
                f"{kind} takes images, these samples have shape {self.shape}: use linear or mlp, or the backbone images"
            )
        return kind

    @cached_property
    def one_by_one(self) -> bool:
        """Whether clients train one after another: stacked convolutions were seen to be slower."""
        return self.kind in ("lenet5", "cnn")

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers in order; the last is the head."""
        if not self.one_by_one:
            widths = (read_network(self.network)[1] or MLP) if self.kind == "mlp" else ()
            return _dense(prod(self.shape), *widths, self.classes)
        first = _channels_first(self.shape)
        channels = first[0]
        # ReLU comes behind the pooling: the same values, at a quarter of the price.
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
        first = _channels_first(self.shape) if self.one_by_one else (prod(self.shape),)
        return list(accumulate(self.layers, lambda shape, layer: layer.shape_out(shape), initial=first))

    @property
    def features(self) -> int:
        """How many features the head sees."""
        head = self.layers[-1]
        assert isinstance(head, Dense)
        return head.fan_in

    @cached_property
    def buffers(self) -> int:
        """How many numbers at the vector's beginning are not trained by gradients."""
        return sum(prod(shape) for layer in self.layers for shape in layer.buffers)

    @cached_property
    def _lengths(self) -> list[int]:
        """How many trained numbers each layer has, and the memory."""
        lengths = [sum(map(prod, layer.parameters)) for layer in self.layers]
        return [*lengths, self.features if self.memory else 0]

    @property
    def size(self) -> int:
        """How many numbers the vector has."""
        return self.buffers + sum(self._lengths)

    @property
    def base(self) -> slice:
        """Where the vector holds buffers and all layers but the last."""
        return slice(0, self.head.start)

    @property
    def head(self) -> slice:
        """Where the vector holds the last layer."""
        return self.last(1)

    @property
    def own(self) -> slice:
        """Where the vector holds the memory."""
        return slice(self.size - self._lengths[-1], self.size)

    def last(self, layers: int) -> slice:
        """Return where the vector holds the last so many layers with parameters."""
        lengths = [length for length in self._lengths[:-1] if length]
        if not 1 <= layers <= len(lengths):
            raise InvalidParameter(f"{self.network!r} has {len(lengths)} layers with parameters, asked for {layers}")
        return slice(self.own.start - sum(lengths[-layers:]), self.own.start)

    def initial(self, rng: np.random.Generator) -> Vector:
        """Return a vector to begin with."""
        buffers = [
            np.repeat(np.array([0, 1], dtype=np.float32), [prod(s) for s in layer.buffers])  # means, variances
            for layer in self.layers
            if layer.buffers
        ]
        memory = np.zeros(self._lengths[-1], dtype=np.float32)
        return np.concatenate([*buffers, *(layer.initial(rng) for layer in self.layers), memory])

    def prepare(self, x: "Tensor") -> "Tensor":
        """Return samples (clients, n, …) as the first layer sees them; images are changed in place."""
        if not self.one_by_one:
            return x.flatten(2).transpose(1, 2)
        images = x[0] if len(self.shape) == 3 else x[0].unsqueeze(-1)
        return images.mul_(2).sub_(1).permute(0, 3, 1, 2)  # from 0 … 1 to -1 … 1

    def parts(self, weights: "Tensor") -> list["Tensor"]:
        """Return views of the trained numbers (clients, …): each layer's parameters in turn, and the memory."""
        return _split(weights, [s for layer in self.layers for s in layer.parameters], self._lengths[-1])

    def forward(
        self, parts: Sequence["Tensor"], buffers: "Tensor", x: "Tensor", *, training: bool = False
    ) -> tuple["Tensor", "Tensor"]:
        """Return features (clients, width, n) before any memory, and scores (clients, classes, n), of prepared samples.

        `parts` are views of the trained part of the vectors, `buffers` (clients, …) is the part before it.
        """
        trained = iter(parts)
        kept = iter(_split(buffers, [s for layer in self.layers for s in layer.buffers]))
        for layer in self.layers[:-1]:
            own = [next(trained) for _ in layer.parameters]
            x = layer.apply(x, own, [next(kept) for _ in layer.buffers], training)
        head = [next(trained), next(trained)]
        seen = x + next(trained).unsqueeze(2) if self.memory else x
        return x, self.layers[-1].apply(seen, head, (), training)


@lru_cache(maxsize=64)
def net_for(network: str, shape: Shape, classes: int, *, memory: bool = False) -> Net:
    """Return a network whose layers are worked out once, however many clients and rounds ask for it."""
    return Net(network, shape, classes, memory)


def _split(rows: "Tensor", shapes: Sequence[Shape], rest: int = 0) -> list["Tensor"]:
    """Return views of the rows with these shapes for each client."""
    if not shapes:
        return []
    lengths = [*map(prod, shapes), *([rest] if rest else [])]
    pieces = rows.split_with_sizes(lengths, dim=1)
    views = [piece.view(len(rows), *shape) for piece, shape in zip(pieces, shapes, strict=False)]
    return [*views, pieces[-1]] if rest else views


def _dense(*widths: int) -> tuple[Layer, ...]:
    layers: list[Layer] = []
    for fan_in, width in pairwise(widths):
        layers += [Dense(fan_in, width), Relu()]
    return tuple(layers[:-1])  # no ReLU behind the scores


def _channels_first(shape: Shape) -> Shape:
    return (shape[2] if len(shape) == 3 else 1, *shape[:2])

"""A network of layers solved in closed form: half-trained while it grows, a model when it is whole."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.columns import Columns
from fedgram.core.errors import InvalidParameter, Mismatch
from fedgram.core.labels import Classes
from fedgram.core.randomness import generator
from fedgram.features.projection import ACTIVATIONS
from fedgram.layerwise.layers import Convolution, Dense, Layer, Learning, Shape
from fedgram.layerwise.stack import read_stack
from fedgram.models import BlockModel, Temperature

if TYPE_CHECKING:
    import torch

SAMPLES_AT_ONCE = 256
# So few samples go through the layers at a time that what one layer writes is in the cache for the next.
FORWARD_BYTES = 2**24


@lru_cache(maxsize=32)
def label_encoding(seed: int, layer: int, classes: int, width: int) -> Array:
    """Return Q_l (classes, width), standard normal, from the shared seed."""
    encoding: Array = generator(seed, "label encoding", layer).standard_normal((classes, width))
    encoding.flags.writeable = False
    return encoding


@wire.message("layerwise-network", version=1)
@dataclass(frozen=True, eq=False)
class Network(BlockModel):
    """Layers whose weights are W_l = G_l Q_l: the solution G_l (d, c) for the labels, then their encoding Q_l (c, d_l).

    Since pseudo labels are Z̄ = YQ_l, their least-squares solution is that of Y times Q_l. So a layer of any width is
    described by c columns and the seed of Q_l; that is what is sent, and how scores are computed. `weights` gives the
    ordinary matrices. `solutions` has one G_l for each layer trained so far.

    >>> network = Network("dnn", (8,), ("cat", "dog"), seed=0)
    >>> network.depth, network.is_whole, network.extend(np.ones((8, 2))).weights[0].shape
    (3, False, (8, 128))
    """

    stack: str
    shape: Shape  # of a sample
    classes: Classes
    seed: int
    solutions: Annotated[tuple[Array, ...], wire.Shape(None, "c")] = ()
    features: str = ""
    columns: Columns = ()
    temperature: Temperature = None  # once it is whole

    def __post_init__(self) -> None:
        """Refuse layers that do not follow upon each other, and solutions that do not fit them."""
        wanted = [(layer.fan_in(shape), len(self.classes)) for _, layer, shape in self._learning]
        got = [np.shape(solution) for solution in self.solutions]
        if got != wanted[: len(got)]:
            raise Mismatch(f"solutions of shapes {got} do not fit the layers of {self.stack!r}, which need {wanted}")

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers in order, the output layer included."""
        return *read_stack(self.stack), Dense(len(self.classes), "identity")

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The shape of a sample before each layer, and behind the last."""
        first = (*self.shape, 1) if len(self.shape) == 2 else self.shape  # grey images
        return tuple(accumulate(self.layers, lambda shape, layer: layer.shape_out(shape), initial=first))

    @cached_property
    def _learning(self) -> list[tuple[int, Learning, Shape]]:
        """Each layer that learns: its place, itself and the shape of its input."""
        return [
            (place, layer, shape)
            for place, (layer, shape) in enumerate(zip(self.layers, self.shapes, strict=False))
            if isinstance(layer, Dense | Convolution)
        ]

    def learning(self, number: int) -> tuple[Learning, Shape]:
        """Return a layer that learns, and the shape of its input; numbers begin at 0."""
        _, layer, shape = self._learning[number]
        return layer, shape

    @property
    def depth(self) -> int:
        """L: how many layers learn."""
        return len(self._learning)

    @property
    def is_whole(self) -> bool:
        """Whether all layers are trained."""
        return len(self.solutions) == self.depth

    @property
    def next_layer(self) -> Learning:
        """The first layer that is not trained yet."""
        return self._learning[len(self.solutions)][1]

    @property
    def next_shape(self) -> Shape:
        """The shape of its input."""
        return self._learning[len(self.solutions)][2]

    @cached_property
    def encodings(self) -> tuple[Array | None, ...]:
        """Q_l (c, d_l) for each layer that learns; None for the output layer, whose labels are not encoded."""
        hidden = enumerate(self._learning[:-1], start=1)
        classes = len(self.classes)
        return *(label_encoding(self.seed, number, classes, layer.width) for number, (_, layer, _) in hidden), None

    @property
    def weights(self) -> list[Array]:
        """The weights W_l (d, d_l) of the layers trained so far."""
        pairs = zip(self.solutions, self.encodings, strict=False)
        return [solution if encoding is None else solution @ encoding for solution, encoding in pairs]

    def extend(self, solution: Array) -> Self:
        """Return the network with one more layer trained."""
        if self.is_whole:
            raise InvalidParameter(f"all {self.depth} layers are trained already")
        return replace(self, solutions=(*self.solutions, solution))

    def truncate(self, depth: int) -> Self:
        """Return the network with only its first layers trained."""
        return replace(self, solutions=self.solutions[:depth])

    def forward(self, x: npt.NDArray[Any]) -> Array:
        """Return what the first layer not yet trained gets to see of samples x, or the scores if all are."""
        place = self._learning[len(self.solutions)][0] if not self.is_whole else len(self.layers)
        largest = max(prod(shape) for shape in self.shapes[: place + 1])
        at_once = max(1, FORWARD_BYTES // (8 * largest))
        if len(x) <= at_once:
            return self._through(x, place)
        out = np.empty((len(x), *self.shapes[place]))
        for part in slices(len(x), at_once):
            out[part] = self._through(x[part], place)
        return out

    def _through(self, x: npt.NDArray[Any], place: int) -> Array:
        """Return samples behind the first `place` layers."""
        out = np.ascontiguousarray(x, dtype=np.float64).reshape(len(x), *self.shapes[0])
        trained = zip(self.solutions, self.encodings, strict=False)
        for layer in self.layers[:place]:
            if isinstance(layer, Dense | Convolution):
                solution, encoding = next(trained)
                out = _activated(layer, out, solution, encoding)
            else:
                out = layer.apply(out)
        return out

    @property
    def at_once(self) -> int:
        """How many samples make a block."""
        return SAMPLES_AT_ONCE

    @property
    def sample_shape(self) -> Shape:
        """The shape of one sample."""
        return self.shape

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Say whether a sample may have this shape: grey images come with their one channel or without."""
        return shape in (self.shape, self.shapes[0])

    def scores(self, x: Any) -> Array:
        """Return the scores (n, c) of samples, by blocks."""
        if not self.is_whole:
            raise InvalidParameter(
                f"only {len(self.solutions)} of {self.depth} layers are trained: nothing to score with"
            )
        return super().scores(x)

    def score_block(self, block: npt.NDArray[Any], out: Array) -> None:
        """Write the scores of a block of samples."""
        out[:] = self.forward(block)

    def to_torch(self) -> "torch.nn.Sequential":
        """Return the network as an ordinary torch module; it takes images as (n, channels, height, width)."""
        from fedgram.layerwise.export import to_torch

        return to_torch(self)

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the network as an ONNX file; it takes images as (n, channels, height, width)."""
        from fedgram.layerwise.export import to_onnx

        to_onnx(self, path)


def slices(n: int, size: int) -> Iterator[slice]:
    """Yield slices of at most `size` that cover n."""
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def _activated(layer: Learning, x: Array, solution: Array, encoding: Array | None) -> Array:
    """Return activation(rows · G · Q) for each sample."""
    out = layer.multiply(x, solution)
    if encoding is not None:
        out = out @ encoding
    ACTIVATIONS[layer.activation](out)
    return out.reshape(len(x), *layer.shape_out(x.shape[1:]))

"""A network of layers solved in closed form: half-trained while it grows, a model when it is whole."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

import numpy as np
import numpy.typing as npt
from scipy.linalg import pinv, solve

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.columns import Columns
from fedgram.core.errors import InvalidParameter, Mismatch, UnknownName
from fedgram.core.labels import Classes
from fedgram.core.randomness import generator
from fedgram.features.projection import ACTIVATIONS
from fedgram.layerwise.layers import Convolution, Dense, Layer, Learning, Shape, rows_per_sample
from fedgram.layerwise.stack import read_stack
from fedgram.models import BlockModel, Temperature

if TYPE_CHECKING:
    import torch

Encoding = Literal["position", "shared"]
SAMPLES_AT_ONCE = 256
# So few samples go through a layer at a time that what it writes is in the cache for its activation and pooling.
LAYER_BYTES = 2**24
# Behind these, as many samples wait for the next layer as make tall matrices of its rows.
FORWARD_BYTES = 2**26


@lru_cache(maxsize=32)
def label_encoding(seed: int, layer: int, classes: int, positions: int, width: int) -> Array:
    """Return Q_l (classes · positions, width), standard normal, from the shared seed: by class, then by position."""
    encoding: Array = generator(seed, "label encoding", layer).standard_normal((classes * positions, width))
    encoding.flags.writeable = False
    return encoding


@dataclass(frozen=True)
class Problem:
    """The least-squares problem of one layer, (1): from its rows to the labels under their encoding.

    The target of a row is the line of Q_l for its label and its position, so that Z̄_l = Y Q_l has the shape of the
    layer's real output. `positions` is 1 for dense layers, and for convolutions whose positions share one encoding. The
    output layer has no encoding: its targets are the labels.

    The solution is W_l = G_l Q_l, where G_l (d, classes · positions) solves for the labels themselves, with a column
    for each class and position. The narrower of G_l and W_l is what is solved for, kept and sent.
    """

    layer: Learning
    shape: Shape  # of the layer's input
    classes: int
    positions: int
    encoding: Array | None  # Q_l (classes · positions, width)

    @property
    def d(self) -> int:
        """Number of columns of the layer's rows."""
        return self.layer.fan_in(self.shape)

    @property
    def rows(self) -> int:
        """Number of rows that the layer makes of a sample."""
        return rows_per_sample(self.layer, self.shape)

    @property
    def numbers(self) -> int:
        """Number of values in the layer's input, per sample."""
        return prod(self.shape)

    @property
    def solves_labels(self) -> bool:
        """Whether the solution is G_l, not W_l."""
        return self.encoding is None or self.classes * self.positions <= self.layer.width

    @property
    def columns(self) -> int:
        """Number of columns of the solution."""
        return self.classes * self.positions if self.solves_labels else self.layer.width

    @property
    def mixing(self) -> Array | None:
        """Q_l, where the solution is still to be multiplied by it."""
        return self.encoding if self.solves_labels else None

    def weights(self, solution: Array) -> Array:
        """Return W_l (d, width) of a solution."""
        return solution if self.mixing is None else solution @ self.mixing

    def targets(self, y: npt.NDArray[np.int64]) -> Array:
        """Return the targets of all rows of samples with label indices y (n,), (n · rows, columns)."""
        position = np.arange(self.rows) % self.positions
        lines = (y[:, None] * self.positions + position).ravel()
        table = np.eye(self.columns) if self.mixing is not None or self.encoding is None else self.encoding
        return np.asarray(table[lines])

    def sums_by_position(self, inputs: Array) -> Array:
        """Return the sums of rows for each class and position (classes · positions, d), from those of whole inputs.

        A patch of a sum of images is the sum of their patches, so `inputs` (classes, numbers) says it all.
        """
        return self.layer.rows(inputs.reshape(-1, *self.shape))

    def products(self, inputs: Array, present: npt.NDArray[np.intp]) -> Array:
        """Return X_lᵀZ̄_l (d, width) from the sums of the inputs (present, numbers) of classes that have samples."""
        assert self.encoding is not None
        total = np.zeros((self.d, self.layer.width))
        for images, label in zip(inputs.reshape(-1, 1, *self.shape), present, strict=True):  # not all patches at once
            total += self.layer.rows(images).T @ self.encoding[label * self.positions : (label + 1) * self.positions]
        return total

    def reader(self, solution: Array) -> Array:
        """Return weights (numbers, classes) that read the labels off the layer's input, as its solution sees them.

        The layer's output is meant to be Y Q_l, so it is multiplied by the pseudo-inverse of Q_l. All this is linear.
        """
        if self.encoding is None:
            return solution
        repeated = np.tile(self.encoding, (1, self.rows // self.positions))  # where positions share one encoding
        wide = repeated.reshape(self.classes, -1)
        inverse = solve(wide @ wide.T, wide, assume_a="pos").T if wide.shape[1] > 2 * self.classes else pinv(wide)
        decoding = inverse.reshape(self.rows, -1, self.classes)
        return self.layer.fold(self.weights(solution) @ decoding, self.shape)


@wire.message("layerwise-network", version=1)
@dataclass(frozen=True, eq=False)
class Network(BlockModel):
    """Layers whose weights W_l were solved for one after the other.

    `solutions` has one matrix for each layer trained so far, as its `Problem` says: W_l, or G_l with W_l = G_l Q_l
    where that is narrower. These are sent, and scores are computed by them; `weights` gives the ordinary matrices.

    >>> network = Network("dnn", (8,), ("cat", "dog"), seed=0)
    >>> network.depth, network.is_whole, network.extend(np.ones((8, 2))).weights[0].shape
    (3, False, (8, 128))
    """

    stack: str
    shape: Shape  # of a sample
    classes: Classes
    seed: int
    solutions: Annotated[tuple[Array, ...], wire.Shape(None, None)] = ()
    features: str = ""
    columns: Columns = ()
    temperature: Temperature = None  # once it is whole
    encoding: str = "position"  # of convolutions: one for each position, or one that all positions share

    def __post_init__(self) -> None:
        """Refuse layers that do not follow upon each other, and solutions that do not fit them."""
        if self.encoding not in get_args(Encoding):
            raise UnknownName("encoding", self.encoding, get_args(Encoding))
        wanted = [self._solution_shape(number) for number in range(self.depth)]
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
    def _places(self) -> list[int]:
        """The places of the layers that learn."""
        return [place for place, layer in enumerate(self.layers) if isinstance(layer, Dense | Convolution)]

    @property
    def depth(self) -> int:
        """L: how many layers learn."""
        return len(self._places)

    def learning(self, number: int) -> tuple[Learning, Shape]:
        """Return a layer that learns, and the shape of its input; numbers begin at 0."""
        place = self._places[number]
        layer = self.layers[place]
        assert isinstance(layer, Dense | Convolution)
        return layer, self.shapes[place]

    def problem(self, number: int) -> Problem:
        """Return the least-squares problem of a layer that learns; numbers begin at 0."""
        (layer, shape), classes, positions = self.learning(number), len(self.classes), self._positions(number)
        hidden = number < self.depth - 1
        encoding = label_encoding(self.seed, number + 1, classes, positions, layer.width) if hidden else None
        return Problem(layer, shape, classes, positions, encoding)

    @property
    def next_problem(self) -> Problem:
        """The problem of the first layer that is not trained yet."""
        return self.problem(len(self.solutions))

    def _positions(self, number: int) -> int:
        """Return how many encodings a layer has."""
        return rows_per_sample(*self.learning(number)) if self.encoding == "position" else 1

    def _solution_shape(self, number: int) -> tuple[int, int]:
        """Return the shape of a layer's solution, without drawing its encoding."""
        (layer, shape), labels = self.learning(number), len(self.classes) * self._positions(number)
        return layer.fan_in(shape), min(labels, layer.width) if number < self.depth - 1 else labels

    @property
    def is_whole(self) -> bool:
        """Whether all layers are trained."""
        return len(self.solutions) == self.depth

    @property
    def weights(self) -> list[Array]:
        """The weights W_l (d, d_l) of the layers trained so far."""
        return [self.problem(number).weights(solution) for number, solution in enumerate(self.solutions)]

    @property
    def narrowest(self) -> tuple[int, int] | None:
        """The hidden layer whose encoding is the narrowest, (8), and d_l, its width; None without hidden layers."""
        widths = [
            (self._positions(number) * self.learning(number)[0].width, number) for number in range(self.depth - 1)
        ]
        width, number = min(widths, default=(0, None))
        return None if number is None else (number, width)

    def encode(self, labels: Array) -> Array:
        """Return labels (n, c) under the narrowest encoding, (n, d_l); as they are where there is none."""
        if self.narrowest is None:
            return labels
        number, width = self.narrowest
        encoding = self.problem(number).encoding
        assert encoding is not None
        return labels @ encoding.reshape(len(self.classes), width)

    def extend(self, *solutions: Array) -> Self:
        """Return the network with more layers trained."""
        if len(self.solutions) + len(solutions) > self.depth:
            raise InvalidParameter(f"{len(self.solutions)} of {self.depth} layers are trained already")
        return replace(self, solutions=(*self.solutions, *solutions))

    def truncate(self, depth: int) -> Self:
        """Return the network with only its first layers trained."""
        return replace(self, solutions=self.solutions[:depth])

    def forward(self, x: npt.NDArray[Any]) -> Array:
        """Return what the first layer not yet trained gets to see of samples x, or the scores if all are."""
        end = len(self.layers) if self.is_whole else self._places[len(self.solutions)]
        if not end:
            return np.ascontiguousarray(x, dtype=np.float64).reshape(-1, *self.shapes[0])
        starts = [0, *(place for place in self._places if 0 < place < end), end]  # of a layer and what is behind it
        out = np.empty((len(x), *self.shapes[end]))
        for part in slices(len(x), _at_once(FORWARD_BYTES, [self.shapes[place] for place in starts])):
            block = np.ascontiguousarray(x[part], dtype=np.float64).reshape(-1, *self.shapes[0])
            for start, stop in pairwise(starts):
                block = self._through(block, start, stop)
            out[part] = block
        return out

    def _through(self, x: Array, start: int, stop: int) -> Array:
        """Return samples before one layer as they are before another."""
        out = np.empty((len(x), *self.shapes[stop]))
        for part in slices(len(x), _at_once(LAYER_BYTES, self.shapes[start : stop + 1])):
            block = x[part]
            for place in range(start, stop):
                layer = self.layers[place]
                if isinstance(layer, Dense | Convolution):
                    block = self._activated(layer, block, self._places.index(place))
                else:
                    block = layer.apply(block)
            out[part] = block
        return out

    def _activated(self, layer: Learning, x: Array, number: int) -> Array:
        """Return activation(rows · W_l) for each sample."""
        out, mixing = layer.multiply(x, self.solutions[number]), self.problem(number).mixing
        if mixing is not None:
            out = out @ mixing
        ACTIVATIONS[layer.activation](out)
        return out.reshape(len(x), *layer.shape_out(x.shape[1:]))

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


def _at_once(size: int, shapes: Sequence[Shape]) -> int:
    """Return how many samples of any of these shapes take so many bytes."""
    return max(1, size // (8 * max(map(prod, shapes))))

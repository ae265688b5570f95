"""A network of layers solved in closed form, one after the other: a model when whole, and a classifier at any time.

When whole it is also a torch module or an ONNX file, which predict the same without fedgram. Both take samples as
PyTorch and ONNX do: rows (n, d), or images (n, channels, height, width), in float32. Where images become rows, the
weights of the next layer are reordered to channels first.

`LayerMoments` are a client's summary of one layer: moments of the layer's rows, and sums for one encoding at each
position. A client's class sums of whole inputs (for a convolution, of images) give the sums of rows for each class and
position, since a patch of a sum of images is the sum of their patches. Sums of inputs are never larger than
those sums of rows. Where X_lᵀZ̄_l is smaller still, a client sends that instead. Both add up over clients.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from math import prod, sqrt
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
from scipy import linalg

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.classes import Classes
from fedgram.core.columns import Columns
from fedgram.core.errors import InvalidParameter, Mismatch, RefusedMessage, UnknownName
from fedgram.core.extras import require
from fedgram.core.randomness import generator
from fedgram.features.onnxfile import write_onnx
from fedgram.features.projection import ACTIVATIONS, TORCH_ACTIVATIONS
from fedgram.layerwise.layer_types import (
    AveragePooling,
    Convolution,
    Dense,
    Flatten,
    Layer,
    Learning,
    Normalization,
    Shape,
    read_stack,
    rows_per_sample,
)
from fedgram.models import BlockModel, Offsets, Temperature
from fedgram.moments import packing, solve
from fedgram.moments.accumulate import Indices, class_sums, not_finite
from fedgram.moments.moments import Moments, Schema, Total

if TYPE_CHECKING:
    import torch


Encoding = Literal["position", "shared"]
SAMPLES_AT_ONCE = 256
# Bytes of a layer's output at a time: it should stay in the cache for its activation and pooling.
LAYER_BYTES = 2**24
# Bytes of samples that are collected for the next layer, so that its rows are tall matrices.
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
        """The number of columns of the layer's rows."""
        return self.layer.fan_in(self.shape)

    @property
    def rows(self) -> int:
        """The number of rows that the layer makes of a sample."""
        return rows_per_sample(self.layer, self.shape)

    @property
    def numbers(self) -> int:
        """The number of values in the layer's input, per sample."""
        return prod(self.shape)

    @property
    def solves_labels(self) -> bool:
        """Whether the solution is G_l, not W_l."""
        return self.encoding is None or self.classes * self.positions <= self.layer.width

    @property
    def columns(self) -> int:
        """The number of columns of the solution."""
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

        A patch of a sum of images is the sum of their patches, so `inputs` (classes, numbers) are enough.
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
        """Return weights (numbers, classes) that predict the labels from the layer's input, by the layer's solution.

        The layer's output is meant to be Y Q_l, so it is multiplied by the pseudo-inverse of Q_l. All this is linear.
        """
        if self.encoding is None:
            return solution
        repeated = np.tile(self.encoding, (1, self.rows // self.positions))  # where positions share one encoding
        wide = repeated.reshape(self.classes, -1)
        many = wide.shape[1] > 2 * self.classes
        inverse = linalg.solve(wide @ wide.T, wide, assume_a="pos").T if many else linalg.pinv(wide)
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
    offsets: Offsets = None  # once it is whole

    def __post_init__(self) -> None:
        """Raise for layers that do not follow upon each other, and solutions that do not fit them."""
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
        """L, the number of layers that learn."""
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
        """Return the number of encodings that a layer has."""
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
        """Return the input of the first untrained layer for samples x, or the scores if all layers are trained."""
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
        """The number of samples in a block."""
        return SAMPLES_AT_ONCE

    @property
    def sample_shape(self) -> Shape:
        """The shape of one sample."""
        return self.shape

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Return whether a sample may have this shape: grey images come with or without their one channel."""
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
        """Return the network as ordinary torch layers in float32; it takes images as (n, channels, height, width)."""
        torch = require("torch", "vision", "a network as a torch module")
        modules: list[Any] = []
        for layer, shape, weights in _planar(self):
            modules += (made := modules_of(layer, shape, bias=False))
            if weights is not None:
                made[0].weight.data = torch.tensor(weights, dtype=torch.float32)
        return torch.nn.Sequential(*modules).eval()  # type: ignore[no-any-return]

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the network as an ONNX file: "samples", of images (n, channels, height, width), give "scores"."""
        *size, channels = self.shapes[0]
        write_onnx(self.to_torch(), (channels, *size), path)


def slices(n: int, size: int) -> Iterator[slice]:
    """Yield slices of at most `size` that cover n."""
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def _at_once(size: int, shapes: Sequence[Shape]) -> int:
    """Return the number of samples of any of these shapes that take so many bytes."""
    return max(1, size // (8 * max(map(prod, shapes))))


@wire.message("layerwise-network-so-far", version=1)
@dataclass(frozen=True, eq=False)
class NetworkSoFar(BlockModel):
    """The classifier of a network in training: its trained layers, and a `reader` in place of the last of them.

    A hidden layer is solved for the labels under their encoding. So its output times the pseudo-inverse of Q_l predicts
    the labels. This is linear in the layer's input, and `reader` (numbers, c) does it in one product. So a network of l
    layers can be judged after l rounds; nothing more is sent or solved for it.

    >>> import numpy as np
    >>> network = Network("dnn", (8,), ("cat", "dog"), seed=0).extend(np.ones((8, 2)))
    >>> NetworkSoFar.of(network).scores(np.ones((1, 8))).round(9)
    array([[8., 8.]])
    """

    below: Network
    reader: Annotated[Array, wire.Shape(None, None)]

    def __post_init__(self) -> None:
        """Raise for a reader that does not fit the layers below."""
        wanted = None if self.below.is_whole else (self.below.next_problem.numbers, len(self.below.classes))
        if np.shape(self.reader) != wanted:
            raise Mismatch(f"a reader of shape {np.shape(self.reader)} does not fit the layers below: {wanted}")

    @classmethod
    def of(cls, network: Network) -> Self:
        """Return the classifier of a network's layers trained so far."""
        if not network.solutions:
            raise InvalidParameter("no layer of the network is trained: there is nothing to score with")
        *below, solution = network.solutions
        return cls(network.truncate(len(below)), network.problem(len(below)).reader(solution))

    @property
    def classes(self) -> Classes:  # type: ignore[override]
        """The classes in the order of the scores."""
        return self.below.classes

    @property
    def features(self) -> str:  # type: ignore[override]
        """The fingerprint of the features that the network was made from."""
        return self.below.features

    @property
    def columns(self) -> Columns:  # type: ignore[override]
        """The names of the columns."""
        return self.below.columns

    @property
    def at_once(self) -> int:
        """The number of samples in a block."""
        return self.below.at_once

    @property
    def sample_shape(self) -> Shape:
        """The shape of one sample."""
        return self.below.sample_shape

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Return whether a sample may have this shape."""
        return self.below.takes(shape)

    def score_block(self, block: npt.NDArray[Any], out: Array) -> None:
        """Write the scores of a block of samples."""
        out[:] = self.below.forward(block).reshape(len(block), -1) @ self.reader


# A layer, the shape of its input, and its weights as torch lays them out: (out, in) or (out, in, height, width).
Planar: TypeAlias = tuple[Layer, Shape, Array | None]


def modules_of(layer: Layer, shape: Shape, *, bias: bool) -> "list[torch.nn.Module]":
    """Return a layer of samples with this shape as ordinary torch modules: the layer, and its activation if any."""
    from torch import nn

    match layer:
        case Normalization():
            return [_normalization(layer, shape)]
        case AveragePooling():
            return [nn.AvgPool2d(layer.size)]
        case Flatten():
            return [nn.Flatten()]
        case Convolution():
            module: nn.Module = nn.Conv2d(shape[-1], layer.width, layer.size, bias=bias)
        case Dense():
            module = nn.Linear(prod(shape), layer.width, bias=bias)
    activation = [] if layer.activation == "identity" else [getattr(nn, TORCH_ACTIVATIONS[layer.activation])()]
    return [module, *activation]


def _normalization(layer: Normalization, shape: Shape) -> "torch.nn.Module":
    """Return a module that normalises rows, or images (n, channels, height, width), of samples with this shape."""
    import torch

    places = (-1, 1, 1) if len(shape) == 3 else (-1,)
    mean, std = (torch.tensor(numbers, dtype=torch.float32).reshape(places) for numbers in (layer.mean, layer.std))

    class Normalized(torch.nn.Module):
        def forward(self, samples: torch.Tensor) -> torch.Tensor:
            return (samples - mean) / std

    return Normalized()


def _planar(network: Network) -> Iterator[Planar]:
    """Yield the layers with weights as they are when images are planes (channels, height, width)."""
    if not network.is_whole:
        raise InvalidParameter(f"only {len(network.solutions)} of {network.depth} layers are trained: train all first")
    weights = iter(network.weights)
    flattened: Shape | None = None  # the images that the next dense layer gets as rows
    for layer, shape in zip(network.layers, network.shapes, strict=False):
        match layer:
            case Convolution():
                windows = next(weights).reshape(layer.size, layer.size, shape[2], layer.width)
                yield layer, shape, windows.transpose(3, 2, 0, 1)
            case Dense():
                rows = next(weights)
                if flattened is not None:
                    rows = rows.reshape(*flattened, -1).transpose(2, 0, 1, 3).reshape(rows.shape)
                    flattened = None
                yield layer, shape, rows.T
            case AveragePooling() | Normalization():
                yield layer, shape, None
            case Flatten():
                flattened = shape if len(shape) == 3 else flattened
                yield layer, shape, None


# The largest difference between equal sums, relative to the largest possible sum.
ROUNDING = 1e-6


@wire.message("layer-moments", version=1)
@dataclass(frozen=True, eq=False)
class LayerMoments:
    """Moments of one layer's rows, and for layers with an encoding for each position one of two sums.

    `inputs` has the sum of the layer's inputs for each class that has samples, (present, numbers). `products` is
    X_lᵀZ̄_l (d, width). Dense layers and shared encodings need neither.
    """

    rows: Moments
    inputs: Annotated[Array, wire.Shape(None, None)] | None = None
    products: Annotated[Array, wire.Shape(None, None)] | None = None

    def right_side(self, problem: Problem) -> Array:
        """Return the right-hand side (d, columns) of the layer's normal equations."""
        if self.products is not None:
            return self.products
        if problem.solves_labels:
            return self.rows.cross if self.inputs is None else problem.sums_by_position(self._full()).T
        if self.inputs is not None:
            return problem.products(self.inputs, self._present)
        assert problem.encoding is not None
        return self.rows.cross @ problem.encoding

    def solve(self, problem: Problem, ridge: float) -> Array:
        """Return the layer's solution (d, columns) — (5)."""
        rows = self.rows
        return solve.factor(rows.packed, rows.d, ridge=ridge, n=rows.n).solve(self.right_side(problem))

    def loss(self, problem: Problem, solution: Array) -> float:
        """Return the squared error of a solution (d, columns) for these samples, up to a constant of theirs."""
        explained = packing.times(self.rows.packed, solution) - 2 * self.right_side(problem)
        return float(np.vdot(solution, explained))

    def check_sums(self, problem: Problem) -> None:
        """Raise if the sums have another form than the layer's, or if no samples with these rows can have them."""
        rows, by_position, products = self.rows, problem.positions > 1, sends_products(problem)
        if (rows.counts % problem.rows).any():
            raise RefusedMessage(f"counts: expected multiples of {problem.rows}, the rows of a sample, got others")
        wanted = {
            "inputs": (len(self._present), problem.numbers) if by_position and not products else None,
            "products": (problem.d, problem.layer.width) if by_position and products else None,
        }
        for name, shape in wanted.items():
            array = getattr(self, name)
            if (got := None if array is None else array.shape) != shape:
                raise RefusedMessage(f"{name}: expected shape {shape}, got {got}; another network was summarised")
        root = np.sqrt(rows.squares)
        if self.inputs is not None:
            told = problem.layer.row_sums(self.inputs.reshape(-1, *problem.shape))
            if (np.abs(told - rows.cross.T[rows.counts > 0]) > ROUNDING * sqrt(rows.n) * root).any():
                raise RefusedMessage("inputs: expected sums of the inputs that the rows are made of, got others")
            # A sum over samples is at most √n times the root of the sum of their squares, at every position.
            most = np.sqrt(rows.counts[self._present] / problem.rows)[:, None, None] * root * (1 + ROUNDING)
            if (np.abs(problem.sums_by_position(self.inputs)).reshape(len(most), problem.rows, -1) > most).any():
                raise RefusedMessage("inputs: expected sums of inputs as small as those of the rows, got larger ones")
        if self.products is not None:
            assert problem.encoding is not None
            # Over all rows, the squares of the targets of each channel; with those of the rows, the most there can be.
            squares = (problem.encoding.reshape(problem.classes, problem.positions, -1) ** 2).sum(axis=1)
            most = np.outer(root, np.sqrt(rows.counts / problem.rows @ squares))
            if (np.abs(self.products) > most * (1 + ROUNDING)).any():
                raise RefusedMessage("products: expected products of the rows and the encoded labels, got larger ones")

    def __sub__(self, other: Self) -> "LayerMoments":
        """Return the moments without those of samples that were added before."""
        rows = self.rows - other.rows
        inputs, products = self.inputs, self.products
        if inputs is not None and other.inputs is not None:
            inputs = (self._full() - other._full())[rows.counts > 0]
        if products is not None and other.products is not None:
            products = products - other.products
        return LayerMoments(rows, inputs, products)

    @property
    def _present(self) -> npt.NDArray[np.intp]:
        """The classes that have samples."""
        return np.flatnonzero(self.rows.counts)

    def _full(self) -> Array:
        """Return the sums of inputs with a line for every class."""
        assert self.inputs is not None
        full = np.zeros((len(self.rows.classes), self.inputs.shape[1]))
        full[self.rows.counts > 0] = self.inputs
        return full


class LayerTotal:
    """A running sum of layer moments that arrive one by one."""

    def __init__(self) -> None:
        self._rows = Total()
        self._inputs: Array | None = None
        self._products: Array | None = None

    def add(self, part: LayerMoments) -> None:
        """Add the moments of more samples."""
        self._rows.add(part.rows)
        if part.inputs is not None:
            if self._inputs is None:
                self._inputs = np.zeros((len(part.rows.classes), part.inputs.shape[1]))
            self._inputs[part.rows.counts > 0] += part.inputs
        if part.products is not None:
            self._products = part.products if self._products is None else self._products + part.products

    def moments(self) -> LayerMoments:
        """Return the sum; nothing can be added afterwards."""
        rows = self._rows.moments()
        inputs = None if self._inputs is None else self._inputs[rows.counts > 0]
        return LayerMoments(rows, inputs, self._products)


def sends_products(problem: Problem) -> bool:
    """Return whether X_lᵀZ̄_l is smaller than the class sums of the layer's inputs."""
    return problem.d * problem.layer.width < problem.classes * problem.numbers


def layer_moments(network: Network, x: npt.NDArray[Any], y: Indices, *, batch: int) -> LayerMoments:
    """Return the moments of the first untrained layer, for samples x (n, …) with label indices y (n,).

    `batch` samples at a time run through the layers below (6), and not all their patches are there at once, so memory
    grows neither with the samples nor with the positions.
    """
    problem = network.next_problem
    network.checked(x)
    counts = np.bincount(y, minlength=problem.classes)
    [present] = counts.nonzero()
    ranks, inputs = present.searchsorted(y), np.zeros((len(present), problem.numbers))
    schema, few = Schema(network.classes, problem.d, network.features), len(x) * problem.rows < problem.d / 4
    gram = None if few else problem.layer.gram(problem.shape, min(len(x), batch))
    kept = []
    for part in slices(len(x), batch):
        block = network.forward(x[part])
        inputs += class_sums(block.reshape(len(block), problem.numbers), ranks[part], len(present))
        if gram is None:
            kept.append(problem.layer.rows(block))
        else:
            gram.add(block)
    sums = problem.layer.row_sums(inputs.reshape(len(present), *problem.shape))  # linear in the inputs
    how: dict[str, Array]
    if gram is None:
        how = {"factor": solve.triangular_factor(np.concatenate(kept or [np.empty((0, problem.d))]))}
        evidence = np.vdot(how["factor"], how["factor"])
    else:
        how = {"packed": gram.packed()}
        evidence = how["packed"][packing.diagonal(problem.d)].sum()
    if not np.isfinite(evidence):
        raise not_finite(x.reshape(len(x), -1))
    rows = Moments(schema, sums=sums, counts=counts * problem.rows, **how)
    if problem.positions == 1:
        return LayerMoments(rows)
    if sends_products(problem):
        return LayerMoments(rows, products=problem.products(inputs, present))
    return LayerMoments(rows, inputs)

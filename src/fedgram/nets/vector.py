"""A network whose numbers are one vector: [buffers | base | head | memory].

Methods mix, compare and pull parameters as whole vectors, as their papers write them; a message is such a vector, or
its shared part. The base is all but the last layer, which is the head.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import InvalidParameter
from fedgram.nets.layers import Module, Shape, Tensor, Vector


@dataclass(frozen=True)
class Net(ABC):
    """A network for samples of some shape. It holds no numbers: they come as vectors, one for each client.

    With `memory` the vector ends with numbers that are added to the features before the head (FedDBE's personal bias).
    """

    network: str
    shape: Shape  # of a sample
    classes: int
    memory: bool = False

    at_once: ClassVar[int] = 1024  # samples that are scored together
    only_one: ClassVar[bool] = False  # whether only one client at a time can train in a process

    @property
    @abstractmethod
    def one_by_one(self) -> bool:
        """Whether clients train one after another, not stacked."""

    @property
    @abstractmethod
    def features(self) -> int:
        """The number of features that the head sees."""

    @property
    @abstractmethod
    def buffer_shapes(self) -> Sequence[Shape]:
        """Shapes of the buffers, which gradients do not train: the vector's beginning."""

    @property
    @abstractmethod
    def layer_shapes(self) -> Sequence[Sequence[Shape]]:
        """Shapes of the trained parameters, layer by layer in the order of the vector; the last layer is the head."""

    @property
    @abstractmethod
    def multiplications(self) -> int:
        """The approximate number of multiplications that score a sample."""

    @abstractmethod
    def initial(self, rng: np.random.Generator) -> Vector:
        """Return a vector to begin with."""

    @abstractmethod
    def prepare(self, x: Tensor) -> Tensor:
        """Return samples (clients, n, …) as the network takes them; `x` may be changed."""

    @abstractmethod
    def forward(
        self, parts: Sequence[Tensor], buffers: Tensor, x: Tensor, *, training: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return features (clients, width, n) before any memory, and scores (clients, classes, n), of prepared samples.

        `parts` are views of the trained part of the vectors, `buffers` (clients, …) is the part before it.
        """

    @abstractmethod
    def module(self, vector: Vector) -> Module:
        """Return an ordinary torch module with these numbers: rows (n, d) or (n, channels, height, width) to scores."""

    def training(self, rngs: Sequence[np.random.Generator]) -> AbstractContextManager[None]:
        """Return a context for the training of clients with these random numbers."""
        return nullcontext()

    @cached_property
    def buffers(self) -> int:
        """The number of buffers: numbers at the vector's beginning that gradients do not train."""
        return sum(map(prod, self.buffer_shapes))

    @cached_property
    def _lengths(self) -> list[int]:
        """The number of trained parameters of each layer."""
        return [sum(map(prod, shapes)) for shapes in self.layer_shapes]

    @cached_property
    def _parameter_shapes(self) -> list[Shape]:
        return [shape for shapes in self.layer_shapes for shape in shapes]

    @property
    def size(self) -> int:
        """The length of the vector."""
        return int(self.own.stop)

    @property
    def base(self) -> slice:
        """The part of the vector with buffers and all layers but the last."""
        return slice(0, self.head.start)

    @property
    def head(self) -> slice:
        """The part of the vector with the last layer."""
        return self.last(1)

    @cached_property
    def own(self) -> slice:
        """The part of the vector with the memory."""
        start = self.buffers + sum(self._lengths)
        return slice(start, start + (self.features if self.memory else 0))

    @cached_property
    def layer_slices(self) -> list[slice]:
        """The part of the vector with each layer that has parameters."""
        ends = accumulate((length for length in self._lengths if length), initial=self.buffers)
        return [slice(*bounds) for bounds in pairwise(ends)]

    @property
    @abstractmethod
    def norms(self) -> npt.NDArray[np.bool_]:
        """A mask of the numbers that belong to layers of batch normalisation."""

    def numbers_of(self, layers: Iterable[bool]) -> npt.NDArray[np.bool_]:
        """Return a mask of the buffers and of the numbers of the wanted layers; `layers` has those with parameters."""
        lengths = [part.stop - part.start for part in self.layer_slices]
        return np.repeat([True, *layers, False], [self.buffers, *lengths, self.size - self.own.start])

    def last(self, layers: int) -> slice:
        """Return the part of the vector with the last so many layers that have parameters."""
        lengths = [length for length in self._lengths if length]
        if not 1 <= layers <= len(lengths):
            raise InvalidParameter(f"{self.network!r} has {len(lengths)} layers with parameters, asked for {layers}")
        return slice(self.own.start - sum(lengths[-layers:]), self.own.start)

    def parts(self, weights: Tensor) -> list[Tensor]:
        """Return views of the trained numbers (clients, …): each layer's parameters in turn, and the memory."""
        return split(weights, self._parameter_shapes, self.features if self.memory else 0)


def split(rows: Tensor, shapes: Sequence[Shape], rest: int = 0) -> list[Tensor]:
    """Return views of the rows with these shapes for each client."""
    if not shapes:
        return []
    lengths = [*map(prod, shapes), *([rest] if rest else [])]
    pieces = rows.split_with_sizes(lengths, dim=1)
    views = [piece.view(len(rows), *shape) for piece, shape in zip(pieces, shapes, strict=False)]
    return [*views, pieces[-1]] if rest else views


def channels_first(shape: Shape) -> Shape:
    """Return the shape of an image (height, width[, channels]) as torch has it; rows stay as they are.

    >>> channels_first((28, 28)), channels_first((32, 32, 3)), channels_first((64,))
    ((1, 28, 28), (3, 32, 32), (64,))
    """
    match shape:
        case (height, width):
            return (1, height, width)
        case (height, width, channels):
            return (channels, height, width)
    return shape

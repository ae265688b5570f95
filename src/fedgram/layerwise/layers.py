"""The layers a network is made of, as data, and what each does to a batch of samples.

A layer that learns sees its input as *rows*, one least-squares problem for all kinds: a dense layer has a row per
sample, a convolution a row per window of an image (its patch). Images are (n, height, width, channels).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, isfinite, prod
from typing import Protocol, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidParameter, UnknownName
from fedgram.features.projection import ACTIVATIONS
from fedgram.layerwise.windows import WindowGram, convolve, fold, patch_sums, saving
from fedgram.moments import packing

Shape: TypeAlias = tuple[int, ...]
# A block of patches should stay in the processor's cache between being written and being multiplied. But a large Gram
# matrix is read and written for each block, and with fewer rows that takes longer than the multiplication.
BLOCK_BYTES, BLOCK_ROWS = 2**21, 512
# Products of pixels are quicker than patches from so many channels and images at a time on, if they save so much.
CHANNELS, IMAGES, SAVING = 64, 32, 2.0


class Gram(Protocol):
    """XᵀX of a layer's rows, for samples that come batch by batch."""

    def add(self, x: Array) -> None:
        """Add samples."""
        ...

    def packed(self) -> Array:
        """Return the matrix as `packing` packs it."""
        ...


class RowGram:
    """A Gram matrix of rows as they are."""

    def __init__(self, layer: "Learning", shape: Shape) -> None:
        self._layer, self._packed = layer, np.zeros(packing.size(layer.fan_in(shape)))

    def add(self, x: Array) -> None:
        """Add samples."""
        for rows in self._layer.blocks(x):
            packing.add_gram(self._packed, rows)

    def packed(self) -> Array:
        """Return the matrix as `packing` packs it."""
        return self._packed


@dataclass(frozen=True)
class Flatten:
    """Images as rows of numbers; rows stay as they are."""

    def shape_out(self, shape: Shape) -> Shape:
        """Return the shape of a sample behind this layer."""
        return (prod(shape),)

    def apply(self, x: Array) -> Array:
        """Return the samples behind this layer."""
        return x.reshape(len(x), prod(x.shape[1:]))


@dataclass(frozen=True)
class AveragePooling:
    """The mean of each window of size × size, side by side; a rest at the border that fills no window is left out."""

    size: int

    def __post_init__(self) -> None:
        _at_least_one("pooling", size=self.size)

    def shape_out(self, shape: Shape) -> Shape:
        """Return the shape of a sample behind this layer."""
        height, width, channels = _image(shape, f"pool:{self.size}", self.size)
        return height // self.size, width // self.size, channels

    def apply(self, x: Array) -> Array:
        """Return the samples behind this layer."""
        height, width, _ = self.shape_out(x.shape[1:])
        size = self.size
        # One sum for each place in the window: several times as quick as a mean over two axes.
        places = (x[:, i : height * size : size, j : width * size : size] for i in range(size) for j in range(size))
        total = np.array(next(places), dtype=np.float64)
        for place in places:
            total += place
        total /= size**2
        return total


@dataclass(frozen=True)
class Normalization:
    """(x - mean) / std, with one number for all channels or one for each."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if not all(isfinite(number) for number in self.mean):
            raise InvalidParameter(f"mean of normalize: expected finite numbers, got {self.mean}; give one a channel")
        if not all(0 < number < inf for number in self.std):
            raise InvalidParameter(f"std of normalize: expected numbers above 0, got {self.std}; give one a channel")

    def shape_out(self, shape: Shape) -> Shape:
        """Return the shape of a sample behind this layer."""
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if len(numbers) not in (1, shape[-1]):
                raise InvalidParameter(
                    f"{name} of normalize: expected one number or {shape[-1]}, one a channel, got {len(numbers)}; "
                    f"samples have shape {shape}"
                )
        return shape

    def apply(self, x: Array) -> Array:
        """Return the samples behind this layer."""
        return np.asarray((x - np.array(self.mean)) / np.array(self.std))


@dataclass(frozen=True)
class Dense:
    """Every input to every output: activation(x W), without an intercept, as in the paper."""

    width: int
    activation: str = "relu"

    def __post_init__(self) -> None:
        _at_least_one("a dense layer", width=self.width)
        _check_activation(self.activation)

    def shape_out(self, shape: Shape) -> Shape:
        """Return the shape of a sample behind this layer."""
        if len(shape) != 1:
            raise InvalidParameter(f"a dense layer takes rows, but gets images of shape {shape}: put flatten before it")
        return (self.width,)

    def fan_in(self, shape: Shape) -> int:
        """Return how many numbers a row has."""
        return shape[0]

    def rows(self, x: Array) -> Array:
        """Return the input (n, d) as rows (n, d)."""
        return x

    def blocks(self, x: Array) -> Iterator[Array]:
        """Yield the rows of some samples at a time."""
        yield x

    def multiply(self, x: Array, weights: Array) -> Array:
        """Return rows times weights (d, c)."""
        return x @ weights

    def gram(self, shape: Shape, n: int) -> Gram:
        """Return an empty Gram matrix of rows, for n samples of a shape at a time."""
        return RowGram(self, shape)

    def row_sums(self, x: Array) -> Array:
        """Return the sum of each sample's rows, (n, d)."""
        return x

    def fold(self, kernels: Array, shape: Shape) -> Array:
        """Return the weights (d, c) of a sample's numbers for which scores are rows times kernels (1, d, c)."""
        return np.asarray(kernels[0])


@dataclass(frozen=True)
class Convolution:
    """Windows of size × size, without padding ("valid"): each gives `channels` numbers, activation(patch W).

    A patch is in the order (row, column, channel), in which the numbers of a window's row lie side by side in memory.
    """

    width: int
    size: int
    activation: str = "relu"

    def __post_init__(self) -> None:
        _at_least_one("a convolution", channels=self.width, size=self.size)
        _check_activation(self.activation)

    def shape_out(self, shape: Shape) -> Shape:
        """Return the shape of a sample behind this layer."""
        height, width, _ = _image(shape, f"conv:{self.width}:{self.size}", self.size)
        return height - self.size + 1, width - self.size + 1, self.width

    def fan_in(self, shape: Shape) -> int:
        """Return how many numbers a patch has."""
        return self.size * self.size * shape[2]

    def rows(self, x: Array) -> Array:
        """Return the patches of images, (n · positions, d): sliding windows, copied into one matrix."""
        height, width, _ = self.shape_out(x.shape[1:])
        x = np.ascontiguousarray(x)  # so that a window's row is one run of numbers
        n, (image, line, pixel, number) = len(x), x.strides
        shape = (n, height, width, self.size, self.size * x.shape[3])
        windows = as_strided(x, shape, (image, line, pixel, line, number))
        return windows.reshape(n * height * width, self.fan_in(x.shape[1:]))

    def blocks(self, x: Array) -> Iterator[Array]:
        """Yield the patches of some images at a time: never all patches at once."""
        height, width, _ = self.shape_out(x.shape[1:])
        positions = height * width
        at_once = max(1, BLOCK_BYTES // (8 * positions * self.fan_in(x.shape[1:])), BLOCK_ROWS // positions)
        for start in range(0, len(x), at_once):
            yield self.rows(x[start : start + at_once])

    def multiply(self, x: Array, weights: Array) -> Array:
        """Return patches times weights (d, c), from the pixels where that writes fewer numbers than patches are."""
        (height, width, channels), (rows, columns, _) = x.shape[1:], self.shape_out(x.shape[1:])
        if height * width * weights.shape[1] < rows * columns * channels:
            return convolve(x, weights, self.size)
        return np.concatenate([rows @ weights for rows in self.blocks(x)] or [np.empty((0, weights.shape[1]))])

    def gram(self, shape: Shape, n: int) -> Gram:
        """Return an empty Gram matrix of patches, for n images of a shape at a time."""
        if shape[2] >= CHANNELS and n >= IMAGES and saving(shape, self.size) >= SAVING:
            return WindowGram(shape, self.size)
        return RowGram(self, shape)

    def row_sums(self, x: Array) -> Array:
        """Return the sum of each image's patches, (n, d)."""
        return patch_sums(x, self.size)

    def fold(self, kernels: Array, shape: Shape) -> Array:
        """Return the weights (pixels · channels, c) of an image's numbers for kernels (positions, d, c).

        An image times these weights is the sum over positions of its patch times the position's kernel.
        """
        return fold(kernels, shape, self.size)


Learning: TypeAlias = Dense | Convolution
Layer: TypeAlias = Dense | Convolution | AveragePooling | Normalization | Flatten


def rows_per_sample(layer: Learning, shape: Shape) -> int:
    """Return how many rows a layer makes of a sample."""
    return prod(layer.shape_out(shape)[:-1])


def _image(shape: Shape, what: str, size: int) -> Shape:
    if len(shape) != 3:
        raise InvalidParameter(f"{what} takes images (height, width, channels), but gets samples of shape {shape}")
    if min(shape[:2]) < size:
        raise InvalidParameter(f"{what} does not fit into images of {shape[0]} × {shape[1]}: take fewer layers before")
    return shape


def _at_least_one(what: str, **numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise InvalidParameter(f"{name} of {what} must be at least 1, got {number}")


def _check_activation(name: str) -> None:
    if name not in ACTIVATIONS:
        raise UnknownName("activation", name, ACTIVATIONS)

"""The layers of a network as data: what each does to samples, its Gram matrix, and its name in a line of text.

A layer that learns sees its input as *rows*, one least-squares problem for all kinds: a dense layer has a row per
sample, a convolution a row per window of an image (its patch). Images are (n, height, width, channels), and a patch is
in the order (row, column, channel).

Windows overlap, so most numbers of their patches are the same pixels again. `WindowGram`, `patch_sums`, `convolve` and
`fold` compute sums over all windows from the pixels, without cutting the windows out.

A stack of layers is one line of text, for the API, the command line and TOML files alike. Layers stand in order with
spaces between: `normalize:MEAN:STD`, `conv:CHANNELS:SIZE[:ACTIVATION]`, `pool:SIZE`, `flatten`,
`dense:WIDTH[:ACTIVATION]`, or the name of a preset. The output layer, dense with one column per class, is always added
at the end.

>>> read_stack("conv:32:5:tanh pool:2 flatten")
(Convolution(width=32, size=5, activation='tanh'), AveragePooling(size=2), Flatten())
>>> read_stack("normalize:0.5:0.25 dnn")
(Normalization(mean=(0.5,), std=(0.25,)), Flatten(), Dense(width=128, activation='relu'), Dense(width=64, ...))
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise, product
from math import inf, isfinite, prod
from operator import itemgetter
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from fedgram.core.arrays import Array
from fedgram.core.errors import FedgramError, InvalidParameter, UnknownName
from fedgram.features.projection import ACTIVATIONS
from fedgram.moments import blas, packing

Shape: TypeAlias = tuple[int, ...]
# A block of patches should stay in the processor's cache between being written and being multiplied. But a large Gram
# matrix is read and written for each block, and with fewer rows that takes longer than the multiplication.
BLOCK_BYTES, BLOCK_ROWS = 2**21, 512
# Fewest channels, images at a time, and saved operations with which products of pixels are quicker than patches.
CHANNELS, IMAGES, SAVING = 64, 32, 2.0
# The size of pixels times kernels at a time, which should stay in the processor's cache until it is added up.
PRODUCT_BYTES = 2**22
Offset: TypeAlias = tuple[int, int]
Span: TypeAlias = tuple[int, int]
# The paper's networks; for CIFAR-10 `dcnn` takes hours of two cores, `small-dcnn` minutes.
PRESETS: Mapping[str, str] = MappingProxyType(
    {
        "lr": "flatten",
        "dnn": "flatten dense:128 dense:64",
        "dcnn": "conv:512:5:leaky_relu pool:2 conv:1024:3:leaky_relu pool:2 conv:2048:3:leaky_relu "
        "conv:2048:3:leaky_relu flatten",
        "small-dcnn": "conv:32:5:leaky_relu pool:2 conv:64:3:leaky_relu pool:2 conv:64:3:leaky_relu flatten",
    }
)


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
        """Return the number of values in a row."""
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

    def gram(self, shape: Shape, n: int) -> RowGram:
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
        """Return the number of values in a patch."""
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

    def gram(self, shape: Shape, n: int) -> "RowGram | WindowGram":
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
    """Return the number of rows that a layer makes of a sample."""
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


def patch_sums(x: Array, size: int) -> Array:
    """Return the sum of each image's patches, (n, d).

    An element of the patch moves over a rectangle of the image: sums of lines, then of columns.
    """
    return _sums_along(_sums_along(x, size, 1), size, 2).reshape(len(x), size * size * x.shape[3])


def _sums_along(x: Array, size: int, axis: int) -> Array:
    """Return for each of the `size` places in a window the sum over all windows along an axis."""
    seen = x.shape[axis] - size + 1
    index = [slice(None)] * x.ndim
    sums = []
    for place in range(size):
        index[axis] = slice(place, place + seen)
        sums.append(x[tuple(index)].sum(axis=axis))
    return np.stack(sums, axis=axis)


def fold(kernels: Array, shape: tuple[int, ...], size: int) -> Array:
    """Return weights (height · width · channels, c) of an image: each position's kernel (positions, d, c) at its place.

    >>> fold(np.ones((4, 4, 1)), (3, 3, 1), 2).reshape(3, 3)
    array([[1., 2., 1.],
           [2., 4., 2.],
           [1., 2., 1.]])
    """
    height, width, channels = shape
    rows, columns, c = height - size + 1, width - size + 1, kernels.shape[2]
    placed, image = kernels.reshape(rows, columns, size, size, channels, c), np.zeros((*shape, c))
    for i, j in product(range(size), repeat=2):
        image[i : i + rows, j : j + columns] += placed[:, :, i, j]
    return image.reshape(height * width * channels, c)


def convolve(x: Array, kernels: Array, size: int) -> Array:
    """Return patches (n · positions, d) times kernels (d, c).

    Each pixel is multiplied by the kernels' numbers for every place in a window; a window adds up those of its own.
    """
    n, height, width, channels = x.shape
    rows, columns, c = height - size + 1, width - size + 1, kernels.shape[1]
    by_place = kernels.reshape(size * size, channels, c).transpose(1, 0, 2).reshape(channels, size * size * c)
    total = np.zeros((n, rows, columns, c))
    at_once = max(1, PRODUCT_BYTES // (8 * height * width * by_place.shape[1]))
    for start in range(0, n, at_once):
        images = x[start : start + at_once]
        products = (images.reshape(-1, channels) @ by_place).reshape(*images.shape[:3], size * size, c)
        for place, (i, j) in enumerate(product(range(size), repeat=2)):
            total[start : start + at_once] += products[:, i : i + rows, j : j + columns, place]
    return total.reshape(-1, c)


def saving(shape: tuple[int, ...], size: int) -> float:
    """Return the operations for the Gram matrix of all patches, as a multiple of those of `WindowGram`.

    >>> saving((14, 14, 512), 3)
    2.7176...
    """
    height, width, _ = shape
    along = [sum(length - abs(offset) for offset in range(1 - size, size)) for length in (height, width)]
    # Of two opposite offsets one is multiplied, and of none the whole symmetric product.
    pieces = along[0] * along[1] + height * width
    return size**4 * (height - size + 1) * (width - size + 1) / pieces


class WindowGram:
    """The Gram matrix of the patches of images that come batch by batch.

    Its block for places (i, j) and (i', j') of the window is a sum of products of pixels that are (i' - i, j' - j)
    apart. Blocks of the same offset sum over rectangles of the image that are the same but for their borders. So the
    rectangles are cut where one of them begins or ends, each piece is multiplied once, and a block adds up its pieces:
    for windows of 3 × 3 a third to a half of the operations.

    >>> x = np.arange(32.0).reshape(2, 4, 4, 1)
    >>> gram = WindowGram((4, 4, 1), 2)
    >>> gram.add(x)
    >>> patches = np.lib.stride_tricks.sliding_window_view(x[..., 0], (2, 2), axis=(1, 2)).reshape(-1, 4)
    >>> bool(np.allclose(packing.unpack(gram.packed(), 4), patches.T @ patches))
    True
    """

    def __init__(self, shape: tuple[int, ...], size: int) -> None:
        height, width, channels = shape
        self._size, self._rows, self._columns, self._channels = size, height - size + 1, width - size + 1, channels
        keys = [(offset, (top, left)) for offset, (top, _), (left, _) in self._pieces()]
        # One array goes back to the system as a whole; many of some megabytes each leave its memory in fragments.
        sums = np.zeros((len(keys), channels, channels))
        self._sums = {key: sums[i].T for i, key in enumerate(keys)}  # by offset, and by where the piece begins

    def add(self, x: Array) -> None:
        """Add the patches of images (n, height, width, channels)."""
        pixels = np.ascontiguousarray(x.transpose(1, 2, 0, 3))  # a run of pixels of one line lies in one piece
        for (down, right), (top, bottom), (left, end) in self._pieces():
            total, first = self._sums[(down, right), (top, left)], max(0, -right)
            for line in range(top, bottom):
                here = pixels[line, first + left : first + end]
                there = pixels[line + down, first + left + right : first + end + right]
                blas.add_product(total, *(part.reshape(-1, self._channels) for part in (there, here)))

    def packed(self) -> Array:
        """Return the matrix as `packing` packs it."""
        d = self._size**2 * self._channels
        packed = np.zeros(packing.size(d))
        for row, column, block in self._blocks():
            packing.add_block(packed, d, row, column, block)
        return packed

    def _blocks(self) -> Iterator[tuple[int, int, Array]]:
        """Yield (first row, first column, block) for each pair of places, on and below the diagonal."""
        size, channels = self._size, self._channels
        for (down, right), pieces in groupby(self._pieces(), key=itemgetter(0)):
            cut, first = list(pieces), max(0, -right)
            for i, j in product(range(size - down), range(size - abs(right))):
                block = np.zeros((channels, channels), order="F")
                for offset, (top, bottom), (left, end) in cut:
                    if i <= top and bottom <= i + self._rows and j <= left and end <= j + self._columns:
                        block += self._sums[offset, (top, left)]
                yield ((i + down) * size + first + j + right) * channels, (i * size + first + j) * channels, block

    def _pieces(self) -> Iterator[tuple[Offset, Span, Span]]:
        """Yield (offset, lines, columns) of each piece.

        The offset is the distance, down and to the right, between two places in a window; each pair comes once.
        """
        for down in range(self._size):
            for right in range(1 - self._size if down else 0, self._size):
                lines, columns = _cut(self._size - down, self._rows), _cut(self._size - abs(right), self._columns)
                for span in product(lines, columns):
                    yield (down, right), *span


def _cut(starts: int, length: int) -> list[Span]:
    """Return the pieces between all ends of the intervals of this length that begin at 0 … starts - 1.

    >>> _cut(3, 12)
    [(0, 1), (1, 2), (2, 12), (12, 13), (13, 14)]
    """
    return list(pairwise(sorted({*range(starts), *range(length, length + starts)})))


@lru_cache(maxsize=64)
def read_stack(text: str) -> tuple[Layer, ...]:
    """Return the layers of a line of text, which may name presets."""
    return tuple(_read_layer(word) for part in text.split() for word in PRESETS.get(part, part).split())


def _read_layer(word: str) -> Layer:
    name, *arguments = word.split(":")
    if name not in _KINDS:
        raise UnknownName("layer or network", name, [*_KINDS, *PRESETS])
    read, example = _KINDS[name]
    try:
        return read(arguments)
    except FedgramError:
        raise
    except (TypeError, ValueError):
        raise InvalidParameter(f"layer {word!r}: expected {example}") from None


def _sized(kind: Callable[..., Layer]) -> Callable[[Sequence[str]], Layer]:
    """Return a reader of layers with sizes and, at the end, the name of an activation."""

    def read(arguments: Sequence[str]) -> Layer:
        *sizes, activation = [*arguments, ""] if not arguments or _is_number(arguments[-1]) else arguments
        return kind(*map(int, sizes), *filter(None, [activation]))

    return read


def _read_normalization(arguments: Sequence[str]) -> Layer:
    mean, std = ([float(number) for number in argument.split(",")] for argument in arguments)
    return Normalization(tuple(mean), tuple(std))


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


_KINDS: Mapping[str, tuple[Callable[[Sequence[str]], Layer], str]] = {
    "normalize": (_read_normalization, "MEAN:STD as in normalize:0.5:0.25 or normalize:0.49,0.48,0.45:0.25,0.24,0.26"),
    "dense": (_sized(Dense), "a whole number as in dense:128 or dense:128:tanh"),
    "conv": (_sized(Convolution), "whole numbers as in conv:32:5 or conv:32:5:leaky_relu"),
    "pool": (_sized(AveragePooling), "a whole number as in pool:2"),
    "flatten": (_sized(Flatten), "flatten alone"),
}

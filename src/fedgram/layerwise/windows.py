"""Sums over all windows of images, without cutting the windows out.

Windows overlap, so most of what their patches hold is the same pixels again. Images are (n, height, width, channels), a
patch is in the order (row, column, channel).
"""

from collections.abc import Iterator
from itertools import groupby, pairwise, product
from operator import itemgetter
from typing import TypeAlias

import numpy as np

from fedgram.core.arrays import Array
from fedgram.moments import blas, packing

# What pixels times kernels may take at a time: it should stay in the cache until it is added up.
PRODUCT_BYTES = 2**22
Offset: TypeAlias = tuple[int, int]
Span: TypeAlias = tuple[int, int]


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
    """Return how many times as many operations the Gram matrix of all patches takes as `WindowGram`.

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

        The offset is how far down and to the right the second of two places in a window is; backwards is the same.
        """
        for down in range(self._size):
            for right in range(1 - self._size if down else 0, self._size):
                lines, columns = _cut(self._size - down, self._rows), _cut(self._size - abs(right), self._columns)
                for span in product(lines, columns):
                    yield (down, right), *span


def _cut(starts: int, length: int) -> list[Span]:
    """Return the pieces of which intervals of a length, one beginning at each of 0 … starts - 1, are made up.

    >>> _cut(3, 12)
    [(0, 1), (1, 2), (2, 12), (12, 13), (13, 14)]
    """
    return list(pairwise(sorted({*range(starts), *range(length, length + starts)})))

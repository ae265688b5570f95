"""Samples that are too many to hold: rows read in blocks on each pass, and their labels in a byte or so each."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.core.blocks import Stream
from fedgram.core.labels import Classes, Label, to_indices


class StreamedRows(Stream[Array]):
    """Samples (n, d), read anew on each pass; `np.asarray` reads them all, for whoever needs all at once.

    `sizes` says how many rows each block has.
    """

    sizes: tuple[int, ...]
    ndim, dtype = 2, np.dtype(np.float64)

    @property
    @abstractmethod
    def width(self) -> int:
        """How many columns there are."""

    @property
    def shape(self) -> tuple[int, int]:
        """(n, d)."""
        return len(self), self.width

    def __len__(self) -> int:
        return sum(self.sizes)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return all samples in memory."""
        if copy is False:
            raise ValueError("samples that are read from a file cannot be an array without a copy")
        whole, end = np.empty(self.shape, dtype=dtype or self.dtype), 0
        for block in self:
            whole[end : end + len(block)] = block
            end += len(block)
        return whole

    def reordered(self, places: npt.NDArray[np.intp]) -> "StreamedRows":
        """Return the samples with their columns in another order."""
        return _Reordered(self, places)


@dataclass(frozen=True, eq=False)
class _Reordered(StreamedRows):
    rows: StreamedRows
    places: npt.NDArray[np.intp]

    @property
    def sizes(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.rows.sizes

    @property
    def width(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Array]:
        return (np.ascontiguousarray(block[:, self.places]) for block in self.rows)


@dataclass(frozen=True, eq=False)
class StreamedLabels:
    """Labels of streamed samples: sample i has `values[codes[i]]`. A value may not occur at all."""

    values: tuple[Label, ...]
    codes: npt.NDArray[np.integer[Any]]

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the labels themselves."""
        return np.asarray(self.values).dtype

    def __len__(self) -> int:
        return len(self.codes)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return the label of each sample."""
        return np.asarray(np.asarray(self.values, dtype=dtype)[self.codes])

    def counts(self) -> dict[Label, int]:
        """Return how many samples have each label that occurs."""
        found = np.bincount(self.codes, minlength=len(self.values)).tolist()
        return {label: count for label, count in zip(self.values, found, strict=True) if count}

    def indices(self, classes: Classes) -> "StreamedLabels":
        """Return the labels' indices among the classes; a label that is not among them is refused."""
        occurring, places = self.counts(), [0] * len(self.values)
        for place, label in enumerate(self.values):
            if label in occurring:
                [places[place]] = to_indices([label], classes).tolist()
        return StreamedLabels(tuple(places), self.codes)

    def blocks(self, rows: StreamedRows) -> Stream[npt.NDArray[Any]]:
        """Return the labels in blocks, as the rows are that they belong to."""
        return _LabelBlocks(self, rows.sizes)


@dataclass(frozen=True, eq=False)
class _LabelBlocks(Stream[npt.NDArray[Any]]):
    labels: StreamedLabels
    sizes: tuple[int, ...]

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        values, end = np.asarray(self.labels.values), 0
        for size in self.sizes:
            yield values[self.labels.codes[end : end + size]]
            end += size

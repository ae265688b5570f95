"""A client: one party with its own samples, which may be too many to hold and are then read in blocks on each pass."""

import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array, Stream
from fedgram.core.classes import Classes, Label, as_labels, from_indices, to_indices
from fedgram.core.columns import Columns, as_columns, as_table, names_of, order, samples_of
from fedgram.core.errors import FedgramError, InvalidData, InvalidParameter, Revealing
from fedgram.core.randomness import generator
from fedgram.data.dataset import Dataset


class StreamedRows(Stream[Array]):
    """Samples (n, d), read anew on each pass; `np.asarray` reads all of them into memory.

    `sizes` says how many rows each block has.
    """

    sizes: tuple[int, ...]
    ndim, dtype = 2, np.dtype(np.float64)

    @property
    @abstractmethod
    def width(self) -> int:
        """The number of columns."""

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

    def some(self, chosen: npt.NDArray[np.bool_]) -> "StreamedRows":
        """Return the samples that a mask (n,) chooses."""
        return _Some(self, chosen)


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
class _Some(StreamedRows):
    rows: StreamedRows
    chosen: npt.NDArray[np.bool_]

    @property
    def sizes(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(size for size in (int(mask.sum()) for mask in self._masks()) if size)

    @property
    def width(self) -> int:
        return self.rows.width

    def _masks(self) -> Iterator[npt.NDArray[np.bool_]]:
        yield from np.split(self.chosen, np.cumsum(self.rows.sizes)[:-1])

    def __iter__(self) -> Iterator[Array]:
        pairs = zip(self.rows, self._masks(), strict=True)
        return (np.ascontiguousarray(block[mask]) for block, mask in pairs if mask.any())


@dataclass(frozen=True, eq=False)
class StreamedLabels:
    """Labels of streamed samples: sample i has `values[codes[i]]`. A value may not occur at all."""

    values: tuple[Label, ...]
    codes: npt.NDArray[np.integer[Any]]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the labels themselves."""
        return np.asarray(self.values).dtype

    def __len__(self) -> int:
        return len(self.codes)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return the label of each sample."""
        return np.asarray(np.asarray(self.values, dtype=dtype)[self.codes])

    def counts(self) -> dict[Label, int]:
        """Return the number of samples of each label that occurs."""
        found = np.bincount(self.codes, minlength=len(self.values)).tolist()
        return {label: count for label, count in zip(self.values, found, strict=True) if count}

    def indices(self, classes: Classes) -> "StreamedLabels":
        """Return the labels' indices among the classes; a label that is not among them is refused."""
        occurring, places = self.counts(), [0] * len(self.values)
        for place, label in enumerate(self.values):
            if label in occurring:
                [places[place]] = to_indices([label], classes).tolist()
        return StreamedLabels(tuple(places), self.codes)

    def some(self, chosen: npt.NDArray[np.bool_]) -> "StreamedLabels":
        """Return the labels that a mask (n,) chooses."""
        return StreamedLabels(self.values, self.codes[chosen])

    def blocks(self, rows: StreamedRows) -> Stream[npt.NDArray[Any]]:
        """Return the labels in the same blocks as their rows."""
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


@dataclass(frozen=True, eq=False)
class Client:
    """One party's samples, under a name that is unique among the parties.

    `x` is (n, d) features or images, `y` (n,) whole numbers or names; `x_test`, `y_test` are held back for evaluation.
    `features` is the fingerprint of the backbone that made x, "" for features as they came. `columns` are the names of
    the columns of x; a table (pandas, polars, Arrow) brings them along.

    Samples that are too many to hold are `StreamedRows` with `StreamedLabels`, instead of arrays.

    >>> Client("ward-3", np.zeros((5, 2)), ["ill", "well", "well", "ill", "well"])
    Client('ward-3': 5 samples of shape (2,), 0 for testing)
    """

    name: str
    x: Any
    y: Any
    x_test: Any = None
    y_test: Any = None
    features: str = ""
    columns: Columns = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidData(f"a client's name must be a non-empty string, got {self.name!r}")
        if (self.x_test is None) != (self.y_test is None):
            raise InvalidData(f"client {self.name!r}: give both x_test and y_test, or neither")
        object.__setattr__(self, "x", as_table(self.x))
        object.__setattr__(self, "columns", self._named())
        self._adopt("x", "y")
        if self.x_test is not None:
            self._adopt("x_test", "y_test")
            if len(self.x_test) and len(self.x) and self.x_test.shape[1:] != self.x.shape[1:]:
                raise InvalidData(
                    f"client {self.name!r}: x has samples of shape {self.x.shape[1:]}, x_test {self.x_test.shape[1:]}"
                )

    def reordered(self, columns: Columns) -> Self:
        """Return the client with its columns in that order; others than these are refused by name.

        An array without names is left as it is.
        """
        if not self.columns or not columns or columns == self.columns:
            return self
        places = order(self.columns, columns)
        x, x_test = (None if part is None else _reordered(part, places) for part in (self.x, self.x_test))
        return replace(self, x=x, x_test=x_test, columns=columns)

    def some(self, chosen: npt.NDArray[np.bool_]) -> Self:
        """Return the client with the training samples that a mask (n,) chooses, and none for testing."""
        x, y = (
            part.some(chosen) if isinstance(part, StreamedRows | StreamedLabels) else np.asarray(part)[chosen]
            for part in (self.x, self.y)
        )
        return replace(self, x=x, y=y, x_test=None, y_test=None)

    def label_counts(self) -> dict[Label, int]:
        """Return the number of training samples of each label that occurs among them.

        >>> Client("ward-3", np.zeros((3, 2)), ["ill", "well", "well"]).label_counts()
        {'ill': 1, 'well': 2}
        """
        return _counts(self.y)

    def labels(self) -> list[Label]:
        """Return the labels that occur among training or test samples, sorted."""
        return sorted({*_counts(self.y), *(() if self.y_test is None else _counts(self.y_test))})

    def _named(self) -> Columns:
        try:
            return as_columns(self.columns) or names_of(self.x)
        except InvalidData as error:
            raise InvalidData(f"client {self.name!r}: {error}") from error

    def _adopt(self, samples: str, labels: str) -> None:
        if isinstance(getattr(self, samples), StreamedRows):
            return  # they were checked when they were first read
        try:
            what = samples
            x = samples_of(getattr(self, samples), self.columns)
            if x.ndim == 2:
                as_columns(self.columns, x.shape[1])
            what = labels
            y = as_labels(getattr(self, labels))
        except FedgramError as error:
            raise InvalidData(f"client {self.name!r}: {what}: {error}") from error
        except ValueError as error:  # numpy's word for rows of unequal length
            raise InvalidData(f"client {self.name!r}: {samples} is not an array of numbers: {error}") from error
        if x.ndim < 2 and x.size:
            raise InvalidData(f"client {self.name!r}: {samples} must have shape (n, d) or be images, got {x.shape}")
        if len(x) != len(y):
            raise InvalidData(f"client {self.name!r}: {len(x)} samples in {samples} but {len(y)} labels in {labels}")
        object.__setattr__(self, samples, x)
        object.__setattr__(self, labels, y)

    def __repr__(self) -> str:
        tested = 0 if self.x_test is None else len(self.x_test)
        return f"Client({self.name!r}: {len(self.x)} samples of shape {self.x.shape[1:]}, {tested} for testing)"


def _reordered(samples: Any, places: npt.NDArray[np.intp]) -> Any:
    if isinstance(samples, StreamedRows):
        return samples.reordered(places)
    # Laid out row by row, as all clients' samples are: sums over another layout differ in their last bits.
    return np.ascontiguousarray(samples[:, places])


def _counts(y: npt.NDArray[Any] | StreamedLabels) -> dict[Label, int]:
    if isinstance(y, StreamedLabels):
        return y.counts()
    values, counts = np.unique(y, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def usual_names(count: int) -> list[str]:
    """Return default names for `count` clients.

    >>> usual_names(2)
    ['client-0', 'client-1']
    """
    digits = len(str(max(count - 1, 0)))
    return [f"client-{k:0{digits}d}" for k in range(count)]


def make_clients(
    data: Dataset,
    parts: Sequence[Any],
    *,
    test_fraction: float = 0.2,
    seed: int = 0,
    names: Sequence[str] | None = None,
) -> list[Client]:
    """Return one client per index array in `parts`, with a random split into training and test samples inside each.

    FedHiP and APFL hold back one sample in five (8:2). A client always keeps at least one sample to train on. Where the
    data set's own test samples have owners, a client of that name has them to test on, if `test_fraction` is 0.
    """
    if not 0 <= test_fraction < 1:
        raise InvalidParameter(f"test_fraction must be at least 0 and less than 1, got {test_fraction}")
    names = names or usual_names(len(parts))
    clients = []
    for name, part in zip(names, parts, strict=True):
        shuffled = generator(seed, "split", name).permutation(part)
        held_back = min(round(len(part) * test_fraction), max(len(part) - 1, 0))
        # Sorted indices read a memory-mapped array from front to back.
        test, train = np.sort(shuffled[:held_back]), np.sort(shuffled[held_back:])
        x_test, y_test = data.x[test], data.y[test]
        if data.groups_test is not None and data.y_test is not None and not test_fraction:
            own = np.flatnonzero(data.groups_test == name)
            x_test, y_test = data.x_test[own], data.y_test[own]
        y, y_test = (from_indices(part, data.classes) for part in (data.y[train], y_test))
        clients.append(Client(name, data.x[train], y, x_test, y_test, data.features, data.columns))
    return clients


def warn_if_few(party: str, columns: int, used: int) -> None:
    """Warn a client that its sums reveal its samples if they are of no more samples than columns."""
    if 0 < used <= columns:
        warnings.warn(
            f"party {party!r} sends sums of {used} samples in {columns} columns: with no more samples than "
            "columns, sums of products determine the samples up to a rotation, and columns of 0 and 1 often settle the "
            "rotation, so that single rows can be recovered; merge with another site before anything is sent, or drop "
            "columns",
            Revealing,
            stacklevel=3,
        )

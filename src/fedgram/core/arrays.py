"""Arrays of float64, and blocks of rows that can be read any number of times: one block in memory, or a stream.

Results for blocks in memory stay in memory. Results for a stream are computed anew on each pass (`lazily`), or computed
once and then read from a temporary file (`each`).
"""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar
from weakref import finalize

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import InvalidData

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Array: TypeAlias = npt.NDArray[np.float64]
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def unmasked(x: T, what: str) -> T:
    """Return an array as it is; raise for a masked array, whose masked values would be used as data.

    >>> unmasked(np.ma.masked_equal([1.0, -99.0], -99.0), "features")
    Traceback (most recent call last):
    fedgram.core.errors.InvalidData: features: expected an array without a mask, got a masked array with 1 of 2 ...
    """
    if isinstance(x, np.ma.MaskedArray):
        array: Any = x
        raise InvalidData(
            f"{what}: expected an array without a mask, got a masked array with {np.ma.getmaskarray(array).sum():,} of "
            f"{array.size:,} values masked; impute them first, or give x.filled(value)"
        ).telling(f"{what} must not be masked")
    return x


def as_sparse(x: Any) -> "csr_array | None":
    """Return the rows (n, d) of a sparse matrix or array of SciPy, float64; None for anything else."""
    if not is_sparse(x):
        return None
    from scipy.sparse import csr_array

    if x.ndim != 2 or not x.shape[1]:
        raise InvalidData(f"features: expected shape (n, d) with d ≥ 1, got a sparse array of shape {x.shape}")
    if x.dtype.kind not in "fiub":
        raise InvalidData(f"features: expected numbers, got a sparse array of {x.dtype}; convert it to numbers")
    return csr_array(x, dtype=np.float64)


def is_sparse(x: object) -> bool:
    """Return whether this is a sparse matrix or array of SciPy, without importing `scipy.sparse`."""
    return hasattr(x, "tocsr")


def dense(x: Any, what: str) -> npt.NDArray[Any]:
    """Return an array; raise for a masked array, and for a sparse one, which may not fit into memory.

    >>> from scipy.sparse import csr_array
    >>> dense(csr_array((3, 2)), "features")
    Traceback (most recent call last):
    fedgram.core.errors.InvalidData: features: expected an array, got a sparse one of shape (3, 2); give ...
    """
    if is_sparse(x):
        raise InvalidData(
            f"{what}: expected an array, got a sparse one of shape {x.shape}; give x.toarray(), or use what takes "
            "sparse features: fg.Moments.of, a linear model, GramClassifier and GramRegressor"
        ).telling(f"{what} must not be sparse")
    return np.asarray(unmasked(x, what))


class Stream(ABC, Generic[T_co]):
    """Blocks that are made anew on each pass."""

    @abstractmethod
    def __iter__(self) -> Iterator[T_co]:
        """Begin another pass."""


Blocks: TypeAlias = Sequence[T] | Stream[T]


def as_blocks(x: npt.NDArray[Any] | Blocks[npt.NDArray[Any]]) -> Blocks[npt.NDArray[Any]]:
    """Return an array as one block, and blocks as they are."""
    return [x] if isinstance(x, np.ndarray) else x


def together(blocks: Blocks[npt.NDArray[Any]]) -> npt.NDArray[Any] | Stream[npt.NDArray[Any]]:
    """Return the one block that is in memory, or a stream as it is: what `as_blocks` takes."""
    if isinstance(blocks, Stream):
        return blocks
    [whole] = blocks
    return whole


def lazily(function: Callable[..., T], *blocks: Blocks[Any]) -> Blocks[T]:
    """Return the function's results block by block; for a stream they are computed anew on each pass.

    >>> lazily(np.sum, [np.ones(2), np.ones(3)])
    [np.float64(2.0), np.float64(3.0)]
    """
    made = _Made(function, blocks)
    return made if any(isinstance(given, Stream) for given in blocks) else list(made)


def each(function: Callable[..., Array], *blocks: Blocks[Any]) -> Blocks[Array]:
    """Return the results of `lazily`, computed once; a stream's go into a temporary file, so keep rows small."""
    made = lazily(function, *blocks)
    return _Spool(made) if isinstance(made, Stream) else made


@dataclass(frozen=True, eq=False)
class _Made(Stream[T]):
    function: Callable[..., T]
    blocks: Sequence[Blocks[Any]]

    def __iter__(self) -> Iterator[T]:
        return (self.function(*parts) for parts in zip(*self.blocks, strict=True))


@contextmanager
def _writing() -> Iterator[None]:
    """Turn an `OSError` about the temporary file (disk full, missing folder) into an error with a remedy."""
    try:
        yield
    except OSError as error:
        where = tempfile.tempdir or "the temporary folder"  # `gettempdir` would raise where there is none
        raise InvalidData(
            f"cannot write what was computed for a large table into {where}: {error.strerror or error}; set TMPDIR to "
            "a folder that exists and has more room"
        ).telling("the temporary folder is full or cannot be written") from error


def _close(file: IO[bytes]) -> None:
    with suppress(OSError):  # a full disk raises here again, after it was reported
        file.close()


class _Spool(Stream[Array]):
    """Blocks in an unnamed temporary file, which is removed with them."""

    def __init__(self, blocks: Stream[Array]) -> None:
        with _writing():
            self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `finalize`, with the last that reads it
        finalize(self, _close, self._file)
        self._shapes: list[tuple[int, ...]] = []
        for block in blocks:  # not inside `_writing`: the file that is read may raise errors of its own
            with _writing():
                self._file.write(np.ascontiguousarray(block, dtype=np.float64).data)
            self._shapes.append(block.shape)
        with _writing():
            self._file.flush()  # a full disk may show only here

    def __iter__(self) -> Iterator[Array]:
        start = 0
        for shape in self._shapes:
            block = np.empty(shape)
            self._file.seek(start)  # several passes may be under way at once
            self._file.readinto(block.data)  # type: ignore[attr-defined]
            start += block.nbytes
            yield block

"""Data sets with features in place of samples, computed once by a backbone and kept on disk.

The features are a matrix that grows block by block, survives a kill at any moment, and detects damage. Three files
share a name: `.part`, which becomes `.npy` (an ordinary NumPy file) when complete; `.journal`, a line that describes
the matrix, then a checksum per finished block; and a lock. A block counts once its checksum is in the journal and
agrees with the data, so nothing has to be forced to disk while the matrix grows.
"""

import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedgram.core.cache import cache_folder, cache_lock, writing_cache
from fedgram.core.errors import CacheError, InvalidData, InvalidParameter
from fedgram.core.filesystem import replace_file, slug
from fedgram.core.hashing import hash_parts
from fedgram.core.progress_bars import count_bar
from fedgram.data import load_dataset
from fedgram.data.dataset import Dataset
from fedgram.features.backbones.backbone import Backbone, Features
from fedgram.features.backbones.named_backbones import backbone as backbone_of
from fedgram.features.backbones.named_backbones import without_folders

LAYOUT = 1  # raise when the files change their meaning: older ones are then ignored
BLOCK = 512  # rows; at most these are computed again after a kill


class Store:
    """The matrix (rows, dim) float32 called `name` in `folder`; `about` identifies its content."""

    def __init__(self, folder: Path, name: str, rows: int, about: dict[str, str]) -> None:
        self._rows = rows
        self._about = {"layout": LAYOUT, "rows": rows, "block": BLOCK, **about}
        self._part, self._whole, self._journal, self.lock = (
            folder / f"{name}{suffix}" for suffix in (".part", ".npy", ".journal", ".lock")
        )

    def open(self) -> Features | None:
        """Return the whole matrix, mapped into memory, read-only; None if it is not there or damaged."""
        dim, sums = self._read_journal()
        if dim is None or not self._whole.is_file() or self._whole.stat().st_size != self._bytes(dim):
            return None
        if self._intact(self._whole, dim, sums) != self._rows:
            return None
        features: Features = np.load(self._whole, mmap_mode="r", allow_pickle=False)
        return features

    def fill(self, dim: int) -> "Filling":
        """Return open files, with the features that an earlier process has written."""
        known, sums = self._read_journal()
        if self._whole.exists():
            # Complete but not opened: damaged, or of another layout. Keep what is still right.
            with writing_cache(self._part):
                os.replace(self._whole, self._part)
        done = self._intact(self._part, dim, sums) if known == dim and self._part.is_file() else 0
        header = _header(self._rows, dim)
        lines = [json.dumps({**self._about, "dim": dim}), *(f"{s:08x}" for s in sums[: -(-done // BLOCK)])]
        with writing_cache(self._part):
            with self._part.open("r+b" if done else "wb") as part:
                part.write(header)
                part.truncate(len(header) + done * dim * 4)
            replace_file(self._journal, "".join(f"{line}\n" for line in lines).encode("ascii"))
        return Filling(self._part, self._journal, done)

    def finish(self) -> None:
        """Give the complete matrix its final name."""
        with writing_cache(self._whole):
            for path in (self._part, self._journal):
                with path.open("r+b") as file:
                    os.fsync(file.fileno())
            os.replace(self._part, self._whole)

    def _bytes(self, dim: int) -> int:
        return len(_header(self._rows, dim)) + self._rows * dim * 4

    def _read_journal(self) -> tuple[int | None, list[int]]:
        """Return the matrix's width and its blocks' checksums; None and nothing if it is another matrix's."""
        try:
            first, *lines = self._journal.read_text(encoding="ascii").splitlines()
            about = json.loads(first)
            dim = int(about.pop("dim"))
            if about != self._about:
                return None, []
            return dim, [int(line, 16) for line in lines if len(line) == 8]  # a kill may cut the last line short
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            return None, []

    def _intact(self, path: Path, dim: int, sums: list[int]) -> int:
        """Return the number of rows, from the first on, that agree with the journal."""
        done = 0
        with path.open("rb") as file:
            if file.read(len(_header(self._rows, dim))) != _header(self._rows, dim):
                return 0
            for rows, expected in zip(self._blocks(), sums, strict=False):
                block = file.read(rows * dim * 4)
                if len(block) != rows * dim * 4 or zlib.crc32(block) != expected:
                    break
                done += rows
        return done

    def _blocks(self) -> Iterator[int]:
        for start in range(0, self._rows, BLOCK):
            yield min(BLOCK, self._rows - start)


class Filling:
    """Open files to which blocks are added; `done` rows are there already."""

    def __init__(self, part: Path, journal: Path, done: int) -> None:
        self.done = done
        self._part, self._journal = part, journal
        self._files: list[IO[bytes]] = []

    def __enter__(self) -> "Filling":
        with writing_cache(self._part):
            self._files = [path.open("ab", buffering=0) for path in (self._part, self._journal)]
        return self

    def __exit__(self, *error: Any) -> None:
        for file in self._files:
            file.close()

    def add(self, block: Features) -> None:
        """Write the next block, then its checksum."""
        data = np.ascontiguousarray(block, dtype="<f4").tobytes()
        for file, content in zip(self._files, (data, f"{zlib.crc32(data):08x}\n".encode()), strict=True):
            with writing_cache(self._part):
                rest = memoryview(content)
                while rest:
                    rest = rest[file.write(rest) :]
        self.done += len(block)


def _header(rows: int, dim: int) -> bytes:
    """Return the header of a NumPy file of the matrix."""
    buffer = BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)})
    return buffer.getvalue()


def extract(
    x: Any,
    backbone: Backbone,
    *,
    data_fingerprint: str,
    cache: Path | str | None = None,
    batch: int | None = None,
    progress: bool | None = None,
) -> Features:
    """Return the features (n, d) float32 of the samples `x`, as a read-only array mapped from disk.

    Features with the same fingerprints are computed once and opened from then on. A second process waits for the
    first, and an extraction that was killed goes on where it stopped. Memory does not grow with n.

    Parameters
    ----------
    x
        The samples: has `len`, and gives a batch for a slice.
    backbone
        The backbone.
    data_fingerprint
        The identity of the samples; other samples, or another order, need another fingerprint.
    cache
        A folder in place of the cache.
    batch
        The number of samples at a time, by default the backbone's own.
    progress
        Whether to show a bar on the error stream, by default if that is a terminal.

    """
    size = int(getattr(backbone, "batch", 64)) if batch is None else batch
    if size < 1:
        raise InvalidParameter(f"batch {size} must be at least 1")
    if len(x) == 0:
        return np.zeros((0, backbone.dim), dtype=np.float32)
    about = {"data": data_fingerprint, "backbone": backbone.fingerprint}
    folder = cache_folder(cache, "features")
    store = Store(folder, f"{slug(backbone.name)}-{hash_parts(about, len(x))[:24]}", len(x), about)
    features = store.open()
    if features is not None:
        return features
    with cache_lock(store.lock, f"these features ({backbone.name})"):
        features = store.open()  # another process may have just finished it
        if features is None:
            _fill(store, x, backbone, size, progress)
            features = store.open()
    if features is None:
        raise CacheError(f"features written to {folder} read back differently: check the disk, or set FEDGRAM_CACHE")
    return features


def _fill(store: Store, x: Any, backbone: Backbone, batch: int, show: bool | None) -> None:
    text = f"features of {backbone.name}"
    with (
        store.fill(backbone.dim) as filling,
        count_bar(text, len(x), show, done=filling.done, transient=True) as advance,
    ):
        for start in range(filling.done, len(x), BLOCK):
            stop = min(start + BLOCK, len(x))
            block = np.empty((stop - start, backbone.dim), dtype=np.float32)
            for first in range(start, stop, batch):
                last = min(first + batch, stop)
                block[first - start : last - start] = _checked(backbone, x[first:last], first, last)
                advance(last - first)
            filling.add(block)
    store.finish()


def _checked(backbone: Backbone, samples: Any, first: int, last: int) -> Features:
    features = backbone(samples)
    if features.shape != (last - first, backbone.dim):
        raise InvalidData(
            f"{backbone.name} gave shape {features.shape} for samples {first} … {last - 1}: "
            f"expected {(last - first, backbone.dim)}"
        )
    if not np.isfinite(features).all():
        bad = first + int(np.flatnonzero(~np.isfinite(features).all(axis=1))[0])
        raise InvalidData(f"{backbone.name} gave a feature that is not a finite number for sample {bad}")
    return features


PIXELS, IMAGES = "pixels", "images"


def load_features(
    name: str | Dataset,
    *,
    backbone: str | Backbone | None = None,
    samples: int | None = None,
    own_test: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> Dataset:
    """Return a data set, given by name, path or object, as features, ready to be spread over clients.

    Parameters
    ----------
    name
        The name, path or object.
    backbone
        The backbone, by name or as an object; None for samples that are features already.
    samples
        The number of samples to take, by default all.
    own_test
        Whether to keep the data set's own test set apart (it must have one). Otherwise it is pooled with the rest, for
        clients to hold back their own.
    progress
        Whether to show progress bars, by default if stderr is a terminal.
    **options
        Options of `load_dataset`.

    """
    data = _load(name, samples, own_test, options)
    # Features of whole data sets are extracted before pooling, so that both ways of testing share them.
    data = featurize(data, backbone, progress=progress)
    return data if own_test else data.pooled()


def load_samples(name: str | Dataset, *, samples: int | None = None, own_test: bool = False, **options: Any) -> Dataset:
    """Return a data set as `load_features` does, with its samples unchanged: for steps that come before a backbone."""
    data = _load(name, samples, own_test, options)
    return data if own_test else data.pooled()


def featurize(data: Dataset, backbone: str | Backbone | None, *, progress: bool | None = None) -> Dataset:
    """Return the data set with features in place of its samples, extracted once and kept on disk.

    Parameters
    ----------
    data
        The data set.
    backbone
        The backbone, by name or as an object. None takes samples that are features already; "images" takes images
        (n, height, width, channels) scaled to [0, 1], for networks that learn from them; "pixels" makes each a row.
    progress
        Whether to show progress bars, by default if stderr is a terminal.

    Examples
    --------
    >>> from fedgram.data import digits
    >>> featurize(digits(), None).x.shape
    (1797, 64)

    """
    if backbone is None:
        if _are_features(data.x):
            return data
        wrong = f"holds {_kind(data.x)}, not features: choose a backbone, {_advice(data.x)}"
        raise InvalidParameter(f"{data.name} {wrong}").telling(f"the data set {wrong}")
    if _are_features(data.x):
        wrong = "holds features already: leave the backbone out"
        raise InvalidParameter(f"{data.name} {wrong}").telling(f"the data set {wrong}")
    if backbone in (PIXELS, IMAGES):
        if _kind(data.x) != "images":
            wrong = f"holds {_kind(data.x)}, which have no pixels: {_advice(data.x)}"
            raise InvalidParameter(f"{data.name} {wrong}").telling(f"the data set {wrong}")
        scaled = _scaled if backbone == IMAGES else _pixels
        x, x_test = (None if samples is None else scaled(samples) for samples in (data.x, data.x_test))
        return replace(data, x=x, x_test=x_test, features=str(backbone))
    if isinstance(backbone, str):
        model, name = backbone_of(backbone), without_folders(backbone)
    else:
        model, name = backbone, backbone.name
    x = extract(data.x, model, data_fingerprint=data.fingerprint, progress=progress)
    x_test = None
    if data.x_test is not None:
        x_test = extract(data.x_test, model, data_fingerprint=f"{data.fingerprint}/test", progress=progress)
    return replace(data, x=x, x_test=x_test, features=f"{name}@{model.fingerprint}")


def _load(name: str | Dataset, samples: int | None, own_test: bool, options: dict[str, Any]) -> Dataset:
    data = name if isinstance(name, Dataset) else load_dataset(name, **options)
    if own_test and data.x_test is None:
        raise InvalidParameter(
            f"data set {data.name!r} has no test set of its own: let each client hold back some samples (test local), "
            "or hold some back from all clients (test held-out)"
        )
    if samples is not None:
        data = data.sample(samples, pool=not own_test)
    return data


def _are_features(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.ndim == 2 and x.dtype.kind in "fiub"


def _kind(x: Any) -> str:
    return "texts" if getattr(x, "dtype", None) is not None and x.dtype.kind in "OU" else "images"


def _advice(x: Any) -> str:
    return "minilm" if _kind(x) == "texts" else "such as lite0:96, images or pixels"


def _pixels(x: Any) -> Features:
    images = _scaled(x)
    return images.reshape(len(images), prod(images.shape[1:]))


def _scaled(x: Any) -> Features:
    images = np.asarray(x[:]).astype(np.float32)
    images /= 255
    return images if images.ndim == 4 else images[..., None]

"""Features of a data set, computed once and kept on disk."""

from pathlib import Path
from typing import Any

import numpy as np

from fedgram.core.cache import cache_folder, cache_lock
from fedgram.core.errors import CacheError, InvalidData, InvalidParameter
from fedgram.core.hashing import hash_parts
from fedgram.core.progress import count_bar
from fedgram.features.backbones.base import Backbone, Features
from fedgram.features.store import BLOCK, Store


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

    `x` has `len` and gives a batch for a slice. `data_fingerprint` says which samples they are: other
    samples, or another order, need another one. What was extracted before, with the same fingerprints, is
    opened, not computed; a second process with the same wish waits for the first; an extraction that was
    killed goes on where it stopped. Memory does not grow with n. `progress` shows a bar on the error
    stream; by default if that is a terminal.
    """
    size = int(getattr(backbone, "batch", 64)) if batch is None else batch
    if size < 1:
        raise InvalidParameter(f"batch {size} must be at least 1")
    if len(x) == 0:
        return np.zeros((0, backbone.dim), dtype=np.float32)
    about = {"data": data_fingerprint, "backbone": backbone.fingerprint}
    folder = cache_folder(cache, "features")
    name = "".join(c if c.isalnum() else "-" for c in backbone.name)
    store = Store(folder, f"{name}-{hash_parts(about, len(x))[:24]}", len(x), about)
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

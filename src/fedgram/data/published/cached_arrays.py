"""Data sets as plain arrays in the cache: written once, then memory-mapped.

An entry is a folder of `.npy` files and a `meta.json` that lists them with size and sha256. Its path holds the number
of the format, so an entry of another version of fedgram is never misread: it is not found, and made again from the
archive. Texts are stored as UTF-8 bytes with the place where each ends.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from fedgram.core.cache import cache_dir
from fedgram.core.classes import Classes
from fedgram.core.hashing import blocks_of, hash_array, hash_bytes
from fedgram.core.progress_bars import byte_bar
from fedgram.data.dataset import Dataset, combined

FORMAT = 1


@dataclass(frozen=True)
class ImageBlocks:
    """Images (uint8) in blocks, because all at once may not fit in memory."""

    shape: tuple[int, ...]
    blocks: Iterable[npt.NDArray[np.uint8]]
    dtype: np.dtype[Any] = field(default=np.dtype(np.uint8), init=False)


Column: TypeAlias = npt.NDArray[Any] | ImageBlocks


@dataclass(frozen=True)
class Content:
    """The content of a data set: classes, and columns by the names of `Dataset`'s fields (x, y, x_test, …).

    `files` are kept beside the columns, by their paths in the entry's folder: licences.
    """

    classes: Classes
    columns: dict[str, Column]
    files: dict[str, bytes] = field(default_factory=dict)


def entry_folder(name: str) -> Path:
    """Return the folder of the entry of that name, which need not exist."""
    return cache_dir() / "data" / f"v{FORMAT}" / name


def save(content: Content, folder: Path, name: str, source: str, show: bool | None = None) -> None:
    """Write an entry into an empty folder. `source` says what it was made from."""
    stored: dict[str, Column] = {}
    for key, column in content.columns.items():
        stored |= _as_stored(key, column)
    total = sum(math.prod(column.shape) * column.dtype.itemsize for column in stored.values())
    with byte_bar(f"converting {name}", total, show) as at:
        columns = {key: _write(column, folder / f"{key}.npy", at) for key, column in stored.items()}
    identifier = combined(
        {key: (item["dtype"], tuple(item["shape"]), item["sha256"]) for key, item in columns.items()}, content.classes
    )
    meta = {
        "format": FORMAT,
        "name": name,
        "source": source,
        "fingerprint": identifier,
        "classes": content.classes,
        "columns": columns,
    }
    for path, written in content.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(written)
    (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


def open_entry(folder: Path, source: str | None = None) -> Dataset | None:
    """Return the data set in an entry; None if the entry is missing, damaged, or made from another source.

    It looks at sizes only, which takes no time; `damaged` reads every byte.
    """
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if meta["format"] != FORMAT or source not in (None, meta["source"]):
            return None
        stored = {key: _open(folder / f"{key}.npy", item) for key, item in meta["columns"].items()}
        return Dataset(
            name=meta["name"], classes=tuple(meta["classes"]), fingerprint=meta["fingerprint"], **_as_given(stored)
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def damaged(folder: Path) -> list[str]:
    """Return the columns of an entry whose bytes have changed since they were written."""
    columns = json.loads((folder / "meta.json").read_text(encoding="utf-8"))["columns"]
    return [key for key, item in columns.items() if hash_array(_open(folder / f"{key}.npy", item)) != item["sha256"]]


def fingerprint_of(folder: Path) -> str:
    """Return the fingerprint of an entry."""
    return str(json.loads((folder / "meta.json").read_text(encoding="utf-8"))["fingerprint"])


def _write(column: Column, path: Path, at: Callable[[int], None]) -> dict[str, Any]:
    """Write one column by blocks, so that a full disk is an error here and not a crash of a mapped page."""
    dtype = column.dtype.newbyteorder("<")
    rows = 0
    with path.open("wb") as file:

        def written() -> Iterator[bytes]:
            nonlocal rows
            for block in column.blocks if isinstance(column, ImageBlocks) else [column]:
                rows += len(block)
                for part in blocks_of(block):
                    file.write(part)
                    at(len(part))
                    yield part

        header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": column.shape}
        npy.write_array_header_1_0(file, header)
        digest = hash_bytes(written())
        size = file.tell()
    assert rows == column.shape[0], f"{path.name}: {rows} rows written, {column.shape[0]} announced"
    return {"dtype": dtype.str, "shape": list(column.shape), "sha256": digest, "bytes": size}


def _open(path: Path, item: dict[str, Any]) -> npt.NDArray[Any]:
    if path.stat().st_size != item["bytes"]:
        raise ValueError(f"{path.name} has been cut")
    array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    # Small columns are read: they are used whole, and a mapped file stays open.
    return array if array.nbytes > 1 << 22 else np.array(array)


def _as_stored(key: str, column: Column) -> dict[str, Column]:
    if column.dtype != np.dtype(object) or isinstance(column, ImageBlocks):
        return {key: column}
    texts = [str(text).encode() for text in column]
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    return {f"{key}.text": np.frombuffer(b"".join(texts), dtype=np.uint8), f"{key}.ends": ends}


def _as_given(stored: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
    given = {key: column for key, column in stored.items() if "." not in key}
    for key in (name.removesuffix(".ends") for name in stored if name.endswith(".ends")):
        raw, ends = stored[f"{key}.text"].tobytes(), stored[f"{key}.ends"].tolist()
        starts = [0, *ends[:-1]]
        given[key] = np.empty(len(ends), dtype=object)
        given[key][:] = [raw[a:b].decode() for a, b in zip(starts, ends, strict=True)]
    return given

"""MNIST and its kin: idx files, plain or gzipped."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import InvalidData
from fedgram.core.labels import Classes
from fedgram.data.published.layouts.base import Layout, labels
from fedgram.data.published.store import Column, Content

MARKER = "train-images-idx3-ubyte*"


def idx_layout(folders: tuple[str, ...], classes: Classes) -> Layout:
    """Return the layout of four idx files whose labels are indices into `classes`."""

    def read(folder: Path) -> Content:
        columns: dict[str, Column] = {}
        for part, suffix in (("train", ""), ("t10k", "_test")):
            x = read_idx(_find(folder, f"{part}-images-idx3-ubyte"), 3)
            path = _find(folder, f"{part}-labels-idx1-ubyte")
            columns[f"x{suffix}"] = x
            columns[f"y{suffix}"] = labels(read_idx(path, 1), len(classes), len(x), path.name)
        return Content(classes, columns)

    return Layout(MARKER, folders, read)


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """Return the array of bytes in an idx file: magic number 8 × 256 + dimensions, sizes, then the bytes."""
    raw = path.read_bytes()
    try:
        raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidData(f"{path} is damaged ({error}): fetch it again") from error
    start = 4 + 4 * dimensions
    if len(raw) < start or struct.unpack(">i", raw[:4]) != (8 << 8 | dimensions,):
        raise InvalidData(f"{path} is not an idx file of bytes in {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}i", raw[4:start])
    if len(raw) - start != math.prod(shape):
        raise InvalidData(f"{path} holds {len(raw) - start} bytes, its header announces {math.prod(shape)}")
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(shape)


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise InvalidData(f"{folder} has no {name} (nor {name}.gz): place it there")

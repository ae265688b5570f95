"""Tiny-ImageNet-200: JPEG files of 64 × 64, training images in a folder per class, validation images in one."""

from pathlib import Path

import numpy as np

from fedgram.core.errors import InvalidData
from fedgram.data.own.images import ImageFiles
from fedgram.data.published.layouts.base import Layout
from fedgram.data.published.store import Content, Stream

_SIDE = 64
_BLOCK = 256


def tiny_imagenet_layout() -> Layout:
    """Return the layout of `tiny-imagenet-200`; classes are the WordNet ids, the validation set is the test set."""
    return Layout("wnids.txt", ("tiny-imagenet-200",), _read)


def _read(folder: Path) -> Content:
    classes = tuple((folder / "wnids.txt").read_text().split())
    index = {wnid: i for i, wnid in enumerate(classes)}
    train = [(path, index[wnid]) for wnid in classes for path in _images(folder / "train" / wnid / "images")]
    annotations = folder / "val" / "val_annotations.txt"
    if not annotations.exists():
        raise InvalidData(f"{annotations.parent} has no {annotations.name}: place it there")
    test = []
    for line in annotations.read_text().splitlines():
        name, wnid = line.split("\t")[:2]
        if wnid not in index:
            raise InvalidData(f"{annotations} names class {wnid!r} for {name}, which wnids.txt does not list")
        test.append((annotations.parent / "images" / name, index[wnid]))
    return Content(
        classes,
        {
            "x": _decoded([path for path, _ in train]),
            "y": np.array([label for _, label in train], dtype=np.int64),
            "x_test": _decoded([path for path, _ in test]),
            "y_test": np.array([label for _, label in test], dtype=np.int64),
        },
    )


def _images(folder: Path) -> list[Path]:
    paths = sorted(folder.glob("*.JPEG"))
    if not paths:
        raise InvalidData(f"{folder} has no .JPEG files: the data set is not complete")
    return paths


def _decoded(paths: list[Path]) -> Stream:
    images = ImageFiles(paths, (_SIDE, _SIDE), "RGB")
    return Stream(images.shape, (images[start : start + _BLOCK] for start in range(0, len(paths), _BLOCK)))

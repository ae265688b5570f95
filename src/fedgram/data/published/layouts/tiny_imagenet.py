"""Tiny-ImageNet-200: JPEG files of 64 × 64, training images in a folder per class, validation images in one."""

from pathlib import Path

import numpy as np

from fedgram.core.errors import InvalidData
from fedgram.data.published.layouts.base import Layout
from fedgram.data.published.layouts.photographs import decoded, files_in
from fedgram.data.published.store import Content

_SIDE = 64


def tiny_imagenet_layout() -> Layout:
    """Return the layout of `tiny-imagenet-200`; classes are the WordNet ids, the validation set is the test set."""
    return Layout("wnids.txt", ("tiny-imagenet-200",), _read)


def _read(folder: Path) -> Content:
    classes = tuple((folder / "wnids.txt").read_text().split())
    index = {wnid: i for i, wnid in enumerate(classes)}
    train = [(path, index[wnid]) for wnid in classes for path in files_in(folder / "train" / wnid / "images", ".JPEG")]
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
            "x": decoded([path for path, _ in train], _SIDE),
            "y": np.array([label for _, label in train], dtype=np.int64),
            "x_test": decoded([path for path, _ in test], _SIDE),
            "y_test": np.array([label for _, label in test], dtype=np.int64),
        },
    )

"""ImageNet-R: JPEG files of any size in a folder per class, named by its WordNet id; there is no test set."""

from pathlib import Path

import numpy as np

from fedgram.data.published.layouts.base import Layout
from fedgram.data.published.layouts.photographs import decoded, files_in
from fedgram.data.published.store import Content

_SIDE = 224  # what ViT-MAE, with which the papers use these images, was trained at


def imagenet_r_layout() -> Layout:
    """Return the layout of `imagenet-r`; classes are the WordNet ids."""
    return Layout("n0*", ("imagenet-r",), _read)


def _read(folder: Path) -> Content:
    classes = tuple(sorted(path.name for path in folder.glob("n[0-9]*") if path.is_dir()))
    listed = [files_in(folder / wnid, ".jpg") for wnid in classes]
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), [len(paths) for paths in listed])
    return Content(classes, {"x": decoded([path for paths in listed for path in paths], _SIDE), "y": labels})

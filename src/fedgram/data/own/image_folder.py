"""A user's folder of images, one subfolder per class.

Every file is decoded once to find the bad ones and the common size; what was found is remembered in the cache
until a file changes. The images themselves stay where they are.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.core.cache import write_atomic
from fedgram.core.errors import BadImage, InvalidData
from fedgram.core.files import read_regular
from fedgram.core.hashing import hash_bytes, hash_json
from fedgram.core.progress import counted
from fedgram.data.dataset import Dataset
from fedgram.data.own.bad import OnBad, settle
from fedgram.data.own.images import MOST_BYTES, ImageFiles, Mode, Size, decode
from fedgram.data.published.store import entry_folder

_TEST_NAMES = ("test", "val", "valid", "validation")
_SIDE = 224  # where sizes differ: what most backbones were trained at
_RULES = 2  # raise when other images are bad
_NOT_MEANT = {"thumbs.db", "desktop.ini"}


def open_image_folder(folder: Path, size: Size | None, on_bad: OnBad, show: bool | None = None) -> Dataset:
    """Return the images below a folder, labelled by subfolder; `train` and `test` (or `val`) are told apart."""
    test_name = next((name for name in _TEST_NAMES if (folder / name).is_dir()), None)
    split = test_name is not None and (folder / "train").is_dir()
    try:
        train = _listed(folder / "train" if split else folder)
        test = _listed(folder / test_name) if split and test_name is not None else []
    except OSError as error:
        raise InvalidData(f"cannot read {error.filename or folder}: {error.strerror or error}") from error
    if not train:
        raise InvalidData(f"{folder} holds no images in subfolders: expected one subfolder per class")

    facts = examined(folder, [path for path, _ in train + test], show)
    bad: dict[str, str] = facts["bad"]
    left_out = tuple(place for place, (path, _) in enumerate(train + test) if _key(path, folder) in bad)
    train, test = ([item for item in part if _key(item[0], folder) not in bad] for part in (train, test))
    settle([f"{name}: {reason}" for name, reason in bad.items()], len(train), str(folder), "image", on_bad)

    classes = tuple(sorted({label for _, label in train}))
    strange = sorted({label for _, label in test} - set(classes))
    if strange:
        raise InvalidData(f"{folder / str(test_name)} has class {strange[0]!r}, which has no training images")
    index = {label: i for i, label in enumerate(classes)}
    common = size or (facts["size"] and tuple(facts["size"])) or (_SIDE, _SIDE)
    mode: Mode = "L" if facts["grey"] else "RGB"

    def images(part: list[tuple[Path, str]]) -> ImageFiles:
        return ImageFiles([path for path, _ in part], common, mode)

    def labels(part: list[tuple[Path, str]]) -> "np.ndarray[Any, np.dtype[np.int64]]":
        return np.array([index[label] for _, label in part], dtype=np.int64)

    return Dataset(
        name=folder.name,
        x=images(train),
        y=labels(train),
        classes=classes,
        fingerprint=hash_json([facts["digest"], common, mode]),
        x_test=images(test) if test else None,
        y_test=labels(test) if test else None,
        left_out=left_out,
    )


def _listed(folder: Path) -> list[tuple[Path, str]]:
    """Return every file meant as an image, with its class: the name of the subfolder."""
    subfolders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    for subfolder in subfolders:
        try:
            subfolder.name.encode()
        except UnicodeEncodeError:
            raise InvalidData(
                f"folder {subfolder.name!r} in {folder} has a name that is not UTF-8: rename it"
            ) from None
    return [
        (path, subfolder.name)
        for subfolder in subfolders
        for path in sorted(subfolder.rglob("*"))
        if path.is_file() and not path.name.startswith(".") and path.name.lower() not in _NOT_MEANT
    ]


def _key(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def examined(folder: Path, paths: list[Path], show: bool | None, about: str = "") -> dict[str, Any]:
    """Return what is known of the files: the bad ones, the size if all share it, whether all are grey, a digest.

    It is remembered until a file changes; `about` tells apart several choices of files in one folder.
    """
    stats = [(path, os.stat(path)) for path in paths]
    signature = hash_json([_RULES, *([_key(path, folder), stat.st_size, stat.st_mtime_ns] for path, stat in stats)])
    place = hash_bytes([os.fsencode(folder.resolve()), about.encode()])[:16]
    note = entry_folder(f"image-folder-{place}.json")
    try:
        known: dict[str, Any] = json.loads(note.read_text(encoding="utf-8"))
        if known["signature"] == signature:
            return known
    except (OSError, ValueError, KeyError, TypeError):
        pass
    bad: dict[str, str] = {}
    shapes: Counter[tuple[int, ...]] = Counter()
    digests: list[list[str]] = []
    for path in counted(paths, f"checking {folder.name}", len(paths), show):
        try:
            raw = read_regular(path, most=MOST_BYTES)
            shapes[decode(raw).shape] += 1
            digests.append([_key(path, folder), hash_bytes([raw])])
        except BadImage as error:
            bad[_key(path, folder)] = str(error)
        except OSError as error:
            bad[_key(path, folder)] = f"cannot be read: {error.strerror or error}"
    sizes = {shape[:2] for shape in shapes}
    facts = {
        "signature": signature,
        "bad": bad,
        "size": list(sizes.pop()) if len(sizes) == 1 else None,
        "grey": all(len(shape) == 2 for shape in shapes),
        "digest": hash_json(digests),
    }
    write_atomic(note, json.dumps(facts).encode())
    return facts

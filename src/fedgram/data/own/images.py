"""Image files: decoding one, many as an array that is decoded where it is sliced, and a folder of them per class."""

import io
import json
import os
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedgram.core.cache import write_atomic
from fedgram.core.errors import BadImage, InvalidData
from fedgram.core.extras import require
from fedgram.core.filesystem import read_regular
from fedgram.core.hashing import hash_bytes, hash_json
from fedgram.core.progress_bars import counted
from fedgram.data.dataset import Dataset
from fedgram.data.own.bad import OnBad, settle, warn_of_look_alikes
from fedgram.data.published.cached_arrays import entry_folder

Mode = Literal["L", "RGB"]
Size = tuple[int, int]
# What Pillow decodes by itself. It starts Ghostscript, a program, for PostScript, and other formats are hardly tested.
FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP", "PPM")
MOST_PIXELS = 64_000_000  # of an image: those of cameras have up to 50 million; Pillow itself takes three times as many
MOST_SIDE = 65_535  # pixels, which is the most that JPEG has; resizing one thin line takes gigabytes
MOST_BYTES = 1 << 29  # of an image file
_MOST_TILE = 1 << 20  # pixels of a TIFF's tile that is larger than its image: all of it is decoded
_MOST_SCANS = 100  # of a JPEG, which usually has up to 20: each goes over all pixels, and takes a few bytes
_EIGHT_BITS = {"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"}


def pillow() -> ModuleType:
    """Return `PIL.Image`, or say what to install."""
    image: ModuleType = require("PIL.Image", "vision", "reading images")
    return image


def decode(file: Path | bytes, size: Size | None = None, mode: Mode | None = None) -> npt.NDArray[np.uint8]:
    """Return an image as viewers show it: (h, w) for grey, (h, w, 3) for colour.

    With `size` (height, width) it is cropped at the centre to that aspect and resized. `mode` None keeps grey
    images grey. Raises `BadImage` for anything that is not a whole image of 8 bits in one of `FORMATS`, and for one of
    more than `MOST_PIXELS`.
    """
    image_module = pillow()
    from PIL import ImageOps

    with _opened(file) as image:
        if size is not None:
            image.draft(None, (max(size), max(size)))  # a JPEG need not be decoded larger than that
        ImageOps.exif_transpose(image, in_place=True)
        wanted = mode or ("L" if image.mode in ("1", "L") else "RGB")
        converted = image if image.mode == wanted else image.convert(wanted)
        if size is not None and converted.size != (size[1], size[0]):
            converted = ImageOps.fit(converted, (size[1], size[0]), image_module.Resampling.BILINEAR)
        return np.asarray(converted)


@contextmanager
def _opened(file: Path | bytes) -> Iterator[Any]:
    """Open an image, the only place where Pillow does; turn each of its errors, also later ones, into a `BadImage`."""
    image_module = pillow()
    where = f"{file} " if isinstance(file, Path) else ""
    try:
        content = file if isinstance(file, bytes) else read_regular(file, most=MOST_BYTES)
        with image_module.open(io.BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise BadImage(
                    f"{where}has {image.width:,} × {image.height:,} pixels, expected at most {MOST_PIXELS:,} in all: "
                    "make it smaller"
                )
            _check_structure(image, content, where)
            if image.mode not in _EIGHT_BITS:
                raise BadImage(f"{where}has pixels of kind {image.mode!r}: convert it to 8 bits")
            if _deeper(image):
                raise BadImage(f"{where}has more than 8 bits per channel: convert it to 8 bits")
            if image.format == "PNG":
                _check_rows(content, where)
            yield image
    except BadImage:
        raise
    except FileNotFoundError:
        raise BadImage(f"{where}is missing") from None
    except image_module.UnidentifiedImageError:
        raise BadImage(f"{where}is not an image of a format that is read here ({', '.join(FORMATS)})") from None
    except (image_module.DecompressionBombError, image_module.DecompressionBombWarning):
        raise BadImage(f"{where}has more than {MOST_PIXELS:,} pixels: make it smaller") from None
    except OSError as error:
        raise BadImage(f"{where}is damaged ({error.strerror or error})") from error
    except Exception as error:  # a damaged image can raise nearly anything
        raise BadImage(f"{where}is damaged ({error})") from error


def _check_structure(image: Any, content: bytes, where: str) -> None:
    """Refuse an image that takes far more time or memory than its pixels, or of which only a part would be read."""
    if max(image.size) > MOST_SIDE:
        raise BadImage(
            f"{where}has {image.width:,} × {image.height:,} pixels, expected at most {MOST_SIDE:,} a side: "
            "make it smaller"
        )
    if image.format == "TIFF":
        width, height = (int(image.tag_v2.get(tag, 1)) for tag in (322, 323))
        most = max(_MOST_TILE, image.width * image.height)
        if width * height > most:
            raise BadImage(
                f"{where}has tiles of {width:,} × {height:,} pixels, expected at most {most:,} in all: save it anew"
            )
    # An MPO file is a photograph with smaller copies of it, as telephones write it.
    elif image.format in ("JPEG", "MPO") and (scans := content.count(b"\xff\xda")) > _MOST_SCANS:
        raise BadImage(f"{where}is drawn in {scans:,} scans, expected at most {_MOST_SCANS}: save it anew")
    if image.format != "MPO" and getattr(image, "is_animated", False):
        raise BadImage(f"{where}has several pages or frames, expected one image: save the one that counts by itself")


def _deeper(image: Any) -> bool:
    """Say whether an image's file has more than 8 bits per channel: of colours, Pillow drops the lower ones unasked."""
    # A decoder's arguments have the kind of its pixels, as in RGB;16B, or (for PPM) the largest value.
    settings = [part if isinstance(part, tuple) else (part,) for *_, part in image.tile]
    kinds = [str(part[0]).partition(";")[2] for part in settings if part]
    largest = [part[1] for part in settings if image.format == "PPM" and len(part) > 1]
    return any(kind.startswith(("12", "16", "32")) for kind in kinds) or any(most > 255 for most in largest)


_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def _check_rows(content: bytes, where: str) -> None:
    """Refuse a PNG file with fewer pixels than it says: Pillow takes the rest for black if its stream ends in order."""
    parts, place, (width, height, bits, kind, interlaced) = [], 8, (0, 0, 0, 0, 0)
    while place + 8 <= len(content):
        length, name = int.from_bytes(content[place : place + 4], "big"), content[place + 4 : place + 8]
        chunk = content[place + 8 : place + 8 + length]
        if name == b"IHDR":
            width, height = (int.from_bytes(chunk[k : k + 4], "big") for k in (0, 4))
            bits, kind, interlaced = chunk[8], chunk[9], chunk[12]
        elif name == b"IDAT":
            parts.append(chunk)
        elif parts:
            break
        place += 12 + length
    each = bits * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind]
    passes = _PASSES if interlaced else ((0, 0, 1, 1),)
    sides = [(len(range(x, width, right)), len(range(y, height, down))) for x, y, right, down in passes]
    wanted = sum(rows * (1 + (columns * each + 7) // 8) for columns, rows in sides if columns)
    stream, found = zlib.decompressobj(), 0
    for part in parts:
        left = part
        while left and found < wanted:
            found += len(stream.decompress(left, 1 << 20))
            left = stream.unconsumed_tail
    if found < wanted:
        raise BadImage(f"{where}is damaged ({found:,} of {wanted:,} bytes of its pixels are there)")


class ImageFiles:
    """Images on disk that look like a (n, h, w) or (n, h, w, 3) array of uint8 and are decoded when asked for.

    A slice, an index or an array of indices gives a plain array; `take` gives a part that is still on disk, so
    spreading a large folder over clients costs no memory.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, paths: Sequence[Path], size: Size, mode: Mode) -> None:
        self.paths, self.size, self.mode = list(paths), size, mode

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, h, w) or (n, h, w, 3)."""
        return (len(self.paths), *self.size, *((3,) if self.mode == "RGB" else ()))

    @property
    def ndim(self) -> int:
        """3 for grey, 4 for colour."""
        return len(self.shape)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> npt.NDArray[np.uint8]:
        if isinstance(index, int | np.integer):
            return decode(self.paths[index], self.size, self.mode)
        chosen = np.arange(len(self))[index]
        images = np.empty((len(chosen), *self.shape[1:]), dtype=np.uint8)
        for image, i in zip(images, chosen, strict=True):
            image[...] = decode(self.paths[i], self.size, self.mode)
        return images

    def take(self, indices: npt.ArrayLike) -> "ImageFiles":
        """Return the images at those indices, still on disk."""
        chosen = np.arange(len(self))[np.asarray(indices)]
        return ImageFiles([self.paths[i] for i in chosen], self.size, self.mode)


_TEST_NAMES = ("test", "val", "valid", "validation")
_SIDE = 224  # where sizes differ: what most backbones were trained at
_RULES = 3  # raise when other images are bad
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
    warn_of_look_alikes(classes, str(folder))
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
    """Return every file meant as an image, with its class: the name of the subfolder, its characters composed."""
    subfolders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    labels: dict[str, Path] = {}
    for subfolder in subfolders:
        try:
            subfolder.name.encode()
        except UnicodeEncodeError:
            raise InvalidData(
                f"folder {subfolder.name!r} in {folder} has a name that is not UTF-8: rename it"
            ) from None
        label = unicodedata.normalize("NFC", subfolder.name)
        if (other := labels.setdefault(label, subfolder)) != subfolder:
            raise InvalidData(
                f"{folder}: expected one folder for each class, got {other.name!a} and {subfolder.name!a}, which are "
                "one name written in two ways; put their images into one"
            )
    return [
        (path, label)
        for label, subfolder in labels.items()
        for path in sorted(subfolder.rglob("*"))
        if (path.is_symlink() or not path.is_dir())  # what is not a regular file is bad, not left out unseen
        and not path.name.startswith(".")
        and path.name.lower() not in _NOT_MEANT
    ]


def _key(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _is_inside(path: Path, home: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(home)  # a ring of links raises no error here


def _stamp(path: Path, home: Path) -> tuple[int, int, bool]:
    """Return a stamp that changes with a file, or with the target of a link; zeros for a broken link."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0, False
    return found.st_size, found.st_mtime_ns, _is_inside(path, home)


def examined(folder: Path, paths: list[Path], show: bool | None, about: str = "") -> dict[str, Any]:
    """Return facts on the files: the bad ones, the size if all share it, whether all are grey, a digest.

    They are remembered until a file changes; `about` tells apart several choices of files in one folder.
    """
    home = folder.resolve()
    signature = hash_json([_RULES, *([_key(path, folder), *_stamp(path, home)] for path in paths)])
    place = hash_bytes([os.fsencode(home), about.encode()])[:16]
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
        if not _is_inside(path, home):
            bad[_key(path, folder)] = "is a link to outside of the folder: copy the image here"
            continue
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

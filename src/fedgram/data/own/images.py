"""Image files: decoding one, and many as an array that is decoded where it is sliced."""

import io
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import BadImage
from fedgram.core.extras import require
from fedgram.core.files import read_regular

Mode = Literal["L", "RGB"]
Size = tuple[int, int]
# What Pillow decodes by itself. It starts Ghostscript, a program, for PostScript, and other formats are hardly tested.
FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP", "PPM")
MOST_PIXELS = 64_000_000  # of an image: those of cameras have up to 50 million; Pillow itself takes three times as many
MOST_BYTES = 1 << 29  # of an image file
_EIGHT_BITS = {"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"}


def pillow() -> ModuleType:
    """Return `PIL.Image`, or say what to install."""
    image: ModuleType = require("PIL.Image", "vision", "reading images")
    return image


def decode(file: Path | bytes, size: Size | None = None, mode: Mode | None = None) -> npt.NDArray[np.uint8]:
    """Return an image as it is to be looked at: (h, w) for grey, (h, w, 3) for colour.

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


def _deeper(image: Any) -> bool:
    """Say whether an image's file has more than 8 bits per channel: of colours, Pillow drops the lower ones unasked."""
    # What decodes a part of the image is told the kind of its pixels, as in RGB;16B, or (of PPM) the largest value.
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

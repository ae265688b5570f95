"""Image files: decoding one, and many as an array that is decoded where it is sliced."""

import io
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import BadImage
from fedgram.core.extras import require

Mode = Literal["L", "RGB"]
Size = tuple[int, int]
_EIGHT_BITS = {"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"}


def pillow() -> ModuleType:
    """Return `PIL.Image`, or say what to install."""
    image: ModuleType = require("PIL.Image", "vision", "reading images")
    return image


def decode(file: Path | bytes, size: Size | None = None, mode: Mode | None = None) -> npt.NDArray[np.uint8]:
    """Return an image as it is to be looked at: (h, w) for grey, (h, w, 3) for colour.

    With `size` (height, width) it is cropped at the centre to that aspect and resized. `mode` None keeps grey
    images grey. Raises `BadImage` for anything that is not a whole image of 8 bits.
    """
    image_module = pillow()
    from PIL import ImageOps

    where = f"{file} " if isinstance(file, Path) else ""
    try:
        with image_module.open(io.BytesIO(file) if isinstance(file, bytes) else file) as image:
            if image.mode not in _EIGHT_BITS:
                raise BadImage(f"{where}has pixels of kind {image.mode!r}: convert it to 8 bits")
            if size is not None:
                image.draft(None, (max(size), max(size)))  # a JPEG need not be decoded larger than that
            upright = ImageOps.exif_transpose(image)
            converted = upright.convert(mode or ("L" if image.mode in ("1", "L") else "RGB"))
            if size is not None and converted.size != (size[1], size[0]):
                converted = ImageOps.fit(converted, (size[1], size[0]), image_module.Resampling.BILINEAR)
            return np.asarray(converted)
    except BadImage:
        raise
    except FileNotFoundError:
        raise BadImage(f"{where}is missing") from None
    except image_module.UnidentifiedImageError:
        raise BadImage(f"{where}is not an image") from None
    except Exception as error:  # a damaged image can raise nearly anything
        raise BadImage(f"{where}is damaged ({error})") from error


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

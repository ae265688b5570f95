"""What layouts of image files share: listing a class's files, and decoding them block by block."""

from pathlib import Path

from fedgram.core.errors import InvalidData
from fedgram.data.own.images import ImageFiles
from fedgram.data.published.store import Stream

_BLOCK = 256


def files_in(folder: Path, ending: str) -> list[Path]:
    """Return a folder's images, sorted; none is an error."""
    paths = sorted(folder.glob(f"*{ending}"))
    if not paths:
        raise InvalidData(f"{folder} has no {ending} files: the data set is not complete")
    return paths


def decoded(paths: list[Path], side: int) -> Stream:
    """Return images as colour of side × side, decoded as they are written."""
    images = ImageFiles(paths, (side, side), "RGB")
    return Stream(images.shape, (images[start : start + _BLOCK] for start in range(0, len(paths), _BLOCK)))

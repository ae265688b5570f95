"""What a layout is, and what its readers share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import InvalidData
from fedgram.data.published.store import Content


@dataclass(frozen=True)
class Layout:
    """One way a data set lies on disk: told by a marker file, usually in one of these folders."""

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
    """Return labels as indices after checking that there are `n` and all below `classes`."""
    y = np.asarray(values, dtype=np.int64)
    if y.shape != (n,):
        raise InvalidData(f"{name} holds {y.size} labels for {n} images: the file is not complete")
    if y.size and not 0 <= y.min() <= y.max() < classes:
        raise InvalidData(f"{name} holds label {y.max()}, but there are {classes} classes: not this data set")
    return y

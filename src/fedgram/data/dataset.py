"""A labelled data set before it is spread over clients."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.labels import Label


@dataclass(frozen=True)
class Dataset:
    """Samples with labels, and what is known about them.

    `x` is (n, d) features, (n, h, w) or (n, h, w, 3) uint8 images, or anything else that has `len` and gives
    such an array for a slice. `y` is (n,) and holds indices into `classes`. `groups`, where it exists, names
    the natural owner of each sample, for `partition.by_group`. `x_test`, `y_test` are the data set's own
    ("standard") test set, where it has one. `fingerprint` identifies the content.
    """

    name: str
    x: Any
    y: npt.NDArray[np.int64]
    classes: tuple[Label, ...]
    fingerprint: str
    groups: npt.NDArray[Any] | None = None
    x_test: Any = None
    y_test: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.y)

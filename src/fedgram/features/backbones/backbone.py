"""The interface of a backbone, and the small tools that all backbones share."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import CannotLoad, FedgramError, InvalidData

Features = npt.NDArray[np.float32]
Model = TypeVar("Model")
MOST_FEATURES = 1 << 16  # of a backbone: the size of moments is the square


class Backbone(Protocol):
    """A deterministic map from a batch of samples to features.

    A backbone may also have `batch`, the preferred number of samples at a time; without it, 64 are taken.
    """

    @property
    def name(self) -> str:
        """The name for users."""

    @property
    def dim(self) -> int:
        """The number of features of a sample."""

    @property
    def fingerprint(self) -> str:
        """A digest of weights and options, not of the machine: equal fingerprints mean equal features."""

    def __call__(self, batch: Any) -> Features:
        """Return the features (n, dim) float32 of a batch of n samples."""


def opened(what: str, open_model: Callable[[], Model], errors: tuple[type[Exception], ...]) -> Model:
    """Return the model of `open_model`; turn a library's own errors into one line about `what`."""
    try:
        return open_model()
    except FedgramError:
        raise
    except errors as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise CannotLoad(f"cannot load {what}: {reason[0]}") from error


def pooled(output: Any) -> Any:
    """Return one row per sample: maps (n, c, h, w) and tokens (n, t, d) are averaged, in numpy or torch.

    >>> pooled(np.ones((2, 3, 4, 4))).shape, pooled(np.ones((2, 5, 3))).shape
    ((2, 3), (2, 3))
    """
    if output.ndim == 4:
        return output.reshape(output.shape[0], output.shape[1], -1).mean(-1)
    if output.ndim == 3:
        return output.mean(1)
    if output.ndim == 2:
        return output
    raise InvalidData(f"a model's output must have 2, 3 or 4 axes to be features, got {output.ndim}: name another")

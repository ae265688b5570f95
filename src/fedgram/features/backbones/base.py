"""What a backbone is, and the small tools that all of them share."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import CannotLoad, FedgramError, InvalidData

Features = npt.NDArray[np.float32]
Model = TypeVar("Model")


class Backbone(Protocol):
    """Anything that maps a batch of samples to features, always in the same way.

    A backbone may also have `batch`, the number of samples that it likes to get at a time; else that is 64.
    """

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def dim(self) -> int:
        """How many features it gives for a sample."""

    @property
    def fingerprint(self) -> str:
        """Same fingerprint, same features: a digest of weights and options, not of the machine."""

    def __call__(self, batch: Any) -> Features:
        """Return the features (n, dim) float32 of a batch of n samples."""


def opened(what: str, open_model: Callable[[], Model], errors: tuple[type[Exception], ...]) -> Model:
    """Return what `open_model` gives; turn a library's own errors into one line about `what`."""
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

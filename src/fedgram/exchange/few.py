"""Whether an answer to a round is mostly that of a few samples: a coordinator can make up a round that shows one."""

import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.errors import Revealing
from fedgram.models import Model, probabilities
from fedgram.protocol.clientside import ClientSide

if TYPE_CHECKING:
    from fedgram.methods.analytic.apfl import APFL


def in_gradient(side: ClientSide, _: Any, payload: Any) -> Iterator[Array]:
    """Yield how much samples count in FedLogit's gradient: their squared residuals (n, 1), in blocks."""
    model: Model = payload["model"]
    for x, y in zip(side.x_blocks, side.y_blocks, strict=True):
        residuals = probabilities(model, model.scores(x))
        residuals[np.arange(len(y)), y] -= 1
        yield np.square(residuals).sum(axis=1, keepdims=True)


def in_features(side: ClientSide, method: "APFL", _: Any) -> Iterator[Array]:
    """Yield how much samples count in the class sums of APFL's random features: how large these are, (n, p)."""
    primary = method.primary(*side.shape)
    for x in side.x_blocks:
        yield np.abs(primary(x.astype(np.float64)))


def warn_of_few(side: ClientSide, least: int, counted: Iterable[Array]) -> None:
    """Warn where one of the sums is mostly that of fewer than half of `least` samples; honest rounds have some more."""
    total = spread = np.zeros(1)
    for block in counted:
        total, spread = total + block.sum(axis=0), spread + np.square(block).sum(axis=0)
    # As many samples of equal weight would have the same spread: n where all count alike, 1 where one decides.
    effective = float(np.min(total[total > 0] ** 2 / spread[total > 0], initial=np.inf))
    if effective < min(least, side.n) / 2:
        warnings.warn(
            f"what is asked for is mostly that of {effective:.0f} of the {side.n} samples of party {side.name!r}: it "
            "may show their rows; answer only if you trust the coordinator with them",
            Revealing,
            stacklevel=4,
        )

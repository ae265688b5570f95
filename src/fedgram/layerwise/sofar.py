"""A network whose training is under way, as a classifier: what it could do if it ended with the layer solved last."""

from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.columns import Columns
from fedgram.core.errors import InvalidParameter, Mismatch
from fedgram.core.labels import Classes
from fedgram.layerwise.layers import Shape
from fedgram.layerwise.network import Network
from fedgram.models import BlockModel


@wire.message("layerwise-network-so-far", version=1)
@dataclass(frozen=True, eq=False)
class NetworkSoFar(BlockModel):
    """The layers below the one solved last, and what that one tells of the labels.

    A hidden layer is solved for the labels under their encoding, so its output says which label it takes a sample to
    have: that times the pseudo-inverse of Q_l. Since this is linear in the layer's input, `reader` (numbers, c) does it
    in one product. So a network of l layers can be judged after l rounds; nothing more is sent or solved for it.

    >>> import numpy as np
    >>> network = Network("dnn", (8,), ("cat", "dog"), seed=0).extend(np.ones((8, 2)))
    >>> NetworkSoFar.of(network).scores(np.ones((1, 8))).round(9)
    array([[8., 8.]])
    """

    below: Network
    reader: Annotated[Array, wire.Shape(None, None)]

    def __post_init__(self) -> None:
        """Refuse a reader that does not fit the layers below."""
        wanted = None if self.below.is_whole else (self.below.next_problem.numbers, len(self.below.classes))
        if np.shape(self.reader) != wanted:
            raise Mismatch(f"a reader of shape {np.shape(self.reader)} does not fit the layers below: {wanted}")

    @classmethod
    def of(cls, network: Network) -> Self:
        """Return the classifier of a network's layers trained so far."""
        if not network.solutions:
            raise InvalidParameter("no layer of the network is trained: there is nothing to score with")
        *below, solution = network.solutions
        return cls(network.truncate(len(below)), network.problem(len(below)).reader(solution))

    @property
    def classes(self) -> Classes:  # type: ignore[override]
        """The classes in the order of the scores."""
        return self.below.classes

    @property
    def features(self) -> str:  # type: ignore[override]
        """The fingerprint of the features that the network was made from."""
        return self.below.features

    @property
    def columns(self) -> Columns:  # type: ignore[override]
        """The names of the columns."""
        return self.below.columns

    @property
    def at_once(self) -> int:
        """How many samples make a block."""
        return self.below.at_once

    @property
    def sample_shape(self) -> Shape:
        """The shape of one sample."""
        return self.below.sample_shape

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Say whether a sample may have this shape."""
        return self.below.takes(shape)

    def score_block(self, block: npt.NDArray[Any], out: Array) -> None:
        """Write the scores of a block of samples."""
        out[:] = self.below.forward(block).reshape(len(block), -1) @ self.reader

"""A network whose training is under way, as a classifier: what it could do if it ended with the layer solved last."""

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.columns import Columns
from fedgram.core.errors import InvalidParameter
from fedgram.core.labels import Classes
from fedgram.layerwise.layers import Shape, rows_per_sample
from fedgram.layerwise.network import Network
from fedgram.models import BlockModel


@wire.message("layerwise-network-so-far", version=1)
@dataclass(frozen=True, eq=False)
class NetworkSoFar(BlockModel):
    """The layers trained so far, the last of them as the output layer.

    Its solution G_l is that for the labels themselves; only the encoding Q_l makes a hidden layer of it. So a network
    of l layers can be judged after l rounds, and nothing more is to be sent or solved. A convolution scores each
    window of an image, and the image has the mean of them.

    >>> import numpy as np
    >>> network = Network("dnn", (8,), ("cat", "dog"), seed=0).extend(np.ones((8, 2)))
    >>> NetworkSoFar(network).scores(np.ones((1, 8)))
    array([[8., 8.]])
    """

    network: Network

    def __post_init__(self) -> None:
        """Refuse a network that has no layer to judge by."""
        if not self.network.solutions:
            raise InvalidParameter("no layer of the network is trained: there is nothing to score with")

    @property
    def classes(self) -> Classes:  # type: ignore[override]
        """The classes in the order of the scores."""
        return self.network.classes

    @property
    def features(self) -> str:  # type: ignore[override]
        """The fingerprint of the features that the network was made from."""
        return self.network.features

    @property
    def columns(self) -> Columns:  # type: ignore[override]
        """The names of the columns."""
        return self.network.columns

    @property
    def at_once(self) -> int:
        """How many samples make a block."""
        return self.network.at_once

    @property
    def sample_shape(self) -> Shape:
        """The shape of one sample."""
        return self.network.sample_shape

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Say whether a sample may have this shape."""
        return self.network.takes(shape)

    def score_block(self, block: npt.NDArray[Any], out: Array) -> None:
        """Write the scores of a block of samples."""
        *below, solution = self.network.solutions
        network = self.network.truncate(len(below))
        layer, shape = network.next_layer, network.next_shape
        out[:] = layer.row_sums(network.forward(block)) @ solution / rows_per_sample(layer, shape)

"""A trained network as a model: what gradient methods give back."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.columns import Columns
from fedgram.core.errors import InvalidParameter, Mismatch
from fedgram.core.labels import Classes
from fedgram.models import BlockModel
from fedgram.nets.layers import Shape, Vector, as_numbers
from fedgram.nets.network import Net, net_for

SAMPLES_AT_ONCE = 1024


@wire.message("trained-net", version=1)
@dataclass(frozen=True, eq=False)
class TrainedNet(BlockModel):
    """A network with its numbers.

    >>> net = Net("linear", (2,), 2)
    >>> model = TrainedNet("linear", (2,), ("cat", "dog"), np.array([1, 0, 0, 1, 0, 0], dtype=np.float32))
    >>> model.predict([[0.1, 0.9], [0.7, 0.2]])
    array(['dog', 'cat'], dtype='<U3')
    >>> model.weights
    array([[1., 0.],
           [0., 1.]])
    """

    network: str
    shape: Shape
    classes: Classes
    vector: Annotated[Vector, wire.Shape("p")]
    features: str = ""
    memory: bool = False
    columns: Columns = ()

    def __post_init__(self) -> None:
        """Refuse a vector that does not fit the network."""
        if np.shape(self.vector) != (self.net.size,):
            raise Mismatch(f"{self.network!r} has {self.net.size} numbers, got shape {np.shape(self.vector)}")

    @property
    def net(self) -> Net:
        """The network without its numbers."""
        return net_for(self.network, self.shape, len(self.classes), memory=self.memory)

    @property
    def weights(self) -> Array:
        """The matrix (d, c) of a linear model."""
        return self._linear()[0]

    @property
    def intercept(self) -> Array:
        """The constants (c,) of a linear model."""
        return self._linear()[1]

    def _linear(self) -> tuple[Array, Array]:
        if self.net.kind != "linear":
            raise InvalidParameter(f"a network {self.net.kind!r} is no matrix; its numbers are in .vector")
        head, count = self.vector[self.net.head].astype(np.float64), len(self.classes)
        weights, intercept = head[:-count].reshape(count, -1).T, head[-count:]
        return weights, intercept + self.vector[self.net.own] @ weights if self.memory else intercept

    @property
    def at_once(self) -> int:
        """How many samples make a block."""
        return SAMPLES_AT_ONCE

    @property
    def sample_shape(self) -> Shape:
        """The shape of one sample."""
        return self.shape

    def score_block(self, block: npt.NDArray[Any], out: Array) -> None:
        """Write the scores of a block of samples."""
        [(_, out[:])] = outputs(self.net, self.vector, block)


def outputs(net: Net, vector: Vector, x: npt.NDArray[Any]) -> Iterator[tuple[Vector, Vector]]:
    """Yield features (n, width) and scores (n, c) of samples, block by block."""
    import torch

    numbers = torch.from_numpy(np.array(vector)).unsqueeze(0)  # a copy: what came by wire cannot be written to
    buffers, weights = numbers[:, : net.buffers], numbers[:, net.buffers :]
    for start in range(0, len(x), SAMPLES_AT_ONCE):
        block = torch.tensor(as_numbers(x[start : start + SAMPLES_AT_ONCE]))  # a copy: `prepare` writes to it
        with torch.inference_mode():
            features, scores = net.forward(net.parts(weights), buffers, net.prepare(block.unsqueeze(0)))
        yield features[0].t().numpy(), scores[0].t().numpy()

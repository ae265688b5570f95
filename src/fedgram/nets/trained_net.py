"""A trained network as a model, which gradient methods return."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.classes import Classes
from fedgram.core.columns import Columns
from fedgram.core.errors import InvalidParameter, Mismatch
from fedgram.core.extras import require
from fedgram.core.threads import torch_threads
from fedgram.features.onnxfile import write_onnx
from fedgram.models import BlockModel
from fedgram.nets.factories import is_admitted
from fedgram.nets.layers import Module, Shape, Tensor, Vector, as_numbers
from fedgram.nets.network import net_for
from fedgram.nets.vector import Net, channels_first


class NetModel(BlockModel):
    """Base of models that are a network with its numbers; a subclass defines `score_block`."""

    network: str
    shape: Shape
    vector: Vector
    memory: bool = False

    @property
    def net(self) -> Net:
        """The network without its numbers."""
        net = net_for(self.network, self.shape, len(self.classes), memory=self.memory)
        if np.shape(self.vector) != (net.size,):
            raise Mismatch(f"{self.network!r} has {net.size} numbers, got shape {np.shape(self.vector)}")
        return net

    @property
    def at_once(self) -> int:
        """The number of samples in a block."""
        return self.net.at_once

    @property
    def sample_shape(self) -> Shape:
        """The shape of one sample."""
        return self.shape


@wire.message("trained-net", version=1)
@dataclass(frozen=True, eq=False)
class TrainedNet(NetModel):
    """A network with its numbers.

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
        """Raise if the vector does not fit the network; a network that is not admitted is not imported to check it."""
        if is_admitted(self.network):
            _ = self.net

    @property
    def weights(self) -> Array:
        """The matrix (d, c) of a linear model."""
        return self._linear()[0]

    @property
    def intercept(self) -> Array:
        """The constants (c,) of a linear model."""
        return self._linear()[1]

    def _linear(self) -> tuple[Array, Array]:
        if self.net.base.stop or self.network not in ("auto", "linear"):
            raise InvalidParameter(f"a network {self.network!r} is not a matrix; its numbers are in .vector")
        head, count = self.vector[self.net.head].astype(np.float64), len(self.classes)
        weights, intercept = head[:-count].reshape(count, -1).T, head[-count:]
        return weights, intercept + self.vector[self.net.own] @ weights if self.memory else intercept

    def score_block(self, block: npt.NDArray[Any], out: Array) -> None:
        """Write the scores of a block of samples."""
        [(_, out[:])] = outputs(self.net, self.vector, block)

    def to_torch(self) -> Module:
        """Return an ordinary torch module that gives the same scores; images as (n, channels, height, width).

        A factory's network is a module of that factory, with the trained numbers.
        """
        return self.net.module(self.vector)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state dict of `to_torch()`: for a factory's network, what its module can load."""
        return dict(self.to_torch().state_dict())

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the network as an ONNX file: input "samples", output "scores", any number of samples."""
        write_onnx(self.to_torch(), channels_first(self.shape), path)


def outputs(net: Net, vector: Vector, x: npt.NDArray[Any]) -> Iterator[tuple[Vector, Vector]]:
    """Yield features (n, width) and scores (n, c) of samples, block by block."""
    torch = require("torch", "nets", f"the network {net.network}")
    numbers = torch.from_numpy(np.array(vector)).unsqueeze(0)  # a copy: arrays from the wire are read-only
    buffers, weights = numbers[:, : net.buffers], numbers[:, net.buffers :]
    for start in range(0, len(x), net.at_once):
        block = torch.tensor(as_numbers(x[start : start + net.at_once]))  # a copy: `prepare` writes to it
        work = len(block) * net.multiplications
        with torch.inference_mode(), torch_threads(work, pieces=len(net.layer_slices)):
            features, scores = net.forward(net.parts(weights), buffers, net.prepare(block.unsqueeze(0)))
        yield features[0].t().numpy(), scores[0].t().numpy()

"""A trained network as a model: what gradient methods give back."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.core.columns import Columns, as_columns, samples_of
from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch
from fedgram.core.labels import Classes, read_classes, shorten
from fedgram.core.wire import Field, register_message
from fedgram.features.onnxfile import write_onnx
from fedgram.models import best_labels, finite, sent_columns
from fedgram.nets.factories import is_admitted
from fedgram.nets.layers import Shape, Vector, as_numbers
from fedgram.nets.network import net_for
from fedgram.nets.vector import Net, channels_first

if TYPE_CHECKING:
    from torch import Tensor, nn


@register_message
@dataclass(frozen=True, eq=False)
class TrainedNet:
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
    vector: Vector
    features: str = ""
    memory: bool = False
    columns: Columns = ()

    wire_name: ClassVar[str] = "trained-net"
    wire_version: ClassVar[int] = 1
    wire_fields: ClassVar[Mapping[str, Field]] = {"vector": Field("float32", ("p",))}

    def __post_init__(self) -> None:
        """Refuse a vector that does not fit the network; what this process does not trust is not imported for that."""
        if is_admitted(self.network):
            _ = self.net

    @property
    def net(self) -> Net:
        """The network without its numbers."""
        net = net_for(self.network, self.shape, len(self.classes), memory=self.memory)
        if np.shape(self.vector) != (net.size,):
            raise Mismatch(f"{self.network!r} has {net.size} numbers, got shape {np.shape(self.vector)}")
        return net

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
            raise InvalidParameter(f"a network {self.network!r} is no matrix; its numbers are in .vector")
        head, count = self.vector[self.net.head].astype(np.float64), len(self.classes)
        weights, intercept = head[:-count].reshape(count, -1).T, head[-count:]
        return weights, intercept + self.vector[self.net.own] @ weights if self.memory else intercept

    def scores(self, x: Any) -> Array:
        """Return the scores (n, c) of samples, by blocks."""
        samples = samples_of(x, self.columns)
        if samples.shape[1:] != self.shape:
            raise InvalidData(f"this network takes samples of shape {self.shape}, got {samples.shape[1:]}")
        out = np.empty((len(samples), len(self.classes)))
        done = 0
        for _, scores in outputs(self.net, self.vector, samples):
            out[done : done + len(scores)] = scores
            done += len(scores)
        return finite(out)

    def predict(self, x: Any) -> npt.NDArray[Any]:
        """Return the labels (n,) of samples."""
        return best_labels(self.scores(x), self.classes)

    def to_torch(self) -> "nn.Module":
        """Return an ordinary torch module that gives the same scores; images as (n, channels, height, width).

        A network that a factory made is such a module again, with the trained numbers.
        """
        return self.net.module(self.vector)

    def state_dict(self) -> "dict[str, Tensor]":
        """Return the state dict of `to_torch()`: for a factory's network, what its module can load."""
        return dict(self.to_torch().state_dict())

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the network as an ONNX file: input "samples", output "scores", any number of samples."""
        write_onnx(self.to_torch(), channels_first(self.shape), path)

    def to_fields(self) -> dict[str, Any]:
        """Take the model apart for the wire."""
        return {
            "network": self.network,
            "shape": self.shape,
            "classes": shorten(self.classes),
            "count": len(self.classes),
            "vector": self.vector,
            "features": self.features,
            "memory": self.memory,
            **sent_columns(self.columns),
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Put a model together from the wire."""
        if fields["count"] > len(fields["vector"]):
            raise Mismatch(f"{fields['count']} classes, but a vector of {len(fields['vector'])} numbers")
        return cls(
            str(fields["network"]),
            tuple(fields["shape"]),
            read_classes(fields["classes"], fields["count"]),
            fields["vector"],
            str(fields["features"]),
            bool(fields["memory"]),
            as_columns(fields.get("columns", ()), *fields["shape"][:1]),
        )

    def check(self) -> None:
        """Accept: finite values of fitting shapes are all that a network needs."""


def outputs(net: Net, vector: Vector, x: npt.NDArray[Any]) -> Iterator[tuple[Vector, Vector]]:
    """Yield features (n, width) and scores (n, c) of samples, block by block."""
    import torch

    numbers = torch.from_numpy(np.array(vector)).unsqueeze(0)  # a copy: what came by wire cannot be written to
    buffers, weights = numbers[:, : net.buffers], numbers[:, net.buffers :]
    for start in range(0, len(x), net.at_once):
        block = torch.tensor(as_numbers(x[start : start + net.at_once]))  # a copy: `prepare` writes to it
        with torch.inference_mode():
            features, scores = net.forward(net.parts(weights), buffers, net.prepare(block.unsqueeze(0)))
        yield features[0].t().numpy(), scores[0].t().numpy()

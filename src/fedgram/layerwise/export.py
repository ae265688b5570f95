"""A trained network as an ordinary torch module or ONNX file, which predict the same without fedgram.

Both take samples as PyTorch and ONNX do: rows (n, d), or images (n, channels, height, width), in float32. Where images
become rows the weights behind are put in the order of those planes.
"""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidParameter
from fedgram.core.extras import require
from fedgram.features.onnxfile import write_onnx
from fedgram.features.projection import TORCH_ACTIVATIONS
from fedgram.layerwise.layers import AveragePooling, Convolution, Dense, Flatten, Layer, Normalization, Shape
from fedgram.layerwise.network import Network

if TYPE_CHECKING:
    import torch

# A layer, the shape of its input, and its weights as torch lays them out: (out, in) or (out, in, height, width).
Planar: TypeAlias = tuple[Layer, Shape, Array | None]


def to_torch(network: Network) -> "torch.nn.Sequential":
    """Return the network as a `torch.nn.Sequential` of ordinary layers, in float32."""
    torch = require("torch", "vision", "a network as a torch module")
    nn, modules = torch.nn, []
    for layer, shape, weights in _planar(network):
        match layer:
            case Normalization():
                module = normalization(layer, shape)
            case Convolution():
                assert weights is not None
                module = nn.Conv2d(weights.shape[1], layer.width, layer.size, bias=False)
            case Dense():
                assert weights is not None
                module = nn.Linear(weights.shape[1], layer.width, bias=False)
            case AveragePooling():
                module = nn.AvgPool2d(layer.size)
            case Flatten():
                module = nn.Flatten()
        if weights is not None:
            module.weight.data = torch.tensor(weights, dtype=torch.float32)
        modules.append(module)
        if (activation := getattr(layer, "activation", "identity")) != "identity":
            modules.append(getattr(nn, TORCH_ACTIVATIONS[activation])())
    return nn.Sequential(*modules).eval()  # type: ignore[no-any-return]


def normalization(layer: Normalization, shape: Shape) -> "torch.nn.Module":
    """Return a module that normalises rows, or images (n, channels, height, width), of samples with this shape."""
    import torch

    places = (-1, 1, 1) if len(shape) == 3 else (-1,)
    mean, std = (torch.tensor(numbers, dtype=torch.float32).reshape(places) for numbers in (layer.mean, layer.std))

    class Normalized(torch.nn.Module):
        def forward(self, samples: torch.Tensor) -> torch.Tensor:
            return (samples - mean) / std

    return Normalized()


def to_onnx(network: Network, path: str | os.PathLike[str]) -> None:
    """Write the network as an ONNX file: input "samples", output "scores", any number of samples."""
    write_onnx(to_torch(network), _planes(network.shapes[0]), path)


def _planar(network: Network) -> Iterator[Planar]:
    """Yield the layers with weights as they are when images are planes (channels, height, width)."""
    if not network.is_whole:
        raise InvalidParameter(f"only {len(network.solutions)} of {network.depth} layers are trained: train all first")
    weights = iter(network.weights)
    flattened: Shape | None = None  # the images that the next dense layer gets as rows
    for layer, shape in zip(network.layers, network.shapes, strict=False):
        match layer:
            case Convolution():
                windows = next(weights).reshape(layer.size, layer.size, shape[2], layer.width)
                yield layer, shape, windows.transpose(3, 2, 0, 1)
            case Dense():
                rows = next(weights)
                if flattened is not None:
                    rows = rows.reshape(*flattened, -1).transpose(2, 0, 1, 3).reshape(rows.shape)
                    flattened = None
                yield layer, shape, rows.T
            case AveragePooling() | Normalization():
                yield layer, shape, None
            case Flatten():
                flattened = shape if len(shape) == 3 else flattened
                yield layer, shape, None


def _planes(shape: Shape) -> Shape:
    return (shape[2], *shape[:2]) if len(shape) == 3 else shape

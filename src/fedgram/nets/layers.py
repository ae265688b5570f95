"""The layers of small networks. Dense layers work for many clients at once, convolutions for one.

Dense layers see (clients, width, samples): with the samples last, every product below is one that BLAS is quick at,
for a few clients or many. Convolutions see (samples, channels, height, width), of a single client.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

    Tensor: TypeAlias = torch.Tensor
    Module: TypeAlias = torch.nn.Module
else:
    Tensor = Module = Any  # torch is imported where it is used, and only there

Shape: TypeAlias = tuple[int, ...]
Vector: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Layer(ABC):
    """A step of the way from sample to scores, with its parameters (trained) and buffers (only kept up to date)."""

    @property
    def parameters(self) -> tuple[Shape, ...]:
        """Shapes of the parameters, by default none."""
        return ()

    @property
    def buffers(self) -> tuple[Shape, ...]:
        """Shapes of the buffers, by default none."""
        return ()

    def initial(self, _: np.random.Generator) -> Vector:
        """Return the parameters to begin with, in one row."""
        return np.zeros(0, dtype=np.float32)

    def shape_out(self, shape: Shape) -> Shape:
        """Return the shape of a sample behind this layer, by default the same."""
        return shape

    def multiplications(self, _: Shape) -> int:
        """Return the number for a sample of this shape; 0 where the work is negligible beside matrix products."""
        return 0

    @abstractmethod
    def apply(self, x: Tensor, parameters: Sequence[Tensor], buffers: Sequence[Tensor], training: bool) -> Tensor:
        """Return the layer's output."""


@dataclass(frozen=True)
class Dense(Layer):
    """W x + b for each client and sample."""

    fan_in: int
    width: int

    @property
    def parameters(self) -> tuple[Shape, ...]:
        """W and b."""
        return (self.width, self.fan_in), (self.width,)

    def initial(self, rng: np.random.Generator) -> Vector:
        """Return uniform numbers as torch's own layers have them."""
        return _uniform(rng, self.parameters, self.fan_in)

    def shape_out(self, _: Shape) -> Shape:
        """Return the width."""
        return (self.width,)

    def multiplications(self, _: Shape) -> int:
        """Return the size of W."""
        return self.width * self.fan_in

    def apply(self, x: Tensor, parameters: Sequence[Tensor], *_: object) -> Tensor:
        """Return (clients, width, samples)."""
        weight, bias = parameters
        return bias.unsqueeze(2).baddbmm(weight, x)


@dataclass(frozen=True)
class Convolution(Layer):
    """A convolution without padding, of one client."""

    channels: int
    width: int
    kernel: int

    @property
    def parameters(self) -> tuple[Shape, ...]:
        """Kernels and biases."""
        return (self.width, self.channels, self.kernel, self.kernel), (self.width,)

    def initial(self, rng: np.random.Generator) -> Vector:
        """Return uniform numbers as torch's own layers have them."""
        return _uniform(rng, self.parameters, self.channels * self.kernel**2)

    def shape_out(self, shape: Shape) -> Shape:
        """Return channels, height and width of the maps."""
        return (self.width, *(size - self.kernel + 1 for size in shape[1:]))

    def multiplications(self, shape: Shape) -> int:
        """Return the size of the kernels times that of the maps, before any pooling."""
        return prod(self.parameters[0]) * prod(size - self.kernel + 1 for size in shape[1:])

    def apply(self, x: Tensor, parameters: Sequence[Tensor], *_: object) -> Tensor:
        """Return the maps (samples, width, height, width)."""
        from torch.nn.functional import conv2d

        kernels, bias = parameters
        return conv2d(x, kernels[0], bias[0])


@dataclass(frozen=True)
class BatchNorm(Layer):
    """Maps with mean 0 and variance 1 within a batch; when scoring, by the running means, which are buffers.

    A batch of one sample has no variance of its own: it is normalised by the running means, too.
    """

    channels: int

    @property
    def parameters(self) -> tuple[Shape, ...]:
        """Scale and shift."""
        return (self.channels,), (self.channels,)

    @property
    def buffers(self) -> tuple[Shape, ...]:
        """Running mean and variance."""
        return (self.channels,), (self.channels,)

    def initial(self, _: np.random.Generator) -> Vector:
        """Return scales of one and shifts of zero."""
        return np.repeat(np.array([1, 0], dtype=np.float32), self.channels)

    def apply(self, x: Tensor, parameters: Sequence[Tensor], buffers: Sequence[Tensor], training: bool) -> Tensor:
        """Return the normalised maps; training moves the running means."""
        from torch.nn.functional import batch_norm

        scale, shift = parameters
        mean, variance = buffers
        return batch_norm(x, mean[0], variance[0], scale[0], shift[0], training=training and len(x) > 1)


@dataclass(frozen=True)
class Relu(Layer):
    """The positive part."""

    def apply(self, x: Tensor, *_: object) -> Tensor:
        """Return max(x, 0)."""
        return x.relu_()  # the layer before does not need its result any more


@dataclass(frozen=True)
class MaxPool(Layer):
    """The largest of each 2 × 2 square."""

    def shape_out(self, shape: Shape) -> Shape:
        """Return half the height and width."""
        return (shape[0], *(size // 2 for size in shape[1:]))

    def apply(self, x: Tensor, *_: object) -> Tensor:
        """Return the smaller maps."""
        return _pooled(x)


@dataclass(frozen=True)
class PooledConvolution(Convolution):
    """A convolution and the largest of each 2 × 2 square. The bias is added last: same values, a quarter of the
    work.
    """

    def shape_out(self, shape: Shape) -> Shape:
        """Return channels, height and width of the smaller maps."""
        return MaxPool().shape_out(super().shape_out(shape))

    def apply(self, x: Tensor, parameters: Sequence[Tensor], *_: object) -> Tensor:
        """Return the smaller maps."""
        from torch.nn.functional import conv2d

        kernels, bias = parameters
        return _pooled(conv2d(x, kernels[0])).add_(bias.view(-1, 1, 1))


def unpooled(layers: Iterable[Layer]) -> Iterator[Layer]:
    """Yield the layers, with a pooled convolution as the two that it is made of: the same values."""
    for layer in layers:
        if isinstance(layer, PooledConvolution):
            yield from (Convolution(layer.channels, layer.width, layer.kernel), MaxPool())
        else:
            yield layer


@dataclass(frozen=True)
class Flatten(Layer):
    """The step from maps of one client to the inputs of dense layers."""

    def shape_out(self, shape: Shape) -> Shape:
        """Return the number of values."""
        return (prod(shape),)

    def apply(self, x: Tensor, *_: object) -> Tensor:
        """Return (1, values, samples)."""
        return x.flatten(1).t().unsqueeze(0)


def as_numbers(x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return samples in single precision, bytes as numbers from 0 to 1."""
    numbers = np.asarray(x, dtype=np.float32)
    return numbers / np.float32(255) if x.dtype == np.uint8 else numbers


def _pooled(maps: Tensor) -> Tensor:
    """Return the largest of each 2 × 2 square."""
    import torch

    if torch.is_grad_enabled():
        return torch.nn.functional.max_pool2d(maps, 2)
    # The same values at a ninth of the time; with gradients it would share them among equal values.
    height, width = (size // 2 * 2 for size in maps.shape[2:])
    rows = torch.maximum(maps[:, :, 0:height:2], maps[:, :, 1:height:2])
    return torch.maximum(rows[..., 0:width:2], rows[..., 1:width:2])


def as_tensor(array: npt.NDArray[Any]) -> Tensor:
    """Return a tensor that shares the memory of an array, for reading only.

    Torch warns of read-only arrays, such as those from the wire, so it gets a view of the memory without that flag.
    """
    import torch

    seen = array.__array_interface__
    shown = SimpleNamespace(__array_interface__=seen | {"data": (seen["data"][0], False)}, owner=array)
    return torch.from_numpy(np.asarray(shown))


def _uniform(rng: np.random.Generator, shapes: Sequence[Shape], fan_in: int) -> Vector:
    bound = 1 / sqrt(fan_in)
    return rng.uniform(-bound, bound, sum(map(prod, shapes))).astype(np.float32)


def centered() -> Module:
    """Return a layer that takes images from 0 … 1 to -1 … 1."""
    import torch
    from torch import nn

    class Centered(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images * 2 - 1

    return Centered()

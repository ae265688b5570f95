"""Losses of many perturbed vectors on one batch, computed together: what training without back-propagation needs.

Such losses differ by some 1e-6 where they are about 1, so they are computed in double precision. One product is not:
every direction v sees the same samples, and the first layer is linear, (W + sV)x = Wx + sVx. The second part is a
change already, which single precision gives to seven digits, in half the time and without making W + sV.

Maps of convolutions are (directions, channels, height, samples, width) here: what one row of a kernel meets in all
samples then lies together in memory, so a convolution is a few products of matrices and copies only shifted rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fedgram.nets.layers import BatchNorm, Convolution, Dense, Flatten, Layer, MaxPool, PooledConvolution
from fedgram.nets.module import ModuleNet
from fedgram.nets.network import BuiltIn
from fedgram.nets.vector import Net, split

if TYPE_CHECKING:
    from torch import Tensor

# Directions whose maps fit a processor's cache together: more were seen to be slower for convolutions.
TOGETHER = 5
EPS = 1e-5  # torch's, in batch normalisation


class Around(ABC):
    """The mean cross entropy of one client's batch around its weights. Nothing that it is given changes.

    `weights` (1, trained), `buffers` (1, …), y and `share` (1, n), and x as the network prepared it for one client.
    Batch normalisation and dropout are those of training; dropout drops the same for every direction.
    """

    def __init__(self, weights: "Tensor", buffers: "Tensor", x: "Tensor", y: "Tensor", share: "Tensor") -> None:
        self._weights, self._buffers = weights.double(), buffers.double()
        self._x, self._y, self._share = x, y, share

    @abstractmethod
    def changes(self, directions: "Tensor", scale: float) -> "Tensor":
        """Return L(w + scale · v) - L(w) for each direction v (directions, trained), in double precision."""

    def along(self, directions: "Tensor", scale: float, *, central: bool) -> "Tensor":
        """Return `changes`, or with `central` half of the change from one side of the weights to the other."""
        there = self.changes(directions, scale)
        return (there - self.changes(directions, -scale)) / 2 if central else there

    def _mean_loss(self, scores: "Tensor") -> "Tensor":
        """Return the losses (m,) of scores (m, classes, n)."""
        from torch.nn.functional import cross_entropy

        each = cross_entropy(scores, self._y.expand(len(scores), -1), reduction="none")
        return (each * self._share).sum(1)


def around(net: Net, weights: "Tensor", buffers: "Tensor", x: "Tensor", y: "Tensor", share: "Tensor") -> Around:
    """Return the losses around a client's weights: stacked for built-in networks, for modules one by one.

    Of modules, `torch.func.vmap` was seen to make some twice as fast and others half as fast, and it cannot follow all.
    """
    if isinstance(net, BuiltIn):
        return _Stacked(net, weights, buffers, x, y, share)
    assert isinstance(net, ModuleNet)
    return _OneByOne(net, weights, buffers, x, y, share)


class _Stacked(Around):
    def __init__(self, net: BuiltIn, *at: "Tensor") -> None:
        super().__init__(*at)
        self._net = net
        self._first, *self._others = _layers(net)
        if net.one_by_one:
            self._x = self._x.permute(1, 2, 0, 3).unsqueeze(0).contiguous()
        self._own = net.parts(self._weights)
        self._behind_first = _apply(self._first, self._x.double(), self._own[:2], ())
        self._here = self._loss(self._behind_first.clone(), self._own[2:])

    def changes(self, directions: "Tensor", scale: float) -> "Tensor":
        """Return the changes of the loss, some directions at a time."""
        import torch

        found = []
        for some in torch.split(directions, TOGETHER):
            ways = self._net.parts(some)
            behind = torch.add(self._behind_first, _apply(self._first, self._x, ways[:2], ()), alpha=scale)
            others = [torch.add(own, way, alpha=scale) for own, way in zip(self._own[2:], ways[2:], strict=True)]
            found.append(self._loss(behind, others) - self._here)
        return torch.cat(found)

    def _loss(self, x: "Tensor", parameters: Sequence["Tensor"]) -> "Tensor":
        """Return the losses of what is behind the first layer; x is used up."""
        trained, kept = iter(parameters), iter(split(self._buffers, self._net.buffer_shapes))
        for layer in self._others:
            x = _apply(layer, x, [next(trained) for _ in layer.parameters], [next(kept) for _ in layer.buffers])
        return self._mean_loss(x)


class _OneByOne(Around):
    def __init__(self, net: ModuleNet, *at: "Tensor") -> None:
        super().__init__(*at)
        self._net, self._x = net, self._x.double()
        self._here = self._loss(self._weights)

    def changes(self, directions: "Tensor", scale: float) -> "Tensor":
        """Return the changes of the loss."""
        import torch

        ways = directions.unsqueeze(1)
        return torch.cat([self._loss(torch.add(self._weights, way, alpha=scale)) - self._here for way in ways])

    def _loss(self, weights: "Tensor") -> "Tensor":
        with self._net.untouched():
            _, scores = self._net.forward(self._net.parts(weights), self._buffers.clone(), self._x, training=True)
        return self._mean_loss(scores)


def _layers(net: BuiltIn) -> Iterator[Layer]:
    """Yield the layers, with a pooled convolution as the two that it is made of."""
    for layer in net.layers:
        if isinstance(layer, PooledConvolution):
            yield Convolution(layer.channels, layer.width, layer.kernel)
            yield MaxPool()
        else:
            yield layer


def _apply(layer: Layer, x: "Tensor", parameters: Sequence["Tensor"], buffers: Sequence["Tensor"]) -> "Tensor":
    """Return what a layer makes of its input, with parameters of their own for each direction."""
    match layer:
        case Dense():
            weight, bias = parameters
            return bias.unsqueeze(2).baddbmm(weight, x.expand(len(weight), -1, -1))
        case Convolution():
            return _convolve(x, *parameters)
        case BatchNorm():
            return _normalise(x, *parameters, *buffers)
        case MaxPool():
            return _pool(x)
        case Flatten():
            return x.transpose(3, 4).flatten(1, 3)
    return layer.apply(x, parameters, buffers, True)


def _convolve(x: "Tensor", kernels: "Tensor", bias: "Tensor") -> "Tensor":
    """Return the maps of x (directions or 1, channels, height, n, width)."""
    import torch

    directions, maps, channels, size, _ = kernels.shape
    stacks, _, height, n, width = x.shape
    height, width = height - size + 1, width - size + 1
    shifted = torch.stack([x[..., j : j + width] for j in range(size)], 2).flatten(3).flatten(1, 2)
    # Where all directions see the same maps, their kernels are those of one large network.
    rows = kernels.permute(3, 0, 1, 2, 4).reshape(size, stacks, -1, channels * size)
    found = bias.reshape(stacks, -1, 1).repeat(1, 1, height * n * width)
    for i, row in enumerate(rows):
        found.baddbmm_(row, shifted[:, :, i * n * width : (i + height) * n * width])
    return found.view(directions, maps, height, n, width)


def _pool(x: "Tensor") -> "Tensor":
    """Return the largest of each 2 × 2 square."""
    import torch

    height, width = (x.shape[axis] // 2 * 2 for axis in (2, 4))
    higher = torch.maximum(x[:, :, 0:height:2], x[:, :, 1:height:2])
    return torch.maximum(higher[..., 0:width:2], higher[..., 1:width:2])


def _normalise(x: "Tensor", scale: "Tensor", shift: "Tensor", mean: "Tensor", variance: "Tensor") -> "Tensor":
    """Return maps with mean 0 and variance 1 in the batch of each direction; of one sample, by the running means."""
    import torch

    if x.shape[3] > 1:
        variance, mean = torch.var_mean(x, dim=(2, 3, 4), correction=0)
    factor = scale / (variance + EPS).sqrt()
    return x * factor[..., None, None, None] + (shift - mean * factor)[..., None, None, None]

"""Gradients estimated from forward passes alone, by the loss in random directions around the weights."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedgram.core.arrays import Array
from fedgram.nets.layers import BatchNorm, Convolution, Dense, Flatten, Layer, MaxPool, Tensor, unpooled
from fedgram.nets.module import ModuleNet
from fedgram.nets.network import BuiltIn
from fedgram.nets.sgd import Now
from fedgram.nets.vector import Net, split

MOST_HELD = 2**24  # numbers of directions that are held at once
MOST_SEEDS = 2**63


def gaussians(seed: int, count: int, size: int) -> Iterator[Tensor]:
    """Yield directions (some, size) with standard normal numbers, `count` in all.

    They depend on the seed and their place alone, so that another party can draw the same. (Torch's generator takes
    half of numpy's time, and drawing takes longer than a forward pass of a small network.)
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    some = max(1, min(count, MOST_HELD // size))
    for begin in range(0, count, some):
        directions = torch.empty(min(some, count - begin), size)
        for direction in directions:  # drawn one by one: drawn together, their numbers would depend on `count`
            direction.normal_(generator=generator)
        yield directions


def weighted_mean(derivatives: Array, seed: int, size: int) -> Array:
    """Return the estimated gradient: the mean of a seed's directions, each times the derivative along it."""
    found, k = np.zeros(size), 0
    largest = float(np.abs(derivatives).max(initial=0.0)) or 1.0  # products are in single precision
    for directions in gaussians(seed, len(derivatives), size):
        found += (derivatives[k : k + len(directions)] / largest).astype(np.float32) @ directions.numpy()
        k += len(directions)
    return found * (largest / len(derivatives))


def pass_once(net: Net, weights: Tensor, buffers: Tensor, x: Tensor) -> None:
    """Update running means in place, and advance dropout's random numbers, by one unperturbed pass of training."""
    if net.buffers or isinstance(net, ModuleNet):
        net.forward(net.parts(weights), buffers, x, training=True)


@dataclass(frozen=True)
class OnSphere:
    """FedZO's estimate, for `Hooks.estimate`: (d/(b₂μ)) Σ [L(w + μv) - L(w)] v over b₂ directions v of length 1."""

    directions: int  # b₂
    mu: float

    def __call__(self, now: Now) -> Tensor:
        """Return each client's estimate (clients, trained)."""
        import torch

        d = now.weights.shape[1]
        found = []
        for i, rng in enumerate(now.rngs):
            losses, estimate = _around(now, i), torch.zeros(d)
            for directions in gaussians(int(rng.integers(MOST_SEEDS)), self.directions, d):
                directions.div_(directions.norm(dim=1, keepdim=True))  # uniform on the sphere
                derivatives = losses.changes(directions, self.mu) / self.mu
                estimate += derivatives.float() @ directions
            found.append(estimate.mul_(d / self.directions))
        pass_once(now.net, now.weights, now.buffers, now.x)
        return torch.stack(found)


def _around(now: Now, i: int) -> "Around":
    """Return the losses around one client's weights."""
    row = slice(i, i + 1)
    x = now.x if now.net.one_by_one else now.x[row]
    return around(now.net, now.weights[row], now.buffers[row], x, now.y[row], now.share[row])


# Directions whose maps fit a processor's cache together: more were seen to be slower for convolutions.
TOGETHER = 5
EPS = 1e-5  # torch's, in batch normalisation


class Around(ABC):
    """The mean cross entropy of one client's batch around its weights. The tensors given are never changed.

    `weights` (1, trained), `buffers` (1, …), y and `share` (1, n), and x as the network prepared it for one client.
    Batch normalisation and dropout work as in training; dropout drops the same units for every direction.
    """

    def __init__(self, weights: Tensor, buffers: Tensor, x: Tensor, y: Tensor, share: Tensor) -> None:
        self._weights, self._buffers = weights.double(), buffers.double()
        self._x, self._y, self._share = x, y, share

    @abstractmethod
    def changes(self, directions: Tensor, scale: float) -> Tensor:
        """Return L(w + scale · v) - L(w) for each direction v (directions, trained), in double precision."""

    def along(self, directions: Tensor, scale: float, *, central: bool) -> Tensor:
        """Return `changes`, or with `central` half of L(w + scale · v) - L(w - scale · v) for each direction v."""
        there = self.changes(directions, scale)
        return (there - self.changes(directions, -scale)) / 2 if central else there

    def _mean_loss(self, scores: Tensor) -> Tensor:
        """Return the losses (m,) of scores (m, classes, n)."""
        from torch.nn.functional import cross_entropy

        each = cross_entropy(scores, self._y.expand(len(scores), -1), reduction="none")
        return (each * self._share).sum(1)


def around(net: Net, weights: Tensor, buffers: Tensor, x: Tensor, y: Tensor, share: Tensor) -> "Around":
    """Return the losses around a client's weights: stacked for built-in networks, for modules one by one.

    For modules, `torch.func.vmap` was measured to be twice as fast for some and half as fast for others, and it does
    not support all.
    """
    if isinstance(net, BuiltIn):
        return _Stacked(net, weights, buffers, x, y, share)
    assert isinstance(net, ModuleNet)
    return _OneByOne(net, weights, buffers, x, y, share)


class _Stacked(Around):
    def __init__(self, net: BuiltIn, *at: Tensor) -> None:
        super().__init__(*at)
        self._net = net
        self._first, *self._others = unpooled(net.layers)
        if net.one_by_one:
            self._x = self._x.permute(1, 2, 0, 3).unsqueeze(0).contiguous()
        self._own = net.parts(self._weights)
        self._behind_first = _apply(self._first, self._x.double(), self._own[:2], ())
        self._here = self._loss(self._behind_first.clone(), self._own[2:])

    def changes(self, directions: Tensor, scale: float) -> Tensor:
        """Return the changes of the loss, some directions at a time."""
        import torch

        found = []
        for some in torch.split(directions, TOGETHER):
            ways = self._net.parts(some)
            behind = torch.add(self._behind_first, _apply(self._first, self._x, ways[:2], ()), alpha=scale)
            others = [torch.add(own, way, alpha=scale) for own, way in zip(self._own[2:], ways[2:], strict=True)]
            found.append(self._loss(behind, others) - self._here)
        return torch.cat(found)

    def _loss(self, x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """Return the losses for outputs x of the first layer, which are overwritten."""
        trained, kept = iter(parameters), iter(split(self._buffers, self._net.buffer_shapes))
        for layer in self._others:
            x = _apply(layer, x, [next(trained) for _ in layer.parameters], [next(kept) for _ in layer.buffers])
        return self._mean_loss(x)


class _OneByOne(Around):
    def __init__(self, net: ModuleNet, *at: Tensor) -> None:
        super().__init__(*at)
        self._net, self._x = net, self._x.double()
        self._here = self._loss(self._weights)

    def changes(self, directions: Tensor, scale: float) -> Tensor:
        """Return the changes of the loss."""
        import torch

        ways = directions.unsqueeze(1)
        return torch.cat([self._loss(torch.add(self._weights, way, alpha=scale)) - self._here for way in ways])

    def _loss(self, weights: Tensor) -> Tensor:
        with self._net.untouched():
            _, scores = self._net.forward(self._net.parts(weights), self._buffers.clone(), self._x, training=True)
        return self._mean_loss(scores)


def _apply(layer: Layer, x: Tensor, parameters: Sequence[Tensor], buffers: Sequence[Tensor]) -> Tensor:
    """Return a layer's output, with separate parameters for each direction."""
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


def _convolve(x: Tensor, kernels: Tensor, bias: Tensor) -> Tensor:
    """Return the maps of x (directions or 1, channels, height, n, width)."""
    import torch

    directions, maps, channels, size, _ = kernels.shape
    stacks, _, height, n, width = x.shape
    height, width = height - size + 1, width - size + 1
    shifted = torch.stack([x[..., j : j + width] for j in range(size)], 2).flatten(3).flatten(1, 2)
    # Where all directions have the same input, their kernels are stacked into one large layer.
    rows = kernels.permute(3, 0, 1, 2, 4).reshape(size, stacks, -1, channels * size)
    found = bias.reshape(stacks, -1, 1).repeat(1, 1, height * n * width)
    for i, row in enumerate(rows):
        found.baddbmm_(row, shifted[:, :, i * n * width : (i + height) * n * width])
    return found.view(directions, maps, height, n, width)


def _pool(x: Tensor) -> Tensor:
    """Return the largest of each 2 × 2 square."""
    import torch

    height, width = (x.shape[axis] // 2 * 2 for axis in (2, 4))
    higher = torch.maximum(x[:, :, 0:height:2], x[:, :, 1:height:2])
    return torch.maximum(higher[..., 0:width:2], higher[..., 1:width:2])


def _normalise(x: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Return maps with mean 0 and variance 1 in each direction's batch; a single sample takes the running means."""
    import torch

    if x.shape[3] > 1:
        variance, mean = torch.var_mean(x, dim=(2, 3, 4), correction=0)
    factor = scale / (variance + EPS).sqrt()
    return x * factor[..., None, None, None] + (shift - mean * factor)[..., None, None, None]

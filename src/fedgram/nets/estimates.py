"""Gradients estimated from forward passes alone: the loss is looked at in random directions around the weights."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidParameter
from fedgram.nets.module import ModuleNet
from fedgram.nets.sgd import Now
from fedgram.nets.stacked import Around, around
from fedgram.nets.vector import Net

if TYPE_CHECKING:
    from torch import Tensor

MOST_HELD = 2**24  # numbers of directions that are held at once
MOST_SEEDS = 2**63


def gaussians(seed: int, count: int, size: int) -> Iterator["Tensor"]:
    """Yield directions (some, size) with standard normal numbers, `count` in all.

    They depend on the seed and their place alone, so that another party can draw the same. (Torch's generator takes
    half of numpy's time, and drawing takes longer than a forward pass of a small network.)
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    some = max(1, min(count, MOST_HELD // size))
    for begin in range(0, count, some):
        directions = torch.empty(min(some, count - begin), size)
        for direction in directions:  # drawn one by one: together they would depend on how many are drawn
            direction.normal_(generator=generator)
        yield directions


def weighted_mean(derivatives: Array, seed: int, size: int) -> Array:
    """Return the mean of a seed's directions, each times the derivative along it: the estimate that these make."""
    found, k = np.zeros(size), 0
    largest = float(np.abs(derivatives).max(initial=0.0)) or 1.0  # products are single, whatever somebody sent
    for directions in gaussians(seed, len(derivatives), size):
        found += (derivatives[k : k + len(directions)] / largest).astype(np.float32) @ directions.numpy()
        k += len(directions)
    return found * (largest / len(derivatives))


def check_probing(directions: int, width: float, name: str) -> None:
    """Refuse numbers of directions and lengths of perturbations with which nothing can be estimated."""
    if directions < 1:
        raise InvalidParameter(f"directions must be a whole number ≥ 1, got {directions}")
    if not 0 < width < float("inf"):
        raise InvalidParameter(f"{name} must be a number > 0, got {width}")


def pass_once(net: Net, weights: "Tensor", buffers: "Tensor", x: "Tensor") -> None:
    """Move running means (in place), and dropout's random numbers, as one unperturbed pass of training does."""
    if net.buffers or isinstance(net, ModuleNet):
        net.forward(net.parts(weights), buffers, x, training=True)


@dataclass(frozen=True)
class OnSphere:
    """FedZO's estimate, for `Hooks.estimate`: (d/(b₂μ)) Σ [L(w + μv) - L(w)] v over b₂ directions v of length 1."""

    directions: int  # b₂
    mu: float

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        check_probing(self.directions, self.mu, "mu")

    def __call__(self, now: Now) -> "Tensor":
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


def _around(now: Now, i: int) -> Around:
    """Return the losses around one client's weights."""
    row = slice(i, i + 1)
    x = now.x if now.net.one_by_one else now.x[row]
    return around(now.net, now.weights[row], now.buffers[row], x, now.y[row], now.share[row])

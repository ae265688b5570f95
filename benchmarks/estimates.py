"""Losses in many directions around the weights, evaluated together, against one direction after another."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import vector_to_parameters

from benchmarks.measure import Results, cpu_seconds
from fedgram.nets import net_for
from fedgram.nets.estimates import around, gaussians

CLASSES, BATCH, SCALE = 10, 32, 1e-3
# A dense network is almost only one product per direction. Stacking makes it single instead of double precision, but
# not smaller: the largest possible gain is a factor of two.
NETWORKS = (("mlp:128:64", (784,), 2.0), ("lenet5", (32, 32, 3), 3.0))


def jobs(network: str, shape: tuple[int, ...], count: int) -> list[Callable[[], Tensor]]:
    """Return three ways to compute the changes of one batch's loss in double precision: ours, a module, a lean loop."""
    net, rng = net_for(network, shape, CLASSES), np.random.default_rng(0)
    vector = net.initial(rng)
    weights, none = torch.from_numpy(vector)[None], torch.zeros(1, 0)
    raw = torch.from_numpy(rng.random((1, BATCH, *shape), dtype=np.float32))
    rows = raw[0].double().movedim(-1, 1) if net.one_by_one else raw[0].double()  # `prepare` changes images in place
    x, y = net.prepare(raw), torch.from_numpy(rng.integers(0, CLASSES, (1, BATCH)))
    [directions] = gaussians(0, count, net.size)
    module = net.module(vector).double()
    wide, inputs = weights.double(), x.double()

    def together() -> Tensor:
        return around(net, weights, none, x, y, torch.full((1, BATCH), 1 / BATCH)).changes(directions, SCALE)

    def by_module() -> Tensor:
        def loss(perturbed: Tensor) -> Tensor:
            vector_to_parameters(perturbed, module.parameters())
            return cross_entropy(module(rows), y[0])

        here = loss(wide[0])
        return torch.stack([loss(torch.add(wide[0], way, alpha=SCALE)) - here for way in directions])

    def lean() -> Tensor:
        def loss(perturbed: Tensor) -> Tensor:
            return cross_entropy(net.forward(net.parts(perturbed), none, inputs)[1], y)

        here = loss(wide)
        return torch.stack([loss(torch.add(wide, way, alpha=SCALE)) - here for way in directions])

    return [together, by_module, lean]


def main() -> None:
    torch.set_num_threads(1)
    for network, shape, bound in NETWORKS:
        results = Results(f"Losses around {network}'s weights, samples of shape {shape}, a batch of {BATCH}, float64")
        for count in (20, 100):
            with torch.no_grad():
                ways = jobs(network, shape, count)
                found = [way() for way in ways]
                assert all(torch.allclose(found[0], other, rtol=1e-4, atol=1e-8) for other in found[1:])
                ours, module, lean = cpu_seconds(*ways, repeats=9)
            times = ", ".join(f"{1e3 * seconds:.1f}" for seconds in (ours, module, lean))
            results.note(f"{count} directions, CPU ms: together, a module one by one, a lean loop", times)
            results.at_least("a module, one by one / together", module / ours, bound)
            results.note("a lean loop / together", f"{lean / ours:.1f}")
        size = net_for(network, shape, CLASSES).size
        [drawing] = cpu_seconds(lambda size=size: list(gaussians(0, 100, size)))
        results.note("drawing 100 directions, CPU ms", f"{1e3 * drawing:.1f}")
        results.show()

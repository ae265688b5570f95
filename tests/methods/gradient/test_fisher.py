"""The trace of the empirical Fisher matrix is the mean over samples of their gradients' squared norms."""

import numpy as np
import pytest
import torch
from torch import nn

from fedgram.methods.gradient.fedas import fisher_trace
from fedgram.nets import admit, net_for


class Looks(nn.Module):
    """A module that cannot be vectorised: it branches on a value."""

    def __init__(self, classes):
        super().__init__()
        self.low, self.high = nn.Linear(9, 6), nn.Linear(6, classes)

    def forward(self, x):
        hidden = self.low(x.flatten(1))
        return self.high(hidden.tanh() if hidden.sum().item() > 0 else hidden)


def normalised(shape, classes):
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, classes)
    )


def looking(shape, classes):
    return Looks(classes)


CASES = [
    ("linear", (5,)),
    ("mlp:7:4", (5,)),
    ("lenet5", (16, 16, 1)),
    ("cnn", (12, 12, 1)),
    (normalised, (3, 3, 1)),
    (looking, (3, 3, 1)),
]


@pytest.mark.parametrize(("network", "shape"), CASES, ids=lambda case: getattr(case, "__name__", str(case)))
def test_it_is_what_autograd_says_of_each_sample_by_itself(network, shape):
    rng = np.random.default_rng(0)
    net = net_for(admit(network), shape, 3)
    vector = net.initial(rng)
    vector[: net.buffers] += 0.5 * rng.random(net.buffers, dtype=np.float32)  # running means as after training
    x, y = rng.random((7, *shape)), rng.integers(0, 3, 7)
    module = net.module(vector).double()
    want = 0.0
    for i in range(len(y)):
        one = torch.from_numpy(x[i : i + 1])
        if len(shape) == 3:
            one = one.permute(0, 3, 1, 2)
        loss = nn.functional.cross_entropy(module(one), torch.from_numpy(y[i : i + 1]))
        gradients = torch.autograd.grad(loss, [p for p in module.parameters() if p.requires_grad])
        want += sum(float(piece.square().sum()) for piece in gradients) / len(y)
    assert fisher_trace(net, vector, x, y) == pytest.approx(want, rel=1e-5)


def test_it_depends_neither_on_the_order_nor_on_blocks_of_samples(monkeypatch):
    rng = np.random.default_rng(0)
    net = net_for("lenet5", (16, 16, 1), 3)
    vector, x, y = net.initial(rng), rng.random((9, 16, 16, 1)), rng.integers(0, 3, 9)
    whole = fisher_trace(net, vector, x, y)
    monkeypatch.setattr("fedgram.methods.gradient.fedas.AT_ONCE", 2)
    order = rng.permutation(9)
    assert fisher_trace(net, vector, x[order], y[order]) == pytest.approx(whole, rel=1e-6)

"""Gradients from forward passes: changes of the loss to many digits, and estimates that are right on average."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedgram.core.errors import InvalidParameter
from fedgram.nets import Hooks, Plan, admit, net_for, train
from fedgram.nets import estimates as estimating
from fedgram.nets.estimates import OnSphere, around, gaussians, weighted_mean
from fedgram.nets.optimizers import SGD
from fedgram.nets.sgd import Now
from support.networks import HERE

CLASSES = 4
NETWORKS = [
    ("linear", (5,)),
    ("mlp:7:6", (5,)),
    ("lenet5", (30, 30, 3)),  # pooling leaves a row and a column out
    ("lenet5", (17, 17)),
    ("cnn", (10, 10, 1)),
    (f"{HERE}:mlp", (5,)),
    (f"{HERE}:cnn", (3, 10, 10)[::-1]),
    (f"{HERE}:Counting", (5,)),
]


def at(network, shape, n=6, seed=0):
    """Return a network, a client's numbers (1, …), and a batch as the training loop has it."""
    net, rng = net_for(admit(network), shape, CLASSES), np.random.default_rng(seed)
    buffers, weights = torch.from_numpy(net.initial(rng))[None].tensor_split([net.buffers], dim=1)
    x = net.prepare(torch.from_numpy(rng.random((1, n, *shape), dtype=np.float32)))
    y = torch.from_numpy(rng.integers(0, CLASSES, (1, n)))
    return net, weights, buffers, x, y, torch.full((1, n), 1 / n)


def change(net, weights, buffers, x, y, direction, scale):
    """Return L(w + scale v) - L(w) by two ordinary passes in double precision."""
    found = []
    for length in (scale, 0):
        moved = weights.double() + length * direction.double()
        scores = net.forward(net.parts(moved), buffers.double(), x.double(), training=True)[1]
        found.append(cross_entropy(scores, y).item())
    return found[0] - found[1]


def exact(net, weights, buffers, x, y, _):
    leaf = weights.clone().requires_grad_()
    scores = net.forward(net.parts(leaf), buffers.clone(), x, training=True)[1]
    return torch.autograd.grad(cross_entropy(scores, y), leaf)[0]


@pytest.mark.parametrize(("network", "shape"), NETWORKS)
@pytest.mark.parametrize("n", [6, 1])
def test_changes_are_those_of_two_passes_in_double_precision(network, shape, n):
    net, weights, buffers, x, y, share = at(network, shape, n)
    kept = [tensor.clone() for tensor in (weights, buffers, x)]
    directions = torch.randn(12, weights.shape[1], generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), net.training([np.random.default_rng(0)]):
        for scale in (1e-4, -1e-4, 0.05):
            got = around(net, weights, buffers, x, y, share).changes(directions, scale)
            want = [change(net, weights, buffers, x, y, direction, scale) for direction in directions]
            assert got.dtype == torch.float64
            # Seven digits of the change itself: of L, which is about 1.4, that would be four at 1e-4.
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=2e-6 * np.abs(want).max())
    for tensor, before in zip((weights, buffers, x), kept, strict=True):
        assert torch.equal(tensor, before), "neither weights nor running means nor samples change"


def test_samples_that_fill_up_a_batch_do_not_count():
    net, weights, buffers, x, y, _ = at("mlp:7", (5,), n=6)
    share = torch.tensor([[0.25] * 4 + [0.0] * 2])
    directions = torch.randn(3, weights.shape[1], generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        got = around(net, weights, buffers, x, y, share).changes(directions, 0.01)
        want = around(net, weights, buffers, x[..., :4], y[:, :4], share[:, :4]).changes(directions, 0.01)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_dropout_drops_the_same_in_every_direction():
    net, weights, buffers, x, y, share = at(f"{HERE}:dropping", (5,), n=8)
    directions = torch.randn(5, weights.shape[1], generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), net.training([np.random.default_rng(0)]):
        tiny = around(net, weights, buffers, x, y, share).changes(directions, 1e-9)
        assert tiny.abs().max() < 1e-7, "with other features dropped the losses would be far apart"
        first = around(net, weights, buffers, x, y, share).changes(directions, 0.1)
        estimating.pass_once(net, weights, buffers, x)
        second = around(net, weights, buffers, x, y, share).changes(directions, 0.1)
    assert (first - second).abs().max() > 1e-3, "the next step drops others"


def moment(net, weights, buffers, x, y, share, seed=0):
    return Now(net, weights, weights, {}, x, y, share, True, buffers, [np.random.default_rng(seed)])


@pytest.mark.parametrize(("network", "shape"), [("linear", (5,)), ("mlp:7:6", (5,)), ("cnn", (10, 10, 1))])
def test_the_estimate_points_where_the_gradient_does(network, shape):
    here = at(network, shape)
    gradient, d = exact(*here), here[1].shape[1]
    for directions in (20, 500):
        with torch.no_grad():
            found = torch.cat([OnSphere(directions, 1e-4)(moment(*here, seed=k)) for k in range(20)])
        cosines = torch.cosine_similarity(found, gradient)
        # For b random directions: their span has b of the d dimensions, and the estimate in these is as noisy.
        want = (directions / (directions + d)) ** 0.5
        assert cosines.mean().item() == pytest.approx(want, rel=0.15)
        # ‖g‖² is on average (1 + (d - 1)/b) ‖∇L‖², up to terms of order 1/b.
        size = found.square().sum(1).mean() / gradient.square().sum()
        assert size.item() == pytest.approx(1 + d / directions, rel=0.3)


def test_the_mean_of_many_estimates_is_the_gradient():
    here = at("linear", (5,))
    gradient = exact(*here)
    with torch.no_grad():
        found = OnSphere(100_000, 1e-4)(moment(*here))
    # Of 24 numbers and 100,000 directions the error is about √(24/100,000) = 1.5 % of the gradient's length.
    assert torch.linalg.norm(found - gradient) < 0.04 * torch.linalg.norm(gradient)


def test_the_estimate_is_its_formula():
    net, weights, buffers, x, y, share = at("linear", (5,))
    with torch.no_grad():
        got = OnSphere(3, 0.01)(moment(net, weights, buffers, x, y, share, seed=7))
    [drawn] = gaussians(int(np.random.default_rng(7).integers(2**63)), 3, weights.shape[1])
    want = np.zeros(24)
    for v in drawn.double():
        unit = v / v.norm()
        want += 24 / (3 * 0.01) * change(net, weights, buffers, x, y, unit, 0.01) * unit.numpy()
    np.testing.assert_allclose(got[0], want, rtol=1e-4, atol=1e-6)


def test_running_means_move_once_and_are_never_perturbed():
    net, weights, buffers, x, y, share = at("cnn", (10, 10, 1))
    want = buffers.clone()
    with torch.no_grad():
        net.forward(net.parts(weights), want, x, training=True)
        OnSphere(8, 1.0)(moment(net, weights, buffers, x, y, share))
    assert torch.equal(buffers, want)


def test_a_seed_gives_the_same_directions_however_many_are_held(monkeypatch):
    once = torch.cat(list(gaussians(3, 50, 101)))
    monkeypatch.setattr(estimating, "MOST_HELD", 700)
    blocks = list(gaussians(3, 50, 101))
    assert [len(block) for block in blocks] == [6] * 8 + [2]
    assert torch.equal(torch.cat(blocks), once)
    assert not torch.equal(once, torch.cat(list(gaussians(4, 50, 101))))
    assert abs(once.mean()) < 0.05
    assert abs(once.std() - 1) < 0.05
    slopes = np.random.default_rng(0).normal(size=50)
    np.testing.assert_allclose(weighted_mean(slopes, 3, 101), slopes @ once.double().numpy() / 50, atol=1e-6)


@pytest.mark.parametrize("network", ["mlp:7", f"{HERE}:dropping"])
def test_an_estimate_that_is_exact_is_plain_training(network):
    net = net_for(admit(network), (5,), CLASSES)
    rng = np.random.default_rng(0)
    samples = [(rng.random((9 + k, 5), dtype=np.float32), rng.integers(0, CLASSES, 9 + k)) for k in range(3)]
    starts = [net.initial(np.random.default_rng(k)) for k in range(3)]
    plan = Plan(lr=0.1, optimizer=SGD(0.9), weight_decay=0.1, batch=4, epochs=2, repeat=2)

    def by_autograd(now):
        with torch.enable_grad():
            leaf = now.weights.clone().requires_grad_()
            scores = net.forward(net.parts(leaf), now.buffers, now.x, training=True)[1]
            losses = (cross_entropy(scores, now.y, reduction="none") * now.share).sum()
            return torch.autograd.grad(losses, leaf)[0]

    marks = [np.arange(net.size - net.buffers, dtype=np.float32) % 2] * 3
    for hooks in (Hooks(), Hooks(only=marks)):
        got, want = (
            train(net, samples, starts, [np.random.default_rng(k) for k in range(3)], plan, some)[0]
            for some in (replace(hooks, estimate=by_autograd), hooks)
        )
        # The same batches, dropout, momentum, decay and marks; autograd and the written-out gradient round differently.
        np.testing.assert_allclose(got, want, atol=1e-6)


def test_an_estimate_leaves_no_room_for_terms_of_the_loss():
    with pytest.raises(InvalidParameter, match="no back-propagation for term"):
        Hooks(estimate=OnSphere(1, 0.1), term=lambda now: now.losses)
    with pytest.raises(InvalidParameter, match="no back-propagation for term"):
        Hooks(estimate=OnSphere(1, 0.1), error=lambda now: now.scores)
    with pytest.raises(InvalidParameter, match="no back-propagation for term, error and of"):
        Hooks(estimate=OnSphere(1, 0.1), of=lambda weights, _: weights)

"""Effects of hooks on training: a fixed part of the vector, and another vector's outputs for the batch."""

import numpy as np
import pytest
import torch

from fedgram.nets import Hooks, Plan, net_for, outputs, train
from fedgram.nets.optimizers import SGD

PLAN = Plan(lr=0.1, optimizer=SGD(0.9), weight_decay=0.1, batch=8, epochs=2)


def clients(count, shape):
    rng = np.random.default_rng(3)
    return [(rng.random((20 + k, *shape), dtype=np.float32), rng.integers(0, 4, 20 + k)) for k in range(count)]


def trained(net, samples, hooks):
    starts = [net.initial(np.random.default_rng(k)) for k in range(len(samples))]
    rngs = [np.random.default_rng(10 + k) for k in range(len(samples))]
    return starts, train(net, samples, starts, rngs, PLAN, hooks)[0]


@pytest.mark.parametrize(("network", "shape"), [("mlp:7", (5,)), ("cnn", (10, 10, 1))])
@pytest.mark.parametrize("autograd", [False, True])
def test_only_the_marked_numbers_move(network, shape, autograd):
    net = net_for(network, shape, 4)
    rng = np.random.default_rng(0)
    marks = [rng.integers(0, 2, net.size - net.buffers).astype(np.float32) for _ in range(3)]
    zero = (lambda now: now.losses * 0) if autograd else None
    starts, ends = trained(net, clients(3, shape), Hooks(only=marks, term=zero))
    for start, end, mark in zip(starts, ends, marks, strict=True):
        moved = (end != start)[net.buffers :]
        assert not moved[mark == 0].any()
        assert moved[mark == 1].mean() > 0.8


def test_all_marked_is_plain_training():
    net, samples = net_for("mlp:7", (5,), 4), clients(3, (5,))
    ones = [np.ones(net.size, dtype=np.float32)] * 3
    np.testing.assert_array_equal(trained(net, samples, Hooks(only=ones))[1], trained(net, samples, Hooks())[1])


@pytest.mark.parametrize(("network", "shape"), [("linear", (5,)), ("mlp:7", (5,)), ("cnn", (10, 10, 1))])
@pytest.mark.parametrize("beside", [False, True])
def test_an_error_by_the_scores_is_the_term_that_it_is_the_gradient_of(network, shape, beside):
    net, samples = net_for(network, shape, 4), clients(3, shape)

    def term(now):
        return (now.scores.square().sum(1) * now.share).sum(1)

    def error(now):
        assert not torch.is_grad_enabled()
        return 2 * now.scores * now.share.unsqueeze(1)

    def other(now):
        return (now.features.square().sum(1) * now.share).sum(1)

    with_error = Hooks(error=error, term=other if beside else None)
    with_term = Hooks(term=(lambda now: term(now) + other(now)) if beside else term)
    _, want = trained(net, samples, with_term)
    np.testing.assert_allclose(trained(net, samples, with_error)[1], want, atol=1e-5)
    assert np.abs(np.subtract(want, trained(net, samples, Hooks(term=other) if beside else Hooks())[1])).max() > 1e-3


@pytest.mark.parametrize(("network", "shape"), [("mlp:7", (5,)), ("cnn", (10, 10, 1))])
def test_what_a_carried_vector_says_of_the_batch(network, shape):
    net, samples = net_for(network, shape, 4), clients(2, shape)
    other = [net.initial(np.random.default_rng(99 + k)) for k in range(2)]
    met = []

    def listen(now):
        features, scores = now.said_by("other")
        assert not scores.requires_grad
        # In evaluation mode: the running means of carried vectors do not change.
        for row in range(len(now.y)):
            net_row = now.carried["other"][row].numpy()
            i = [np.array_equal(net_row, vector) for vector in other].index(True)
            for sample, label in zip(scores[row].t(), now.y[row], strict=True):
                met.append((i, sample.numpy(), int(label)))
        return torch.zeros(len(now.y)) * now.losses + 0 * features.sum()

    trained(net, samples, Hooks(term=listen, carried={"other": other}))
    want = [np.concatenate([block for _, block in outputs(net, other[i], x)]) for i, (x, _) in enumerate(samples)]
    assert len(met) >= 2 * sum(len(y) for _, y in samples)
    found = [np.abs(want[i] - said).max(axis=1).min() for i, said, _ in met[:40]]
    assert max(found) < 1e-4

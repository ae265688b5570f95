"""Networks as vectors, and the loop that trains them: against torch's own modules, and against each other."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedgram.core import errors
from fedgram.nets import Hooks, Plan, TrainedNet, net_for, outputs, pull, read_network, sgd, train
from fedgram.nets.layers import MaxPool
from fedgram.nets.optimizers import SGD
from support import networks
from support.campaign import examples
from support.nets import samples, scores_with_memory

MODULES = {
    "lenet5": ((32, 32, 3), partial(networks.lenet5, (3, 32, 32), 10)),
    "grey lenet5": ((28, 28), partial(networks.lenet5, (1, 28, 28), 10)),
    "cnn": ((28, 28, 1), partial(networks.cnn, (1, 28, 28), 10)),
    "mlp:8:6": ((12,), partial(networks.mlp, (12,), 10)),
    "linear": ((12,), partial(nn.Linear, 12, 10)),
}


def as_torch(x):
    if x.ndim == 2:
        return torch.from_numpy(x)
    images = x if x.ndim == 4 else x[..., None]
    return torch.from_numpy(images).permute(0, 3, 1, 2) * 2 - 1


def trained_by_torch(module, vector, net, x, y, plan, rng):
    """Return the vector and the module after the plainest of loops."""
    nn.utils.vector_to_parameters(torch.from_numpy(vector[net.buffers :].copy()), module.parameters())
    optimizer = torch.optim.SGD(
        module.parameters(), lr=plan.lr, momentum=plan.optimizer.momentum, weight_decay=plan.weight_decay
    )
    for _ in range(plan.epochs):
        order = rng.permutation(len(y))
        for start in range(0, len(y), plan.batch):
            batch = order[start : start + plan.batch]
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(as_torch(x)[batch]), torch.from_numpy(y[batch])).backward()
            optimizer.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach().numpy()


@pytest.mark.parametrize("name", MODULES)
def test_training_is_that_of_torch(name):
    shape, module = MODULES[name][0], MODULES[name][1]()
    net = net_for(name.removeprefix("grey "), shape, 10)
    (x, y), start = samples(shape, 37), net.initial(np.random.default_rng(1))
    plan = Plan(lr=0.05, optimizer=SGD(0.9), weight_decay=0.01, batch=16, epochs=2)
    [got], _ = train(net, [(x, y)], [start], [np.random.default_rng(2)], plan)
    want = trained_by_torch(module, start, net, x, y, plan, np.random.default_rng(2))
    np.testing.assert_allclose(got[net.buffers :], want, atol=2e-5)
    assert np.abs(got - start).max() > 1e-3
    # The running means of batch normalisation are torch's, too, and scores are those of the module when it evaluates.
    buffers = [b.numpy() for key, b in module.named_buffers() if "running" in key]
    np.testing.assert_allclose(got[: net.buffers], np.concatenate([[], *buffers]), rtol=1e-4, atol=1e-5)
    with torch.inference_mode():
        wanted = module.eval()(as_torch(x)).numpy()
    model = TrainedNet(net.network, shape, tuple(range(10)), got)
    np.testing.assert_allclose(model.scores(x), wanted, atol=1e-4)


def test_sizes_are_those_of_the_paper():
    # FedAPA's Table 2: 484 KB there and back for LeNet-5, 478 KB without the last layer.
    net = net_for("lenet5", (32, 32, 3), 10)
    assert round(net.size * 4 * 2 / 1024) == 484
    assert round(net.head.start * 4 * 2 / 1024) == 478
    assert (net.base.stop, net.head.stop) == (net.head.start, net.size)


@examples(15)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=7),
    network=st.sampled_from(["linear", "mlp:7"]),
    batch=st.sampled_from([1, 8, 64]),
    chunk=st.sampled_from([1, 4000, 2**23]),
)
def test_training_together_is_training_alone(sizes, network, batch, chunk):
    net, plan = net_for(network, (5,), 10), Plan(lr=0.1, optimizer=SGD(0.9), batch=batch, epochs=2)
    data = [samples((5,), n, seed=i) for i, n in enumerate(sizes)]
    starts = [net.initial(np.random.default_rng(i)) for i in range(len(sizes))]
    hooks = Hooks(gradient=lambda now: pull(0.1, now.weights, now.carried["center"]), carried={"center": starts[::-1]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sgd, "CHUNK_BYTES", chunk)
        together, _ = train(net, data, starts, [np.random.default_rng(i) for i in range(len(sizes))], plan, hooks)
    for i, got in enumerate(together):
        own = Hooks(gradient=hooks.gradient, carried={"center": [starts[::-1][i]]})
        [alone], _ = train(net, [data[i]], [starts[i]], [np.random.default_rng(i)], plan, own)
        np.testing.assert_allclose(got, alone, atol=1e-5)


@examples(15)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    network=st.sampled_from(["linear", "mlp:7", "mlp:7:6:5"]),
    memory=st.booleans(),
)
def test_gradients_written_out_are_those_of_autograd(sizes, network, memory):
    net, plan = net_for(network, (5,), 10, memory=memory), Plan(lr=0.1, batch=8, epochs=2)
    data = [samples((5,), n, seed=i) for i, n in enumerate(sizes)]
    starts = [net.initial(np.random.default_rng(i)) + 0.1 for i in range(len(sizes))]
    for_autograd = Hooks(term=lambda now: 0 * now.losses)
    by_hand, by_autograd = (
        train(net, data, starts, [np.random.default_rng(i) for i in range(len(sizes))], plan, hooks)[0]
        for hooks in (Hooks(), for_autograd)
    )
    np.testing.assert_allclose(by_hand, by_autograd, atol=1e-5)


@given(n=st.integers(1, 100), batch=st.integers(1, 40), epochs=st.integers(1, 3))
def test_no_sample_is_left_out(n, batch, epochs):
    plan = Plan(batch=batch, epochs=epochs)
    order = plan.order(n, np.random.default_rng(0))
    batches = [next(order) for _ in range(plan.batches(n))]
    assert np.array_equal(np.sort(np.concatenate(batches)), np.sort(np.tile(np.arange(n), epochs)))


def test_chunks_bound_what_is_held_at_once(monkeypatch):
    net, held = net_for("linear", (50,), 10), []
    feed = sgd._Feed
    monkeypatch.setattr(sgd, "CHUNK_BYTES", 40_000)
    monkeypatch.setattr(
        sgd, "_Feed", lambda shape, plan, data, rngs: held.append(len(data)) or feed(shape, plan, data, rngs)
    )
    many = 60
    train(
        net,
        [samples((50,), 9)] * many,
        [net.initial(np.random.default_rng(0))] * many,
        [np.random.default_rng(i) for i in range(many)],
        Plan(batch=8),
    )
    assert sum(held) == many
    assert max(held) * 4 * (8 * 50 + 5 * net.size) <= 40_000


def test_memory_is_added_to_the_features():
    plain, net = net_for("mlp:6", (5,), 10), net_for("mlp:6", (5,), 10, memory=True)
    vector, (x, _) = plain.initial(np.random.default_rng(0)), samples((5,), 4)
    scores_with_memory(plain, net, vector, np.arange(6, dtype=np.float32), x)
    linear = TrainedNet(
        "linear",
        (5,),
        tuple(range(10)),
        net_for("linear", (5,), 10, memory=True).initial(np.random.default_rng(0)) + 1,
        memory=True,
    )
    np.testing.assert_allclose(linear.scores(x), x @ linear.weights + linear.intercept, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
def test_images_of_the_user_are_left_as_they_are(dtype):
    """They are scaled on the way into the network, in place: in a copy."""
    x, y = samples((32, 32, 3), 20)
    x = (255 * np.abs(x)).astype(dtype) if dtype == np.uint8 else x.astype(dtype)
    before, net = x.copy(), net_for("lenet5", (32, 32, 3), 10)
    rng = np.random.default_rng(0)
    (vector,), _ = train(net, [(x, y)], [net.initial(rng)], [rng], Plan(batch=8, epochs=2))
    list(outputs(net, vector, x))
    assert np.array_equal(x, before)


def test_bad_networks_are_named():
    for name in ("resnet", "linear:3", "mlp:0", "mlp:x"):
        with pytest.raises(errors.InvalidParameter, match=name.partition(":")[0]):
            read_network(name)
    with pytest.raises(errors.InvalidParameter, match="takes images"):
        net_for("lenet5", (64,), 10)
    with pytest.raises(errors.InvalidParameter, match="too small"):
        net_for("lenet5", (8, 8), 10)
    with pytest.raises(errors.InvalidParameter, match="1 layers"):
        net_for("linear", (3,), 2).last(2)
    with pytest.raises(errors.Mismatch, match="numbers"):
        TrainedNet("linear", (3,), (0, 1), np.zeros(7, dtype=np.float32))
    with pytest.raises(errors.InvalidParameter, match="is not a matrix"):
        _ = TrainedNet("mlp:4", (3,), (0, 1), np.zeros(26, dtype=np.float32)).weights
    with pytest.raises(errors.InvalidData, match="shape"):
        TrainedNet("linear", (3,), (0, 1), np.zeros(8, dtype=np.float32)).scores(np.zeros((2, 4)))


@pytest.mark.parametrize("shape", [(3, 4, 28, 28), (2, 1, 7, 5), (1, 2, 2, 3)])
def test_pooling_without_gradients_gives_the_same_values(shape):
    maps = torch.from_numpy(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    want = torch.nn.functional.max_pool2d(maps, 2)
    for format in (torch.contiguous_format, torch.channels_last):
        with torch.no_grad():
            got = MaxPool().apply(maps.contiguous(memory_format=format))
        assert torch.equal(got, want)

"""A line of layers as a network for gradient methods: the one that FedACnnL solves, with biases."""

import numpy as np
import pytest
import torch
from torch import nn

import fedgram as fg
from fedgram.core import wire
from fedgram.core.errors import FedgramError
from fedgram.features.projection import ACTIVATIONS, TORCH_ACTIVATIONS
from fedgram.nets import TrainedNet, net_for
from support.problems import as_clients

STACK = "conv:6:3:leaky_relu pool:2 conv:5:2:tanh flatten dense:8"


def images(n=90, classes=3):
    rng = np.random.default_rng(0)
    y = np.arange(n) % classes
    return np.clip(rng.random((classes, 9, 8, 2))[y] + rng.normal(0, 0.05, (n, 9, 8, 2)), 0, 1), y


@pytest.mark.parametrize("shape", [(9, 8, 2), (9, 8)])
def test_it_has_the_layers_that_fedacnnl_solves(shape):
    """The same scores, too, where weights are the same, biases zero and images not centred."""
    x, y = images()
    x = x if len(shape) == 3 else x[..., 0]
    solved = fg.FedACnnL(network=STACK, gamma=1.0).fit(as_clients(x, y, [np.arange(len(y))]), classes=3).model
    net = net_for(STACK, shape, 3)
    module = net.module(net.initial(np.random.default_rng(0)))
    centre, *layers = module
    theirs = list(solved.to_torch())
    assert [type(layer) for layer in layers] == [type(layer) for layer in theirs]
    planes = torch.from_numpy(np.float32(x if len(shape) == 3 else x[..., None])).permute(0, 3, 1, 2)
    assert torch.allclose(centre(planes), 2 * planes - 1)
    with torch.no_grad():
        for mine, other in zip(layers, theirs, strict=True):
            if isinstance(mine, nn.Conv2d | nn.Linear):
                mine.weight.copy_(other.weight)
                mine.bias.zero_()
        np.testing.assert_allclose(nn.Sequential(*layers)(planes).numpy(), solved.scores(x), rtol=0, atol=1e-4)


def test_a_normalisation_of_its_own_takes_the_place_of_the_usual_one():
    stack = f"normalize:0.3,0.1:0.5,2 {STACK}"
    net = net_for(stack, (9, 8, 2), 3)
    planes = torch.rand(4, 2, 9, 8, dtype=torch.float32)
    first, *layers = net.module(net.initial(np.random.default_rng(0)))
    want = (planes - torch.tensor([0.3, 0.1]).reshape(2, 1, 1)) / torch.tensor([0.5, 2.0]).reshape(2, 1, 1)
    assert torch.allclose(first(planes), want)
    assert len(layers) == 9
    x, y = images()
    fit = fg.FedAvg(network=stack, rounds=2).fit(as_clients(x, y, [np.arange(90)]), classes=3)
    assert np.isfinite(fit.model.scores(x)).all()


@pytest.mark.parametrize("method", [fg.FedAvg, fg.FedPer, fg.Ditto])
def test_it_learns(method):
    """By rounds, with a model that crosses the wire and predicts the same as its module."""
    x, y = images()
    clients = as_clients(x, y, [np.arange(0, 90, 2), np.arange(1, 90, 2)])
    settings = {"rounds": 12, "epochs": 4, "batch": 8, "lr": 0.05}
    fit = method(network=STACK, **settings).fit(clients, classes=3)
    model = next(iter(fit.personal.values()), fit.model)
    assert (model.predict(x) == y).mean() > 0.9
    again = wire.decode(wire.encode(model))
    assert isinstance(again, TrainedNet)
    assert again.network == STACK
    planes = torch.from_numpy(np.float32(x)).permute(0, 3, 1, 2)
    np.testing.assert_allclose(again.to_torch()(planes).detach().numpy(), model.scores(x), rtol=0, atol=1e-4)


def test_rows_and_presets():
    net = net_for("dnn", (12,), 4)
    assert net.features == 64
    assert net.size == 12 * 128 + 128 + 128 * 64 + 64 + 64 * 4 + 4
    assert net_for("small-dcnn", (32, 32, 3), 10).features == 4 * 4 * 64


@pytest.mark.parametrize(
    ("network", "shape", "told"),
    [
        ("conv:8:5 dense:4", (32, 32, 3), "a dense layer takes rows.*put flatten before it"),
        ("conv:8:50 flatten", (32, 32, 3), "does not fit into images of 32 × 32"),
        ("conv:8:3 flatten", (12,), "takes images"),
        ("conv:x flatten", (32, 32, 3), "conv:x"),
        ("conv:8:3:sine flatten", (32, 32, 3), "unknown activation 'sine'"),
    ],
)
def test_layers_that_do_not_fit_are_named(network, shape, told):
    with pytest.raises(FedgramError, match=told):
        fg.FedAvg(network=network).net(shape, 3)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_the_same_in_torch(name):
    x = np.linspace(-4, 4, 81)
    theirs = getattr(nn, TORCH_ACTIVATIONS[name])()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ACTIVATIONS[name](x.copy()), theirs, atol=1e-12)

"""FedGH: the server trains a head on the clients' mean features; bases stay private."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fedgram as fg
from fedgram.checks import CLASSES, some_clients
from fedgram.core.errors import InvalidData, InvalidParameter
from fedgram.nets import net_for, outputs
from support.gradient import SETTINGS, breaking, fit, vectors, watched
from support.sides import bytes_of_a_round, side_of

HIDDEN = SETTINGS | {"network": "mlp:16"}


@dataclass(frozen=True, kw_only=True)
class Kept(fg.FedGH):
    """FedGH whose clients go on with their own heads."""

    name = "fedgh"

    def started(self, client, head):
        return client.state["own"]


def pairs(rng, k=4, d=6, classes=3):
    told = []
    for _ in range(k):
        present = np.flatnonzero(rng.random(classes) < 0.8).astype(np.int32)
        told.append({"classes": present, "means": rng.normal(size=(len(present), d)).astype(np.float32)})
    return told


@pytest.mark.parametrize("bias", [True, False])
def test_the_server_descends_on_the_loss_of_all_mean_features(bias):
    rng = np.random.default_rng(0)
    told, net = pairs(rng), net_for("linear", (6,), 3)
    head = net.initial(rng)[: None if bias else 18]
    method = fg.FedGH(server_lr=0.3, server_epochs=7)
    got = method.taught(net, head, told, rng)
    means = torch.from_numpy(np.concatenate([own["means"] for own in told])).double()
    labels = torch.from_numpy(np.concatenate([own["classes"] for own in told])).long()
    layer = nn.Linear(6, 3, bias=bias).double()
    nn.utils.vector_to_parameters(torch.from_numpy(head).double(), layer.parameters())
    parameters = list(layer.parameters())
    losses = []
    for _ in range(7):
        loss = cross_entropy(layer(means), labels)
        losses.append(loss.item())
        with torch.no_grad():
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.sub_(0.3 * gradient)
    want = torch.cat([parameter.detach().flatten() for parameter in parameters]).numpy()
    np.testing.assert_allclose(got, want, atol=1e-6)
    assert losses == sorted(losses, reverse=True)


def test_a_server_that_steps_too_far_says_so():
    rng = np.random.default_rng(0)
    told, net = pairs(rng), net_for("linear", (6,), 3)
    far = [own | {"means": 1000 * own["means"]} for own in told]
    with pytest.raises(InvalidData, match=r"training of the head diverged: take a smaller server_lr than 1e\+38"):
        fg.FedGH(server_lr=1e38).taught(net, net.initial(rng), far, rng)


def test_clients_send_class_means_after_training_and_get_the_head_that_the_server_trained():
    method, sent, heard = watched(fg.FedGH(**HIDDEN | {"rounds": 2}))
    fit(method)
    trained = fit(fg.FedGH(**HIDDEN | {"rounds": 1})).personal
    net = method.net(some_clients()[0].x.shape[1:], CLASSES)
    for client in some_clients():
        z = np.concatenate([z for z, _ in outputs(net, trained[client.name].vector, client.x)])
        want = [z[client.y == c].mean(axis=0) for c in np.unique(client.y)]
        assert heard[0, client.name]["classes"].tolist() == np.unique(client.y).tolist()
        np.testing.assert_allclose(heard[0, client.name]["means"], want, rtol=1e-5, atol=1e-6)
    told = [heard[0, client.name] for client in some_clients()]
    head = net_for("linear", (16,), CLASSES)
    want = method.taught(head, sent[0, "client-0"], told, np.random.default_rng(0))
    for client in some_clients():
        np.testing.assert_allclose(sent[1, client.name], want, atol=1e-6)
    assert np.abs(want - sent[0, "client-0"]).max() > 1e-3


def test_a_client_puts_the_head_that_came_on_its_own_base():
    [client] = some_clients()[:1]
    method = fg.FedGH(**HIDDEN | {"lr": 1e-30})
    net = method.net(client.x.shape[1:], CLASSES)
    own, other = net.initial(np.random.default_rng(1)), net.initial(np.random.default_rng(2))
    side = side_of(client, own)
    method.train([side], [other[net.head]])
    np.testing.assert_array_equal(side.state["own"], np.append(own[net.base], other[net.head]))


def test_switched_off_each_client_trains_alone():
    want = vectors(fit(fg.Alone(**HIDDEN)))
    np.testing.assert_array_equal(vectors(fit(Kept(**HIDDEN, server_epochs=0))), want)
    assert np.abs(vectors(fit(fg.FedGH(**HIDDEN, server_epochs=0))) - want).max() > 1e-3
    # In the first round the head is the common first head.
    one = HIDDEN | {"rounds": 1}
    np.testing.assert_array_equal(vectors(fit(fg.FedGH(**one))), vectors(fit(fg.Alone(**one))))


def test_a_client_of_one_sample_or_one_class_takes_part_and_one_client_is_enough():
    clients = some_clients()
    clients[0] = replace(clients[0], x=clients[0].x[:1], y=clients[0].y[:1])
    only = clients[1].y == clients[1].y[0]
    clients[1] = replace(clients[1], x=clients[1].x[only], y=clients[1].y[only])
    fitted = fit(fg.FedGH(**HIDDEN), clients)
    assert len(fitted.contributors) == len(clients)
    assert np.isfinite(vectors(fitted)).all()
    assert fit(fg.FedGH(**HIDDEN), clients[:1]).contributors == ("client-0",)


def test_a_client_that_is_lost_has_taught_only_the_rounds_before():
    rest = [client for client in some_clients() if client.name != "client-2"]
    method = fg.FedGH(**HIDDEN)
    got, want = fit(breaking(method, {"client-2"}, 0), require=5), fit(method, rest)
    assert set(got.absent) == {"client-2"}
    for client in rest:
        np.testing.assert_allclose(got.personal[client.name].vector, want.personal[client.name].vector, atol=1e-5)


def test_who_was_never_asked_keeps_the_first_weights():
    fitted = fit(fg.FedGH(**HIDDEN | {"participation": 0.34, "rounds": 1}))
    first = fit(fg.FedAvg(**HIDDEN | {"rounds": 1, "lr": 1e-30})).model.vector
    unasked = set(fitted.personal) - set(fitted.contributors)
    assert len(unasked) == 4
    for name in unasked:
        np.testing.assert_array_equal(fitted.personal[name].vector, first)


def test_class_means_go_up_and_a_head_comes_down():
    method = fg.FedGH(**HIDDEN)
    sent = bytes_of_a_round(method)
    for client in some_clients():
        up, down = 4 * 17 * len(np.unique(client.y)), 4 * 17 * CLASSES
        assert up < sent[client.name]["up"] < up + 700, client.name
        assert down < sent[client.name]["down"] < down + 700, client.name


def normed(shape, classes):
    head = nn.utils.parametrizations.weight_norm(nn.Linear(8, classes))
    return nn.Sequential(nn.Linear(shape[0], 8), nn.ReLU(), head)


def test_what_it_cannot_work_with_is_refused():
    with pytest.raises(InvalidParameter, match="fedgh needs layers below the last, and 'linear' has none: use mlp"):
        fit(fg.FedGH(**SETTINGS, network="linear"))
    with pytest.raises(InvalidParameter, match="works on a plain linear head, and that of .*normed.* has parameters"):
        fit(fg.FedGH(**SETTINGS, network=normed))
    for bad in ({"server_lr": -1.0}, {"server_epochs": -1}):
        with pytest.raises(InvalidParameter, match=next(iter(bad))):
            fg.FedGH(**bad)
    clients = [fg.Client(client.name, client.x, np.zeros(len(client.y), dtype=int)) for client in some_clients()]
    with pytest.raises(InvalidData, match="at least two classes"):
        fg.FedGH(**HIDDEN).fit(clients, classes=1)

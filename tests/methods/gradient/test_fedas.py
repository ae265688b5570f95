"""FedAS: alignment with the client's earlier prototypes, and a mean by Fisher information."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedgram as fg
from fedgram.checks import some_clients
from fedgram.core.errors import InvalidData, InvalidParameter
from fedgram.methods.gradient.fedas import fisher_trace
from support.gradient import SETTINGS, breaking, equal_clients, fit, performing, vectors
from support.sides import bytes_of_a_round, layers, side_of, stepped, tensors

HIDDEN = SETTINGS | {"network": "mlp:16"}
STILL = {"lr": 1e-30, "momentum": 0.0}


def two_vectors(net):
    """Return a client's earlier vector, and the new one."""
    return net.initial(np.random.default_rng(1)), net.initial(np.random.default_rng(2))


def away_from(base, x, y, means):
    """Return Σ over classes of the mean over their samples and features of (z - p_c)²."""
    return sum((base(x[y == c]) - means[c]).square().mean() for c in means)


def test_alignment_is_a_step_towards_the_old_class_means():
    [client] = some_clients()[:1]
    method = fg.FedAS(**HIDDEN | STILL, align_lr=0.3, align_batch=1000)
    net = method.net(client.x.shape[1:], 10)
    old, new = two_vectors(net)
    side = side_of(client, old)
    method.train([side], [new[net.base]])
    got = side.state["own"]
    x, y = tensors(client)
    known, base = layers(net, old)[0], layers(net, new)[0]
    means = {int(c): known(x[y == c]).mean(0).detach() for c in y.unique()}
    before = away_from(base, x, y, means)
    np.testing.assert_allclose(got[net.base], stepped(base, before, 0.3), atol=1e-6)
    np.testing.assert_array_equal(got[net.head], old[net.head])
    assert away_from(layers(net, got)[0], x, y, means) < 0.9 * before


def test_alignment_counts_each_class_of_a_batch_once_however_many_samples_it_has():
    # Batches of 16 with a short last one, trained beside a client with more of them: padding must count for nothing.
    clients = some_clients()[:2]
    method = fg.FedAS(**HIDDEN | STILL, align_lr=0.3)
    net = method.net(clients[0].x.shape[1:], 10)
    old, new = two_vectors(net)
    together = [side_of(client, old) for client in clients]
    method.train(together, [new[net.base]] * 2)
    for side, client in zip(together, clients, strict=True):
        order = side_of(client, old).rng.spawn(1)[0].permutation(len(client.y))
        x, y = tensors(client)
        known, vector = layers(net, old)[0], new
        means = {int(c): known(x[y == c]).mean(0).detach() for c in y.unique()}
        for start in range(0, len(order), 16):
            batch, base = torch.from_numpy(order[start : start + 16]), layers(net, vector)[0]
            present = {c: means[c] for c in set(y[batch].tolist())}
            vector = np.append(stepped(base, away_from(base, x[batch], y[batch], present), 0.3), new[net.head]).astype(
                np.float32
            )
        np.testing.assert_allclose(side.state["own"][net.base], vector[net.base], atol=1e-6)


def test_bases_are_averaged_by_fisher_information():
    method, seen = fg.FedAS(**HIDDEN | {"rounds": 2}), {}

    class Watched(fg.FedAS):
        def share(self, clients, shared):
            seen[clients.round] = shared
            return super().share(clients, shared)

    fit(Watched(**method.settings()))
    fitted, net = fit(replace(method, rounds=1)), method.net(some_clients()[0].x.shape[1:], 10)
    trained = [fitted.personal[client.name].vector for client in some_clients()]
    fisher = [fisher_trace(net, own, client.x, client.y) for own, client in zip(trained, some_clients(), strict=True)]
    assert max(fisher) > 1.5 * min(fisher), "or a plain mean would do"
    want = np.average([own[net.base] for own in trained], axis=0, weights=fisher)
    np.testing.assert_allclose(seen[1], want, atol=1e-6)


def test_switched_off_it_is_fedper():
    got, want = fit(fg.FedAS(**HIDDEN, align_epochs=0, synchronize=False)), fit(fg.FedPer(**HIDDEN))
    np.testing.assert_array_equal(vectors(got), vectors(want))
    assert np.abs(vectors(fit(fg.FedAS(**HIDDEN))) - vectors(want)).max() > 1e-3


def test_with_equal_fisher_information_it_is_fedper_of_clients_of_one_size(monkeypatch):
    monkeypatch.setattr("fedgram.methods.gradient.fedas.fisher_trace", lambda *_: 3.7)
    got, want = (fit(method, equal_clients()) for method in (fg.FedAS(**HIDDEN, align_epochs=0), fg.FedPer(**HIDDEN)))
    np.testing.assert_allclose(vectors(got), vectors(want), atol=1e-6)


def test_where_nobody_has_fisher_information_all_weigh_the_same(monkeypatch):
    monkeypatch.setattr("fedgram.methods.gradient.fedas.fisher_trace", lambda *_: 0.0)
    none = fit(fg.FedAS(**HIDDEN), equal_clients())
    monkeypatch.setattr("fedgram.methods.gradient.fedas.fisher_trace", lambda *_: 1.0)
    np.testing.assert_allclose(vectors(none), vectors(fit(fg.FedAS(**HIDDEN), equal_clients())), atol=1e-6)


def test_a_client_of_one_class_or_one_sample_trains():
    clients = some_clients()
    first = clients[0].y == clients[0].y[0]
    clients[0] = replace(clients[0], x=clients[0].x[first], y=clients[0].y[first])
    clients[1] = replace(clients[1], x=clients[1].x[:1], y=clients[1].y[:1])
    fitted = fit(fg.FedAS(**HIDDEN), clients)
    assert len(fitted.contributors) == len(clients)
    for client in clients[:2]:
        assert set(fitted.personal[client.name].predict(client.x)) == set(client.y)


def test_a_single_class_is_no_task():
    clients = [fg.Client(client.name, client.x, np.zeros(len(client.y), dtype=int)) for client in some_clients()]
    with pytest.raises(InvalidData, match="at least two classes"):
        fg.FedAS(**HIDDEN).fit(clients, classes=1)


@pytest.mark.parametrize("weight", [0.0, -1.0, 1e300, float("inf"), float("nan")])
def test_a_weight_that_cannot_be_is_its_senders_failure(weight):
    def perform(usual, clients, payloads):
        replies = usual(clients, payloads)
        return [
            reply | {"weight": weight} if client.name == "client-2" else reply
            for client, reply in zip(clients, replies, strict=True)
        ]

    fitted = fit(performing(fg.FedAS(**HIDDEN | {"rounds": 1}), perform), require=5)
    assert fitted.absent.keys() == {"client-2"}
    assert "weight" in fitted.absent["client-2"]


def test_one_client_aligns_and_trains_by_itself():
    [client] = some_clients()[:1]
    weighed, unweighed = (
        fit(fg.FedAS(**HIDDEN, align_epochs=0, synchronize=on), [client]).personal[client.name].vector
        for on in (True, False)
    )
    np.testing.assert_allclose(weighed, unweighed, atol=1e-6)


def test_a_client_that_is_lost_leaves_the_mean_of_the_others():
    method, lost = fg.FedAS(**HIDDEN), {"client-2"}
    rest = [client for client in some_clients() if client.name not in lost]
    got, want = fit(breaking(method, lost, 0), require=5), fit(method, rest)
    assert set(got.absent) == lost
    for client in rest:
        np.testing.assert_allclose(got.personal[client.name].vector, want.personal[client.name].vector, atol=1e-5)


def test_only_the_base_and_a_number_are_sent():
    method = fg.FedAS(**HIDDEN)
    base = 4 * method.net(some_clients()[0].x.shape[1:], 10).base.stop
    for name, sent in bytes_of_a_round(method).items():
        assert base < sent["up"] < base + 700, name
        assert base < sent["down"] < base + 700, name


def test_what_it_cannot_work_with_is_refused():
    with pytest.raises(InvalidParameter, match="fedas needs layers below the last, and 'linear' has none: use mlp"):
        fit(fg.FedAS(**SETTINGS, network="linear"))
    for bad in ({"align_lr": -1.0}, {"align_epochs": -1}, {"align_batch": 0}):
        with pytest.raises(InvalidParameter, match=next(iter(bad))):
            fg.FedAS(**bad)

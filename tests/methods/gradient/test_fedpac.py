"""FedPAC: two phases of training, features drawn to prototypes, and heads mixed on the simplex."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import fedgram as fg
from fedgram.checks import CLASSES, some_clients
from fedgram.core.errors import InvalidData, InvalidParameter
from fedgram.methods.gradient.gradient_method import training_step
from fedgram.nets import outputs
from fedgram.protocol.replies import like_payload
from support.gradient import SETTINGS, breaking, fit, image_clients, vectors, watched
from support.sides import bytes_of_a_round, layers, side_of, stepped, tensors

HIDDEN = SETTINGS | {"network": "mlp:16"}
WHOLE = {"batch": 1000, "epochs": 1, "momentum": 0.0}


@dataclass(frozen=True, kw_only=True)
class InTurn(fg.FedPer):
    """FedPer that trains its head for an epoch, then its base."""

    head_lr: float = 0.1

    @training_step(reply=like_payload)
    def train(self, client, shared):
        """Return the base."""
        net = self.net_of(client)
        head = np.arange(net.buffers, net.size) >= net.head.start
        masks = [part.astype(np.float32) for part in (head, ~head)]
        start, rng = self.completed(client, shared), client.rng.spawn(1)[0]
        start = yield from self.descend(client, start, only=masks[0], rng=rng, lr=self.head_lr, epochs=1)
        own = yield from self.descend(client, start, only=masks[1])
        self.take(client, own)
        return own[net.base]


def started(**settings):
    """Return a client, the method, its network and some numbers."""
    [client] = some_clients()[:1]
    method = fg.FedPAC(**HIDDEN | WHOLE | settings)
    net = method.net(client.x.shape[1:], CLASSES)
    return client, method, net, net.initial(np.random.default_rng(1))


def test_first_the_head_is_trained_alone():
    client, method, net, vector = started(head_lr=0.2, lr=1e-30)
    side = side_of(client, vector)
    method.train([side], [{"shared": vector, "prototypes": None}])
    x, y = tensors(client)
    base, head = layers(net, vector)
    want = stepped(head, cross_entropy(head(base(x).detach()), y), 0.2)
    np.testing.assert_array_equal(side.state["own"][net.base], vector[net.base])
    np.testing.assert_allclose(side.state["own"][net.head], want, atol=1e-6)


@pytest.mark.parametrize("lam", [0.5, 20.0])
def test_then_the_base_is_trained_and_drawn_to_the_prototypes(lam):
    client, method, net, vector = started(head_lr=0.0, lr=0.2, lam=lam)
    x, y = tensors(client)
    # No prototype was sent for the client's last class: its own mean stands in.
    known = np.unique(client.y)[:-1].astype(np.int32)
    means = np.random.default_rng(2).random((len(known), net.features), dtype=np.float32)
    side = side_of(client, vector, number=1)
    method.train([side], [{"shared": vector, "prototypes": {"classes": known, "means": means}}])
    base, head = layers(net, vector)
    z = base(x)
    aims = torch.stack([z[y == c].mean(0) if (y == c).any() else torch.zeros(16) for c in range(CLASSES)]).detach()
    aims[torch.from_numpy(known).long()] = torch.from_numpy(means).double()
    want = stepped(base, cross_entropy(head(z), y) + lam * (z - aims[y]).square().mean(), 0.2)
    np.testing.assert_allclose(side.state["own"][net.base], want, atol=2e-6)
    np.testing.assert_array_equal(side.state["own"][net.head], vector[net.head])


def test_the_statistics_are_those_of_the_base_that_came():
    client, method, net, vector = started(lr=0.2)
    [reply] = method.train([side_of(client, vector)], [{"shared": vector, "prototypes": None}])
    z = np.concatenate([features for features, _ in outputs(net, vector, client.x)]).astype(np.float64)
    n, classes = len(client.y), np.unique(client.y)
    assert reply["features"]["classes"].tolist() == classes.tolist()
    shares, expected, squared = [], 0.0, 0.0
    for c in classes:
        own = z[client.y == c]
        shares.append(len(own) / n * own.mean(axis=0))
        expected += len(own) / n * np.square(own).sum(axis=1).mean()
        squared += (len(own) / n) ** 2 * np.square(own.mean(axis=0)).sum()
    np.testing.assert_allclose(reply["features"]["h"], shares, atol=1e-6)
    assert reply["variance"] == pytest.approx((expected - squared) / n)
    after = np.concatenate([features for features, _ in outputs(net, reply["shared"], client.x)])
    sums = [after[client.y == c].sum(axis=0) for c in classes]
    np.testing.assert_allclose(reply["features"]["sums"], sums, rtol=1e-5, atol=1e-5)
    assert reply["features"]["counts"].tolist() == [np.sum(client.y == c) for c in classes]


def test_what_comes_down_is_made_of_what_went_up():
    method, sent, heard = watched(fg.FedPAC(**HIDDEN | {"rounds": 2}))
    fitted = fit(method)
    names = [client.name for client in some_clients()]
    n = [len(client.y) for client in some_clients()]
    net = method.net(some_clients()[0].x.shape[1:], CLASSES)
    first = [heard[0, name] for name in names]
    assert all(sent[0, name]["prototypes"] is None for name in names)
    base = np.average([reply["shared"][net.base] for reply in first], axis=0, weights=n)
    prototypes = sent[1, names[0]]["prototypes"]
    for c in range(CLASSES):
        at = [(reply["features"], reply["features"]["classes"].tolist()) for reply in first]
        own = [(table["sums"][where.index(c)], table["counts"][where.index(c)]) for table, where in at if c in where]
        mean = sum(sums for sums, _ in own) / sum(count for _, count in own)
        np.testing.assert_allclose(prototypes["means"][prototypes["classes"].tolist().index(c)], mean, rtol=1e-5)
    weights = fit(fg.FedPAC(**HIDDEN | {"rounds": 1})).notes["head weights"]
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    assert weights.min() >= 0
    assert weights[weights > 0].min() >= 1e-3
    heads = weights @ [reply["shared"][net.head] for reply in first]
    for name, head in zip(names, heads, strict=True):
        np.testing.assert_allclose(sent[1, name]["shared"], np.append(base, head), atol=1e-6)
    assert not np.array_equal(fitted.notes["head weights"], weights)


def test_heads_are_mixed_among_clients_with_the_same_task():
    data = fg.data.digits()
    low, high = np.flatnonzero(data.y < 5), np.flatnonzero(data.y >= 5)
    parts = [part for group in (low, high) for part in np.array_split(group[:240], 3)]
    clients = [fg.Client(f"client-{k}", data.x[part], data.y[part]) for k, part in enumerate(parts)]
    weights = fit(fg.FedPAC(**HIDDEN), clients).notes["head weights"]
    assert weights[:3, :3].sum() + weights[3:, 3:].sum() > 0.95 * 6
    assert weights.diagonal().max() < 0.9, "each takes something of others"


def test_switched_off_it_is_fedper_that_trains_head_and_base_in_turn():
    got, want = fit(fg.FedPAC(**HIDDEN, lam=0.0, mix_heads=False)), fit(InTurn(**HIDDEN))
    np.testing.assert_array_equal(vectors(got), vectors(want))
    for on in (fg.FedPAC(**HIDDEN, mix_heads=False), fg.FedPAC(**HIDDEN, lam=0.0)):
        assert np.abs(vectors(fit(on)) - vectors(want)).max() > 1e-3


def test_batch_norm_is_averaged_and_never_masked():
    method = fg.FedPAC(**SETTINGS | {"rounds": 1, "lr": 1e-30, "head_lr": 1e-30}, network="cnn")
    fitted = fit(method, image_clients())
    [model, *_] = fitted.personal.values()
    means = model.vector[: model.net.buffers][:32]
    assert np.abs(means).max() > 0.01, "running means follow the samples though nothing is learnt"


def test_one_client_keeps_its_own_head():
    [client] = some_clients()[:1]
    fitted = fit(fg.FedPAC(**HIDDEN), [client])
    np.testing.assert_array_equal(fitted.notes["head weights"], [[1.0]])


def test_a_client_of_one_sample_or_one_class_trains():
    clients = some_clients()
    clients[0] = replace(clients[0], x=clients[0].x[:1], y=clients[0].y[:1])
    only = clients[1].y == clients[1].y[0]
    clients[1] = replace(clients[1], x=clients[1].x[only], y=clients[1].y[only])
    fitted = fit(fg.FedPAC(**HIDDEN), clients)
    assert len(fitted.contributors) == len(clients)
    assert np.isfinite(vectors(fitted)).all()


def test_a_client_that_is_lost_leaves_no_trace_of_its_head():
    rest = [client for client in some_clients() if client.name != "client-2"]
    method = fg.FedPAC(**HIDDEN)
    got, want = fit(breaking(method, {"client-2"}, 0), require=5), fit(method, rest)
    assert set(got.absent) == {"client-2"}
    for client in rest:
        np.testing.assert_allclose(got.personal[client.name].vector, want.personal[client.name].vector, atol=1e-5)
    later = fit(breaking(method, {"client-2"}, 1), require=5)
    assert later.notes["head weights"].shape == (5, 5)


def test_with_few_clients_a_round_heads_are_mixed_among_those():
    fitted = fit(fg.FedPAC(**HIDDEN | {"participation": 0.34, "rounds": 1}))
    assert fitted.notes["head weights"].shape == (2, 2)
    net = fg.FedPAC(**HIDDEN).net(some_clients()[0].x.shape[1:], CLASSES)
    unasked = [fitted.personal[name].vector for name in set(fitted.personal) - set(fitted.contributors)]
    assert len(unasked) == 4
    first = fit(fg.FedAvg(**HIDDEN | {"rounds": 1, "lr": 1e-30})).model.vector
    for vector in unasked:
        np.testing.assert_array_equal(vector[net.head], first[net.head])
        assert not np.array_equal(vector[net.base], first[net.base])


@pytest.mark.parametrize(("lam", "mix"), [(1.0, True), (0.0, True), (1.0, False), (0.0, False)])
def test_only_what_is_needed_is_sent(lam, mix):
    method = fg.FedPAC(**HIDDEN, lam=lam, mix_heads=mix)
    net = method.net(some_clients()[0].x.shape[1:], CLASSES)
    shared = net.size if mix else net.base.stop
    everything = len({label for client in some_clients() for label in client.y})
    sent_by = bytes_of_a_round(method)
    for client in some_clients():
        sent, classes = sent_by[client.name], len(np.unique(client.y))
        up = shared + 2 * classes + net.features * classes * (mix + bool(lam))
        down = shared + bool(lam) * everything * (net.features + 1)
        assert 4 * up < sent["up"] < 4 * up + 1200
        assert 4 * down < sent["down"] < 4 * down + 900


def test_what_it_cannot_work_with_is_refused():
    with pytest.raises(InvalidParameter, match="fedpac needs layers below the last, and 'linear' has none: use mlp"):
        fit(fg.FedPAC(**SETTINGS, network="linear"))
    for bad in ({"lam": -1.0}, {"head_lr": -0.1}):
        with pytest.raises(InvalidParameter, match=next(iter(bad))):
            fg.FedPAC(**bad)
    clients = [fg.Client(client.name, client.x, np.zeros(len(client.y), dtype=int)) for client in some_clients()]
    with pytest.raises(InvalidData, match="at least two classes"):
        fg.FedPAC(**HIDDEN).fit(clients, classes=1)


def test_a_head_that_forgets_counts_as_made_of_its_last_batch():
    forgets = fg.FedPAC(lr=1e-4, head_lr=0.1, weight_decay=10.0, batch=40)
    assert forgets.fewest_samples(41) == 1
    assert fg.FedPAC().fewest_samples(41) == 41


def test_nothing_is_told_that_nobody_uses():
    method, _, heard = watched(fg.FedPAC(network="mlp:8", rounds=1, epochs=1, lam=0.0, mix_heads=False))
    fit(method)
    assert {name for reply in heard.values() for name in reply} == {"shared"}

"""pFedLA: the server's mixture of clients layer by layer, and its learning from their changes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedgram as fg
from fedgram.checks import CLASSES, some_clients
from fedgram.core.errors import InvalidParameter
from fedgram.methods.gradient.pfedla import learn, mixer, mixture, weights
from fedgram.nets import net_for
from fedgram.nets.factories import seeded
from support.gradient import SETTINGS, breaking, fit, image_clients

HIDDEN = SETTINGS | {"network": "mlp:16"}
ALL = np.ones(3, dtype=bool)


def network(clients=3, layers=2):
    with seeded(np.random.default_rng(0)):
        return mixer(clients, layers, 20)


def own(place, clients=3):
    return np.eye(clients, dtype=np.float32)[place]


def test_the_server_climbs_along_what_the_client_changed():
    # θ̄_i built from all clients' vectors, with autograd through every number of it, in double precision.
    net, rng = net_for("mlp:16", (64,), CLASSES), np.random.default_rng(1)
    known = rng.normal(size=(3, net.size)).astype(np.float32) * 0.1
    change = rng.normal(size=net.size).astype(np.float32) * 0.1
    exact = network().double()
    alpha = weights(exact, own(1).astype(np.float64), ALL)
    parts = [torch.tensor(known[:, part], dtype=torch.float64) for part in net.layer_slices]
    mixed = torch.cat([row @ part for row, part in zip(alpha, parts, strict=True)])
    (mixed @ torch.tensor(change, dtype=torch.float64)).backward()

    quick = network()
    before = mixture(net, weights(quick, own(1), ALL).detach().numpy(), known)
    np.testing.assert_allclose(before, mixed.detach().numpy(), atol=1e-6)
    learn(quick, own(1), ALL, np.stack([known[:, part] @ change[part] for part in net.layer_slices]), 0.05)
    for moved, parameter in zip(quick.parameters(), exact.parameters(), strict=True):
        np.testing.assert_allclose(moved.detach(), parameter.detach() + 0.05 * parameter.grad, atol=1e-6)
    # So ½‖θ_i - θ̄_i‖² falls: the mixture comes nearer to where the client went.
    after = mixture(net, weights(quick, own(1), ALL).detach().numpy(), known)
    trained = before + change
    assert np.linalg.norm(trained - after) < np.linalg.norm(trained - before)


def test_weights_sum_to_one_and_are_about_even_at_first():
    alpha = weights(network(), own(0), ALL).detach().numpy()
    assert alpha.shape == (2, 3)
    np.testing.assert_allclose(alpha.sum(axis=1), 1, atol=1e-6)
    assert alpha.min() > 0.2


def test_the_lost_weigh_nothing_and_nobody_left_is_the_client_itself():
    here = np.array([True, False, True])
    alpha = weights(network(), own(0), here).detach().numpy()
    np.testing.assert_allclose(alpha.sum(axis=1), 1, atol=1e-6)
    assert not alpha[:, 1].any()
    silent = network()
    torch.nn.init.zeros_(silent[-3].weight)
    np.testing.assert_array_equal(weights(silent, own(2), ALL).detach(), np.tile(own(2), (2, 1)))
    before = [parameter.detach().clone() for parameter in silent.parameters()]
    learn(silent, own(2), ALL, np.ones((2, 3), dtype=np.float32), 1.0)
    assert all(map(torch.equal, silent.parameters(), before)), "no 0/0"


@pytest.mark.parametrize(("of", "layers"), [("linear", 1), ("mlp:16", 2)])
def test_with_all_layers_retained_each_client_trains_alone(of, layers):
    got, want = (
        fit(method) for method in (fg.PFedLA(**SETTINGS, network=of, retained=layers), fg.Alone(**SETTINGS, network=of))
    )
    for name in want.personal:
        np.testing.assert_array_equal(got.personal[name].vector, want.personal[name].vector)


def test_with_all_layers_retained_running_means_are_the_clients_own():
    settings = SETTINGS | {"network": "cnn", "rounds": 2, "local_steps": 2}
    got, want = (fit(method, image_clients()) for method in (fg.PFedLA(**settings, retained=6), fg.Alone(**settings)))
    for name in want.personal:
        np.testing.assert_array_equal(got.personal[name].vector, want.personal[name].vector)


def test_running_means_are_mixed_by_the_mean_over_the_layers():
    net, rng = net_for("cnn", (16, 16), CLASSES), np.random.default_rng(3)
    alpha = rng.dirichlet(np.ones(3), size=len(net.layer_slices)).astype(np.float32)
    known = rng.normal(size=(3, net.size)).astype(np.float32)
    want = np.mean([row @ known[:, : net.buffers] for row in alpha], axis=0)
    np.testing.assert_allclose(mixture(net, alpha, known)[: net.buffers], want, atol=1e-5)
    assert np.abs(alpha[0] @ known[:, : net.buffers] - want).max() > 0.1


def test_a_client_is_sent_the_mixture_layer_by_layer():
    sent, replies = {}, {}

    class Watched(fg.PFedLA):
        @fg.step(batched=True)
        def train(self, clients, given):
            trained = super().train(clients, given)
            for client, one, own in zip(clients, given, trained, strict=True):
                sent[client.round, client.name], replies[client.round, client.name] = one, own
            return trained

    # A server that does not learn keeps its first weights, about even in each layer.
    fitted = fit(Watched(**HIDDEN | {"rounds": 2}, server_lr=0.0))
    known = np.stack([replies[0, name] for name in sorted(fitted.personal)])
    mixed = sent[1, "client-0"]["mixed"]
    layers = np.split(known, [64 * 16 + 16], axis=1)
    for part, got in zip(layers, np.split(mixed, [64 * 16 + 16]), strict=True):
        found, *_ = np.linalg.lstsq(part.T.astype(np.float64), got.astype(np.float64), rcond=None)
        np.testing.assert_allclose(part.T @ found, got, atol=1e-5)
        assert found.sum() == pytest.approx(1, abs=1e-3)
        assert found.min() > 0.05
    assert fitted.notes["aggregation weights"].shape == (6, 6)


def test_by_default_the_weights_move():
    on, off = (fit(fg.PFedLA(**HIDDEN, server_lr=lr)).notes["aggregation weights"] for lr in (0.005, 0.0))
    assert np.abs(on - off).max() > 1e-6
    np.testing.assert_allclose(on.sum(axis=1), 1, atol=1e-5)


def test_it_finds_who_has_the_same_task():
    # Two kinds of clients: the second has reversed labels. Each learns to take from its own kind.
    some = some_clients(count=3, samples=600)
    turned = [
        replace(client, name=f"turned-{client.name}", y=(client.y + 5) % CLASSES, y_test=(client.y_test + 5) % CLASSES)
        for client in some
    ]
    method = fg.PFedLA(**SETTINGS | {"rounds": 12}, server_lr=1.0)
    found = fit(method, [*some, *turned]).notes["aggregation weights"]
    off = ~np.eye(3, dtype=bool)
    same = np.concatenate([found[:3, :3][off], found[3:, 3:][off]]).mean()
    other = np.concatenate([found[:3, 3:].ravel(), found[3:, :3].ravel()]).mean()
    assert same > 1.5 * other


@pytest.mark.parametrize(("retained", "numbers"), [(0, 64 * 16 + 16 + 170), (2, 0)])
def test_what_is_retained_is_not_sent_down(retained, numbers):
    few, more = (fit(fg.PFedLA(**HIDDEN | {"rounds": n}, retained=retained)).traffic.by_client for n in (1, 2))
    for name in few:
        down, up = more[name]["down"] - few[name]["down"], more[name]["up"] - few[name]["up"]
        assert 4 * numbers <= down < 4 * numbers + 500
        assert 4 * (64 * 16 + 16 + 170) <= up < 4 * (64 * 16 + 16 + 170) + 300


def test_the_layers_with_most_of_their_own_are_retained(monkeypatch):
    sent = {}

    class Watched(fg.PFedLA):
        @fg.step(batched=True)
        def train(self, clients, given):
            sent.update({client.name: one["layers"].tolist() for client, one in zip(clients, given, strict=True)})
            return super().train(clients, given)

    def uneven(_, own, here):
        # Clients 0 to 2 take most of their own second layer, the others of their own first.
        first = 0.9 if own.argmax() >= 3 else 0.1
        return torch.from_numpy(np.stack([share * own + (1 - share) / 6 for share in (first, 1 - first)]))

    monkeypatch.setattr("fedgram.methods.gradient.pfedla.weights", uneven)
    monkeypatch.setattr("fedgram.methods.gradient.pfedla.learn", lambda *_: None)
    fit(Watched(**HIDDEN | {"rounds": 1}, retained=1))
    assert sent == {f"client-{k}": [True, False] if k < 3 else [False, True] for k in range(6)}


def test_what_is_retained_teaches_the_server_nothing(monkeypatch):
    # It was not mixed, so no weight had a part in the client's result.
    seen, given = {}, {}

    class Watched(fg.PFedLA):
        @fg.step(batched=True)
        def train(self, clients, sent):
            given.update({c.name: one["layers"].tolist() for c, one in zip(clients, sent, strict=True)})
            return super().train(clients, sent)

    def watched(network, own, here, products, lr):
        seen[f"client-{own.argmax()}"] = products

    monkeypatch.setattr("fedgram.methods.gradient.pfedla.learn", watched)
    fit(Watched(**HIDDEN | {"rounds": 1}, retained=1))
    for name, products in seen.items():
        assert products.any(axis=1).tolist() == given[name]
        assert sorted(given[name]) == [False, True]
    assert len(seen) == 6


def test_a_client_lost_on_the_way_is_in_no_mixture_any_more():
    fitted = fit(breaking(fg.PFedLA(**HIDDEN), {"client-2"}, 1), require=5)
    assert set(fitted.lost) == {"client-2"}
    assert not fitted.notes["aggregation weights"][:, 2].any()
    assert fitted.evaluation.pooled > 0.3


def test_one_client_trains_alone():
    [client] = some_clients()[:1]
    got, want = (fit(method, [client]).personal[client.name] for method in (fg.PFedLA(**HIDDEN), fg.Alone(**HIDDEN)))
    np.testing.assert_allclose(got.vector, want.vector, atol=1e-6)  # a weight of 1 is a/a


def test_a_client_of_one_sample_trains():
    one, *rest = some_clients()
    one = replace(one, x=one.x[:1], y=one.y[:1])
    assert fit(fg.PFedLA(**HIDDEN), [one, *rest]).personal["client-0"].predict(one.x) == one.y


def test_more_layers_than_there_are_cannot_be_retained():
    with pytest.raises(InvalidParameter, match="'mlp:16' has 2 layers to be retained, got 3"):
        fit(fg.PFedLA(**HIDDEN, retained=3))


@pytest.mark.parametrize("bad", [{"server_lr": -1.0}, {"retained": -1}, {"hidden": 0}], ids=str)
def test_bad_settings_are_refused(bad):
    with pytest.raises(InvalidParameter, match=next(iter(bad))):
        fg.PFedLA(**bad)

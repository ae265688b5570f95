"""FedPCL: samples are drawn to the class means of all clients; projections stay at home."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import fedgram as fg
from fedgram.checks import CLASSES, some_clients
from fedgram.core import wire
from fedgram.core.errors import ClientFailed, InvalidParameter, Mismatch
from fedgram.methods.gradient.fedpcl import NearestPrototype
from fedgram.nets.prototypes import filled
from fedgram.protocol.method import step
from support.gradient import SETTINGS, breaking, fit
from support.steps import WHOLE, by_hand, outputs_of, side_of

HIDDEN = SETTINGS | {"network": "mlp:16"}


def unit(features):
    return features / features.norm(dim=1, keepdim=True)


def means_of(method, vector, client):
    """Return the mean z of each class that a client has, by class."""
    z = unit(outputs_of(method.net_of(side_of(client)), vector, client.x)[0])
    return {label: z[client.y == label].mean(0) for label in np.unique(client.y).tolist()}


def message(method, vector, clients):
    """Return the server's message after the means of these clients."""
    sets = [means_of(method, vector, client) for client in clients]
    known = np.array([[label in own for label in range(CLASSES)] for own in sets])
    rows = [own[label].numpy() for own in sets for label in sorted(own)]
    return {"known": known, "means": np.stack(rows).astype(np.float32)}


@pytest.mark.parametrize("tau", [0.07, 0.5])
def test_fedpcl_contrasts_with_the_means_of_all_clients(tau):
    method = fg.FedPCL(**WHOLE, network="mlp:12", local_steps=4, tau=tau)
    clients = some_clients()[:3]
    # One client alone knows one class, and no client another: the sets lack different classes.
    clients = [replace(c, x=c.x[c.y < 7 + k], y=c.y[c.y < 7 + k]) for k, c in enumerate(clients)]
    own, other = (method.net_of(side_of(clients[0])).initial(np.random.default_rng(seed)) for seed in (5, 6))
    sets = [means_of(method, other, client) for client in clients]
    met = sorted(set().union(*sets))
    assert 2 < len(met) < CLASSES
    mean = {label: torch.stack([one[label] for one in sets if label in one]).mean(0) for label in met}

    def term(features, scores, y, vector):
        z, places = unit(features), torch.tensor([met.index(label) for label in y.tolist()])

        def against(one):
            columns = torch.stack([one.get(label, mean[label]) for label in met])
            return cross_entropy(z @ columns.T / tau, places)

        return against(mean) + sum(map(against, sets)) / len(sets) - cross_entropy(scores, y)

    side = side_of(clients[0], own=own)
    [reply] = method.train([side], [message(method, other, clients)])
    want, net = by_hand(method, side, own, 4, term), method.net_of(side)
    np.testing.assert_allclose(side.state["own"], want, atol=5e-6)
    assert np.abs(want - own)[net.base].max() > 1e-2
    np.testing.assert_array_equal(side.state["own"][net.head], own[net.head])  # no head to train
    sent = means_of(method, side.state["own"], clients[0])
    np.testing.assert_allclose(reply["means"], np.stack([sent[label].numpy() for label in sorted(sent)]), atol=1e-6)
    assert np.flatnonzero(reply["known"]).tolist() == sorted(sent)


def test_means_are_filled_by_class_not_by_place():
    known = np.array([[True, False, True], [False, False, True]])
    means = np.array([[1, 0], [0, 1], [0, 3]], dtype=np.float32)
    average = [[1, 0], [0, 0], [0, 2]]
    np.testing.assert_array_equal(filled(known, means), [average, [[1, 0], [0, 0], [0, 1]], [[1, 0], [0, 0], [0, 3]]])


def test_training_draws_samples_to_their_class_and_classes_apart():
    apart = []
    for rounds in (1, 3, 8):
        fitted, inner = fit(fg.FedPCL(**HIDDEN | {"rounds": rounds})), []
        for client in some_clients():
            model = fitted.personal[client.name]
            z = unit(outputs_of(model.net, model.vector, client.x)[0]).numpy()
            own = model.prototypes[model.known]
            between = np.linalg.norm(own[:, None] - own, axis=2)[np.triu_indices(len(own), 1)].mean()
            inner.append(np.linalg.norm(z - model.prototypes[client.y], axis=1).mean() / between)
        apart.append(np.mean(inner))
    assert apart == sorted(apart, reverse=True)
    assert apart[-1] < 0.7 * apart[0]


def test_fedpcl_switched_off_leaves_the_projection_where_it_began():
    first = fit(fg.FedAvg(**HIDDEN | {"rounds": 1, "lr": 1e-30})).model.vector
    net = fg.FedPCL(**HIDDEN).net((64,), CLASSES)
    for off in (fg.FedPCL(**HIDDEN, tau=1e30), fg.FedPCL(**HIDDEN | {"rounds": 1})):
        for model in fit(off).personal.values():
            np.testing.assert_array_equal(model.vector[net.base], first[net.base])
    moved = fit(fg.FedPCL(**HIDDEN)).personal["client-0"].vector
    assert np.abs(moved - first)[net.base].max() > 1e-2


def test_a_client_predicts_the_nearest_of_its_own_means():
    fitted = fit(fg.FedPCL(**HIDDEN))
    for client in some_clients():
        model = fitted.personal[client.name]
        z = unit(outputs_of(model.net, model.vector, client.x_test)[0]).numpy()
        mine = np.unique(client.y)
        far = np.linalg.norm(z[:, None] - model.prototypes[mine], axis=2)
        np.testing.assert_array_equal(model.predict(client.x_test), mine[far.argmin(axis=1)])
    assert fitted.model is None
    assert fitted.evaluation.pooled > 0.6


def test_by_default_features_are_projected_to_256_numbers():
    model = fit(fg.FedPCL(**SETTINGS | {"rounds": 1})).personal["client-0"]
    assert (model.network, model.net.features) == ("mlp:256", 256)


def test_who_is_never_asked_has_its_own_means_under_the_first_projection():
    fitted = fit(fg.FedPCL(**HIDDEN | {"rounds": 3, "participation": 0.2}))
    unasked = [client for client in some_clients() if client.name not in fitted.contributors]
    first = fit(fg.FedAvg(**HIDDEN | {"rounds": 1, "lr": 1e-30})).model.vector
    assert unasked
    for client in unasked:
        model = fitted.personal[client.name]
        np.testing.assert_array_equal(model.vector, first)
        assert set(np.flatnonzero(model.known)) == set(client.y)


def test_a_class_that_only_a_newcomer_has_draws_nothing():
    method = fg.FedPCL(**WHOLE, network="mlp:12", local_steps=3)
    clients = some_clients()[:2]
    start = method.net_of(side_of(clients[0])).initial(np.random.default_rng(5))
    others = replace(clients[1], x=clients[1].x[clients[1].y < 5], y=clients[1].y[clients[1].y < 5])
    new = replace(clients[0], x=clients[0].x[clients[0].y > 4], y=clients[0].y[clients[0].y > 4])
    assert len(new.y)
    side = side_of(new, own=start)
    [reply] = method.train([side], [message(method, start, [others])])
    np.testing.assert_array_equal(side.state["own"], start)
    assert np.flatnonzero(reply["known"]).min() > 4


def test_one_client_a_single_class_and_a_single_sample_are_taken():
    [client, *_] = some_clients()
    one = replace(client, x=client.x[:1], y=client.y[:1])
    for some in ([client], [one]):
        assert np.isfinite(fit(fg.FedPCL(**HIDDEN), some).personal[client.name].vector).all()
    same = [replace(client, y=client.y * 0, y_test=client.y_test * 0) for client in some_clients()]
    fitted = fit(fg.FedPCL(**HIDDEN), same)
    assert fitted.evaluation.pooled == 1
    # A single class has no other class to contrast with.
    first = fit(fg.FedAvg(**HIDDEN | {"rounds": 1, "lr": 1e-30})).model.vector
    np.testing.assert_allclose(fitted.personal["client-0"].vector, first, atol=1e-7)


def test_a_client_that_is_lost_is_nobodys_reference_any_more():
    seen = []

    class Watched(fg.FedPCL):
        @step(batched=True)
        def train(self, clients, worlds):
            seen.extend((client.round, len(world["known"])) for client, world in zip(clients, worlds, strict=True))
            return super().train(clients, worlds)

    fitted = fit(breaking(Watched(**HIDDEN), {"client-2"}, 1), require=5)
    assert set(fitted.lost) == {"client-2"}
    assert set(seen) == {(0, 0), (1, 6), (2, 5)}


def test_fedpcl_sends_the_means_that_there_are_and_no_weights():
    width, rounds = 50, 5
    few, many = (
        fit(fg.FedPCL(**SETTINGS | {"rounds": n}, network=f"mlp:{width}")).traffic.by_client for n in (2, 2 + rounds)
    )
    sizes = {client.name: len(np.unique(client.y)) for client in some_clients()}
    for name, classes in sizes.items():
        up, down = ((many[name][way] - few[name][way]) / rounds for way in ("up", "down"))
        assert 4 * width * classes <= up < 4 * width * classes + CLASSES + 700
        assert 4 * width * sum(sizes.values()) <= down < 4 * width * sum(sizes.values()) + 6 * CLASSES + 700


def test_everybody_is_sent_the_features_of_a_class_with_one_sample():
    # In the first round by a projection that all know, the common first weights.
    seen = []

    class Watched(fg.FedPCL):
        @step(batched=True)
        def train(self, clients, worlds):
            seen.extend((client.name, client.round, world) for client, world in zip(clients, worlds, strict=True))
            return super().train(clients, worlds)

    [first, second, *_] = some_clients()
    lonely = replace(second, x=second.x[:1], y=second.y[:1])
    fit(Watched(**HIDDEN | {"rounds": 2}), [first, lonely])
    [world] = [world for name, number, world in seen if (name, number) == (first.name, 1)]
    start = fit(fg.FedAvg(**HIDDEN | {"rounds": 1, "lr": 1e-30})).model
    z = unit(outputs_of(start.net, start.vector, lonely.x)[0])
    np.testing.assert_allclose(world["means"][-1:], z.numpy(), atol=1e-6)


@pytest.mark.parametrize(
    "bad",
    [
        {"known": np.ones(CLASSES, dtype=bool), "means": np.zeros((3, 16), dtype=np.float32)},
        {"known": np.ones(3, dtype=bool), "means": np.zeros((3, 16), dtype=np.float32)},
        {"known": np.ones(CLASSES, dtype=bool), "means": np.full((CLASSES, 16), 2, dtype=np.float32)},
        {"known": np.ones(CLASSES), "means": np.zeros((CLASSES, 16), dtype=np.float32)},
        {"means": np.zeros((CLASSES, 16), dtype=np.float32)},
    ],
)
def test_means_that_cannot_be_are_refused(bad):
    class Lying(fg.FedPCL):
        @step(batched=True)
        def train(self, clients, worlds):
            return [bad] * len(clients)

    with pytest.raises(ClientFailed, match="must be"):
        fit(Lying(**HIDDEN))


def test_fedpcl_needs_layers_below_the_last():
    with pytest.raises(InvalidParameter, match="layers below the last.*use mlp"):
        fit(fg.FedPCL(**SETTINGS, network="linear"))
    with pytest.raises(InvalidParameter, match="tau"):
        fg.FedPCL(tau=0.0)


def test_the_model_can_be_sent_and_refuses_means_that_do_not_fit():
    model = fit(fg.FedPCL(**HIDDEN)).personal["client-1"]
    x = some_clients()[1].x
    np.testing.assert_array_equal(wire.decode(wire.encode(model)).scores(x), model.scores(x))
    with pytest.raises(Mismatch, match="shape .10, 16"):
        NearestPrototype(model.network, model.shape, model.classes, model.vector, model.prototypes[:, :9], model.known)

"""FedZO: local steps along an estimate of the gradient from forward passes."""

from dataclasses import replace

import numpy as np
import pytest

import fedgram as fg
from fedgram.checks import CLASSES, some_clients
from fedgram.core.errors import ClientFailed, InvalidData, InvalidParameter
from fedgram.core.randomness import generator
from fedgram.nets.estimates import OnSphere, gaussians
from fedgram.nets.sgd import dense_gradient
from support.gradient import SETTINGS, breaking, first_weights, fit

STEP = {"rounds": 1, "local_steps": 1, "batch": 16, "lr": 0.05}


def loss(weights, x, y):
    """Return the mean cross entropy of a linear model, in double precision."""
    scores = x.astype(np.float64) @ weights[:-CLASSES].reshape(CLASSES, -1).T + weights[-CLASSES:]
    return np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(y)), y])


def by_back_propagation(monkeypatch):
    """Let every estimate be the gradient itself."""
    gradient = staticmethod(lambda now: dense_gradient(now.net, now.weights, now.x, now.y, now.share)[0])
    monkeypatch.setattr(OnSphere, "__call__", lambda _, now: gradient(now))


def test_fedzo_steps_along_the_printed_estimate():
    [client], method = some_clients()[:1], fg.FedZO(**STEP, directions=4, mu=0.01)
    first, rng = first_weights().astype(np.float64), generator(0, "gradient", "train", 0, client.name)
    batch = rng.permutation(len(client.y))[: method.batch]
    x, y = client.x[batch], client.y[batch]
    [drawn] = gaussians(int(rng.spawn(1)[0].integers(2**63)), 4, len(first))
    estimate = np.zeros(len(first))
    for v in drawn.numpy().astype(np.float64):
        unit = v / np.linalg.norm(v)
        estimate += len(first) / (4 * 0.01) * (loss(first + 0.01 * unit, x, y) - loss(first, x, y)) * unit
    np.testing.assert_allclose(fit(method, [client]).model.vector, first - method.lr * estimate, atol=1e-6)


def test_fedzo_with_exact_gradients_is_fedavg(monkeypatch):
    by_back_propagation(monkeypatch)
    for network in ("linear", "mlp:16"):
        options = SETTINGS | {"network": network, "participation": 0.5, "local_steps": 3, "momentum": 0.0}
        got, want = fit(fg.FedZO(**options, by_samples=True)), fit(fg.FedAvg(**options))
        assert got.contributors == want.contributors
        np.testing.assert_array_equal(got.model.vector, want.model.vector)


def test_fedzo_with_many_directions_goes_where_fedavg_goes():
    # A small lr: the path of a round is nearly straight, along the gradient.
    options = STEP | {"local_steps": 3, "lr": 0.001, "momentum": 0.0}
    first, few, many = (
        first_weights(),
        *(fit(fg.FedZO(**options, by_samples=True, directions=b, mu=1e-4)).model.vector for b in (100, 5_000)),
    )
    want = fit(fg.FedAvg(**options)).model.vector - first
    cosines = [step @ want / np.linalg.norm(step) / np.linalg.norm(want) for step in (few - first, many - first)]
    # √(b/(b + d)) for each of 3 steps of 6 clients, whose errors cancel in part.
    assert cosines[0] < 0.9
    assert cosines[1] > 0.96
    assert np.linalg.norm(many - first) == pytest.approx(np.linalg.norm(want), rel=0.1)


def test_fedzo_takes_the_plain_mean_or_that_by_samples():
    clients = some_clients()
    each = [fit(fg.FedZO(**STEP), [client]).model.vector for client in clients]
    sizes = [len(client.y) for client in clients]
    assert len(set(sizes)) > 1
    for by_samples, weights in ((False, None), (True, sizes)):
        got = fit(fg.FedZO(**STEP, by_samples=by_samples), clients).model.vector
        np.testing.assert_allclose(got, np.average(each, axis=0, weights=weights), atol=1e-6)


def test_fedzo_shuffles_and_begins_as_fedavg_does():
    still = fit(fg.FedZO(**STEP | {"lr": 1e-30}))
    np.testing.assert_array_equal(still.model.vector, first_weights())


def test_fedzo_sends_weights_and_no_more():
    rounds, numbers = 4, 64 * CLASSES + CLASSES
    one, more = (fit(fg.FedZO(**STEP | {"rounds": count})) for count in (1, 1 + rounds))
    for name, counted in more.traffic.by_client.items():
        for way in ("up", "down"):
            a_round = (counted[way] - one.traffic.by_client[name][way]) / rounds
            assert 4 * numbers < a_round < 4 * numbers + 600, (name, way)


def test_fedzo_goes_on_without_a_client_that_is_lost_on_the_way():
    method = fg.FedZO(**STEP | {"rounds": 3})
    fitted = fit(breaking(method, {"client-2"}, 1), require=5)
    assert set(fitted.lost) == {"client-2"}
    assert len(fitted.rounds) == 3
    assert np.isfinite(fitted.model.vector).all()
    with pytest.raises(ClientFailed, match="client-2"):
        fit(breaking(method, {"client-2"}, 1))


def test_fedzo_with_a_single_class_is_refused_and_a_client_of_one_class_trains():
    [client, other] = some_clients()[:2]
    single, method = replace(client, y=np.zeros_like(client.y)), fg.FedZO(**STEP)
    with pytest.raises(InvalidData, match="at least two classes"):
        method.fit([single, other], classes=1)
    assert "client-0" in fit(method, [single, other]).contributors


def test_fedzo_says_so_when_it_diverges():
    with pytest.raises(ClientFailed, match=r"client 'client-\d': training diverged: take a smaller lr than 3e\+38"):
        fit(fg.FedZO(**STEP | {"lr": 3e38, "local_steps": 20}))


@pytest.mark.parametrize("bad", [{"directions": 0}, {"mu": 0.0}, {"mu": -1.0}, {"mu": float("inf")}])
def test_fedzo_refuses(bad):
    with pytest.raises(InvalidParameter, match=rf"{next(iter(bad))}: .*got {next(iter(bad.values()))}"):
        fg.FedZO(**bad)

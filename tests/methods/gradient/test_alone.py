"""Training alone by gradients, and with a shared base: other methods without their own terms."""

from dataclasses import replace

import numpy as np
import pytest

import fedgram as fg
from fedgram.checks import some_clients
from fedgram.core.errors import InvalidParameter
from support.gradient import SETTINGS, alone, first_weights, fit, plain_sgd

HIDDEN = SETTINGS | {"network": "mlp:16"}


def test_training_alone_is_plain_sgd_of_each_client():
    fitted = fit(fg.Alone(**SETTINGS | {"rounds": 1}))
    for client in some_clients():
        want = plain_sgd(client, first_weights(), fg.Alone(**SETTINGS), client.name)
        np.testing.assert_allclose(fitted.personal[client.name].vector, want, atol=2e-6)


def test_training_alone_sends_no_samples_and_no_weights():
    fitted = fit(fg.Alone(**SETTINGS))
    assert fitted.model is None
    sent = [counted["up"] for counted in fitted.traffic.by_client.values()]
    assert max(sent) < 4 * 650, "the vector of a single round would be more"


def test_fedper_shares_the_mean_of_the_bases_and_no_head():
    method = fg.FedPer(**HIDDEN | {"rounds": 1})
    fitted, net = fit(method), method.net(some_clients()[0].x.shape[1:], 10)
    weights = [len(client.y) for client in some_clients()]
    trained = [fitted.personal[client.name].vector for client in some_clients()]
    mean = np.average(trained, axis=0, weights=weights)
    # In a second round without learning a client holds the mean base under its own head.
    still = fit(replace(method, rounds=2), clients=some_clients())
    second = {}

    class Watched(fg.FedPer):
        def share(self, clients, shared):
            second[clients.round] = shared
            return super().share(clients, shared)

    fit(Watched(**HIDDEN | {"rounds": 2}))
    np.testing.assert_allclose(second[1], mean[net.base], atol=1e-6)
    assert still.model is None
    # Only the base goes up.
    per_client = fitted.traffic.up / len(weights)
    assert 4 * net.base.stop <= per_client < 4 * net.base.stop + 2_000


def test_fedper_with_one_client_trains_alone():
    [client] = some_clients()[:1]
    np.testing.assert_array_equal(
        fit(fg.FedPer(**HIDDEN), [client]).personal[client.name].vector,
        fit(fg.Alone(**HIDDEN), [client]).personal[client.name].vector,
    )
    assert alone(fg.Alone(**HIDDEN), client.name).any()


def test_a_client_never_asked_keeps_the_shared_base_under_the_first_head():
    method = fg.FedPer(**HIDDEN | {"rounds": 1, "participation": 0.3})
    fitted, net = fit(method), method.net(some_clients()[0].x.shape[1:], 10)
    unasked = [fitted.personal[name].vector for name in set(fitted.personal) - set(fitted.contributors)]
    assert len(unasked) == 4
    first = fit(fg.FedAvg(**HIDDEN | {"rounds": 1, "lr": 1e-30})).model.vector
    for vector in unasked:
        np.testing.assert_array_equal(vector, unasked[0])
        np.testing.assert_array_equal(vector[net.head], first[net.head])
        assert not np.array_equal(vector[net.base], first[net.base])


def test_fedper_needs_a_base():
    with pytest.raises(InvalidParameter, match="use mlp"):
        fit(fg.FedPer(**SETTINGS, network="linear"))


def test_participation_is_drawn_from_a_range():
    counts = []

    class Counting(fg.FedAvg):
        def asked(self, clients):
            chosen = super().asked(clients)
            counts.append(len(chosen))
            return chosen

    fit(Counting(**SETTINGS | {"rounds": 40, "epochs": 1, "participation": 0.3, "participation_up_to": 1.0}))
    assert set(counts) == {2, 3, 4, 5, 6}, "of six clients"
    with pytest.raises(InvalidParameter, match=r"participation_up_to: expected a number from participation, here 0\.6"):
        fg.FedAvg(participation=0.6, participation_up_to=0.5)

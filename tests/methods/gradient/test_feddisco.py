"""FedDisco: clients with uneven classes weigh less."""

from dataclasses import replace
from math import log

import numpy as np
import pytest

import fedgram as fg
from fedgram.checks import CLASSES, some_clients
from fedgram.core.errors import ClientFailed, InvalidParameter
from fedgram.methods.gradient.feddisco import divergence
from fedgram.protocol.method import step
from support.gradient import SETTINGS, breaking, fit

ONE = SETTINGS | {"rounds": 1}


def frequencies(client):
    return np.bincount(client.y, minlength=CLASSES) / len(client.y)


def divergences(clients, target):
    """Return KL(π ‖ T) of each client, class by class."""
    return np.array(
        [sum(p * log(p / t) for p, t in zip(frequencies(client), target, strict=True) if p) for client in clients]
    )


@pytest.mark.parametrize("target", ["uniform", "pooled"])
@pytest.mark.parametrize(("a", "b"), [(0.5, 0.1), (1.5, 0.0)])
def test_feddisco_is_the_mean_with_the_papers_weights(target, a, b):
    clients = some_clients()
    pooled = np.bincount(np.concatenate([client.y for client in clients]), minlength=CLASSES)
    wanted = np.full(CLASSES, 1 / CLASSES) if target == "uniform" else pooled / pooled.sum()
    apart = divergences(clients, wanted)
    sizes = np.array([len(client.y) for client in clients])
    weights = np.maximum(sizes / sizes.sum() - a * apart / apart.sum() + b, 0)
    each = [fit(fg.FedAvg(**ONE), [client]).model.vector for client in clients]
    got = fit(fg.FedDisco(**ONE, a=a, b=b, target=target)).model.vector
    np.testing.assert_allclose(got, np.average(each, axis=0, weights=weights), atol=1e-6)
    assert not np.allclose(got, fit(fg.FedAvg(**ONE)).model.vector, atol=1e-5)


def test_of_two_clients_of_one_size_the_uneven_one_weighs_less():
    even, uneven = divergence(np.array([5, 5]), np.ones(2)), divergence(np.array([9, 1]), np.ones(2))
    weights = fg.FedDisco().weights(["a", "b"], {"a": 10, "b": 10}, {"a": even, "b": uneven})
    assert even == 0
    assert weights["a"] / sum(weights.values()) == pytest.approx((0.5 + 0.1) / (1 + 0.2 - 0.5))


@pytest.mark.parametrize("target", ["uniform", "pooled"])
def test_feddisco_switched_off_is_fedavg(target):
    for settings in (SETTINGS, SETTINGS | {"network": "mlp:16", "participation": 0.5}):
        got = fit(fg.FedDisco(**settings, a=0.0, b=0.0, target=target)).model.vector
        np.testing.assert_array_equal(got, fit(fg.FedAvg(**settings)).model.vector)


def test_if_no_weight_is_positive_those_of_fedavg_are_taken():
    chosen, samples = ["a", "b"], {"a": 30, "b": 10}
    found = fg.FedDisco(a=100.0, b=0.0).weights(chosen, samples, {"a": 0.2, "b": 0.2})
    assert found["a"] == pytest.approx(3 * found["b"])
    assert found["b"] > 0
    # Clients that are all spread evenly are no further from it than the others: nothing to divide by.
    assert fg.FedDisco(b=0.0).weights(chosen, samples, {"a": 0.0, "b": 0.0}) == {"a": 30.0, "b": 10.0}


def test_divergences_count_beside_those_of_who_takes_part():
    method, chosen, samples = fg.FedDisco(), ["a", "b"], {"a": 30, "b": 20, "c": 500}
    of_two = method.weights(chosen, samples, {"a": 0.1, "b": 0.3})
    assert method.weights(chosen, samples, {"a": 0.1, "b": 0.3, "c": 2.0}) == of_two
    assert of_two["b"] / of_two["a"] == pytest.approx((20 / 50 - 0.5 * 0.75 + 0.1) / (30 / 50 - 0.5 * 0.25 + 0.1))


def test_a_single_client_a_single_class_and_a_single_sample_are_taken():
    [client, *_] = some_clients()
    one = replace(client, x=client.x[:1], y=client.y[:1])
    for some in ([client], [one]):
        np.testing.assert_array_equal(
            fit(fg.FedDisco(**ONE, a=7.0), some).model.vector, fit(fg.FedAvg(**ONE), some).model.vector
        )
    same = [replace(client, y=client.y * 0, y_test=client.y_test * 0) for client in some_clients()]
    assert fit(fg.FedDisco(**ONE), same).evaluation.pooled == 1


def test_a_client_that_is_lost_weighs_nothing():
    method = fg.FedDisco(**ONE)
    clients = some_clients()
    fitted = fit(breaking(method, {"client-2"}, 0), require=5)
    apart, sizes = divergences(clients, np.full(CLASSES, 0.1)), np.array([len(client.y) for client in clients])
    weights = np.maximum(sizes / sizes.sum() - 0.5 * apart / apart.sum() + 0.1, 0)
    weights[2] = 0
    each = [fit(fg.FedAvg(**ONE), [client]).model.vector for client in clients]
    np.testing.assert_allclose(fitted.model.vector, np.average(each, axis=0, weights=weights), atol=1e-6)


@pytest.mark.parametrize("said", [-0.1, 2.4, float("nan"), "much"])
def test_a_divergence_that_cannot_be_is_refused(said):
    class Lying(fg.FedDisco):
        @step
        def differ(self, client):
            return said

    with pytest.raises(ClientFailed, match="number from 0 to 2.30258|is nan"):
        fit(Lying(**ONE))


@pytest.mark.parametrize(("target", "most"), [("uniform", 300), ("pooled", 400 + 8 * CLASSES)])
def test_feddisco_sends_one_number_more_than_fedavg(target, most):
    few, many = (fit(fg.FedDisco(**SETTINGS | {"rounds": n}, target=target)).traffic.by_client for n in (1, 4))
    plain_few, plain_many = (fit(fg.FedAvg(**SETTINGS | {"rounds": n})).traffic.by_client for n in (1, 4))
    for name in few:
        for way in ("up", "down"):
            assert 0 < few[name][way] - plain_few[name][way] < most
            assert many[name][way] - few[name][way] == plain_many[name][way] - plain_few[name][way], "once, not again"


@pytest.mark.parametrize("bad", [{"a": -1.0}, {"b": -0.1}, {"target": "mine"}])
def test_bad_settings_of_feddisco_are_refused(bad):
    with pytest.raises(InvalidParameter, match=next(iter(bad))):
        fg.FedDisco(**bad)


def test_if_only_those_of_no_weight_reply_they_are_averaged_by_samples():
    method = fg.FedDisco(**SETTINGS | {"rounds": 2}, a=50.0, b=0.0)
    clients = some_clients()
    weights = method.weights(
        [client.name for client in clients],
        {client.name: len(client.y) for client in clients},
        {client.name: float(k) for k, client in enumerate(clients)},
    )
    heavy = {name for name, weight in weights.items() if weight > 1}
    assert heavy < {client.name for client in clients}
    fitted = fit(breaking(method, heavy, 1), require=1)
    assert np.isfinite(fitted.model.vector).all()
    assert not heavy & set(fitted.evaluation.correct)

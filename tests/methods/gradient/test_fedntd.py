"""FedNTD: the global model teaches the classes that a sample does not have, and only these."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedgram as fg
from fedgram.checks import some_clients
from fedgram.core.errors import InvalidParameter
from support.gradient import SETTINGS, breaking, fit
from support.steps import WHOLE, by_hand, outputs_of, side_of

HIDDEN = SETTINGS | {"network": "mlp:16"}


def without(scores, y, tau):
    """Return log q̃ (n, c - 1): the scores of the other classes alone, one sample after another."""
    return torch.stack(
        [
            torch.cat([row[:label], row[label + 1 :]]).div(tau).log_softmax(0)
            for row, label in zip(scores, y.tolist(), strict=True)
        ]
    )


@pytest.mark.parametrize("network", ["linear", "mlp:12"])
@pytest.mark.parametrize(("beta", "tau"), [(1.0, 1.0), (0.7, 3.0)])
def test_fedntd_distils_the_classes_that_are_not_the_samples_own(network, beta, tau):
    method = fg.FedNTD(**WHOLE, network=network, local_steps=4, beta=beta, tau=tau)
    side = side_of(some_clients()[0])
    net = method.net_of(side)
    world = net.initial(np.random.default_rng(5)) * 3
    _, said = outputs_of(net, world, side.x)

    def term(features, scores, y, vector):
        wanted, found = without(said, y, tau), without(scores, y, tau)
        return beta * tau**2 * (wanted.exp() * (wanted - found)).sum(1).mean()

    [got] = method.train([side], [world])
    np.testing.assert_allclose(got, by_hand(method, side, world, 4, term), atol=2e-6)
    [plain] = replace(method, beta=0.0).train([side_of(some_clients()[0])], [world])
    assert np.abs(got - plain).max() > 1e-3


def test_the_more_it_counts_the_less_is_forgotten_of_other_classes():
    # A client of three classes trains long: the global model's knowledge of the rest should survive.
    client = some_clients()[0]
    rows = np.isin(client.y, np.unique(client.y)[:3])
    few = replace(client, x=client.x[rows], y=client.y[rows])
    teacher = fit(fg.FedAvg(**SETTINGS | {"rounds": 6})).model.vector
    kept = []
    for beta in (0.0, 0.3, 3.0):
        method = fg.FedNTD(**WHOLE, local_steps=60, beta=beta)
        [trained] = method.train([side_of(few)], [teacher])
        net, y = method.net_of(side_of(few)), torch.from_numpy(few.y)
        wanted, said = (without(outputs_of(net, v, few.x)[1], y, 1.0) for v in (teacher, trained))
        kept.append((wanted.exp() * (wanted - said)).sum(1).mean().item())
    assert kept == sorted(kept, reverse=True)
    assert kept[-1] < 0.3 * kept[0]


@pytest.mark.parametrize("settings", [SETTINGS, HIDDEN])
def test_fedntd_switched_off_is_fedavg(settings):
    np.testing.assert_array_equal(
        fit(fg.FedNTD(**settings, beta=0.0)).model.vector, fit(fg.FedAvg(**settings)).model.vector
    )
    assert not np.allclose(fit(fg.FedNTD(**settings)).model.vector, fit(fg.FedAvg(**settings)).model.vector, atol=1e-4)


def test_with_one_other_class_fedntd_is_fedavg():
    clients = [replace(client, y=client.y % 2, y_test=client.y_test % 2) for client in some_clients()]
    got, want = (method(**HIDDEN).fit(clients, classes=2).model.vector for method in (fg.FedNTD, fg.FedAvg))
    np.testing.assert_array_equal(got, want)


def test_clients_that_all_have_the_same_class_are_taken():
    same = [replace(client, y=client.y * 0, y_test=client.y_test * 0) for client in some_clients()]
    assert fit(fg.FedNTD(**HIDDEN), same).evaluation.pooled == 1


def test_fedntd_takes_a_client_of_one_sample_and_goes_on_without_one_that_is_lost():
    one = replace(some_clients()[0], x=some_clients()[0].x[:1], y=some_clients()[0].y[:1])
    assert np.isfinite(fit(fg.FedNTD(**HIDDEN), [one]).model.vector).all()
    method = fg.FedNTD(**HIDDEN)
    fitted = fit(breaking(method, {"client-2"}, 1), require=5)
    assert set(fitted.lost) == {"client-2"}
    assert np.isfinite(fitted.model.vector).all()


def test_fedntd_sends_what_fedavg_sends():
    got, want = (fit(method(**HIDDEN)).traffic.by_client for method in (fg.FedNTD, fg.FedAvg))
    assert got == want


@pytest.mark.parametrize("bad", [{"beta": -1.0}, {"tau": 0.0}, {"tau": float("inf")}])
def test_bad_settings_of_fedntd_are_refused(bad):
    with pytest.raises(InvalidParameter, match=next(iter(bad))):
        fg.FedNTD(**bad)

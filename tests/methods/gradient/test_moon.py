"""MOON: features are drawn to those of the global model, away from those of the client's last one."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedgram as fg
from fedgram.checks import CLASSES, some_clients
from fedgram.core.errors import InvalidParameter
from fedgram.engines.inprocess import InProcess, Room
from fedgram.methods.gradient.gradient_method import together
from fedgram.nets import Hooks
from fedgram.protocol.session import run
from support.gradient import SETTINGS, breaking, fit, image_clients
from support.steps import WHOLE, by_hand, outputs_of, side_of

HIDDEN = SETTINGS | {"network": "mlp:16"}


def cosine(one, other):
    return (one * other).sum(1) / (one.norm(dim=1) * other.norm(dim=1))


def references(method, side):
    """Return a global vector and one that the client ended its last training with."""
    net = method.net_of(side)
    return [net.initial(np.random.default_rng(seed)) * 2 for seed in (5, 6)]


@pytest.mark.parametrize(("mu", "tau"), [(1.0, 0.5), (5.0, 0.2)])
def test_moon_contrasts_features_as_printed(mu, tau):
    method, client = fg.MOON(**WHOLE, network="mlp:12:8", local_steps=4, mu=mu, tau=tau), some_clients()[0]
    world, previous = references(method, side_of(client))
    side = side_of(client, own=previous)
    net = method.net_of(side)
    to, away = (outputs_of(net, vector, side.x)[0] for vector in (world, previous))

    def term(features, scores, y, vector):
        near, far = (cosine(features, other).div(tau).exp() for other in (to, away))
        return mu * -(near / (near + far)).log().mean()

    [got] = method.train([side], [world])
    np.testing.assert_allclose(got, by_hand(method, side, world, 4, term), atol=2e-6)
    np.testing.assert_array_equal(side.state["own"], got)


def test_the_more_it_counts_the_nearer_features_stay_to_the_global_ones():
    client, apart = some_clients()[0], []
    for mu in (0.0, 1.0, 10.0):
        method = fg.MOON(**WHOLE, network="mlp:12:8", local_steps=30, mu=mu)
        world, previous = references(method, side_of(client))
        side = side_of(client, own=previous)
        [trained] = method.train([side], [world])
        to, away, z = (outputs_of(method.net_of(side), v, side.x)[0] for v in (world, previous, trained))
        apart.append((cosine(z, away) - cosine(z, to)).mean().item())
    assert apart == sorted(apart, reverse=True)
    assert apart[-1] < apart[0] - 0.02


@pytest.mark.parametrize("settings", [SETTINGS, HIDDEN])
def test_moon_switched_off_is_fedavg(settings):
    np.testing.assert_array_equal(
        fit(fg.MOON(**settings, mu=0.0)).model.vector, fit(fg.FedAvg(**settings)).model.vector
    )


def test_on_a_linear_head_moon_is_fedavg_and_else_it_is_not():
    linear, hidden = (
        [fit(method(**settings)).model.vector for method in (fg.MOON, fg.FedAvg)] for settings in (SETTINGS, HIDDEN)
    )
    np.testing.assert_array_equal(*linear)
    assert not np.allclose(*hidden, atol=1e-4)


def test_in_its_first_round_moon_has_nothing_to_contrast():
    # Both references are the first weights, so their terms cancel up to rounding.
    got, want = (fit(method(**HIDDEN | {"rounds": 1})).model.vector for method in (fg.MOON, fg.FedAvg))
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_a_client_remembers_its_own_last_training_not_the_mean():
    method = fg.MOON(**HIDDEN | {"participation": 0.5, "rounds": 1})
    room = Room(method, some_clients(), InProcess())
    fitted = run(method, room, classes=CLASSES, seed=0, require="all", progress=None)
    first = fit(fg.FedAvg(**HIDDEN | {"rounds": 1, "lr": 1e-30})).model.vector
    own = {name: side.state["own"] for name, side in room.sides.items()}
    asked = set(fitted.contributors)
    assert len(asked) == 3
    for name, vector in own.items():
        assert np.array_equal(vector, first) == (name not in asked), "the unasked remember the first weights"
        assert not np.array_equal(vector, fitted.model.vector)


def test_reference_models_speak_as_in_evaluation():
    # With batch normalisation a model has other outputs in training, and its running means move.
    client, seen = image_clients()[0], []
    method = fg.MOON(**SETTINGS, network="cnn")
    net = method.net_of(side_of(client))
    vector = net.initial(np.random.default_rng(5))

    def term(now):
        seen.append((now.x.clone(), *now.said_by("global")))  # the next batch takes its place
        return 0 * now.losses

    together([method.descend(side_of(client), vector, Hooks(term=term), carried={"global": vector}, steps=2)])
    buffers, weights = torch.from_numpy(vector[None].copy()).tensor_split([net.buffers], dim=1)
    for x, features, scores in seen:
        want = net.forward(net.parts(weights), buffers.clone(), x)
        torch.testing.assert_close((features, scores), want)
        _, training = net.forward(net.parts(weights), buffers.clone(), x, training=True)
        assert (training - scores).abs().max() > 1e-3
    assert len(seen) == 2


def test_features_that_are_all_zero_do_no_harm():
    client = some_clients()[0]
    method = fg.MOON(**WHOLE, network="mlp:6", local_steps=2, mu=5.0)
    net = method.net_of(side_of(client))
    dead = np.full(net.size, -1.0, dtype=np.float32)  # every hidden unit is below zero for every sample
    [trained] = method.train([side_of(client, own=dead)], [dead])
    assert np.isfinite(trained).all()
    np.testing.assert_array_equal(trained[net.base], dead[net.base])


def test_moon_takes_a_client_of_one_sample_a_single_class_and_the_loss_of_a_client():
    one = replace(some_clients()[0], x=some_clients()[0].x[:1], y=some_clients()[0].y[:1])
    assert np.isfinite(fit(fg.MOON(**HIDDEN), [one]).model.vector).all()
    same = [replace(client, y=client.y * 0, y_test=client.y_test * 0) for client in some_clients()]
    assert fit(fg.MOON(**HIDDEN), same).evaluation.pooled == 1
    fitted = fit(breaking(fg.MOON(**HIDDEN), {"client-2"}, 1), require=5)
    assert set(fitted.lost) == {"client-2"}
    assert np.isfinite(fitted.model.vector).all()


def test_moon_sends_what_fedavg_sends_and_the_first_weights_once():
    got, want = (fit(method(**HIDDEN)) for method in (fg.MOON, fg.FedAvg))
    size = 4 * len(want.model.vector)
    for name, account in want.traffic.by_client.items():
        assert got.traffic.by_client[name]["up"] == account["up"]
        assert size <= got.traffic.by_client[name]["down"] - account["down"] < size + 500
    assert not got.personal, "the reference model is not a model of the client's own"


@pytest.mark.parametrize("bad", [{"mu": -1.0}, {"tau": 0.0}])
def test_bad_settings_of_moon_are_refused(bad):
    with pytest.raises(InvalidParameter, match=next(iter(bad))):
        fg.MOON(**bad)


def test_the_term_is_the_softplus_of_the_difference():
    near, far = torch.rand(2, 50, dtype=torch.float64)
    printed = -((near / 0.5).exp() / ((near / 0.5).exp() + (far / 0.5).exp())).log()
    torch.testing.assert_close(printed, torch.nn.functional.softplus((far - near) / 0.5))

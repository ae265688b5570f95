"""Gradient methods as runs: messages, participation, images, and refusals."""

import re
import sys
import time
from dataclasses import dataclass, replace

import numpy as np
import pytest

import fedgram as fg
from fedgram.checks import CLASSES, some_clients
from fedgram.core import wire
from fedgram.core.errors import ClientFailed, InvalidParameter, MissingExtra
from fedgram.engines.inprocess import InProcess, Room
from fedgram.methods.gradient.gradient_method import training_step
from fedgram.protocol.method import step
from fedgram.protocol.replies import like_payload
from fedgram.protocol.session import run
from support.gradient import (
    GRADIENT,
    SETTINGS,
    first_weights,
    fit,
    image_clients,
    plain_sgd,
)


def test_one_client_is_plain_sgd():
    [client] = some_clients()[:1]
    method = fg.FedAvg(**SETTINGS | {"rounds": 1})
    np.testing.assert_allclose(
        fit(method, [client]).model.vector, plain_sgd(client, first_weights(), method), atol=2e-6
    )


def test_fedavg_is_the_mean_by_samples():
    clients, method = some_clients(), fg.FedAvg(**SETTINGS | {"rounds": 1})
    each = [plain_sgd(client, first_weights(), method, client.name) for client in clients]
    want = np.average(each, axis=0, weights=[len(client.y) for client in clients])
    np.testing.assert_allclose(fit(method).model.vector, want, atol=2e-6)


def test_all_draw_the_same_numbers():
    # Same weights to begin with, same clients, same order of samples: only then is a difference the method's.
    few = SETTINGS | {"participation": 0.5}
    assert fit(fg.FedAvg(**few)).contributors == fit(fg.FedProx(**few)).contributors
    assert np.array_equal(fit(fg.FedProx(**few, mu=0.0)).model.vector, fit(fg.FedAvg(**few)).model.vector)


@pytest.mark.parametrize("name", [name for name in GRADIENT if not hasattr(fg.registry[name], "tune_epochs")])
def test_the_last_round_is_the_result(name):
    fitted = fit(fg.registry[name](**SETTINGS))
    assert fitted.rounds[-1].correct == fitted.evaluation.correct


@pytest.mark.parametrize("name", ["ditto", "fedala", "fedphp", "pfedme"])
def test_who_was_never_asked_gets_the_global_model(name):
    fitted = fit(fg.registry[name](**SETTINGS | {"rounds": 1, "participation": 0.3}))
    unasked = set(fitted.personal) - set(fitted.contributors)
    assert len(unasked) == 4
    for client in unasked:
        np.testing.assert_array_equal(fitted.personal[client].vector, fitted.model.vector)


@dataclass(frozen=True, kw_only=True)
class Remembering(fg.FedAvg):
    """Its clients remember a vector, and have no models of their own: rounds are judged by the global one."""

    remembers = True

    @step
    def recall(self, client):
        """Return the remembered vector, and whether a model is kept."""
        return {"own": client.state.get("own"), "kept": client.model is not None}

    def serve(self, clients):
        said.clear()
        model = super().serve(clients)
        said.update(clients.call(self.recall))
        return model


@dataclass(frozen=True, kw_only=True)
class JudgedByOwn(Remembering):
    """Its clients keep their trained models, and remember nothing."""

    personal = True
    remembers = False
    judged_by_own = True

    @training_step(reply=like_payload)
    def train(self, client, world):
        """Return and keep the trained weights."""
        trained = yield from self.descend(client, world)
        self.keep(client, trained)
        return trained


said = {}


def test_remembering_a_vector_is_not_having_a_model():
    fitted = fit(Remembering(**SETTINGS))
    assert all(np.array_equal(reply["own"], first_weights()) for reply in said.values())
    assert not any(reply["kept"] for reply in said.values())
    assert not fitted.personal
    plain = fit(fg.FedAvg(**SETTINGS))
    assert [evaluation.correct for evaluation in fitted.rounds] == [evaluation.correct for evaluation in plain.rounds]


def test_being_judged_by_own_models_is_not_remembering_a_vector():
    fitted = fit(JudgedByOwn(**SETTINGS | {"participation": 0.5, "rounds": 2}))
    assert all(reply["own"] is None and reply["kept"] for reply in said.values())
    assert set(fitted.personal) == {client.name for client in some_clients()}
    tested = [name for name, count in fitted.evaluation.tested.items() if count]
    assert all(set(evaluation.correct) == set(tested) for evaluation in fitted.rounds), "the unasked are judged, too"
    assert (
        fitted.rounds[0].correct != fit(fg.FedAvg(**SETTINGS | {"participation": 0.5, "rounds": 2})).rounds[0].correct
    )


def test_nothing_to_share_is_refused():
    for method in (fg.FedAPA(**SETTINGS, network="linear"), fg.FedProto(**SETTINGS, network="linear")):
        with pytest.raises(InvalidParameter, match="layers below the last"):
            fit(method)


@pytest.mark.parametrize("name", GRADIENT)
def test_no_data_and_no_private_head_is_sent(name, monkeypatch):
    sent, encode = [], wire.encode

    def recorded(payload, **options):
        sent.append(encode(payload, **options))
        return sent[-1]

    monkeypatch.setattr("fedgram.engines.inprocess.wire.encode", recorded)
    method = fg.registry[name](**SETTINGS, network="mlp:8")
    room = Room(method, some_clients(), InProcess())
    run(method, room, classes=CLASSES, seed=0, require="all", progress=None)
    messages = b"".join(sent)
    for side in room.sides.values():
        for row in (side.x[0], side.x[0].astype(np.float32), side.y[:30], side.data.x_test[0]):
            assert np.ascontiguousarray(row).tobytes() not in messages
        if name in ("fedapa", "fedproto", "fedas", "fedgh"):
            head = side.state["own"][method.net_of(side).head]
            assert head[:20].tobytes() not in messages, "the head is private"
        if name == "feddbe":
            assert side.state["bias"].tobytes() not in messages, "the bias is private"


def test_running_means_are_averaged_like_weights():
    method, clients = fg.FedAvg(**SETTINGS | {"rounds": 1}, network="cnn"), image_clients()
    room = Room(method, clients, InProcess())
    run(method, room, classes=CLASSES, seed=0, require="all", progress=None)
    sides = list(room.sides.values())
    net = method.net_of(sides[0])
    for side in sides:
        side.enter("gradient", {"classes": None, "round": 0, "seed": 0, "step": "train"})
    first = fit(replace(method, lr=1e-30), clients).model.vector
    first[: net.buffers] = np.repeat([0, 1, 0, 1], [32, 32, 64, 64])
    each = method.train(sides, [first] * len(sides))
    want = np.average(each, axis=0, weights=[len(client.y) for client in clients])
    got = fit(method, clients).model.vector
    np.testing.assert_allclose(got[: net.buffers], want[: net.buffers], atol=1e-4)
    assert np.abs(got[: net.buffers] - first[: net.buffers]).max() > 0.01


# An estimate's square is d/directions times that of the gradient, some thousand times for a network with convolutions.
OWN = {
    "fedzo": {"lr": 1e-5, "directions": 4},
    "pfedzo": {"lr": 1e-5, "directions": 2},
    "baffle": {"directions": 10},
}


@pytest.mark.parametrize("name", GRADIENT)
def test_batch_norm_stays_sound_in_every_method(name):
    options = SETTINGS | {"rounds": 3, "local_steps": 2} | OWN.get(name, {})
    fitted = fit(fg.registry[name](**options, network="cnn"), image_clients())
    assert not fitted.evaluation.failed
    models = [*fitted.personal.values(), *([] if fitted.model is None else [fitted.model])]
    for model in models:
        variances = np.split(model.vector[: model.net.buffers], [32, 64, 128])[1::2]
        assert min(part.min() for part in variances) > 0


def test_bytes_are_images_from_0_to_1():
    clients = [replace(c, x=c.x.round(2), x_test=None, y_test=None) for c in image_clients()]
    as_bytes = [replace(c, x=(c.x * 255).round().astype(np.uint8)) for c in clients]
    got, want = (fit(fg.FedAvg(**SETTINGS | {"rounds": 1}, network="cnn"), some).model for some in (as_bytes, clients))
    np.testing.assert_allclose(got.vector, want.vector, atol=0.02)
    np.testing.assert_allclose(got.scores(as_bytes[0].x), got.scores(as_bytes[0].x / 255), atol=1e-4)


def test_images_train_end_to_end():
    big = image_clients()
    for method in (fg.FedAvg(**SETTINGS, network="cnn"), fg.FedAPA(**SETTINGS, network="cnn")):
        fitted = fit(method, big)
        assert fitted.evaluation.pooled > 0.4
    assert len(fitted.rounds) == SETTINGS["rounds"]


def test_evaluations_of_rounds_are_not_charged(monkeypatch):
    untested = [replace(client, x_test=None, y_test=None) for client in some_clients()]
    with_tests, without = fit(fg.FedAvg(**SETTINGS)), fit(fg.FedAvg(**SETTINGS), untested)
    # The hello of a client, and the final model for all clients, hardly differ.
    assert with_tests.traffic.down == without.traffic.down
    assert abs(with_tests.traffic.up - without.traffic.up) < 100
    evaluate = fg.FedAvg.evaluate
    monkeypatch.setattr(fg.FedAvg, "evaluate", step(lambda *args: time.sleep(0.05) or evaluate(*args)))
    assert fit(fg.FedAvg(**SETTINGS)).seconds < 0.05 * 6 * SETTINGS["rounds"]


@pytest.mark.parametrize("name", GRADIENT)
def test_without_torch_the_extra_is_named(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=rf"{re.escape(name)} needs the 'nets' extra.*pip install 'fedgram\[nets\]'"):
        fit(fg.registry[name](**SETTINGS))


def test_divergence_is_told_by_name():
    wild = fg.FedAvg(**SETTINGS | {"lr": 1e38})
    with pytest.raises(ClientFailed, match="'client-0'.*smaller lr than 1e\\+38"):
        fit(wild)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("fedavg", {"rounds": 0}),
        ("fedavg", {"participation": 0.0}),
        ("fedavg", {"lr": 0.0}),
        ("fedavg", {"momentum": 1.0}),
        ("fedavg", {"weight_decay": -1.0}),
        ("fedavg", {"local_steps": 0}),
        ("fedavg", {"network": "vgg"}),
        ("fedavg+ft", {"tune_epochs": 0}),
        ("fedprox", {"mu": -1.0}),
        ("fedprox", {"mu": 400.0}),
        ("ditto", {"lam": -1.0}),
        ("fedala", {"layers": 0}),
        ("fedala", {"fraction": 0.0}),
        ("feddbe", {"mu": 0.0}),
        ("fedphp", {"lam": 2.0}),
        ("pfedme", {"inner": 0}),
        ("fedamp", {"sigma": 0.0}),
        ("fedproto", {"predict": "magic"}),
        ("fedapa", {"mu": 2.0}),
        ("feddyn", {"alpha": -0.1}),
    ],
)
def test_bad_settings_are_refused(name, bad):
    with pytest.raises(InvalidParameter, match=next(iter(bad))):
        fg.registry[name](**bad)

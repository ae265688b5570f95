"""Optimizers of clients and servers and learning-rate schedules: their equations, their texts, and runs taken up."""

from dataclasses import replace
from math import cos, pi

import numpy as np
import pytest
import torch
from torch import nn

import fedgram as fg
from fedgram.checks import some_clients
from fedgram.core.errors import InvalidParameter
from fedgram.methods.gradient import gradient_method
from fedgram.methods.gradient.gradient_method import Averaging, training_step
from fedgram.nets import Hooks, Plan, net_for, train
from fedgram.nets.optimizers import (
    SCHEDULES,
    SERVER_OPTIMIZERS,
    Adam,
    Cosine,
    FedAdam,
    Momentum,
    Steps,
    read,
)
from fedgram.protocol.parameters import read_settings
from fedgram.protocol.replies import like_payload
from support.gradient import GRADIENT, SETTINGS, fit, watched

AVERAGING = [name for name in GRADIENT if issubclass(fg.registry[name], Averaging)]


def trained_by_torch(net, start, x, y, plan, rng):
    module = nn.Linear(*x.shape[1:], net.classes)
    nn.utils.vector_to_parameters(torch.from_numpy(start.copy()), module.parameters())
    optimizer = torch.optim.Adam(
        module.parameters(),
        lr=plan.lr,
        betas=(plan.optimizer.beta1, plan.optimizer.beta2),
        eps=plan.optimizer.eps,
        weight_decay=plan.weight_decay,
    )
    for _ in range(plan.epochs):
        order = rng.permutation(len(y))
        for begin in range(0, len(y), plan.batch):
            batch = order[begin : begin + plan.batch]
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(torch.from_numpy(x[batch])), torch.from_numpy(y[batch])).backward()
            optimizer.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach().numpy()


def test_adam_is_that_of_torch_for_clients_that_train_together():
    rng, net = np.random.default_rng(0), net_for("linear", (5,), 3)
    data = [(rng.random((n, 5), dtype=np.float32), rng.integers(3, size=n)) for n in (37, 8, 20)]
    starts = [net.initial(rng) for _ in data]
    plan = Plan(lr=0.03, optimizer=Adam(0.8, 0.95, 1e-5), weight_decay=0.01, batch=8, epochs=3)
    together, _ = train(net, data, starts, [np.random.default_rng(k) for k in range(3)], plan)
    for k, (x, y) in enumerate(data):
        want = trained_by_torch(net, starts[k], x, y, plan, np.random.default_rng(k))
        np.testing.assert_allclose(together[k], want, atol=2e-5)
        assert np.abs(want - starts[k]).max() > 0.05


def test_adam_leaves_what_does_not_move():
    rng, net = np.random.default_rng(0), net_for("linear", (5,), 3)
    x, y, start = rng.random((20, 5), dtype=np.float32), rng.integers(3, size=20), net.initial(rng)
    only = (np.arange(net.size) < 7).astype(np.float32)
    [got], _ = train(net, [(x, y)], [start], [rng], Plan(optimizer=Adam(), weight_decay=0.1), Hooks(only=[only]))
    assert np.array_equal(got[7:], start[7:])
    assert (got[:7] != start[:7]).all()


def global_steps(server, schedule=None, name="fedavg", rounds=4):
    """Return the weights that clients were sent in each round, those at the end, and the means of their replies."""
    method, sent, heard = watched(fg.registry[name](**SETTINGS | {"rounds": rounds}, server=server))
    final, sizes = fit(method).model.vector, {client.name: len(client.y) for client in some_clients()}
    worlds = [sent[number, "client-0"] for number in range(rounds)] + [final]
    means = [
        np.average([heard[number, name] for name in sizes], axis=0, weights=list(sizes.values()))
        for number in range(rounds)
    ]
    return [world.astype(np.float64) for world in worlds], means


def test_fedavgm_is_its_equation():
    worlds, means = global_steps("momentum:0.7:0.5")
    v = 0
    for w, mean, after in zip(worlds, means, worlds[1:], strict=False):
        v = 0.7 * v + (mean - w)
        np.testing.assert_allclose(after, w + 0.5 * v, atol=1e-6)


@pytest.mark.parametrize("kind", ["adam", "yogi"])
def test_fedopt_is_its_algorithm(kind):
    """Algorithm 2 of Reddi et al., line by line."""
    worlds, means = global_steps(f"{kind}:0.02:0.8:0.9:0.01")
    m, v = 0, 0.01**2
    for w, mean, after in zip(worlds, means, worlds[1:], strict=False):
        delta = mean - w
        m = 0.8 * m + 0.2 * delta
        v = 0.9 * v + 0.1 * delta**2 if kind == "adam" else v - 0.1 * delta**2 * np.sign(v - delta**2)
        np.testing.assert_allclose(after, w + 0.02 * m / (np.sqrt(v) + 0.01), atol=1e-6)


@pytest.mark.parametrize("name", AVERAGING)
def test_every_method_that_averages_takes_a_server_optimizer(name):
    settings = SETTINGS | {"rounds": 2, "network": "mlp:8"} | ({"directions": 2} if name == "fedzo" else {})

    def ends(**more):
        fitted = fit(fg.registry[name](**settings | more))
        models = [*fitted.personal.values(), *([fitted.model] if fitted.model is not None else [])]
        return np.concatenate([model.vector for model in models])

    usual = ends()
    assert np.array_equal(ends(server="mean"), usual)
    # Momentum that keeps nothing, with a rate of 1, is the mean, but for rounding.
    np.testing.assert_allclose(ends(server="momentum:0:1"), usual, atol=2e-3)
    assert not np.allclose(ends(server=FedAdam(lr=0.05)), usual, atol=1e-3)


def test_running_means_are_averaged_whatever_the_server_does():
    net = gradient_method.Averaged(np.zeros(5, np.float32), 2, Momentum())
    for mean in (np.ones(5, np.float32), np.full(5, 3, np.float32)):
        net.move(mean)
    assert net.weights[:2].tolist() == [3, 3]
    assert net.weights[2:].tolist() == pytest.approx([1 + 0.9 + 2] * 3)


def test_a_schedule_is_a_factor_of_the_learning_rate():
    factors = {
        "constant": [1, 1, 1, 1],
        "step:2:0.1": [1, 1, 0.1, 0.1],
        "cosine": [(1 + cos(pi * t / 4)) / 2 for t in range(4)],
        "cosine:0.5": [(3 + cos(pi * t / 4)) / 4 for t in range(4)],
        "exponential:0.5": [1, 0.5, 0.25, 0.125],
    }
    for text, want in factors.items():
        schedule = read("lr_schedule", text, SCHEDULES)
        assert [schedule.factor(t, 4) for t in range(4)] == pytest.approx(want)


def test_a_scheduled_round_is_one_with_that_rate():
    scheduled, sent, heard = watched(fg.FedAvg(**SETTINGS, lr_schedule="step:1:0.5"))
    fit(scheduled)
    for number in range(3):
        slower, sent_to_it, heard_of_it = watched(fg.FedAvg(**SETTINGS | {"lr": SETTINGS["lr"] * 0.5**number}))
        fit(slower)
        same = np.array_equal(sent[number, "client-0"], sent_to_it[number, "client-0"])
        assert same == (number == 0)
        if same:
            assert np.array_equal(heard[number, "client-0"], heard_of_it[number, "client-0"])
    plain = fit(fg.FedAvg(**SETTINGS)).model.vector
    assert np.array_equal(fit(fg.FedAvg(**SETTINGS, lr_schedule="constant")).model.vector, plain)
    assert not np.array_equal(fit(scheduled).model.vector, plain)


@pytest.mark.parametrize("name", GRADIENT)
def test_every_method_takes_adam_and_a_schedule(name):
    if name in ("apple", "scaffold", "fednova"):
        with pytest.raises(InvalidParameter, match="optimizer: expected sgd"):
            fg.registry[name](optimizer="adam")
        return
    settings = {"rounds": 2, "epochs": 1, "lr": 0.003, "network": "mlp:8", "lr_schedule": "cosine", "optimizer": "adam"}
    few = {"directions": 2} if name in ("fedzo", "pfedzo", "baffle") else {}
    fitted = fit(fg.registry[name](**settings | few))
    assert all(np.isfinite(model.vector).all() for model in fitted.personal.values())


def test_values_and_texts_are_the_same():
    given = fg.FedAvg(optimizer=Adam(0.8), lr_schedule=Steps(3, 0.2), server=FedAdam(tau=0.1))
    written = fg.FedAvg(optimizer="adam:0.8", lr_schedule="step:3:0.2", server="adam:0.01:0.9:0.99:0.1")
    assert given._optimizer == written._optimizer == Adam(0.8, 0.999, 1e-8)
    assert (given._lr_schedule, given._server) == (written._lr_schedule, written._server)
    assert given.server == "adam:0.01:0.9:0.99:0.1"  # as it is sent
    assert replace(given, rounds=3).server == given.server
    assert fg.FedAvg(optimizer="sgd", momentum=0.3)._optimizer.momentum == 0.3
    read_back = read_settings(fg.FedAvg, {"server": "yogi", "optimizer": "none", "lr_schedule": "cosine:0.1"})
    assert read_back == {"server": "yogi", "optimizer": None, "lr_schedule": "cosine:0.1"}
    assert fg.FedAvg(**read_back)._lr_schedule == Cosine(0.1)
    for kind in SERVER_OPTIMIZERS:
        assert read("server", str(kind()), SERVER_OPTIMIZERS) == kind()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"server": "adamm"},
            r"server: expected mean or momentum\[:BETA\[:LR\]\] or .*got 'adamm'; did you mean 'adam'",
        ),
        ({"server": "momentum:1"}, "server: beta of momentum: expected a number ≥ 0 and < 1, got 1 in 'momentum:1'"),
        ({"server": "mean:3"}, "server: expected .*got 'mean:3'; leave numbers out"),
        ({"server": "yogi:x"}, "server: expected a number for LR in yogi.*got 'x'; write for example yogi:0.01"),
        ({"optimizer": "rmsprop"}, "optimizer: expected sgd.* or adam.*got 'rmsprop'"),
        ({"optimizer": "adam:0.9:0.9:0"}, "optimizer: eps of adam: expected a number > 0, got 0 in"),
        ({"lr_schedule": "step:1.5"}, "lr_schedule: every of step: expected a whole number ≥ 1, got 1.5"),
        ({"lr_schedule": "cosine:nan"}, "lr_schedule: last of cosine: expected a number ≥ 0 and ≤ 1, got nan"),
        ({"lr_schedule": 3}, "lr_schedule: expected text or an object of type Schedule or none, got 3"),
    ],
)
def test_what_cannot_be_read_is_told(settings, words):
    with pytest.raises(InvalidParameter, match=words):
        fg.FedAvg(**settings)


def interrupted(method, path):
    """Return the fit of a run that is interrupted in round 3 and repeated, and the rounds of the second try."""
    rounds, ill = set(), [True]

    def interrupt(step, round, done, total):
        if step == "train":
            rounds.add(round)
            if round == 3 and ill:
                raise KeyboardInterrupt

    engine = fg.InProcess(checkpoint=path)
    with pytest.raises(KeyboardInterrupt):
        fit(method, engine=engine, progress=interrupt)
    rounds.clear()
    ill.clear()
    return fit(method, engine=engine, progress=interrupt), rounds


class Remembering(fg.FedAvg):
    """FedAvg whose clients begin where they ended, halfway."""

    @training_step(reply=like_payload)
    def train(self, client, world):
        own = yield from self.descend(client, (world + client.state.get("last", world)) / 2)
        client.state["last"] = own
        return own


def test_an_interrupted_run_of_clients_that_remember_begins_anew(tmp_path, monkeypatch):
    """A checkpoint does not hold what clients remember, so a run that went on without it would have another result."""
    monkeypatch.setattr(gradient_method, "SAVE_EVERY", 0.0)
    method = Remembering(**SETTINGS | {"rounds": 5})
    want, (got, rounds) = fit(method), interrupted(method, tmp_path / "run.checkpoint")
    assert rounds == {0, 1, 2, 3, 4}
    assert np.array_equal(got.model.vector, want.model.vector)


@pytest.mark.parametrize("server", ["mean", "momentum", "adam", "yogi"])
@pytest.mark.parametrize("name", ["fedavg", "feddisco"])
def test_an_interrupted_run_goes_on_with_what_the_server_remembers(name, server, tmp_path, monkeypatch):
    monkeypatch.setattr(gradient_method, "SAVE_EVERY", 0.0)
    method = fg.registry[name](**SETTINGS | {"rounds": 5, "participation": 0.5}, server=server, lr_schedule="cosine")
    want, path = fit(method), tmp_path / "run.checkpoint"
    got, rounds = interrupted(method, path)
    assert rounds == {3, 4}, "rounds that were finished are not run again"
    assert np.array_equal(got.model.vector, want.model.vector)
    assert got.rounds == want.rounds
    assert got.traffic.by_client == want.traffic.by_client
    assert not path.exists()


def test_adam_counts_as_forgetting_where_terms_are_strong():
    assert fg.FedProx(mu=0.5, lr=0.001, batch=30).fewest_samples(100) == 100
    assert fg.FedProx(mu=0.5, lr=0.001, batch=30, optimizer="adam").fewest_samples(100) == 10
    fg.FedProx(mu=1e4, optimizer="adam")  # its steps cannot overshoot

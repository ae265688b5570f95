"""APPLE: learning of a client's core and of its weights for the others' cores."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedgram as fg
from fedgram.checks import CLASSES, some_clients
from fedgram.core import wire
from fedgram.core.errors import InvalidParameter
from fedgram.engines.inprocess import InProcess, Room
from fedgram.experiments.runner import peak_memory, reset_peak_memory
from fedgram.methods.gradient.apple import mix
from fedgram.protocol.session import run
from support.gradient import SETTINGS, breaking, fit, image_clients, vectors

NUMBERS = 650  # of the linear model of digits


def room_of(method, clients):
    room = Room(method, clients, InProcess())
    run(method, room, classes=CLASSES, seed=0, require="all", progress=None)
    return room


def test_one_step_moves_core_and_p_as_the_paper_says():
    # ∂w_i = p_ii ∇CE(v_i), and ∂p_ij = ⟨∇CE(v_i), w_j⟩ + λ_r μ (p_ij - p⁰_j), by autograd in double precision.
    clients = some_clients()[:3]
    method = fg.APPLE(
        **SETTINGS | {"momentum": 0.0, "batch": 1000, "epochs": 1, "rounds": 20}, lr_p=0.02, mu=0.7, until=0.5
    )
    side = room_of(replace(method, rounds=1), clients).sides[clients[1].name]
    rng = np.random.default_rng(0)
    cores = rng.normal(size=(3, NUMBERS)).astype(np.float32) * 0.1
    p, start = np.array([0.6, -0.3, 0.9], dtype=np.float32), side.state["start"]
    side.state |= {"p": p, "own": cores[1]}
    side.enter("gradient", {"classes": None, "round": 4, "seed": 0, "step": "train"})
    [core] = method.train([side], [cores])

    everything = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (cores, p)]
    v = everything[1] @ everything[0]
    scores = torch.tensor(side.x, dtype=torch.float64) @ v[:-CLASSES].reshape(CLASSES, -1).T + v[-CLASSES:]
    loss = torch.nn.functional.cross_entropy(scores, torch.tensor(side.y))
    strength = 0.7 * 0.001 ** (4 / 10)
    loss = loss + strength / 2 * (everything[1] - torch.tensor(start)).square().sum()
    by_core, by_p = torch.autograd.grad(loss, everything)
    np.testing.assert_allclose(core, cores[1] - method.lr * by_core[1].numpy(), atol=1e-7)
    np.testing.assert_allclose(side.state["p"], p - method.lr_p * by_p.numpy(), atol=1e-7)
    assert np.abs(side.state["p"] - p).min() > 1e-4, "all three move"
    # The client's model is the mixture with the core that it trained.
    want = side.state["p"][[0, 2]] @ cores[[0, 2]] + side.state["p"][1] * core
    np.testing.assert_allclose(side.model.vector, want, atol=1e-6)


def test_weight_decay_is_of_the_core_alone():
    clients = some_clients()[:2]
    plain = fg.APPLE(**SETTINGS | {"momentum": 0.0, "rounds": 1, "local_steps": 1}, mu=0.0)
    decayed = replace(plain, weight_decay=0.5)
    without, with_decay = (room_of(method, clients).sides["client-0"].state for method in (plain, decayed))
    np.testing.assert_allclose(with_decay["p"], without["p"], atol=1e-7)
    assert np.abs(with_decay["own"] - without["own"]).max() > 1e-4


def test_the_hold_on_p_falls_to_nothing():
    exponential = fg.APPLE(rounds=100, mu=0.5, until=0.4)
    assert exponential.strength(0) == 0.5
    assert exponential.strength(20) == pytest.approx(0.5 * 0.001**0.5)
    assert exponential.strength(40) == exponential.strength(99) == 0
    cosine = replace(exponential, schedule="cosine")
    assert cosine.strength(0) == 0.5
    assert cosine.strength(20) == pytest.approx(0.25)
    assert cosine.strength(40) == replace(cosine, until=0.0).strength(0) == 0


@pytest.mark.parametrize("network", ["linear", "mlp:16"])
def test_with_its_own_core_alone_a_client_trains_alone(network):
    off = fg.APPLE(**SETTINGS, network=network, start="self", lr_p=0.0)
    got, want = fit(off), fit(fg.Alone(**SETTINGS, network=network))
    for name in want.personal:
        # To rounding: autograd and the written-out gradient add up in another order.
        np.testing.assert_allclose(got.personal[name].vector, want.personal[name].vector, atol=1e-6)


def layers(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], 8), nn.Tanh(), nn.Linear(8, classes))


def test_with_its_own_core_alone_it_is_to_the_bit_where_both_take_autograd():
    off, alone = fg.APPLE(**SETTINGS, network=layers, start="self", lr_p=0.0), fg.Alone(**SETTINGS, network=layers)
    np.testing.assert_array_equal(vectors(fit(off)), vectors(fit(alone)))


def test_one_client_with_a_fixed_p_is_plain_sgd():
    [client] = some_clients()[:1]
    got, want = (fit(method, [client]) for method in (fg.APPLE(**SETTINGS, lr_p=0.0), fg.Alone(**SETTINGS)))
    np.testing.assert_allclose(got.personal[client.name].vector, want.personal[client.name].vector, atol=1e-6)


def test_by_default_a_client_takes_of_the_others():
    room = room_of(fg.APPLE(**SETTINGS), some_clients())
    for side in room.sides.values():
        p, start = side.state["p"], side.state["start"]
        assert np.abs(p - start).max() > 1e-4
        others = np.delete(p, side.state["place"])
        assert np.abs(others).min() > 1e-3
    sizes = np.array([len(client.y) for client in sorted(some_clients(), key=lambda client: client.name)])
    np.testing.assert_allclose(start, sizes / sizes.sum(), atol=1e-7)


def test_cores_of_those_not_asked_are_the_last_they_sent():
    sent = []

    class Watched(fg.APPLE):
        def asked(self, clients):
            sent.append(super().asked(clients))
            return sent[-1]

        @fg.step(batched=True)
        def train(self, clients, cores):
            seen[clients[0].round] = np.array(cores[0])
            return super().train(clients, cores)

    seen = {}
    fit(Watched(**SETTINGS, participation=0.5))
    places = {name: place for place, name in enumerate(sorted(client.name for client in some_clients()))}
    first = seen[0][0]
    assert np.array_equal(seen[0], np.tile(first, (6, 1)))
    for number in (1, 2):
        moved = {name for name, place in places.items() if not np.array_equal(seen[number][place], first)}
        assert moved == set().union(*sent[:number])


def test_running_means_are_mixed_by_the_first_p():
    # By p, which may be negative, variances could be, too.
    begun = []

    class Still(fg.APPLE):
        def descend(self, client, start, hooks, **options):
            begun.append(start)
            yield from ()
            return start

    method, client = Still(**SETTINGS | {"rounds": 1}, network="cnn"), image_clients()[0]
    side = room_of(method, [client]).sides[client.name]
    buffers = method.net_of(side).buffers
    cores = np.tile(side.state["own"], (2, 1))
    cores[:, :buffers] = np.random.default_rng(0).random((2, buffers))
    start = np.array([0.25, 0.75], dtype=np.float32)
    side.state |= {"p": np.array([2.0, -1.0], dtype=np.float32), "start": start, "place": 0}
    begun.clear()
    [core] = method.train([side], [cores])
    for vector in (begun[0], core, side.model.vector):
        np.testing.assert_allclose(vector[:buffers], start @ cores[:, :buffers], atol=1e-6)
    np.testing.assert_array_equal(core[buffers:], side.state["own"][buffers:])


def test_all_cores_go_down_and_one_goes_up():
    few, more = (fit(fg.APPLE(**SETTINGS | {"rounds": rounds})).traffic.by_client for rounds in (1, 2))
    for name in few:
        down, up = more[name]["down"] - few[name]["down"], more[name]["up"] - few[name]["up"]
        assert 4 * 6 * NUMBERS <= down < 4 * 6 * NUMBERS + 500
        assert 4 * NUMBERS <= up < 4 * NUMBERS + 300


def test_p_is_never_sent(monkeypatch):
    sent, encode = [], wire.encode

    def recorded(payload, **options):
        sent.append(encode(payload, **options))
        return sent[-1]

    monkeypatch.setattr("fedgram.engines.inprocess.wire.encode", recorded)
    room, messages = room_of(fg.APPLE(**SETTINGS), some_clients()), b"".join(sent)
    for side in room.sides.values():
        assert side.state["own"][:20].tobytes() in messages
        assert side.state["p"].tobytes() not in messages
        assert side.state["p"][:2].tobytes() not in messages


def test_a_client_lost_on_the_way_leaves_its_last_core():
    method = fg.APPLE(**SETTINGS)
    lost = fit(breaking(method, {"client-2"}, 1), require=5)
    assert set(lost.lost) == {"client-2"}
    assert all(np.isfinite(lost.personal[name].vector).all() for name in lost.contributors)
    # In round 1 the others got the same cores as without a lost client; only round 2 differs.
    whole = fit(method)
    assert not np.array_equal(lost.personal["client-0"].vector, whole.personal["client-0"].vector)
    first = fit(breaking(replace(method, rounds=2, until=0.0), {"client-2"}, 1), require=5)
    want = fit(replace(method, rounds=2, until=0.0))
    np.testing.assert_allclose(first.personal["client-0"].vector, want.personal["client-0"].vector, atol=1e-5)


def test_a_client_of_one_sample_trains():
    one, *rest = some_clients()
    one = replace(one, x=one.x[:1], y=one.y[:1])
    fitted = fit(fg.APPLE(**SETTINGS | {"lr": 0.5}), [one, *rest])
    assert fitted.personal["client-0"].predict(one.x) == one.y


def test_clients_of_one_and_the_same_class_train():
    same = [replace(client, y=np.full_like(client.y, 4)) for client in some_clients()]
    assert set(fit(fg.APPLE(**SETTINGS | {"lr": 0.5}), same).personal["client-0"].predict(same[0].x)) == {4}


def test_memory_is_the_cores_and_little_more():
    # The cores came by wire, and are the floor; the step must not copy them.
    client = some_clients()[0]
    method = fg.APPLE(**SETTINGS | {"rounds": 1, "local_steps": 2}, network="mlp:2000")
    side = room_of(method, [client]).sides[client.name]
    size, count = side.model.net.size, 200
    cores = wire.decode(wire.encode(np.tile(side.state["own"], (count, 1)), sealed=False))
    assert not cores.flags.writeable
    p = np.full(count, 1 / count, dtype=np.float32)
    side.state |= {"p": p, "start": p, "place": 7}
    side.enter("gradient", {"classes": None, "round": 0, "seed": 0, "step": "train"})
    method.train([side], [cores])  # one-time memory of libraries is allocated
    side.enter("gradient", {"classes": None, "round": 0, "seed": 0, "step": "train"})
    reset_peak_memory()
    before = peak_memory()
    method.train([side], [cores])
    assert peak_memory() - before <= 0.2 * 4 * size * count


def test_mixing_is_the_same_for_arrays_and_tensors():
    rng = np.random.default_rng(0)
    core, p, cores, mine = rng.random(7), rng.random(3), rng.random((3, 7)), np.eye(3)[2]
    want = p[:2] @ cores[:2] + p[2] * core
    np.testing.assert_allclose(mix(core, p, mine, cores), want)
    np.testing.assert_allclose(mix(*map(torch.from_numpy, (core, p, mine, cores))).numpy(), want)


@pytest.mark.parametrize("bad", [{"lr_p": -1.0}, {"mu": -1.0}, {"mu": 4000.0}, {"until": 1.5}, {"start": "none"}])
def test_bad_settings_are_refused(bad):
    with pytest.raises(InvalidParameter, match=next(iter(bad))):
        fg.APPLE(**bad)

"""BAFFLE: clients send numbers for a seed, and the server computes a gradient from them."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import fedgram as fg
from fedgram.checks import CLASSES, some_clients
from fedgram.core.errors import ClientFailed, InvalidData, InvalidParameter
from fedgram.engines.inprocess import InProcess, Room
from fedgram.nets.estimates import gaussians
from fedgram.nets.optimizers import Adam
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.replies import LARGEST_LEARNT
from support.gradient import breaking, first_weights, fit, image_clients

# Without all options of the server: FedSGD.
PLAIN = {"rounds": 1, "lr": 0.1, "optimizer": "sgd", "clip": None, "ema": 0.0, "weight_decay": 0.0, "batch": 1000}
sent = []


@dataclass(frozen=True, kw_only=True)
class Watched(fg.BAFFLE):
    """Its messages can be looked at."""

    @step(batched=True)
    def train(self, clients, worlds):
        """Reply as usual."""
        replies = super().train(clients, worlds)
        sent.extend((client.name, world, reply) for client, world, reply in zip(clients, worlds, replies, strict=True))
        return replies


def watched(**options):
    sent.clear()
    return fit(Watched(**PLAIN | options)), list(sent)


def loss(weights, client):
    scores = client.x.astype(np.float64) @ weights[:-CLASSES].reshape(CLASSES, -1).T + weights[-CLASSES:]
    return np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(client.y)), client.y])


@pytest.mark.parametrize("central", [False, True])
def test_baffle_steps_along_the_printed_estimate(central):
    sigma, k = 0.01, 6
    fitted, messages = watched(directions=k, sigma=sigma, central=central)
    clients = {client.name: client for client in some_clients()}
    [seed] = {world["seed"] for _, world, _ in messages}
    first = first_weights().astype(np.float64)
    [drawn] = gaussians(seed, k, len(first))
    deltas = sigma * drawn.numpy().astype(np.float64)
    means = np.zeros(k)
    for name, world, reply in messages:
        np.testing.assert_array_equal(world["weights"], first_weights())
        client = clients[name]
        there, here = np.array([loss(first + delta, client) for delta in deltas]), loss(first, client)
        back = np.array([loss(first - delta, client) for delta in deltas])
        want = (there - back) / 2 if central else there - here
        np.testing.assert_allclose(reply["changes"], want, rtol=1e-4, atol=1e-8)
        means += len(client.y) / sum(len(one.y) for one in clients.values()) * want
    want = first - 0.1 * (means / sigma**2) @ deltas / k
    np.testing.assert_allclose(fitted.model.vector, want, atol=1e-5)


def test_baffle_with_many_directions_is_fedsgd():
    fitted = fit(fg.BAFFLE(**PLAIN, directions=5_000))
    once = {"rounds": 1, "local_steps": 1, "batch": 1000, "lr": 0.1, "momentum": 0.0}
    want = fit(fg.FedAvg(**once)).model.vector - first_weights()
    got = fitted.model.vector - first_weights()
    # √(b/(b + d)) = 0.941 for 5,000 directions and 650 numbers.
    assert got @ want / np.linalg.norm(got) / np.linalg.norm(want) == pytest.approx(0.941, abs=0.02)
    assert got @ want / (want @ want) == pytest.approx(1, abs=0.1), "as long in the gradient's direction"


def test_baffle_sends_as_many_numbers_as_directions_and_a_seed():
    rounds, k = 4, 50
    for network, numbers in (("linear", 650), ("mlp:200", 64 * 200 + 200 + 2010)):
        one, more = (
            fit(fg.BAFFLE(rounds=count, directions=k, network=network)).traffic.by_client for count in (1, 1 + rounds)
        )
        for name, counted in more.items():
            up, down = ((counted[way] - one[name][way]) / rounds for way in ("up", "down"))
            assert 4 * k < up < 4 * k + 600, "for any size of the network"
            assert 4 * numbers < down < 4 * numbers + 600


def test_baffle_sends_running_means_beside_them_and_averages_these():
    [one, other] = image_clients()[:2]
    options = PLAIN | {"network": "cnn", "directions": 3}
    both = fit(fg.BAFFLE(**options), [one, other]).model
    buffers = both.net.buffers
    each = [fit(fg.BAFFLE(**options), [client]).model.vector[:buffers] for client in (one, other)]
    want = np.average(each, axis=0, weights=[len(one.y), len(other.y)])
    np.testing.assert_allclose(both.vector[:buffers], want, atol=1e-6)
    plain = fit(fg.FedAvg(network="cnn", rounds=1, local_steps=1, batch=1000), [one]).model.vector[:buffers]
    np.testing.assert_allclose(each[0], plain, atol=1e-6, err_msg="never perturbed: those of one pass at the weights")


def test_baffle_draws_other_directions_in_each_round():
    _, messages = watched(rounds=3, directions=2)
    assert len({world["seed"] for _, world, _ in messages}) == 3


def test_the_servers_step_can_clip_average_and_take_adam():
    first, plain = first_weights(), fit(fg.BAFFLE(**PLAIN, directions=5)).model.vector
    moved = plain - first
    largest = float(np.abs(moved).max()) / 0.1
    clipped = fit(fg.BAFFLE(**PLAIN | {"clip": largest / 4}, directions=5)).model.vector - first
    np.testing.assert_allclose(clipped, moved / 4, atol=1e-6)
    loose = fit(fg.BAFFLE(**PLAIN | {"clip": largest * 4}, directions=5)).model.vector
    np.testing.assert_array_equal(loose, plain)
    averaged = fit(fg.BAFFLE(**PLAIN | {"ema": 0.995}, directions=5)).model.vector
    np.testing.assert_allclose(averaged, plain + 0.1 * (first - plain), atol=1e-6)  # (1 + 0)/(10 + 0) in round 0
    decayed = fit(fg.BAFFLE(**PLAIN | {"weight_decay": 0.5}, directions=5)).model.vector
    np.testing.assert_allclose(decayed, plain - 0.1 * 0.5 * first, atol=1e-6)
    adam = fit(fg.BAFFLE(**PLAIN | {"optimizer": "adam"}, directions=5)).model.vector - first
    np.testing.assert_allclose(adam, 0.1 * np.sign(moved), atol=1e-4)  # Adam's first step is lr in each number
    assert fg.BAFFLE()._optimizer == Adam(0.9, 0.99)


def test_the_moving_average_is_only_what_is_judged():
    # The weights that clients are sent are the same with and without it.
    _, with_average = watched(rounds=3, directions=5, ema=0.9)
    _, without = watched(rounds=3, directions=5)
    for (_, got, _), (_, want, _) in zip(with_average, without, strict=True):
        np.testing.assert_array_equal(got["weights"], want["weights"])


def test_running_means_are_those_of_the_last_round_and_no_moving_average():
    options = PLAIN | {"network": "cnn", "directions": 2, "rounds": 2, "batch": 8}
    averaged, plain = (fit(fg.BAFFLE(**options | {"ema": ema}), image_clients()[:2]).model for ema in (0.9, 0.0))
    buffers = plain.net.buffers
    np.testing.assert_array_equal(averaged.vector[:buffers], plain.vector[:buffers])
    assert not np.array_equal(averaged.vector[buffers:], plain.vector[buffers:])


def test_momentum_is_that_of_the_server():
    two, plain = (fit(fg.BAFFLE(**PLAIN | {"rounds": 2}, directions=5, momentum=m)).model.vector for m in (0.5, 0.0))
    first, once = first_weights(), fit(fg.BAFFLE(**PLAIN, directions=5)).model.vector
    np.testing.assert_allclose(two - plain, 0.5 * (once - first), atol=1e-6)


def test_an_epoch_meets_every_sample_once():
    [client] = [replace(client, x=client.x[:10], y=client.y[:10]) for client in some_clients()[:1]]
    method, side = fg.BAFFLE(**PLAIN | {"batch": 4}, directions=2), ClientSide(client, classes=tuple(range(CLASSES)))
    left = [np.arange(10)]
    for number in range(4):
        side.enter("gradient", {"classes": None, "round": number, "seed": 0, "step": "train"})
        method.train([side], [{"weights": first_weights(), "seed": 1}])
        left.append(side.state["left"])
    assert [len(some) for some in left] == [10, 6, 2, 0, 6], "then the next epoch begins"
    assert set(left[2]) < set(left[1])


def test_a_client_that_fails_keeps_its_place_in_the_epoch():
    room = Room(fg.BAFFLE(**PLAIN | {"batch": 4}), some_clients()[:1], InProcess())
    [side] = room.sides.values()
    side.enter("gradient", {"classes": tuple(range(CLASSES)), "round": 0, "seed": 0, "step": "train"})
    with pytest.raises(InvalidData, match="diverged"):
        fg.BAFFLE().train([side], [{"weights": np.full(650, np.inf, dtype=np.float32), "seed": 1}])
    assert "left" not in side.state


def test_a_reply_of_another_kind_is_refused_by_name():
    @dataclass(frozen=True, kw_only=True)
    class Short(fg.BAFFLE):
        @step(batched=True)
        def train(self, clients, worlds):
            replies = super().train(clients, worlds)
            for client, reply in zip(clients, replies, strict=True):
                if client.name == "client-1":
                    reply["changes"] = reply["changes"][:-1]
            return replies

    fitted = fit(Short(**PLAIN, directions=5), require=5)
    assert set(fitted.absent) == {"client-1"}
    assert "reply/changes must be an array of float32 with shape (5,)" in fitted.absent["client-1"]


def test_baffle_goes_on_without_a_client_that_is_lost_on_the_way():
    method = fg.BAFFLE(**PLAIN | {"rounds": 3}, directions=5)
    fitted = fit(breaking(method, {"client-2"}, 1), require=5)
    assert set(fitted.lost) == {"client-2"}
    assert len(fitted.rounds) == 3
    with pytest.raises(ClientFailed, match="client-2"):
        fit(breaking(method, {"client-2"}, 1))


def test_baffle_with_a_single_class_is_refused_and_a_client_of_one_class_trains():
    [client, other] = some_clients()[:2]
    single, method = replace(client, y=np.zeros_like(client.y)), fg.BAFFLE(**PLAIN, directions=5)
    with pytest.raises(InvalidData, match="at least two classes"):
        method.fit([single, other], classes=1)
    assert "client-0" in fit(method, [single, other]).contributors


def test_a_reply_is_made_of_one_batch():
    method = fg.BAFFLE(batch=32)
    assert [method.fewest_samples(n) for n in (1, 32, 33, 64, 70)] == [1, 32, 1, 32, 6]


@pytest.mark.parametrize(
    "bad", [{"directions": 0}, {"sigma": 0.0}, {"ema": 1.0}, {"clip": 0.0}, {"clip": -1.0}, {"optimizer": "lion"}]
)
def test_baffle_refuses(bad):
    with pytest.raises(InvalidParameter, match=rf"{next(iter(bad))}: .*got '?{next(iter(bad.values()))}"):
        fg.BAFFLE(**bad)


def test_a_batch_is_used_up_only_when_all_have_replied():
    # Clients that train beside a failed client are asked again, and must see the same batch as alone.
    bad = some_clients()
    bad[1] = replace(bad[1], x=bad[1].x * 1e30)
    method = fg.BAFFLE(rounds=3, batch=8, directions=5)
    together, alone = (fit(method, bad, require=2, engine=InProcess(batch=size)).model.vector for size in (64, 1))
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize(("size", "taken"), [(LARGEST_LEARNT, True), (2 * LARGEST_LEARNT, False), (3e38, False)])
def test_clipping_survives_any_number_that_is_taken_of_a_client(size, taken):
    @dataclass(frozen=True, kw_only=True)
    class Shouting(fg.BAFFLE):
        @step(batched=True)
        def train(self, clients, worlds):
            """Reply with changes of this size for a step of length one, all clients alike."""
            replies, changes = super().train(clients, worlds), min(size * self.sigma * 0.999, 3e38)
            return [reply | {"changes": np.full_like(reply["changes"], changes)} for reply in replies]

    method = Shouting(rounds=2, batch=8, directions=5)
    if taken:
        assert np.isfinite(fit(method).model.vector).all()
    else:
        with pytest.raises(ClientFailed, match="reply/changes must be from -"):
            fit(method)

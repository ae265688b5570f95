"""FedACnnL is its printed equations, and the same for any partition, order and batch size."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.core.errors import InvalidParameter, UnknownName
from fedgram.engines.inprocess import Room
from fedgram.layerwise import Network
from fedgram.protocol import session
from fedgram.protocol.timing import Spent
from support.campaign import examples
from support.problems import as_clients, relative_error, seeds, spread_any_way

STACKS = ["flatten", "flatten dense:9 dense:7:tanh", "conv:6:3:leaky_relu pool:2 conv:5:2 flatten dense:8"]


def relu(z):
    return np.maximum(z, 0)


def images(rng, n, classes=3):
    """Return images that tell something of their labels."""
    y = rng.integers(0, classes, n)
    return rng.normal(size=(n, 8, 7, 2)) + rng.normal(size=(classes, 8, 7, 2))[y], y


def on_one_machine(stack, x, y, classes, seed, gamma):
    """Train by (2) on all samples at once: all patches in one matrix, pseudo labels encoded before the solve."""
    network = Network(stack, x.shape[1:], tuple(range(classes)), seed)
    weights = []
    for Q in network.encodings:
        rows = network.next_layer.rows(network.forward(x))
        Y = np.eye(classes)[np.repeat(y, len(rows) // len(y))]
        solution = np.linalg.solve(rows.T @ rows + gamma * np.eye(rows.shape[1]), rows.T @ Y)
        network = network.extend(solution)
        Z = Y if Q is None else Y @ Q
        weights.append(np.linalg.solve(rows.T @ rows + gamma * np.eye(rows.shape[1]), rows.T @ Z))  # (2)
    return weights


@examples(30)
@given(seeds, st.sampled_from(STACKS), st.sampled_from([1, 2, 5, 40]), st.integers(1, 60), st.booleans())
def test_weights_are_those_of_the_pooled_data(seed, stack, clients, batch, adaptive):
    """The weight-invariant property: any partition, order and batch size."""
    rng = np.random.default_rng(seed)
    x, y = images(rng, 50)
    parts = spread_any_way(rng, 50, clients)
    rng.shuffle(parts)
    method = fg.FedACnnL(network=stack, gamma=1.0, batch=batch, adaptive=adaptive)
    network = method.fit(as_clients(x, y, parts), classes=3, seed=seed).model
    want = on_one_machine(stack, x, y, 3, network.seed, 1.0)
    assert [w.shape for w in network.weights] == [w.shape for w in want]
    for got, direct in zip(network.weights, want, strict=True):
        assert relative_error(got, direct) < 1e-8


def test_dnn_against_a_direct_evaluation():
    """(5) and the layers' inputs written out, without any class of ours."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 6)), rng.integers(0, 3, 90)
    network = fg.FedACnnL(gamma=2.0).fit(as_clients(x, y, np.array_split(np.arange(90), 4)), classes=3).model
    Q1, Q2, none = network.encodings
    assert none is None
    Y, X1 = np.eye(3)[y], x
    W1 = np.linalg.solve(X1.T @ X1 + 2 * np.eye(6), X1.T @ (Y @ Q1))
    X2 = relu(X1 @ W1)
    W2 = np.linalg.solve(X2.T @ X2 + 2 * np.eye(128), X2.T @ (Y @ Q2))
    X3 = relu(X2 @ W2)
    W3 = np.linalg.solve(X3.T @ X3 + 2 * np.eye(64), X3.T @ Y)
    for got, want in zip(network.weights, (W1, W2, W3), strict=True):
        assert relative_error(got, want) < 1e-8
    np.testing.assert_allclose(network.scores(x), X3 @ W3, atol=1e-8)


def test_regularization_counts_once_in_all():
    """(3) would add γ once per client; (5) adds it once, and only then is the result the same for any partition."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 5)), rng.integers(0, 2, 60)
    want = np.linalg.solve(x.T @ x + 100 * np.eye(5), x.T @ np.eye(2)[y])
    for count in (1, 7):
        fit = fg.FedACnnL(network="lr").fit(as_clients(x, y, np.array_split(np.arange(60), count)), classes=2)
        assert relative_error(fit.model.weights[0], want) < 1e-10


SLOWNESS = {"2": 400, "3": 400, "5": 400, "40": 400, "6": 25}


class SlowRoom(Room):
    """An engine that sees replies to the first layer come after as many seconds as their clients are called."""

    def exchange(self, step, requests):
        """Pass replies on, as late as they are said to be."""
        for number, (name, answer) in enumerate(super().exchange(step, requests)):
            if step == "summarize":
                self.rounds += number == 0
                seconds = float(name) if self.rounds == 1 else 1.0
                self.spent[name] = Spent(seconds / 2, seconds)
            yield name, answer

    rounds = 0


def batches(**settings_):
    """Return the batch sizes of clients whose replies to the first layer take as many seconds as they are called."""
    given = {name: [] for name in SLOWNESS}

    @dataclass(frozen=True, kw_only=True)
    class Watched(fg.FedACnnL):
        """FedACnnL that tells the batch sizes."""

        @fg.step
        def summarize(self, client, task):
            given[client.name].append(int(task["batch"]))
            return super().summarize(client, task)

    rng = np.random.default_rng(0)
    clients = [fg.Client(name, rng.normal(size=(n, 4)), np.arange(n) % 2) for name, n in SLOWNESS.items()]
    method = Watched(**settings_)
    with SlowRoom(method, clients, fg.InProcess()) as room:
        session.run(method, room, classes=2, seed=0, require="all", progress=None)
    return given


def test_adaptive_batch_size():
    """(7): B_2 = ⌈T / min T · B_1⌉, at most the maximum and the client's samples; who has become quick stays so."""
    assert batches(batch=10, batch_max=150) == {
        "2": [10, 10, 10],
        "3": [10, 15, 15],
        "5": [10, 25, 25],
        "40": [10, 150, 150],
        "6": [10, 25, 25],
    }


def test_largest_batch_by_client():
    """(7)'s B_max is each client's own."""
    found = batches(batch=10, batch_max="150; 40=60;5=12")
    assert {name: sizes[-1] for name, sizes in found.items()} == {"2": 10, "3": 15, "5": 12, "40": 60, "6": 25}
    with pytest.raises(UnknownName, match="unknown client in batch_max '4'"):
        batches(batch=10, batch_max="150; 4=60")


def test_an_engine_that_does_not_measure_time():
    """Batches then stay as they are."""

    class Timeless(Room):
        @property
        def spent(self):
            return {}

        @spent.setter
        def spent(self, value):
            pass

    rng = np.random.default_rng(0)
    clients = [fg.Client(str(k), rng.normal(size=(30, 4)), np.arange(30) % 2) for k in range(3)]
    method = fg.FedACnnL(gamma=1.0)
    with Timeless(method, clients, fg.InProcess()) as room:
        fit = session.run(method, room, classes=2, seed=0, require="all", progress=None)
    assert fit.timing == {}
    want = method.fit(clients, classes=2)
    for got, weights in zip(fit.model.weights, want.model.weights, strict=True):
        assert relative_error(got, weights) < 1e-8


def test_without_adaptive_batch_size():
    assert batches(batch=10, adaptive=False) == {name: [10, 10, 10] for name in SLOWNESS}


def test_an_empty_class():
    """A class that nobody has gets weights of zero, and wins nothing."""
    rng = np.random.default_rng(7)
    x, y = images(rng, 60)
    network = fg.FedACnnL(network=STACKS[2]).fit(as_clients(x, y, [np.arange(60)]), classes=5).model
    assert np.array_equal(network.weights[-1][:, 3:], np.zeros((8, 2)))
    assert np.isfinite(network.scores(x)).all()


@pytest.mark.parametrize(
    ("settings_", "error", "words"),
    [
        ({"gamma": -1.0}, InvalidParameter, "gamma must be a number ≥ 0"),
        ({"network": "dmn"}, UnknownName, "did you mean 'dnn'"),
        ({"batch": 0}, InvalidParameter, "batch must be from 1"),
        ({"batch": 512, "batch_max": 256}, InvalidParameter, "batch_max, 256; got 512"),
        ({"batch_max": "4096; a=100"}, InvalidParameter, "batch_max, 4096; a=100; got 256"),
        ({"batch_max": "many"}, InvalidParameter, "whole numbers ≥ 1, as in 4096.*got 'many'"),
        ({"batch_max": "4096; a=-1"}, InvalidParameter, "whole numbers ≥ 1.*got '-1'"),
        ({"batch_max": "4096; 512"}, InvalidParameter, "NAME=NUMBER.*got '512'"),
        ({"batch_max": "4096; a=512; a=600"}, InvalidParameter, "NAME=NUMBER.*got 'a=600'"),
    ],
)
def test_bad_hyperparameters_are_named(settings_, error, words):
    with pytest.raises(error, match=words):
        fg.FedACnnL(**settings_)


def test_convolutions_beat_a_line_on_digits():
    from fedgram.data import digits

    data = digits()
    parts = fg.partition.dirichlet(data.y, clients=20, alpha=0.3, seed=0)
    flat = fg.make_clients(data, parts, test_fraction=0.2, seed=0)
    square = [fg.Client(c.name, c.x.reshape(-1, 8, 8), c.y, c.x_test.reshape(-1, 8, 8), c.y_test) for c in flat]
    line = fg.FedACnnL(network="lr", gamma=0.1).fit(flat, classes=10).evaluation
    deep = fg.FedACnnL(network="conv:32:3 pool:2 flatten", gamma=0.1).fit(square, classes=10).evaluation
    assert deep.pooled > line.pooled + 0.01

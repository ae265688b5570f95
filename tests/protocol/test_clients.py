"""A method's view of clients in `serve`: their agreement, and means by given weights."""

from dataclasses import FrozenInstanceError, dataclass
from typing import ClassVar

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.errors import InvalidParameter

SAMPLES = {"a": 10, "b": 20, "c": 30}


@pytest.fixture
def clients():
    rng = np.random.default_rng(0)
    return [fg.Client(name, rng.normal(size=(n, 3)), np.arange(n) % 2) for name, n in SAMPLES.items()]


@dataclass(frozen=True, kw_only=True)
class Probe(fg.Method):
    """Probe — calls a test's function on the clients, and keeps the result."""

    seen: ClassVar[list] = []
    serving: ClassVar = None

    def serve(self, clients):
        self.seen.append(type(self).serving(self, clients))

    @fg.step
    def size(self, client):
        return {"n": np.array([float(len(client.x))], dtype=np.float32)}

    @fg.step
    def fail(self, client):
        if client.name == "c":
            raise ValueError("not today")
        return np.array([float(len(client.x))])


@pytest.fixture
def served(clients):
    """Returns the result of a function of (method, clients) as a method's server side."""

    def run(serving, **options):
        Probe.serving, Probe.seen[:] = staticmethod(serving), []
        Probe().fit(clients, **options)
        return Probe.seen[0]

    return run


def test_what_was_agreed_on_is_there_from_the_start_and_cannot_be_changed(served):
    agreed = served(lambda method, clients: clients.agreement, classes=2)
    assert agreed.classes == (0, 1)
    assert agreed.shape == (3,)
    assert agreed.samples == SAMPLES
    assert agreed.tested == dict.fromkeys(SAMPLES, 0)
    with pytest.raises(FrozenInstanceError):
        agreed.classes = (0, 1, 2)
    with pytest.raises(TypeError):
        agreed.samples["a"] = 11


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({}, (100 + 400 + 900) / 60),
        ({"weighted": False}, 20),
        ({"weights": {"a": 1, "b": 0, "c": 3}}, (10 + 90) / 4),
        ({"weights": {"a": 0.5, "b": 0.25, "c": 0.25, "stranger": 9}}, 5 + 5 + 7.5),
        ({"weights": {"a": 1, "b": 1}, "to": iter(["a", "b"])}, 15),
        ({"weights": {"a": 3, "b": 1}, "per_client": {"a": None, "b": None}}, 12.5),
    ],
)
def test_a_mean_takes_the_weights_it_is_given(served, options, want):
    mean = served(lambda method, clients: clients.mean(method.size, **options))
    np.testing.assert_allclose(mean["n"], [want], rtol=1e-7)
    assert mean["n"].dtype == np.float32, "the replies' own precision"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weights": {"a": 1, "b": 1}}, "none for client 'c': give one for every client"),
        ({"weights": {"a": 1, "b": -1, "c": 1}}, "client 'b' must be a number ≥ 0, got -1"),
        ({"weights": {"a": 1, "b": float("nan"), "c": 1}}, "client 'b' must be a number ≥ 0, got nan"),
        ({"weights": dict.fromkeys(SAMPLES, 0)}, "weigh 0 together"),
        ({"weights": SAMPLES, "weighted": False}, "`weights` or `weighted=False`, not both"),
    ],
)
def test_weights_that_make_no_mean_are_refused(served, options, words):
    with pytest.raises(InvalidParameter, match=words):
        served(lambda method, clients: clients.mean(method.size, **options))


def test_who_fails_has_no_weight(served):
    weights = {"a": 1, "b": 3, "c": 100}
    mean = served(lambda method, clients: clients.mean(method.fail, weights=weights), require=2)
    np.testing.assert_allclose(mean, [(10 + 60) / 4])


def test_a_mean_tells_of_each_reply_that_is_in_it(served):
    heard = {}
    mean = served(lambda method, clients: clients.mean(method.fail, heard=heard.__setitem__), require=2)
    assert {name: value.tolist() for name, value in heard.items()} == {"a": [10.0], "b": [20.0]}
    np.testing.assert_allclose(mean, [(100 + 400) / 30])

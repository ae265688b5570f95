"""Two clients' knowledge of each other: the rest of a sum of two is the other's part."""

from dataclasses import dataclass

import numpy as np
import pytest

import fedgram as fg
from fedgram import checks
from fedgram import data as datasets
from fedgram.core import wire
from fedgram.core.errors import InvalidParameter, Revealing
from fedgram.engines.inprocess import InProcess, Room
from fedgram.methods.analytic.apfl import GAMMAS
from fedgram.methods.layerwise.pfedacnnl import UNJUDGED
from fedgram.moments import solve
from fedgram.protocol.session import run
from support.problems import as_clients


def two_clients(n=60, d=5):
    """Return two clients of three classes; the first knows itself and attacks the second."""
    rng = np.random.default_rng(0)
    return as_clients(rng.normal(size=(n, d)), rng.integers(0, 3, n), [np.arange(20), np.arange(20, n)])


def downloaded(method, clients):
    """Return the server's message to all clients after the first message, as it comes out of the wire."""
    fit = method.fit(clients, classes=3)
    return wire.decode(wire.encode(fit.published))


def totals(lower, weights, ridge):
    """Return the pooled Gram matrix and class sums, from the factor of their system and its solution."""
    d = len(weights)
    triangle = np.tril(solve.lapack.dtfttr(d, lower, uplo="L")[0])
    system = triangle @ triangle.T
    return system - ridge * np.eye(d), system @ weights


@pytest.mark.parametrize("intercept", [False, True])
def test_of_two_clients_fedhips_download_gives_each_the_others_moments(intercept):
    one, other = two_clients()
    system = downloaded(fg.FedHiP(beta=1.0, intercept=intercept), [one, other])
    gram, sums = totals(system.lower, system.weights, 1.0)
    if intercept:  # then they are about the mean, which is sent, too
        gram += system.n * np.outer(system.mean, system.mean)
        sums += system.n * np.outer(system.mean, system.frequencies)
    mine, theirs = (fg.Moments.of(client.x, client.y, classes=3) for client in (one, other))
    np.testing.assert_allclose(gram - mine.gram, theirs.gram, atol=1e-12)
    np.testing.assert_allclose(sums - mine.cross, theirs.cross, atol=1e-12)


def test_of_two_clients_apfls_exact_download_does_the_same_for_random_features():
    one, other = two_clients()
    published = downloaded(fg.APFL(exact=True, gamma=0.5, dim_primary=8), [one, other])
    gram, sums = totals(published.system, published.weights, 0.5)
    mine, theirs = (fg.Moments.of(published.primary(c.x), c.y, classes=3) for c in (one, other))
    np.testing.assert_allclose(gram - mine.gram, theirs.gram, atol=1e-12)
    np.testing.assert_allclose(sums - mine.cross, theirs.cross, atol=1e-12)
    assert downloaded(fg.APFL(dim_primary=8), [one, other]).system is None, "by default it is not sent"
    chosen = downloaded(fg.APFL(exact=True, dim_primary=8), [one, other])
    guesses = [totals(chosen.system, chosen.weights, gamma)[0] - mine.gram for gamma in GAMMAS]
    assert len(GAMMAS) == 29
    assert min(np.abs(guess - theirs.gram).max() for guess in guesses) < 1e-9


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(("settings", "ridge"), [({}, 0.0), ({"ri": False, "gamma": 2.0}, 4.0)])
def test_of_two_clients_weights_alone_give_each_the_others_gradient(settings, ridge, intercept):
    one, other = two_clients()
    single = fg.Client("single", other.x[:1], other.y[:1])
    for second in (other, single):
        model = downloaded(fg.AFL(intercept=intercept, **settings), [one, second])
        gradient, theirs = (c.x.T @ (np.eye(3)[c.y] - model.scores(c.x)) for c in (one, second))
        np.testing.assert_allclose(ridge * model.weights - gradient, theirs, atol=1e-9)
    assert abs(np.corrcoef(theirs[:, 0], single.x[0])[0, 1]) > 1 - 1e-9, "one sample, up to its scale"


def test_of_two_clients_fedgrams_counts_give_each_the_others_label_histogram():
    one, other = two_clients()
    head = downloaded(fg.FedGram(), [one, other])
    assert (head.counts - np.bincount(one.y, minlength=3)).tolist() == np.bincount(other.y, minlength=3).tolist()


def test_prototypes_that_come_down_are_the_others_where_one_has_none():
    data = datasets.digits()
    zeros, ones = (np.flatnonzero(data.y == label) for label in (0, 1))
    clients = as_clients(data.x, data.y, [zeros[:9], ones[:1]])
    received = []

    @dataclass(frozen=True, kw_only=True)
    class Watched(fg.FedProto):
        """FedProto, and the messages to its clients."""

        @fg.step(batched=True)
        def train(self, clients, worlds):
            received.extend(worlds)
            return super().train(clients, worlds)

    Watched(rounds=2, network="linear", predict="prototype").fit(clients, classes=10)
    np.testing.assert_allclose(received[-1]["prototypes"][1], data.x[ones[0]], rtol=1e-6)


def test_an_average_of_two_models_minus_ones_own_is_the_others():
    clients = checks.some_clients(2)
    method = fg.FedAvg(rounds=1, epochs=1, lr=0.1)
    room = Room(method, clients, InProcess())
    average = run(method, room, classes=10, seed=0, require="all", progress=None).model
    mine, theirs = (fg.FedAvg(rounds=1, epochs=1, lr=0.1).fit([c], classes=10).model for c in clients)
    n = [len(client.x) for client in clients]
    guess = (average.weights * sum(n) - mine.weights * n[0]) / n[1]
    np.testing.assert_allclose(guess, theirs.weights, atol=1e-5)


class Elsewhere(Room):
    """Clients that are not in the server's hands, as on any engine but the default: replies are sealed."""

    trusted = False

    def exchange(self, step, requests):
        for name, reply in super().exchange(step, requests):
            yield name, wire.encode(wire.decode(reply))


@pytest.mark.parametrize(
    ("method", "what"),
    [
        (fg.FedHiP(), "Gram matrix and class sums"),
        (fg.APFL(exact=True, dim_primary=8, dim_refine=8), "Gram matrix and class sums of random features"),
        (fg.FedGram(), "class counts"),
        (fg.FedLogit(rounds=1), "class counts"),
    ],
)
def test_the_server_warns_of_two_contributors(method, what):
    def fit(room, count):
        transport = room(method, checks.some_clients(count), InProcess())
        return run(method, transport, classes=10, seed=0, require="all", progress=None)

    with pytest.warns(Revealing, match=f"gives each of them the other's {what}: ask a third"):
        warned = fit(Elsewhere, 2)
    assert what in warned.report()["reveals"]
    for quiet in (fit(Elsewhere, 3), fit(Elsewhere, 1), fit(Room, 2)):
        assert quiet.report()["reveals"] is None


def group_moments(clients, *, lost=None, require="all", **settings):
    """Return pFedACnnL's moments for each client's choices, with a client lost after the first layer, and the fit."""
    received = {}

    @dataclass(frozen=True, kw_only=True)
    class Watched(fg.PFedACnnL):
        """pFedACnnL, and the messages to its clients."""

        @fg.step
        def summarize(self, client, task):
            if client.name == lost and client.round == 1:
                raise InvalidParameter("gone")
            return super().summarize(client, task)

        @fg.step
        def refit(self, client, task):
            received[client.name] = task["moments"]
            super().refit(client, task)

    fit = Watched(network="flatten dense:6", gamma=1.0, **settings).fit(clients, classes=3, require=require)
    return received, fit


def test_the_rest_of_a_group_of_two_is_the_other_one_so_it_is_not_sent():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 5)), rng.integers(0, 3, 80)
    four = as_clients(x, y, np.array_split(np.arange(80), 4))
    for clients in (four[:3], four):
        sent, _ = group_moments(clients, cluster=False)
        assert all(len(moments) == 2 for moments in sent.values())
    # A member of three can compute the sum of the two others.
    first = sent["client-0"][0].rows - fg.Moments.of(four[0].x, four[0].y, classes=3)
    np.testing.assert_allclose(first.gram, x[20:].T @ x[20:], atol=1e-9)
    empty = fg.Client("empty", np.zeros((0, 5)), np.zeros(0, dtype=int))
    for clients, lost in ((four[:2], None), ([*four[:2], empty], None), (four[:3], "client-2")):
        for settings in ({"cluster": False}, {"groups": 1}):
            sent, _ = group_moments(clients, lost=lost, require=2, **settings)
            assert sent == {"client-0": None, "client-1": None}
    sent, _ = group_moments(four[:2], lost="client-1", require=1, cluster=False)
    assert sent == {"client-0": None}, "its first layer's moments are of two"
    sent, _ = group_moments(four[:1], cluster=False)
    assert len(sent["client-0"]) == 2, "its own, which it knows"


def test_who_gets_no_moments_takes_the_papers_epsilon():
    rng = np.random.default_rng(0)
    clients = as_clients(rng.normal(size=(40, 5)), rng.integers(0, 3, 40), np.array_split(np.arange(40), 2))
    _, auto = group_moments(clients, cluster=False)
    _, fixed = group_moments(clients, cluster=False, epsilon=UNJUDGED)
    for name, model in fixed.personal.items():
        assert np.array_equal(auto.personal[name].scores(clients[0].x), model.scores(clients[0].x))

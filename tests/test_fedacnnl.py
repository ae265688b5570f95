"""FedACnnL and pFedACnnL are their printed equations, and the same for any partition, order and batch size."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedgram as fg
from fedgram.errors import ClientFailed, InvalidParameter, UnknownName
from fedgram.layerwise import Network, layer_moments
from fedgram.layerwise.personal import own_layer
from fedgram.methods.pfedacnnl import EPSILONS
from problems import as_clients, relative_error, seeds, spread_any_way

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


@settings(deadline=None, max_examples=30)
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


@dataclass(frozen=True, kw_only=True)
class Recorder(fg.FedACnnL):
    """Says it took as long as its name says, and keeps the batch sizes it was given."""

    @fg.step
    def summarize(self, client, task):
        client.state.setdefault("batches", []).append(int(task["batch"]))
        seconds = float(client.name) if client.round == 0 else 1.0
        return super().summarize(client, task) | {"seconds": np.array(seconds)}

    @fg.step
    def receive(self, client, model):
        client.data.batches.extend(client.state["batches"])


def batches(**settings_):
    rng = np.random.default_rng(0)
    clients = [fg.Client(name, rng.normal(size=(n, 4)), np.arange(n) % 2) for name, n in SLOWNESS.items()]
    for client in clients:
        object.__setattr__(client, "batches", [])
    Recorder(**settings_).fit(clients, classes=2)
    return {client.name: client.batches for client in clients}


SLOWNESS = {"2": 400, "3": 400, "5": 400, "40": 400, "6": 25}


def test_adaptive_batch_size():
    """(7): B_2 = ⌈T / min T · B_1⌉, at most the maximum and the client's samples; who has become quick stays so."""
    assert batches(batch=10, batch_max=150) == {
        "2": [10, 10, 10],
        "3": [10, 15, 15],
        "5": [10, 25, 25],
        "40": [10, 150, 150],
        "6": [10, 25, 25],
    }


def test_without_adaptive_batch_size():
    assert batches(batch=10, adaptive=False) == {name: [10, 10, 10] for name in SLOWNESS}


def personal_layers(meta, x, y, epsilon):
    """Yield Ŵ_l of (13) with pseudo labels encoded, each from inputs by the layers before it."""
    inputs = x
    for M, Q in zip(meta.weights, meta.encodings, strict=True):
        Z = np.eye(len(meta.classes))[y] @ (np.eye(len(meta.classes)) if Q is None else Q)
        W = np.linalg.solve(inputs.T @ inputs + epsilon * np.eye(len(M)), inputs.T @ Z + epsilon * M)
        yield W
        inputs = relu(inputs @ W)


@settings(deadline=None, max_examples=15)
@given(seeds, st.floats(-1, 4))
def test_personal_networks_against_a_direct_evaluation(seed, log_epsilon):
    rng = np.random.default_rng(seed)
    x, y, epsilon = rng.normal(size=(60, 5)), rng.integers(0, 3, 60), 10**log_epsilon
    parts = np.array_split(np.arange(60), 4)
    stack = "flatten dense:9 dense:4"
    method = fg.PFedACnnL(network=stack, gamma=3.0, epsilon=epsilon, cluster=False)
    fit = method.fit(as_clients(x, y, parts), classes=3)
    for got, want in zip(fit.model.weights, on_one_machine(stack, x, y, 3, fit.model.seed, 3.0), strict=True):
        assert relative_error(got, want) < 1e-8
    for k, part in enumerate(parts):
        want = personal_layers(fit.model, x[part], y[part], epsilon)
        for got, direct in zip(fit.personal[f"client-{k}"].weights, want, strict=True):
            assert relative_error(got, direct) < 1e-7


def two_kinds(rng, d=6):
    """Return eight clients of two kinds, each with its labels and its rule."""
    clients = []
    for k in range(8):
        labels = (0, 1) if k < 4 else (2, 3)
        y = rng.choice(labels, 30)
        clients.append(fg.Client(f"client-{k}", rng.normal(size=(30, d)) + np.eye(4, d)[y], y))
    return clients


def test_groups_train_among_themselves():
    """(8), (9), (11): the groups are those of the labels, and each meta-model is FedACnnL's of its group."""
    clients = two_kinds(np.random.default_rng(2))
    for count in (2, "auto"):
        method = fg.PFedACnnL(groups=count, personalize=False)
        fit = method.fit(clients, classes=4, seed=3)
        assert fit.model is None
        for group in (clients[:4], clients[4:]):
            x, y = (np.concatenate([getattr(client, name) for client in group]) for name in ("x", "y"))
            for client in group:
                network = fit.personal[client.name]
                want = on_one_machine(network.stack, x, y, 4, network.seed, 100.0)
                assert max(map(relative_error, network.weights, want)) < 1e-8


def test_encoded_histogram():
    """(8) takes the narrowest encoding, (9) encodes the normalised histogram; the paper prints Qy for Qᵀy."""
    from fedgram.methods.clientside import ClientSide

    side = ClientSide(fg.Client("a", np.zeros((4, 5)), [0, 2, 2, 2]))
    side.classes, side.y = (0, 1, 2), np.array([0, 2, 2, 2])
    Q = Network("dnn", (5,), side.classes, 7).encodings[1]
    assert Q.shape == (3, 64)
    mean = sum(Q.T @ np.eye(3)[label] for label in side.y) / 4  # (9), sample by sample
    np.testing.assert_allclose(fg.PFedACnnL().describe(side, 7), mean, atol=1e-12)
    np.testing.assert_allclose(fg.PFedACnnL(network="lr").describe(side, 7), [0.25, 0, 0.75])


def test_groups_of_one_client():
    """As many groups as clients: each meta-model is the client's own."""
    rng = np.random.default_rng(4)
    clients = [fg.Client(f"client-{k}", rng.normal(size=(20, 4)), np.arange(20) % (k + 2)) for k in range(4)]
    fit = fg.PFedACnnL(network="lr", groups=4, epsilon=5.0).fit(clients, classes=5)
    for client in clients:
        A, B = client.x.T @ client.x, client.x.T @ np.eye(5)[client.y]
        M = np.linalg.solve(A + 100 * np.eye(4), B)  # (11)
        W = np.linalg.solve(A + 5 * np.eye(4), B + 5 * M)  # (13)
        assert relative_error(fit.personal[client.name].weights[0], W) < 1e-9


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("network", ["lr", "dnn", "conv:3:2 flatten"])
def test_few_clients(count, network):
    """Where nobody else is left to judge by, the meta-model without the client is zero: no crash, a fair model."""
    rng = np.random.default_rng(5)
    x, y = images(rng, 90)
    clients = as_clients(x, y, np.array_split(np.arange(90), count))
    samples = [fg.Client(c.name, c.x if "conv" in network else c.x.reshape(len(c.x), -1), c.y) for c in clients]
    fit = fg.PFedACnnL(network=network, gamma=1.0).fit(samples, classes=3)
    correct = [np.mean(fit.personal[c.name].predict(c.x) == c.y) for c in samples]
    assert min(correct) > 0.6


def test_more_groups_than_clients():
    clients = two_kinds(np.random.default_rng(6))
    with pytest.raises(InvalidParameter, match="9 groups for 8 clients: give at most as many groups as clients"):
        fg.PFedACnnL(groups=9).fit(clients, classes=4)


@pytest.mark.parametrize("method", [fg.FedACnnL(), fg.PFedACnnL(), fg.PFedACnnL(epsilon=2500.0, groups=2)])
def test_an_empty_class(method):
    """A class that nobody has gets weights of zero everywhere, and changes no score of the others."""
    clients = two_kinds(np.random.default_rng(7))
    fit = method.fit(clients, classes=6)
    for network in filter(None, [fit.model, *fit.personal.values()]):
        scores = network.scores(clients[0].x)
        assert np.isfinite(scores).all()
        assert np.array_equal(network.weights[-1][:, 4:], np.zeros((64, 2)))


def test_auto_is_what_brute_force_chooses():
    """Per client and layer: the group's solution without the client, then each sample (or fold of images) left out."""
    rng = np.random.default_rng(8)
    x, y = images(rng, 80)
    stack = "conv:4:3 pool:2 flatten dense:7"
    parts = np.array_split(np.arange(80), 4)
    fit = fg.PFedACnnL(network=stack, gamma=1.0, cluster=False).fit(as_clients(x, y, parts), classes=3)
    for k, part in enumerate(parts):
        others = np.setdiff1d(np.arange(80), part)
        own, chosen = fit.model.truncate(0), []
        for depth, meta in enumerate(fit.model.solutions):
            # The rows of the others under the meta-model that they made together with this client.
            rest = layer_moments(fit.model.truncate(depth), x[others], y[others], batch=9)
            layer = own_layer(own, x[part], y[part], batch=9)
            epsilon = EPSILONS[layer.errors(rest.solve(1.0), EPSILONS).argmin()]
            own = own.extend(layer.solution(meta, epsilon))
            chosen.append(epsilon)
        for got, want in zip(fit.personal[f"client-{k}"].weights, own.weights, strict=True):
            assert relative_error(got, want) < 1e-6, chosen


def test_a_client_with_few_group_mates_joins_the_nearest():
    """With "auto", a client downloads its group's moments: in a group of two it could tell the other's."""
    clients = [*two_kinds(np.random.default_rng(9)), *two_kinds(np.random.default_rng(10))[:1]]
    odd = fg.Client("odd", np.random.default_rng(11).normal(size=(30, 6)), np.repeat([0, 2, 3], 10))
    clients = [*clients[:-1], odd]
    auto, fixed = (
        fg.PFedACnnL(groups=3, epsilon=epsilon, network="lr").fit(clients, classes=4, seed=1).traffic.by_client["odd"]
        for epsilon in ("auto", 2500.0)
    )
    assert auto["down"] > fixed["down"]
    alone = fg.PFedACnnL(groups=3, personalize=False, network="lr").fit(clients, classes=4, seed=1)
    own = np.linalg.solve(odd.x.T @ odd.x + 100 * np.eye(6), odd.x.T @ np.eye(4)[odd.y])
    assert relative_error(alone.personal["odd"].weights[0], own) < 1e-9
    joined = fg.PFedACnnL(groups=3, epsilon="auto", network="lr").fit(clients, classes=4, seed=1)
    pulled = joined.personal["odd"].weights[0]
    assert relative_error(pulled, own) > 0.01


def test_a_client_may_fail_in_the_middle():
    """With a quorum the others go on; the failing one is in nobody's later layers."""

    @dataclass(frozen=True, kw_only=True)
    class Leaves(fg.PFedACnnL):
        """One client goes after the first layer."""

        @fg.step
        def summarize(self, client, task):
            if client.name == "client-7" and client.round == 1:
                raise InvalidParameter("gone")
            return super().summarize(client, task)

    clients = two_kinds(np.random.default_rng(12))
    with pytest.raises(ClientFailed, match="client-7.*gone"):
        Leaves().fit(clients, classes=4)
    fit = Leaves().fit(clients, classes=4, require=7)
    assert sorted(fit.personal) == [f"client-{k}" for k in range(7)]
    assert "gone" in fit.absent["client-7"]


@pytest.mark.parametrize(
    ("method", "settings_", "error", "words"),
    [
        (fg.FedACnnL, {"gamma": -1.0}, InvalidParameter, "gamma must be a number ≥ 0"),
        (fg.FedACnnL, {"network": "dmn"}, UnknownName, "did you mean 'dnn'"),
        (fg.FedACnnL, {"batch": 0}, InvalidParameter, "batch must be from 1"),
        (fg.FedACnnL, {"batch": 512, "batch_max": 256}, InvalidParameter, "batch_max, 256; got 512"),
        (fg.PFedACnnL, {"epsilon": 0.0}, InvalidParameter, "epsilon must be a number > 0 or 'auto'"),
        (fg.PFedACnnL, {"epsilon": "best"}, InvalidParameter, "epsilon"),
        (fg.PFedACnnL, {"groups": 0}, InvalidParameter, "groups must be a number ≥ 1"),
        (fg.PFedACnnL, {"epsilonn": 1.0}, UnknownName, "did you mean 'epsilon'"),
    ],
)
def test_bad_hyperparameters_are_named(method, settings_, error, words):
    with pytest.raises(error, match=words):
        method(**settings_)


def test_digits_in_two_dimensions():
    """Real digits as images: a convolution, and what it learns is better than a line."""
    from fedgram.data import digits

    data = digits()
    parts = fg.partition.dirichlet(data.y, clients=20, alpha=0.3, seed=0)
    flat = fg.make_clients(data, parts, test_fraction=0.2, seed=0)
    deep = [fg.Client(c.name, c.x.reshape(-1, 8, 8), c.y, c.x_test.reshape(-1, 8, 8), c.y_test) for c in flat]
    network = "conv:32:3 pool:2 flatten"
    line = fg.FedACnnL(network="lr", gamma=1.0).fit(flat, classes=10).evaluation.pooled
    convolution = fg.FedACnnL(network=network, gamma=1.0).fit(deep, classes=10).evaluation.pooled
    own = fg.PFedACnnL(network=network, gamma=1.0).fit(deep, classes=10).evaluation.pooled
    assert line < convolution < own

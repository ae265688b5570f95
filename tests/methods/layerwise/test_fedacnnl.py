"""FedACnnL is its printed equations, and the same for any partition, order and batch size."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.core import wire
from fedgram.core.errors import FedgramError, InvalidParameter, UnknownName
from fedgram.engines.inprocess import Room
from fedgram.layerwise.layered_network import Network, label_encoding
from fedgram.methods.layerwise.fedacnnl import MOST_STEPS, PAPERS_GAMMA, STEP
from fedgram.protocol import session
from fedgram.protocol.transport import Spent
from support.campaign import examples
from support.problems import as_clients, relative_error, seeds, spread_any_way

# Convolutions that are solved for W and for the labels, and send products and sums.
STACKS = [
    "flatten",
    "flatten dense:9 dense:7:tanh",
    "conv:6:3:leaky_relu pool:2 conv:5:2 flatten dense:8",
    "conv:100:3 conv:4:3:tanh pool:2 conv:20:1 flatten",
]


def relu(z):
    return np.maximum(z, 0)


def images(rng, n, classes=3):
    """Return images that depend on their labels."""
    y = rng.integers(0, classes, n)
    return rng.normal(size=(n, 8, 7, 2)) + rng.normal(size=(classes, 8, 7, 2))[y], y


ACTIVATED = {"relu": relu, "tanh": np.tanh, "leaky_relu": lambda z: np.where(z > 0, z, 0.01 * z), "identity": np.array}


def patches(x, size):
    """Return all windows of images, image by image, line by line."""
    n, height, width, _ = x.shape
    return np.array([
        x[i, top : top + size, left : left + size].ravel()
        for i in range(n)
        for top in range(height - size + 1)
        for left in range(width - size + 1)
    ])  # fmt: skip


def pooled(x):
    return (x[:, :-1:2, :-1:2] + x[:, 1::2, :-1:2] + x[:, :-1:2, 1::2] + x[:, 1::2, 1::2]) / 4


def ridge(X, Z, gamma):
    return np.linalg.solve(X.T @ X + gamma * np.eye(X.shape[1]), X.T @ Z)  # (2)


def on_one_machine(stack, x, y, classes, seed, gamma, encoding):
    """Train by (1) and (2) on all samples at once, written out: patches and their encoded labels in two matrices."""
    weights, layer, Y = [], 0, np.eye(classes)[y]
    for word in [*stack.split(), f"dense:{classes}:identity"]:
        kind, *arguments = word.split(":")
        if kind == "flatten":
            x = x.reshape(len(x), -1)
        elif kind == "pool":
            x = pooled(x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2])
        else:
            layer, width, size = layer + 1, int(arguments[0]), int(arguments[1]) if kind == "conv" else 0
            activation = arguments[-1] if not arguments[-1].isdecimal() else "relu"
            X = patches(x, size) if kind == "conv" else x
            positions = len(X) // len(x)
            if activation == "identity":
                Z = Y
            else:  # Z̄_l = Y Q_l has the shape of the layer's output: a block of Q_l for each position
                own = 1 if encoding == "shared" else positions
                Q = label_encoding(seed, layer, classes, own, width).reshape(classes, own, width)
                Z = np.array([Q[label, p % own] for label in y for p in range(positions)])
            weights.append(ridge(X, Z, gamma))
            out = ACTIVATED[activation](X @ weights[-1])
            if kind == "conv":
                out = out.reshape(len(x), x.shape[1] - size + 1, x.shape[2] - size + 1, width)
            x = out
    return weights


@examples(30)
@given(
    seeds,
    st.sampled_from(STACKS),
    st.sampled_from([1, 2, 5, 40]),
    st.integers(1, 60),
    st.booleans(),
    st.sampled_from(["position", "shared"]),
)
def test_weights_are_those_of_the_pooled_data(seed, stack, clients, batch, adaptive, encoding):
    """The weight-invariant property: any partition, order and batch size."""
    rng = np.random.default_rng(seed)
    x, y = images(rng, 50)
    parts = spread_any_way(rng, 50, clients)
    rng.shuffle(parts)
    method = fg.FedACnnL(network=stack, gamma=1.0, batch=batch, adaptive=adaptive, encoding=encoding)
    network = method.fit(as_clients(x, y, parts), classes=3, seed=seed).model
    want = on_one_machine(stack, x, y, 3, network.seed, 1.0, encoding)
    assert [w.shape for w in network.weights] == [w.shape for w in want]
    for got, direct in zip(network.weights, want, strict=True):
        assert relative_error(got, direct) < 1e-8


def test_dnn_against_a_direct_evaluation():
    """(5) and the layers' inputs written out, without any class of ours."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 6)), rng.integers(0, 3, 90)
    network = fg.FedACnnL(gamma=2.0).fit(as_clients(x, y, np.array_split(np.arange(90), 4)), classes=3).model
    Q1, Q2 = (label_encoding(network.seed, layer, 3, 1, width) for layer, width in ((1, 128), (2, 64)))
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
    """An engine whose replies to the first layer take the seconds in their clients' names."""

    def exchange(self, step, requests):
        """Pass replies on, with the declared delays."""
        for number, (name, answer) in enumerate(super().exchange(step, requests)):
            if step == "summarize":
                self.rounds += number == 0
                seconds = float(name) if self.rounds == 1 else 1.0
                self.spent[name] = Spent(seconds / 2, seconds)
            yield name, answer

    rounds = 0


def batches(**settings_):
    """Return the batch sizes of clients whose names are the seconds of their replies to the first layer."""
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
    """(7): B_2 = ⌈T / min T · B_1⌉, at most the maximum and the client's samples; batches never shrink."""
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
    """A class without samples gets weights of zero, and never wins."""
    rng = np.random.default_rng(7)
    x, y = images(rng, 60)
    network = fg.FedACnnL(network=STACKS[2]).fit(as_clients(x, y, [np.arange(60)]), classes=5).model
    assert np.array_equal(network.weights[-1][:, 3:], np.zeros((8, 2)))
    assert np.isfinite(network.scores(x)).all()


@pytest.mark.parametrize(
    ("settings_", "error", "words"),
    [
        ({"gamma": -1.0}, InvalidParameter, "gamma: expected a number ≥ 0"),
        ({"network": "dmn"}, UnknownName, "did you mean 'dnn'"),
        ({"batch": 0}, InvalidParameter, "batch: expected a whole number ≥ 1"),
        ({"batch": 512, "batch_max": 256}, InvalidParameter, "batch_max, here 256, got 512"),
        ({"batch_max": "4096; a=100"}, InvalidParameter, "batch_max, here 4096; a=100, got 256"),
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


@pytest.mark.parametrize(
    "method",
    [
        fg.FedACnnL(network="conv:5:3 pool:2 conv:12:2 flatten", gamma=0.7, adaptive=False),
        fg.PFedACnnL(network="conv:5:3 pool:2 flatten dense:7", gamma=0.7, adaptive=False, epsilon=3.0, groups=2),
        fg.FedACnnL(network="conv:5:3 pool:2 conv:12:2 flatten", gamma="auto", adaptive=False),
    ],
    ids=["fedacnnl", "pfedacnnl", "auto"],
)
def test_an_interrupted_run_goes_on_after_its_last_layer(method, tmp_path):
    """Interrupted in every layer, a run ends like an uninterrupted one: same bits, bytes and curves, no file left."""
    rng = np.random.default_rng(0)
    x, y = images(rng, 120)
    clients = [fg.Client(f"c{k}", x[p], y[p], x[p], y[p]) for k, p in enumerate(np.array_split(np.arange(120), 6))]
    want, path, asked = method.fit(clients, classes=3), tmp_path / "run.checkpoint", []

    def interrupt(step, round, done, total):
        """Stop a run in its second layer after it was resumed."""
        if step in ("summarize", "summarize_halves", "refit") and done == 1:
            asked.append((step, round))
            if len(asked) > 1:
                raise KeyboardInterrupt

    rounds = 6 if method.gamma == "auto" else 3
    for _ in range(rounds - 1 if method.name == "fedacnnl" else rounds):
        asked.clear()
        with pytest.raises(KeyboardInterrupt):
            method.fit(clients, classes=3, engine=fg.InProcess(checkpoint=path), progress=interrupt)
        assert path.exists()
    asked.clear()
    got = method.fit(clients, classes=3, engine=fg.InProcess(checkpoint=path), progress=interrupt)
    assert not path.exists()
    assert got.traffic.by_client == want.traffic.by_client
    assert got.rounds == want.rounds
    assert got.notes == want.notes
    assert {name: spans["asked"] for name, spans in got.timing.items()} == dict.fromkeys(got.timing, rounds)
    assert got.contributors == want.contributors
    for name, model in want.personal.items():
        assert np.array_equal(got.personal[name].scores(x), model.scores(x))
    if want.model is not None:
        assert all(np.array_equal(a, b) for a, b in zip(got.model.solutions, want.model.solutions, strict=True))


@dataclass(frozen=True, kw_only=True)
class Halved(fg.FedACnnL):
    """FedACnnL that records the samples of each half."""

    def _gammas(self, clients, empty, saved):
        names = sorted(clients.names)
        halves = {names[i]: place % 2 for place, i in enumerate(clients.rng.permutation(len(names)))}
        clients.note("halves", {name: halves[name] for name in names})
        clients._rng = None  # drawn again
        return super()._gammas(clients, empty, saved)


@pytest.mark.parametrize("network", ["flatten dense:20", "conv:4:3 pool:2 conv:30:2 flatten"])
def test_gamma_is_chosen_by_the_error_for_clients_left_out_of_all_layers(network):
    """By plain loops: two networks of half of the clients each, and every γ judged by the other half."""
    rng = np.random.default_rng(2)
    x, y = images(rng, 150)
    parts = np.array_split(np.arange(150), 7)
    fit = Halved(network=network, gamma="auto").fit(as_clients(x, y, parts), classes=3)
    in_half = [
        np.concatenate([p for k, p in enumerate(parts) if fit.notes["halves"][f"client-{k}"] == h]) for h in (0, 1)
    ]
    gammas, grid = [], PAPERS_GAMMA * STEP ** np.arange(-MOST_STEPS, MOST_STEPS + 1)
    nets = [Network(network, x.shape[1:], (0, 1, 2), fit.model.seed)] * 2
    for _ in range(nets[0].depth):
        errors, solutions = np.zeros(len(grid)), []
        for h in (0, 1):
            problem, (own, others) = nets[h].next_problem, (in_half[h], in_half[1 - h])
            X, V = (problem.layer.rows(nets[h].forward(x[part])) for part in (own, others))
            Z, T = problem.targets(y[own]), problem.targets(y[others])
            solutions.append([ridge(X, Z, gamma) for gamma in grid])
            errors += [((V @ solution - T) ** 2).sum() for solution in solutions[-1]]
        best = int(errors.argmin())
        gammas.append(grid[best])
        nets = [nets[h].extend(solutions[h][best]) for h in (0, 1)]
    np.testing.assert_allclose(fit.notes["gamma"], gammas)
    assert len(set(gammas)) > 1
    # Then all clients train with these.
    assert {spans["asked"] for spans in fit.timing.values()} == {2 * nets[0].depth}
    few = fg.FedACnnL(network=network, gamma="auto").fit(as_clients(x, y, np.array_split(np.arange(150), 5)), classes=3)
    assert few.notes == {}, "one half would be two clients"
    untrained = Network(network, x.shape[1:], (0, 1, 2), fit.model.seed)
    layer = untrained.next_problem
    first = ridge(layer.layer.rows(untrained.forward(x)), layer.targets(y), gammas[0])
    assert relative_error(fit.model.solutions[0], first) < 1e-9


def test_auto_gamma_does_not_depend_on_the_order_of_clients():
    rng = np.random.default_rng(3)
    x, y = images(rng, 90)
    clients = as_clients(x, y, np.array_split(np.arange(90), 6))
    method = fg.FedACnnL(network="conv:6:3 flatten", gamma="auto", adaptive=False)
    one, other = (method.fit(some, classes=3) for some in (clients, clients[::-1]))
    assert one.notes == other.notes
    assert relative_error(one.model.weights[1], other.model.weights[1]) < 1e-9


def test_a_checkpoint_of_another_run_is_not_used(tmp_path):
    rng = np.random.default_rng(0)
    x, y = images(rng, 60)
    clients = as_clients(x, y, np.array_split(np.arange(60), 3))
    path = tmp_path / "run.checkpoint"

    def interrupt(step, round, done, total):
        if round == 1:
            raise KeyboardInterrupt

    def run(gamma, **options):
        method = fg.FedACnnL(network="conv:5:3 flatten", gamma=gamma, adaptive=False)
        return method.fit(clients, classes=3, engine=fg.InProcess(checkpoint=path), **options)

    with pytest.raises(KeyboardInterrupt):
        run(1.0, progress=interrupt)
    with pytest.warns(UserWarning, match="of another run"):
        other = run(2.0)
    assert (
        relative_error(
            other.model.weights[0], on_one_machine("conv:5:3 flatten", x, y, 3, other.model.seed, 2.0, "position")[0]
        )
        < 1e-9
    )
    for strange, words in ((b"half a file", "cannot be read"), (wire.encode([1, 2]), "of another run")):
        path.write_bytes(strange)
        with pytest.warns(UserWarning, match=words):
            run(2.0)
        assert not path.exists()
    with pytest.raises(KeyboardInterrupt):
        run(1.0, progress=interrupt)
    clients[1] = fg.Client(clients[1].name, clients[1].x + 1, clients[1].y)  # as many samples as before
    with pytest.warns(UserWarning, match="of another run"):
        run(1.0)
    path.write_bytes(b"a user's own file")
    alone = fg.Client("a", x.reshape(60, -1)[:, :5], y)
    fg.AFL().fit([alone], classes=3, engine=fg.InProcess(checkpoint=str(path)))
    assert path.read_bytes() == b"a user's own file"


def test_an_interrupted_run_keeps_its_groups_and_asks_for_enough_clients(tmp_path):
    """Also where a client that could not send its labels at first can do so when the run resumes."""
    rng, path, ill = np.random.default_rng(0), tmp_path / "run.checkpoint", [True]
    x, y = images(rng, 120)
    clients = as_clients(x, y, np.array_split(np.argsort(y), 8))

    @dataclass(frozen=True, kw_only=True)
    class Ill(fg.PFedACnnL):
        """One client cannot describe its labels while it is ill."""

        @fg.step
        def describe(self, client, seed):
            if ill[0] and client.name == "client-0":
                raise InvalidParameter("ill")
            return super().describe(client, seed)

    def interrupt(step, round, done, total):
        if step == "summarize" and round == 1:
            raise KeyboardInterrupt

    def run(require, **options):
        method = Ill(network="flatten dense:5", gamma=1.0, epsilon=3.0, groups=3, adaptive=False)
        return method.fit(clients, classes=3, engine=fg.InProcess(checkpoint=path), require=require, **options)

    want = run(7)
    with pytest.raises(KeyboardInterrupt):
        run(7, progress=interrupt)
    ill[0] = False
    with pytest.raises(FedgramError, match="resuming"):
        run("all")
    got = run(7)
    assert got.absent.keys() == want.absent.keys() == {"client-0"}
    for name, model in want.personal.items():
        assert np.array_equal(got.personal[name].scores(x), model.scores(x))


def test_a_reply_with_sums_that_no_samples_have_is_refused_by_name():
    @dataclass(frozen=True, kw_only=True)
    class Liar(fg.FedACnnL):
        """One client sends other sums than its own."""

        @fg.step
        def summarize(self, client, task):
            reply = super().summarize(client, task)
            return replace(reply, inputs=1e6 * reply.inputs) if client.name == "client-1" else reply

    x, y = images(np.random.default_rng(0), 60)
    clients = as_clients(x, y, np.array_split(np.arange(60), 3))
    with pytest.raises(FedgramError, match="client-1.*inputs: expected sums"):
        Liar(network="conv:100:3 flatten", gamma=1.0).fit(clients, classes=3)

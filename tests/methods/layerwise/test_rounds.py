"""Reports after each layer: the current network, evaluated by clients, at no cost to the method."""

import numpy as np
import pytest

import fedgram as fg
from fedgram.layerwise import NetworkSoFar
from fedgram.layerwise.layered_network import label_encoding
from support.problems import as_clients

CONVOLUTIONS = "conv:6:3:leaky_relu pool:2 conv:5:2 flatten dense:8"


@pytest.mark.parametrize(
    ("stack", "shorter"), [("dense:9 dense:7:tanh", ["", "dense:9"]), ("dense:20", [""]), ("", [])]
)
def test_rounds_are_reported_as_networks_of_the_layers_so_far(stack, shorter):
    """After l rounds there is a network of l layers, the same as if no more had been asked for; the last is the fit."""
    rng = np.random.default_rng(3)
    centres = rng.normal(size=(4, 6))
    clients = []
    for k in range(5):
        y = rng.integers(0, 4, 80)
        x = centres[y] + rng.normal(size=(80, 6))
        clients.append(fg.Client(f"c{k}", x[:40], y[:40], x[40:], y[40:]))
    fit = fg.FedACnnL(network=f"flatten {stack}", gamma=1.0, adaptive=False).fit(clients, classes=4, seed=1)
    alone = [
        fg.FedACnnL(network=f"flatten {rest}", gamma=1.0, adaptive=False).fit(clients, classes=4, seed=1)
        for rest in shorter
    ]
    assert fit.rounds == [*(one.evaluation for one in alone), fit.evaluation]
    assert min(report.pooled for report in fit.rounds) > 0.5
    counts = {tuple(report.correct.values()) for report in fit.rounds}
    assert len(counts) == len(fit.rounds)  # else the test could not tell the rounds apart


@pytest.mark.parametrize("encoding", ["position", "shared"])
def test_rounds_of_convolutions_decode_their_output(encoding):
    """Scores are the layer's real output times the pseudo-inverse of the encoding that it was solved for."""
    rng = np.random.default_rng(5)
    y = rng.integers(0, 3, 60)
    x = rng.normal(size=(60, 8, 7, 2)) + rng.normal(size=(3, 8, 7, 2))[y]
    method = fg.FedACnnL(network=CONVOLUTIONS, gamma=1.0, encoding=encoding)
    network = method.fit(as_clients(x, y, [np.arange(60)]), classes=3).model
    for depth in (1, 2):
        below, problem = network.truncate(depth - 1), network.problem(depth - 1)
        output = problem.layer.rows(below.forward(x)) @ network.weights[depth - 1]
        positions, width = len(output) // 60, problem.layer.width
        own = positions if encoding == "position" else 1
        Q = label_encoding(network.seed, depth, 3, own, width).reshape(3, own, width)
        Q = np.broadcast_to(Q, (3, positions, width)).reshape(3, positions * width)
        want = output.reshape(60, positions * width) @ np.linalg.pinv(Q)
        np.testing.assert_allclose(NetworkSoFar.of(network.truncate(depth)).scores(x), want, atol=1e-9)
    np.testing.assert_allclose(NetworkSoFar.of(network).scores(x), network.scores(x), atol=1e-10)


def test_rounds_cost_the_method_nothing():
    """Bytes are those of clients that have nothing to test with."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(60, 5)), rng.integers(0, 3, 60)
    parts = np.array_split(np.arange(60), 3)
    testing = [fg.Client(f"c{k}", x[part], y[part], x[part], y[part]) for k, part in enumerate(parts)]
    without = [fg.Client(f"c{k}", x[part], y[part]) for k, part in enumerate(parts)]
    method = fg.FedACnnL(adaptive=False)
    one, other = (method.fit(clients, classes=3) for clients in (testing, without))
    assert len(one.rounds) == 3
    assert not other.rounds
    # All but hello, which has the number of test samples.
    sizes = [sum(account["up"] for account in fit.traffic.by_client.values()) for fit in (one, other)]
    assert abs(sizes[0] - sizes[1]) < 30 * len(parts)
    assert one.traffic.down == other.traffic.down


def test_rounds_are_judged_group_by_group():
    """After each layer a client judges its own group's network; at last its personal one."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2, 3], 60)
    x = rng.normal(size=(240, 6)) + np.eye(6)[y]
    halves = [rng.permutation(120), 120 + rng.permutation(120)]  # half of the clients see two classes, half the others
    parts = [part for half in halves for part in np.split(half, 4)]
    clients = [fg.Client(f"c{k}", x[part], y[part], x[part], y[part]) for k, part in enumerate(parts)]
    fit = fg.PFedACnnL(network="flatten dense:8 dense:6", gamma=1.0, groups=2, epsilon=5.0).fit(clients, classes=4)
    assert len(fit.rounds) == 4
    assert fit.rounds[-1] == fit.evaluation
    # One layer: least squares on the samples of those who have the same two classes.
    for half in (clients[:4], clients[4:]):
        model = fg.Moments.sum(fg.Moments.of(c.x, c.y, classes=4) for c in half).model(1.0, intercept=False)
        for client in half:
            right = int((model.predict(client.x) == client.y).sum())
            assert fit.rounds[0].correct[client.name] == right

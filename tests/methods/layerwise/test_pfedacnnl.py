"""pFedACnnL: every equation against a direct evaluation, its variants, and groups of any kind."""

import sys
from dataclasses import dataclass
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.core.errors import ClientFailed, InvalidParameter, MissingExtra
from fedgram.heads.least_squares import calibrated
from fedgram.layerwise import layer_moments
from fedgram.layerwise.layered_network import label_encoding
from fedgram.methods.layerwise.pfedacnnl import EPSILONS, judge, own_layer, personalized
from fedgram.protocol.clientside import ClientSide
from support.campaign import examples
from support.problems import as_clients, features, redistributions, relative_error, seeds

DNN = "flatten dense:8 dense:6"


def two_kinds(rng, n=240, clients=8):
    """Return clients, half with classes 0 and 1 and half with classes 2 and 3."""
    y = np.concatenate([rng.integers(0, 2, n // 2), rng.integers(2, 4, n // 2)])
    return features(rng, n, 6) + np.eye(6)[y], y, np.array_split(np.arange(n), clients)


def relu(z):
    return np.maximum(z, 0)


def solve_layer(X, Y, G, epsilon):
    return np.linalg.solve(X.T @ X + epsilon * np.eye(X.shape[1]), X.T @ Y + epsilon * G)


@examples(10)
@given(seeds)
def test_equals_the_printed_equations(seed):
    """(11) per group, then (12) and (13) layer by layer, each on its own inputs."""
    rng = np.random.default_rng(seed)
    x, y, parts = two_kinds(rng)
    Y, gamma, epsilon = np.eye(4)[y], 3.0, 20.0
    method = fg.PFedACnnL(network=DNN, gamma=gamma, epsilon=epsilon, groups=2)
    fit = method.fit(as_clients(x, y, parts), classes=4)
    assert fit.model is None
    for k, part in enumerate(parts):
        personal = fit.personal[f"client-{k}"]
        group = np.concatenate(parts[:4] if k < 4 else parts[4:])
        meta, own = x[group], x[part]
        for number, width in enumerate((8, 6, None), start=1):
            Q = np.eye(4) if width is None else label_encoding(personal.seed, number, 4, 1, width)
            M = np.linalg.solve(meta.T @ meta + gamma * np.eye(meta.shape[1]), meta.T @ Y[group] @ Q)  # (11)
            W = np.linalg.solve(own.T @ own + epsilon * np.eye(own.shape[1]), own.T @ Y[part] @ Q + epsilon * M)  # (13)
            assert relative_error(personal.weights[number - 1], W) < 1e-6
            meta, own = np.maximum(meta @ M, 0), np.maximum(own @ W, 0)


@examples(8)
@given(seeds, st.sampled_from([4, 40]))
def test_personal_convolutions_equal_the_printed_equations(seed, width):
    """(11), (12) and (13) with Z̄ of the shape of the layer's output: an encoding for each of the 12 positions."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, 60)
    x = rng.normal(size=(60, 5, 4, 2)) + rng.normal(size=(3, 5, 4, 2))[y]
    parts, gamma, epsilon = np.array_split(np.arange(60), 4), 0.5, 4.0
    method = fg.PFedACnnL(network=f"conv:{width}:2 flatten", gamma=gamma, epsilon=epsilon, cluster=False)
    fit = method.fit(as_clients(x, y, parts), classes=3)
    Q = label_encoding(fit.model.seed, 1, 3, 12, width).reshape(3, 12, width)

    def rows(images):
        windows = np.lib.stride_tricks.sliding_window_view(images, (2, 2), axis=(1, 2))
        return windows.transpose(0, 1, 2, 4, 5, 3).reshape(12 * len(images), 8)

    def personal(X, Z, M, epsilon):
        return np.linalg.solve(X.T @ X + epsilon * np.eye(X.shape[1]), X.T @ Z + epsilon * M)

    M1 = personal(rows(x), Q[y].reshape(-1, width), 0, gamma)
    M2 = personal(relu(rows(x) @ M1).reshape(60, -1), np.eye(3)[y], 0, gamma)
    for k, part in enumerate(parts):
        W1 = personal(rows(x[part]), Q[y[part]].reshape(-1, width), M1, epsilon)
        W2 = personal(relu(rows(x[part]) @ W1).reshape(len(part), -1), np.eye(3)[y[part]], M2, epsilon)
        for got, want in zip(fit.personal[f"client-{k}"].weights, (W1, W2), strict=True):
            assert relative_error(got, want) < 1e-8


@examples(8)
@given(seeds)
def test_personal_models_do_not_depend_on_how_others_hold_their_data(seed):
    rng = np.random.default_rng(seed)
    x, y = features(rng, 90, 5), rng.integers(0, 3, 90)
    method = fg.PFedACnnL(network=DNN, gamma=1.0, epsilon=5.0, cluster=False)
    one, other = (
        method.fit(clients, classes=3).personal["k"].scores(x)
        for clients in redistributions(rng, x, y, np.arange(20), (2, 7))
    )
    np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-8)


def test_auto_is_judged_without_the_clients_own_moments():
    """By brute force: refit the group without the client, then leave out its samples one by one."""
    rng = np.random.default_rng(1)
    x, y = features(rng, 60, 5), rng.integers(0, 3, 60)
    parts, Y, gamma = np.array_split(np.arange(60), 4), np.eye(3)[y], 2.0
    fit = fg.PFedACnnL(network="lr", gamma=gamma, cluster=False).fit(as_clients(x, y, parts), classes=3)
    G = np.linalg.solve(x.T @ x + gamma * np.eye(5), x.T @ Y)
    for k, part in enumerate(parts):
        rest = np.setdiff1d(np.arange(60), part)
        without = np.linalg.solve(x[rest].T @ x[rest] + gamma * np.eye(5), x[rest].T @ Y[rest])

        def error(epsilon, part=part, without=without):
            left = [np.setdiff1d(part, [i]) for i in part]
            return sum(
                ((Y[i] - x[i] @ solve_layer(x[others], Y[others], without, epsilon)) ** 2).sum()
                for i, others in zip(part, left, strict=True)
            )

        best = min(EPSILONS, key=error)
        want = solve_layer(x[part], Y[part], G, best)
        np.testing.assert_allclose(fit.personal[f"client-{k}"].weights[0], want, atol=1e-9)


def judged_by_hand(meta, others, x, y):
    """Return each layer's ε as `judge` should, by plain loops: candidates, then folds."""
    candidates, likelihoods = [], []
    for first in (meta.depth - 1, 0, None):
        own, epsilons = meta.truncate(first or 0), [inf] * (first or 0)
        for depth in range(first or 0, meta.depth):
            layer = own_layer(own, x, y, batch=9)
            best = EPSILONS[layer.errors(others[depth], EPSILONS).argmin()]
            epsilons.append(2500.0 if first is None else best)
            own = own.extend(layer.solution(meta.solutions[depth], epsilons[-1]))
        candidates.append(epsilons)
        scores = np.empty((len(x), 3))
        for fold in range(5):
            out = np.arange(len(x)) % 5 == fold
            scores[out] = personalized(meta, x[~out], y[~out], epsilons, towards=others, batch=9).scores(x[out])
        likelihoods.append(calibrated(scores, y, meta.temperature).log_likelihood)
    best = np.argmax(likelihoods)
    return candidates[best] if likelihoods[best] > likelihoods[0] + 1 else candidates[0]


def test_auto_for_deep_networks():
    """Each layer's ε, and the choice to personalize hidden layers, depend on the others' knowledge."""
    rng = np.random.default_rng(8)
    y = rng.integers(0, 3, 160)
    x = rng.normal(size=(160, 8, 7, 2)) + rng.normal(size=(3, 8, 7, 2))[y]
    parts, chosen = np.split(np.arange(160), [20, 40, 100]), []
    method = fg.PFedACnnL(network="conv:4:3 pool:2 flatten dense:7", gamma=1.0, cluster=False)
    fit = method.fit(as_clients(x, y, parts), classes=3)
    for k, part in enumerate(parts):
        rest = np.setdiff1d(np.arange(160), part)
        networks = [fit.model.truncate(depth) for depth in range(3)]
        others = [
            layer_moments(network, x[rest], y[rest], batch=9).solve(network.next_problem, 1.0) for network in networks
        ]
        chosen.append(judged_by_hand(fit.model, others, x[part], y[part]))
        assert judge(fit.model, others, x[part], y[part], batch=9) == chosen[-1]
        want = personalized(fit.model, x[part], y[part], chosen[-1], batch=9)
        for got, direct in zip(fit.personal[f"client-{k}"].weights, want.weights, strict=True):
            assert relative_error(got, direct) < 1e-6
    assert any(inf in epsilons for epsilons in chosen)


def test_hidden_layers_stay_where_personalizing_them_would_hurt():
    """A rule that all clients share, and few samples of each: the meta-model's hidden layers are the better ones."""
    rng = np.random.default_rng(3)
    y = rng.integers(0, 3, 600)
    x = rng.normal(size=(600, 20)) + 1.5 * rng.normal(size=(3, 20))[y]
    clients = [
        fg.Client(f"client-{k}", x[part[:12]], y[part[:12]], x[part[12:]], y[part[12:]])
        for k, part in enumerate(np.split(rng.permutation(600), 10))
    ]
    common = {"network": "flatten dense:30 dense:30", "gamma": 0.01, "cluster": False}
    auto = fg.PFedACnnL(**common).fit(clients, classes=3)
    meta = fg.PFedACnnL(personalize=False, **common).fit(clients, classes=3)
    kept = [np.array_equal(network.weights[0], auto.model.weights[0]) for network in auto.personal.values()]
    assert np.mean(kept) > 0.5
    assert auto.evaluation.pooled > meta.evaluation.pooled - 0.02


def test_what_clients_tell_of_their_labels():
    """(8) and (9): the narrowest encoding of the normalised histogram; without hidden layers, the histogram itself."""
    side = ClientSide(fg.Client("a", np.ones((4, 3)), [0, 0, 1, 2]))
    side._agree((0, 1, 2))
    histogram = np.array([0.5, 0.25, 0.25])
    assert np.array_equal(fg.PFedACnnL(network="lr").describe(side, 7), histogram)
    encoded = fg.PFedACnnL(network="flatten dense:9 dense:2 dense:5").describe(side, 7)
    np.testing.assert_allclose(encoded, label_encoding(7, 2, 3, 1, 2).T @ histogram)


def test_groups_are_found_by_themselves():
    rng = np.random.default_rng(0)
    x, y, parts = two_kinds(rng)
    clients = as_clients(x, y, parts)
    auto = fg.PFedACnnL(network="lr", epsilon=5.0, gamma=1.0, groups="auto").fit(clients, classes=4)
    told = fg.PFedACnnL(network="lr", epsilon=5.0, gamma=1.0, groups=2).fit(clients, classes=4)
    for name, model in auto.personal.items():
        assert np.array_equal(model.weights[0], told.personal[name].weights[0])


def test_variants():
    rng = np.random.default_rng(0)
    x, y, parts = two_kinds(rng)
    clients = as_clients(x, y, parts)
    common = {"network": DNN, "gamma": 1.0}
    everyone = fg.FedACnnL(**common).fit(clients, classes=4)
    plain = fg.PFedACnnL(cluster=False, personalize=False, **common).fit(clients, classes=4)
    default = fg.PFedACnnL(personalize=False, **common).fit(clients, classes=4)
    assert np.array_equal(default.model.scores(x), plain.model.scores(x)), "one group is the default"
    # The two draw different encodings, since random numbers belong to a method; the first layer's solution has none.
    np.testing.assert_allclose(plain.model.solutions[0], everyone.model.solutions[0], atol=1e-12)
    assert all(np.array_equal(m.scores(x), plain.model.scores(x)) for m in plain.personal.values())
    grouped = fg.PFedACnnL(groups=2, personalize=False, **common).fit(clients, classes=4)
    first, last = grouped.personal["client-0"], grouped.personal["client-7"]
    assert np.array_equal(first.scores(x), grouped.personal["client-3"].scores(x))
    assert not np.allclose(first.scores(x), last.scores(x))
    far = fg.PFedACnnL(groups=2, epsilon=1e12, **common).fit(clients, classes=4)
    np.testing.assert_allclose(far.personal["client-0"].scores(x), first.scores(x), atol=1e-6)


def test_groups_of_one_client():
    rng = np.random.default_rng(0)
    x, y, parts = two_kinds(rng, clients=4)
    clients = as_clients(x, y, parts)
    alone = fg.PFedACnnL(network="lr", gamma=1.0, epsilon=5.0, groups=4).fit(clients, classes=4)
    for k, part in enumerate(parts):
        Y = np.eye(4)[y[part]]
        M = solve_layer(x[part], Y, np.zeros((6, 4)), 1.0)
        want = solve_layer(x[part], Y, M, 5.0)
        np.testing.assert_allclose(alone.personal[f"client-{k}"].weights[0], want, atol=1e-9)
    # No client alone could judge: all become one group, and get its model.
    judged = fg.PFedACnnL(network="lr", gamma=1.0, groups=4).fit(clients, classes=4)
    assert judged.model is not None


def test_a_single_client_with_a_single_sample():
    fit = fg.PFedACnnL(network=DNN, gamma=1.0).fit([fg.Client("only", np.ones((1, 3)), [1])], classes=2)
    assert fit.personal["only"].predict(np.ones((1, 3))).tolist() == [1]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("network", ["lr", "dnn", "conv:3:2 flatten"])
def test_few_clients(count, network):
    """Without other clients the meta-model without the client is zero: no crash, a fair model."""
    rng = np.random.default_rng(5)
    y = rng.integers(0, 3, 90)
    x = rng.normal(size=(90, 8, 7, 2)) + rng.normal(size=(3, 8, 7, 2))[y]
    clients = as_clients(x, y, np.array_split(np.arange(90), count))
    samples = [fg.Client(c.name, c.x if "conv" in network else c.x.reshape(len(c.x), -1), c.y) for c in clients]
    fit = fg.PFedACnnL(network=network, gamma=1.0, groups="auto").fit(samples, classes=3)
    correct = [np.mean(fit.personal[c.name].predict(c.x) == c.y) for c in samples]
    assert min(correct) > 0.6


def test_a_client_may_fail_in_the_middle():
    """With a quorum the others go on; the failed client is not in later layers."""

    @dataclass(frozen=True, kw_only=True)
    class Leaves(fg.PFedACnnL):
        """One client goes after the first layer."""

        @fg.step
        def summarize(self, client, task):
            if client.name == "client-7" and client.round == 1:
                raise InvalidParameter("gone")
            return super().summarize(client, task)

    clients = as_clients(*two_kinds(np.random.default_rng(12)))
    with pytest.raises(ClientFailed, match="client-7.*gone"):
        Leaves(groups="auto").fit(clients, classes=4)
    fit = Leaves(groups="auto").fit(clients, classes=4, require=7)
    assert sorted(fit.personal) == [f"client-{k}" for k in range(7)]
    assert "gone" in fit.lost["client-7"]


def test_empty_class():
    rng = np.random.default_rng(0)
    x, y, parts = two_kinds(rng)
    fit = fg.PFedACnnL(network="lr", gamma=1.0, groups="auto").fit(as_clients(x, y, parts), classes=5)
    for model in fit.personal.values():
        assert np.array_equal(model.weights[0][:, 4], np.zeros(6))


def test_more_groups_than_clients():
    clients = [fg.Client(f"c{k}", np.eye(3), [0, 1, k]) for k in range(2)]
    with pytest.raises(InvalidParameter, match="5 groups for 2 clients: give at most"):
        fg.PFedACnnL(groups=5).fit(clients, classes=2)


def test_only_auto_downloads_moments():
    rng = np.random.default_rng(0)
    x, y = features(rng, 200, 40), rng.integers(0, 2, 200)
    clients = as_clients(x, y, np.array_split(np.arange(200), 4))
    fits = [
        fg.PFedACnnL(network="lr", epsilon=epsilon, cluster=False).fit(clients, classes=2) for epsilon in (5.0, "auto")
    ]
    fixed, auto = (fit.traffic.down / 4 for fit in fits)
    triangle = 40 * 41 / 2 * 8
    assert fixed < triangle < auto - fixed < triangle + 40 * 2 * 8 + 1000


def test_convolutions_personalize():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 120)
    x = rng.normal(size=(120, 8, 8, 1)) + np.eye(3)[y][:, None, :, None].repeat(8, 1).repeat(3, 2)[:, :, :8]
    clients = [
        fg.Client(f"c{k}", x[part[:20]], y[part[:20]], x[part[20:]], y[part[20:]])
        for k, part in enumerate(np.array_split(np.arange(120), 4))
    ]
    fit = fg.PFedACnnL(network="conv:6:3 pool:2 flatten", gamma=1.0).fit(clients, classes=3)
    assert fit.evaluation.pooled > 0.6


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    clients = [fg.Client(f"c{k}", np.eye(3), [0, 1, k % 2]) for k in range(6)]
    with pytest.raises(MissingExtra, match="pip install 'fedgram\\[sklearn\\]'"):
        fg.PFedACnnL(groups=2).fit(clients, classes=2)
    assert fg.PFedACnnL(cluster=False).fit(clients, classes=2).personal


@pytest.mark.parametrize("settings_", [{"epsilon": 0.0}, {"epsilon": "best"}, {"groups": 0}, {"groups": 2.5}])
def test_bad_hyperparameters(settings_):
    with pytest.raises(InvalidParameter):
        fg.PFedACnnL(**settings_)

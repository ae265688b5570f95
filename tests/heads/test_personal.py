"""A client's own model: what it believes of the head, and when its own samples count."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.heads.adapt import correction, own_ridge
from fedgram.heads.head import Head
from fedgram.heads.personal import personal_model
from support.campaign import examples
from support.problems import as_clients, features, log_likelihood, relative_error

seeds = st.integers(0, 2**32 - 1)


@examples(20)
@given(seeds, st.integers(2, 30), st.integers(1, 40), st.booleans())
def test_own_regression_equals_refitting_without_each_sample(seed, n, d, intercept):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(n, d)) + 3, np.eye(3)[rng.integers(0, 3, n)]
    own = own_ridge(x, y, intercept=intercept)

    def ridge(rows, targets):
        center, mean = (part.mean(axis=0) * intercept for part in (rows, targets))
        gram = (rows - center).T @ (rows - center) + own.ridge * np.eye(d)
        weights = np.linalg.solve(gram, (rows - center).T @ (targets - mean))
        return weights, mean - center @ weights

    weights, offset = ridge(x, y)
    np.testing.assert_allclose(own.weights, weights, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(own.intercept, offset, rtol=1e-5, atol=1e-7)
    for i in range(n):
        weights, offset = ridge(np.delete(x, i, axis=0), np.delete(y, i, axis=0))
        np.testing.assert_allclose(own.left_out[i], x[i] @ weights + offset, rtol=1e-4, atol=1e-6)


def test_nothing_is_learned_from_one_sample_or_from_what_never_varies():
    assert own_ridge(np.ones((1, 3)), np.eye(2)[[0]], intercept=True) is None
    assert own_ridge(np.ones((5, 3)), np.eye(2)[[0, 1, 0, 1, 0]], intercept=True) is None


def made(rng, n, d, classes=4, noise=1.0):
    y = np.arange(n) % classes
    return features(rng, classes, d)[y] + noise * rng.normal(size=(n, d)), y


@pytest.mark.parametrize("method", [fg.FedGram(refine=False), fg.FedLogit(refine=False, rounds=40)])
def test_left_out_scores_are_as_good_as_on_new_samples(method):
    """With half as many features as samples the head's scores of its own samples promise far too much."""
    rng = np.random.default_rng(0)
    x, y = made(rng, 1200, 100, noise=0.7)
    head = method.fit(as_clients(x[:200], y[:200], [np.arange(100), np.arange(100, 200)]), classes=4).published
    scores = x @ head.weights + head.intercept
    seen, new = log_likelihood(scores[:200], y[:200]) / 200, log_likelihood(scores[200:], y[200:]) / 1000
    left_out = log_likelihood(head.left_out_scores(scores[:200], y[:200]), y[:200]) / 200
    assert abs(left_out - new) < 0.4 * (seen - new)


def test_a_newcomer_has_not_been_seen():
    """The head owes nothing to it, so nothing is taken back from its scores."""
    rng = np.random.default_rng(1)
    x, y = made(rng, 300, 60)
    head = Head.of_gaussians(fg.Moments.of(x[:200], y[:200], classes=4), 0.1)
    member, newcomer = (personal_model(head, x[200:], y[200:], temperature=0.5, member=m) for m in (True, False))
    assert np.abs(member.weights).max() < np.abs(newcomer.weights).max()


def test_clients_with_features_of_their_own_rely_on_themselves():
    """Every client has its own directions: the head is of little use, and nobody does worse than alone."""
    rng = np.random.default_rng(2)
    means, clients = features(rng, 4, 30), []
    for k in range(6):
        turn, _ = np.linalg.qr(rng.normal(size=(30, 30)))
        y = np.arange(240) % 4
        x = (means[y] + 0.8 * rng.normal(size=(240, 30))) @ turn
        clients.append(fg.Client(f"client-{k}", x[:120], y[:120], x[120:], y[120:]))
    alone = fg.Local().fit(clients, classes=4).evaluation.client_mean
    for method in (fg.FedGram(), fg.FedLogit()):
        plain = type(method)(refine=False).fit(clients, classes=4).evaluation.client_mean
        ours = method.fit(clients, classes=4).evaluation.client_mean
        assert ours > plain + 0.1, method
        assert ours > alone - 0.02, method


@pytest.mark.parametrize("n", [6, 40])
@pytest.mark.parametrize("alpha", [1e14, 1e30])
def test_samples_that_count_for_everything_leave_the_rest_as_it_was(n, alpha):
    """With equal samples and hardly any ridge: the least change that fits them, by few samples or by many."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 20)) @ np.diag(np.arange(20) < 12)
    x[1::2] = x[::2]
    residual = np.repeat(rng.normal(size=(n // 2, 3)), 2, axis=0)
    want = np.linalg.lstsq(x, residual, rcond=1e-9)[0]
    assert relative_error(correction(x.T.copy(), residual, alpha), want) < 1e-9

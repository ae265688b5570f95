"""A client's own model: its trust in the head, and the use of its own samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.heads.adapt import correction, own_ridge
from fedgram.heads.head import NEVER, UNSEEN, UNSEEN_SHARE, UNSEEN_SHARE_OF_ONE, Head, personal_model
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
    """With half as many features as samples the head's scores of its own samples are far too high."""
    rng = np.random.default_rng(0)
    x, y = made(rng, 1200, 100, noise=0.7)
    head = method.fit(as_clients(x[:200], y[:200], [np.arange(100), np.arange(100, 200)]), classes=4).published
    scores = x @ head.weights + head.intercept
    seen, new = log_likelihood(scores[:200], y[:200]) / 200, log_likelihood(scores[200:], y[200:]) / 1000
    left_out = log_likelihood(head.left_out_scores(scores[:200], y[:200]), y[:200]) / 200
    assert abs(left_out - new) < 0.4 * (seen - new)


def test_a_logistic_sample_has_the_mean_leverage_less_what_its_own_weight_takes():
    rng = np.random.default_rng(3)
    x, y = made(rng, 60, 8)
    head = fg.FedLogit().fit(as_clients(x, y, [np.arange(30), np.arange(30, 60)]), classes=4).published
    scores, h = x @ head.weights + head.intercept, head.leverage
    assert h > 0
    for score, label, left_out in zip(scores, y, head.left_out_scores(scores, y), strict=True):
        p = np.exp(score + np.log(head.counts / 60))
        p /= p.sum()
        w = p[label] * (1 - p[label])
        np.testing.assert_allclose(left_out, score - h / (1 + w * h) * (np.eye(4)[label] - p), rtol=1e-9, atol=1e-9)


def test_a_newcomer_has_not_been_seen():
    """The head was fitted without it, so its scores are not corrected."""
    rng = np.random.default_rng(1)
    x, y = made(rng, 300, 60)
    head = Head.of_gaussians(fg.Moments.of(x[:200], y[:200], classes=4), 0.1)
    member, newcomer = (personal_model(head, x[200:], y[200:], temperature=0.5, member=m).model for m in (True, False))
    assert np.abs(member.weights).max() < np.abs(newcomer.weights).max()


def test_clients_with_features_of_their_own_rely_on_themselves():
    """Every client has its own directions: the head is of little use, and no client is worse than alone."""
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


@examples(50)
@given(
    st.lists(st.integers(0, 300), min_size=2, max_size=12).filter(any),
    st.lists(st.integers(0, 5000), min_size=12, max_size=12),
    st.floats(0.03, 10.0),
)
def test_what_a_client_has_never_seen_stays_possible(own, pooled, smoothing):
    """Unseen classes together have the frequency of some imagined samples at least, shared out as in the pool."""
    own, pooled = np.array(own, dtype=float), np.array(pooled[: len(own)], dtype=float)
    pooled[0] += 1
    head = Head(np.zeros((1, len(own))), np.zeros(len(own)), np.ones(1), pooled, tuple(range(len(own))))
    logs, n = head.log_frequencies(own, smoothing), own.sum()
    never = (own == 0) & (pooled == 0)
    assert np.array_equal(logs == NEVER, never)
    frequencies, unseen = np.exp(logs), (own == 0) & ~never
    assert frequencies.sum() <= 1 + 1e-12
    if unseen.any():
        least = min(UNSEEN, n * (UNSEEN_SHARE if np.count_nonzero(own) > 1 else UNSEEN_SHARE_OF_ONE))
        # Imagined samples are `smoothing` a class on average.
        assert frequencies[unseen].sum() >= least / (n + least + smoothing * len(own)) * (1 - 1e-9)
        shares = frequencies[unseen] / (pooled[unseen] + 0.5)
        np.testing.assert_allclose(shares, shares[0], rtol=1e-9)


def hospitals(seed):
    """Return a screening centre with benign findings alone and 12 later cancers, and three other hospitals."""
    table = pytest.importorskip("sklearn.datasets").load_breast_cancer()
    x, y, rng = table.data, table.target, np.random.default_rng(seed)
    cancers, benign = (rng.permutation(np.flatnonzero(y == label)) for label in (0, 1))
    test = np.r_[cancers[:12], benign[56:76]]
    screening = fg.Client("screening", x[benign[:56]], y[benign[:56]], x[test], y[test])
    others = np.array_split(rng.permutation(np.r_[cancers[12:], benign[76:]]), 3)
    return [screening, *(fg.Client(f"hospital-{k}", x[part], y[part]) for k, part in enumerate(others))]


@pytest.mark.parametrize("method", [fg.FedGram(), fg.FedLogit()], ids=["fedgram", "fedlogit"])
def test_a_hospital_with_one_class_finds_the_other_where_evidence_is_clear(method):
    found, known, clear = 0, 0, []
    for seed in range(5):
        clients = hospitals(seed)
        fit, (x, y) = method.fit(clients, classes=2), (clients[0].x_test, clients[0].y_test)
        cancers, own = x[y == 0], fit.personal["screening"]
        found, known = found + (own.predict(cancers) == 0).sum(), known + (fit.model.predict(cancers) == 0).sum()
        clear.extend(own.predict(cancers[fit.model.predict_proba(cancers)[:, 0] > 0.99]) == 0)
        assert (own.predict(x[y == 1]) == 1).all()
    assert known >= 50
    assert len(clear) >= 25
    assert all(clear)
    assert found >= 0.65 * known


def test_own_regressions_say_nothing_about_classes_without_samples():
    """Two classes of four, with shifted features: own samples add the mean of their parts to others."""
    rng = np.random.default_rng(0)
    x, y = made(rng, 400, 10, noise=0.2)
    head = Head.of_gaussians(fg.Moments.of(x, y, classes=4), 0.1)
    own = np.flatnonzero(y < 2)[:60]
    shifted = x[own] + 0.45 * (x[y == 3].mean(axis=0) - x[y == 0].mean(axis=0))
    plain, refined = (
        personal_model(head, shifted, y[own], temperature=0.5, member=False, refine=refine).model
        for refine in (False, True)
    )
    assert np.abs(refined.weights - plain.weights).max() > 1, "regressions are used"
    unseen = head.weights[:, 2] - head.weights[:, 3]
    of_head = unseen @ (refined.weights[:, 2] - refined.weights[:, 3]) / (unseen @ unseen)
    added = refined.weights - of_head * head.weights
    for column in (2, 3):
        np.testing.assert_allclose(added[:, column], added[:, :2].mean(axis=1), atol=1e-9)

"""FedGram is Bayes' rule with pooled Gaussians; its choices are made for samples left out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.core.errors import InvalidParameter
from fedgram.heads.head import SHRINKAGES, Head, deviations
from support.campaign import examples
from support.problems import as_clients, features, redistributions, relative_error, seeds, skewed, spread_any_way


@examples(30)
@given(seeds, st.integers(1, 6), st.floats(-3, 1))
def test_head_is_the_pooled_discriminant(seed, count, log_shrinkage):
    """Against means, covariance and inverse computed from the samples themselves."""
    rng = np.random.default_rng(seed)
    x, y, _ = skewed(seed, n=120, d=6, classes=3)
    r, parts = 10**log_shrinkage, spread_any_way(rng, 120, count)
    fit = fg.FedGram(shrinkage=r).fit(as_clients(x, y, parts), classes=3)
    means = np.stack([x[y == c].mean(axis=0) for c in range(3)])
    centred = x - means[y]
    covariance = centred.T @ centred / len(x)
    inverse = np.linalg.inv(covariance + r * np.diag(np.diag(covariance)))
    assert relative_error(fit.model.weights, inverse @ means.T) < 1e-9
    quadratic = np.einsum("cd,de,ce->c", means, inverse, means)
    assert relative_error(fit.model.intercept, np.log(np.bincount(y) / 120) - quadratic / 2) < 1e-9


@examples(20)
@given(seeds, st.integers(1, 8), st.integers(1, 8))
def test_heterogeneity_invariance(seed, before, after):
    rng = np.random.default_rng(seed)
    x, y, _ = skewed(seed, n=150, d=6, classes=3)
    results = [
        fg.FedGram().fit(clients, classes=3).personal["k"].scores(x)
        for clients in redistributions(rng, x, y, np.arange(40), (before, after))
    ]
    np.testing.assert_allclose(results[0], results[1], rtol=1e-7, atol=1e-8)


def test_fewer_samples_than_features():
    """Cross-validation on centred features counts n - 1: with n it takes the least shrinkage, and 45 % are right."""
    rng = np.random.default_rng(0)
    means, y = 0.25 * rng.normal(size=(10, 400)), np.arange(3320) % 10
    x = means[y] + rng.normal(size=(3320, 400))
    fit = fg.FedGram().fit(as_clients(x, y, np.array_split(np.arange(320), 4)), classes=10)
    assert (fit.model.predict(x[320:]) == y[320:]).mean() > 0.78


@examples(15)
@given(seeds, st.sampled_from([(40, 6), (30, 29), (30, 30), (30, 31), (20, 50)]))
def test_automatic_shrinkage_is_cross_validation_by_its_definition(seed, shape):
    (n, d), rng = shape, np.random.default_rng(seed)
    y = rng.permutation(np.arange(n) % 3)
    x = rng.normal(size=(3, d))[y] + rng.normal(size=(n, d)) + 5
    total = fg.Moments.of(x, y, classes=3)
    rows, targets = x / deviations(total)[0], np.eye(3)[y]
    rows, targets = rows - rows.mean(axis=0), targets - targets.mean(axis=0)

    def error(shrinkage):
        hat = rows @ np.linalg.solve(rows.T @ rows + n * shrinkage * np.eye(d), rows.T)
        return ((targets - hat @ targets) ** 2).sum() / (n - 1 - np.trace(hat)) ** 2

    auto, fixed = (Head.of_gaussians(total, given).weights for given in ("auto", min(SHRINKAGES, key=error)))
    np.testing.assert_allclose(auto, fixed, rtol=1e-9)


def test_left_out_frequencies_equal_counting_the_others():
    rng = np.random.default_rng(0)
    x, y = features(rng, 50, 4), rng.integers(0, 3, 50)
    head = Head.of_gaussians(fg.Moments.of(x, y, classes=3), 0.1)
    own = y[:9]
    fast = head.left_out_log_frequencies(head.count(own), own, 0.7)
    for i in range(9):
        np.testing.assert_allclose(fast[i], head.log_frequencies(head.count(np.delete(own, i)), 0.7), atol=1e-12)
    assert np.exp(fast).sum(axis=1) == pytest.approx(1.0)


def test_own_frequencies_help_under_label_skew():
    x, y, parts = skewed(noise=8.0)
    train, test = [part[::2] for part in parts], [part[1::2] for part in parts]
    fit = fg.FedGram().fit(as_clients(x, y, train), classes=4)
    ours = np.mean([(fit.personal[f"client-{k}"].predict(x[part]) == y[part]).mean() for k, part in enumerate(test)])
    pooled = np.mean([(fit.model.predict(x[part]) == y[part]).mean() for part in test])
    assert ours > pooled + 0.05


def test_refinement_finds_a_shift_and_leaves_the_rest_alone():
    """A client with reversed features gains; a client without own structure does not change."""
    x, y, _ = skewed(clients=1, n=800)
    turned = np.arange(100)
    x[turned] = x[turned][:, ::-1]
    clients = as_clients(x, y, [turned, np.arange(100, 800)])
    plain, refined = (fg.FedGram(refine=refine).fit(clients, classes=4).personal for refine in (False, True))
    held_out = x[100:][:, ::-1]
    before, after = ((models["client-0"].predict(held_out) == y[100:]).mean() for models in (plain, refined))
    assert after > before + 0.1
    noise, labels = np.random.default_rng(1).normal(size=(60, 12)), np.random.default_rng(2).integers(0, 4, 60)
    alone = as_clients(noise, labels, [np.arange(60)])
    plain, refined = (fg.FedGram(refine=refine).fit(alone, classes=4).personal["client-0"] for refine in (False, True))
    assert np.array_equal(plain.weights, refined.weights)


def test_classes_that_nobody_has_never_win():
    x, y, parts = skewed()
    fit = fg.FedGram().fit(as_clients(x, y, parts), classes=6)
    for model in (fit.model, *fit.personal.values()):
        assert set(np.unique(model.predict(100 * x))) <= {0, 1, 2, 3}


def test_few_samples_one_class_and_a_constant_feature():
    x, y, parts = skewed()
    x[:, 3] = 7.0
    one_class = np.flatnonzero(y == 2)[:5]
    fit = fg.FedGram().fit(as_clients(x, y, [*parts, one_class, one_class[:1]]), classes=4)
    for model in fit.personal.values():
        assert np.isfinite(model.scores(x)).all()
    assert (fit.personal["client-5"].predict(x[one_class]) == 2).all()


def test_a_newcomer_may_have_a_class_that_is_new_to_all():
    x, y, _ = skewed()
    known, new = np.flatnonzero(y < 3), np.flatnonzero(y == 3)
    fit = fg.FedGram().fit(as_clients(x, y, [known]), classes=4)
    model = fit.personalize(fg.Client("late", x[new], y[new]))
    assert (model.predict(x[new]) == 3).mean() > 0.9


def test_download_is_a_head_not_a_matrix():
    rng = np.random.default_rng(0)
    x, y = features(rng, 300, 200), rng.integers(0, 3, 300)
    fit = fg.FedGram().fit(as_clients(x, y, [np.arange(150), np.arange(150, 300)]), classes=3)
    assert fit.traffic.down / 2 < 8 * 200 * (3 + 1) + 2000


@pytest.mark.parametrize("shrinkage", [0.0, -1.0, float("nan"), "best"])
def test_bad_hyperparameters(shrinkage):
    with pytest.raises(InvalidParameter, match="shrinkage: expected"):
        fg.FedGram(shrinkage=shrinkage)

"""FedHiP is its printed closed form, whatever the others' data look like; leave-one-out is what refitting gives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedgram as fg
from fedgram import adapt, recursions
from fedgram.errors import InvalidParameter
from fedgram.system import ALPHAS, System
from problems import as_clients, features, redistributions, relative_error, seeds, spread_any_way


def printed(x, y, own, classes, alpha, beta):
    """FedHiP (14), evaluated as it stands."""
    Y = np.eye(classes)[y]
    left = x.T @ x + alpha * x[own].T @ x[own] + beta * np.eye(x.shape[1])
    return np.linalg.solve(left, x.T @ Y + alpha * x[own].T @ Y[own])


@settings(deadline=None, max_examples=40)
@given(seeds, st.integers(2, 20), st.sampled_from([1, 3, 9]), st.floats(-2, 3), st.floats(-2, 2))
def test_equals_the_printed_closed_form(seed, d, count, log_alpha, log_beta):
    rng = np.random.default_rng(seed)
    alpha, beta, n = 10**log_alpha, 10**log_beta, 60
    x, y = features(rng, n, d), rng.integers(0, 3, n)
    parts = spread_any_way(rng, n, count)
    fit = fg.FedHiP(alpha=alpha, beta=beta).fit(as_clients(x, y, parts), classes=3)
    assert relative_error(fit.model.weights, recursions.fedhip([(x, np.eye(3)[y])], beta)[2]) < 1e-9
    for k, part in enumerate(parts):
        if len(part):
            want = printed(x, y, part, 3, alpha, beta)
            assert relative_error(fit.personal[f"client-{k}"].weights, want) < 1e-9


@settings(deadline=None, max_examples=30)
@given(seeds, st.integers(1, 12), st.integers(1, 12), st.sampled_from(["auto", 10.0]))
def test_heterogeneity_invariance(seed, before, after, alpha):
    """Theorem 3: client k's model is the same for any redistribution of all other data, any number of other clients."""
    rng = np.random.default_rng(seed)
    x, y = features(rng, 90, 8), rng.integers(0, 3, 90)
    models = [
        fg.FedHiP(alpha=alpha).fit(clients, classes=3).personal["k"].weights
        for clients in redistributions(rng, x, y, np.arange(20), (before, after))
    ]
    assert relative_error(models[0], models[1]) < 1e-9


@settings(deadline=None, max_examples=30)
@given(seeds, st.integers(1, 30), st.integers(1, 30), st.floats(-3, 4))
def test_both_forms_and_the_spectrum_agree(seed, d, n, log_alpha):
    rng = np.random.default_rng(seed)
    v, residual, alpha = rng.normal(size=(d, n)), rng.normal(size=(n, 2)), 10**log_alpha
    want = alpha * v @ np.linalg.solve(np.eye(n) + alpha * v.T @ v, residual)
    scale = 1e-9 * (1 + np.abs(want).max()) * (1 + alpha)
    np.testing.assert_allclose(adapt.correction(v, residual, alpha), want, atol=scale)
    np.testing.assert_allclose(adapt.Spectrum.of(v).correction(residual, alpha), want, atol=scale)


@settings(deadline=None, max_examples=20)
@given(seeds, st.integers(2, 25), st.booleans())
def test_leave_one_out_equals_refitting(seed, n, member):
    """Without sample i everywhere, the global term included if the client is part of it."""
    rng = np.random.default_rng(seed)
    d, alphas = 8, np.array([0.0, 0.5, 20.0])
    x, y = features(rng, 50 + n, d), rng.integers(0, 3, 50 + n)
    own = np.arange(n)
    pool = np.arange(50 + n) if member else np.arange(n, 50 + n)
    Y = np.eye(3)[y]
    system = System.of(fg.Moments.of(x[pool], y[pool], classes=3), ridge=0.7)
    lower = np.linalg.cholesky(x[pool].T @ x[pool] + 0.7 * np.eye(d))
    spectrum = adapt.Spectrum.of(np.linalg.solve(lower, x[own].T))
    fast = spectrum.leave_one_out(Y[own] - x[own] @ system.weights, alphas, member=member)
    for alpha, got in zip(alphas, fast, strict=True):
        errors = []
        for i in own:
            rest, others = own[own != i], pool[pool != i]
            left = x[others].T @ x[others] + alpha * x[rest].T @ x[rest] + 0.7 * np.eye(d)
            weights = np.linalg.solve(left, x[others].T @ Y[others] + alpha * x[rest].T @ Y[rest])
            errors.append((Y[i] - x[i] @ weights) ** 2)
        assert got == pytest.approx(np.mean(errors), rel=1e-8)


def test_auto_takes_the_alpha_of_least_leave_one_out_error():
    rng = np.random.default_rng(0)
    x, y = features(rng, 100, 6), rng.integers(0, 3, 100)
    y[:30] = (x[:30] @ rng.normal(size=(6, 3))).argmax(axis=1)  # a client with a rule of its own
    clients = as_clients(x, y, [np.arange(30), np.arange(30, 100)])
    auto = fg.FedHiP().fit(clients, classes=3).personal["client-0"].weights
    chosen = [
        alpha
        for alpha in ALPHAS
        if np.allclose(auto, fg.FedHiP(alpha=alpha).fit(clients, classes=3).personal["client-0"].weights, atol=1e-9)
    ]
    assert len(chosen) == 1
    assert chosen[0] > 1


def test_zero_alpha_is_the_global_model_and_one_class_is_fine():
    rng = np.random.default_rng(0)
    x, y = features(rng, 40, 5), np.repeat([0, 1], 20)
    fit = fg.FedHiP(alpha=0.0).fit(as_clients(x, y, [np.arange(20), np.arange(20, 39), np.array([39])]), classes=3)
    for personal in fit.personal.values():
        np.testing.assert_allclose(personal.weights, fit.model.weights, atol=1e-12)
    assert not fit.model.weights[:, 2].any(), "a class that nobody has"


@pytest.mark.parametrize("settings_", [{"beta": 0.0}, {"alpha": -1.0}, {"alpha": "best"}, {"beta": float("nan")}])
def test_bad_hyperparameters(settings_):
    with pytest.raises(InvalidParameter, match="alpha must|beta must"):
        fg.FedHiP(**settings_)

"""FedHiP equals its printed closed form, for any split of the other data; leave-one-out equals refitting."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.core.errors import InvalidParameter, RankDeficient
from fedgram.heads import adapt
from fedgram.heads.system import ALPHAS, System
from fedgram.moments.regression import STEPS
from reference import recursions
from support.campaign import examples
from support.problems import (
    as_clients,
    features,
    patients,
    redistributions,
    relative_error,
    seeds,
    skewed,
    spread_any_way,
)


def printed(x, y, own, classes, alpha, beta):
    """FedHiP (14), evaluated as it stands."""
    Y = np.eye(classes)[y]
    left = x.T @ x + alpha * x[own].T @ x[own] + beta * np.eye(x.shape[1])
    return np.linalg.solve(left, x.T @ Y + alpha * x[own].T @ Y[own])


def with_intercept(pool, own, alpha, beta):
    """Return the W and b of least ‖Y - XW - 1bᵀ‖² + α‖Y_k - X_kW - 1bᵀ‖² + β‖W‖², for (X, Y) of pool and client.

    By a QR decomposition of all rows with a column of ones, the roots of weights and ridge in them.
    """
    (x, targets), (x_own, targets_own) = pool, own
    d = x.shape[1]
    rows = np.vstack([np.c_[x, np.ones(len(x))], np.sqrt(alpha) * np.c_[x_own, np.ones(len(x_own))]])
    ridge = np.sqrt(beta) * np.eye(d, d + 1)
    want = np.vstack([targets, np.sqrt(alpha) * targets_own, np.zeros((d, targets.shape[1]))])
    solution = np.linalg.lstsq(np.vstack([rows, ridge]), want, rcond=None)[0]
    return solution[:-1], solution[-1]


@examples(40)
@given(seeds, st.integers(2, 20), st.sampled_from([1, 3, 9]), st.floats(-2, 3), st.floats(-2, 2))
def test_equals_the_printed_closed_form(seed, d, count, log_alpha, log_beta):
    rng = np.random.default_rng(seed)
    alpha, beta, n = 10**log_alpha, 10**log_beta, 60
    x, y = features(rng, n, d), rng.integers(0, 3, n)
    parts = spread_any_way(rng, n, count)
    fit = fg.FedHiP(alpha=alpha, beta=beta, intercept=False).fit(as_clients(x, y, parts), classes=3)
    assert relative_error(fit.model.weights, recursions.fedhip([(x, np.eye(3)[y])], beta)[2]) < 1e-9
    for k, part in enumerate(parts):
        if len(part):
            want = printed(x, y, part, 3, alpha, beta)
            assert relative_error(fit.personal[f"client-{k}"].weights, want) < 1e-9


@examples(40)
@given(seeds, st.integers(2, 40), st.sampled_from([1, 3, 9]), st.floats(-2, 3), st.floats(-2, 2))
def test_with_the_intercept_it_minimises_the_objective_with_one(seed, d, count, log_alpha, log_beta):
    """Members and a newcomer, with fewer and with more samples than features: both forms of the correction."""
    rng = np.random.default_rng(seed)
    alpha, beta, n = 10**log_alpha, 10**log_beta, 60
    x, y = features(rng, n + 12, d) + 3 * rng.normal(size=d), rng.integers(0, 3, n + 12)
    Y, parts = np.eye(3)[y], spread_any_way(rng, n, count)
    fit = fg.FedHiP(alpha=alpha, beta=beta).fit(as_clients(x, y, parts), classes=3)
    pool, new = (x[:n], Y[:n]), np.arange(n, n + 12)
    newcomer = fit.personalize(fg.Client("new", x[new], y[new]))
    models = [(fit.model, new[:0]), (newcomer, new)]
    models += [(fit.personal[f"client-{k}"], part) for k, part in enumerate(parts) if len(part)]
    for model, part in models:
        weights, intercept = with_intercept(pool, (x[part], Y[part]), alpha, beta)
        assert relative_error(model.weights, weights) < 1e-9
        assert relative_error(model.intercept, intercept) < 1e-9


@examples(20)
@example(1821185, 2, False, 9)  # two equally good α
@given(seeds, st.integers(2, 25), st.booleans(), st.integers(4, 30))
def test_leave_one_out_with_the_intercept_equals_refitting(seed, n, member, d):
    """The α that is chosen is the one of least error when sample i is left out everywhere, means included."""
    rng = np.random.default_rng(seed)
    x, y = features(rng, 50 + n, d) + 3 * rng.normal(size=d), rng.integers(0, 3, 50 + n)
    Y, own = np.eye(3)[y], np.arange(n)
    pool = np.arange(50 + n) if member else np.arange(n, 50 + n)
    system = System.of(fg.Moments.of(x[pool], y[pool], classes=3), ridge=0.7, intercept=True)
    alphas = np.array([0.0, 0.5, 20.0])
    fast = system.leave_one_out(x[own], y[own], alphas, member=member)
    for alpha, got in zip(alphas, fast, strict=True):
        errors = []
        for i in own:
            rest, others = own[own != i], pool[pool != i]
            weights, intercept = with_intercept((x[others], Y[others]), (x[rest], Y[rest]), alpha, 0.7)
            errors.append((Y[i] - x[i] @ weights - intercept) ** 2)
        assert got == pytest.approx(np.mean(errors), rel=1e-9)
    best, _ = system.choose(x[own], y[own], member=member)
    errors = system.leave_one_out(x[own], y[own], ALPHAS, member=member)
    chosen = ALPHAS[np.flatnonzero(errors <= errors.min() * (1 + 1e-9))[0]]  # rounding tells no α from another
    weights, intercept = with_intercept((x[pool], Y[pool]), (x[own], Y[own]), chosen, 0.7)
    assert relative_error(best.weights, weights) < 1e-7  # α may be 1e5
    assert relative_error(best.intercept, intercept) < 1e-7


def test_columns_of_a_table_far_from_zero():
    x, y = patients()
    clients = [fg.Client(f"hospital-{k}", x[k:300:3], y[k:300:3], x[300:], y[300:]) for k in range(3)]
    for method in (fg.FedHiP, fg.Local):
        with_one, without = (
            method(intercept=intercept).fit(clients).evaluation.client_mean for intercept in (True, False)
        )
        assert with_one > 0.85
        assert without < 0.75


def test_the_automatic_ridge_is_cross_validation_about_the_means():
    rng = np.random.default_rng(0)
    x, y = features(rng, 40, 30) + 2, rng.integers(0, 3, 40)
    y[:20] = (x[:20, :3]).argmax(axis=1)
    centred, targets = x - x.mean(axis=0), np.eye(3)[y] - np.bincount(y, minlength=3) / 40

    def error(ridge):
        hat = centred @ np.linalg.solve(centred.T @ centred + ridge * np.eye(30), centred.T)
        return ((targets - hat @ targets) ** 2).sum() / (40 - 1 - np.trace(hat)) ** 2

    beta = min(STEPS * np.linalg.eigvalsh(centred.T @ centred).mean(), key=error)
    clients = as_clients(x, y, [np.arange(15), np.arange(15, 40)])
    auto, fixed = (fg.FedHiP(**given).fit(clients, classes=3).model for given in ({}, {"beta": beta}))
    assert relative_error(auto.weights, fixed.weights) < 1e-9
    weights, _ = with_intercept((x, np.eye(3)[y]), (x[:0], np.zeros((0, 3))), 0.0, beta)
    assert relative_error(auto.weights, weights) < 1e-9


def test_no_ridge_at_all():
    rng = np.random.default_rng(0)
    x, y = features(rng, 60, 5), rng.integers(0, 3, 60)
    clients = as_clients(x, y, [np.arange(20), np.arange(20, 60)])
    fit = fg.FedHiP(alpha=0.0, beta=0.0).fit(clients, classes=3)
    assert relative_error(fit.model.weights, fg.AFL().fit(clients, classes=3).model.weights) < 1e-9
    few = as_clients(x[:4], y[:4], [np.arange(2), np.arange(2, 4)])
    with pytest.warns(RankDeficient), pytest.raises(InvalidParameter, match=r"a ridge of 0.0 leaves .*rank 3 of 5"):
        fg.FedHiP(beta=0.0).fit(few, classes=3)


@examples(30)
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


@examples(30)
@given(seeds, st.integers(1, 30), st.integers(1, 30), st.floats(-3, 4))
def test_both_forms_and_the_spectrum_agree(seed, d, n, log_alpha):
    rng = np.random.default_rng(seed)
    v, residual, alpha = rng.normal(size=(d, n)), rng.normal(size=(n, 2)), 10**log_alpha
    want = alpha * v @ np.linalg.solve(np.eye(n) + alpha * v.T @ v, residual)
    scale = 1e-9 * (1 + np.abs(want).max()) * (1 + alpha)
    np.testing.assert_allclose(adapt.correction(v, residual, alpha), want, atol=scale)
    np.testing.assert_allclose(adapt.Spectrum.of(v).project(residual).correction(alpha), want, atol=scale)


@examples(20)
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
    fast = spectrum.project(Y[own] - x[own] @ system.weights).leave_one_out(alphas, member=member)
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
    auto = fg.FedHiP(alone=False).fit(clients, classes=3).personal["client-0"].weights
    chosen = [
        alpha
        for alpha in ALPHAS
        if np.allclose(auto, fg.FedHiP(alpha=alpha).fit(clients, classes=3).personal["client-0"].weights, atol=1e-9)
    ]
    assert len(chosen) == 1
    assert chosen[0] > 1


def test_one_sample_changes_nothing():
    """Without it no sample is left, so all α are equally good; rounding must not choose."""
    rng = np.random.default_rng(0)
    x, y = features(rng, 80, 12), rng.integers(0, 3, 80)
    fit = fg.FedHiP().fit(as_clients(x, y, [np.arange(60), *([i] for i in range(60, 80))]), classes=3)
    for name in fit.contributors[1:]:
        np.testing.assert_allclose(fit.personal[name].weights, fit.model.weights, rtol=1e-9, atol=1e-12)


def test_own_samples_alone_where_that_is_better():
    """A client with two of many classes and a rule of its own uses it; a client like all others stays shared."""
    x, y, _ = skewed(clients=1, n=600, d=150, noise=4.0)  # with fewer features than own samples some α is as good
    x[:80, :75], y[:80] = x[:80, 74::-1], y[:80] % 2
    clients = as_clients(x, y, [np.arange(80), np.arange(80, 95), np.arange(95, 600)])
    fit, mixed, local = (m.fit(clients, classes=4).personal for m in (fg.FedHiP(), fg.FedHiP(alone=False), fg.Local()))
    assert np.array_equal(fit["client-0"].weights, local["client-0"].weights)
    assert np.array_equal(fit["client-1"].weights, mixed["client-1"].weights)


@pytest.mark.parametrize("seed", range(3))
def test_many_classes_do_not_make_a_client_go_alone(seed):
    """Twelve of forty classes: the own ridge knows absent classes, so it errs less in squares, but is right less."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(40, 80))
    own, rest, new = (rng.integers(0, classes, n) for classes, n in ((12, 120), (40, 3000), (12, 1000)))
    draw = [means[y] + 2.2 * rng.normal(size=(len(y), 80)) for y in (own, rest, new)]
    clients = [fg.Client("own", draw[0], own, draw[2], new), fg.Client("rest", draw[1], rest)]
    chosen, shared, alone = (
        method.fit(clients, classes=40).evaluation.client_mean
        for method in (fg.FedHiP(), fg.FedHiP(alone=False), fg.Local())
    )
    squares = adapt.own_ridge(draw[0], np.eye(40)[own], intercept=True).error
    system = System.of(fg.Moments.of(np.vstack(draw[:2]), np.r_[own, rest], classes=40), ridge="auto", intercept=True)
    assert squares < system.leave_one_out(draw[0], own, ALPHAS).min(), "squares speak for going alone"
    assert shared > alone + 0.03
    assert chosen > shared - 0.005


def test_zero_alpha_is_the_global_model_and_one_class_is_fine():
    rng = np.random.default_rng(0)
    x, y = features(rng, 40, 5), np.repeat([0, 1], 20)
    fit = fg.FedHiP(alpha=0.0).fit(as_clients(x, y, [np.arange(20), np.arange(20, 39), np.array([39])]), classes=3)
    for personal in fit.personal.values():
        np.testing.assert_allclose(personal.weights, fit.model.weights, atol=1e-12)
    assert not fit.model.weights[:, 2].any(), "a class without samples"
    assert fit.model.intercept[2] == 0


@pytest.mark.parametrize("settings_", [{"beta": -1.0}, {"alpha": -1.0}, {"alpha": "best"}, {"beta": float("nan")}])
def test_bad_hyperparameters(settings_):
    with pytest.raises(InvalidParameter, match="alpha: expected|beta: expected"):
        fg.FedHiP(**settings_)

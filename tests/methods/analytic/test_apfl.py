"""APFL equals its printed closed forms; its choices without test data equal those of brute force."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.core import wire
from fedgram.core.errors import FedgramError, InvalidData, InvalidParameter, UnknownName
from fedgram.heads import adapt
from fedgram.heads.system import System
from fedgram.moments import solve
from reference import recursions
from support.campaign import examples
from support.problems import as_clients, features, redistributions, relative_error, seeds, spread_any_way

SMALL = {"dim_primary": 16, "dim_refine": 12}


@examples(20)
@given(seeds, st.sampled_from([1, 2, 6]), st.floats(-1, 2), st.floats(-1, 2), st.floats(0, 1))
def test_equals_the_printed_closed_forms(seed, count, log_gamma, log_beta, lam):
    rng = np.random.default_rng(seed)
    gamma, beta = 10**log_gamma, 10**log_beta
    x, y = features(rng, 80, 7), rng.integers(0, 3, 80)
    parts = spread_any_way(rng, 80, count)
    method = fg.APFL(gamma=gamma, beta=beta, lam=lam, **SMALL)
    fit = method.fit(as_clients(x, y, parts), classes=3)
    primary, refine = method._maps(7)
    Y, phi, psi = np.eye(3)[y], primary(x), refine(x)
    G = recursions.apfl([(phi[part], Y[part]) for part in parts if len(part)], gamma)
    assert relative_error(fit.model.weights, G) < 1e-6
    for k, part in enumerate(parts):
        if not len(part):
            continue
        own = psi[part]
        P = np.linalg.solve(own.T @ own + beta * np.eye(12), own.T @ (Y[part] - phi[part] @ fit.model.weights))  # (13)
        want = phi @ fit.model.weights + lam * psi @ P  # (14)
        np.testing.assert_allclose(fit.personal[f"client-{k}"].scores(x), want, atol=1e-8)


@examples(15)
@given(seeds, st.integers(1, 8), st.integers(1, 8))
def test_heterogeneity_invariance(seed, before, after):
    rng = np.random.default_rng(seed)
    x, y = features(rng, 70, 6), rng.integers(0, 3, 70)
    method = fg.APFL(gamma=1.0, beta=2.0, lam=0.4, **SMALL)
    results = [
        method.fit(clients, classes=3).personal["k"].scores(x)
        for clients in redistributions(rng, x, y, np.arange(20), (before, after))
    ]
    np.testing.assert_allclose(results[0], results[1], rtol=1e-8, atol=1e-9)


@examples(20)
@given(seeds, st.integers(2, 20), st.integers(2, 12))
def test_left_out_predictions_equal_refitting(seed, n, d):
    rng = np.random.default_rng(seed)
    psi, r, beta = rng.normal(size=(n, d)), rng.normal(size=(n, 2)), 0.8
    [fast] = adapt.Spectrum.of(np.ascontiguousarray(psi.T)).predict_left_out(r, [1 / beta])
    for i in range(n):
        rest = np.arange(n) != i
        P = np.linalg.solve(psi[rest].T @ psi[rest] + beta * np.eye(d), psi[rest].T @ r[rest])
        np.testing.assert_allclose(fast[i], psi[i] @ P, atol=1e-8)


def test_cross_validation_from_moments_equals_its_definition():
    rng = np.random.default_rng(0)
    x, y = features(rng, 60, 8), rng.integers(0, 3, 60)
    Y, ridges = np.eye(3)[y], np.geomspace(1e-3, 1e3, 13)

    def definition(ridge):
        H = x @ np.linalg.solve(x.T @ x + ridge * np.eye(8), x.T)
        return ((Y - H @ Y) ** 2).sum() / (60 - np.trace(H)) ** 2

    values, vectors = np.linalg.eigh(x.T @ x)
    chosen = solve.generalised_cross_validation(values, vectors.T @ (x.T @ Y), ridges, freedom=60, squares=60)
    assert chosen == min(ridges, key=definition)


def test_auto_lambda_is_the_least_of_all():
    rng = np.random.default_rng(0)
    psi, r = rng.normal(size=(30, 6)), rng.normal(size=(30, 2))
    r += psi @ rng.normal(size=(6, 2))
    spectrum = adapt.Spectrum.of(np.ascontiguousarray(psi.T))
    beta, lam = fg.APFL(**SMALL)._chosen(spectrum, r, None)
    [predicted] = spectrum.predict_left_out(r, [1 / beta])
    errors = {candidate: ((r - candidate * predicted) ** 2).mean() for candidate in np.linspace(0, 1, 101)}
    assert lam == pytest.approx(min(errors, key=errors.get), abs=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_many_classes_do_not_make_the_own_stream_too_heavy(seed):
    """Twelve of forty classes: by squared error the own stream gets nearly all weight, and is right less often."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(40, 80))
    own, rest, new = (rng.integers(0, classes, n) for classes, n in ((12, 120), (40, 3000), (12, 1000)))
    draw = [means[y] + 3 * rng.normal(size=(len(y), 80)) for y in (own, rest, new)]
    clients = [fg.Client("own", draw[0], own, draw[2], new), fg.Client("rest", draw[1], rest)]
    chosen, shared, heavy = (
        fg.APFL(dim_primary=256, dim_refine=256, lam=lam).fit(clients, classes=40).evaluation.client_mean
        for lam in ("auto", 0.0, 0.92)
    )
    assert chosen > max(shared, heavy) + 0.02


def test_samples_that_are_not_finite_are_refused():
    rng = np.random.default_rng(0)
    x, y = features(rng, 40, 5), rng.integers(0, 2, 40)
    fit = fg.APFL(**SMALL).fit(as_clients(x, y, [np.arange(20), np.arange(20, 40)]), classes=2)
    with pytest.raises(InvalidData, match="sample 1 has scores that are not finite"):
        fit.personal["client-0"].predict(np.array([x[0], np.full(5, np.nan)]))


def test_projections_are_never_sent():
    rng = np.random.default_rng(0)
    x, y = features(rng, 40, 300), rng.integers(0, 2, 40)
    fit = fg.APFL(gamma=1.0, dim_primary=64, dim_refine=64).fit(
        as_clients(x, y, [np.arange(20), np.arange(20, 40)]), classes=2
    )
    assert fit.traffic.down < 300 * 64 * 8


@pytest.mark.parametrize(
    ("settings_", "error"),
    [
        ({"gamma": 0.0}, InvalidParameter),
        ({"beta": -1.0}, InvalidParameter),
        ({"lam": "best"}, InvalidParameter),
        ({"lam": -0.5}, InvalidParameter),
        ({"dim_primary": 0}, InvalidParameter),
        ({"activation_refine": "rleu"}, InvalidParameter),
    ],
)
def test_bad_hyperparameters(settings_, error):
    with pytest.raises(error):
        fg.APFL(**settings_)


def test_a_single_sample_says_nothing_about_its_own_share():
    """No other client predicts it, so leave-one-out has no evidence for P_k; rounding errors must not decide."""
    rng = np.random.default_rng(0)
    clients = [
        fg.Client("many", rng.normal(size=(40, 6)), np.arange(40) % 3),
        fg.Client("one", rng.normal(size=(1, 6)), [2]),
    ]
    assert fg.APFL(dim_primary=16, dim_refine=16).fit(clients).personal["one"].lam == 0.0


@examples(15)
@given(seeds, st.integers(2, 15), st.floats(-1, 1))
def test_exact_leave_one_out_equals_refitting_everything(seed, n, log_beta):
    """Sample i is left out of the pooled G, and so of the others' residuals, and of the refinement."""
    rng = np.random.default_rng(seed)
    d, beta, gamma, lam = 6, 10**log_beta, 0.7, 0.4
    phi, psi, y = features(rng, 60 + n, d), rng.normal(size=(n, 5)), rng.integers(0, 3, 60 + n)
    Y = np.eye(3)[y]
    system = System.of(fg.Moments.of(phi, y, classes=3), ridge=gamma)
    influence, residual = system.influence(phi[:n]), Y[:n] - phi[:n] @ system.weights
    [predicted] = adapt.Spectrum.of(np.ascontiguousarray(psi.T)).predict_left_out(residual, [1 / beta], influence)
    fast = influence.left_out(residual) - lam * predicted
    for i in range(n):
        others, rest = np.delete(np.arange(60 + n), i), np.delete(np.arange(n), i)
        G = np.linalg.solve(phi[others].T @ phi[others] + gamma * np.eye(d), phi[others].T @ Y[others])
        own = psi[rest]
        P = np.linalg.solve(own.T @ own + beta * np.eye(5), own.T @ (Y[rest] - phi[rest] @ G))
        np.testing.assert_allclose(fast[i], Y[i] - phi[i] @ G - lam * psi[i] @ P, atol=1e-9)


def test_exact_leave_one_out_costs_the_download_of_the_system():
    rng = np.random.default_rng(0)
    x, y = features(rng, 60, 9), rng.integers(0, 2, 60)
    clients = as_clients(x, y, [np.arange(20), np.arange(20, 60)])
    conditional, exact = (fg.APFL(exact=exact, **SMALL).fit(clients, classes=2) for exact in (False, True))
    assert exact.traffic.down - conditional.traffic.down >= 2 * 8 * 16 * 17 // 2
    np.testing.assert_allclose(exact.model.weights, conditional.model.weights, rtol=1e-9, atol=1e-12)
    assert exact.personal["client-0"].system is None, "a model need not carry what it was chosen by"


@pytest.mark.parametrize("leverage", [-0.1, 1.0, float("nan")])
def test_a_leverage_that_cannot_be_is_refused(leverage):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), np.arange(40) % 2
    fit = fg.APFL(dim_primary=8, dim_refine=8).fit([fg.Client("a", x, y), fg.Client("b", x + 1, y)], classes=2)
    assert 0 < fit.published.leverage < 1
    assert fit.model.leverage is None
    assert all(model.leverage is None for model in fit.personal.values())
    with pytest.raises(FedgramError, match=r"leverage|not finite"):
        wire.decode(wire.encode(replace(fit.published, leverage=leverage)), sender="server", finite=True)


def test_it_is_told_apart_from_the_better_known_method_of_its_name():
    assert "not Deng et al. 2020" in fg.APFL.__doc__.splitlines()[0]
    with pytest.raises(UnknownName, match=r"parameter of APFL \(not the APFL of Deng et al. 2020\) 'alpha'"):
        fg.APFL(alpha=0.5)
    with pytest.raises(UnknownName, match="unknown parameter of AFL 'alpha'"):
        fg.AFL(alpha=0.5)

"""FedLogit climbs to the logistic model of all data, however it is spread; held-out samples like its ridge."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import log_softmax

import fedgram as fg
from fedgram import likelihood, logistic
from fedgram.checks import some_clients
from fedgram.errors import InvalidParameter
from fedgram.head import deviations
from fedgram.logistic import Logistic
from problems import as_clients, relative_error, seeds, spread_any_way


def problem(seed=0, *, n=240, d=6, classes=3, signal=1.0):
    """Return samples whose labels really follow a logistic model; features have their own units and offsets."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    y = (x @ (signal * rng.normal(size=(d, classes))) + rng.gumbel(size=(n, classes))).argmax(axis=1)
    y[:classes] = np.arange(classes)
    return x * 10 ** rng.uniform(-1, 1, d) + rng.normal(size=d), y


def climbed(x, y, ridge, rounds, classes=3):
    """Return the model after so many rounds, with all samples in one place."""
    ascent = Logistic(fg.Moments.of(x, y, classes=classes), ridge)
    for _ in range(rounds):
        ascent.climb(*logistic.slope(x, y, ascent.ahead))
    return ascent.model


def objective(model, x, y, ridge):
    """Return the log-likelihood less the ridge's part."""
    scale, _ = deviations(fg.Moments.of(x, y, classes=len(model.classes)))
    return likelihood.of_labels(model.scores(x), y) - ridge / 2 * ((model.weights * scale[:, None]) ** 2).sum()


@settings(deadline=None, max_examples=15)
@given(seeds, st.floats(-1, 2), st.integers(2, 4))
def test_it_reaches_the_penalised_maximum(seed, log_ridge, classes):
    """Against scipy's optimizer."""
    (x, y), ridge = problem(seed, classes=classes), 10**log_ridge
    model = climbed(x, y, ridge, 600, classes)
    scale, _ = deviations(fg.Moments.of(x, y, classes=classes))
    rows, hot = np.column_stack([(x - x.mean(axis=0)) / scale, np.ones(len(x))]), np.eye(classes)[y]
    penalty = np.append(np.full(x.shape[1], ridge), 0.0)[:, None]

    def loss(flat):
        point = flat.reshape(-1, classes)
        logs = log_softmax(rows @ point, axis=1)
        slope = rows.T @ (np.exp(logs) - hot) + penalty * point
        return (penalty * point**2).sum() / 2 - (logs * hot).sum(), slope.ravel()

    found = minimize(loss, np.zeros(rows.shape[1] * classes), jac=True, options={"gtol": 1e-9, "maxiter": 2000})
    want = found.x.reshape(-1, classes)[:-1]
    assert objective(model, x, y, ridge) >= -found.fun - 1e-6
    assert relative_error(model.weights * scale[:, None], want - want.mean(axis=1, keepdims=True)) < 1e-3


@settings(deadline=None, max_examples=30)
@given(seeds, st.floats(-3, 3), st.floats(0.01, 5))
def test_a_step_never_goes_downhill(seed, log_ridge, signal):
    (x, y), ridge = problem(seed, signal=signal), 10**log_ridge
    ascent = Logistic(fg.Moments.of(x, y, classes=3), ridge)
    before = objective(ascent.model, x, y, ridge)
    ascent.climb(*logistic.slope(x, y, ascent.ahead))
    assert objective(ascent.model, x, y, ridge) >= before - 1e-9 * abs(before)


@settings(deadline=None, max_examples=15)
@given(seeds, st.integers(1, 6), st.integers(1, 6))
def test_the_model_for_all_does_not_depend_on_the_partition(seed, before, after):
    rng, (x, y) = np.random.default_rng(seed), problem(seed)
    one, other = (
        fg.FedLogit(rounds=12).fit(as_clients(x, y, spread_any_way(rng, len(x), count)), classes=3).model
        for count in (before, after)
    )
    assert relative_error(other.weights, one.weights) < 1e-9
    assert relative_error(other.intercept, one.intercept) < 1e-9


def test_slopes_of_blocks_add_up(monkeypatch):
    x, y = problem()
    model = Logistic(fg.Moments.of(x, y, classes=3), 1.0).model
    whole, undecided = logistic.slope(x, y, model)
    monkeypatch.setattr(logistic, "ROWS_AT_ONCE", 7)
    parts, also = logistic.slope(x, y, model)
    assert relative_error(parts, whole) < 1e-12
    assert also == pytest.approx(undecided)
    # With no weights yet, the probabilities are the class frequencies.
    frequencies = np.bincount(y) / len(y)
    assert undecided == pytest.approx(len(y) * (1 - (frequencies**2).sum()))
    assert np.abs(whole[-1]).max() < 1e-9


@pytest.mark.parametrize(
    ("signal", "n", "lost"),
    [(0.3, 100, 0.03), (0.3, 2000, 0.03), (3.0, 2000, 0.03), (3.0, 100, 0.15)],  # the last can be separated
)
def test_the_ridge_by_evidence_is_nearly_the_best_for_held_out_samples(signal, n, lost):
    x, y = problem(1, n=n + 4000, d=30, signal=signal)
    train, test = np.arange(n), np.arange(n, n + 4000)

    def held_out(ridge):
        model = climbed(x[train], y[train], ridge, 300)
        return likelihood.of_labels(model.scores(x[test]), y[test]) / len(test)

    best = max(map(held_out, np.geomspace(1e-3, 1e4, 8).tolist()))
    assert held_out("auto") > best - lost


def test_without_anything_to_learn_the_class_frequencies_remain():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(400, 8)), rng.integers(0, 3, 400)
    model = fg.FedLogit(rounds=60).fit(as_clients(x, y, [np.arange(400)]), classes=3).model
    probabilities = np.exp(log_softmax(model.scores(x), axis=1))
    np.testing.assert_allclose(probabilities, np.bincount(y)[None] / 400 + np.zeros((400, 1)), atol=0.08)


def test_it_beats_gaussians_where_features_are_none():
    """A feature with a long tail: the common covariance is wrong, a logistic head makes the best of it."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 4000)
    x = np.column_stack([np.exp(rng.normal(size=4000) + y), rng.normal(size=4000)])
    train, test = [np.arange(1000), np.arange(1000, 2000)], np.arange(2000, 4000)
    ours, theirs = (
        likelihood.of_labels(method.fit(as_clients(x, y, train), classes=2).model.scores(x[test]), y[test])
        for method in (fg.FedLogit(rounds=100), fg.FedGram())
    )
    assert ours > theirs + 20


def test_classes_that_nobody_has_and_a_constant_feature():
    x, y = problem()
    x[:, 2] = 7.0
    parts = [np.arange(100), np.arange(100, 240)]
    fit = fg.FedLogit().fit(as_clients(x, y, parts), classes=5)
    for model in (fit.model, *fit.personal.values()):
        assert np.isfinite(model.scores(x)).all()
        assert set(np.unique(model.predict(10 * x))) <= {0, 1, 2}
        assert np.abs(model.weights[2]).max() < 1e-9


def test_one_class_alone_and_a_client_of_one_sample():
    x, y = problem()
    only = np.flatnonzero(y == 1)
    fit = fg.FedLogit().fit(as_clients(x, y, [only[:1], only[1:]]), classes=3)
    assert (fit.model.predict(x) == 1).all()
    assert (fit.personal["client-0"].predict(x[only]) == 1).all()


def test_rounds_cost_a_head_each():
    x, y = problem(d=50)
    clients = as_clients(x, y, [np.arange(120), np.arange(120, 240)])
    few, many = (fg.FedLogit(rounds=rounds).fit(clients, classes=3).traffic for rounds in (1, 11))
    assert (many.up - few.up) / 20 < 8 * 51 * 3 + 1000
    assert (many.down - few.down) / 20 < 8 * 51 * 3 + 1000


def test_accuracy_after_each_round_is_reported_and_grows():
    fit = fg.FedLogit(rounds=15).fit(some_clients(), classes=10)
    assert len(fit.rounds) == 15
    assert fit.rounds[-1].pooled >= fit.rounds[0].pooled


def test_what_takes_slopes_cannot_be_changed_afterwards():
    x, y = problem()
    fit = fg.FedLogit(rounds=1).fit(as_clients(x, y, [np.arange(240)]), classes=3)
    with pytest.raises(InvalidParameter, match="cannot be changed"):
        fit.remove(fg.Moments.of(x[:5], y[:5], classes=3))


@pytest.mark.parametrize("bad", [{"rounds": 0}, {"ridge": 0.0}, {"ridge": -1.0}, {"ridge": float("nan")}])
def test_bad_hyperparameters(bad):
    with pytest.raises(InvalidParameter, match=f"{next(iter(bad))} must be"):
        fg.FedLogit(**bad)

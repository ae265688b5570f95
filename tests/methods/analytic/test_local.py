"""Training alone: each client chooses its ridge by exact leave-one-out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.core.errors import InvalidParameter
from fedgram.heads import adapt
from fedgram.moments.regression import STEPS
from support.campaign import examples
from support.problems import as_clients, features, relative_error, seeds


def refitted(x, targets, ridge, *, intercept):
    """Return the mean squared error of samples, each predicted by a ridge regression on the others."""
    errors = []
    for i in range(len(x)):
        rest = np.arange(len(x)) != i
        mean, level = (x[rest].mean(axis=0), targets[rest].mean(axis=0)) if intercept else (0.0, 0.0)
        rows = x[rest] - mean
        weights = np.linalg.solve(rows.T @ rows + ridge * np.eye(x.shape[1]), rows.T @ (targets[rest] - level))
        errors.append((targets[i] - level - (x[i] - mean) @ weights) ** 2)
    return np.mean(errors)


@examples(20)
@given(seeds, st.sampled_from([(8, 20), (20, 5), (6, 6), (7, 6), (2, 3)]), st.booleans())
def test_leave_one_out_equals_refitting(seed, shape, intercept):
    (n, d), rng = shape, np.random.default_rng(seed)
    x, targets = rng.normal(size=(n, d)) + 3, np.eye(3)[rng.integers(0, 3, n)]
    rows, left = (x - x.mean(axis=0), targets - targets.mean(axis=0)) if intercept else (x, targets)
    spectrum, ridges = adapt.Spectrum.of(np.ascontiguousarray(rows.T)), np.array([0.3, 2.0, 50.0])
    fast = spectrum.project(left).leave_one_out(1 / ridges, member=False, centred=intercept)
    for ridge, got in zip(ridges, fast, strict=True):
        assert got == pytest.approx(refitted(x, targets, ridge, intercept=intercept), rel=1e-9)


@pytest.mark.parametrize("intercept", [True, False])
def test_auto_takes_the_ridge_of_least_error(intercept):
    rng = np.random.default_rng(0)
    x, y = features(rng, 30, 8) + 1, rng.integers(0, 3, 30)
    y[:20] = (x[:20] @ rng.normal(size=(8, 3))).argmax(axis=1)
    rows = x - x.mean(axis=0) if intercept else x
    candidates = STEPS * np.linalg.eigvalsh(rows.T @ rows).mean()
    best = min(candidates, key=lambda ridge: refitted(x, np.eye(3)[y], ridge, intercept=intercept))
    [auto], [fixed] = (
        fg.Local(ridge=ridge, intercept=intercept).fit(as_clients(x, y, [np.arange(30)]), classes=3).personal.values()
        for ridge in ("auto", float(best))
    )
    assert relative_error(auto.weights, fixed.weights) < 1e-9


def test_one_sample_and_one_class():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 4)), np.array([1] * 6 + [0] * 6)
    fit = fg.Local().fit(as_clients(x, y, [[0], np.arange(6), np.arange(6, 12)]), classes=2)
    for name, label in (("client-0", 1), ("client-1", 1), ("client-2", 0)):
        assert (fit.personal[name].predict(x) == label).all()


@pytest.mark.parametrize("ridge", [-1.0, float("nan"), "best"])
def test_bad_hyperparameters(ridge):
    with pytest.raises(InvalidParameter, match="ridge: expected"):
        fg.Local(ridge=ridge)

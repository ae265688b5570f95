"""Numeric outcomes as moments of joint columns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch
from fedgram.moments.moments import Moments
from fedgram.moments.targets import Joint, joint_moments
from support.campaign import examples
from support.problems import features, relative_error, seeds


def problem(rng, n=40, d=4, outcomes=2):
    x = features(rng, n, d) + rng.normal(size=d)
    return x, x @ rng.normal(size=(d, outcomes)) + rng.normal(size=(n, outcomes)) + 1.0


@examples(40)
@given(seeds, st.integers(1, 8), st.integers(1, 3), st.booleans())
def test_the_regression_is_that_of_the_rows(seed, d, outcomes, intercept):
    x, y = problem(np.random.default_rng(seed), d=d, outcomes=outcomes)
    joint = Joint.of(joint_moments(x[:25], y[:25]) + joint_moments(x[25:], y[25:]), outcomes=outcomes)
    found = joint.regression(intercept=intercept)
    rows, targets = (x - x.mean(axis=0), y - y.mean(axis=0)) if intercept else (x, y)
    weights, ridge = found.solve(0.7)
    assert relative_error(weights, np.linalg.solve(rows.T @ rows + 0.7 * np.eye(d), rows.T @ targets)) < 1e-10
    assert ridge == 0.7
    assert found.squares == pytest.approx((targets**2).sum(), rel=1e-10)


@examples(30)
@given(seeds, st.booleans())
def test_cross_validation_is_that_of_the_rows(seed, intercept):
    """Generalised cross-validation from the hat matrix itself, n × n."""
    x, y = problem(np.random.default_rng(seed), n=20, d=6)
    ridges = np.geomspace(1e-2, 1e2, 7)
    rows = x - x.mean(axis=0) if intercept else x
    errors = []
    for ridge in ridges:
        hat = rows @ np.linalg.solve(rows.T @ rows + ridge * np.eye(6), rows.T) + intercept / 20
        errors.append(((y - hat @ y) ** 2).sum() / (20 - np.trace(hat)) ** 2)
    chosen = Joint.of(joint_moments(x, y), outcomes=2).regression(intercept=intercept).cross_validated(ridges)
    assert chosen == ridges[int(np.argmin(errors))]


def test_auto_solves_with_the_ridge_that_it_names():
    x, y = problem(np.random.default_rng(3), n=15, d=10)
    found = Joint.of(joint_moments(x, y), outcomes=2).regression(intercept=True)
    weights, ridge = found.solve("auto")
    assert ridge == found.cross_validated()
    assert relative_error(weights, found.solve(ridge)[0]) < 1e-9
    rows = x - x.mean(axis=0)
    hat = rows @ np.linalg.solve(rows.T @ rows + ridge * np.eye(10), rows.T)
    assert found.degrees_of_freedom(ridge) == pytest.approx(np.trace(hat) + 1)


def test_classes_are_the_one_hot_case():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(30, 3)), rng.integers(0, 3, 30)
    classes = Joint.of(Moments.of(x, labels, classes=3))
    numbers = Joint.of(joint_moments(x, np.eye(3)[labels]), outcomes=3)
    for field in ("packed", "cross", "squares", "sums", "target_sums"):
        np.testing.assert_allclose(getattr(classes, field), getattr(numbers, field), rtol=1e-12, atol=1e-12)
    model = np.ones((3, 3)), np.zeros(3)
    np.testing.assert_allclose(classes.squared_errors(*model), numbers.squared_errors(*model), rtol=1e-12)


def test_they_travel_with_the_checks_that_others_get():
    x, y = problem(np.random.default_rng(0))
    moments = joint_moments(x, y, columns="abcd", outcomes=("weight", "height"))
    assert Moments.from_bytes(moments.to_bytes()) == moments
    assert moments.schema.columns == ("a", "b", "c", "d", "weight", "height")


def test_what_does_not_fit_is_refused():
    x, y = problem(np.random.default_rng(0))
    with pytest.raises(InvalidData, match="39 samples but 40 outcomes"):
        joint_moments(x[1:], y)
    with pytest.raises(InvalidParameter, match="both x and y, or of neither"):
        joint_moments(x, y, columns="abcd")
    with pytest.raises(InvalidParameter, match="outcomes must be from 1 to 5 of 6 columns, got 6"):
        Joint.of(joint_moments(x, y), outcomes=6)
    with pytest.raises(Mismatch, match="not moments of numeric outcomes"):
        Joint.of(Moments.of(x, np.arange(40) % 2, classes=2), outcomes=1)

"""Refusals of estimators, and their messages."""

import sys

import numpy as np
import pyarrow
import pytest
from sklearn.exceptions import NotFittedError

from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch, MissingExtra, NotMoments, RankDeficient
from fedgram.sklearn import GramClassifier, GramRegressor
from support.estimators import BOTH, problem


@pytest.mark.parametrize("kind", BOTH)
def test_loo_is_for_fit_alone(kind):
    x, y = problem(kind, np.random.default_rng(0))
    fitted = kind("loo").fit(x, y)
    assert fitted.ridge_ > 0
    for wrong in (
        lambda: kind("loo").partial_fit(x, y),
        lambda: fitted + fitted,
        lambda: fitted - kind("loo").fit(x[:5], y[:5]),
    ):
        with pytest.raises(InvalidParameter, match="ridge='loo' needs all the samples at once"):
            wrong()


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("ridge", [-1.0, np.nan, np.inf, "best", None, True])
def test_a_ridge_that_is_none_is_refused_with_its_value(kind, ridge):
    with pytest.raises(InvalidParameter, match=f"ridge must be .*got {ridge!r}"):
        kind(ridge).fit(*problem(kind, np.random.default_rng(0)))


def test_a_ridge_of_zero_says_the_rank():
    with pytest.warns(RankDeficient, match="rank 1 of 2"):
        GramRegressor(0).fit([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]], [1.0, 2.0, 3.0])


def test_only_what_is_alike_is_combined():
    x, y = problem(GramRegressor, np.random.default_rng(0))
    fitted = GramRegressor().fit(x, y)
    refusals = {
        "different ridge: 'auto' and 1.0": GramRegressor(1.0).fit(x, y),
        "different fit_intercept: True and False": GramRegressor(fit_intercept=False).fit(x, y),
        "5 and 4 features": GramRegressor().fit(x[:, :4], y),
        r"different outcomes: shape \(n, 2\) and shape \(n,\)": GramRegressor().fit(x, y[:, 0]),
        "GramRegressor and GramClassifier": GramClassifier().fit(x, y[:, 0] > 0),
    }
    for message, other in refusals.items():
        for combine in (type(fitted).__add__, type(fitted).__sub__):
            with pytest.raises(Mismatch, match=message):
                combine(fitted, other)
    with pytest.raises(NotFittedError):
        fitted + GramRegressor()
    with pytest.raises(NotMoments, match="nothing would be left"):
        fitted - fitted
    with pytest.raises(TypeError):
        fitted + 3


def table(x, names):
    return pyarrow.table(dict(zip(names, x.T, strict=True)))


@pytest.mark.parametrize("kind", BOTH)
def test_columns_have_names_and_an_order(kind):
    x, y = problem(kind, np.random.default_rng(0), d=2)
    fitted = kind().fit(table(x, ["age", "bmi"]), y)
    assert fitted.feature_names_in_.tolist() == ["age", "bmi"]
    swapped = table(x[:, ::-1], ["bmi", "age"])
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(swapped)
    with pytest.raises(ValueError, match="feature names"):
        fitted.partial_fit(swapped, y)
    with pytest.raises(Mismatch, match="features in another order"):
        fitted + kind().fit(swapped, y)
    with pytest.raises(Mismatch, match="lacks column 'bmi'; has unknown column 'bp'"):
        fitted + kind().fit(table(x, ["age", "bp"]), y)
    with pytest.raises(Mismatch, match="has no column names"):
        fitted + kind().fit(x, y)
    assert (fitted + fitted).feature_names_in_.tolist() == ["age", "bmi"]


def test_blocks_must_agree():
    x, y = problem(GramClassifier, np.random.default_rng(0))
    fitted = GramClassifier().partial_fit(x, y, classes=["bone", "lung", "skin", "liver"])
    assert fitted.predict_proba(x).shape == (60, 4)
    with pytest.raises(InvalidData, match="label 'lng' is not among the classes"):
        fitted.partial_fit(x[:1], ["lng"])
    with pytest.raises(InvalidData, match="name the same, or none"):
        fitted.partial_fit(x, y, classes=["bone", "lung", "skin"])
    outcomes = GramRegressor().partial_fit(x, x[:, 0])
    with pytest.raises(Mismatch, match=r"y has shape \(60, 1\), but was fitted with shape \(n,\)"):
        outcomes.partial_fit(x, x[:, :1])


@pytest.mark.parametrize(
    "weights", [-np.ones(60), np.ones(59), np.ones((60, 2)), np.zeros(60), np.full(60, np.nan), -1.0]
)
def test_weights_must_fit(weights):
    x, y = problem(GramRegressor, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"weight|inconsistent"):
        GramRegressor().fit(x, y, weights)


def test_without_scikit_learn_one_line_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("fedgram.sklearn")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(MissingExtra, match=r"pip install 'fedgram\[sklearn\]'"):
        import fedgram.sklearn  # noqa: F401


def test_classes_by_name_and_by_number_are_not_mixed():
    """NumPy would make texts of the numbers, and put their samples under other classes."""
    x = np.random.default_rng(0).normal(size=(20, 2))
    numbers = GramClassifier().fit(x, np.arange(20) % 2 + 1)
    names = GramClassifier().fit(x, np.where(np.arange(20) % 2, "ill", "well"))
    for one, other in ((numbers, names), (names, numbers)):
        with pytest.raises(Mismatch, match=r"classes \[.*\] and \[.*\]: name them alike"):
            one + other


@pytest.mark.parametrize("kind", BOTH)
def test_masked_arrays_are_refused(kind):
    x, y = problem(kind, np.random.default_rng(0))
    masked, some = np.ma.masked_less(x, -1e9), np.ma.masked_array(y, np.arange(y.size).reshape(y.shape) == 0)
    fitted = kind().fit(x, y)
    for wrong in (
        lambda: kind().fit(masked, y),
        lambda: kind().fit(x, some),
        lambda: kind().partial_fit(masked, y),
        lambda: kind().fit(x, y, np.ma.ones(len(y))),
        lambda: fitted.predict(masked),
    ):
        with pytest.raises(InvalidData, match="expected an array without a mask, got a masked array"):
            wrong()

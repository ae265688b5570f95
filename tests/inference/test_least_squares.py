"""Least squares from sums about the means: statsmodels on the pooled table, for any partition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core.errors import FedgramError
from fedgram.inference.linear import LeastSquares, Sums
from fedgram.inference.table import INTERCEPT
from fedgram.moments.targets import joint_moments
from support.campaign import examples
from support.regression_tables import about_zero, check_rows, figures

sm = pytest.importorskip("statsmodels.api")
NAMES = ("a", "b", "c")


def problem(n, seed, offset=0.0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)) * [1.0, 10.0, 1e-3]
    y = 2 + x @ [0.5, -0.2, 300.0] + rng.normal(size=n)
    return x + offset, y


def in_parts(x, y, sizes):
    ends = np.cumsum(sizes)[:-1]
    parts = [Sums.of(rows, (*NAMES, "y")) for rows in np.split(np.column_stack([x, y]), ends)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return LeastSquares(total).table({name: name for name in NAMES})


@examples(40)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(0, 10**6))
def test_any_partition_gives_statsmodels_table(sizes, seed):
    sizes = [*sizes, 8]
    x, y = problem(sum(sizes), seed, [5.0, 1e5, 2026.0])
    centre = x.mean(axis=0).round()
    fit = sm.OLS(y, sm.add_constant(x - centre, has_constant="add")).fit()
    table = in_parts(x, y, sizes)
    estimates, covariance = about_zero(centre, fit)
    check_rows(table, (INTERCEPT, *NAMES), estimates, np.sqrt(covariance.diagonal()), rtol=1e-8)
    np.testing.assert_allclose(figures(table, "p")[1:], fit.pvalues[1:], rtol=1e-7)
    lows = np.array([table[name].low for name in NAMES])
    np.testing.assert_allclose(lows / fit.bse[1:], fit.conf_int()[1:, 0] / fit.bse[1:], rtol=1e-8, atol=1e-8)
    wanted = {
        "n": fit.nobs,
        "df_residual": fit.df_resid,
        "r_squared": fit.rsquared,
        "adjusted_r_squared": fit.rsquared_adj,
        "f": fit.fvalue,
        "f_p": fit.f_pvalue,
        "log_likelihood": fit.llf,
        "aic": fit.aic,
        "bic": fit.bic,
        "residual_sd": fit.mse_resid**0.5,
    }
    for name, value in wanted.items():
        assert table.summary[name] == pytest.approx(value, rel=1e-8), name


@pytest.mark.parametrize("name", ["longley", "stackloss", "scotland", "ccard"])
def test_data_sets_of_statsmodels(name):
    data = getattr(sm.datasets, name).load()
    x, y = np.asarray(data.exog, dtype=float), np.asarray(data.endog, dtype=float)
    x = x[:, x.std(axis=0) > 0]
    names = [f"x{place}" for place in range(1, x.shape[1] + 1)]
    table = LeastSquares(Sums.of(np.column_stack([x, y]), (*names, "y"))).table({})
    centre = x.mean(axis=0).round()
    fit = sm.OLS(y, sm.add_constant(x - centre)).fit()
    estimates, covariance = about_zero(centre, fit)
    check_rows(table, (INTERCEPT, *names), estimates, np.sqrt(covariance.diagonal()), rtol=1e-8)


def test_longley_has_the_certified_values_of_nist():
    data = sm.datasets.longley.load()
    x, y = np.asarray(data.exog), np.asarray(data.endog)
    table = LeastSquares(
        Sums.of(np.column_stack([x, y]), ("deflator", "gnp", "unemp", "armed", "pop", "year", "y"))
    ).table({})
    certified = {
        INTERCEPT: (-3482258.63459582, 890420.383607373),
        "deflator": (15.0618722713733, 84.9149257747669),
        "gnp": (-0.358191792925910e-01, 0.334910077722432e-01),
        "unemp": (-2.02022980381683, 0.488399681651699),
        "armed": (-1.03322686717359, 0.214274163161675),
        "pop": (-0.511041056535807e-01, 0.226073200069370),
        "year": (1829.15146461355, 455.478499142212),
    }
    for term, (estimate, error) in certified.items():
        assert table[term].estimate == pytest.approx(estimate, rel=1e-9), term
        assert table[term].se == pytest.approx(error, rel=1e-9), term
    assert table.summary["r_squared"] == pytest.approx(0.995479004577296, rel=1e-12)


def test_condition_number_and_variance_inflation_are_those_of_statsmodels():
    from statsmodels.stats.outliers_influence import variance_inflation_factor

    x, y = problem(60, 1, 3.0)
    x[:, 1] += 8 * x[:, 0]
    design = sm.add_constant(x)
    table = in_parts(x, y, [20, 40])
    assert table.summary["condition_number"] == pytest.approx(sm.OLS(y, design).fit().condition_number, rel=1e-8)
    wanted = [variance_inflation_factor(design, place) for place in (1, 2, 3)]
    np.testing.assert_allclose(list(table.vif.values()), wanted, rtol=1e-9)


@examples(30)
@given(st.integers(0, 10**6), st.floats(1e-6, 1e6))
def test_later_columns_that_follow_from_others_are_left_out_by_name(seed, scale):
    x, y = problem(50, seed, 2.0)
    more = np.column_stack([x[:, 0], scale * (x[:, 0] - 2 * x[:, 1]), x[:, 1], np.full(50, 7.0), x[:, 2], -x[:, 2]])
    names = ("a", "sum", "b", "same", "c", "minus")
    table = LeastSquares(Sums.of(np.column_stack([more, y]), (*names, "y"))).table({})
    assert table.aliased == ("b", "same", "minus")
    fit = sm.OLS(y, sm.add_constant(more[:, [0, 1, 4]])).fit()
    check_rows(table, (INTERCEPT, "a", "sum", "c"), fit.params, fit.bse, rtol=1e-7)
    assert any("b, same, minus" in note for note in table.notes)


def test_columns_far_from_zero_lose_digits_and_the_table_says_so():
    x, y = problem(200, 3)
    near, far = (joint_moments(x + offset * np.eye(3)[2], y).coefficients() for offset in (0.0, 100.0))
    assert not any("off by" in note for note in near.notes)
    assert any("x3 is nearly" in note for note in far.notes)
    assert far["x3"].estimate == pytest.approx(near["x3"].estimate, rel=1e-3)


def test_joint_test_of_a_column_is_statsmodels_f_test():
    x, y = problem(80, 5)
    sums = Sums.of(np.column_stack([x, y]), (*NAMES, "y"))
    table = LeastSquares(sums).table({"a": "ward", "b": "age", "c": "ward"})
    fit = sm.OLS(y, sm.add_constant(x)).fit()
    wanted = fit.f_test(np.eye(4)[[1, 3]])
    [test] = table.joint
    assert (test.column, test.df, test.df_residual) == ("ward", 2, 76)
    assert test.statistic == pytest.approx(wanted.fvalue, rel=1e-9)
    assert test.p == pytest.approx(wanted.pvalue, rel=1e-9)


def test_ridge_is_scikit_learns_and_has_no_p_values():
    from sklearn.linear_model import Ridge

    x, y = problem(70, 6, 4.0)
    table = joint_moments(x, y, columns=NAMES, outcomes=["y"]).coefficients(ridge=3.0)
    fit = Ridge(alpha=3.0).fit(x, y)
    np.testing.assert_allclose(figures(table, "estimate"), [fit.intercept_, *fit.coef_], rtol=1e-8)
    assert {row.p for row in table.rows} == {row.se for row in table.rows} == {None}
    centred = x - x.mean(axis=0)
    hat = centred @ np.linalg.solve(centred.T @ centred + 3 * np.eye(3), centred.T)
    assert table.summary["effective_df"] == pytest.approx(1 + np.trace(hat), rel=1e-8)
    assert any("no p values" in note for note in table.notes)
    assert "None" not in table.text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x, 0 * y + 4.1), "outcome 'y': expected numbers that vary"),
        (lambda x, y: (x, x @ [1.0, 2.0, 3.0]), "outcome 'y': expected residuals, got a perfect fit"),
        (lambda x, y: (x[:4], y[:4]), "rows: expected more than the 4 parameters of the model, got 4"),
    ],
)
def test_nothing_to_estimate_is_named(change, message):
    x, y = change(*problem(40, 7))
    with pytest.raises(FedgramError, match=message):
        LeastSquares(Sums.of(np.column_stack([x, y]), (*NAMES, "y"))).table({})
    with pytest.raises(FedgramError, match=message):
        joint_moments(x, y, columns=NAMES, outcomes=["y"]).coefficients()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": 1.0}, "level: expected a number between 0 and 1, got 1"),
        ({"level": float("nan")}, "level: expected"),
        ({"ridge": 0.0}, "ridge: expected a number above 0, got 0"),
        ({"columns": ["d"]}, "unknown column 'd'"),
        ({"outcome": "z"}, "unknown column 'z'"),
        ({"columns": ["y"]}, "columns: expected columns other than the outcome"),
    ],
)
def test_wrong_options_are_named(options, message):
    x, y = problem(40, 8)
    with pytest.raises(FedgramError, match=message):
        joint_moments(x, y, columns=NAMES, outcomes=["y"]).coefficients(**options)


def test_any_column_of_joint_moments_can_be_the_outcome():
    x, y = problem(60, 9)
    moments = joint_moments(x, y, columns=NAMES, outcomes=["y"])
    table = moments.coefficients(outcome="a", columns=["y", "b"])
    fit = sm.OLS(x[:, 0], sm.add_constant(np.column_stack([y, x[:, 1]]))).fit()
    check_rows(table, (INTERCEPT, "y", "b"), fit.params, fit.bse)


def test_an_estimator_has_the_table_of_least_squares_whatever_its_ridge():
    from fedgram.sklearn import GramRegressor

    x, y = problem(90, 10, 2026.0)
    centre = x.mean(axis=0).round()
    fit = sm.OLS(y, sm.add_constant(x - centre)).fit()
    estimates, covariance = about_zero(centre, fit)
    table = (GramRegressor().fit(x[:30], y[:30]) + GramRegressor().fit(x[30:], y[30:])).summary()
    check_rows(table, (INTERCEPT, "x1", "x2", "x3"), estimates, np.sqrt(covariance.diagonal()), rtol=1e-8)
    assert any("shrunk" in note for note in table.notes)
    assert not any("shrunk" in note for note in GramRegressor(ridge=0.0).fit(x, y).summary().notes)
    with pytest.raises(FedgramError, match="fit_intercept"):
        GramRegressor(fit_intercept=False).fit(x, y).summary()
    with pytest.raises(FedgramError, match="without weights"):
        GramRegressor().fit(x, y, sample_weight=np.full(90, 2.0)).summary()


def test_residuals_that_have_lost_digits_are_told():
    x, y = problem(100, 11)
    far, near = (joint_moments(x, y + offset).coefficients() for offset in (1e6, 0.0))
    assert any("the outcome is far from zero" in note for note in far.notes)
    assert not any("the outcome is far from zero" in note for note in near.notes)
    assert far.summary["residual_sd"] == pytest.approx(near.summary["residual_sd"], rel=1e-3)

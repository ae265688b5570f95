"""Sites in linear models: dummies, mixed models and clusters of statsmodels, and lme4's figures for its sleep study."""

import csv
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from fedgram.core.errors import FedgramError
from fedgram.inference.linear import LeastSquares, Sums
from fedgram.inference.site_effects import SITE, BySite
from fedgram.inference.table import INTERCEPT
from support.campaign import examples
from support.regression_tables import check_rows, figures

sm = pytest.importorskip("statsmodels.api")
NAMES = ("a", "b", "c")


def by_site(x, y, sites, names=NAMES):
    """Return what is kept of each site's sums."""
    rows = np.column_stack([x, y])
    parts = {str(site): Sums.of(rows[sites == site], (*names, "y")) for site in np.unique(sites)}
    total = sum(list(parts.values())[1:], start=next(iter(parts.values())))
    found = BySite(LeastSquares(total))
    for name, part in parts.items():
        found.add(name, part, alone=True)
    return found


def problem(sizes, seed, deviation=0.7):
    rng = np.random.default_rng(seed)
    sites = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.normal(size=(len(sites), 3)) + 0.5 * sites[:, None] * [1, 0, -1]
    y = 1 + x @ [1.0, 0.0, -0.5] + deviation * rng.normal(size=len(sizes))[sites] + rng.normal(size=len(sites))
    return x, y, sites


@pytest.fixture(scope="module")
def sleep():
    with (Path(__file__).parent / "sleepstudy.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    days, reaction = (np.array([float(row[name]) for row in rows]) for name in ("Days", "Reaction"))
    return by_site(days[:, None], reaction, np.array([row["Subject"] for row in rows]), ("Days",))


def test_restricted_likelihood_gives_lme4s_figures(sleep):
    table = sleep.random({"Days": "Days"})
    check_rows(
        table, (INTERCEPT, "Days"), np.array([251.40510485, 10.46728596]), np.array([9.74671627, 0.80422143]), rtol=1e-7
    )
    random = table.sites.random
    assert random.site_variance == pytest.approx(1378.17851, rel=1e-7)
    assert random.residual_variance == pytest.approx(960.45658, rel=1e-8)
    assert random.criterion == pytest.approx(1786.465085, abs=1e-6)
    assert [random.effects[name] for name in ("308", "309", "310")] == pytest.approx(
        [40.783710, -77.849554, -63.108567], rel=1e-7
    )
    assert random.icc == pytest.approx(1378.17851 / (1378.17851 + 960.45658), rel=1e-7)
    assert random.p < 1e-20


def test_plain_likelihood_gives_lme4s_figures(sleep):
    random = sleep.random({}, method="ml").sites.random
    assert random.site_variance**0.5 == pytest.approx(36.012082, abs=1e-5)
    assert random.residual_variance**0.5 == pytest.approx(30.895434, abs=1e-6)
    assert random.criterion == pytest.approx(1794.078643, abs=1e-6)


@examples(5)
@given(st.lists(st.integers(2, 25), min_size=3, max_size=9), st.integers(0, 10**6), st.booleans())
def test_random_intercepts_are_at_least_as_likely_as_statsmodels(sizes, seed, restricted):
    sizes = [*sizes, 10]
    x, y, sites = problem(sizes, seed, 1.5)
    table = by_site(x, y, sites).random({}, method="reml" if restricted else "ml")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # at a variance of 0, and where it stops early
        try:
            fit = sm.MixedLM(y, sm.add_constant(x), groups=sites).fit(reml=restricted)
        except np.linalg.LinAlgError:  # statsmodels gives up on a few of these problems
            reject()
    assert table.summary["log_likelihood"] >= fit.llf - 1e-7
    if table.summary["log_likelihood"] < fit.llf + 1e-9:  # statsmodels may stop before the best
        np.testing.assert_allclose(figures(table, "estimate"), fit.fe_params, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("restricted", [True, False])
def test_estimates_of_random_intercepts_are_those_of_the_best_ratio(restricted):
    """The likelihood of a whole covariance matrix, written down as in textbooks, has its maximum there."""
    x, y, sites = problem([12, 7, 30, 5, 18], 3)
    table = by_site(x, y, sites).random({}, method="reml" if restricted else "ml")
    random, design = table.sites.random, sm.add_constant(x)
    same = sites[:, None] == sites

    def criterion(residual, between):
        v = residual * np.eye(len(y)) + between * same
        inverse = np.linalg.inv(v)
        gram = design.T @ inverse @ design
        slopes = np.linalg.solve(gram, design.T @ inverse @ y)
        off = y - design @ slopes
        free = len(y) - 4 if restricted else len(y)
        value = free * np.log(2 * np.pi) + np.linalg.slogdet(v)[1] + off @ inverse @ off
        value += np.linalg.slogdet(gram)[1] if restricted else 0.0
        return (
            value,
            slopes,
            np.linalg.inv(gram),
            between * np.array([(inverse @ off)[sites == k].sum() for k in range(5)]),
        )

    best, slopes, covariance, effects = criterion(random.residual_variance, random.site_variance)
    assert random.criterion == pytest.approx(best, rel=1e-12)
    check_rows(table, (INTERCEPT, *NAMES), slopes, np.sqrt(covariance.diagonal()), rtol=1e-9)
    np.testing.assert_allclose(list(random.effects.values()), effects, rtol=1e-8)
    for residual, between in ((1.001, 1.0), (0.999, 1.0), (1.0, 1.001), (1.0, 0.999)):
        assert criterion(residual * random.residual_variance, between * random.site_variance)[0] > best
    alone = sm.OLS(y, design).fit()
    if not restricted:
        assert random.statistic == pytest.approx(-2 * alone.llf - best, rel=1e-9)


def test_no_variance_between_sites_gives_least_squares():
    rng = np.random.default_rng(0)
    sites = np.repeat(np.arange(4), 25)
    x = rng.normal(size=(100, 3))
    y = x[:, 0] + rng.normal(size=100)
    y -= np.array([y[sites == k].mean() - x[sites == k, 0].mean() for k in range(4)])[sites]
    kept = by_site(x, y, sites)
    table = kept.random({}, method="ml")
    assert table.sites.random.site_variance == 0
    assert table.sites.random.p == 1.0
    np.testing.assert_allclose(figures(table, "estimate"), figures(kept.plain({}), "estimate"), rtol=1e-12, atol=1e-12)


@examples(30)
@given(st.lists(st.integers(1, 20), min_size=2, max_size=9), st.integers(0, 10**6))
def test_fixed_effects_are_least_squares_with_a_dummy_for_each_site(sizes, seed):
    sizes = [*sizes, 12]
    x, y, sites = problem(sizes, seed)
    table = by_site(x, y, sites).fixed({})
    dummies = (sites[:, None] == np.arange(len(sizes))).astype(float)
    fit = sm.OLS(y, np.column_stack([x, dummies])).fit()
    check_rows(table, NAMES, fit.params[:3], fit.bse[:3])
    np.testing.assert_allclose(figures(table, "p"), fit.pvalues[:3], rtol=1e-7)
    np.testing.assert_allclose(list(table.sites.intercepts.values()), fit.params[3:], rtol=1e-8, atol=1e-9)
    names = {"r_squared": "rsquared", "adjusted_r_squared": "rsquared_adj", "aic": "aic", "bic": "bic", "f": "fvalue"}
    for ours, theirs in names.items():
        assert table.summary[ours] == pytest.approx(getattr(fit, theirs), rel=1e-8, abs=1e-9), ours
    without = sm.OLS(y, sm.add_constant(x, has_constant="add")).fit()
    f, p, _ = sm.OLS(y, np.column_stack([x, dummies])).fit().compare_f_test(without)
    [test] = table.joint
    assert (test.column, test.df) == (SITE, len(sizes) - 1)
    assert test.statistic == pytest.approx(f, rel=1e-7, abs=1e-9)
    assert test.p == pytest.approx(p, rel=1e-7)


def test_columns_that_are_constant_within_sites_have_no_fixed_effect():
    x, y, sites = problem([10, 12, 8], 2)
    x[:, 1] = np.array([2026.1, 7.3, 11.0])[sites]
    kept = by_site(x, y, sites)
    assert kept.fixed({}).aliased == ("b",)
    assert kept.plain({}).aliased == ()


def test_a_variance_between_sites_needs_more_sites_than_columns_that_differ_only_between_them():
    x, y, sites = problem([20, 30, 25], 2)
    x[:, 1] = np.array([2026.1, 7.3, 11.0])[sites]
    assert by_site(x, y, sites).random({}).sites.random.site_variance >= 0
    x[:, 2] = np.array([1.0, 2.0, 5.0])[sites]
    with pytest.raises(
        FedgramError, match="expected more than 3 sites beside 2 columns that are constant within sites"
    ):
        by_site(x, y, sites).random({})


@examples(30)
@given(st.lists(st.integers(1, 20), min_size=5, max_size=12), st.integers(0, 10**6))
def test_robust_errors_are_statsmodels_clusters(sizes, seed):
    sizes = [*sizes, 9]
    x, y, sites = problem(sizes, seed)
    table = by_site(x, y, sites).robust({})
    fit = sm.OLS(y, sm.add_constant(x)).fit(cov_type="cluster", cov_kwds={"groups": sites}, use_t=True)
    check_rows(table, (INTERCEPT, *NAMES), fit.params, fit.bse, rtol=1e-8)
    np.testing.assert_allclose(figures(table, "p"), fit.pvalues, rtol=1e-6)
    assert table.summary["f"] == pytest.approx(fit.fvalue, rel=1e-6)
    assert table.df == len(sizes) - 1
    assert any(f"Robust errors of {len(sizes)} sites" in note for note in table.notes)


def test_heterogeneity_is_cochrans_q_of_the_sites_own_fits():
    x, y, sites = problem([40, 15, 5, 60, 3], 4)
    x[sites == 1, 1] = 3.0
    found = {one.term: one for one in by_site(x, y, sites).heterogeneity()}
    for place, name in enumerate(NAMES):
        one = found[name]
        fits = {}
        for site in (0, 1, 2, 3):
            own = [0, 2] if site == 1 else [0, 1, 2]
            if place in own:
                fit = sm.OLS(y[sites == site], sm.add_constant(x[sites == site][:, own])).fit()
                fits[str(site)] = fit.params[1 + own.index(place)], fit.bse[1 + own.index(place)]
        assert {each.site: pytest.approx((each.estimate, each.se), rel=1e-9) for each in one.sites} == fits
        slopes, errors = np.array(list(fits.values())).T
        weights = errors**-2
        mean = weights @ slopes / weights.sum()
        q = weights @ (slopes - mean) ** 2
        assert (one.pooled, one.q, one.df) == pytest.approx((mean, q, len(fits) - 1), rel=1e-9)
        assert one.i_squared == pytest.approx(max(0, 1 - one.df / q), rel=1e-9)
    assert found["a"].left_out == {"4": "it has too few rows"}
    assert found["b"].left_out == {"1": "the term does not vary there", "4": "it has too few rows"}


@pytest.mark.parametrize("name", ["fixed", "random", "robust"])
def test_one_site_is_named(name):
    x, y, sites = problem([40], 5)
    with pytest.raises(
        FedgramError, match=r"sites?.*: expected rows of 2 or more sites, got 1|robust errors: expected"
    ):
        getattr(by_site(x, y, sites), name)({})


@pytest.mark.parametrize("name", ["fixed", "random"])
def test_an_outcome_that_is_constant_within_sites_is_named(name):
    x, _, sites = problem([20, 20, 20], 6)
    with pytest.raises(FedgramError, match="expected numbers that vary within sites"):
        getattr(by_site(x, np.array([1.5, 2.5, 4.0])[sites], sites), name)({})

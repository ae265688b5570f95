"""Descriptives from sums equal those of the rows, however these are spread and however far columns are from zero."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.inference.descriptives import (
    Spread,
    correlations,
    products_about_means,
    standardised_difference_of_shares,
    standardised_differences,
)
from fedgram.moments.moments import Moments
from support.campaign import examples

CENTRES = st.sampled_from([(0.0, 1.0), (2026.0, 1.0), (1e5, 10.0), (-3e-7, 1e-9)])


def spread_of(rows):
    """Return the spread of raw rows (n, d), by way of the sums that a party sends."""
    return Spread.of(np.full(rows.shape[1], float(len(rows))), rows.sum(axis=0), np.square(rows).sum(axis=0))


def whole_numbers(rng, n):
    """Return columns of whole numbers, whose sums are exact, so that no digit of the answer may be lost."""
    return np.column_stack([2026 + rng.integers(-1, 2, n), 100_000 + rng.integers(-10, 11, n), rng.integers(0, 9, n)])


@examples(30)
@given(st.integers(0, 10**6), st.integers(2, 60))
def test_sums_of_far_columns_lose_nothing(seed, n):
    rows = whole_numbers(np.random.default_rng(seed), n).astype(float)
    found = spread_of(rows)
    np.testing.assert_allclose(found.mean, rows.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(found.deviation, rows.std(axis=0, ddof=1), rtol=1e-12)


@examples(30)
@given(st.integers(0, 10**6), CENTRES, st.lists(st.integers(0, 12), min_size=1, max_size=6))
def test_parts_add_up_to_the_whole_and_the_others_are_what_is_left(seed, centre, sizes):
    mean, deviation = centre
    rng = np.random.default_rng(seed)
    parts = [mean + deviation * rng.normal(size=(n, 2)) for n in sizes]
    about = [Spread(np.full(2, float(len(x))), _mean(x), np.square(x - _mean(x)).sum(axis=0)) for x in parts]
    total = about[0]
    for each in about[1:]:
        total = total + each
    whole = np.concatenate(parts)
    _same(total, whole)
    stacked = Spread(*(np.array([getattr(each, name) for each in about]) for name in ("n", "mean", "about")))
    others = stacked.others()
    for k in range(len(parts)):
        rest = np.concatenate([np.empty((0, 2)), *parts[:k], *parts[k + 1 :]])
        _same(Spread(others.n[k], others.mean[k], others.about[k]), rest)


def _mean(x):
    return x.mean(axis=0) if len(x) else np.full(x.shape[1], np.nan)


def _same(found, rows):
    assert (found.n == len(rows)).all()
    if len(rows):
        np.testing.assert_allclose(found.mean, rows.mean(axis=0), rtol=1e-12)
    if len(rows) > 1:
        np.testing.assert_allclose(found.deviation, rows.std(axis=0, ddof=1), rtol=1e-8)
    else:
        assert np.isnan(found.deviation).all()


def test_a_large_group_leaves_no_rounding_in_the_others():
    rng = np.random.default_rng(0)
    large, small = 1e8 + 1e6 * rng.normal(size=(10**5, 1)), 1e-3 * rng.normal(size=(5, 1))
    both = [spread_of(rows - rows.mean(axis=0)) for rows in (large, small)]
    stacked = Spread(*(np.array([getattr(each, name) for each in both]) for name in ("n", "mean", "about")))
    np.testing.assert_allclose(stacked.others().deviation[0], small.std(axis=0, ddof=1), rtol=1e-12)


@pytest.mark.parametrize("value", [0.1, -0.4, 1e8 / 3, -7.0, 0.0])
@pytest.mark.parametrize("n", [2, 1000, 10**4, 10**5])
def test_a_constant_column_does_not_vary(value, n):
    """Also where rounding of its sums has grown, in moments as a party makes them."""
    rows = np.full((n, 1), value)
    assert spread_of(rows).deviation[0] == 0.0
    moments = Moments.of(rows, np.arange(n) % 2, classes=2)
    assert Spread.of(np.array([float(n)]), moments.cross.sum(axis=1), moments.squares).deviation[0] == 0.0


def test_standardised_differences_are_the_formula():
    rng = np.random.default_rng(1)
    one, other = rng.normal(size=(20, 3)), 1 + 2 * rng.normal(size=(35, 3))
    wanted = (one.mean(axis=0) - other.mean(axis=0)) / np.sqrt(
        (one.var(axis=0, ddof=1) + other.var(axis=0, ddof=1)) / 2
    )
    np.testing.assert_allclose(standardised_differences(spread_of(one), spread_of(other)), wanted, rtol=1e-10)


def test_columns_that_vary_nowhere_differ_by_nothing_or_without_bound():
    same, other = spread_of(np.full((5, 1), 2.0)), spread_of(np.full((5, 1), 3.0))
    assert standardised_differences(same, same)[0] == 0.0
    assert np.isnan(standardised_differences(same, other)[0])
    assert np.isnan(standardised_differences(same, spread_of(np.array([[2.0]])))[0])


@examples(30)
@given(st.integers(0, 10**6), st.integers(2, 6))
def test_the_difference_of_categories_is_that_of_their_indicators(seed, levels):
    """With all levels but any one of them, as a Mahalanobis distance from a generalised inverse."""
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.ones(levels), 2)
    covariance = sum(np.diag(each) - np.outer(each, each) for each in (p, q)) / 2
    wanted = np.sqrt((p - q) @ np.linalg.pinv(covariance) @ (p - q))
    found = standardised_difference_of_shares(p, q)
    assert found == pytest.approx(wanted, rel=1e-6)
    with_unused = standardised_difference_of_shares(np.append(p, 0.0), np.append(q, 0.0))
    assert with_unused == pytest.approx(found, rel=1e-9)
    if levels == 2:
        assert found == pytest.approx(abs(p[0] - q[0]) / np.sqrt((p[0] * p[1] + q[0] * q[1]) / 2), rel=1e-9)


def test_categories_without_a_common_level_have_no_finite_difference():
    assert np.isnan(standardised_difference_of_shares(np.array([1.0, 0.0]), np.array([0.0, 1.0])))
    assert np.isnan(standardised_difference_of_shares(np.array([np.nan, np.nan]), np.array([0.5, 0.5])))
    assert standardised_difference_of_shares(np.array([1.0, 0.0]), np.array([1.0, 0.0])) == 0.0


def sums_with_gaps(rows):
    """Return the arguments of `correlations` for rows with NaN for missing values."""
    gaps = np.isnan(rows).astype(float)
    filled = np.where(gaps, 0.0, rows)
    return len(rows), filled.T @ filled, filled.sum(axis=0), gaps.T @ gaps, filled.T @ gaps


@examples(30)
@given(st.integers(0, 10**6))
def test_correlations_without_gaps_are_pearsons(seed):
    rng = np.random.default_rng(seed)
    rows = whole_numbers(rng, 50).astype(float)
    rows[:, 2] += rows[:, 0] - 2026
    found, both = correlations(*sums_with_gaps(rows))
    np.testing.assert_allclose(found, np.corrcoef(rows.T), rtol=1e-9, atol=1e-12)
    assert (both == 50).all()


@examples(30)
@given(st.integers(0, 10**6))
def test_correlations_with_gaps_are_pairwise_covariances_over_deviations(seed):
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(80, 3)) @ np.array([[1.0, 0.5, 0.2], [0.0, 1.0, 0.4], [0.0, 0.0, 1.0]])
    rows[rng.random(rows.shape) < [0.0, 0.2, 0.3]] = np.nan
    frame = pandas.DataFrame(rows)
    found, both = correlations(*sums_with_gaps(rows))
    wanted = frame.cov().to_numpy() / np.outer(frame.std(), frame.std())
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
    known = frame.notna().astype(int)
    assert (both == (known.T @ known).to_numpy()).all()


def test_a_correlation_beyond_one_is_not_told():
    """Few common samples that are far out, and other known values that are close together."""
    one = np.array([-1.0, 1.0, *np.zeros(50), *np.full(50, np.nan)])
    other = np.array([-1.0, 1.0, *np.full(50, np.nan), *np.zeros(50)])
    found, both = correlations(*sums_with_gaps(np.column_stack([one, other])))
    assert np.isnan(found[0, 1])
    assert both[0, 1] == 2
    assert found[0, 0] == 1.0


def test_a_constant_column_has_no_correlation():
    found, _ = correlations(*sums_with_gaps(np.column_stack([np.full(9, 0.1), np.arange(9.0)])))
    assert np.isnan(found[0]).all()
    assert found[1, 1] == 1.0


def test_no_samples_have_no_products():
    assert products_about_means(np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1)) == 0.0

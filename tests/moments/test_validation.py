"""Errors of models on sites they have not seen, from moments, equal those of refitting on the samples."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core.errors import InvalidData, Mismatch
from fedgram.moments.moments import Moments
from fedgram.moments.targets import NumericTargets, joint_moments
from fedgram.protocol.sites import MOST_SITES, validate_sites, without_each
from support.campaign import examples
from support.problems import features, relative_error, seeds, spread_any_way

EPS = np.finfo(float).eps

Y = NumericTargets.named("y")


def refit(x, y, ridge, intercept):
    """Return weights and intercept of ridge regression by least squares on the rows, without normal equations."""
    d, t = x.shape[1], y.shape[1]
    mean, target_mean = (x.mean(axis=0), y.mean(axis=0)) if intercept else (np.zeros(d), np.zeros(t))
    rows = np.vstack([x - mean, np.sqrt(ridge) * np.eye(d)])
    weights = np.linalg.lstsq(rows, np.vstack([y - target_mean, np.zeros((d, t))]), rcond=None)[0]
    return weights, target_mean - mean @ weights


def errors_of(model, x, y):
    weights, offset = model
    return ((y - x @ weights - offset) ** 2).sum(axis=0)


def check(found, x, y, own, others, ridge, intercept, tolerance):
    """Compare a site's errors with those of three models fitted to rows; `tolerance` is relative to the targets."""
    everything = np.concatenate([own, others])
    for error, trained in ((found.left_out, others), (found.pooled, everything), (found.own, own)):
        want = errors_of(refit(x[trained], y[trained], ridge, intercept), x[own], y[own])
        scale = want.max() + (y[own] ** 2).sum()
        np.testing.assert_allclose(error.squared_errors, want, rtol=tolerance, atol=tolerance * scale)
        about = ((y[own] - y[own].mean(axis=0)) ** 2).sum()
        assert error.n == len(own)
        assert error.mse == pytest.approx(want.sum() / y[own].size, rel=tolerance, abs=tolerance * scale)
        assert error.brier == pytest.approx(want.sum() / len(own), rel=tolerance, abs=tolerance * scale)
        if about > 1e-9 * scale:
            assert error.r2 == pytest.approx(1 - want.sum() / about, rel=tolerance, abs=tolerance * scale / about)


@examples(60)
@given(seeds, st.integers(1, 12), st.integers(2, 9), st.booleans(), st.sampled_from([0.01, 1.0, 30.0]))
def test_equal_refitting(seed, d, sites, intercept, ridge):
    rng = np.random.default_rng(seed)
    n, classes = 80, 3
    x, labels = features(rng, n, d) + rng.normal(size=d), rng.integers(0, classes, n)
    parts = [part for part in spread_any_way(rng, n, sites) if len(part)]
    y, everything = np.eye(classes)[labels], np.arange(n)
    if len(parts) < 2:
        return
    by_site = {str(k): Moments.of(x[part], labels[part], classes=classes) for k, part in enumerate(parts)}
    found = validate_sites(by_site, ridge=ridge, intercept=intercept)
    assert list(found) == list(by_site)
    for k, part in enumerate(parts):
        check(found[str(k)], x, y, part, np.setdiff1d(everything, part), ridge, intercept, 1e-10)


@examples(40)
@given(seeds, st.integers(1, 8), st.integers(1, 3), st.booleans())
def test_equal_refitting_for_numeric_outcomes(seed, d, outcomes, intercept):
    rng = np.random.default_rng(seed)
    n = 60
    x = features(rng, n, d) + rng.normal(size=d)
    y = x @ rng.normal(size=(d, outcomes)) + 0.3 * rng.normal(size=(n, outcomes)) + 2.0
    parts = [np.arange(n)[k::3] for k in range(3)]
    by_site = {str(k): joint_moments(x[part], y[part]) for k, part in enumerate(parts)}
    found = validate_sites(
        by_site, ridge=0.5, intercept=intercept, targets=NumericTargets.named(*"abcdefgh"[:outcomes])
    )
    for k, part in enumerate(parts):
        check(found[str(k)], x, y, part, np.setdiff1d(np.arange(n), part), 0.5, intercept, 1e-10)


@examples(40)
@given(seeds, st.sampled_from([1e2, 1e4, 1e6]))
def test_ill_conditioned_features_cost_no_more_than_the_condition_squared(seed, condition):
    """Normal equations lose cond² · eps: the errors may differ by that, relative to the size of the targets."""
    rng = np.random.default_rng(seed)
    n, d = 90, 6
    x, labels = features(rng, n, d, condition=condition), rng.integers(0, 2, n)
    parts = [np.arange(n)[k::3] for k in range(3)]
    by_site = {str(k): Moments.of(x[part], labels[part], classes=2) for k, part in enumerate(parts)}
    ridge = n / condition**2  # as large as the smallest eigenvalue
    found = validate_sites(by_site, ridge=ridge)
    bound = max(1e-10, 100 * condition**2 * EPS)
    for k, part in enumerate(parts):
        check(found[str(k)], x, np.eye(2)[labels], part, np.setdiff1d(np.arange(n), part), ridge, True, bound)


def test_columns_far_from_zero_keep_their_digits():
    """Years: raw moments lose (mean / standard deviation)² of their digits, and that is the bound."""
    rng = np.random.default_rng(0)
    x, parts = 2026 + rng.normal(size=(90, 2)), [np.arange(90)[k::3] for k in range(3)]
    y = (x - 2026) @ np.array([[1.0], [-2.0]]) + rng.normal(size=(90, 1))
    found = validate_sites({str(k): joint_moments(x[p], y[p]) for k, p in enumerate(parts)}, ridge=1.0, targets=Y)
    for k, part in enumerate(parts):
        check(found[str(k)], x, y, part, np.setdiff1d(np.arange(90), part), 1.0, True, 10 * 2026**2 * EPS)


def test_a_huge_site_does_not_blur_the_others():
    """The others are added up, not subtracted from the total: beside the huge site only rounding would be left."""
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(60, 3)), rng.integers(0, 2, 60)
    x[:20] *= 1e7
    parts = [np.arange(20), np.arange(20, 40), np.arange(40, 60)]
    by_site = {str(k): Moments.of(x[part], labels[part], classes=2) for k, part in enumerate(parts)}
    found = validate_sites(by_site, ridge=1.0)["0"].left_out
    want = errors_of(refit(x[20:], np.eye(2)[labels[20:]], 1.0, True), x[:20], np.eye(2)[labels[:20]])
    np.testing.assert_allclose(found.squared_errors, want, rtol=1e-10)


def test_the_ridge_is_chosen_anew_for_each_model():
    rng = np.random.default_rng(1)
    x, labels = rng.normal(size=(60, 12)), rng.integers(0, 2, 60)
    parts = [np.arange(60)[k::3] for k in range(3)]
    by_site = [Moments.of(x[part], labels[part], classes=2) for part in parts]
    found = validate_sites({str(k): part for k, part in enumerate(by_site)})
    others = Moments.sum(by_site[1:])
    ridge = others.regression(intercept=True).cross_validated()
    rows = np.concatenate(parts[1:])
    want = errors_of(refit(x[rows], np.eye(2)[labels[rows]], ridge, True), x[parts[0]], np.eye(2)[labels[parts[0]]])
    np.testing.assert_allclose(found["0"].left_out.squared_errors, want, rtol=1e-10)


@examples(20)
@given(seeds, st.integers(2, 20))
def test_without_each_leaves_one_out(seed, count):
    rng = np.random.default_rng(seed)
    parts = [Moments.of(rng.normal(size=(3, 2)), [0, 1, 0], classes=2) for _ in range(count)]
    for k, found in enumerate(without_each(parts)):
        want = Moments.sum([part for i, part in enumerate(parts) if i != k])
        assert found.n == want.n
        assert relative_error(found.gram, want.gram) < 1e-13
        assert relative_error(found.cross, want.cross) < 1e-13


def test_a_site_that_does_not_fit_the_others_is_seen():
    rng = np.random.default_rng(0)
    sites = {}
    for name in ("north", "south", "east", "odd"):
        x = rng.normal(size=(50, 3))
        sites[name] = joint_moments(x, x @ [1.0, 2.0, 0.0] * (-1 if name == "odd" else 1) + 0.1 * rng.normal(size=50))
    found = validate_sites(sites, targets=Y)
    assert found["odd"].left_out.r2 < 0
    assert found["odd"].own.r2 > 0.9
    assert all(site.own.mse < 0.02 for site in found.values())


def test_a_site_may_lack_a_class_a_sample_or_variation():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(40, 2)), rng.integers(0, 2, 40)
    sites = {
        "both": Moments.of(x, labels, classes=2),
        "one class": Moments.of(x[labels == 1], labels[labels == 1], classes=2),
        "nobody": Moments.of(x[:0], labels[:0], classes=2),
    }
    with warnings.catch_warnings(action="error"):
        found = validate_sites(sites)
    assert np.isnan(found["one class"].left_out.r2)
    assert found["one class"].own.brier == pytest.approx(0.0, abs=1e-20)
    assert np.isnan(found["nobody"].left_out.mse)
    assert found["both"].left_out.brier > 0


def test_columns_are_aligned_by_name():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(40, 2)), rng.integers(0, 2, 40)
    first = Moments.of(x[:20], labels[:20], classes=2, columns=("age", "bmi"))
    second = Moments.of(x[20:], labels[20:], classes=2, columns=("age", "bmi"))
    plain = validate_sites({"a": first, "b": second}, ridge=1.0)
    mixed = validate_sites({"a": first, "b": second.reordered(("bmi", "age"))}, ridge=1.0)
    for name in plain:
        assert mixed[name].left_out.brier == pytest.approx(plain[name].left_out.brier, rel=1e-12)
    other = Moments.of(x[20:], labels[20:], classes=2, columns=("age", "weight"))
    with pytest.raises(Mismatch, match="lacks column 'bmi'"):
        validate_sites({"a": first, "b": other})


def test_refuses_too_few_and_too_many_sites():
    site = Moments.of(np.eye(2), [0, 1], classes=2)
    with pytest.raises(InvalidData, match=r"needs two or more with samples, got 1 sites: \['alone'\]"):
        validate_sites({"alone": site})
    with pytest.raises(InvalidData, match="65 sites are more than the 64"):
        validate_sites({str(k): site for k in range(MOST_SITES + 1)})
    assert len(validate_sites({str(k): site for k in range(MOST_SITES)}, ridge=1.0)) == MOST_SITES


@given(seeds)
def test_a_site_whose_outcome_does_not_vary_has_no_variance_to_explain(seed):
    """Rounding is not variance: R² was -3e19, and the site was marked as not fitting the others."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(47, 3))
    y = 3 + x @ [1.0, 2.0, 0.0] + 0.1 * rng.normal(size=47)
    y[:7] = rng.normal()
    found = validate_sites({"same": joint_moments(x[:7], y[:7]), "others": joint_moments(x[7:], y[7:])}, targets=Y)
    assert np.isnan(found["same"].left_out.r2)
    assert found["others"].own.r2 > 0.9

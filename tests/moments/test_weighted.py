"""Moments of weighted samples about their means: values, addition, subtraction and refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from fedgram.core.errors import InvalidData, NotMoments
from fedgram.moments import packing
from fedgram.moments.weighted import Samples, WeightedMoments, leave_one_out
from support.campaign import examples
from support.problems import seeds

FIELDS = ("weight", "mean", "target_mean", "packed", "cross", "squares")


def problem(rng, n=40, d=4, t=2):
    x = rng.normal(size=(n, d))
    return Samples(x, x @ rng.normal(size=(d, t)) + rng.normal(size=(n, t)), rng.integers(1, 5, n) / 2)


def part(samples, rows):
    weights = None if samples.weights is None else samples.weights[rows]
    return samples._replace(x=samples.x[rows], y=samples.y[rows], weights=weights)


def assert_same(found, wanted, whole=None):
    """Compare moments; where something was subtracted, up to the rounding errors of the whole it was taken from."""
    assert found.n == wanted.n
    for field in FIELDS:
        size = np.abs(getattr(whole or wanted, field)).max()
        np.testing.assert_allclose(
            getattr(found, field), getattr(wanted, field), rtol=1e-11, atol=1e-11 * size, err_msg=field
        )


@examples(40)
@given(seeds, st.integers(1, 5), st.booleans(), st.sampled_from([0.0, 2026.0]))
def test_are_the_moments(seed, d, weighted, where):
    rng = np.random.default_rng(seed)
    x, y, weights, _ = problem(rng, d=d)
    x, own = x + where, weights if weighted else np.ones(len(x))
    found = WeightedMoments.of(Samples(x, y, weights if weighted else None))
    mean, target_mean = own @ x / own.sum(), own @ y / own.sum()
    rows, targets = x - mean, y - target_mean
    np.testing.assert_allclose(found.mean, mean, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(packing.unpack(found.packed, d), (rows.T * own) @ rows, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(found.cross, (rows.T * own) @ targets, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(found.squares, own @ targets**2, rtol=1e-11)
    assert found.weight == pytest.approx(own.sum())


def test_many_blocks_sparse_features_and_float32_give_the_same():
    rng = np.random.default_rng(0)
    x = np.where(rng.random((5000, 6)) < 0.8, 0.0, rng.integers(-8, 8, (5000, 6)))
    labels, weights = rng.integers(0, 3, 5000), rng.integers(0, 3, 5000).astype(float)
    plain = WeightedMoments.of(Samples(x, labels, weights, 3))
    assert_same(WeightedMoments.of(Samples(csr_array(x), labels, weights, 3)), plain)
    assert_same(WeightedMoments.of(Samples(x.astype(np.float32), labels, weights, 3)), plain)
    assert_same(WeightedMoments.of(Samples(x, np.eye(3)[labels], weights)), plain)


@examples(60)
@given(seeds, st.integers(2, 8), st.booleans())
def test_parts_add_up_in_any_order_and_leave_again(seed, parts, weighted):
    rng = np.random.default_rng(seed)
    samples = problem(rng)
    samples = samples if weighted else samples._replace(weights=None)
    cuts = np.split(rng.permutation(40), np.sort(rng.choice(np.arange(1, 40), parts - 1, replace=False)))
    whole, each = WeightedMoments.of(samples), [WeightedMoments.of(part(samples, rows)) for rows in cuts]
    total = each[0]
    for one in each[1:]:
        total = total + one
    assert_same(total, whole)
    rest = WeightedMoments.of(part(samples, np.concatenate(cuts[1:])))
    assert_same(total - each[0], rest, whole)


def test_a_feature_that_never_varies_is_exactly_zero():
    x = np.column_stack([np.full(3000, 0.1), np.arange(3000.0)])
    halves = [WeightedMoments.of(Samples(x[rows], x[rows])) for rows in (slice(2500), slice(2500, None))]
    for found in (WeightedMoments.of(Samples(x, x)), halves[0] + halves[1]):
        assert not packing.unpack(found.packed, 2)[0].any()
        assert not found.cross[0].any()


def test_a_feature_that_only_the_leaver_had_is_gone():
    rng = np.random.default_rng(0)
    x, y, _, _ = problem(rng)
    x[20:, 0] = 7.0
    stays, leaves = WeightedMoments.of(Samples(x[20:], y[20:])), WeightedMoments.of(Samples(x[:20], y[:20]))
    rest = stays + leaves - leaves
    assert not packing.unpack(rest.packed, 4)[0].any()
    assert not rest.cross[0].any()


def test_what_was_never_added_cannot_leave():
    rng = np.random.default_rng(0)
    few, many = (WeightedMoments.of(problem(rng, n=n)) for n in (10, 40))
    with pytest.raises(NotMoments, match="nothing would be left"):
        few - many
    with pytest.raises(NotMoments, match="nothing would be left"):
        many - many
    other = problem(rng, n=10)
    with pytest.raises(NotMoments, match="not the moments of samples that were added"):
        many - WeightedMoments.of(other._replace(x=100 * other.x))


def test_what_cannot_be_squared_or_weighed_is_refused():
    x, y = np.array([[1e200], [-1e200]]), np.ones((2, 1))
    with pytest.raises(InvalidData, match="rescale them"):
        WeightedMoments.of(Samples(x, y))
    with pytest.raises(InvalidData, match=r"add up to 0\.0"):
        WeightedMoments.of(Samples(y, y, np.zeros(2)))


@examples(20)
@given(seeds, st.booleans(), st.booleans())
def test_leave_one_out_is_that_of_refitting(seed, intercept, weighted):
    rng = np.random.default_rng(seed)
    samples = problem(rng, n=15)
    samples = samples if weighted else samples._replace(weights=None)
    full = WeightedMoments.of(samples).regression(intercept=intercept)
    chosen = leave_one_out(full, samples)
    values, _ = full.eigenpairs
    errors = {}
    for ridge in values.mean() * np.geomspace(1e-5, 1e3, 49):
        errors[ridge] = 0.0
        for i in range(15):
            others = np.delete(np.arange(15), i)
            rest = WeightedMoments.of(part(samples, others)).regression(intercept=intercept)
            weights, _ = rest.solve(ridge)
            offset = rest.offset(weights)
            miss = samples.y[i] - samples.x[i] @ weights - (0 if offset is None else offset)
            errors[ridge] += (samples.weights[i] if weighted else 1) * (miss @ miss)
    assert errors[min(errors, key=lambda ridge: abs(ridge - chosen))] <= min(errors.values()) * (1 + 1e-8)

"""Weights on the simplex are the best ones: they meet the optimality conditions of their quadratic program."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.methods.gradient.fedpac import best_mixtures, smallest_on_simplex


def misses(q, weights):
    """Return the violation of the optimality conditions (KKT) by the weights, relative to the entries of Q.

    On the simplex, Qα is the same wherever α is positive, and at least that elsewhere.
    """
    slope, value = q @ weights, weights @ q @ weights
    beyond = np.where(weights > 1e-9, np.abs(slope - value), value - slope)
    return max(beyond.max() / max(np.abs(q).max(), 1e-300), abs(weights.sum() - 1), -weights.min())


@given(
    st.integers(1, 12),
    st.integers(0, 12),
    st.floats(0, 2),
    st.sampled_from([1e-12, 1.0, 1e9]),
    st.integers(0, 2**32 - 1),
)
def test_the_optimality_conditions_hold_for_any_problem(n, rank, ridge, scale, seed):
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(n, rank)) * rng.choice([1e-3, 1.0, 30.0], size=(n, 1))
    q = scale * (factor @ factor.T + np.diag(ridge * rng.random(n)))
    assert misses(q, smallest_on_simplex(q)) < 1e-7


@given(st.integers(1, 10), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_mixtures_are_the_best_estimates_of_each_point(k, m, seed):
    rng = np.random.default_rng(seed)
    points, variances = rng.normal(size=(k, m)) + 100 * rng.normal(size=m), rng.exponential(size=k)
    mixtures = best_mixtures(points, variances)
    for own, weights in zip(points, mixtures, strict=True):
        apart = own - points  # (k, m)
        assert misses(apart @ apart.T + np.diag(variances), weights) < 1e-7


def test_the_diagonal_problem_weighs_by_one_over_the_variance():
    variances = np.array([1.0, 2.0, 4.0])
    np.testing.assert_allclose(smallest_on_simplex(np.diag(variances)), 1 / variances / (1 / variances).sum())


def test_points_that_are_the_same_are_averaged_and_points_far_away_left_out():
    points = np.array([[0.0, 0.0], [0.0, 0.0], [100.0, 100.0]])
    mixtures = best_mixtures(points, np.ones(3))
    np.testing.assert_allclose(mixtures, [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]], atol=1e-3)
    dropped = best_mixtures(points, np.ones(3), smallest=1e-3)
    np.testing.assert_allclose(dropped, [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]], atol=1e-12)


def test_a_hundred_clients_in_groups_of_the_same_data():
    rng = np.random.default_rng(0)
    points = np.repeat(rng.normal(size=(5, 40)), 20, axis=0) + 1e-9 * rng.normal(size=(100, 40))
    variances = np.append(rng.exponential(size=99), 0.0)
    mixtures = best_mixtures(points, variances)
    for own, weights in zip(points, mixtures, strict=True):
        assert misses((own - points) @ (own - points).T + np.diag(variances), weights) < 1e-7


def test_of_many_equal_points_none_is_too_small():
    np.testing.assert_allclose(best_mixtures(np.zeros((4, 2)), np.ones(4), smallest=0.3), np.full((4, 4), 0.25))


@pytest.mark.parametrize("n", [1, 3])
def test_without_any_variance_all_weigh_the_same(n):
    np.testing.assert_array_equal(smallest_on_simplex(np.zeros((n, n))), np.full(n, 1 / n))


@pytest.mark.parametrize("absurd", [1e15, 1e300])
def test_a_point_of_an_absurd_size_takes_nothing_from_the_others(absurd):
    rng = np.random.default_rng(0)
    factor = rng.normal(size=(4, 4))
    q = factor @ factor.T
    alone = smallest_on_simplex(q)
    wide = np.zeros((5, 5))
    wide[1:, 1:], wide[0, 0] = q, absurd
    np.testing.assert_allclose(smallest_on_simplex(wide), np.append(0, alone), atol=1e-6)

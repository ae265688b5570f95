"""Factors of Gram matrices, and the solves made of them."""

import tracemalloc
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.core.errors import InvalidParameter, RankDeficient
from fedgram.moments import packing, solve
from reference import recursions
from support.campaign import examples
from support.problems import features, least_norm, relative_error, seeds

sizes = st.integers(1, 30)


@given(seeds, sizes, st.integers(1, 40))
def test_norm_by_columns(seed, d, columns):
    full = np.random.default_rng(seed).normal(size=(d, d))
    full += full.T
    with mock.patch.object(solve, "COLUMNS_AT_ONCE", columns):
        np.testing.assert_allclose(solve._norm(np.tril(full)), np.linalg.norm(full, 1), rtol=1e-13)


def test_factoring_takes_one_matrix_beside_the_packed_one():
    d = 1500
    packed = packing.pack(np.eye(d))
    tracemalloc.start()
    solve.factor(packed, d, ridge=1.0, n=d)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.6 * 8 * d * d


@given(seeds, sizes, st.integers(0, 30))
def test_triangular_factor(seed, m, more):
    rows = np.random.default_rng(seed).normal(size=(m, m + more))
    r = solve.triangular_factor(rows)
    np.testing.assert_allclose(r.T @ r, rows.T @ rows, atol=1e-12 * len(rows) * 10)
    assert np.array_equal(np.triu(r), r)
    assert (np.diag(r) >= 0).all()


def test_triangular_factor_of_degenerate_rows():
    rows = np.zeros((4, 9))
    rows[:, 5:] = np.arange(16).reshape(4, 4)  # the leading columns are zero, the rest of rank 2
    r = solve.triangular_factor(rows)
    np.testing.assert_allclose(r.T @ r, rows.T @ rows, atol=1e-10)


@given(seeds, sizes, st.sampled_from([0.0, 1e-3, 1.0, 1e3]))
def test_factor_solves_many_right_hand_sides(seed, d, ridge):
    rng = np.random.default_rng(seed)
    x, rhs = features(rng, d + 20, d), rng.normal(size=(d, 3))
    gram = x.T @ x
    factor = solve.factor(packing.pack(gram), d, ridge=ridge, n=len(x))
    assert factor.rank == d
    assert relative_error(factor.solve(rhs), np.linalg.solve(gram + ridge * np.eye(d), rhs)) < 1e-9


@given(seeds, st.integers(2, 20), st.data())
def test_singular_system_gives_the_minimum_norm_solution_and_says_the_rank(seed, d, data):
    rank = data.draw(st.integers(1, d - 1))
    rng = np.random.default_rng(seed)
    x, y = features(rng, d + 10, d, rank=rank), rng.normal(size=(d + 10, 2))
    with pytest.warns(RankDeficient, match=f"rank {rank} of {d}"):
        factor = solve.factor(packing.pack(x.T @ x), d, n=len(x))
    assert factor.rank == rank
    assert relative_error(factor.solve(x.T @ y), least_norm(x, y)) < 1e-8


@given(seeds, st.integers(3, 8), st.integers(4, 8), st.booleans())
@example(1260, 4, 5, False)
def test_small_units_are_not_lost_where_a_column_says_nothing_new(seed, d, digits, zero):
    """A column of zeros, or one that others give, had all columns in much smaller units count as zero, too."""
    rng = np.random.default_rng(seed)
    plain, y = rng.normal(size=(d + 20, d)), rng.normal(size=(d + 20, 2))
    plain[:, 1] = 0.0 if zero else plain[:, 2] - 2 * plain[:, 0]
    units = 10.0 ** rng.integers(-digits, digits + 1, d)
    units[:2], units[2] = (1.0, 10.0 ** (digits + 2)), 10.0**-digits
    x = plain * units
    with pytest.warns(RankDeficient, match=f"rank {d - 1} of {d}"):
        factor = solve.factor(packing.pack(x.T @ x), d, n=len(x))
    weights = factor.solve(x.T @ y)
    assert relative_error(x @ weights, plain @ (np.linalg.pinv(plain) @ y)) < 1e-7


def test_nothing_but_zeros():
    with pytest.warns(RankDeficient, match="rank 0 of 3"):
        factor = solve.factor(np.zeros(6), 3)
    assert np.array_equal(factor.solve(np.ones((3, 2))), np.zeros((3, 2)))


@pytest.mark.parametrize("ridge", [-1.0, float("nan"), float("inf")])
def test_bad_ridge(ridge):
    with pytest.raises(InvalidParameter, match="ridge must be a number ≥ 0"):
        solve.factor(np.ones(1), 1, ridge=ridge)


@given(seeds, sizes)
def test_positive_semidefiniteness(seed, d):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(max(1, d // 2), d))
    gram = x.T @ x
    shift = np.linalg.eigvalsh(gram)[0] + 0.01 * np.trace(gram)
    slack = solve.rounding_level(d, len(x)) * np.trace(gram) * 8
    assert solve.is_positive_semidefinite(packing.pack(gram), d, slack)
    assert not solve.is_positive_semidefinite(packing.pack(gram - shift * np.eye(d)), d, slack)


@examples(25)
@given(seeds, st.integers(1, 6), st.floats(-2, 2))
def test_recursions_equal_their_closed_forms(seed, clients, log_ridge):
    rng = np.random.default_rng(seed)
    ridge, d = 10**log_ridge, 8
    x, y = features(rng, 120, d), rng.integers(0, 3, 120)
    pairs = [(x[part], np.eye(3)[y[part]]) for part in np.array_split(rng.permutation(120), clients)]
    gram, cross = x.T @ x, x.T @ np.eye(3)[y]
    S, M, G = recursions.fedhip(pairs, ridge)
    assert relative_error(S, gram + clients * ridge * np.eye(d)) < 1e-10  # FedHiP (9)
    assert relative_error(M, np.linalg.solve(S, cross)) < 1e-9  # FedHiP (15)
    want = np.linalg.solve(gram + ridge * np.eye(d), cross)
    assert relative_error(G, want) < 1e-9  # FedHiP (24)
    assert relative_error(recursions.apfl(pairs, ridge), want) < 1e-7  # APFL (2)


@given(seeds, st.integers(1, 12), st.integers(0, 20), st.booleans())
def test_few_samples_are_decomposed_without_a_large_matrix(seed, n, more, twice):
    """The result by the rank equals that of a dense decomposition, also for dependent samples."""
    d = 3 * n + more
    x = np.random.default_rng(seed).normal(size=(n, d)) * np.geomspace(1, 1e3, d)
    if twice:
        x[-1] = x[0]
    gram = x.T @ x
    values, vectors = solve.eigenpairs(packing.pack(gram), d, n)
    rank = np.linalg.matrix_rank(x)
    assert values.shape == (rank,)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(gram)[-rank:], rtol=1e-8)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(rank), atol=1e-12)
    np.testing.assert_allclose((vectors * values) @ vectors.T, gram, atol=1e-12 * np.abs(gram).max())


def test_only_many_samples_need_the_large_decomposition(monkeypatch):
    """APFL's default of 1,024 random features took seconds for a table of 200 rows, on a busy machine even more."""

    def refused(*_, **__):
        raise AssertionError("d x d")

    monkeypatch.setattr(solve, "eigh", refused)
    x = np.random.default_rng(0).normal(size=(20, 90))
    for n in (20, 1):  # a sum of small weights may be less than the rank
        values, _ = solve.eigenpairs(packing.pack(x.T @ x), 90, n)
        assert len(values) == 20
    for rows in (x[:, :40], np.zeros((5, 40))):
        with pytest.raises(AssertionError, match="d x d"):
            solve.eigenpairs(packing.pack(rows.T @ rows), 40, 5)


def test_a_ridge_may_be_a_whole_number_of_any_size():
    """The settings of a forged fit had 2**70, which NumPy does not take for a number."""
    moments = fg.Moments.of(np.eye(3), [0, 1, 1], classes=2)
    assert np.abs(moments.solve(ridge=2**70)).max() < 1e-20
    with pytest.raises(InvalidParameter, match="ridge must be a number ≥ 0"):
        moments.solve(ridge=-(2**70))

"""Eigenpairs of few samples are those of the whole matrix, also where columns have very different units."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.moments import packing, solve
from support.campaign import examples


@examples(30)
@given(n=st.integers(1, 20), large=st.sampled_from([1.0, 1e3, 1e6, 4e6]), seed=st.integers(0, 100))
def test_they_are_those_of_the_whole_matrix(n, large, seed):
    x = np.random.default_rng(seed).normal(size=(n, 60))
    x[:, 0] *= large
    gram = x.T @ x
    values, vectors = solve.eigenpairs_of_few(gram, 1e-13 * float(gram.diagonal().max()))
    want = np.linalg.eigvalsh(gram)[-n:]
    assert len(values) == n
    # LAPACK's own errors are as large, in units of the largest.
    np.testing.assert_allclose(values, want, rtol=1e-9, atol=1e-14 * want[-1])
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(n), atol=1e-9)
    np.testing.assert_allclose((vectors * values) @ vectors.T, gram, rtol=1e-9, atol=1e-11 * large**2)


@pytest.mark.parametrize("large", [1.0, 4e6])
def test_few_samples_lose_no_rank(large):
    x = np.random.default_rng(0).normal(size=(180, 600))
    x[:, 0] *= large
    packed = packing.pack(x.T @ x)
    values, _ = solve.eigenpairs(packed, 600, 180)
    whole = np.linalg.eigvalsh(x.T @ x)
    assert len(values) == np.count_nonzero(whole > solve.rounding_level(600, 180) * whole[-1])


def test_nothing_at_all_has_no_eigenpairs():
    assert solve.eigenpairs_of_few(np.zeros((9, 9)), 0.0) is None

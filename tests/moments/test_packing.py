"""Packed symmetric matrices: the same numbers as whole ones."""

from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedgram.moments import packing
from support.problems import seeds

sizes = st.integers(1, 30)


@given(seeds, sizes, st.integers(1, 40))
def test_packing_round_trip(seed, d, columns):
    full = np.random.default_rng(seed).normal(size=(d, d))
    full += full.T
    packed = packing.pack(full)
    assert packed.shape == (packing.size(d),)
    with mock.patch.object(packing, "COLUMNS_AT_ONCE", columns):
        assert np.array_equal(packing.unpack(packed, d), full)
        assert np.array_equal(packing.lower_triangle(packed, d), np.tril(full))
    assert np.array_equal(packed[packing.diagonal(d)], np.diag(full))


@given(seeds, sizes, sizes)
def test_add_gram(seed, m, d):
    rng = np.random.default_rng(seed)
    rows, start = rng.normal(size=(m, d)), rng.normal(size=(d, d))
    start += start.T
    packed = packing.pack(start)
    packing.add_gram(packed, rows)
    np.testing.assert_allclose(packing.unpack(packed, d), start + rows.T @ rows, atol=1e-12)


@given(seeds, st.integers(1, 20), st.data())
def test_add_block(seed, d, data):
    """Below the diagonal or on it, left or right of the middle of the packed format, or across it."""
    rng = np.random.default_rng(seed)
    packed = np.zeros(packing.size(d))
    column = data.draw(st.integers(0, d - 1))
    k = data.draw(st.integers(1, d - column))
    row = data.draw(st.sampled_from([column, *range(column + k, d)]))
    m = k if row == column else data.draw(st.integers(1, d - row))
    block, want = rng.normal(size=(m, k)), np.zeros((d, d))
    want[row : row + m, column : column + k] = np.tril(block) if row == column else block
    for order in "CF":
        packing.add_block(packed, d, row, column, block.copy(order))
    assert np.array_equal(packing.unpack(packed, d), 2 * (want + np.tril(want, -1).T))

"""Fixed point against whole numbers and fractions of Python, which are exact."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core.errors import InvalidData, Mismatch
from fedgram.core.fixed_point import BLOCK, LIMIT, Fixed
from support.campaign import examples

SIZES = st.floats(min_value=-(2.0**61), max_value=2.0**61) | st.floats(min_value=-(2.0**-50), max_value=2.0**-50)
LISTS = st.lists(SIZES, min_size=1, max_size=20)


def whole(fixed):
    """Return the numbers times 2⁶⁴, as whole numbers of Python."""
    unsigned = [(int(high) << 64) | int(low) for high, low in zip(fixed.high, fixed.low, strict=True)]
    return [value - (1 << 128) if value >> 127 else value for value in unsigned]


@given(LISTS)
@examples(200)
def test_numbers_become_the_nearest_multiples(x):
    assert whole(Fixed.of(np.array(x))) == [round(Fraction(value) * 2**64) for value in x]


@given(st.lists(st.integers(min_value=-(2**127), max_value=2**127 - 1), min_size=1, max_size=20))
@examples(200)
def test_numbers_come_back_correctly_rounded(values):
    limbs = [(value % 2**128 >> 64, value % 2**64) for value in values]
    high, low = (np.array(part, dtype=np.uint64) for part in zip(*limbs, strict=True))
    assert Fixed(high, low).floats().tolist() == [float(Fraction(value, 2**64)) for value in values]


@pytest.mark.parametrize("value", [2**117 + 2**63, 2**117 + 2**64 + 2**63, 2**117 + 2**63 + 1, -(2**63), 2**127 - 1, 0])
def test_ties_and_edges_round_as_fractions_do(value):
    fixed = Fixed(np.array([value % 2**128 >> 64], dtype=np.uint64), np.array([value % 2**64], dtype=np.uint64))
    assert fixed.floats().tolist() == [float(Fraction(value, 2**64))]


@given(st.lists(SIZES.map(lambda x: x / 64), min_size=2, max_size=12), st.randoms())
@examples(200)
def test_a_sum_is_exact_in_any_order(x, random):
    parts = [Fixed.of(np.array([value])) for value in x]
    shuffled = list(parts)
    random.shuffle(shuffled)
    total = sum(parts[1:], start=parts[0])
    assert total == sum(shuffled[1:], start=shuffled[0])
    assert whole(total) == [sum(whole(part)[0] for part in parts)]
    gone = random.choice(parts)
    rest = [part for part in parts if part is not gone]
    assert total - gone == sum(rest[1:], start=rest[0])


def test_numbers_of_at_least_a_4096th_lose_nothing():
    x = np.ldexp(np.random.default_rng(0).uniform(1, 2, size=500), np.arange(500) % 60 - 12)
    assert np.array_equal(Fixed.of(x).floats(), x)
    tiny = x * 2.0**-30
    assert np.abs(Fixed.of(tiny).floats() - tiny).max() <= 2.0**-65


def test_long_arrays_are_as_short_ones():
    x = np.random.default_rng(1).normal(size=BLOCK + 7)
    whole_array, last = Fixed.of(x), Fixed.of(x[-7:])
    assert np.abs(whole_array.floats() - x).max() <= 2.0**-65
    assert np.array_equal(whole_array.low[-7:], last.low)
    assert np.array_equal((whole_array + whole_array).floats(), 2 * whole_array.floats())


@given(LISTS, LISTS)
@examples(50)
def test_adding_floats_is_converting_and_adding(x, y):
    x, y = np.array(x), np.array(y)
    both = np.concatenate([x, y])
    start = Fixed.of(both[::-1].copy())
    assert start.plus({"x": x, "y": y}) == start + Fixed.of(both)
    with pytest.raises(Mismatch, match="cannot be combined"):
        start.plus({"x": x})


@pytest.mark.parametrize("bad", [LIMIT, -LIMIT, np.nan, np.inf, -np.inf])
def test_too_large_and_no_numbers_are_refused_by_name(bad):
    with pytest.raises(InvalidData, match=r"the Gram matrix has .*rescale"):
        Fixed.of(np.array([1.0, bad]), name="the Gram matrix")


def test_the_bound_is_shared_by_the_parties():
    Fixed.of(np.array([LIMIT / 1024 - 1]), parties=1000)
    with pytest.raises(InvalidData, match="1,000 parties"):
        Fixed.of(np.array([LIMIT / 1000]), parties=1000)


def test_a_sum_that_does_not_fit_is_refused():
    near = Fixed.of(np.array([0.75 * LIMIT]))
    assert (near + near).floats() == 1.5 * LIMIT
    for sign in (1.0, -1.0):
        large = Fixed.of(np.array([sign * 0.75 * LIMIT]))
        with pytest.raises(InvalidData, match="more than fixed point holds"):
            large + large + large
    with pytest.raises(Mismatch, match="1 numbers.*2"):
        near + Fixed.zeros(2)

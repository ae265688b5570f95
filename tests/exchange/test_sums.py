"""Sums of moments in fixed point: any order, any tree, and a part can be removed without trace."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram import Moments
from fedgram.core.errors import InvalidData, Mismatch, NotMoments
from fedgram.exchange.format.exact_sums import Sum, exact_gram
from support.campaign import examples, size

CLASSES = ("ill", "well")


def some_moments(rng, n, d=6, classes=CLASSES, **options):
    x = rng.normal(size=(n, d)) * rng.uniform(0.1, 100)
    return Moments.of(x, rng.integers(0, len(classes), size=n), classes=range(len(classes)), **options)


def added(parts):
    return sum(parts[1:], start=parts[0])


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 30), min_size=2, max_size=8), st.randoms())
@examples(60)
def test_orders_trees_and_removals_give_the_same_bits(seed, sizes, random):
    rng = np.random.default_rng(seed)
    parts = [Sum.of(some_moments(rng, n, d=5)) for n in sizes]
    total, shuffled, cut = added(parts), list(parts), random.randint(1, len(parts) - 1)
    random.shuffle(shuffled)
    assert added(shuffled) == total
    assert added(shuffled[:cut]) + added(shuffled[cut:]) == total
    assert total - shuffled[0] == added(shuffled[1:])
    assert (total - shuffled[0]).digest == added(shuffled[1:]).digest != total.digest or shuffled[0].n == 0


def test_a_sum_is_the_pooled_moments_to_rounding():
    rng = np.random.default_rng(0)
    parts = [some_moments(rng, n, d=40) for n in (3, 8, 200)]  # two of them as factors
    pooled, total = Moments.sum(parts), added([Sum.of(part) for part in parts]).moments()
    assert parts[0].factor is not None
    assert parts[2].factor is None
    assert np.array_equal(total.counts, pooled.counts)
    assert np.allclose(total.gram, pooled.gram, rtol=1e-14, atol=1e-12)
    assert np.allclose(total.cross, pooled.cross, rtol=1e-14, atol=1e-12)
    total.check()


def test_an_empty_sum_is_nothing():
    moments = some_moments(np.random.default_rng(0), 20)
    empty = Sum.empty(moments.schema)
    assert empty + Sum.of(moments) == Sum.of(moments)
    assert Sum.of(moments) - Sum.of(moments) == empty
    assert empty.moments().n == 0


def test_the_gram_matrix_of_a_factor_has_the_same_bits_however_it_is_added_up():
    rng = np.random.default_rng(3)
    factor = np.triu(rng.normal(size=(30, 150))) * np.exp(rng.normal(size=150))
    found = exact_gram(factor)
    shuffled = exact_gram(factor[rng.permutation(30)])  # another order of additions inside the library
    assert found == shuffled
    wanted = Moments.of(factor, np.zeros(30, dtype=int), classes=2).packed
    error = np.abs(found.floats() - wanted)
    sizes = np.sqrt(np.square(factor).sum(axis=0))
    assert error.max() <= 4 * np.finfo(float).eps * sizes.max() ** 2


def test_digests_tell_kinds_apart():
    x, y = np.ones((4, 2)), [0, 0, 1, 1]
    plain = Sum.of(Moments.of(x, y, classes=2))
    named = Sum.of(Moments.of(x, y, classes=2, columns=["a", "b"]))
    assert plain.digest != named.digest
    with pytest.raises(Mismatch, match="columns"):
        plain + named


def test_more_than_there_is_cannot_be_taken_away():
    rng = np.random.default_rng(0)
    few, many = Sum.of(some_moments(rng, 5)), Sum.of(some_moments(rng, 50))
    with pytest.raises(NotMoments, match="samples of a class: expected at most those of the sum"):
        few - many


def test_features_too_large_for_fixed_point_are_refused_by_name():
    huge = Moments.of([[1e10], [2e10]], [0, 1], classes=2)
    with pytest.raises(InvalidData, match="Gram matrix has .* rescale"):
        Sum.of(huge)
    few = Moments.of(np.full((1, 8), 1e150), [0], classes=2)
    with pytest.raises(InvalidData, match="Gram matrix has .* rescale"):
        Sum.of(few)


@pytest.mark.campaign  # with 200 parties each
def test_a_sum_over_50_regions_is_the_flat_one_to_the_bit():
    rng, parties = np.random.default_rng(1), 50 * size(20)
    parts = [some_moments(rng, 3, d=3) for _ in range(parties)]
    flat = Sum.empty(parts[0].schema)
    for part in parts:
        flat = flat.plus(part)
    regions = [Sum.empty(flat.schema)] * 50
    for number, part in enumerate(parts):
        regions[number % 50] = regions[number % 50].plus(part)
    assert added(regions) == flat
    assert flat.n == 3 * parties


def test_adding_moments_is_adding_them_in_fixed_point():
    rng = np.random.default_rng(2)
    start = Sum.of(some_moments(rng, 50, d=40))
    for part in (some_moments(rng, 60, d=40), some_moments(rng, 3, d=40)):
        assert start.plus(part) == start + Sum.of(part) == start.plus(Sum.of(part))
    with pytest.raises(Mismatch, match="dimension"):
        start.plus(some_moments(rng, 60, d=41))

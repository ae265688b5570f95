"""Ranges that are drafted from a table hold all of its numbers, and do not show the smallest and the largest."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedgram.studies.kinds import widened, written
from fedgram.studies.study import Study

FINITE = st.floats(allow_nan=False, allow_infinity=False)
TEXT = """
[study]
name = "s"
outcome = "d"
classes = ["a", "b"]
[columns.x]
kind = "number"
range = [{}, {}]
"""


@given(FINITE, FINITE)
def test_a_drafted_range_can_be_read_and_holds_what_was_seen(one, other):
    seen = min(one, other), max(one, other)
    study = Study.parse(TEXT.format(*map(written, widened(*seen))))
    column = study.columns["x"]
    assert column.range[0] <= seen[0] <= seen[1] <= column.range[1]
    for value in seen:
        assert abs((value - column.centre) / column.half) <= 1 + 1e-9


@given(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9))
def test_the_ends_are_far_from_the_numbers_and_not_below_zero_without_need(low, spread):
    high = low + spread
    first, last = widened(low, high)
    assert last - high >= 0.499 * (high - low)
    assert low - first >= 0.499 * (high - low) or (first == 0 <= low)
    assert (first >= 0) == (low >= 0) or first >= 0 > low - 0.5 * (high - low)
    assert last - first <= 12 * (high - low)


@given(st.floats(-1e12, 1e12).filter(lambda value: abs(value) > 1e-6))
def test_the_value_of_a_constant_column_is_not_an_end_or_the_middle(value):
    first, last = widened(value, value)
    assert first < value < last
    assert last - first >= abs(value)
    if first > 0:
        assert last / first >= 2


def test_tables_whose_extremes_differ_a_little_get_the_same_range():
    """Otherwise an end would say where the smallest or largest number is."""
    rng = np.random.default_rng(0)
    same = 0
    for _ in range(400):
        low, spread = rng.normal(0, 100), 10 ** rng.uniform(-2, 4)
        moved = low + rng.uniform(-0.02, 0.02) * spread, low + spread * rng.uniform(0.98, 1.02)
        same += widened(low, low + spread) == widened(*moved)
    assert same >= 0.9 * 400


def test_one_range_stands_for_many_extremes():
    """Two ages that a range could have come from are far apart."""
    ranges = {}
    for low in range(18, 40):
        for high in range(60, 100):
            ranges.setdefault(widened(low, high), []).append((low, high))
    assert len(ranges) <= 4
    assert min(map(len, ranges.values())) >= 20

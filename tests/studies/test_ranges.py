"""Ranges that are drafted from a table hold all of its numbers, however large, small or close together they are."""

from hypothesis import given
from hypothesis import strategies as st

from fedgram.studies.ranges import rounded_outward, written
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
    study = Study.parse(TEXT.format(*map(written, rounded_outward(*seen))))
    column = study.columns["x"]
    assert column.range[0] <= seen[0] <= seen[1] <= column.range[1]
    for value in seen:
        assert abs((value - column.centre) / column.half) <= 1 + 1e-9

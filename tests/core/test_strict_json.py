"""JSON from elsewhere is read in one way, or refused with a reason."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core.container import MOST_DEPTH, parse

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_what_was_written_is_read(value):
    assert parse(json.dumps(value, allow_nan=False)) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1, "a": 1}', "the name 'a' stands twice"),
        ('{"b": [{"a": 1, "\\u0061": 2}]}', "the name 'a' stands twice"),
        ("NaN", "NaN is not a number in JSON"),
        ("[-Infinity]", "-Infinity is not a number"),
        ('{"a": 1e999}', "1e999 is too large a number"),
        ("[" * (MOST_DEPTH + 1) + "]" * (MOST_DEPTH + 1), f"deeper than {MOST_DEPTH} levels"),
        ('{"a":' * (MOST_DEPTH + 1) + "1" + "}" * (MOST_DEPTH + 1), f"deeper than {MOST_DEPTH} levels"),
        ("[" * 200_000, "deeper|delimiter|Expecting"),
        ("[1] x", "Extra data"),
        ("", "Expecting value"),
        ('"a"'.encode("utf-16"), "utf-8"),
        (b'"\xff"', "utf-8"),
        (b"\xef\xbb\xbf1", "BOM|Expecting"),
        ("9" * 5000, "digits"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_readers_take_differently_is_refused(text, words):
    with pytest.raises(ValueError, match=words) as caught:
        parse(text)
    assert len(str(caught.value)) < 300


def test_what_is_just_deep_enough_is_read():
    assert parse("[" * MOST_DEPTH + "]" * MOST_DEPTH)


def test_a_format_may_allow_values_that_are_not_finite():
    assert parse("[Infinity, 1e999]", constants=True) == [float("inf")] * 2

"""Plain values by annotations: what is taken, and messages with the path, the expected kind and the value."""

from collections.abc import Mapping, Sequence
from math import inf, nan
from typing import Literal

import pytest

from fedgram.core.errors import InvalidData, InvalidParameter
from fedgram.core.schema import Count, Name, Natural, Plain, Share, read, read_fields

DEEP = [[[[[[[[[1]]]]]]]]]


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (int, 3, 3),
        (float, 3, 3.0),
        (bool, True, True),
        (Literal["all"] | Count | Share, 0.5, 0.5),
        (Literal["all"] | Count | Share, "all", "all"),
        (Sequence[float | None], [1, None], [1.0, None]),
        (Mapping[str, Natural], {"a": 1, "b": None}, {"a": 1}),
        (tuple[float, float], [0, 1], [0.0, 1.0]),
        (Plain, {"a": [1, "b", None]}, {"a": [1, "b", None]}),
    ],
)
def test_values_of_their_kind_are_taken(kind, value, found):
    assert read(kind, value, "x") == found


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        (int, True, "x: expected a whole number, got True"),
        (int, 5e7, "x: expected a whole number, got 50000000.0"),
        (float, nan, "x: expected a number, got nan"),
        (float, inf, "x: expected a number, got inf"),
        (float, 10**400, "x: expected a number, got 1000"),
        (Share, 1.5, "x: expected a number ≥ 0 and ≤ 1, got 1.5"),
        (Share, "1", "x: expected a number ≥ 0 and ≤ 1, got '1'"),
        (Name, " ", "x: expected text that is not empty, got ' '"),
        (Literal["a", "b"], "c", "x: expected 'a' or 'b', got 'c'"),
        (Literal[1], True, "x: expected 1, got True"),
        (str | Sequence[str], [1], r"x[0]: expected text, got 1"),
        (tuple[float, float], [1], "x: expected a list of 2 values, got [1]"),
        (Mapping[str, Sequence[Natural]], {"a": [0, -1]}, "x.a[1]: expected a whole number ≥ 0, got -1"),
        (Mapping[str, int], {"\x1b[2J": "a"}, r"x.'\x1b[2J': expected a whole number, got 'a'"),
        (Plain, DEEP, "x: expected a value of finite numbers and texts, nested to 8 levels at most, got [[[[...]]]]"),
    ],
)
def test_others_are_refused_by_path(kind, value, told):
    with pytest.raises(InvalidData) as caught:
        read(kind, value, "x")
    assert str(caught.value).startswith(told)


def test_messages_are_short_and_on_one_line():
    for value in ("a\n" * 10**5, ["a"] * 10**5, {"b" * 10**5: 1}, 10**4000):
        with pytest.raises(InvalidParameter) as caught:
            read(Sequence[bool], value, "x", error=InvalidParameter)
        assert len(str(caught.value)) < 300
        assert "\n" not in str(caught.value)


def test_json_has_numbers_of_one_kind():
    assert read(Natural, 5e7, "x", json=True) == 50_000_000
    with pytest.raises(InvalidData, match="expected a whole number"):
        read(Natural, 0.5, "x", json=True)


def test_fields_that_are_missing_or_null_are_left_out():
    kinds = {"a": int | None, "b": Sequence[Natural], "c": str}
    assert read_fields(kinds, {"a": None, "b": [1], "other": object()}) == {"b": [1]}
    with pytest.raises(InvalidData, match=r"^part\.a: expected a whole number, got 'x'"):
        read_fields(kinds, {"a": "x"}, "part.")

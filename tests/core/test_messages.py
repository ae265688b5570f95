"""Messages derived from dataclasses: their bytes, their checks, and refused classes."""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import numpy.typing as npt
import pytest

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.classes import Classes
from fedgram.core.columns import Columns
from fedgram.core.errors import FedgramError, InvalidData, RefusedMessage
from fedgram.layerwise.layered_network import Network


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


@wire.message("test-inner", version=1)
@dataclass(frozen=True)
class Inner:
    name: str

    def check(self):
        if self.name == "mallory":
            raise FedgramError("nobody of this name")


@wire.message("test-everything", version=3)
@dataclass(frozen=True, eq=False)
class Everything:
    weights: Annotated[Array, wire.Shape("d", "c")]
    classes: Classes
    text: str
    flag: bool
    whole: int
    number: float
    sizes: tuple[int, ...]
    point: Point
    inner: Inner
    parts: Annotated[tuple[npt.NDArray[np.float32], ...], wire.Shape(None, "d")] = ()
    maybe: Annotated[npt.NDArray[np.int64], wire.Shape("c")] | None = None
    maybe_point: Point | None = None
    columns: Columns = ()


@wire.message("test-counted", version=1)
@dataclass(frozen=True, eq=False)
class Counted:
    classes: Classes
    vector: Annotated[Array, wire.Shape("p")]


EXAMPLE = Everything(np.ones((2, 3)), ("a", "b", "c"), "t", True, 7, 0.5, (4, 5), Point(1, 2), Inner("i"))


def with_fields(message, **changes):
    """Return the bytes of a message whose fields were changed after it was taken apart; None takes a field away."""
    fields = {name: value for name, value in (message.to_fields() | changes).items() if value is not MISSING}
    forged = object.__new__(type(message))
    object.__setattr__(forged, "to_fields", lambda: fields)
    return wire.encode(forged)


MISSING = object()


def test_everything_comes_back():
    rich = replace(
        EXAMPLE,
        parts=(np.ones((1, 2), np.float32), np.ones((5, 2), np.float32)),
        maybe=np.arange(3),
        maybe_point=Point(3),
        columns=("age", "bmi"),
    )
    for message in (EXAMPLE, rich):
        data = wire.encode(message)
        again = wire.decode(data, sender="a")
        assert wire.encode(again) == data
        for name in ("classes", "text", "flag", "whole", "number", "sizes", "point", "inner", "maybe_point", "columns"):
            assert getattr(again, name) == getattr(message, name)
        assert len(again.parts) == len(message.parts)


def test_what_is_not_there_takes_no_bytes_only_where_it_says_so():
    assert "columns" not in EXAMPLE.to_fields()
    assert EXAMPLE.to_fields()["maybe"] is None
    assert list(EXAMPLE.to_fields()) == [name for name in Everything.__dataclass_fields__ if name != "columns"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"text": 5}, "test-everything field 'text' must be text, got 5"),
        ({"text": ["a"]}, "'text' must be text, got a list"),
        ({"flag": 1}, "'flag' must be true or false, got 1"),
        ({"whole": True}, "'whole' must be a whole number, got True"),
        ({"whole": 1.0}, "'whole' must be a whole number, got 1.0"),
        ({"number": "1"}, "'number' must be a number, got '1'"),
        ({"number": False}, "'number' must be a number, got False"),
        ({"number": 10**400}, "'number' must be a number up to 1e"),
        ({"sizes": 4}, "'sizes' must be a list, got 4"),
        ({"sizes": [4, "5"]}, "'sizes', place 1, must be a whole number, got '5'"),
        ({"point": [1]}, "'point' must be a table, got a list"),
        ({"point": {"x": 1, "z": 2}}, "misshapen field.*'z'"),
        ({"point": None}, "'point' must be a table, got None"),
        ({"inner": {"name": "i"}}, "'inner' must be a test-inner, got a dict"),
        ({"inner": Inner("mallory")}, "nobody of this name"),
        ({"weights": None}, "lacks field 'weights'"),
        ({"weights": np.ones((2, 4))}, "do not fit the 4 that the arrays have"),
        ({"weights": np.ones((2, 3), np.float32)}, "'weights' must be float64, got float32"),
        ({"classes": 10**9}, "do not fit the 3"),
        ({"maybe": np.arange(4)}, r"'maybe' must have shape \('c',\) with {'d': 2, 'c': 3}, got \(4,\)"),
        ({"parts": 5}, "'parts' must be a list of arrays"),
        ({"parts": [1.0]}, "'parts', place 0, must be float32, got float"),
        ({"parts": [np.ones((1, 3), np.float32)]}, r"must have shape \(None, 'd'\) with .*, got \(1, 3\)"),
        ({"columns": ["age"]}, "1 column names for 2 columns"),
        ({"columns": "ag"}, "'columns' must be a list of names, got 'ag'"),
        ({"columns": ["age", "age"]}, "'age' occurs twice"),
        ({"more": 1}, "has a field 'more' that this version does not know"),
        ({"text": MISSING}, "lacks field 'text'"),
    ],
)
def test_each_field_is_checked(changes, words):
    data = with_fields(EXAMPLE, **changes)
    with pytest.raises(RefusedMessage, match=f"'site-9' refused.*{words}"):
        wire.decode(data, sender="site-9")


def test_a_field_that_was_added_later_takes_its_default():
    read = wire.decode(with_fields(EXAMPLE, parts=MISSING, maybe=MISSING, maybe_point=MISSING), sender="earlier")
    assert (read.parts, read.maybe, read.maybe_point) == ((), None, None)


def test_where_no_array_tells_the_number_of_classes_it_is_sent():
    message = Counted(("a", "b"), np.ones(5))
    assert list(message.to_fields()) == ["classes", "count", "vector"]
    assert wire.decode(wire.encode(message), sender="a").classes == ("a", "b")
    for count, words in ((3, "do not fit the 3"), (6, "6 classes, but arrays of 5 numbers"), ("2", "a whole number")):
        with pytest.raises(RefusedMessage, match=words):
            wire.decode(with_fields(message, count=count), sender="a")
    assert "count" not in EXAMPLE.to_fields()


def test_own_checks_are_for_others_only():
    assert wire.decode(wire.encode(Inner("mallory"))) == Inner("mallory")


def test_an_annotation_that_cannot_be_sent_is_named():
    with pytest.raises(TypeError, match=r"a field of a message cannot be set\[int\]"):

        @wire.message("test-wrong", version=1)
        @dataclass
        class Wrong:
            items: set[int]

    assert "test-wrong" not in wire.registered


def test_reading_fields_checks_without_bytes_too():
    with pytest.raises(InvalidData, match="do not fit the 3"):
        Everything.from_fields(EXAMPLE.to_fields() | {"classes": 5})


def test_the_number_of_classes_is_borne_out_by_arrays_or_small():
    """344 bytes must not cost a list of a million names."""
    fields = Network("dnn", (4,), (0, 1), 5).to_fields() | {"count": 2**20}
    with pytest.raises(RefusedMessage, match="has 1048576 classes, but arrays of 0 numbers"):
        Network.from_fields(fields)


def test_nobody_takes_the_name_of_a_message():
    with pytest.raises(ValueError, match="'head' is already fedgram.heads.head.Head"):

        @wire.message("head", version=1)
        @dataclass
        class Head:
            weight: float = 0.0


@wire.message("test-later", version=1)
@dataclass(frozen=True, eq=False)
class Grown:
    name: str
    degrees: Annotated[float | None, wire.Later()] = None


def test_a_later_field_is_sent_only_where_there_is_one():
    assert Grown("a").to_fields() == {"name": "a"}
    assert Grown("a", 0.5).to_fields() == {"name": "a", "degrees": 0.5}
    for degrees in (None, 0.5):
        assert wire.decode(wire.encode(Grown("a", degrees))).degrees == degrees
    with pytest.raises(RefusedMessage, match="field 'degrees' must be a number, got 'hot'"):
        Grown.from_fields({"name": "a", "degrees": "hot"})

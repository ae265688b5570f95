"""Bytes: values survive the round trip, and other values are refused."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedgram import Moments
from fedgram.core import container, wire
from fedgram.core.errors import FedgramError, RefusedMessage

arrays = hnp.arrays(
    st.sampled_from(["float64", "float32", "int64", "uint8", "bool"]), hnp.array_shapes(min_dims=0, min_side=0)
)
payloads = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text() | arrays,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def same(a, b):
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b


@given(payloads)
def test_round_trip(payload):
    assert same(payload, wire.decode(wire.encode(payload)))


def test_fields_with_the_same_path_do_not_mix():
    payload = {"a/b": np.zeros(1), "a": {"b": np.ones(1)}, "": {"a": {"b": np.full(1, 2.0)}}}
    assert same(payload, wire.decode(wire.encode(payload)))


def test_the_safetensors_library_reads_what_we_write():
    arrays = {"w": np.arange(6.0).reshape(2, 3), "n": np.array([1, 2, 3]), "one": np.float32([[7]])}
    read = safetensors.numpy.load(wire.encode(arrays))
    assert all(same(arrays[name], read[name]) for name in arrays)


def test_we_read_what_the_safetensors_library_writes():
    tree = {"schema": container.SCHEMA, "payload": {"array": "w"}}
    data = safetensors.numpy.save({"w": np.arange(6.0).reshape(2, 3)}, {"fedgram": json.dumps(tree)})
    assert same(wire.decode(data), np.arange(6.0).reshape(2, 3))


def test_strided_and_big_endian_arrays():
    x = np.arange(12.0).reshape(3, 4)
    assert same(wire.decode(wire.encode(x[:, ::2])), x[:, ::2].copy())
    assert same(wire.decode(wire.encode(np.asfortranarray(x))), x)
    assert same(wire.decode(wire.encode(x.astype(">f8"))), x)


def test_decoded_arrays_are_views_that_cannot_be_changed():
    decoded = wire.decode(wire.encode(np.zeros(3)))
    assert decoded.base is not None
    with pytest.raises(ValueError, match="read-only"):
        decoded[0] = 1


def test_messages_with_the_same_header_share_nothing_that_can_be_changed():
    data = wire.encode({"labels": [1, 2], "nested": [[3]]})
    wire.decode(data)["labels"].append(9)
    wire.decode(data)["nested"][0].append(9)
    assert wire.decode(data) == {"labels": [1, 2], "nested": [[3]]}


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array(["a"]), np.array([1j]), b"bytes"])
def test_what_cannot_be_sent_is_named(value):
    with pytest.raises(TypeError, match="'a/0'.*cannot be sent"):
        wire.encode({"a": [value]})


@given(st.binary(max_size=200))
def test_garbage_is_refused(data):
    with pytest.raises(RefusedMessage, match="'mallory'"):
        wire.decode(data, sender="mallory")


@given(st.data())
def test_damaged_messages_never_crash(data):
    """A flipped byte is refused by name, or changes a value that no check can detect; it has no other effect."""
    moments = Moments.of(np.arange(12.0).reshape(4, 3) % 5, [0, 1, 0, 1], classes=2)
    damaged = bytearray(moments.to_bytes())
    position = data.draw(st.integers(0, len(damaged) - 1))
    damaged[position] ^= data.draw(st.integers(1, 255))
    try:
        payload = wire.decode(bytes(damaged), sender="mallory")
    except FedgramError as error:
        assert "'mallory'" in str(error)
    else:
        assert payload is not None


def test_truncated_message_is_refused():
    data = wire.encode({"w": np.zeros(100)})
    for length in (0, 5, 8, 50, len(data) - 1):
        with pytest.raises(RefusedMessage, match="'b'"):
            wire.decode(data[:length], sender="b")


@pytest.mark.parametrize("value", [np.array([0.0, np.nan]), np.array([[np.inf]]), float("nan"), float("-inf")])
def test_values_that_are_not_finite_are_refused_from_others(value):
    data = wire.encode({"w": [value]})
    wire.decode(data)
    with pytest.raises(RefusedMessage, match=r"message from 'site-9' refused: field 'w/0' is (nan|inf|-inf)"):
        wire.decode(data, sender="site-9")


def test_large_finite_values_are_not_taken_for_infinite():
    data = wire.encode(np.full(4, 1e308))
    assert same(wire.decode(data, sender="a"), np.full(4, 1e308))


@wire.register_message
@dataclass(frozen=True)
class Pair:
    a: np.ndarray
    b: np.ndarray | None

    wire_name: ClassVar[str] = "test-pair"
    wire_version: ClassVar[int] = 2
    wire_fields: ClassVar[Mapping[str, wire.Field]] = {
        "a": wire.Field("float64", ("n", 2)),
        "b": wire.Field("int64", ("n",), optional=True),
    }

    def to_fields(self):
        return {"a": self.a, "b": self.b}

    @classmethod
    def from_fields(cls, fields):
        return cls(**fields)

    def check(self):
        if self.a.sum() < 0:
            raise FedgramError(f"field 'a' sums to {self.a.sum()}")


def test_messages_travel_inside_payloads():
    pair = wire.decode(wire.encode({"pairs": [Pair(np.ones((3, 2)), np.arange(3))]}))["pairs"][0]
    assert isinstance(pair, Pair)
    assert same(pair.b, np.arange(3))


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (Pair(np.ones((3, 2), np.float32), None), "'a' must be float64, got float32"),
        (Pair(np.ones((3, 3)), None), r"'a' must have shape \('n', 2\).*got \(3, 3\)"),
        (Pair(np.ones((3, 2)), np.arange(4)), r"'b' must have shape \('n',\) with {'n': 3}, got \(4,\)"),
        (Pair(np.ones(3), None), r"got \(3,\)"),
        (Pair(None, None), "lacks field 'a'"),
        (Pair("text", None), "'a' must be float64, got str"),
    ],
)
def test_dtype_and_shape_are_always_checked(pair, words):
    with pytest.raises(RefusedMessage, match=words):
        wire.decode(wire.encode(pair))


def test_a_types_own_check_is_for_others_only():
    data = wire.encode(Pair(-np.ones((1, 2)), None))
    wire.decode(data)
    with pytest.raises(RefusedMessage, match="'site-9' refused: field 'a' sums to -2"):
        wire.decode(data, sender="site-9")


def test_versions_are_checked(monkeypatch):
    data = wire.encode(Pair(np.ones((1, 2)), None))
    monkeypatch.setattr(Pair, "wire_version", 3)
    with pytest.raises(RefusedMessage, match="test-pair version 2, this side has 3: update the older side"):
        wire.decode(data)
    monkeypatch.setattr(container, "SCHEMA", 7)
    with pytest.raises(RefusedMessage, match="schema 2, this version reads schema 7"):
        wire.decode(data)


def test_unregistered_types_are_refused(monkeypatch):
    data = wire.encode(Pair(np.ones((1, 2)), None))
    monkeypatch.delitem(wire.registered, "test-pair")
    with pytest.raises(RefusedMessage, match="'test-pair' is not registered"):
        wire.decode(data)


def test_a_name_belongs_to_one_type():
    class Impostor(Pair):
        wire_name = "moments"

    with pytest.raises(ValueError, match="already fedgram.moments.moments.Moments"):
        wire.register_message(Impostor)

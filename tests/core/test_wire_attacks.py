"""Hostile messages: damaged on the way, or small with large costs."""

import hashlib
import json
import tracemalloc

import numpy as np
import pytest

import fedgram as fg
from fedgram.core import container, wire
from fedgram.core.classes import MOST_CLASSES, as_classes
from fedgram.core.errors import RefusedMessage
from fedgram.layerwise import Network
from fedgram.nets import TrainedNet


def sealed(header: dict, body: bytes = b"", tree=None) -> bytes:
    """Return a message with any header and a right digest."""
    metadata = {"sha256": "0" * 64, "fedgram": json.dumps({"schema": container.SCHEMA, "payload": tree})}
    text = json.dumps({"__metadata__": metadata} | header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = len(text).to_bytes(8, "little") + text + body
    return data.replace(b"0" * 64, hashlib.sha256(data).hexdigest().encode(), 1)


def refused(data: bytes, words: str) -> int:
    """Check that a message is refused; return the most memory that it took."""
    tracemalloc.start()
    try:
        with pytest.raises(RefusedMessage, match=f"'mallory' refused.*{words}"):
            wire.decode(data, sender="mallory")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def moments(n=12, d=5):
    rng = np.random.default_rng(0)
    return fg.Moments.of(rng.normal(size=(n, d)), np.arange(n) % 2, classes=2)


def test_every_single_bit_counts():
    data = moments().to_bytes()
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RefusedMessage, match="'mallory'"):
            wire.decode(bytes(damaged), sender="mallory")


def test_what_is_not_sealed_is_not_taken_from_others():
    data = wire.encode(np.ones(3), sealed=False)
    assert len(data) == len(wire.encode(np.ones(3)))
    assert wire.decode(data).tolist() == [1, 1, 1]
    with pytest.raises(RefusedMessage, match="digest does not fit"):
        wire.decode(data, sender="a")


def test_bytes_are_the_same_for_the_same_payload():
    assert moments().to_bytes() == moments().to_bytes()


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        (TrainedNet("linear", (2,), (0, 1), np.zeros(6, np.float32)).to_fields(), "trained-net"),
        (Network("lr", (2,), (0, 1), 0, (np.zeros((2, 2)),)).to_fields(), "layerwise-network"),
    ],
)
def test_the_number_of_classes_is_not_taken_from_the_message_alone(fields, name):
    class Forged:
        wire_name, wire_version = name, 1

        def to_fields(self):
            return fields | {"classes": 10**8, "count": 10**8}

    original = wire.registered[name]
    wire.registered[name] = Forged
    try:
        data = wire.encode(Forged())
    finally:
        wire.registered[name] = original
    memory = refused(data, "100000000 classes")
    assert memory < 2**20


@pytest.mark.parametrize("shape", [(0, 3 * 10**8), (3 * 10**8, 0)])
def test_an_empty_array_cannot_claim_to_be_large(shape):
    memory = refused(wire.encode({"w": np.zeros(shape)}), "without elements")
    assert memory < 2**20


def test_no_more_classes_than_anybody_has():
    with pytest.raises(fg.errors.InvalidData, match="more than"):
        as_classes(MOST_CLASSES + 1)


def test_an_array_is_referred_to_once():
    entry = {"dtype": "F64", "shape": [100_000], "data_offsets": [0, 800_000]}
    tree = {"list": [{"array": "w"}] * 20_000}
    refused(sealed({"w": entry}, bytes(800_000), tree), "'w' is missing, or another field's")


def test_arrays_do_not_overlap():
    entry = {"dtype": "F64", "shape": [1000], "data_offsets": [0, 8000]}
    tree = {"list": [{"array": f"w{k}"} for k in range(50)]}
    refused(sealed({f"w{k}": entry for k in range(50)}, bytes(8000), tree), "overlap")


def test_bytes_that_no_field_has_are_refused():
    entry = {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}
    refused(sealed({"w": entry}, bytes(24), {"array": "w"}), "its header accounts for")
    refused(sealed({"w": entry}, bytes(16), None), "belongs to no field")


@pytest.mark.parametrize(
    "tree",
    [
        {"list": [[]] * 30_000},
        {"list": [{"list": []}] * 20_000},
        {"list": [{"a": {}}] * 20_000},
        {"plain": [""] * 40_000},
        {"dict": {"k" * 100_000: {"list": [{"plain": []}] * 5_000}}},
    ],
)
def test_memory_is_a_small_multiple_of_the_message(tree):
    data = sealed({}, tree=tree)
    tracemalloc.start()
    try:
        wire.decode(data, sender="mallory")
    except RefusedMessage:
        pass
    finally:
        memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert memory < 48 * len(data)


def test_nesting_without_end_is_refused():
    tree: dict = {"list": []}
    for _ in range(300):
        tree = {"list": [tree]}
    wire.decode(sealed({}, tree=tree), sender="honest")
    for _ in range(20):
        tree = {"list": [tree]}
    refused(sealed({}, tree=tree), "nested deeper than 640 levels")
    deep = json.dumps({"__metadata__": {"sha256": "0" * 64, "fedgram": "[" * 100_000}}, separators=(",", ":")).encode()
    refused(len(deep).to_bytes(8, "little") + deep, "")


def test_a_header_cannot_be_endless():
    refused((2**40).to_bytes(8, "little") + b"{}" * 100, "not a fedgram message")
    large = sealed({}, tree={"plain": ["x" * (container.MOST_HEADER + 1)]})
    refused(large, "header of")


def test_large_headers_are_not_remembered():
    container.known.cache_clear()
    container.known_header.cache_clear()
    wire.decode(wire.encode({"names": ["x" * 10_000]}))
    assert container.known.cache_info().currsize == container.known_header.cache_info().currsize == 0
    wire.decode(wire.encode({"names": ["x"]}))
    assert container.known.cache_info().currsize == container.known_header.cache_info().currsize == 1


def test_messages_of_the_same_kind_share_a_remembered_header():
    container.known.cache_clear()
    for value in range(5):
        wire.decode(wire.encode(np.full(3, float(value))), sender="a")
    assert container.known.cache_info().misses == 1


def test_duplicate_class_names_are_found_in_one_pass():
    names = [f"class {k}" for k in range(100_000)] + ["class 99999"]
    with pytest.raises(fg.errors.InvalidData, match="'class 99999' is listed twice"):
        as_classes(names)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"counts": np.zeros(2, int), "n": 0, "sums": np.zeros((0, 6))}, "'gram' is not zero.*no samples"),
        ({"counts": np.array([2, 1]), "n": 3}, "rank 6 within classes, where 3 samples have at most 1"),
        ({"counts": np.array([2**50, 2**50]), "n": 2**51}, "more than the"),
    ],
)
def test_moments_that_no_samples_have_are_refused(changes, words):
    honest = moments(30, 6)
    changes = {"sums": 1e-3 * honest.cross.T} | changes
    forged = fg.Moments.__new__(fg.Moments)
    forged.to_fields = lambda: honest.to_fields() | changes
    with pytest.raises(RefusedMessage, match=words):
        fg.Moments.from_bytes(wire.encode(forged))


@pytest.mark.parametrize("n", [3, 10, 20, 39, 40, 41])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("bias", [False, True])
def test_honest_moments_of_few_samples_pass(n, scale, bias):
    rng = np.random.default_rng(n)
    x = (scale * rng.normal(size=(n, 40)) * np.geomspace(1, 1e-4, 40) + scale).astype(np.float32)
    sent = fg.Moments.of(x, rng.integers(0, 3, n), classes=3, bias=bias)
    assert fg.Moments.from_bytes(sent.to_bytes()) == sent


def test_a_factor_is_judged_as_its_gram_matrix_is():
    honest = moments(10, 100)  # few enough to be sent as a factor
    forged = fg.Moments.__new__(fg.Moments)
    forged.to_fields = lambda: honest.to_fields() | {"sums": np.zeros((2, 100))}
    with pytest.raises(RefusedMessage, match="'factor' has rank 10 within classes, where 10 samples have at most 8"):
        fg.Moments.from_bytes(wire.encode(forged))
    outside = honest._sums + np.linalg.svd(honest._factor)[2][-1]  # in no sample's direction
    forged.to_fields = lambda: honest.to_fields() | {"sums": outside}
    with pytest.raises(RefusedMessage, match="not positive semidefinite"):
        fg.Moments.from_bytes(wire.encode(forged))


@pytest.mark.parametrize("apart", [0.0, 1e-14, 1e-12, 1e-10, 1e-6])
@pytest.mark.parametrize("bias", [False, True])
def test_honest_samples_that_are_nearly_equal_pass(apart, bias):
    rng = np.random.default_rng(0)
    for _ in range(10):
        x = rng.normal(size=(5, 100))
        x = np.vstack([x, x + apart * rng.normal(size=x.shape), apart * x])
        sent = fg.Moments.of(x, rng.integers(0, 3, 15), classes=3, bias=bias)
        assert sent._factor is not None
        assert fg.Moments.from_bytes(sent.to_bytes()) == sent


def test_sums_of_counts_do_not_overflow():
    kind = moments().schema
    many = fg.Moments(kind, sums=np.zeros((1, 5)), counts=np.array([2**48, 0]), packed=np.zeros(15))
    with pytest.raises(fg.errors.NotMoments, match="more than the"):
        many + many

"""Moments as bytes: minimal content, and checks of other parties' bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core import wire
from fedgram.core.errors import Mismatch, RefusedMessage
from fedgram.moments.moments import Moments
from support.campaign import examples
from support.problems import random_moments, seeds


@examples(60)
@given(seeds, st.integers(0, 50), st.integers(1, 30), st.booleans())
def test_bytes_round_trip(seed, n, d, bias):
    moments = random_moments(np.random.default_rng(seed), n, d, bias=bias, features="lite0:96")
    assert Moments.from_bytes(moments.to_bytes(), sender="a") == moments


@examples(30)
@given(seeds)
def test_addition_commutes_with_serialisation(seed):
    rng = np.random.default_rng(seed)
    a, b = (random_moments(rng, int(rng.integers(0, 40)), 20) for _ in range(2))
    travelled = Moments.from_bytes(a.to_bytes()) + Moments.from_bytes(b.to_bytes())
    assert travelled == a + b


def test_packed_and_factor_sizes():
    rng = np.random.default_rng(0)
    d, header = 400, 1500
    full = len(random_moments(rng, 500, d, 2).to_bytes())
    small = len(random_moments(rng, 20, d, 2).to_bytes())
    assert full <= 8 * (d * (d + 1) // 2 + 2 * d) + header
    assert small <= 8 * (20 * d + 2 * d) + header


def test_a_small_clients_factor_says_no_more_than_its_gram_matrix():
    """The order and sign of samples do not show: the factor is a function of XᵀX."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 40))
    a = Moments.of(x, [0, 0, 0, 1, 1], classes=2)._factor
    b = Moments.of(x[[2, 0, 1, 4, 3]], [0, 0, 0, 1, 1], classes=2)._factor
    np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("leading", [0, 3, 30])
def test_a_factor_never_shows_the_samples_in_clear(leading):
    """Also where leading columns are zero, as in images with white borders: the order of samples does not show."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 60))
    x[:, :leading] = 0
    x[5] = x[4]  # and where samples are equal
    y = [0, 0, 0, 0, 1, 1]
    sent = Moments.of(x, y, classes=2)
    again = Moments.of(x[[3, 1, 2, 0, 5, 4]], y, classes=2)
    np.testing.assert_allclose(sent._factor, again._factor, atol=1e-10)
    np.testing.assert_allclose(sent.gram, x.T @ x, atol=1e-12)
    distances = np.abs(sent._factor[:, None] - x[None]).max(axis=2)
    assert distances.min() > 0.1, "a row of the factor is a sample"


def tampered(moments, **changes):
    """Return the bytes of moments with some fields replaced, as a cheating or broken party would send them."""
    fields = moments.to_fields() | changes
    forged = Moments.__new__(Moments)
    forged.to_fields = lambda: fields
    return wire.encode(forged)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gram": np.full(21, np.nan)}, "'gram' is nan at"),
        ({"gram": -np.ones(21)}, "positive semidefinite"),
        ({"gram": np.zeros(21)}, "positive semidefinite"),
        ({"gram": np.ones(20)}, "'gram' has 20 numbers"),
        ({"gram": np.ones(21, np.float32)}, "'gram' must be float64"),
        ({"gram": np.ones((21, 1))}, "'gram' must have shape"),
        ({"gram": None}, "either field 'gram' or"),
        ({"sums": np.full((3, 6), 1e3)}, "positive semidefinite"),
        ({"sums": np.full((3, 6), np.inf)}, "'sums' is inf"),
        ({"sums": np.zeros((2, 6))}, "'sums' has 2 rows for 3 classes"),
        ({"counts": np.array([10, 10, 10, 0])}, "classes 3 do not fit the 4"),
        ({"counts": np.array([2**62, 2**62, 2**62])}, "add up to"),
        ({"counts": np.array([2**62, 2**62, 0]), "n": 2**63, "sums": np.zeros((2, 6))}, "more than the"),
        ({"classes": 30_000_000}, "classes 30000000 do not fit the 3"),
        ({"gram": np.full(21, 1.7e308)}, "too large"),
        ({"counts": np.array([10, 10, 11])}, "'n' is 30 but the class counts add up to 31"),
        ({"counts": np.array([-10, 20, 20])}, "negative count: -10"),
        ({"n": 31}, "'n' is 31"),
        ({"classes": ["a", "a", "b"]}, "'a' is listed twice"),
    ],
)
def test_what_another_party_sends_is_checked(changes, words):
    rng = np.random.default_rng(0)
    moments = Moments.of(rng.normal(size=(30, 6)), np.arange(30) % 3, classes=3)
    with pytest.raises(RefusedMessage, match=f"(?s)'hospital-3'.*{words}"):
        Moments.from_bytes(tampered(moments, **changes), sender="hospital-3")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"factor": np.full((4, 30), np.nan)}, "'factor' is nan"),
        ({"factor": np.full((4, 30), 1e200)}, "too large"),
        ({"factor": np.zeros((4, 30))}, "positive semidefinite"),
        ({"factor": np.ones((3, 30))}, "3 rows for 4 samples"),
        ({"sums": np.full((3, 30), 9.0)}, "positive semidefinite"),
    ],
)
def test_a_small_clients_message_is_checked_too(changes, words):
    rng = np.random.default_rng(0)
    moments = Moments.of(rng.normal(size=(4, 30)), [0, 1, 2, 2], classes=3)
    Moments.from_bytes(moments.to_bytes())
    with pytest.raises(RefusedMessage, match=f"(?s)'hospital-3'.*{words}"):
        Moments.from_bytes(tampered(moments, **changes), sender="hospital-3")


def test_a_short_message_cannot_make_the_receiver_work_long():
    moments = Moments.of(np.zeros((0, 10)), [], classes=2)
    huge = tampered(moments, factor=np.zeros((0, 1_000_000)), sums=np.zeros((0, 1_000_000)))
    with pytest.raises(RefusedMessage, match="without elements"):
        Moments.from_bytes(huge)


def test_other_messages_are_not_moments():
    with pytest.raises(Mismatch, match="'a' holds a LinearModel"):
        Moments.from_bytes(wire.encode(random_moments(np.random.default_rng(0)).model()), sender="a")

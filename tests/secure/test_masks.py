"""Masks: exact sums for any order and subset, standard streams, and numbers that look like noise without a seed."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

import fedgram as fg
from fedgram.core.errors import InvalidData, RefusedMessage
from fedgram.core.fixed_point import Fixed
from fedgram.secure import masks
from fedgram.secure.masks import blurred, key_stream, masked, new_seed, stream, sum_of_streams
from fedgram.secure.sealing import open_message, seal_message
from fedgram.secure.signing_keys import PrivateKey
from support.campaign import FULL, examples

FAILS = 1e-9  # p value of numbers that are not uniform
WORDS = 10_000_000 if FULL else 200_000


def added(parts):
    """Return the sum of numbers in fixed point, checked for overflow."""
    return sum(parts[1:], start=parts[0])


def wrapped(parts):
    total = Fixed.zeros(len(parts[0]))
    for part in parts:
        total = total.wrapped_sum(part)
    return total


# Numbers of all sizes, whole and not, and zeros.
ROWS = st.integers(0, 2**32).map(
    lambda seed: np.ldexp(
        np.random.default_rng(seed).normal(size=9) * (np.random.default_rng(seed).random(9) > 0.2),
        np.random.default_rng(seed).integers(-60, 40, size=9),
    )
)


@given(st.data(), st.integers(3, 12), st.integers(1, 4))
@examples(60)
def test_a_masked_sum_has_the_bits_of_the_plain_one_for_any_order_and_subset(data, parties, witnesses):
    numbers = [Fixed.of(data.draw(ROWS), parties=parties) for _ in range(parties)]
    seeds = [[new_seed() for _ in range(witnesses)] for _ in range(parties)]
    uploads = [masked(*pair) for pair in zip(numbers, seeds, strict=True)]
    chosen = data.draw(st.permutations(range(parties)))[: data.draw(st.integers(1, parties))]
    total = wrapped([uploads[k] for k in chosen])
    for w in range(witnesses):
        total -= sum_of_streams([seeds[k][w] for k in sorted(chosen)], 9)
    assert total == added([numbers[k] for k in chosen])


def test_two_hundred_parties_of_all_sizes_add_up_exactly():
    rng = np.random.default_rng(0)
    numbers = [Fixed.of(rng.normal(size=50) * 10.0 ** rng.integers(-9, 9), parties=200) for _ in range(200)]
    seeds = [[new_seed(), new_seed()] for _ in range(200)]
    total = wrapped([masked(*pair) for pair in zip(numbers, seeds, strict=True)])
    assert total - sum_of_streams([seed for own in seeds for seed in own], 50) == added(numbers)


def test_the_stream_is_chacha20_as_rfc_8439_has_it():
    """Appendix A.1, test vectors 1 to 3: block 0 and 1 of the key zero, block 1 of the key 0…01."""
    zero = key_stream(bytes(32), 128)
    assert zero[:64].hex() == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert zero[64:].hex() == (
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    assert key_stream(bytes(31) + b"\1", 128)[64:].hex() == (
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0"
    )


def test_a_stream_is_not_shortened_by_what_follows():
    seed = new_seed()
    assert key_stream(seed, 64) == key_stream(seed, 128)[:64]
    with pytest.raises(InvalidData, match="expected 32 bytes, got 31"):
        stream(seed[1:], 1)


def p_value(numbers):
    """Return the p value of a chi-square test of all bytes of these numbers against uniform ones."""
    found = np.concatenate([numbers.high.view(np.uint8), numbers.low.view(np.uint8)])
    counts = np.bincount(found, minlength=256)
    expected = len(found) / 256
    return chi2.sf(float(((counts - expected) ** 2 / expected).sum()), 255)


def test_uploads_look_uniform():
    x = Fixed.of(np.random.default_rng(1).normal(size=WORDS // 2))
    assert p_value(masked(x, [new_seed(), new_seed()])) > FAILS


@pytest.mark.parametrize("fault", ["plain", "a stream is missing", "a seed is reused"])
def test_the_test_of_uniformity_notices_faults(fault):
    """Each is as the coordinator sees it: with one witness's stream taken away, or with two uploads subtracted."""
    rng = np.random.default_rng(2)
    x, y = (Fixed.of(rng.normal(size=WORDS // 2)) for _ in range(2))
    one, two = new_seed(), new_seed()
    if fault == "plain":
        seen = x
    elif fault == "a stream is missing":
        seen = masked(x, [one]) - stream(one, len(x))
        assert p_value(masked(x, [one, two]) - stream(one, len(x))) > FAILS
    else:
        seen = masked(x, [one]) - masked(y, [one])
        assert p_value(masked(x, [one]) - masked(y, [two])) > FAILS
    assert p_value(seen) < FAILS


SMALL, UNIT = 20, 2.0**-33  # bits that are looked at, and the unit in the last place of numbers near 2²⁰


def last_bits(numbers):
    """Return the bits of numbers below the unit of large ones, as far as small ones have any."""
    return (numbers.low >> np.uint64(64 - 33 - SMALL)) & np.uint64(2**SMALL - 1)


def test_the_last_bits_of_a_party_of_one_sample_are_seen_in_an_exact_sum_unless_numbers_are_blurred():
    """A party of one sample sends products of its features; two others have numbers near 2²⁰ of all their samples."""
    rng = np.random.default_rng(3)
    count = 20_000
    alone = rng.uniform(0.5, 1, size=count)
    large = [rng.uniform(2.0**20, 2.0**21, size=count) * (1 + k) / 2 for k in range(2)]
    parts = [alone, *large]
    exact = [Fixed.of(x) for x in parts]
    # Large numbers are multiples of their unit, so that the sum's last bits are the small party's own, bit for bit.
    units = [Fixed.of(np.rint(x / UNIT) * UNIT) for x in large]
    assert np.array_equal(last_bits(added([exact[0], *units])), last_bits(exact[0]))

    hidden = [blurred(part, x, 53, new_seed()) for part, x in zip(exact, parts, strict=True)]
    seen = last_bits(added(hidden))
    counts = np.bincount((seen >> np.uint64(SMALL - 8)).astype(np.int64), minlength=256)
    assert chi2.sf(float(((counts - count / 256) ** 2 / (count / 256)).sum()), 255) > FAILS
    # A guess of the party's numbers cannot be confirmed: it agrees as often as any other.
    agreeing = (seen >> np.uint64(SMALL - 8)) == (last_bits(exact[0]) >> np.uint64(SMALL - 8))
    assert agreeing.mean() < 4 / 256


@given(st.lists(st.floats(-1e15, 1e15), min_size=1, max_size=20), st.sampled_from([24, 53]))
@examples(100)
def test_blurring_changes_a_number_by_at_most_half_a_unit(values, bits):
    x = np.array(values)
    change = (blurred(Fixed.of(x), x, bits, new_seed()) - Fixed.of(x)).floats()
    unit = np.ldexp(1.0, np.frexp(x)[1] - bits)
    assert (np.abs(change) <= unit / 2).all()
    assert not change[x == 0].any()


def test_the_same_numbers_are_blurred_alike_so_that_asking_again_tells_no_more():
    x, secret = np.random.default_rng(4).uniform(2.0**30, 2.0**31, size=100), new_seed()
    once, again = (blurred(Fixed.of(x), x, 53, secret) for _ in range(2))
    assert once == again
    for other in (blurred(Fixed.of(x), x, 53, new_seed()), blurred(Fixed.of(x), x, 24, secret)):
        assert not (once.low == other.low).any()
    y = np.append(x[:-1], x[-1] + 1)
    assert not (once.low == blurred(Fixed.of(y), y, 53, secret).low).any()


def test_the_blur_of_a_number_is_uniform_and_about_zero():
    x = np.full(100_000, 3.0)
    change = (blurred(Fixed.of(x), x, 24, new_seed()) - Fixed.of(x)).floats() / 2.0**-22
    assert abs(change.mean()) < 5 / np.sqrt(12 * len(x))
    counts = np.histogram(change, bins=64, range=(-0.5, 0.5))[0]
    assert chi2.sf(float(((counts - len(x) / 64) ** 2 / (len(x) / 64)).sum()), 63) > FAILS


def test_numbers_beyond_fixed_point_are_refused_at_the_client():
    with pytest.raises(InvalidData, match="the Gram matrix has 1e"):
        Fixed.of(np.array([1e17]), parties=100, name="the Gram matrix")


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=9))
def test_whole_numbers_come_back(values):
    assert Fixed.whole(np.array(values)).wholes().tolist() == values
    with pytest.raises(InvalidData, match="expected no fraction"):
        Fixed.of(np.array([0.5])).wholes()


KEY, OTHER = PrivateKey.new(), PrivateKey.new()


def test_a_message_opens_with_its_key_and_context_alone():
    sealed = seal_message(b"seed", KEY.public, b"here")
    assert len(sealed) == 4 + 48
    assert open_message(sealed, KEY, b"here") == b"seed"
    assert seal_message(b"seed", KEY.public, b"here") != sealed
    for key, context in ((OTHER, b"here"), (KEY, b"there"), (KEY, b"")):
        with pytest.raises(RefusedMessage, match="does not open"):
            open_message(sealed, key, context)
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 4
        with pytest.raises(RefusedMessage):
            open_message(bytes(changed), KEY, b"here")
    for end in range(len(sealed)):
        with pytest.raises(RefusedMessage):
            open_message(sealed[:end], KEY, b"here")


def test_no_seeded_generator_is_near_a_key_or_a_mask():
    """Randomness of this folder is the operating system's: `secrets`, and the keys that `cryptography` generates."""
    package = Path(fg.__file__).parent
    words = re.compile(r"np\.random|numpy\.random|default_rng|\brandom\.|import random|core\.randomness|generator\(")
    files = sorted((package / "secure").glob("*.py"))
    files += [package / "protocol" / f"{name}.py" for name in ("masking", "masked_clients", "reply_layouts")]
    assert {"masks.py", "sealing.py", "signing_keys.py"} <= {path.name for path in files}
    assert not [path.name for path in files if words.search(path.read_text(encoding="utf-8"))]
    assert masks.new_seed() != masks.new_seed()

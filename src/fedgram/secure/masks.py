"""Masks that hide numbers until they are added up: streams of ChaCha20, one for each seed.

A party adds one stream for each seed to its numbers, modulo 2¹²⁸. Without a seed, the result is as random as the
stream. Once many parties' results are added up, the sum of all their streams, subtracted, leaves the sum of their
numbers.

>>> numbers, seeds = Fixed.of(np.array([0.5, -2.0])), [new_seed(), new_seed()]
>>> hidden = masked(numbers, seeds)
>>> hidden == numbers, hidden - sum_of_streams(seeds, 2) == numbers
(False, True)
"""

import secrets
from collections.abc import Iterable
from functools import cache
from hmac import digest as keyed_digest
from typing import Any

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidData
from fedgram.core.extras import require
from fedgram.core.fixed_point import Fixed

SEED = 32  # bytes
# A seed serves one vector and never another, so the nonce need not differ; the first four bytes count blocks.
_NONCE = bytes(16)
_WORDS = 2  # uint64 words of a number


def new_seed() -> bytes:
    """Return a fresh seed; its randomness is the operating system's."""
    return secrets.token_bytes(SEED)


def stream(seed: bytes, count: int) -> Fixed:
    """Return this many numbers of 128 random bits, which the seed alone determines: ChaCha20's key stream."""
    words = np.frombuffer(key_stream(seed, 8 * _WORDS * count), dtype="<u8").reshape(_WORDS, count)
    return Fixed(words[0].astype(np.uint64), words[1].astype(np.uint64))


def key_stream(seed: bytes, length: int) -> bytes:
    """Return this many bytes of ChaCha20's key stream (RFC 8439) with the nonce zero, from block 0."""
    if len(seed) != SEED:
        raise InvalidData(f"seed: expected {SEED} bytes, got {len(seed)}")
    found: bytes = _encryptor(seed).update(bytes(length))
    return found


def masked(numbers: Fixed, seeds: Iterable[bytes]) -> Fixed:
    """Return numbers plus one stream for each seed, modulo 2¹²⁸."""
    for seed in seeds:
        numbers = numbers.wrapped_sum(stream(seed, len(numbers)))
    return numbers


def sum_of_streams(seeds: Iterable[bytes], count: int) -> Fixed:
    """Return the sum of the seeds' streams, modulo 2¹²⁸."""
    return masked(Fixed.zeros(count), seeds)


def blurred(numbers: Fixed, x: Array, bits: int, secret: bytes) -> Fixed:
    """Return numbers with random bits below their own precision, so that a sum's last bits are not one party's.

    A number x of this many significant `bits` is a multiple of its unit in the last place. Sums in fixed point lose
    nothing, so the part of a sum below the unit of all large numbers would be that of the smallest number alone: the
    last bits of a party with few samples would be seen. So a random number from -½ to ½ unit is added. It is as large
    as the rounding error that x has already. Zeros stay zeros. The same numbers get the same random bits, so that these
    cannot be averaged away by asking again.

    Parameters
    ----------
    numbers
        x in fixed point, (m,).
    x
        The numbers as floats, (m,).
    bits
        The significant bits of each number: 53 for float64, 24 for float32.
    secret
        32 random bytes that never leave the party.

    """
    width = np.frexp(x)[1] - bits + 64  # bits of the unit in the last place, in fixed point
    width = np.where(x == 0, 0, np.clip(width, 0, 127))
    noise = stream(keyed_digest(secret, bytes([bits]) + x.astype("<f8").tobytes(), "sha256"), len(x))
    # Arithmetic shifts leave signed random numbers of so many bits, from -½ to ½ unit.
    high, low = noise.high.view(np.int64), noise.low.view(np.int64)
    narrow, none = width <= 64, width == 0
    lower = np.where(narrow, low >> np.clip(64 - width, 0, 63), low)
    upper = np.where(narrow, lower >> 63, high >> np.clip(128 - width, 0, 63))
    lower[none], upper[none] = 0, 0
    return numbers.wrapped_sum(Fixed(upper.view(np.uint64), lower.view(np.uint64)))


def _encryptor(seed: bytes) -> Any:
    ciphers = _ciphers()
    return ciphers.Cipher(ciphers.algorithms.ChaCha20(seed, _NONCE), mode=None).encryptor()


@cache
def _ciphers() -> Any:
    return require("cryptography.hazmat.primitives.ciphers", "exchange", "secure sums")

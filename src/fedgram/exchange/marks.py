"""How moments are known again that differ by rounding only: on another machine, the same samples add up a little
otherwise.

One number is made of all class sums and squares, and its place on a grid is hashed with the class counts and a secret
of the store. Numbers that are close may lie on both sides of a grid line; so there are two grids, one shifted by half,
and such numbers share a place on one of them. A mark does not show the number, and nobody can compare the marks of two
stores; whoever has the store can only test whether a mark is that of moments at hand.
"""

import json

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.hashing import hash_bytes
from fedgram.moments.moments import Moments

ROUNDING = 1e-9  # relative; what adding up the same samples in another way stays far below
GOLDEN = (5**0.5 - 1) / 2  # its multiples fill the unit interval evenly


def marks_of(moments: Moments, secret: bytes) -> list[str]:
    """Return the two marks of moments; those of moments that are equal to 1e-9 share at least one of them."""
    numbers = np.concatenate([np.abs(moments.cross.T).ravel(), moments.squares])
    # Different weights, so that sums of other columns do not make the same number.
    weights = 1 + (np.arange(1, len(numbers) + 1) * GOLDEN) % 1
    size = float(weights @ numbers)
    place = np.log(size) / (2 * ROUNDING) if size > 0 else 0.0  # a grid on the logarithm is one of relative steps
    counts = moments.counts.tolist()
    grids = ((shift, int(np.floor(place + shift))) for shift in (0.0, 0.5))
    return [hash_bytes([secret, json.dumps([counts, *grid]).encode()]) for grid in grids]


def equal_to_rounding(one: Moments, other: Moments) -> bool:
    """Say whether two moments with the same class counts are equal to 1e-9 of their largest numbers."""
    if not np.array_equal(one.counts, other.counts):
        return False
    return _close(one.cross, other.cross) and _close(one.packed, other.packed)


def _close(one: Array, other: Array) -> bool:
    return float(np.abs(one - other).max(initial=0.0)) <= ROUNDING * float(np.abs(one).max(initial=0.0))

"""Random numbers that depend on their purpose, never on the order of requests."""

from numbers import Integral
from typing import Any

import numpy as np

from fedgram.core.errors import InvalidParameter
from fedgram.core.hashing import hash_text


def read_seed(seed: Any) -> int:
    """Return a seed as a whole number ≥ 0; raise for other values."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise InvalidParameter(f"seed must be a whole number ≥ 0, got {seed!r}")
    return int(seed)


def generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """Return a generator for one purpose: the same (seed, purpose) gives the same numbers everywhere.

    >>> a = generator(0, "train", 3, "client-7").random()
    >>> a == generator(0, "train", 3, "client-7").random()
    True
    >>> a == generator(0, "train", 4, "client-7").random()
    False
    """
    key = bytes.fromhex(hash_text(repr((read_seed(seed), purpose))))
    return np.random.default_rng(np.frombuffer(key, dtype="<u4"))

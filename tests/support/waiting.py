"""Waiting for other processes: long enough for a busy machine, and no longer than needed."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 420  # seconds; on a busy machine each process takes some just to start

T = TypeVar("T")


def wait_for(found: Callable[[], T], what: str, *, seconds: float = PATIENCE, pause: float = 0.02) -> T:
    """Return what `found` returns as soon as it is true."""
    until = time.monotonic() + seconds
    while not (result := found()):
        assert time.monotonic() < until, f"{what}: not within {seconds} s"
        time.sleep(pause)
    return result

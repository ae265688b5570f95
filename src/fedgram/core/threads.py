"""How many threads BLAS may use. A limit holds for the whole process, as BLAS knows no other."""

import os
from functools import cache
from threading import Lock
from typing import Any, ClassVar, Self

from threadpoolctl import ThreadpoolController

# Up to so many columns, reading a table is most of the work with it.
NARROW = 512


class Limit:
    """A number of BLAS threads, from construction until `release`, which may be called more than once.

    Where several runs hold one at a time, the smallest counts, and the last to go brings back what was before.
    """

    _lock = Lock()
    _held: ClassVar[list["Limit"]] = []
    _before: ClassVar[tuple[int, Any]] = (1, None)  # what was allowed, and the way back to it

    def __init__(self, threads: int) -> None:
        self.threads = threads
        with Limit._lock:
            if not Limit._held:
                Limit._before = _allowed(), _blas().limit(limits=None)
            Limit._held.append(self)
            Limit._apply()

    def release(self) -> None:
        """Take the limit back."""
        with Limit._lock:
            if self in Limit._held:
                Limit._held.remove(self)
                Limit._apply()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @staticmethod
    def _apply() -> None:
        if Limit._held:
            _blas().limit(limits=min(limit.threads for limit in Limit._held))
        else:
            Limit._before[1].restore_original_limits()

    @staticmethod
    def allowed() -> int:
        """Return how many threads BLAS may use where nothing here limits it."""
        with Limit._lock:
            return Limit._before[0] if Limit._held else _allowed()


def beside_reading(columns: int) -> Limit:
    """Return a limit for the time that a table is read and added up, block by block: one thread if it is narrow.

    Two threads that wait for each other in every block take many times the processor time on a busy machine.
    """
    return Limit(1 if columns <= NARROW else Limit.allowed())


def _allowed() -> int:
    return max((library["num_threads"] for library in _blas().info()), default=_processors())


@cache
def _blas() -> ThreadpoolController:
    """Return the way to the BLAS libraries of this process: NumPy's and SciPy's are two. Finding them takes a while."""
    return ThreadpoolController().select(user_api="blas")


def _processors() -> int:
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1

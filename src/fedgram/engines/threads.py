"""How many threads compute: those of BLAS inside a client's step, and workers for clients side by side.

BLAS' own threads pay off where a few clients have much to do each. For many clients, one BLAS thread each and as many
clients at once is quicker, and for small steps anything but one thread is a loss. A limit holds for the whole process,
as BLAS knows no other, and is never above what the environment (`OPENBLAS_NUM_THREADS` and the like) allows unless a
number is asked for.
"""

import math
import os
from collections.abc import Sequence
from functools import cache
from threading import Lock
from typing import Any, ClassVar

from threadpoolctl import ThreadpoolController

from fedgram.data.client import Client

# Multiplications below which a step takes about a millisecond: more threads would not make it shorter.
SMALL = 2e7


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


def _allowed() -> int:
    return max((library["num_threads"] for library in _blas().info()), default=_processors())


@cache
def _blas() -> ThreadpoolController:
    """Return the way to the BLAS libraries of this process: NumPy's and SciPy's are two. Finding them takes a while."""
    return ThreadpoolController().select(user_api="blas")


def _processors() -> int:
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1


def many_small_enough(clients: Sequence[Client], threads: int) -> bool:
    """Say whether one BLAS thread per client serves best, by the clients' sizes alone.

    So it is where steps are small, and where no client has more than the fair share of one of `threads` workers.
    """
    sizes = [len(client.x) for client in clients]
    largest, d = max(sizes), max(math.prod(client.x.shape[1:]) for client in clients)
    return largest * d * min(largest, d) <= SMALL or largest * threads <= sum(sizes)

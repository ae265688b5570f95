"""One policy for threads: those inside BLAS, torch and ONNX Runtime, and jobs of ours side by side.

`threads_for` decides by sizes alone how many threads compute something. The same sizes get the same number on a busy
machine and on a quiet one, because another number of threads may change the last bits of a result. Three rules:

- Threads inside a library wait for each other after every product. That pays off for large products on a quiet machine.
  For small ones it is a loss, and beside other busy processes a run can take fifty times as long.
- Many jobs that do not need each other, such as clients, go side by side with one thread each: they wait for nothing.
- Threads that wait must sleep, not spin. OpenMP reads that from the environment when it is loaded, see
  `waiting_passively`. OpenBLAS and oneDNN spin inside a product in any case; only one thread helps there.

What the environment allows is never exceeded unless a number is asked for: `OPENBLAS_NUM_THREADS`, `OMP_NUM_THREADS`
and `MKL_NUM_THREADS`. The smallest counts for torch. Without them it is the processors that the process may use.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from threading import Lock, local
from typing import Any, ClassVar, Self, TypeVar

from threadpoolctl import ThreadpoolController

T = TypeVar("T")

# Multiplications that take about a millisecond: threads that share less of them wait longer than they work.
SMALL = 2e7
# Multiplications that each piece of a job must have to go side by side with others: Python itself runs one at a time.
WORTH_A_JOB = 1e6
# Multiplications in the time that it takes to read one value of a table.
READING = 512
# Pieces that a decomposition is made of: its threads wait for each other that much more often than in a product.
DECOMPOSITION = 10
# Has OpenMP's threads sleep while they wait: that of GNU, of LLVM and of Intel.
PASSIVE = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
# OpenBLAS ends the process (signal 11) where a thread gets more columns of a symmetric product than fit its buffer:
# 7,700 with version 0.3.30 on Skylake-X, the smallest buffer we know. Factorisations have such products inside.
MOST_SYMMETRIC = 6000
_here = local()


def threads_for(multiplications: float, allowed: int, *, pieces: int = 1, meanwhile: float = 0.0) -> int:
    """Return the number of threads for a computation: all that are allowed, or one.

    Parameters
    ----------
    multiplications
        How many the whole computation has.
    allowed
        How many threads there may be.
    pieces
        How many pieces it has, after each of which the threads wait for each other.
    meanwhile
        Work of a single thread between the pieces, in multiplications. Where it is the larger part, the answer is one.

    >>> threads_for(1e6, 8), threads_for(1e9, 8), threads_for(1e9, 8, pieces=100), threads_for(1e9, 8, meanwhile=2e9)
    (1, 8, 1, 1)

    """
    return 1 if multiplications <= max(SMALL * pieces, meanwhile) else allowed


def one_thread_each(sizes: Sequence[int], columns: int, allowed: int) -> bool:
    """Say whether clients of so many samples serve best with one thread each, side by side.

    So it is where steps are small, and where no client has more than the fair share of one of `allowed` workers.
    """
    largest = max(sizes)
    small = threads_for(largest * columns * min(largest, columns), allowed) == 1
    return small or largest * allowed <= sum(sizes)


def jobs_at_once(multiplications: float, lengths: Sequence[float], allowed: int, *, pieces: int = 1) -> int:
    """Return how many jobs go side by side, each with one thread.

    `lengths` say how long each job is beside the others. A job is a sequence of computations with so many
    multiplications. Where one job is longer than a worker's share of all, and its computations are large, they get all
    threads, one job after another.

    >>> jobs_at_once(1e7, [1] * 20, 4), jobs_at_once(1e7, [1] * 3, 4), jobs_at_once(1e5, [1] * 20, 4)
    (4, 3, 1)
    >>> jobs_at_once(1e9, [1] * 20, 4), jobs_at_once(1e9, [50] + [1] * 19, 4)
    (4, 1)
    """
    if multiplications < WORTH_A_JOB * pieces:
        return 1
    uneven = max(lengths, default=0) * allowed > sum(lengths)
    return 1 if uneven and threads_for(multiplications, allowed, pieces=pieces) > 1 else min(len(lengths), allowed)


def processors() -> int:
    """Return how many processors this process may use."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1


class Limit:
    """A number of BLAS threads, from construction until `release`, which may be called more than once.

    It holds for the whole process, as BLAS knows no other. Where several runs hold one at a time, the smallest counts,
    and the last to go brings back what was before.
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

    @staticmethod
    def now() -> int:
        """Return how many threads a computation may use here and now: one where it is a job among others."""
        if _is_worker():
            return 1
        with Limit._lock:
            return min(limit.threads for limit in Limit._held) if Limit._held else _allowed()


def beside_reading(columns: int) -> Limit:
    """Return a limit for the time that a table is read and added up, block by block: one thread if it is narrow."""
    return Limit(threads_for(columns**2, Limit.allowed(), pieces=0, meanwhile=READING * columns))


def decomposing(rows: int, columns: int) -> Limit:
    """Return a limit for a decomposition of a matrix that has more rows than columns."""
    return Limit(threads_for(rows * columns**2, Limit.allowed(), pieces=DECOMPOSITION))


def symmetric(columns: int) -> AbstractContextManager[object]:
    """Return a limit for symmetric products and decompositions: OpenBLAS cannot share those of many columns."""
    if columns <= MOST_SYMMETRIC or columns <= MOST_SYMMETRIC * Limit.now():
        return nullcontext()
    return Limit(1)


@contextmanager
def torch_threads(multiplications: float, *, pieces: int = 1) -> Iterator[None]:
    """Let torch compute something of this size with as many threads as pay off, and give it back what it had.

    BLAS' limits hold for torch, too.
    """
    import torch

    before = torch.get_num_threads()
    chosen = threads_for(multiplications, min(before, Limit.now()), pieces=pieces)
    if chosen != before:
        torch.set_num_threads(chosen)
    try:
        yield
    finally:
        # A worker goes on with one: the number is that of a thread of Python, but MKL has one for all of them.
        if chosen != before and not _is_worker():
            torch.set_num_threads(before)


def side_by_side(jobs: Sequence[Callable[[], T]], workers: int) -> list[T]:
    """Return what jobs return that use torch; with several workers, each of these has one thread."""
    if workers == 1:
        return [job() for job in jobs]
    with Limit(1), torch_threads(0), ThreadPoolExecutor(workers, initializer=_begin_with_torch) as pool:
        under_way = [pool.submit(job) for job in jobs]
        try:
            return [job.result() for job in under_way]
        finally:
            for job in under_way:
                job.cancel()


def onnx_options(runtime: Any) -> Any:
    """Return options of an ONNX Runtime session whose threads sleep while they wait, and are as many as allowed."""
    options = runtime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    allowed = Limit.now()
    if allowed < processors():  # by itself it takes the cores, and pins a thread to each
        options.intra_op_num_threads = allowed
    return options


def begin_worker() -> None:
    """Say that this thread of Python is a worker beside others: what it computes gets one thread."""
    _here.is_worker = True


def end_workers() -> None:
    """Give torch back the number of threads that this thread of Python has; workers have changed MKL's."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(torch.get_num_threads())


def _is_worker() -> bool:
    return getattr(_here, "is_worker", False)


def _begin_with_torch() -> None:
    import torch

    begin_worker()
    torch.set_num_threads(1)  # OpenMP keeps this number for each thread of Python


@contextmanager
def waiting_passively() -> Iterator[None]:
    """Import a library inside, so that its threads sleep while they wait for each other.

    OpenMP looks at the environment when it is loaded, so the environment is as before afterwards. Nothing is changed
    where one of the variables is set already.
    """
    if any(name in os.environ for name in (*PASSIVE, "GOMP_SPINCOUNT")):
        yield
        return
    os.environ.update(PASSIVE)
    try:
        yield
    finally:
        for name in PASSIVE:
            os.environ.pop(name, None)


def _allowed() -> int:
    return max((library["num_threads"] for library in _blas().info()), default=processors())


@cache
def _blas() -> ThreadpoolController:
    """Return the way to the BLAS libraries of this process: NumPy's and SciPy's are two. Finding them takes a while."""
    return ThreadpoolController().select(user_api="blas")

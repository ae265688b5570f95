"""The policy for threads: those inside BLAS, torch and ONNX Runtime, and jobs side by side.

`threads_for` decides by sizes alone how many threads a computation gets; all other functions here ask it, and no other
file sets a number of threads. The same sizes get the same number on a busy machine and on a quiet one, because another
number of threads may change the last bits of a result. Three rules:

- Threads inside a library wait for each other after every product. That pays off for large products on a quiet machine.
  For small ones it is a loss, and beside other busy processes a run can take fifty times as long.
- Many independent jobs, such as clients, go side by side with one thread each: they do not wait for each other.
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
# CPU seconds from which on a step of a client is worth a worker; below, workers wait for the interpreter. The first
# steps take longer than later ones, so some steps that took no time are added before them.
WORTH_A_THREAD, IMAGINED = 2e-3, 2
# Settings by which waiting threads of OpenMP sleep, for the libraries of GNU, LLVM and Intel.
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
        The number of multiplications in the whole computation.
    allowed
        The largest number of threads.
    pieces
        The number of pieces of the computation, after each of which the threads wait for each other.
    meanwhile
        Work of a single thread between the pieces, in multiplications. Where it is the larger part, the answer is one.

    Examples
    --------
    >>> threads_for(1e6, 8), threads_for(1e9, 8), threads_for(1e9, 8, pieces=100), threads_for(1e9, 8, meanwhile=2e9)
    (1, 8, 1, 1)

    """
    return 1 if multiplications <= max(SMALL * pieces, meanwhile) else allowed


def one_thread_each(sizes: Sequence[int], columns: int, allowed: int) -> bool:
    """Return whether clients with these numbers of samples run best with one thread each, side by side.

    That is the case if steps are small, or no client has more than the fair share of one of `allowed` workers.
    """
    largest = max(sizes)
    small = threads_for(largest * columns * min(largest, columns), allowed) == 1
    return small or largest * allowed <= sum(sizes)


def worth_a_worker(seconds: float, steps: int) -> bool:
    """Return whether steps that have taken so many CPU seconds are worth workers side by side.

    >>> worth_a_worker(0.003, 1), worth_a_worker(0.02, 1)
    (False, True)
    """
    return seconds >= WORTH_A_THREAD * (steps + IMAGINED)


def jobs_at_once(multiplications: float, lengths: Sequence[float], allowed: int, *, pieces: int = 1) -> int:
    """Return the number of jobs that go side by side, each with one thread.

    `lengths` are the relative lengths of the jobs. A job is a sequence of computations of `multiplications` each. If
    one job is longer than a worker's share of the total, and computations are large, jobs run one after another with
    all threads.

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
    """Return the number of processors that this process may use."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1


class Limit:
    """A number of BLAS threads, from construction until `release`, which may be called more than once.

    It holds for the whole process, because BLAS has only one number of threads. If several limits are held at a time,
    the smallest counts, and the release of the last one restores the earlier number.
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
        """Return the number of threads that BLAS may use without a limit from here."""
        with Limit._lock:
            return Limit._before[0] if Limit._held else _allowed()

    @staticmethod
    def now() -> int:
        """Return the number of threads that a computation may use now: one if it is a job among others."""
        if _is_worker():
            return 1
        with Limit._lock:
            return min(limit.threads for limit in Limit._held) if Limit._held else _allowed()


def beside_reading(columns: int) -> Limit:
    """Return a limit for reading and adding up a table block by block: one thread if the table is narrow."""
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
    """Set torch's number of threads for a computation of this size, and restore it afterwards.

    Limits of BLAS hold for torch, too.
    """
    import torch

    before = torch.get_num_threads()
    chosen = threads_for(multiplications, min(before, Limit.now()), pieces=pieces)
    if chosen != before:
        torch.set_num_threads(chosen)
    try:
        yield
    finally:
        # A worker keeps one thread: torch's number is per thread of Python, but that of MKL is shared by all of them.
        if chosen != before and not _is_worker():
            torch.set_num_threads(before)


def side_by_side(jobs: Sequence[Callable[[], T]], workers: int) -> list[T]:
    """Return the results of jobs that use torch; several workers have one thread each."""
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
    """Return options of an ONNX Runtime session with the allowed number of threads, which sleep while they wait."""
    options = runtime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    allowed = Limit.now()
    if allowed < processors():  # by itself it takes the cores, and pins a thread to each
        options.intra_op_num_threads = allowed
    return options


def begin_worker() -> None:
    """Mark this thread of Python as a worker beside others, whose computations get one thread."""
    _here.is_worker = True


def end_workers() -> None:
    """Restore torch's number of threads for this thread of Python, because workers have changed that of MKL."""
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
    """Set the environment so that threads of a library that is imported inside sleep while they wait.

    OpenMP reads the environment only when it is loaded, so the environment is restored afterwards. Nothing is changed
    if one of the variables is set already.
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
    """Return the controller of this process's BLAS libraries, NumPy's and SciPy's; finding them takes a while."""
    return ThreadpoolController().select(user_api="blas")

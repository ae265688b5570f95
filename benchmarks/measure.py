"""Measurement and printing of times and memory."""

import gc
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def cpu_seconds(*jobs: Callable[[], Any], repeats: int = 5) -> list[float]:
    """Return each job's least CPU time; the jobs take turns, so that a disturbance hits all alike."""
    return _least(time.process_time, jobs, repeats)


def wall_seconds(*jobs: Callable[[], Any], repeats: int = 5) -> list[float]:
    """Return each job's least wall-clock time; the jobs take turns."""
    return _least(time.perf_counter, jobs, repeats)


def cpu_and_wall_seconds(*jobs: Callable[[], Any], repeats: int = 5) -> list[tuple[float, float]]:
    """Return each job's CPU time and wall-clock time, of the run that took the least CPU time."""
    runs: list[list[tuple[float, float]]] = [[] for _ in jobs]
    for _ in range(repeats):
        for found, job in zip(runs, jobs, strict=True):
            gc.collect()
            cpu, wall = time.process_time(), time.perf_counter()
            job()
            found.append((time.process_time() - cpu, time.perf_counter() - wall))
    return [min(found) for found in runs]


def _least(clock: Callable[[], float], jobs: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    best = [float("inf")] * len(jobs)
    for _ in range(repeats):
        for i, job in enumerate(jobs):
            gc.collect()
            started = clock()
            job()
            best[i] = min(best[i], clock() - started)
    return best


def peak_bytes(job: Callable[[], Any]) -> int:
    """Return the peak memory of Python and numpy during the job, beyond the memory held before."""
    gc.collect()
    tracemalloc.start()
    job()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


class Results:
    """A table of figures, each with the bound it should keep."""

    def __init__(self, title: str) -> None:
        self._table = Table("what", "figure", "bound", "", title=title, title_justify="left")

    def at_most(self, what: str, figure: float, bound: float) -> None:
        """Add a figure with an upper bound."""
        self._add(what, figure, f"≤ {bound:g}", figure <= bound)

    def at_least(self, what: str, figure: float, bound: float) -> None:
        """Add a figure with a lower bound."""
        self._add(what, figure, f"≥ {bound:g}", figure >= bound)

    def note(self, what: str, figure: str) -> None:
        """Add a figure without a bound."""
        self._table.add_row(what, figure, "", "")

    def _add(self, what: str, figure: float, bound: str, kept: bool) -> None:
        self._table.add_row(what, f"{figure:.3g}", bound, "[green]kept[/]" if kept else "[red]broken[/]")

    def show(self) -> None:
        """Print the table."""
        Console(width=110).print(self._table)

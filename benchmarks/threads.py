"""Wall time of what the engine chooses by itself, against BLAS threads and workers set by hand.

It runs in a process of its own, in which BLAS has as many threads as it likes.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from threadpoolctl import threadpool_info, threadpool_limits

import fedgram as fg
from benchmarks.afl import CLASSES, make_clients
from benchmarks.measure import Results, wall_seconds

# Clients, samples each, features; and whether the clients' steps are what takes the time.
SETTINGS = ((1000, 50, 512, False), (100, 500, 768, True), (50, 1200, 1280, True))


def by_hand(method: fg.Method, clients: list[fg.Client], threads: int, workers: int) -> None:
    """Fit with BLAS at so many threads everywhere, and so many clients side by side."""
    with threadpool_limits(threads, user_api="blas"):
        method.fit(clients, classes=CLASSES, engine=fg.InProcess(workers=workers, threads=threads))


def compare(title: str, method: fg.Method, clients: list[fg.Client], cores: int, *, costly: bool) -> None:
    """Print the ratios of one setting."""
    combinations = [(threads, workers) for threads in (1, cores) for workers in (1, cores)]
    jobs: list[Callable[[], Any]] = [partial(by_hand, method, clients, *combination) for combination in combinations]
    jobs += [lambda: method.fit(clients, classes=CLASSES)]
    jobs += [lambda: method.fit(clients, classes=CLASSES, engine=fg.InProcess(workers=1))]
    *seconds, chosen, alone = wall_seconds(*jobs, repeats=5)
    taken = dict(zip(combinations, seconds, strict=True))
    results = Results(title)
    for (threads, workers), value in taken.items():
        results.note(f"seconds, BLAS threads {threads}, workers {workers}", f"{value:.2f}")
    results.note("seconds, left to the engine, and so but for one worker", f"{chosen:.2f}, {alone:.2f}")
    results.at_most("left to the engine / the best by hand", chosen / min(seconds), 1.15)
    if costly:
        results.at_least(f"one worker / left to the engine ({cores} workers)", alone / chosen, 0.8 * cores)
    results.show()


def measure() -> None:
    cores = max(library["num_threads"] for library in threadpool_info())
    if cores == 1:
        print("one core: there are no threads to choose")
        return
    for count, n, d, costly in SETTINGS:
        title = f"AFL, {count:,} clients × {n:,} samples × {d:,} features"
        compare(title, fg.AFL(), make_clients(count, d, count * n), cores, costly=costly)


def main() -> None:
    free = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    subprocess.run([sys.executable, "-m", "benchmarks.threads"], check=True, env=free)


if __name__ == "__main__":
    measure()

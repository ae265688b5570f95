"""Wall time with the engine's choice of threads, against BLAS threads and workers set by hand; and FedAvg beside other
busy processes.

It runs in a process of its own, in which BLAS and torch may use all threads. The second part alone:
`python -m benchmarks.threads beside`.
"""

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

import fedgram as fg
from benchmarks.afl import CLASSES, make_clients
from benchmarks.measure import Results, wall_seconds

# Clients, samples each, features; and whether the clients' steps take most of the time.
SETTINGS = ((1000, 50, 512, False), (100, 500, 768, True), (50, 1200, 1280, True))


def by_hand(method: fg.Method, clients: list[fg.Client], threads: int, workers: int) -> None:
    """Fit with a given number of BLAS threads everywhere, and of clients side by side."""
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


def single_threaded() -> None:
    """Do arithmetic with NumPy that no library splits among threads."""
    x = np.random.default_rng(0).random(20_000)
    for _ in range(8000):
        x = np.sqrt(x * x + 1e-9)


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Let this number of other processes compute without a pause."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(0.5)
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def seconds_of(jobs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, tuple[float, float]]:
    """Return the median wall and CPU seconds of each job; they take turns."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, job in jobs.items():
            gc.collect()
            wall, cpu = time.perf_counter(), time.process_time()
            job()
            found[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {name: (median(wall for wall, _ in runs), median(cpu for _, cpu in runs)) for name, runs in found.items()}


def beside_others() -> None:
    """Print the slow-down of FedAvg beside two busy processes, against arithmetic of one thread."""
    rng = np.random.default_rng(0)
    pixels, labels = rng.random((20, 64, 32, 32, 3), dtype=np.float32), rng.integers(0, 10, (20, 64))
    photos = [fg.Client(f"client-{k:02d}", x, y) for k, (x, y) in enumerate(zip(pixels, labels, strict=True))]
    rows = make_clients(20, 1280, 20 * 240)

    def fedavg(network: str, clients: list[fg.Client], rounds: int, batch: int) -> Callable[[], Any]:
        return lambda: fg.FedAvg(network=network, rounds=rounds, batch=batch).fit(clients, classes=CLASSES)

    jobs: dict[str, Callable[[], Any]] = {
        "NumPy on one thread": single_threaded,
        "LeNet-5, batches of 64": fedavg("lenet5", photos, 4, 64),
        "perceptron, batches of 64": fedavg("mlp:128", rows, 4, 64),
        "linear head, batches of 32": fedavg("linear", rows, 20, 32),
    }
    for job in jobs.values():
        job()
    quiet = seconds_of(jobs, repeats=3)
    with busy_processes(2):
        busy = seconds_of(jobs, repeats=3)
    control, *others = jobs
    usual = busy[control][0] / quiet[control][0]
    results = Results("FedAvg, 20 clients, beside two busy processes: medians of three runs")
    for name in jobs:
        walls, cpus = zip(quiet[name], busy[name], strict=True)
        results.note(f"{name}: wall seconds quiet, busy", "{:.2f}, {:.2f}".format(*walls))
        results.note(f"{name}: CPU seconds quiet, busy", "{:.2f}, {:.2f}".format(*cpus))
    for name in others:
        results.at_most(f"{name}: slowdown / that of {control}", busy[name][0] / quiet[name][0] / usual, 1.5)
        results.at_most(f"{name}: CPU seconds busy / quiet", busy[name][1] / quiet[name][1], 1.3)
    results.show()


def main() -> None:
    free = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    subprocess.run([sys.executable, "-m", "benchmarks.threads"], check=True, env=free)


if __name__ == "__main__":
    if sys.argv[1:] != ["beside"]:
        measure()
    beside_others()

"""Personal models against the bare LAPACK calls of the cheaper form, and against solving every client's full system."""

from typing import Any

import numpy as np
from scipy.linalg import blas, lapack

import fedgram as fg
from benchmarks.measure import Results, cpu_seconds
from fedgram.heads.system import System
from fedgram.moments import packing

D, CLASSES, CLIENTS, ALPHA = 1280, 10, 100, 20.0


def problem(n: int) -> tuple[System, list[tuple[Any, Any]]]:
    """Return the pooled system, and clients of about n samples each."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(round(0.8 * n), round(1.2 * n), CLIENTS)
    clients = [(rng.standard_normal((size, D)), rng.integers(0, CLASSES, size)) for size in sizes]
    total = fg.Moments.sum(fg.Moments.of(x, y, classes=CLASSES) for x, y in clients)
    return System.of(total, ridge=1.0), clients


def ours(system: System, clients: list[tuple[Any, Any]], alpha: Any) -> Any:
    """Return the last client's weights, after those of all clients."""
    return [system.emphasize(x, y, alpha) for x, y in clients][-1].weights


def bare_dual(lower: Any, weights: Any, clients: list[tuple[Any, Any]]) -> Any:
    """Solve each client's n × n system with the library calls alone."""
    for x, y in clients:
        v = blas.dtrsm(1.0, lower, x.T, lower=1)
        small = blas.dsyrk(ALPHA, v.T, lower=1)
        small[np.diag_indices(len(x))] += 1.0
        residual = np.eye(CLASSES)[y] - x @ weights
        _, solution, _ = lapack.dposv(small, residual, lower=1, overwrite_a=1)
        own = weights + blas.dtrsm(1.0, lower, ALPHA * (v @ solution), lower=1, trans_a=1)
    return own


def full_systems(gram: Any, cross: Any, clients: list[tuple[Any, Any]]) -> Any:
    """Solve each client's d × d system as the paper prints it, (14), with the library calls alone."""
    for x, y in clients:
        left = blas.dsyrk(ALPHA, x.T, beta=1.0, c=gram, lower=1)
        _, own, _ = lapack.dposv(left, cross + ALPHA * (x.T @ np.eye(CLASSES)[y]), lower=1, overwrite_a=1)
    return own


def compare(n: int) -> None:
    """Print the ratios for clients of about n samples."""
    system, clients = problem(n)
    lower, _ = lapack.dtfttr(D, system.lower, uplo="L")
    gram = np.asfortranarray(np.tril(packing.unpack(packing.pack(lower @ lower.T), D)))
    cross = lower @ (lower.T @ system.weights)
    jobs = (
        lambda: ours(system, clients, ALPHA),
        lambda: bare_dual(lower, system.weights, clients),
        lambda: full_systems(gram, cross, clients),
        lambda: ours(system, clients, "auto"),
    )
    assert np.allclose(jobs[0](), jobs[1](), atol=1e-8)
    assert np.allclose(jobs[0](), jobs[2](), atol=1e-8)
    fixed, bare, full, auto = cpu_seconds(*jobs, repeats=3)
    results = Results(f"FedHiP, {CLIENTS} clients of about {n} samples, d = {D:,}")
    results.note(
        "CPU seconds: ours, bare dual form, full systems, auto", f"{fixed:.2f}, {bare:.2f}, {full:.2f}, {auto:.2f}"
    )
    results.at_most("ours / bare LAPACK of the dual form", fixed / bare, 1.3)
    results.at_least("full systems / ours", full / fixed, 3.0 if n < 200 else 1.0)
    results.at_most("auto over 32 values / one fixed value", auto / fixed, 3.0)
    results.show()


def main() -> None:
    compare(100)
    compare(480)

"""AFL against the bare BLAS and LAPACK calls that every implementation needs, and against the paper's
recursion.
"""

from typing import Any

import numpy as np
from scipy.linalg import blas, lapack
from scipy.sparse import csc_array
from tests.reference import recursions

import fedgram as fg
from benchmarks.measure import Results, cpu_seconds, peak_bytes

CLASSES = 100


def make_clients(k: int, d: int, n: int) -> list[fg.Client]:
    """Return k equal clients of n samples in all, as float64, so that conversions cost nothing."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((n, d)), rng.integers(0, CLASSES, n)
    return [fg.Client(f"client-{i:04d}", x[part], y[part]) for i, part in enumerate(np.array_split(np.arange(n), k))]


def bare(clients: list[fg.Client]) -> Any:
    """Solve the same problem with the library calls alone: syrk, class sums, potrf, potrs."""
    d = clients[0].x.shape[1]
    gram, sums = np.zeros((d, d), order="F"), np.zeros((CLASSES, d))
    for client in clients:
        n = len(client.x)
        blas.dsyrk(1.0, client.x.T, beta=1.0, c=gram, lower=1, overwrite_c=1)
        sums += csc_array((np.ones(n), client.y, np.arange(n + 1)), shape=(CLASSES, n)) @ client.x
    lower, _ = lapack.dpotrf(gram, lower=1, overwrite_a=1, clean=0)
    return lapack.dpotrs(lower, sums.T, lower=1)[0]


def compare(title: str, clients: list[fg.Client], *, bare_bound: float, recursion_bound: float) -> None:
    """Print the ratios of one setting."""
    method = fg.AFL(intercept=False)  # as the bare calls and the paper
    weights = method.fit(clients, classes=CLASSES).model.weights
    assert np.allclose(weights, bare(clients), rtol=1e-8)
    ours, floor = cpu_seconds(lambda: method.fit(clients, classes=CLASSES), lambda: bare(clients))
    one_hot = np.eye(CLASSES)
    pairs = [(client.x, one_hot[client.y]) for client in clients]
    [paper] = cpu_seconds(lambda: recursions.afl(pairs), repeats=1)
    results = Results(title)
    results.note("CPU seconds: ours, bare, paper's recursion", f"{ours:.2f}, {floor:.2f}, {paper:.1f}")
    results.at_most("ours / bare BLAS", ours / floor, bare_bound)
    results.at_least("paper's recursion / ours", paper / ours, recursion_bound)
    _sizes(results, clients)
    results.show()


def _sizes(results: Results, clients: list[fg.Client]) -> None:
    d = clients[0].x.shape[1]
    dense = 8 * d * (d + CLASSES)
    fit = fg.AFL().fit(clients, classes=CLASSES)
    results.at_most("upload a client / the paper's dense (C, W)", fit.traffic.up / len(clients) / dense, 0.60)


def memory() -> None:
    """Print the server's memory for many clients against few, over the same samples.

    The fit's record of each contribution, d + 2c numbers, grows with the clients, and is shown beside it.
    """
    d = 512
    few, many = (
        peak_bytes(lambda clients=clients: fg.AFL().fit(clients, classes=CLASSES))
        - 8 * len(clients) * (d + 2 * CLASSES)
        for clients in (make_clients(k, d, 20_000) for k in (10, 1000))
    )
    results = Results(f"AFL's memory beyond the data and the records of contributions, d = {d}, 20,000 samples")
    results.note("records, bytes a client", f"{8 * (d + 2 * CLASSES):,}")
    results.note("peak bytes with 10 and 1,000 clients", f"{few:,}, {many:,}")
    results.at_most("1,000 clients / 10 clients", many / few, 1.4)
    results.show()


def main() -> None:
    compare(
        "AFL, 100 clients, d = 768, c = 100, 50,000 samples",
        make_clients(100, 768, 50_000),
        bare_bound=1.25,
        recursion_bound=25,
    )
    compare(
        "AFL, 1,000 clients, d = 512, c = 100, 50,000 samples (n_k = 50 < d/4: factors are sent)",
        make_clients(1000, 512, 50_000),
        bare_bound=2.4,
        recursion_bound=90,
    )
    memory()

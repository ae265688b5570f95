"""Spreading 50,000 labels over 1,000 clients."""

import numpy as np

from benchmarks.measure import Results, cpu_seconds
from fedgram import partition


def main() -> None:
    labels = np.random.default_rng(0).integers(0, 100, 50_000)
    jobs = {
        "dirichlet, α = 0.1": lambda: partition.dirichlet(labels, clients=1000, alpha=0.1),
        "dirichlet, α = 0.01, at least 10 samples": lambda: partition.dirichlet(
            labels, clients=1000, alpha=0.01, min_size=10
        ),
        "shards, 2 per client": lambda: partition.shards(labels, clients=1000, shards_per_client=2),
        "pathological, 2 classes": lambda: partition.pathological(labels, clients=1000, classes_per_client=2),
        "iid": lambda: partition.iid(len(labels), clients=1000),
    }
    results = Results("Partitions, 50,000 labels over 1,000 clients: CPU seconds")
    for (what, _), seconds in zip(jobs.items(), cpu_seconds(*jobs.values()), strict=True):
        results.at_most(what, seconds, 0.5)
    results.show()

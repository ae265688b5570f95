"""Records as a large comparison would write them, without running it: for the report's tests only."""

import json
from dataclasses import asdict

import numpy as np

from fedgram.experiments import Scenario
from fedgram.experiments.scenario import stable_key

ITERATIVE = 10


def comparison(
    *, methods=20, clients=(50, 100), alphas=(0.05, 0.1, 0.3, 0.5, 1.0, 100), seeds=5, rounds=200, classes=10
):
    """Yield settings' and runs' records: the first is the reference, the last `ITERATIVE` methods have rounds."""
    rng = np.random.default_rng(0)
    for seed in range(seeds):
        for count in clients:
            for alpha in alphas:
                setting = Scenario(
                    data="cifar10", backbone="lite0:96", clients=count, partition=f"dirichlet:{alpha}", seed=seed
                )
                counts = rng.multinomial(480, rng.dirichlet([alpha] * classes, count))
                yield _setting(setting, counts)
                tested = counts.sum(axis=1) // 4
                for m in range(methods):
                    level = 0.66 + 0.24 * (methods - m) / methods - 0.06 * np.log10(alpha / 0.05) / 3
                    yield _run(setting, m, m >= methods - ITERATIVE, level, tested, rounds, rng)


def _setting(setting, counts):
    return {
        "kind": "setting",
        "setting": setting.key,
        **asdict(setting),
        "classes": [f"class {j}" for j in range(counts.shape[1])],
        "names": [f"client-{k:03d}" for k in range(len(counts))],
        "class_counts": counts.tolist(),
    }


def _run(setting, m, iterative, level, tested, rounds, rng):
    accuracies = np.clip(level + rng.normal(0, 0.08, len(tested)), 0.2, 1)
    correct = (accuracies * tested).round().astype(int)
    by_client = correct / tested
    summary = {
        "client_mean": by_client.mean(),
        "pooled": correct.sum() / tested.sum(),
        "worst_decile": np.sort(by_client)[: -(-len(tested) // 10)].mean(),
    }
    label = "centralised" if m == 0 else f"method-{m:02d}" if m % 3 else f"method-{m:02d}+FT"
    record = {
        "kind": "run",
        "key": stable_key([asdict(setting), m]),
        "label": label,
        "method": label,
        "settings": {"eta": 0.01, "mu": 0.5, "rounds": rounds} if iterative else {"gamma": 1.0},
        "reference": m == 0,
        **asdict(setting),
        "status": "ok",
        "fingerprint": "made-up",
        "versions": {"fedgram": "0.1.0", "numpy": "2.0", "python": "3.11"},
        "accuracy": summary,
        "correct": correct.tolist(),
        "tested": tested.tolist(),
        "cpu_seconds": {
            "clients": float(rng.uniform(1, 30) * (10 if iterative else 1)),
            "server": float(rng.uniform(0.1, 2)),
        },
        "peak_memory": int(3e8),
        "seconds": 3.0,
    }
    if m:
        sent = rng.integers(50_000, 6_000_000) * (rounds // 4 if iterative else 1)
        record["up"] = (sent * rng.uniform(0.2, 1, len(tested))).astype(int).tolist()
        record["down"] = [int(sent)] * len(tested)
    if iterative:
        shape = 1 - np.exp(-np.arange(1, rounds + 1) / rounds * (3 + m / 4))
        record["rounds"] = {name: (value * shape).round(6).tolist() for name, value in summary.items()}
    return record


def weights(names, *, own=0.9):
    """Return a matrix as a run's record holds it: a client takes a little more of its neighbours."""
    places = range(len(names))
    values = [[own if i == j else 0.002 if abs(i - j) == 1 else 0.001 for j in places] for i in places]
    return {"aggregation weights": {"clients": list(names), "values": values}}


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path

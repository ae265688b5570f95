"""Records of runs with numeric outcomes, as a comparison would write them."""

import numpy as np

from support.report import record

OUTCOMES = {"cost": "EUR"}


def numeric_record(label, scale, *, outcomes=OUTCOMES, clients=6, seed=0, **more):
    """Return a run's record whose errors are `scale` times those of a standard normal, at each client."""
    rng = np.random.default_rng([seed, 7])
    tested = rng.integers(20, 60, clients)
    sums, errors = {}, {}
    for name in outcomes:
        found = [scale * rng.normal(size=n) for n in tested]
        truth = [100 + 5 * rng.normal(size=n) for n in tested]
        sums[name] = {
            "squared": [float((one**2).sum()) for one in found],
            "absolute": [float(np.abs(one).sum()) for one in found],
            "total": [float(one.sum()) for one in truth],
            "spread": [float(((one - one.mean()) ** 2).sum()) for one in truth],
        }
        off, all_ = np.concatenate(found), np.concatenate(truth)
        errors[name] = {
            "rmse": float(np.sqrt((off**2).mean())),
            "mae": float(np.abs(off).mean()),
            "r2": float(1 - (off**2).sum() / ((all_ - all_.mean()) ** 2).sum()),
        }
    figures = {"outcomes": dict(outcomes), "errors": errors, "error_sums": sums, "tested": tested.tolist()}
    costs = {
        "up": [1000 * len(label)] * clients,
        "down": [500] * clients,
        "cpu_seconds": {"clients": 0.1, "server": 0.1},
    }
    made = record(label, 0.5, clients=clients, partition="by_group", seed=seed, **figures)
    return made | {"accuracy": None} | (costs if not more.get("reference") else {}) | more


def validation(names=("north", "south", "west"), target="cost"):
    """Return a record's validation of parties that were left out; the last one does not fit."""

    def lists(*figures):
        return {"mse": list(figures), "r2": [0.9, 0.8, -2.0]}

    errors = {"left_out": lists(4.0, 9.0, 400.0), "pooled": lists(3.0, 6.0, 100.0), "own": lists(1.0, 4.0, 2.25)}
    return {"names": list(names), "samples": [40, 1200, 30], "errors": {target: errors}}


NUMERIC = [
    numeric_record("centralised", 1.0, reference=True),
    numeric_record("afl", 1.0, personal=False, validation=validation()),
    numeric_record("fedgram", 0.3, personal=True),
    numeric_record("local", 3.0, personal=True),
]

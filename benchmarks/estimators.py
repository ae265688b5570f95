"""Estimators against scikit-learn's own with the same ridge, and the memory of `partial_fit`."""

from typing import Any

import numpy as np
from sklearn.linear_model import Ridge, RidgeClassifier

from benchmarks.measure import Results, cpu_seconds, peak_bytes
from fedgram.sklearn import GramClassifier, GramRegressor

RIDGE = 1.0


def compare(n: int, d: int, classes: int = 3) -> None:
    """Print the ratios of one size."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, d))
    scores = x @ rng.standard_normal((d, classes)) + rng.standard_normal((n, classes))
    results = Results(f"Estimators against scikit-learn, n = {n:,}, d = {d:,}, ridge = {RIDGE}")
    for what, ours, theirs, y in (
        ("RidgeClassifier", GramClassifier(RIDGE), RidgeClassifier(RIDGE), scores.argmax(axis=1)),
        ("Ridge", GramRegressor(RIDGE), Ridge(RIDGE), scores[:, 0]),
    ):
        assert np.allclose(ours.fit(x, y).coef_, theirs.fit(x, y).coef_, rtol=1e-8)
        mine, other = cpu_seconds(_fit(ours, x, y), _fit(theirs, x, y), repeats=7)
        results.note(f"CPU seconds: ours, {what}", f"{mine:.3f}, {other:.3f}")
        results.at_most(f"ours / {what}", mine / other, 1.0)
    results.show()


def memory(d: int = 200, rows: int = 5_000) -> None:
    """Print the memory of `partial_fit` over many blocks against few."""
    few, many = (peak_bytes(lambda blocks=blocks: _stream(blocks, rows, d)) for blocks in (2, 40))
    results = Results(f"partial_fit over blocks of {rows:,} × {d}")
    results.note("peak bytes with 2 and 40 blocks", f"{few:,}, {many:,}")
    results.at_most("40 blocks / 2 blocks", many / few, 1.02)
    results.show()


def _stream(blocks: int, rows: int, d: int) -> None:
    rng, model = np.random.default_rng(0), GramClassifier()
    for _ in range(blocks):
        x = rng.standard_normal((rows, d))
        model.partial_fit(x, x[:, 0] > 0, classes=[False, True])


def _fit(estimator: Any, x: Any, y: Any) -> Any:
    return lambda: estimator.fit(x, y)


def main() -> None:
    compare(100_000, 100)
    compare(20_000, 1_000)
    memory()

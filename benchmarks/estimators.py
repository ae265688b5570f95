"""Estimators against scikit-learn's own with the same ridge, the memory of `partial_fit`, and how far probabilities are
from frequencies.
"""

from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

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


def calibration(runs: int = 6, bins: int = 15) -> None:
    """Print expected calibration errors of cross-validated probabilities."""
    results = Results(f"Expected calibration error, {bins} bins, five folds, mean of {runs} runs")
    for load in (load_breast_cancer, load_digits, load_wine):
        x, y = load(return_X_y=True)
        for what, model in (
            ("as they are", GramClassifier()),
            ("standardised", make_pipeline(StandardScaler(), GramClassifier())),
        ):
            errors = []
            for run in range(runs):
                folds = StratifiedKFold(5, shuffle=True, random_state=run)
                probabilities = cross_val_predict(model, x, y, cv=folds, method="predict_proba")
                sure, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == y
                places = np.minimum((bins * sure).astype(int), bins - 1)
                errors.append(sum(abs((sure - right)[places == k].sum()) for k in range(bins)) / len(y))
            results.at_most(f"{load.__name__.removeprefix('load_')}, features {what}", float(np.mean(errors)), 0.05)
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
    calibration()

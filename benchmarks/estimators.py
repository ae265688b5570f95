"""Estimators against scikit-learn's own with the same ridge, sparse features against a bare sparse product, the memory
of `partial_fit`, and how far probabilities are from frequencies.
"""

from typing import Any

import numpy as np
from scipy.sparse import random_array
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.measure import Results, cpu_seconds, peak_bytes
from fedgram import Moments
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


def sparse(n: int = 200_000, d: int = 2_000, filled: float = 0.002) -> None:
    """Print the time for moments of sparse features against that of the sparse product alone."""
    rng = np.random.default_rng(0)
    x, y = random_array((n, d), density=filled, format="csr", rng=rng), rng.integers(0, 2, n)
    jobs = (lambda: x.T @ x, lambda: Moments.of(x, y, classes=2), lambda: GramClassifier(RIDGE).fit(x, y))
    product, moments, fit = cpu_seconds(*jobs, repeats=7)
    results = Results(f"Sparse features, n = {n:,}, d = {d:,}, {filled:.1%} filled")
    results.note("CPU seconds: S.T @ S, moments, a fit", f"{product:.3f}, {moments:.3f}, {fit:.3f}")
    results.at_most("Moments.of / S.T @ S", moments / product, 3.0)
    results.at_most("GramClassifier.fit / S.T @ S", fit / product, 5.0)
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
    sparse()
    memory()
    calibration()

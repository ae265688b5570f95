"""Random tables in random containers, by random ways to one estimator: all agree with a fit of the whole."""

import warnings

import numpy as np
import pytest
from scipy.sparse import csc_array, csr_array

from fedgram.core.errors import FedgramError, LostPrecision, RankDeficient
from fedgram.sklearn import GramClassifier, GramRegressor
from support import campaign

TABLES = campaign.size(40)


def table(kind, rng):
    """Return features of all scales, near zero and far from it, with what belongs to them, and weights or None."""
    n, d = int(rng.integers(6, 120)), int(rng.integers(1, 9))
    bare = rng.normal(size=(n, d))
    scores = bare @ rng.normal(size=(d, 3)) + 0.3 * rng.normal(size=(n, 3))
    x = 10.0 ** rng.uniform(-6, 6, d) * (bare + np.where(rng.random(d) < 0.5, 0, 10.0 ** rng.uniform(0, 6, d)))
    if rng.random() < 0.3:
        x[:, 0] = [np.zeros(n), np.full(n, 7.5), np.round(bare[:, 0]), x[:, -1]][rng.integers(4)]
    if rng.random() < 0.2:
        x = np.where(rng.random(x.shape) < 0.7, 0.0, x)
    labels = np.array(["b", "a", "c"])[scores.argmax(axis=1)]
    labels[:3] = ["a", "b", "c"]
    outcomes = 10.0 ** rng.uniform(-6, 6) * (scores + 10.0 ** rng.uniform(0, 4))
    y = labels if kind is GramClassifier else outcomes[:, 0] if rng.random() < 0.5 else outcomes
    weights = [None, rng.random(n) + 1e-3, rng.integers(1, 5, n).astype(float)][rng.integers(3)]
    return x, y, weights


def contained(x, rng):
    """Return the same numbers in another container."""
    forms = (np.asfortranarray, csr_array, csc_array, np.ndarray.tolist, lambda x: np.repeat(x, 2, axis=0)[::2])
    return forms[rng.integers(len(forms))](x)


def made(estimator, x, y, weights, rng):
    """Return the estimator of all rows: by parts that are added up in any order, or by blocks."""
    kind, count = type(estimator), int(rng.integers(1, 5))
    parts = [p for p in np.array_split(rng.permutation(len(y)), count) if len(p)]
    if rng.random() < 0.5:
        for part in parts:
            more = {"classes": ["a", "b", "c"]} if kind is GramClassifier else {}
            chosen = None if weights is None else weights[part]
            estimator.partial_fit(contained(x[part], rng), y[part], sample_weight=chosen, **more)
        return estimator
    fitted = []
    for part in parts:
        one = kind(estimator.ridge, fit_intercept=estimator.fit_intercept)
        if kind is GramClassifier and len(set(y[part])) < 2:
            return estimator.fit(x, y, weights)  # a part of one class does not make a classifier
        fitted.append(one.fit(contained(x[part], rng), y[part], None if weights is None else weights[part]))
    if len(fitted) > 1 and rng.random() < 0.3:
        fitted.append(fitted[0])
        return sum(fitted[1:], start=fitted[0]) - fitted[0]
    return sum(fitted[1:], start=fitted[0])


@pytest.mark.campaign
@pytest.mark.parametrize("kind", [GramClassifier, GramRegressor])
def test_all_ways_to_an_estimator_agree(kind):
    for number in range(TABLES):
        rng = np.random.default_rng([28, number])
        x, y, weights = table(kind, rng)
        ridge = [1.0, 1e-3, "auto"][rng.integers(3)]
        estimator = kind(ridge, fit_intercept=bool(rng.random() < 0.8))
        with warnings.catch_warnings():
            for told in (LostPrecision, RankDeficient):
                warnings.simplefilter("ignore", told)
            warnings.filterwarnings("ignore", category=UserWarning, module="sklearn")
            whole = kind(ridge, fit_intercept=estimator.fit_intercept).fit(x, y, weights)
            try:
                got = made(estimator, x, y, weights, rng)
            except FedgramError as error:
                raise AssertionError(f"table {number}: {error}") from error
            if ridge == "auto":
                # Where the smallest eigenvalue is at the level of rounding, the ridges that are tried depend on it.
                assert 0.5 < got.ridge_ / whole.ridge_ < 2, number
                whole = kind(got.ridge_, fit_intercept=estimator.fit_intercept).fit(x, y, weights)
            found, wanted = (
                one.decision_function(x) if kind is GramClassifier else one.predict(x) for one in (got, whole)
            )
        assert np.isfinite(found).all(), number
        scale = np.abs(wanted).max() if kind is GramClassifier else np.ptp(np.asarray(y, dtype=float), axis=0).max()
        # Without an intercept nothing is centred, and columns far from zero lose their digits.
        bound = 1e-7 if estimator.fit_intercept else 1e-4
        np.testing.assert_allclose(found, wanted, rtol=0, atol=bound * scale, err_msg=f"table {number}")

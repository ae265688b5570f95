"""Problems for estimators, and when two of them are the same."""

import numpy as np

from fedgram.sklearn import GramClassifier, GramRegressor
from support.problems import relative_error

BOTH = [GramClassifier, GramRegressor]


def problem(kind, rng, n=60, d=5):
    """Return features far from zero, and labels or outcomes that depend on them."""
    x = rng.normal(size=(n, d)) + 20 * rng.normal(size=d)
    scores = x @ rng.normal(size=(d, 3))
    scores += 0.5 * rng.normal(size=(n, 3)) * scores.std(axis=0)
    labels = np.array(["bone", "lung", "skin"])[(scores - scores.mean(axis=0)).argmax(axis=1)]
    return x, labels if kind is GramClassifier else scores[:, :2]


def assert_same(one, other, x, tolerance=1e-9):
    assert relative_error(one.coef_, other.coef_) < tolerance
    assert relative_error(one.intercept_, other.intercept_) < tolerance
    if isinstance(one, GramClassifier):
        assert one.classes_.tolist() == other.classes_.tolist()
        np.testing.assert_allclose(one.predict_proba(x), other.predict_proba(x), atol=1e-6)

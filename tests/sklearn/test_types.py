"""Predictions have the type that scikit-learn's have: float32 where both the fit and the features are float32."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier

from fedgram.sklearn import GramClassifier, GramRegressor

TYPES = (np.float32, np.float64, np.int64)
X = np.random.default_rng(0).normal(size=(90, 3)) * 4
OUTCOMES = X @ [1.0, -2.0, 0.5]


@pytest.mark.parametrize("read", TYPES)
@pytest.mark.parametrize("fitted", TYPES)
@pytest.mark.parametrize("container", [np.asarray, csr_array])
def test_types_are_those_of_scikit_learn(fitted, read, container):
    train, test = container(X.astype(fitted)), container(X.astype(read))
    for y in (OUTCOMES > 0, np.digitize(OUTCOMES, [-2, 2])):
        ours, theirs = GramClassifier(1.0).fit(train, y), RidgeClassifier(1.0).fit(train, y)
        logistic = LogisticRegression().fit(train, y)
        assert (ours.coef_.dtype, ours.intercept_.dtype) == (theirs.coef_.dtype, theirs.intercept_.dtype)
        assert ours.decision_function(test).dtype == theirs.decision_function(test).dtype
        assert ours.predict_proba(test).dtype == logistic.predict_proba(test).dtype
        assert ours.predict(test).dtype == theirs.predict(test).dtype
        np.testing.assert_allclose(ours.decision_function(test), theirs.decision_function(test), atol=2e-5)
    for y in (OUTCOMES, X[:, :2]):
        ours, theirs = GramRegressor(1.0).fit(train, y), Ridge(1.0).fit(train, y)
        assert ours.coef_.dtype == theirs.coef_.dtype
        assert ours.predict(test).dtype == theirs.predict(test).dtype


def test_sums_and_blocks_have_the_wider_type():
    low, high = X[:40].astype(np.float32), X[40:]
    ours = GramRegressor().fit(low, OUTCOMES[:40]) + GramRegressor().fit(high, OUTCOMES[40:])
    blocks = GramRegressor().partial_fit(low, OUTCOMES[:40])
    assert blocks.coef_.dtype == np.float32
    for one in (ours, blocks.partial_fit(high, OUTCOMES[40:])):
        assert one.predict(low).dtype == np.float64
    single = 2 * GramRegressor().fit(low, OUTCOMES[:40])
    assert (single + single).predict(low).dtype == np.float32


def test_moments_of_float32_have_the_digits_of_float64():
    single = X.astype(np.float32) + np.float32(2026)
    want = GramRegressor(1.0).fit(single.astype(np.float64), OUTCOMES)
    got = GramRegressor(1.0).fit(single, OUTCOMES)
    np.testing.assert_array_equal(got.moments_.packed, want.moments_.packed)
    # Summed in float64 and rounded once; 2026 times a weight in float32 would be off by 1e-4.
    np.testing.assert_allclose(got.predict(single), want.predict(single.astype(np.float64)), rtol=1e-6, atol=1e-6)

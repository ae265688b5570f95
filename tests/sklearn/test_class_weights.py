"""Weights of classes: those of scikit-learn, and the same for any split into fits that add up, leave or fade."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from sklearn.linear_model import RidgeClassifier
from sklearn.utils import compute_sample_weight

from fedgram.core.errors import InvalidParameter, Mismatch, NotMoments
from fedgram.sklearn import GramClassifier
from support.campaign import examples
from support.estimators import assert_same, problem
from support.problems import relative_error, seeds

GIVEN = [{"lung": 5.0, "skin": 0.25}, {"bone": 0.01}, "balanced"]


def table(rng):
    """Return features and labels, one class rarer than the others, with weights that are whole numbers or not."""
    x, y = problem(GramClassifier, rng)
    kept = (y != "lung") | (rng.random(60) < 0.4) | (np.arange(60) == np.argmax(y == "lung"))
    return x[kept], y[kept], rng.integers(1, 8, kept.sum()) / rng.choice([1, 2])


@examples(30)
@given(seeds, st.sampled_from(GIVEN), st.sampled_from([0.1, 10.0]), st.booleans())
def test_are_those_of_scikit_learn(seed, weights, ridge, sparse):
    x, y, _ = table(np.random.default_rng(seed))
    ours = GramClassifier(ridge, class_weight=weights).fit(csr_array(x) if sparse else x, y)
    theirs = RidgeClassifier(ridge, class_weight=weights, solver="svd").fit(x, y)
    if set(y) == {"bone", "lung", "skin"}:
        assert relative_error(ours.coef_, theirs.coef_) < 1e-8
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-7, atol=1e-7)


@examples(40)
@given(seeds, st.sampled_from(GIVEN), st.sampled_from(["auto", 2.0]), st.integers(2, 6))
def test_any_split_gives_the_same(seed, weights, ridge, parts):
    rng = np.random.default_rng(seed)
    x, y, own = table(rng)
    blocks = np.split(rng.permutation(len(y)), np.sort(rng.choice(np.arange(1, len(y)), parts - 1, replace=False)))
    whole = GramClassifier(ridge, class_weight=weights).fit(x, y, own)
    each = [GramClassifier(ridge, class_weight=weights) for _ in blocks]
    streamed = GramClassifier(ridge, class_weight=weights)
    for one, block in zip(each, blocks, strict=True):
        one.partial_fit(x[block], y[block], np.unique(y), own[block])
        streamed.partial_fit(x[block], y[block], np.unique(y), own[block])
    for other in (sum(each[1:], start=each[0]), streamed):
        assert_same(other, whole, x)
    late = GramClassifier(ridge, class_weight=weights).fit(x + 1, y, own)
    assert_same(whole + late - late, whole, x, tolerance=1e-7)
    assert_same(0.25 * (whole + late) - 0.25 * late, 0.25 * whole, x, tolerance=1e-7)


@examples(20)
@given(seeds)
def test_balanced_counts_weights_as_repeated_samples(seed):
    x, y, own = table(np.random.default_rng(seed))
    twice = np.repeat(np.arange(len(y)), (2 * own).astype(int))
    weighted = GramClassifier(1.0, class_weight="balanced").fit(x, y, 2 * own)
    repeated = GramClassifier(1.0, class_weight="balanced").fit(x[twice], y[twice])
    by_hand = GramClassifier(1.0).fit(x[twice], y[twice], compute_sample_weight("balanced", y[twice]))
    assert_same(weighted, repeated, x)
    assert_same(weighted, by_hand, x)


def test_leaving_one_out_uses_the_weights():
    x, y, _ = table(np.random.default_rng(0))
    for weights in GIVEN:
        found = GramClassifier("loo", class_weight=weights).fit(x, y)
        by_hand = GramClassifier("loo").fit(x, y, compute_sample_weight(weights, y))
        assert found.ridge_ == pytest.approx(by_hand.ridge_, rel=1e-9)
        assert_same(found, by_hand, x)


def test_a_class_that_has_left_does_not_count():
    x, y, _ = table(np.random.default_rng(0))
    stays = GramClassifier(1.0, class_weight="balanced").fit(x[y != "lung"], y[y != "lung"])
    leaves = GramClassifier(1.0, class_weight="balanced").fit(x[y == "lung"], y[y == "lung"])
    rest = stays + leaves - leaves
    assert rest.classes_.tolist() == ["bone", "lung", "skin"]
    np.testing.assert_array_equal(rest.predict(x), stays.predict(x))
    assert relative_error(np.diff(rest.coef_[[0, 2]], axis=0) / 2, stays.coef_) < 1e-9
    with pytest.raises(NotMoments, match="7 samples of a class that has none"):
        stays - leaves
    with pytest.raises(NotMoments, match="nothing would be left"):
        stays - stays


def test_wrong_weights_are_refused():
    x, y, _ = table(np.random.default_rng(0))
    for wrong in ("balance", {"lung": -1.0}, {"lung": np.inf}, {"lung": "much"}, 3):
        with pytest.raises(InvalidParameter, match="class_weight: expected"):
            GramClassifier(class_weight=wrong).fit(x, y)
    with pytest.raises(ValueError, match=r"'bone'.*not in class_weight"):
        GramClassifier(class_weight={"lung": 1.0, "skin": 1.0, "bones": 2.0}).fit(x, y)
    balanced = GramClassifier(class_weight="balanced").fit(x, y)
    with pytest.raises(Mismatch, match="different class_weight: 'balanced' and None"):
        balanced + GramClassifier().fit(x, y)
    changed = GramClassifier().fit(x, y).set_params(class_weight="balanced")
    for wrong in (lambda: changed + balanced, lambda: changed.partial_fit(x, y)):
        with pytest.raises(Mismatch, match="class_weight was changed after a fit"):
            wrong()

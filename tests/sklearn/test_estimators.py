"""GramClassifier and GramRegressor keep scikit-learn's contract, equal its ridge models, and add up."""

import pickle
import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csc_array, csr_array
from scipy.special import ndtri
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedgram.sklearn import GramClassifier, GramRegressor
from support.campaign import examples
from support.estimators import BOTH, assert_same, problem
from support.problems import relative_error, seeds


def expected(estimator):
    """Return the one check that scikit-learn's own linear classifiers fail as well if they have no intercept."""
    without = isinstance(estimator, GramClassifier) and not estimator.fit_intercept
    return {"check_class_weight_classifiers": "RidgeClassifier fails it without an intercept, too"} if without else {}


@parametrize_with_checks(
    [
        *(kind(ridge, fit_intercept=intercept) for kind in BOTH for ridge in ("auto", 1.0) for intercept in (1, 0)),
        GramClassifier(class_weight="balanced"),
        GramClassifier(class_weight={}),
    ],
    expected_failed_checks=expected,
)
def test_scikit_learns_own_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # the checks fit any data, and test warnings themselves
        check(estimator)


@examples(40)
@given(seeds, st.booleans(), st.booleans(), st.sampled_from([2, 3]), st.sampled_from([0.1, 10.0]))
def test_equal_scikit_learns_ridge_models(seed, fit_intercept, weighted, classes, ridge):
    rng = np.random.default_rng(seed)
    x, labels = problem(GramClassifier, rng)
    labels, outcomes = (labels if classes == 3 else labels == "lung"), x @ rng.normal(size=(5, 2))
    weights = rng.random(60) if weighted else None
    for ours, theirs, y in (
        (GramClassifier, RidgeClassifier, labels),
        (GramRegressor, Ridge, outcomes),
        (GramRegressor, Ridge, outcomes[:, 0]),
    ):
        mine = ours(ridge, fit_intercept=fit_intercept).fit(x, y, weights)
        other = theirs(ridge, fit_intercept=fit_intercept, solver="svd").fit(x, y, weights)
        # For two classes, RidgeClassifier's weights are (d,) or (1, d), as its version has it.
        assert relative_error(mine.coef_, other.coef_.reshape(mine.coef_.shape)) < 1e-9
        np.testing.assert_allclose(mine.intercept_, other.intercept_, rtol=1e-8, atol=1e-8)
        np.testing.assert_array_equal(mine.predict(x[:9]).shape, other.predict(x[:9]).shape)
        if ours is GramClassifier:
            np.testing.assert_allclose(mine.decision_function(x), other.decision_function(x), rtol=1e-7, atol=1e-8)
            np.testing.assert_array_equal(mine.predict(x), other.predict(x))


@examples(60)
@given(seeds, st.sampled_from(BOTH), st.booleans(), st.booleans(), st.sampled_from(["auto", 2.0]), st.integers(2, 10))
def test_any_split_in_any_order_gives_the_same(seed, kind, fit_intercept, weighted, ridge, parts):
    rng = np.random.default_rng(seed)
    x, y = problem(kind, rng)
    weights = rng.random(60) + 0.1 if weighted else np.ones(60)
    blocks = np.split(rng.permutation(60), np.sort(rng.choice(np.arange(1, 60), parts - 1, replace=False)))
    whole = kind(ridge, fit_intercept=fit_intercept).fit(x, y, weights)
    streamed = kind(ridge, fit_intercept=fit_intercept)
    named = {"classes": np.unique(y)} if kind is GramClassifier else {}
    for block in blocks:
        streamed.partial_fit(x[block], y[block], sample_weight=weights[block], **named)
    each = [clone(whole).fit(x[block], y[block], weights[block]) for block in blocks]
    for other in (streamed, sum(each), each[-1] + sum(each[:-1])):
        assert other.ridge_ == pytest.approx(whole.ridge_, rel=1e-9)
        assert_same(other, whole, x)


@examples(60)
@given(seeds, st.integers(2, 8), st.integers(1, 6))
def test_few_samples_leave_no_choice_to_rounding(seed, n, d):
    """With as many directions as samples, all ridges may be equally good: all algorithms still choose the same."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(n, d)), rng.normal(size=n)
    whole = GramRegressor().fit(x, y)
    one_by_one = sum(GramRegressor().fit(x[i : i + 1], y[i : i + 1]) for i in rng.permutation(n))
    assert one_by_one.ridge_ == pytest.approx(whole.ridge_, rel=1e-9)
    assert_same(one_by_one, whole, x)


@examples(30)
@given(seeds, st.sampled_from(BOTH), st.integers(5, 40))
def test_who_leaves_is_forgotten(seed, kind, stay):
    rng = np.random.default_rng(seed)
    x, y = problem(kind, rng)
    stays, leaves = kind().fit(x[:stay], y[:stay]), kind().fit(x[stay:], y[stay:])
    rest = (stays + leaves) - leaves
    assert rest.ridge_ == pytest.approx(stays.ridge_, rel=1e-8)
    if kind is GramRegressor or stays.classes_.tolist() == rest.classes_.tolist():
        assert_same(rest, stays, x, tolerance=1e-8)


@examples(30)
@given(seeds, st.sampled_from(BOTH), st.sampled_from(["auto", 1.0]))
def test_a_weight_is_a_number_of_samples(seed, kind, ridge):
    rng = np.random.default_rng(seed)
    x, y = problem(kind, rng)
    weights = rng.integers(0, 4, 60)
    weighted = kind(ridge).fit(x, y, weights)
    repeated = kind(ridge).fit(np.repeat(x, weights, axis=0), np.repeat(y, weights, axis=0))
    if kind is GramRegressor or len(repeated.classes_) == len(weighted.classes_):
        assert_same(weighted, repeated, x)


def rare(rng, n=400, share=0.1):
    """Return features and labels of which few are "ill"."""
    x = rng.normal(size=(n, 4))
    return x, np.where(x[:, 0] + rng.normal(size=n) > np.sqrt(2) * ndtri(1 - share), "ill", "well")


@examples(20)
@given(seeds, st.booleans(), st.sampled_from(["auto", "loo"]), st.floats(1e-6, 1.0))
def test_weights_of_any_sum_up_to_n_give_the_same(seed, fit_intercept, ridge, total):
    rng = np.random.default_rng(seed)
    x, y = rare(rng)
    weights = rng.random(len(y)) + 0.01
    whole = GramClassifier(ridge, fit_intercept=fit_intercept).fit(x, y, weights / weights.mean())
    normalised = GramClassifier(ridge, fit_intercept=fit_intercept).fit(x, y, total * weights / weights.sum())
    assert normalised.ridge_ / total == pytest.approx(whole.ridge_ / len(y), rel=1e-9)
    np.testing.assert_allclose(normalised.predict_proba(x), whole.predict_proba(x), rtol=1e-7)
    np.testing.assert_array_equal(normalised.predict(x), whole.predict(x))


@examples(20)
@given(seeds, st.booleans(), st.integers(2, 8))
def test_probabilities_of_rare_classes_are_those_of_all_samples(seed, fit_intercept, parts):
    rng = np.random.default_rng(seed)
    x, y = rare(rng)
    whole = GramClassifier(fit_intercept=fit_intercept).fit(x, y)
    blocks = np.array_split(rng.permutation(len(y)), parts)
    added = sum(GramClassifier(fit_intercept=fit_intercept).fit(x[block], y[block]) for block in blocks)
    assert np.ptp(whole.offsets_) > 0.1
    for other in (added, added + added - added):
        np.testing.assert_allclose(other.offsets_, whole.offsets_, atol=1e-7)
        np.testing.assert_allclose(other.predict_proba(x), whole.predict_proba(x), rtol=1e-7)


def test_rare_classes_are_probable_before_they_are_predicted():
    """Scores are those of `RidgeClassifier`, and so are predictions; probabilities are right all the same."""
    x, y = rare(np.random.default_rng(0), n=20_000)
    model = GramClassifier().fit(x[::2], y[::2])
    probability = model.predict_proba(x[1::2])[:, 0]
    np.testing.assert_array_equal(
        model.predict(x[1::2]), RidgeClassifier(model.ridge_).fit(x[::2], y[::2]).predict(x[1::2])
    )
    surest = np.argsort(probability)[-500:]
    assert probability[surest].mean() == pytest.approx((y[1::2][surest] == "ill").mean(), abs=0.04)
    assert probability.mean() == pytest.approx((y == "ill").mean(), abs=0.005)
    assert (probability > 0.5).sum() > 2 * (model.predict(x[1::2]) == "ill").sum()


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("ridge", ["auto", "loo", 1.0])
def test_sparse_features_are_features(kind, ridge):
    rng = np.random.default_rng(0)
    x, y = problem(kind, rng)
    x = np.where(rng.random(x.shape) < 0.7, 0.0, x)
    plain = kind(ridge).fit(x, y)
    for sparse in (csr_array(x), csc_array(x)):
        assert_same(kind(ridge).fit(sparse, y), plain, sparse)
        np.testing.assert_allclose(
            plain.predict_proba(sparse) if kind is GramClassifier else plain.predict(sparse),
            plain.predict_proba(x) if kind is GramClassifier else plain.predict(x),
        )


def test_columns_far_from_zero_keep_their_digits():
    rng = np.random.default_rng(0)
    near = rng.normal(size=(300, 3)) * [1.0, 1e-3, 1e2]
    x, y = near + np.array([2026.0, 1e5, -1e7]), near @ [1.0, 3.0, -0.2] + rng.normal(size=300)
    want = np.linalg.lstsq(near - near.mean(axis=0), y - y.mean(), rcond=None)[0]
    blocks = GramRegressor(0.0)
    for part in np.array_split(np.arange(300), 7):
        blocks.partial_fit(x[part], y[part])
    # The features themselves are rounded: 1e5 ± 1e-3 has lost eight digits before anything is computed.
    for model in (GramRegressor(0.0).fit(x, y), blocks):
        np.testing.assert_allclose(model.coef_, want, rtol=1e-6)


def test_a_site_may_lack_classes():
    rng = np.random.default_rng(0)
    x, y = problem(GramClassifier, rng)
    order = np.argsort(y, kind="stable")
    one_each = sum(
        GramClassifier().fit(x[order[y[order] == name]], y[order[y[order] == name]]) for name in np.unique(y)
    )
    assert_same(one_each, GramClassifier().fit(x, y), x)


def test_a_class_whose_samples_have_left_is_not_predicted():
    rng = np.random.default_rng(0)
    x, y = problem(GramClassifier, rng)
    stays = GramClassifier().fit(x[y != "lung"], y[y != "lung"])
    leaves = GramClassifier().fit(x[y == "lung"], y[y == "lung"])
    rest = stays + leaves - leaves
    assert rest.classes_.tolist() == ["bone", "lung", "skin"]
    np.testing.assert_array_equal(rest.predict(x), stays.predict(x))
    assert rest.offsets_[1] == 0
    assert rest.predict_proba(x)[:, 1].mean() < 0.1
    assert relative_error(np.diff(rest.coef_[[0, 2]], axis=0) / 2, stays.coef_) < 1e-9


@pytest.mark.parametrize("kind", BOTH)
def test_in_a_pipeline_a_search_and_a_file(kind):
    x, y = problem(kind, np.random.default_rng(0))
    pipeline = make_pipeline(StandardScaler(), kind())
    search = GridSearchCV(pipeline, {f"{kind.__name__.lower()}__ridge": [0.1, 10.0, "auto", "loo"]}, cv=3).fit(x, y)
    assert search.best_score_ > 0.3
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_array_equal(again.predict(x), search.predict(x))
    given = {"ridge": 3.0, "fit_intercept": False} | ({"class_weight": {"bone": 2}} if kind is GramClassifier else {})
    assert clone(kind(**given)).get_params() == given
    fitted = pickle.loads(pickle.dumps(kind().fit(x[:30], y[:30])))
    assert_same(fitted + kind().fit(x[30:], y[30:]), kind().fit(x, y), x)


def calibration_error(sure, right, bins=15):
    """Return the expected calibration error of the predicted classes, whose probabilities are `sure`."""
    places = np.minimum((sure * bins).astype(int), bins - 1)
    gaps = [abs((sure - right)[places == k].sum()) for k in range(bins)]
    return sum(gaps) / len(sure)


@pytest.mark.parametrize("load", [load_breast_cancer, load_digits])
@pytest.mark.parametrize("sites", [1, 5])
def test_probabilities_are_calibrated(load, sites):
    x, y = load(return_X_y=True)
    sure, right = [], []
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(x, y):
        model = sum(GramClassifier().fit(x[part], y[part]) for part in np.array_split(train, sites))
        predicted = model.predict(x[test])
        sure.append(model.predict_proba(x[test])[np.arange(len(test)), model.classes_.searchsorted(predicted)])
        right.append(predicted == y[test])
    assert calibration_error(np.concatenate(sure), np.concatenate(right)) < 0.04


def test_blocks_leave_nothing_behind():
    """The moments, and one block in work: however many blocks there were."""

    def peak(blocks):
        rng, model = np.random.default_rng(0), GramRegressor()
        tracemalloc.start()
        for _ in range(blocks):
            x = rng.normal(size=(1000, 30))
            model.partial_fit(x, x[:, 0])
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(2)
    assert peak(30) < 1.1 * peak(2)


def test_scores_are_those_of_the_data():
    x, y = load_diabetes(return_X_y=True)
    assert GramRegressor().fit(x, y).score(x, y) > 0.5
    assert GramClassifier().fit(x, y > 150).score(x, y > 150) > 0.7

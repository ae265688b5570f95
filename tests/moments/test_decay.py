"""Moments and estimators that are multiplied: the same as sample weights, in any order of sums and differences."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.core.classes import NUMERIC
from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch, NotMoments, RefusedMessage
from fedgram.moments.decayed import DecayedMoments
from fedgram.moments.weighted import Samples, WeightedMoments
from support.campaign import examples
from support.problems import relative_error, seeds

pytest.importorskip("sklearn.base")  # "sklearn" alone is a folder of tests
from fedgram.sklearn import GramClassifier, GramRegressor
from support.estimators import BOTH, problem

NAMES, COLUMNS = ("ill", "old", "well"), ("age", "bmi", "bp")
factors = st.floats(0.05, 3.0)


def days(rng, count=6, d=3):
    """Return features (some days only a few samples) and labels of some days."""
    sizes = rng.integers(1, 30, count)
    return [(rng.normal(size=(n, d)) * [1, 9, 0.2] + [0, 40, 3], rng.integers(0, 3, n)) for n in sizes]


def weighted_ridge(x, y, own, ridge, *, intercept):
    """Return weights and intercept of ridge regression of classes, from the samples and in plain NumPy."""
    rows, targets, roots = np.column_stack([x, np.full(len(x), float(intercept))]), np.eye(3)[y], np.sqrt(own)[:, None]
    penalty = np.sqrt(ridge) * np.eye(len(x.T), len(x.T) + 1)
    augmented = np.vstack([rows * roots, penalty])
    found = np.linalg.lstsq(augmented, np.vstack([targets * roots, np.zeros((len(penalty), 3))]), rcond=None)[0]
    return found[:-1], found[-1]


def moments(day):
    return fg.Moments.of(day[0], [NAMES[k] for k in day[1]], classes=NAMES, columns=COLUMNS)


@examples(40)
@given(seeds, factors, st.booleans())
def test_forgetting_is_a_refit_with_weights(seed, factor, intercept):
    past = days(np.random.default_rng(seed))
    total = moments(past[0])
    for day in past[1:]:
        total = factor * total + moments(day)
    x, y = (np.concatenate([day[part] for day in past]) for part in (0, 1))
    own = np.concatenate([np.full(len(day[1]), factor ** (len(past) - 1 - age)) for age, day in enumerate(past)])
    assert total.n == len(y)
    assert total.weight == pytest.approx(own.sum(), rel=1e-12)
    np.testing.assert_allclose(total.mean, own @ x / own.sum(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(total.target_mean, np.bincount(y, own, 3) / own.sum(), rtol=1e-12, atol=1e-15)
    model = total.model(ridge=0.5, intercept=intercept)
    weights, offset = weighted_ridge(x, y, own, 0.5, intercept=intercept)
    assert relative_error(model.weights, weights) < 1e-10
    if intercept:
        np.testing.assert_allclose(model.intercept, offset, rtol=1e-9, atol=1e-9)
    else:
        assert model.intercept is None
    assert (model.classes, model.columns) == (NAMES, COLUMNS)


@examples(40)
@given(seeds, st.sampled_from(BOTH), factors, st.sampled_from([None, "balanced"]))
def test_a_multiplied_fit_is_a_fit_of_weighted_samples(seed, kind, factor, weights):
    rng = np.random.default_rng(seed)
    x, y = problem(kind, rng)
    own = rng.random(60) + 0.1
    made = lambda: kind(class_weight=weights) if kind is GramClassifier else kind()  # noqa: E731
    parts = [slice(0, 25), slice(25, 60)]
    late, early = (made().fit(x[part], y[part], own[part]) for part in parts)
    faded = made().fit(x, y, np.where(np.arange(60) < 25, own, factor * own))
    for found in (factor * early + late, late + early * np.float64(factor), (1 / factor * late + early) * factor):
        assert found.ridge_ == pytest.approx(faded.ridge_, rel=1e-9)
        assert relative_error(found.moments_.packed, faded.moments_.packed) < 1e-12
        assert relative_error(found.moments_.cross, faded.moments_.cross) < 1e-12
        assert relative_error(found.coef_, faded.coef_) < 1e-9
    back = (factor * early + late) - factor * early
    if back.coef_.shape == late.coef_.shape:  # a class whose samples have left stays, without weights
        assert relative_error(back.coef_, late.coef_) < 1e-7


@examples(25)
@given(seeds, factors, factors)
def test_factors_multiply_and_sums_distribute(seed, one, two):
    early, late = (moments(day) for day in days(np.random.default_rng(seed), count=2))
    for found, wanted in (
        (one * (two * early), (one * two) * early),
        (one * (early + late), one * early + one * late),
        (early + one * late, one * late + early),
        (sum([one * early, late]), late + early * one),
    ):
        assert found.weight == pytest.approx(wanted.weight, rel=1e-13)
        np.testing.assert_allclose(found.mean, wanted.mean, rtol=1e-12, atol=1e-13)
        assert relative_error(found.packed, wanted.packed) < 1e-12


def test_a_window_rolls():
    """The newest three days: what is older is subtracted, whether it has faded in the meantime or not."""
    past = [moments(day) for day in days(np.random.default_rng(0), count=9)]
    window = sum(past[:3])
    faded = 0.81 * past[0] + 0.9 * past[1] + past[2]
    for oldest, newest in zip(past, past[3:], strict=False):
        window = window + newest - oldest
        faded = 0.9 * faded + newest - 0.9**3 * oldest
    assert relative_error(window.model(1.0).weights, sum(past[-3:]).model(1.0).weights) < 1e-12
    want = 0.81 * past[-3] + 0.9 * past[-2] + past[-1]
    assert relative_error(faded.model(1.0).weights, want.model(1.0).weights) < 1e-10


def test_few_samples_that_are_kept_as_their_factor():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 40)), np.arange(20) % 3
    parts = [fg.Moments.of(x[rows], y[rows], classes=3) for rows in (slice(0, 8), slice(8, 20))]
    assert parts[0].factor is not None
    total = 0.5 * parts[0] + parts[1]
    want = WeightedMoments.of(Samples(x, y, np.where(np.arange(20) < 8, 0.5, 1.0), 3))
    assert relative_error(total.packed, want.packed) < 1e-12
    assert relative_error(total.cross, want.cross) < 1e-12


def test_moments_about_a_centre_and_columns_in_another_order():
    rng = np.random.default_rng(0)
    centre = np.array([2026.0, 0.0, 1e5])
    x, y = rng.normal(size=(40, 3)) + centre, rng.integers(0, 3, 40)
    about = fg.Moments.of_indices(x, y, classes=NAMES, columns=COLUMNS, centre=centre)
    want = WeightedMoments.of(Samples(x, y, np.full(40, 0.5), 3))
    for found in (0.5 * about, 0.25 * about + 0.25 * about):
        np.testing.assert_allclose(found.mean, want.mean, rtol=1e-14)
        np.testing.assert_allclose(found.packed, want.packed, rtol=1e-9, atol=1e-9)
    near = x - centre
    plain, turned = (
        fg.Moments.of(near[:, way], y, classes=3, columns=np.array(COLUMNS)[way]) for way in ([0, 1, 2], [2, 0, 1])
    )
    assert relative_error((0.5 * plain + turned).packed, (0.5 * plain + plain).packed) < 1e-13


@pytest.mark.parametrize("factor", [0, -1.0, np.nan, np.inf, True, "0.9", None])
def test_a_factor_is_a_number_more_than_zero(factor):
    x, y = problem(GramClassifier, np.random.default_rng(0))
    fitted = GramClassifier(class_weight="balanced").fit(x, y)
    some = fg.Moments.of(x, y, classes=["bone", "lung", "skin"])
    for one in (fitted, GramRegressor().fit(x, x[:, 0]), some, 0.5 * some):
        with pytest.raises(InvalidParameter, match="factor of moments: expected a number > 0, got"):
            one * factor


def test_what_cannot_fade_is_refused():
    x, y = np.random.default_rng(0).normal(size=(9, 2)), np.arange(9) % 2
    with pytest.raises(InvalidParameter, match="make them without bias=True"):
        0.9 * fg.Moments.of(x, y, classes=2, bias=True)
    with pytest.raises(InvalidData, match="moments of no samples"):
        0.9 * fg.Moments.of(x[:0], y[:0], classes=2)
    with pytest.raises(InvalidParameter, match="use GramRegressor"):
        (0.9 * fg.Moments.of(x, np.zeros(9, int), classes=NUMERIC)).model()
    some = fg.Moments.of(x, y, classes=2)
    with pytest.raises(Mismatch, match="moments of different classes"):
        0.9 * some + fg.Moments.of(x, y, classes=3)
    with pytest.raises(Mismatch, match="different columns"):
        0.9 * some + fg.Moments.of(x, y, classes=2, columns=["a", "b"])
    with pytest.raises(NotMoments, match="nothing would be left"):
        0.9 * some - some
    with pytest.raises(TypeError):
        0.9 * some + 3
    with pytest.raises(InvalidParameter, match="ridge='loo' needs all the samples at once"):
        0.9 * GramClassifier("loo").fit(x, y)


def test_are_kept_as_bytes():
    past = days(np.random.default_rng(0), count=2)
    total = 0.9 * moments(past[0]) + moments(past[1])
    again = DecayedMoments.from_bytes(total.to_bytes())
    np.testing.assert_array_equal((0.5 * again + total).packed, (0.5 * total + total).packed)
    np.testing.assert_array_equal(again.model(1.0).weights, total.model(1.0).weights)
    assert again.schema == total.schema
    assert repr(again) == f"DecayedMoments(n={total.n}, weight={total.weight:g}, d=3, targets=3)"
    for field, value, told in (
        ("packed", -total.packed, "positive semidefinite"),
        ("packed", total.packed[:-1], "numbers; 3 features need 6"),
        ("weight", -1.0, "must be more than 0"),
        ("n", 0, "must be more than 0"),
        ("mean", np.full(3, np.nan), "is nan"),
        ("target_mean", np.array([-0.5, 1.0, 0.5]), "shares of classes"),
        ("cross", total.cross[:, :2], "must have shape"),
    ):
        with pytest.raises(RefusedMessage, match=told):
            DecayedMoments.from_bytes(replace(total, **{field: value}).to_bytes())
    with pytest.raises(Mismatch, match="expected decayed moments, got a Moments"):
        DecayedMoments.from_bytes(moments(past[0]).to_bytes())


def test_a_party_cannot_send_them_as_its_moments():
    from fedgram.protocol.replies import MomentsOf, Question

    total = 0.9 * moments(days(np.random.default_rng(0), count=1)[0])
    with pytest.raises(RefusedMessage, match="moments"):
        MomentsOf().check(total, Question, "reply")

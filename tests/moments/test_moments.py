"""Moments add, subtract and travel, and refuse impossible values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.core import wire
from fedgram.core.errors import InvalidData, LostPrecision, Mismatch, NotMoments, RankDeficient
from fedgram.moments import accumulate
from fedgram.moments.moments import Moments, Schema
from support.campaign import examples
from support.problems import features, random_moments, relative_error, seeds, spread_any_way


@examples(80)
@given(seeds, st.integers(0, 60), st.integers(1, 40), st.booleans(), st.sampled_from(["float64", "float32", "int32"]))
def test_are_the_moments(seed, n, d, bias, dtype):
    rng = np.random.default_rng(seed)
    x, y = (4 * rng.normal(size=(n, d))).astype(dtype), rng.integers(0, 4, n)
    moments = Moments.of(x, y, classes=5, bias=bias)
    X = np.c_[x, np.ones(n)] if bias else x.astype(float)
    np.testing.assert_allclose(moments.gram, X.T @ X, rtol=1e-12, atol=1e-12 * max(1, n))
    np.testing.assert_allclose(moments.cross, X.T @ np.eye(5)[y], rtol=1e-12, atol=1e-12 * max(1, n))
    assert moments.n == n
    assert moments.counts.tolist() == np.bincount(y, minlength=5).tolist()


def test_blocks_of_rows_give_the_same_as_one_product():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5000, 7)).astype(np.float32), rng.integers(0, 3, 5000)
    moments = Moments.of(x, y, classes=3)
    X = x.astype(float)
    assert relative_error(moments.gram, X.T @ X) < 1e-12


def test_memory_order_does_not_matter():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 7)), rng.integers(0, 3, 50)
    assert Moments.of(np.asfortranarray(x), y, classes=3) == Moments.of(x, y, classes=3)
    assert Moments.of(x[::2], y[::2], classes=3) == Moments.of(x[::2].copy(), y[::2], classes=3)


@examples(60)
@given(seeds, st.integers(1, 30), st.integers(1, 12))
def test_sum_then_unlearn_gives_back_the_rest(seed, d, clients):
    rng = np.random.default_rng(seed)
    n = 80
    x, y = features(rng, n, d), rng.integers(0, 3, n)
    parts = [Moments.of(x[part], y[part], classes=3) for part in spread_any_way(rng, n, clients)]
    total = Moments.sum(parts)
    leaver = parts[int(rng.integers(clients))]
    rest = total - leaver
    want = Moments.sum([part for part in parts if part is not leaver] or [leaver - leaver])
    scale = np.abs(total.gram).max()
    np.testing.assert_allclose(rest.gram, want.gram, atol=1e-13 * scale * n)
    np.testing.assert_allclose(rest.cross, want.cross, atol=1e-13 * scale * n)
    assert rest.counts.tolist() == want.counts.tolist()


def test_are_immutable():
    moments = random_moments(np.random.default_rng(0))
    for array in (moments.gram, moments.cross, moments.counts, moments.packed):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_solve_and_bias():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 4)) + 3, rng.integers(0, 3, 50)
    moments = Moments.of(x, y, classes=("a", "b", "c"), bias=True)
    X, Y = np.c_[x, np.ones(50)], np.eye(3)[y]
    np.testing.assert_allclose(moments.solve(), np.linalg.pinv(X) @ Y, atol=1e-10)
    np.testing.assert_allclose(moments.solve(2.0), np.linalg.solve(X.T @ X + 2 * np.eye(5), X.T @ Y), atol=1e-12)
    model = moments.model(2.0)
    np.testing.assert_allclose(model.scores(x), X @ moments.solve(2.0), atol=1e-12)
    assert set(model.predict(x)) <= {"a", "b", "c"}


@pytest.mark.parametrize("n", [12, 50])
@pytest.mark.parametrize("ridge", [0.3, 20.0])
def test_the_models_intercept_is_not_shrunk(n, ridge):
    """Against the same with a column of ones that has no share of the ridge; with fewer samples than features, too."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(n, 20)) + 30, np.arange(n) % 3
    X, Y = np.c_[x, np.ones(n)], np.eye(3)[y]
    want = np.linalg.solve(X.T @ X + np.diag([ridge] * 20 + [0.0]), X.T @ Y)
    moments = Moments.of(x, y, classes=4)
    model = moments.model(ridge)
    np.testing.assert_allclose(model.weights[:, :3], want[:-1], atol=1e-10)
    np.testing.assert_allclose(model.intercept[:3], want[-1], atol=1e-8)
    assert not model.weights[:, 3].any()
    assert model.intercept[3] == 0, "a class without samples"
    plain = moments.model(ridge, intercept=False)
    assert plain.intercept is None
    np.testing.assert_array_equal(plain.weights, moments.solve(ridge))


def test_models_with_and_without_intercept_are_kept_and_sent():
    moments = random_moments(np.random.default_rng(0))
    for model in (moments.model(1.0), moments.model(1.0, intercept=False)):
        again = wire.decode(wire.encode(model), sender="a")
        assert (again.intercept is None) == (model.intercept is None)
        x = np.random.default_rng(1).normal(size=(5, moments.d))
        np.testing.assert_array_equal(again.scores(x), model.scores(x))


def test_no_samples_give_a_model_that_knows_nothing():
    with pytest.warns(RankDeficient, match="rank 0 of 3"):
        model = Moments.of(np.zeros((0, 3)), [], classes=2).model()
    assert not model.weights.any()
    assert not model.intercept.any()


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"classes": ("a", "b")}, r"classes.*\(0, 1\) and \('a', 'b'\)"),
        ({"features": "lite0:96"}, "no study and features 'lite0:96'"),
        ({"bias": True}, "dimension|bias"),
        ({"d": 7}, "dimension.*6 and 7"),
    ],
)
def test_other_kinds_are_refused_naming_both_sides(other, words):
    rng = np.random.default_rng(0)
    mine = random_moments(rng, classes=2)
    d = other.pop("d", 6)
    x, y = rng.normal(size=(5, d)), [0, 1, 0, 1, 1]
    theirs = Moments.of(x, y, **({"classes": 2} | other))
    with pytest.raises(Mismatch, match=words):
        mine + theirs
    with pytest.raises(Mismatch, match=words):
        mine - theirs


def test_class_folders_are_never_added_by_position():
    x = np.eye(4)
    cats = Moments.of(x, ["cat", "dog", "cat", "dog"], classes=["cat", "dog"])
    foxes = Moments.of(x, ["dog", "fox", "dog", "fox"], classes=["dog", "fox"])
    with pytest.raises(Mismatch, match="cat.*fox"):
        cats + foxes


def test_subtracting_what_was_not_added_is_refused():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 5)), np.arange(60) % 2
    total = Moments.of(x, y, classes=2)
    stranger = Moments.of(5 * rng.normal(size=(10, 5)), np.arange(10) % 2, classes=2)
    with pytest.raises(NotMoments, match="positive semidefinite"):
        total - stranger
    with pytest.raises(NotMoments, match="more samples of class 1"):
        Moments.of(x, np.zeros(60, int), classes=2) - total


def test_subtracting_other_samples_is_refused_also_when_counts_agree():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 5)), np.arange(60) % 2
    total = Moments.of(x, y, classes=2)
    with pytest.raises(NotMoments, match="not the moments of samples that were added"):
        total - Moments.of(rng.normal(size=(60, 5)), y, classes=2)
    with pytest.raises(NotMoments, match="not the moments of samples that were added"):
        total - Moments.of(0.5 * x[y == 0], y[y == 0], classes=2)
    assert (total - total).n == 0
    assert not (total - total).gram.any()


def test_what_is_left_after_unlearning_almost_everything_can_still_be_sent():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 64)), np.arange(20) % 2
    rest, others = (
        Moments.of(x, y, classes=2),
        Moments.of(3e3 * rng.normal(size=(9000, 64)), np.arange(9000) % 2, classes=2),
    )
    with pytest.warns(LostPrecision, match=r"the 20 samples left .* changed by up to \d"):
        left = (rest + others) - others
    assert Moments.from_bytes(left.to_bytes()).n == 20
    noise = np.abs((rest + others).gram).max() * 64 * np.finfo(float).eps
    np.testing.assert_allclose(left.gram, rest.gram, atol=100 * noise)


def test_builtin_sum_adds():
    rng = np.random.default_rng(0)
    parts = [random_moments(rng) for _ in range(3)]
    assert sum(parts) == parts[0] + parts[1] + parts[2]


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (np.ones((3, 2)), [0, 1], "3 samples but 2 labels"),
        (np.ones(3), [0, 1, 1], r"shape \(n, d\)"),
        (np.ones((2, 2)), [0, 2], "label 2 is not one of the 2 classes"),
        (np.ones((2, 2)), [-1, 0], "label -1"),
        (np.ones((2, 2)), [0.0, 1.0], "whole numbers or names"),
        (np.array([[1, 2], [3, np.nan]]), [0, 1], "nan in row 1, column 1"),
        (np.array([[1, np.inf], [3, 1]]), [0, 1], "inf in row 0, column 1"),
        (np.full((2, 2), 1e200), [0, 1], "overflow"),
        (np.array([["a", "b"]]), [0], "must be numbers"),
    ],
)
def test_bad_data_is_refused(x, y, words):
    with pytest.raises(InvalidData, match=words):
        Moments.of(x, y, classes=2)


@pytest.mark.parametrize("column", [0, 39])
def test_nan_is_found_in_a_small_clients_factor_too(column):
    x = np.ones((3, 40))
    x[2, column] = np.nan
    with pytest.raises(InvalidData, match=f"nan in row 2, column {column}"):
        Moments.of(x, [0, 1, 1], classes=2)
    with pytest.raises(InvalidData, match="squares overflow"):
        Moments.of(np.full((2, 40), 1e200), [0, 1], classes=2)


def test_one_class_is_refused():
    with pytest.raises(InvalidData, match="at least two classes, got 1"):
        Moments.of(np.ones((2, 2)), [0, 0], classes=1)


def test_sum_of_nothing_is_refused():
    with pytest.raises(InvalidData, match="at least one"):
        Moments.sum([])


@pytest.mark.parametrize(("weights", "intercept"), [((3, 3), None), ((3, 2), 3), ((3,), None)])
def test_a_model_whose_arrays_do_not_fit_is_refused(weights, intercept):
    with pytest.raises(Mismatch, match="linear model of 2 classes has weights"):
        fg.LinearModel(np.ones(weights), (0, 1), None if intercept is None else np.ones(intercept))


def test_kind_is_a_value():
    assert Schema((0, 1), 3) == Schema((0, 1), 3)
    assert fg.Moments.of(np.ones((2, 3)), [0, 1], classes=2).schema == Schema((0, 1), 3)


def test_factors_taller_than_a_block_are_added(monkeypatch):
    """As clients of thousands of samples have them where there are ten thousand features: here both are fewer."""
    monkeypatch.setattr(accumulate, "STACKED_BYTES", 8 * 60 * 8)
    monkeypatch.setattr(accumulate, "STACKED_ROWS", 1)
    rng = np.random.default_rng(0)
    sizes = [3, 11, 5, 8, 9]  # a block has eight rows
    x, y = rng.normal(size=(sum(sizes), 60)), rng.integers(0, 3, sum(sizes))
    parts = np.split(np.arange(len(x)), np.cumsum(sizes)[:-1])
    moments = [Moments.of(x[part], y[part], classes=3) for part in parts]
    assert all(one.factor is not None for one in moments)
    total = Moments.sum(moments)
    assert relative_error(total.gram, x.T @ x) < 1e-13
    assert relative_error(total.cross, x.T @ np.eye(3)[y]) < 1e-13
    stack = accumulate.Accumulator(60, 3)
    for one in moments:
        one.add_to(stack)
    assert stack._stacked.shape == (8, 60)


def test_masked_arrays_are_refused():
    """NumPy itself would use the values under the mask."""
    x, y = np.ma.masked_equal([[1.0, -99.0], [2.0, 3.0]], -99.0), np.array([0, 1])
    masked = np.ma.masked_equal([0, 1], 1)
    what = "expected an array without a mask, got a masked array with 1 of [24] values masked; impute them first"
    with pytest.raises(InvalidData, match=f"features: {what}"):
        Moments.of(x, y, classes=2)
    with pytest.raises(InvalidData, match=f"labels: {what}"):
        Moments.of(np.eye(2), masked, classes=2)
    with pytest.raises(InvalidData, match=f"client 'a': x: features: {what}"):
        fg.Client("a", x, y)
    with pytest.raises(InvalidData, match=f"client 'a': y_test: labels: {what}"):
        fg.Client("a", np.eye(2), y, np.eye(2), masked)
    assert Moments.of(x.filled(0.0), y, classes=2).n == 2

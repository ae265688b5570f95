"""Sparse features give the moments, models and predictions of the same numbers in an array, without a dense copy."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import fedgram as fg
from fedgram.core.errors import InvalidData, LostPrecision
from fedgram.moments.weighted import Samples, WeightedMoments
from support.campaign import examples
from support.problems import seeds

pytest.importorskip("sklearn.base")  # "sklearn" alone is a folder of tests
from fedgram.sklearn import GramClassifier, GramRegressor


def sparse_table(rng, n=None):
    """Return an array with sparse and filled and constant columns, and with empty rows or columns far from zero."""
    n, words, filled = n or int(rng.integers(12, 90)), int(rng.integers(0, 12)), int(rng.integers(0, 4))
    x = np.where(rng.random((n, words)) < rng.choice([0.02, 0.1, 0.3]), rng.integers(-4, 5, (n, words)), 0.0)
    empty = rng.random() < 0.5
    places = 0.0 if empty else rng.choice([0.0, 2026.0, 1e6], filled)
    x = np.column_stack(
        [x, rng.normal(size=(n, filled)) + places, np.zeros((n, 1)), np.full((n, rng.integers(2)), 0.1)]
    )
    x[rng.random(n) < 0.1 * empty] = 0.0
    return x[:, rng.permutation(x.shape[1])]


def contained(x, rng):
    """Return the same numbers in a sparse container: any format, indices of 32 or 64 bits, in any order, also twice."""
    kinds = ("csr", "csc", "coo", "lil", "bsr")
    kind = kinds[rng.integers(len(kinds))]
    stored = sparse.coo_array(x)
    if rng.random() < 0.5:  # every value as the sum of two, in random order
        share = rng.random(stored.nnz)
        order = rng.permutation(2 * stored.nnz)
        rows, columns = (np.tile(stored.coords[axis], 2)[order] for axis in (0, 1))
        data = np.concatenate([stored.data * share, stored.data * (1 - share)])[order]
        stored = sparse.coo_array((data, (rows, columns)), shape=x.shape)
        if kind == "csr":  # without adding them up
            by_row = np.argsort(rows, kind="stable")
            starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(x)))])
            stored = sparse.csr_array((data[by_row], columns[by_row], starts), shape=x.shape)
    made = stored.asformat(kind)
    if kind in ("csr", "csc") and rng.random() < 0.5:
        made.indices, made.indptr = made.indices.astype(np.int64), made.indptr.astype(np.int64)
    matrix = {"csr": sparse.csr_matrix, "csc": sparse.csc_matrix, "coo": sparse.coo_matrix}.get(kind)
    return made if matrix is None or rng.random() < 0.5 else matrix(made)


@examples(80)
@given(seeds, st.booleans(), st.booleans())
def test_weighted_moments_are_those_of_the_array(seed, weighted, classes):
    rng = np.random.default_rng(seed)
    x = sparse_table(rng)
    weights = rng.integers(0, 4, len(x)) / 2 + (np.arange(len(x)) == 3) if weighted else None
    y = rng.integers(0, 3, len(x)) if classes else rng.normal(size=(len(x), 2)) + 1e4
    given = Samples(x, y, weights, 3 if classes else 0)
    rows = sparse.csr_array(contained(x, rng))
    x = rows.toarray()  # a value that is the sum of two may be rounded
    want, got = (WeightedMoments.of(given._replace(x=each)) for each in (x, rows))
    assert got.n == want.n
    size = np.sqrt(want.handled + want.weight * want.mean**2)  # of a column, with its mean
    for field, scale in (("mean", size / np.sqrt(want.weight)), ("cross", size[:, None] * np.sqrt(want.squares + 1))):
        assert (np.abs(getattr(got, field) - getattr(want, field)) <= 1e-12 * scale + 1e-12).all(), field
    np.testing.assert_allclose(got.squares, want.squares, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(got.target_mean, want.target_mean, rtol=1e-13)
    # About the mean, so that a column a million away has as many digits as one near zero.
    np.testing.assert_allclose(got.packed, want.packed, rtol=1e-9, atol=1e-10 * max(want.handled.max(), 1))
    constant = np.ptp(x if weights is None else x[weights > 0], axis=0) == 0
    assert not got.cross[constant].any()


@examples(60)
@given(seeds, st.booleans())
def test_moments_are_those_of_the_array(seed, bias):
    rng = np.random.default_rng(seed)
    x = sparse_table(rng, n=int(rng.integers(1, 60)))
    y, given = rng.integers(0, 3, len(x)), contained(x, rng)
    got, want = (fg.Moments.of(rows, y, classes=4, bias=bias) for rows in (given, x))
    assert got.schema == want.schema
    np.testing.assert_array_equal(got.counts, want.counts)
    scale = np.sqrt(want.squares + 1e-300)
    assert (np.abs(got.gram - want.gram) <= 1e-12 * np.outer(scale, scale)).all()
    np.testing.assert_allclose(got.cross, want.cross, rtol=1e-12, atol=1e-12 * np.abs(x).max(initial=1))
    assert (got + want).n == 2 * len(x)


@examples(25)
@given(seeds, st.sampled_from([GramClassifier, GramRegressor]), st.sampled_from([0.5, "loo", "auto"]), st.booleans())
def test_estimators_predict_the_same(seed, kind, ridge, weighted):
    rng = np.random.default_rng(seed)
    x = sparse_table(rng)
    y = x @ rng.normal(size=x.shape[1]) / 1e3 + rng.normal(size=len(x))
    y = y > np.median(y) if kind is GramClassifier else y
    weights = rng.random(len(x)) + 0.1 if weighted else None
    want, got = (kind(ridge).fit(rows, y, weights) for rows in (x, contained(x, rng)))
    if ridge == "auto":  # an eigenvalue at the level of rounding decides which ridges are tried
        want = kind(got.ridge_).fit(x, y, weights)
    read = kind.decision_function if kind is GramClassifier else kind.predict
    for rows in (x, contained(x, rng)):
        np.testing.assert_allclose(read(got, rows), read(want, x), rtol=1e-7, atol=1e-7)


def test_a_model_scores_sparse_rows():
    rng = np.random.default_rng(0)
    x, y = sparse_table(rng), None
    y = np.arange(len(x)) % 3
    for intercept in (True, False):
        model = fg.Moments.of(sparse.csr_matrix(x), y, classes=3).model(1.0, intercept=intercept)
        for rows in (sparse.coo_array(x), sparse.csc_matrix(x.astype(np.float32)), sparse.csr_array(x)):
            np.testing.assert_allclose(model.scores(rows), model.scores(rows.toarray()), atol=1e-9)
        np.testing.assert_array_equal(model.predict(sparse.csr_array(x)), model.predict(x))
    with pytest.raises(InvalidData, match=rf"shape \(n, {x.shape[1]}\), got \({len(x)}, 1\)"):
        model.scores(sparse.csr_array(x[:, :1]))


def test_there_is_no_dense_copy():
    """200,000 × 500 would take 800 MB."""
    rng = np.random.default_rng(0)
    x, y = sparse.random_array((200_000, 500), density=0.002, format="csr", rng=rng), rng.integers(0, 2, 200_000)
    estimator = GramClassifier(1.0)
    tracemalloc.start()
    estimator.fit(x, y, y + 1.0).predict(x)
    fg.Moments.of(x, y, classes=2).model(1.0).scores(x)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 60e6


@pytest.mark.parametrize(("value", "told"), [(np.nan, "nan"), (-np.inf, "-inf")])
def test_values_that_are_not_finite_are_found(value, told):
    x = sparse.random_array((60, 20), density=0.2, format="csr", rng=np.random.default_rng(0))
    x.data[40] = value
    row, column = (int(axis[0]) for axis in np.nonzero(~np.isfinite(x.toarray())))
    with pytest.raises(InvalidData, match=rf"not finite: {told} in row {row}, column {column} \(1 rows in all\)"):
        fg.Moments.of(x, np.arange(60) % 2, classes=2)
    with pytest.raises(ValueError, match="NaN|infinity"):
        GramRegressor().fit(x, np.arange(60.0))


def test_what_cannot_be_summed_is_refused():
    x, y = sparse.csr_array(1e200 * np.eye(8)), np.arange(8) % 2
    for wrong in (lambda: fg.Moments.of(x, y, classes=2), lambda: GramRegressor().fit(x, y)):
        with pytest.raises(InvalidData, match="their squares overflow: rescale them"):
            wrong()
    with pytest.raises(InvalidData, match=r"add up to 0\.0"):
        GramRegressor().fit(sparse.csr_array(np.eye(8)), y, np.zeros(8))
    with pytest.raises(InvalidData, match="8 samples but 7 labels"):
        fg.Moments.of(x, y[:7], classes=2)
    with pytest.raises(InvalidData, match="expected numbers, got a sparse array of complex128"):
        fg.Moments.of(x * 1j, y, classes=2)
    with pytest.raises(InvalidData, match=r"expected shape \(n, d\) with d ≥ 1, got a sparse array of shape \(8,\)"):
        fg.Moments.of(sparse.coo_array(np.ones(8)), y, classes=2)
    with pytest.raises(InvalidData, match=r"got a sparse one of shape \(8, 8\); give x.toarray\(\)"):
        fg.Client("north", x, y)


def test_a_column_far_from_zero_warns_as_an_array_does():
    x = sparse.csr_array(1e9 + np.random.default_rng(0).normal(size=(50, 1)))
    with pytest.warns(LostPrecision, match="column 0 is far from zero"):
        fg.Moments.of(x, np.arange(50) % 2, classes=2).model(1.0)

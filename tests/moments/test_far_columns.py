"""Columns far from zero: warnings on lost digits name the column and the remedy."""

import warnings

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.errors import LostPrecision, Mismatch
from fedgram.moments.far_columns import far, far_in


def rows(offset, n=400, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    return x + np.array([offset, 0.0, 0.0]), (x[:, 0] + 0.5 * rng.normal(size=n) > 0).astype(int)


@pytest.mark.parametrize("ask", [lambda m: m.model(1.0), lambda m: m.solve(1.0), lambda m: (m + m).model(1.0)])
def test_a_column_that_loses_digits_is_named_with_the_remedy(ask):
    x, y = rows(1e6)
    with pytest.warns(LostPrecision, match=r"column 'pressure' is far from zero: .*1e\+06 standard.*subtract 1e\+06"):
        ask(fg.Moments.of(x, y, classes=2, columns=["pressure", "b", "c"]))
    x, y = rows(1e10)
    with pytest.warns(LostPrecision, match=r"column 0 .* less than the rounding of its sums"):
        ask(fg.Moments.of(x, y, classes=2))


def test_columns_near_zero_and_known_constants_pass():
    for offset in (0.0, 1e4):
        x, y = rows(offset)
        x[:, 1] = 2026.0
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fg.Moments.of(x, y, classes=2).model(1.0)


def test_far_is_judged_alike_by_sums_and_by_rows():
    x, _ = rows(1e3)
    assert far(x.sum(axis=0), np.square(x).sum(axis=0), len(x)).tolist() == far_in(x).tolist() == [True, False, False]


def test_moments_about_a_centre_add_to_their_like_only_and_come_back_to_zero():
    x, y = rows(1e3)
    centre = np.array([1e3, 0.0, 0.0])
    about, raw = (fg.Moments.of_indices(x, y, classes=(0, 1), centre=given) for given in (centre, None))
    np.testing.assert_allclose(about.about_zero().gram, raw.gram, rtol=1e-12)
    np.testing.assert_allclose(about.about_zero().cross, raw.cross, rtol=1e-12)
    np.testing.assert_allclose(about.model(1.0).scores(x), raw.model(1.0).scores(x), atol=1e-8)
    np.testing.assert_allclose(about.solve(1.0), raw.solve(1.0), atol=1e-6)
    assert fg.Moments.from_bytes(about.to_bytes()) == about
    with pytest.raises(Mismatch, match="different centres"):
        about + raw


@pytest.mark.parametrize("ratio", [1e3, 1e6, 1e8, 1e10])
def test_a_run_is_as_good_as_the_columns_less_their_offset(ratio):
    """Against a ridge with an intercept on the data less the offset, in long double."""
    x, y = rows(ratio)
    clients = [fg.Client(f"c{k}", x[k::3], y[k::3], columns=("p", "q", "r")) for k in range(3)]
    fit = fg.AFL(ri=False, gamma=1 / 3).fit(clients, classes=2)
    z = x.astype(np.longdouble) - ratio
    z, t = (z - z.mean(axis=0)).astype(float), np.eye(2)[y]
    weights = np.linalg.solve(z.T @ z + np.eye(3), z.T @ (t - t.mean(axis=0)))
    np.testing.assert_allclose(fit.model.scores(x), z @ weights + t.mean(axis=0), atol=ratio * 1e-14 + 1e-12)


def test_features_made_of_columns_are_no_columns():
    x, y = rows(1e6)
    with pytest.warns(LostPrecision, match="feature 0 is far from zero: .*; standardise the columns"):
        fg.Moments.of(x, y, classes=2, features="relu").model(1.0)

"""The drift between two moments: the Fréchet distance of normal distributions, by column and in all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import sqrtm

import fedgram as fg
from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch
from support.campaign import examples
from support.problems import seeds

pytest.importorskip("sklearn.base")  # "sklearn" alone is a folder of tests
from fedgram.sklearn import GramClassifier, GramRegressor


def moments(x, columns=()):
    return fg.Moments.of(x, np.zeros(len(x), int), classes=2, columns=columns)


def table(rng, n, d):
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) * 10 ** rng.uniform(-2, 2, d) + rng.normal(size=d)


@examples(40)
@given(seeds, st.integers(1, 6))
def test_is_the_distance_of_normal_distributions(seed, d):
    rng = np.random.default_rng(seed)
    x, y = table(rng, 40, d), table(rng, 60, d)
    found = fg.drift(moments(x), moments(y))
    scale = np.sqrt((x.var(axis=0) + y.var(axis=0)) / 2)
    mean = (x.mean(axis=0) - y.mean(axis=0)) / scale
    np.testing.assert_allclose(found.columns, np.hypot(mean, (x.std(axis=0) - y.std(axis=0)) / scale), rtol=1e-9)
    one, two = (np.atleast_2d(np.cov(rows / scale, rowvar=False, bias=True)) for rows in (x, y))
    root = np.real(sqrtm(one))
    squared = mean @ mean + np.trace(one + two - 2 * np.real(sqrtm(root @ two @ root)))
    assert found.total**2 == pytest.approx(squared, rel=1e-6)
    assert found.total >= np.linalg.norm(found.columns)


@examples(30)
@given(seeds, st.integers(1, 5))
def test_depends_on_nothing_else(seed, d):
    """Not on units, nor the order of the two, nor the way to the moments, nor the total of the weights."""
    rng = np.random.default_rng(seed)
    x, y = table(rng, 50, d), table(rng, 30, d)
    found, units = fg.drift(moments(x), moments(y)), 10 ** rng.uniform(-3, 3, d)
    labels = np.arange(50) % 2
    fitted = [GramClassifier().fit(x, labels), GramRegressor().fit(y, y)]
    for other in (
        fg.drift(moments((x + 5) * units), moments((y + 5) * units)),
        fg.drift(moments(y), moments(x)),
        fg.drift(moments(x[:20]) + moments(x[20:]), moments(y) + moments(y)),
        fg.drift(0.1 * moments(x), moments(y)),
        fg.drift(*(one.moments_ for one in fitted)),
    ):
        np.testing.assert_allclose(other.columns, found.columns, rtol=1e-6)
        assert other.total == pytest.approx(found.total, rel=1e-6)
    assert fg.drift(moments(x), moments(x)).total < 1e-6


def test_without_correlations_the_columns_are_all():
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1.0]])
    found = fg.drift(moments(signs), moments(2 * signs + [1, 0]))
    np.testing.assert_allclose(found.columns, np.sqrt([2 / 2.5, 1 / 2.5]))
    assert found.total == pytest.approx(np.sqrt(3 / 2.5))
    turned = fg.drift(moments(np.array([[1.0, 1], [-1, -1]])), moments(np.array([[1.0, -1], [-1, 1]])))
    np.testing.assert_allclose(turned.columns, 0.0, atol=1e-12)
    assert turned.total == pytest.approx(2.0)  # only the correlation has changed, from 1 to -1


@pytest.mark.parametrize("d", [1, 4])
def test_chance_is_what_samples_of_one_distribution_differ_by(d):
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(d, d))
    found = [fg.drift(*(moments(rng.normal(size=(n, d)) @ mixing) for n in (300, 500))) for _ in range(400)]
    columns = np.sqrt(np.mean([one.columns**2 for one in found], axis=0))
    np.testing.assert_allclose(columns, found[0].by_chance, rtol=0.1)
    total = np.sqrt(np.mean([one.total**2 for one in found]))
    assert total == pytest.approx(np.mean([one.total_by_chance for one in found]), rel=0.1)


def test_constant_columns():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=50), np.full(50, 2.0), np.full(50, 3.0)])
    y = np.column_stack([rng.normal(size=31), np.full(31, 2.0), np.full(31, 4.0)])
    found = fg.drift(moments(x), moments(y))
    assert found.columns[1] == 0
    assert found.columns[2] == found.total == np.inf
    assert found.by_chance[1:].tolist() == [0.0, 0.0]
    same = fg.drift(moments(x[:, 1:2]), moments(y[:, 1:2]))
    assert (same.total, same.total_by_chance) == (0.0, 0.0)


def test_columns_go_by_name():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 2)), rng.normal(size=(50, 2)) + np.array([5, 0])
    found = fg.drift(moments(x, ["age", "bmi"]), 0.5 * moments(y[:, ::-1], ["bmi", "age"]))
    assert found.names == ("age", "bmi")
    assert found.columns[0] > 4
    assert found.columns[1] < 1
    assert repr(found).startswith("Drift(total=5.")
    assert "largest age: 5." in repr(found)
    with pytest.raises(Mismatch, match="lacks column 'bmi'"):
        fg.drift(moments(x, ["age", "bmi"]), moments(y, ["age", "bp"]))
    with pytest.raises(Mismatch, match="got 2 and 1 features"):
        fg.drift(moments(x), moments(y[:, :1]))
    with pytest.raises(InvalidData, match="expected moments, got GramRegressor; .* its moments_"):
        fg.drift(moments(x), GramRegressor().fit(x, x))
    with pytest.raises(InvalidParameter, match="without bias=True"):
        fg.drift(moments(x), fg.Moments.of(x, np.zeros(50, int), classes=2, bias=True))

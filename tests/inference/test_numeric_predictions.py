"""Bootstrap intervals of errors: what they should be on average, and what they are where nothing varies."""

import numpy as np
import pytest

from fedgram.inference import numeric_predictions
from fedgram.inference.numeric_predictions import bootstrap_intervals


def made_up(n=400, seed=0):
    rng = np.random.default_rng(seed)
    values = 2026 + 10 * rng.normal(size=(n, 1))
    return 3 * rng.normal(size=(n, 1)), values


def test_each_figure_is_that_of_rows_drawn_with_replacement(monkeypatch):
    """The same draws, with each resample written out."""
    monkeypatch.setattr(numeric_predictions, "MOST", 200)
    errors, values = made_up(50)
    [found], resamples = bootstrap_intervals(errors, values, level=0.9, seed=7)
    rng, drawn = np.random.default_rng(7), {"rmse": [], "mae": [], "r2": []}
    for _ in range(resamples):
        rows = rng.integers(0, 50, 50)
        e, y = errors[rows, 0], values[rows, 0]
        drawn["rmse"].append(np.sqrt(np.mean(e**2)))
        drawn["mae"].append(np.mean(np.abs(e)))
        drawn["r2"].append(1 - np.sum(e**2) / np.sum((y - y.mean()) ** 2))
    assert resamples == 200
    for name, each in drawn.items():
        assert found[name] == pytest.approx(tuple(np.quantile(each, [0.05, 0.95])), rel=1e-9)


def test_an_interval_is_as_wide_as_theory_says():
    errors, values = made_up(2000)
    [found], _ = bootstrap_intervals(errors, values, level=0.95)
    low, high = found["rmse"]
    # The variance of the root of a mean of squares of normal numbers is σ²/2n.
    assert high - low == pytest.approx(2 * 1.96 * 3 / np.sqrt(2 * 2000), rel=0.1)


def test_levels_are_nested_and_the_same_rows_give_the_same_interval():
    [wide], _ = bootstrap_intervals(*made_up(), level=0.99)
    [narrow], _ = bootstrap_intervals(*made_up(), level=0.5)
    for name, (low, high) in narrow.items():
        assert wide[name][0] < low < high < wide[name][1]
    assert bootstrap_intervals(*made_up(), level=0.5)[0] == [narrow]


def test_outcomes_are_apart():
    one, other = made_up(seed=1), made_up(seed=2)
    together, _ = bootstrap_intervals(*(np.hstack(pair) for pair in zip(one, other, strict=True)), level=0.95)
    for found, alone in zip(together, (one, other), strict=True):
        [wanted], _ = bootstrap_intervals(*alone, level=0.95)
        for name, ends in wanted.items():
            assert found[name] == pytest.approx(ends, rel=1e-12)


def test_an_outcome_that_does_not_vary_has_no_interval_of_r2():
    errors = np.array([[1.0], [2.0], [3.0]])
    [found], _ = bootstrap_intervals(errors, np.full((3, 1), 5.0), level=0.95)
    assert found["r2"] is None
    assert found["rmse"] is not None


def test_resamples_of_one_value_do_not_count():
    """Of three rows every ninth resample is three times the same row, of eight hardly any."""
    errors, values = np.ones((3, 1)), np.array([[1.1], [2.2], [3.3]])
    [found], _ = bootstrap_intervals(errors, values, level=0.95)
    assert found["r2"] is None
    [found], _ = bootstrap_intervals(errors, values, level=0.5)
    assert found["r2"][0] > -100
    [found], _ = bootstrap_intervals(np.ones((8, 1)), np.arange(8.0)[:, None], level=0.95)
    assert found["r2"] is not None


def test_one_row_has_no_interval():
    [found], resamples = bootstrap_intervals(np.array([[1.0]]), np.array([[5.0]]), level=0.95)
    assert (set(found.values()), resamples) == ({None}, 0)


def test_large_tables_are_drawn_less_often(monkeypatch):
    monkeypatch.setattr(numeric_predictions, "DRAWN", 400 * 300)
    assert bootstrap_intervals(*made_up(), level=0.95)[1] == 300
    monkeypatch.setattr(numeric_predictions, "DRAWN", 1)
    assert bootstrap_intervals(*made_up(), level=0.95)[1] == 200

"""Intervals from the clients of one run."""

from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedgram.experiments.results import Result, load_results
from fedgram.report import formats
from fedgram.report.result_tables import accuracy_table, half_width
from support.made_up import write
from support.report import record

counts = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=2, max_size=40)


def run_of(pairs):
    pairs = [(min(right, n), n) for right, n in pairs]
    return Result.of({"method": "afl", "correct": [r for r, _ in pairs], "tested": [n for _, n in pairs]})


@given(counts)
def test_of_the_mean_over_clients_it_is_the_t_interval(pairs):
    run = run_of(pairs)
    known = np.array([value for value in run.by_client if value is not None])
    half = half_width(run, "client_mean")
    if len(known) < 2:
        assert half is None
        return
    expected = stats.t.ppf(0.975, len(known) - 1) * known.std(ddof=1) / sqrt(len(known))
    assert half == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(st.lists(st.integers(0, 12), min_size=2, max_size=30))
def test_where_all_clients_are_as_large_both_means_have_the_same_interval(right):
    run = run_of([(r, 12) for r in right])
    assert half_width(run, "pooled") == pytest.approx(half_width(run, "client_mean"), rel=1e-9, abs=1e-12)


def test_of_all_samples_it_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(600):
        tested = rng.integers(20, 60, 30)
        correct = rng.binomial(tested, rng.beta(8, 2, 30))
        run = run_of(zip(correct.tolist(), tested.tolist(), strict=True))
        covered += abs(correct.sum() / tested.sum() - 0.8) <= half_width(run, "pooled")
    assert 0.92 <= covered / 600 <= 0.98


def test_the_worst_tenth_has_none():
    assert half_width(run_of([(1, 2), (2, 2)]), "worst_decile") is None


def table_of(tmp_path, *methods, seeds=1):
    """Return the table of methods that are given by their clients' right answers of a hundred."""
    runs = [
        record(f"m{i}", np.mean(right) / 100, seed=seed, correct=list(right), tested=[100] * len(right))
        for i, right in enumerate(methods)
        for seed in range(seeds)
    ]
    return accuracy_table(load_results([write(tmp_path / "results.jsonl", runs)]), "client_mean")


def test_one_seed_says_what_stands_after_the_mean(tmp_path):
    table = table_of(tmp_path, [80, 90, 70], [50, 60, 55])
    assert [row[1].text for row in table.rows] == ["80.00 ± 24.84", "55.00 ± 12.42"]
    assert "one seed, ± half of a 95 % t interval over the clients" in table.caption


def test_several_seeds_say_nothing_of_clients(tmp_path):
    table = table_of(tmp_path, [80, 90, 70], [50, 60, 55], seeds=2)
    assert [row[1].text for row in table.rows] == ["80.00 ± 0.00", "55.00 ± 0.00"]
    assert "interval" not in table.caption


def test_csv_has_the_plain_order(tmp_path):
    table_of(tmp_path, [90, 91, 92], [89, 90, 91])
    text = formats.comma_separated(load_results([tmp_path / "results.jsonl"]), "client_mean")
    header, *lines = (line.split(",") for line in text.splitlines())
    assert [line[header.index("rank")] for line in lines] == ["1", "2"]

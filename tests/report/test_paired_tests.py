"""Paired tests over the same clients and seeds, and what is bold by them."""

import csv
import io
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

from fedgram.experiments.results import load_results
from fedgram.report import formats
from fedgram.report.paired_tests import can_differ, holm, p_values
from fedgram.report.report_page import render_page
from fedgram.report.result_tables import BEST, SECOND, accuracy_table, test_table
from support.made_up import write
from support.report import record, report

test_table.__test__ = False  # a table of tests


def results_of(tmp_path, methods, seeds=1, **more):
    """Return results of methods that are given by their clients' right answers of a hundred, by seed."""
    runs = [
        record(label, np.mean(right) / 100, seed=seed, correct=list(map(int, right)), tested=[100] * len(right), **more)
        for label, by_seed in methods.items()
        for seed, right in enumerate(by_seed)
    ]
    return load_results([write(tmp_path / "results.jsonl", runs)])


def ranks(results, metric="client_mean"):
    return [row[1].rank for row in accuracy_table(results, metric).rows]


def drawn(seed=0, clients=20, gap=1.1):
    """Return two methods' figures over three seeds: clients differ by far more than the methods do."""
    rng = np.random.default_rng(seed)
    base = rng.integers(40, 90, (3, clients))
    return base, base - rng.binomial(4, gap / 4, base.shape)


def test_a_small_difference_over_the_same_clients_is_found(tmp_path):
    """Ranges over seeds overlap by far; paired, the difference is sure."""
    better, worse = drawn()
    results = results_of(tmp_path, {"better": better, "worse": worse})
    assert ranks(results) == [BEST, 0]
    table = test_table(results, "client_mean")
    differences = (worse - better).ravel()
    assert [entry.text for entry in table.rows[1]] == [
        "worse", f"{differences.mean():+.2f}".replace("-", "\N{MINUS SIGN}"), "60", "< 0.001", "< 0.001",
    ]  # fmt: skip
    assert [entry.text for entry in table.rows[0]][:2] == ["better", "best"]
    assert f"worse & $-${abs(differences.mean()):.2f} & 60 & \\textless{{}} 0.001" in formats.latex(table)


def test_p_values_are_those_of_scipy_after_holm(tmp_path):
    rng = np.random.default_rng(1)
    base = rng.integers(40, 60, (2, 12))
    others = {f"m{i}": base - rng.integers(-3, 4 + i, base.shape) for i in range(3)}
    results = results_of(tmp_path, {"best": base + 3, **others})
    lines = list(csv.DictReader(io.StringIO(formats.comma_separated(results, "client_mean"))))
    for key, test in (("p_wilcoxon", stats.wilcoxon), ("p_t", stats.ttest_rel)):
        raw = [test((base + 3).ravel(), other.ravel()).pvalue for other in others.values()]
        assert [float(line[key]) for line in lines[1:]] == pytest.approx(holm(raw), rel=1e-4)
    assert lines[0]["p_wilcoxon"] == ""
    assert [line["pairs"] for line in lines[1:]] == ["24"] * 3


def test_what_is_not_significantly_worse_is_bold_as_well(tmp_path):
    better, worse = drawn()
    noise = np.where(np.arange(60).reshape(3, 20) % 2, 1, -1)
    noise[0, 0] = -2
    results = results_of(tmp_path, {"better": better, "equal": better + noise, "worse": worse})
    assert ranks(results) == [BEST, BEST, 0]
    caption = accuracy_table(results, "client_mean").caption
    assert "Bold: the best of a setting, and what is not significantly worse at 5 % (Wilcoxon" in caption
    assert "Underlined" not in caption


def test_too_few_pairs_say_so_and_nothing_is_bold(tmp_path):
    results = results_of(tmp_path, {"a": [[90] * 5], "b": [[10] * 5]})
    assert ranks(results) == [SECOND, SECOND]
    assert [entry.text for entry in test_table(results, "client_mean").rows[1]][2:] == ["5", "too few", "too few"]
    assert "too few pairs" in accuracy_table(results, "client_mean").caption
    assert "too few" in report(tmp_path / "results.jsonl").output
    six = results_of(tmp_path, {"a": [[90] * 6], "b": [[10] * 6]})
    assert ranks(six) == [BEST, 0]
    # Of two comparisons, six pairs cannot find anything.
    assert ranks(results_of(tmp_path, {"a": [[90] * 6], "b": [[10] * 6], "c": [[11] * 6]})) == [SECOND, 0, SECOND]


def test_only_seeds_and_clients_that_both_have_are_pairs(tmp_path):
    runs = [
        record("a", 0.9, correct=[9] * 8 + [0], tested=[10] * 8 + [0]),
        record("b", 0.8, correct=[8] * 8 + [0], tested=[10] * 8 + [0]),
        record("a", 0.9, seed=1, correct=[9] * 9, tested=[10] * 9),
        record("b", 0.0, seed=1, status="failed", error="boom"),
    ]
    table = test_table(load_results([write(tmp_path / "results.jsonl", runs)]), "client_mean")
    assert [entry.text for entry in table.rows[1]] == ["b", "\N{MINUS SIGN}10.00", "8", "0.008", "< 0.001"]


def test_figures_that_are_not_of_single_clients_are_not_tested(tmp_path):
    better, worse = drawn()
    results = results_of(tmp_path, {"better": better, "worse": worse})
    for metric, found in (("pooled", [BEST, 0]), ("worst_decile", [SECOND] * 2), ("best_round", [SECOND] * 2)):
        assert ranks(results, metric) == found
    assert not test_table(results, "worst_decile").rows


def test_the_reference_takes_no_part(tmp_path):
    better, worse = drawn()
    runs = results_of(tmp_path, {"better": better, "worse": worse}).runs
    top = record("centralised", 0.99, reference=True, correct=[99] * 20, tested=[100] * 20)
    write(tmp_path / "more.jsonl", [top])
    results = load_results([tmp_path / "results.jsonl", tmp_path / "more.jsonl"])
    assert len(results.runs) == len(runs) + 1
    assert ranks(results) == [0, BEST, 0]


def test_all_formats_and_the_page_follow_the_same_rule(tmp_path):
    better, worse = drawn()
    for apart, methods in ((True, {"a": better, "b": worse}), (False, {"a": better[:, :1], "b": worse[:, :1]})):
        results = results_of(tmp_path, methods)
        table, text = accuracy_table(results, "client_mean"), f"{np.mean(next(iter(methods.values()))):.2f}"
        out = io.StringIO()
        Console(file=out, force_terminal=True, width=200, color_system="standard").print(formats.terminal(table))
        assert (f"**{text}" in formats.markdown(table)) is apart
        assert (rf"\textbf{{{text}" in formats.latex(table)) is apart
        assert (f"<b>{text}" in formats.html(table)) is apart
        assert (f"\x1b[1m{text}" in out.getvalue()) is apart
        assert ('"marks":[1,1,2,2]' in render_page(results, title="x")) is apart


@given(st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=14))
def test_p_is_at_least_what_the_signs_allow_and_has_no_side(differences):
    _, wilcoxon = p_values(tuple(differences))
    other = p_values(tuple(-one for one in differences))
    assert (wilcoxon, other[1]) == pytest.approx((other[1], wilcoxon))
    assert 0 <= wilcoxon <= 1
    if unequal := sum(one != 0 for one in differences):
        assert wilcoxon >= 2.0 ** (1 - unequal)
    assert not can_differ(5, 1)


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_keeps_the_order_and_lowers_nothing(p):
    corrected = holm(p)
    assert all(after >= before for before, after in zip(p, corrected, strict=True))
    order = sorted(range(len(p)), key=p.__getitem__)
    assert [corrected[i] for i in order] == sorted(corrected)


def test_scipy_stats_is_imported_late():
    code = "import sys, fedgram, fedgram.cli; assert 'scipy.stats' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)

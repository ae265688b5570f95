"""Costs to reach an accuracy, and accuracy by costs."""

import pytest

from fedgram.experiments.results import load_results
from fedgram.report.charts import describe
from fedgram.report.result_tables import reach_tables
from support.made_up import write
from support.report import record, report

COSTS = {"up": [3000, 1000], "down": [2000, 2000], "cpu_seconds": {"clients": 6.0, "server": 2.0}}


@pytest.fixture
def path(tmp_path):
    curve = {"client_mean": [0.4, 0.72, 0.81, 0.8], "pooled": [0.4, 0.5, 0.6, 0.7]}
    records = [
        record("slow", 0.8, rounds=curve, **COSTS),
        record("at once", 0.77, **COSTS),
        record("no rounds", 0.9, partition="iid", **COSTS),
        record("centralised", 0.9, reference=True),
    ]
    return write(tmp_path / "results.jsonl", records)


def test_cost_to_reach_an_accuracy(path):
    ((column, table),) = reach_tables(load_results([path]), "client_mean").items()
    assert column.partition == "dirichlet:0.1", "no method has rounds in the other setting"
    assert table.spans == [("70 %", 3), ("75 %", 3), ("80 %", 3)]
    rows = {row[0].text: [entry.text for entry in row[1:]] for row in table.rows}
    # Half of the rounds cost half of 4,000 bytes and of 8 seconds.
    assert rows["slow"] == ["2", "2.00 kB", "4", "3", "3.00 kB", "6", "3", "3.00 kB", "6"]
    assert rows["at once"] == ["1", "4.00 kB", "8"] * 2 + ["–"] * 3


def test_seeds_are_averaged_and_those_that_do_not_get_there_are_told(tmp_path):
    curves = ([0.5, 0.71], [0.71, 0.5], [0.5, 0.6])
    runs = [record("one", c[-1], seed=i, rounds={"client_mean": c}, **COSTS) for i, c in enumerate(curves)]
    two = reach_tables(load_results([write(tmp_path / "two.jsonl", runs[:2])]), "client_mean")
    assert [entry.text for entry in next(iter(two.values())).rows[0][-3:]] == ["1.5", "3.00 kB", "6"]
    three = reach_tables(load_results([write(tmp_path / "three.jsonl", runs)]), "client_mean")
    assert [entry.text for entry in next(iter(three.values())).rows[0][-3:]] == ["1.5 (2 of 3 seeds)", "3.00 kB", "6"]


def test_reports_have_the_table(path):
    printed = report(path, "--format", "markdown").output
    assert "What it takes to reach an accuracy" in printed
    assert "| slow |" in printed


def test_curves_by_what_was_spent(path):
    charts = {chart.name: chart for chart in describe(load_results([path]), ["client_mean"])}
    for name, spent in {
        "rounds": [1, 2, 3, 4],
        "rounds-bytes": [1000, 2000, 3000, 4000],
        "rounds-cpu": [2, 4, 6, 8],
    }.items():
        (panel,) = charts[f"accuracy-{name}"].panels
        lines = {one.label: one for one in panel.series}
        assert list(lines["slow"].x) == spent
        assert list(lines["slow"].y) == [40, 72, 81, 80]
        assert list(lines["at once"].x) == [1 if name == "rounds" else spent[-1]]
        assert lines["centralised"].draw == "reference"


def test_a_method_whose_costs_are_not_known_is_left_out(tmp_path):
    curve = {"client_mean": [0.4, 0.8]}
    path = write(tmp_path / "r.jsonl", [record("a", 0.8, rounds=curve, **COSTS), record("b", 0.8, rounds=curve)])
    charts = {chart.name: chart for chart in describe(load_results([path]), ["client_mean"])}
    assert [one.label for one in charts["accuracy-rounds"].panels[0].series] == ["a", "b"]
    assert [one.label for one in charts["accuracy-rounds-bytes"].panels[0].series] == ["a"]

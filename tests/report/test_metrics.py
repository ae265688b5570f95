"""Figures other than accuracies: direction, format, and error."""

import csv
import io
from math import sqrt

import numpy as np
import pytest

from fedgram.core.errors import UnknownName
from fedgram.experiments.results import Result, load_results
from fedgram.report import formats, plots
from fedgram.report.charts import describe
from fedgram.report.metrics import beside, chosen, metric_in, metric_of, metrics_of
from fedgram.report.result_tables import BEST, SECOND, accuracy_table, beside_table, cells, half_width, ranks
from support.made_up import write
from support.numeric import NUMERIC, numeric_record
from support.report import record


@pytest.fixture
def numeric(tmp_path):
    return load_results([write(tmp_path / "results.jsonl", NUMERIC)])


def probable(label, brier, error):
    """Return a record with probabilities, of four clients with 25 test samples each."""
    bins = {"samples": [0] * 9 + [100], "right": [0] * 9 + [90], "confidence": [0.0] * 9 + [95.0]}
    more = {"probabilities": {"brier": brier, "calibration_error": error}, "squared": [25 * brier] * 4}
    more |= {"calibration_errors": [error, None, 0.2, 0.1], "reliability": {"squared": 100 * brier, **bins}}
    return record(label, 0.9, correct=[20] * 4, tested=[25] * 4, **more)


def test_of_errors_the_lowest_is_best(numeric):
    found = cells(numeric, "rmse")
    by_label = {label: rank for (label, _), rank in ranks(numeric, found).items()}
    assert by_label == {"fedgram": BEST, "afl": SECOND}
    table = accuracy_table(numeric, "rmse")
    assert [row[1].rank for row in table.rows] == [0, SECOND, SECOND, 0]  # three clients are too few for a test
    assert "RMSE of cost in EUR (root of the mean squared error over all test samples)" in table.caption
    assert "lower is better" in table.caption
    assert [row[1].rank for row in accuracy_table(numeric, "r2").rows] == [0, SECOND, SECOND, 0]
    assert "lower is better" not in accuracy_table(numeric, "r2").caption


def test_errors_of_any_size_have_four_digits(tmp_path):
    for scale, digits in ((0.00123456, 6), (123.456, 1), (98765.4, 0)):
        found = load_results([write(tmp_path / "results.jsonl", [numeric_record("one", scale)])])
        (row,) = accuracy_table(found, "rmse").rows
        mean, half = row[1].text.split(" ± ")
        assert len(mean.partition(".")[2]) == len(half.partition(".")[2])
        assert float(mean) == pytest.approx(metric_of("rmse").shown(found.runs[0]), rel=1e-3)
        assert abs(len(mean.partition(".")[2]) - digits) <= 1


def test_intervals_cover_as_often_as_they_say():
    """Clients are drawn from a population whose errors are known: normal, of a size that differs between clients."""
    rng = np.random.default_rng(0)
    covered = dict.fromkeys(("rmse", "mae", "r2", "client_rmse"), 0)
    for _ in range(400):
        sizes = rng.gamma(20, 0.05, 40)
        tested = rng.integers(30, 60, 40)
        off = [size * rng.normal(size=n) for size, n in zip(sizes, tested, strict=True)]
        truth = [rng.normal(0, 2) + 3 * rng.normal(size=n) for n in tested]
        sums = {
            "squared": [float((one**2).sum()) for one in off],
            "absolute": [float(np.abs(one).sum()) for one in off],
            "total": [float(one.sum()) for one in truth],
            "spread": [float(((one - one.mean()) ** 2).sum()) for one in truth],
        }
        pooled = np.concatenate(off)
        spread = ((np.concatenate(truth) - np.concatenate(truth).mean()) ** 2).sum()
        figures = {"rmse": float(np.sqrt((pooled**2).mean())), "mae": float(np.abs(pooled).mean())}
        figures["r2"] = float(1 - (pooled**2).sum() / spread)
        run = Result.of(
            {
                "method": "afl",
                "outcomes": {"y": ""},
                "errors": {"y": figures},
                "error_sums": {"y": sums},
                "tested": tested.tolist(),
            }
        )
        size2 = 20 * 0.05**2 + 1  # E[size²] of that gamma distribution, whose mean is 1
        true = {"rmse": sqrt(size2), "mae": sqrt(2 / np.pi), "r2": 1 - size2 / 13, "client_rmse": 0.995}
        for metric, value in true.items():
            covered[metric] += abs(metric_of(metric).value(run) - value) <= half_width(run, metric)
    assert all(0.91 <= count / 400 <= 0.985 for count in covered.values()), covered


def test_of_several_outcomes_each_has_its_metrics(tmp_path):
    outcomes = {"cost": "EUR", "stay": ""}
    found = load_results([write(tmp_path / "results.jsonl", [numeric_record("afl", 1.0, outcomes=outcomes)])])
    assert metrics_of(found) == [f"{kind}:{name}" for name in outcomes for kind in ("rmse", "mae", "r2", "client_rmse")]
    assert chosen(found, None) == chosen(found, "rmse") == "rmse:cost"
    assert chosen(found, "r2:stay") == "r2:stay"
    assert metric_in(found, "rmse:cost").title == "RMSE of cost in EUR"
    assert metric_in(found, "mae:stay").title == "MAE of stay"
    assert beside(found, "rmse:stay") == ["mae:stay", "r2:stay"]
    assert metric_of("rmse:stay").value(found.runs[0]) == found.runs[0].judged.errors["stay"]["rmse"]


def test_a_metric_that_results_do_not_have_is_refused_by_name(numeric, small):
    with pytest.raises(UnknownName, match="metric of these results 'pooled'.*rmse"):
        chosen(numeric, "pooled")
    with pytest.raises(UnknownName, match="metric of these results 'rmse'.*pooled"):
        chosen(load_results([small]), "rmse")


def test_results_without_probabilities_have_no_metrics_of_them(small, tmp_path):
    assert metrics_of(load_results([small])) == ["client_mean", "pooled", "worst_decile", "best_round"]
    path = write(tmp_path / "more.jsonl", [probable("afl", 0.12, 0.03), probable("local", 0.2, 0.01)])
    found = load_results([path])
    assert metrics_of(found)[4:] == ["brier", "calibration_error"]
    assert beside(found, "pooled") == ["brier", "calibration_error"]
    table = beside_table(found, "pooled")
    assert [[entry.text for entry in row] for row in table.rows] == [
        ["afl", "0.1200 ± 0.0000", "0.0300"],
        ["local", "0.2000 ± 0.0000", "0.0100"],
    ]
    assert [[entry.rank for entry in row] for row in table.rows] == [[0, SECOND, SECOND], [0, SECOND, SECOND]]
    [reliability] = [chart for chart in describe(found) if chart.kind == "reliability"]
    [series, _] = reliability.panels[0].series
    assert (list(series.x), list(series.y), list(series.facts["samples"])) == ([95.0], [90.0], [100])


def test_tables_have_the_other_figures_beside(numeric):
    names = beside_table(numeric, "rmse").heads
    assert list(names) == ["MAE", "R²"]
    rows = list(csv.DictReader(io.StringIO(formats.comma_separated(numeric, "rmse"))))
    assert {row["metric"] for row in rows} == {"rmse"}
    assert float(rows[1]["mean"]) == pytest.approx(NUMERIC[1]["errors"]["cost"]["rmse"], rel=1e-7)


def test_charts_of_errors_say_that_lower_is_better(numeric):
    charts = {chart.name: chart for chart in describe(numeric, ["rmse"])}
    assert charts["rmse-bytes"].note.startswith("Down and left is better.")
    assert charts["rmse-bytes"].y.title == "RMSE of cost in EUR"
    assert charts["rmse-bytes"].title == "RMSE of cost against bytes a client, up and down"
    strip = charts["clients-rmse"]
    assert strip.x.title == "RMSE of cost in EUR"
    assert "EUR" in strip.panels[0].series[0].told
    assert not any(chart.name == "classes" for chart in charts.values())
    with plots._matplotlib():
        drawn = {name: told for name, _, told in plots.draw(numeric, "rmse")}
    assert drawn.keys() == charts.keys()
    assert "EUR" in drawn["rmse-bytes"]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (
            {"error_sums": {"cost": {"squared": [1.0]}}},
            "error_sums.cost: expected squared, absolute, total, spread",
        ),
        ({"tested": [1, 2]}, "sums of test samples are not those of 2 clients"),
        ({"errors": {"cost": 5}}, "errors.cost: expected a table, got 5"),
        ({"validation": {"names": ["a"], "samples": [1, 2]}}, "not of its 1 parties"),
        (
            {"validation": {"errors": {"cost": {"own": {}}}}},
            "validation.errors.cost: expected own, pooled, left_out",
        ),
        ({"reliability": {"samples": [1], "right": [1], "confidence": [1.0], "squared": 0}}, "10 ranges of confidence"),
    ],
)
def test_what_no_run_could_have_written_is_named_and_left_out(tmp_path, wrong, why):
    path = write(tmp_path / "results.jsonl", [NUMERIC[0], numeric_record("odd", 1.0) | wrong])
    found = load_results([path])
    assert [run.label for run in found.runs] == ["centralised"]
    assert why in found.damaged[0].reason

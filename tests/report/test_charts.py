"""Charts' descriptions: their content, and the same charts on the page and in pictures."""

import json

import numpy as np
import pytest

from fedgram.experiments.results import load_results
from fedgram.report import plots
from fedgram.report.charts import Axis, Chart, Panel, Series, describe, looks
from fedgram.report.report_page import MOST_DETAILS, MOST_ROUNDS, embedded, render_page
from support.made_up import comparison, weights, write
from support.page import taken_apart
from support.report import record


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return results with every kind of chart."""
    records = list(comparison(methods=13, clients=(6,), alphas=(0.1, 1.0), seeds=1, rounds=5))
    for one in records:
        if one.get("label") in ("method-01", "method-02"):
            one |= {"method": "swept", "settings": {"gamma": int(one["label"][-1])}}
            one["matrices"] = weights([f"client-{k:03d}" for k in range(6)])
    return load_results([write(tmp_path_factory.mktemp("charts") / "results.jsonl", records)])


def test_the_page_holds_the_descriptions_that_pictures_are_drawn_from(results):
    _, payload, _ = taken_apart(render_page(results, title="x", metric="pooled"))
    shown = {(chart["name"], chart.get("metric")): chart for chart in payload["charts"]}
    described = list(describe(results, ["pooled"]))
    assert {chart.kind for chart in described} == {"scatter", "lines", "strip", "heat"}
    assert {(chart.name, chart.metric) for chart in described} <= shown.keys()
    drawn = {name: figure for name, figure, _ in plots.draw(results, "pooled")}
    assert drawn.keys() == {chart.name for chart in described}
    for chart in described:
        axes = [one for one in drawn[chart.name].axes if one.get_visible()]
        panels = shown[chart.name, chart.metric]["panels"]
        assert len(panels) == len(chart.panels)
        for panel, one in zip(panels, axes, strict=False):
            assert _drawn_values(chart.kind, one) == _described_values(chart.kind, panel)


def test_what_the_file_says_of_a_method_counts_before_what_is_registered(tmp_path):
    """A foreign method may have a name that is known here, or no name."""
    records = [
        record("centralised", 0.9, reference=True),
        record("theirs", 0.9, personal=True),
        record("afl", 0.9, personal=True),
        record("local", 0.9, personal=False),
        record("fedgram", 0.9),
        record("unknown", 0.9),
    ]
    _, payload, _ = taken_apart(render_page(load_results([write(tmp_path / "results.jsonl", records)]), title="x"))
    assert {method["label"]: method["personal"] for method in payload["methods"]} == {
        "centralised": False,
        "theirs": True,
        "afl": True,
        "local": False,
        "fedgram": True,
        "unknown": None,
    }


def _drawn_values(kind, axes):
    """Return the visible content of a picture: points by colour, or boxes' medians, or colours."""
    match kind:
        case "heat":
            return np.asarray(axes.get_images()[0].get_array()).round(6).tolist()
        case "strip":
            return [round(float(line.get_ydata()[0]), 3) for line in axes.get_lines()[4::6]]
    named = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
    return {line.get_label(): (line.get_color(), [round(float(v), 6) for v in line.get_ydata()]) for line in named}


def _described_values(kind, panel):
    match kind:
        case "heat":
            return panel["heat"]["values"]
        case "strip":
            return [round(float(np.median(one["x"])), 3) for one in panel["series"]]
        case "scatter":
            return {
                one["label"]: (
                    one["look"][0],
                    [round(float(np.mean(one["y"])), 6)] * (1 + (one["draw"] == "reference")),
                )
                for one in panel["series"]
            }
    return {one["label"]: (one["look"][0], one["y"] * (1 + (one["draw"] == "reference"))) for one in panel["series"]}


def test_every_axis_has_a_title_and_every_panel_words(results):
    for chart in describe(results):
        assert chart.x.title
        assert chart.y.title
        assert all(any(c.isdigit() for c in panel.words) for panel in chart.panels)


def test_one_setting_has_intervals_in_the_picture(tmp_path):
    runs = [record(name, 0.8, correct=[8, 9, 7], tested=[10] * 3, up=[10], down=[10]) for name in ("afl", "local")]
    results = load_results([write(tmp_path / "results.jsonl", runs)])
    chart = next(describe(results, ["client_mean"]))
    assert chart.name == "accuracy-bytes"
    (half,) = chart.panels[0].series[0].half
    assert half == pytest.approx(24.84, abs=0.005)  # 4.303 times 10 over the root of 3
    (figure,) = [figure for name, figure, _ in plots.draw(results, "client_mean") if name == "accuracy-bytes"]
    low, high = figure.axes[0].collections[0].get_segments()[0][:, 1]
    assert (low, high) == pytest.approx((80 - half, 80 + half))


def test_a_single_round_is_a_star(tmp_path):
    """A line of one point would not be seen."""
    rounds = {"once": [0.7], "often": [0.5, 0.6]}
    records = [record(label, 0.7, rounds={"client_mean": values}) for label, values in rounds.items()]
    found = load_results([write(tmp_path / "results.jsonl", records)])
    [chart] = [chart for chart in describe(found, ["client_mean"]) if chart.name == "accuracy-rounds"]
    assert {one.label: one.draw for one in chart.panels[0].series} == {"once": "star", "often": "line"}


def test_long_curves_keep_their_ends():
    look = looks(["a"])["a"]
    curve = Series("a", look, "line", range(1, 1001), [i / 10 for i in range(1000)])
    axis = Axis("x")
    (chart,) = embedded([Chart("c", "lines", "C", axis, axis, [Panel("", series=[curve])])])
    (series,) = chart["panels"][0]["series"]
    assert len(series["x"]) == len(series["y"]) == MOST_ROUNDS
    assert (series["x"][0], series["x"][-1]) == (1, 1000)
    assert all(y == (x - 1) / 10 for x, y in zip(series["x"], series["y"], strict=True))


def test_single_clients_beyond_what_a_page_can_hold_are_left_out():
    look, axis, clients = looks(["a"])["a"], Axis("x"), MOST_DETAILS // 4

    def strip(count):
        facts = {"sent up": list(range(clients)), "sent down": [7] * clients}
        series = [Series(str(i), look, "strip", [50.0] * clients, facts=facts) for i in range(count)]
        (chart,) = embedded([Chart("c", "strip", "C", axis, axis, [Panel("", series=series)])])
        return chart["panels"][0]["series"]

    (one,) = strip(1)
    assert one["facts"] == {"sent up": list(range(clients)), "sent down": 7}
    many = strip(5)
    assert len(many) == 4
    assert many[0]["facts"] == {"sent up": round((clients - 1) / 2), "sent down": 7}


def test_descriptions_are_json_without_defaults(results):
    charts = embedded(describe(results))
    assert json.loads(json.dumps(charts, allow_nan=False)) == json.loads(json.dumps(charts))
    assert not any(value in (None, "", [], {}) for chart in charts for value in chart.values())

"""Results that were edited or written by another program: a line of a wrong kind is left out and named."""

import csv
import io
import json
import xml.etree.ElementTree as ET

import pytest

from fedgram.experiments import finished
from fedgram.experiments.results import load_results
from fedgram.report import plots
from fedgram.report.report_page import render_page
from support.made_up import comparison, weights, write
from support.report import record, report
from support.runner import SMALL, compare, records

DEEP = "[" * 900 + "]" * 900
SUMS = '"squared": [-1], "absolute": [1], "total": [0], "spread": [1]'
ESCAPE = "\x1b]0;owned\x07\x1b[2J"


def damaged_by(tmp_path, field, value, **fields):
    """Return the message on a line with a field as JSON text, next to a right line."""
    wrong = json.dumps(record("wrong", 0.5, **fields) | {field: "VALUE"}).replace('"VALUE"', value)
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(record("right", 0.9)) + "\n" + wrong + "\n")
    done = report(path)
    assert done.exit_code == 0
    assert "90.00" in done.output
    results = load_results([path])
    assert [run.label for run in results.runs] == ["right"]
    render_page(results, title="Wrong").encode()
    assert finished(path)[0].keys == {results.runs[0].key}, "what is left out is repeated by --resume"
    (damage,) = results.damaged
    assert f"{path}, line 2: {damage.reason}; left out" in done.output
    return damage.reason


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("method", "5", "method: expected text, got 5"),
        ("label", '["a"]', "label: expected text, got ['a']"),
        ("seed", "1.7", "seed: expected a whole number ≥ 0, got 1.7"),
        ("seed", "true", "seed: expected a whole number ≥ 0, got True"),
        ("clients", '"10"', "clients: expected a whole number ≥ 0, got '10'"),
        ("correct", '"123"', "correct: expected a list, got '123'"),
        ("tested", "[-1]", "tested[0]: expected a whole number ≥ 0, got -1"),
        ("up", '{"a": 1}', "up: expected a list, got {'a': 1}"),
        ("accuracy", "0.9", "accuracy: expected a table, got 0.9"),
        ("accuracy", '{"client_mean": "0.9"}', "accuracy.client_mean: expected a number, got '0.9'"),
        ("accuracy", '{"client_mean": 90}', "accuracy.client_mean: expected a number ≥ 0 and ≤ 1, got 90"),
        ("cpu_seconds", '{"clients": 1%s}' % ("0" * 400), "cpu_seconds.clients: expected a number, got 1000"),
        ("peak_memory", "1e30", "peak_memory: expected a whole number ≥ 0, got 1e+30"),
        ("rounds", '{"pooled": 5}', "rounds.pooled: expected a list, got 5"),
        ("settings", "[1]", "settings: expected a table, got [1]"),
        ("matrices", '{"weights": {"values": [["1"]]}}', "matrices.weights.values[0][0]: expected a number or none"),
        ("absent", '{"a": 5}', "absent.a: expected text, got 5"),
        ("error_sums", f'{{"y": {{{SUMS}}}}}', "error_sums.y.squared[0]: expected a number ≥ 0, got -1"),
        ("status", "5", "status must be 'ok' or 'failed'"),
        ("reference", '"yes"', "reference: expected true or false, got 'yes'"),
    ],
)
def test_a_line_of_a_wrong_kind_is_left_out_and_named(tmp_path, field, value, reason):
    assert damaged_by(tmp_path, field, value).startswith(f"not a record of a run ({reason}")


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("accuracy", '{"client_mean": 1e999}', "1e999 is too large a number"),
        ("settings", '{"gamma": NaN}', "NaN is not a number in JSON"),
        ("settings", '{"gamma": 1, "gamma": 2}', "the name 'gamma' stands twice in an object"),
        ("settings", f'{{"layers": {DEEP}}}', "nested"),
    ],
)
def test_json_that_other_readers_could_take_differently_is_left_out_and_named(tmp_path, field, value, reason):
    told = damaged_by(tmp_path, field, value)
    assert told.startswith("not JSON (")
    assert reason in told


def test_counts_that_contradict_each_other(tmp_path):
    assert "correct has 1 clients, tested 2" in damaged_by(tmp_path, "correct", "[1]", tested=[1, 1])
    assert "correct counts more samples than tested" in damaged_by(tmp_path, "correct", "[2, 0]", tested=[1, 1])


def test_half_a_character_is_no_text(tmp_path):
    assert damaged_by(tmp_path, "label", '"\\ud800"') == "a text in it is not Unicode"


def test_a_missing_method_is_said_to_be_missing(tmp_path):
    path = write(tmp_path / "results.jsonl", [record("afl", 0.9), {"kind": "run"}])
    assert load_results([path]).damaged[0].reason == "not a record of a run (method is missing)"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"class_counts": [[1, 2], [3]]}, "class_counts are not those of 4 clients and 10 classes"),
        ({"class_counts": "12"}, "class_counts: expected a list, got '12'"),
        ({"class_counts": [[-1] * 10] * 4}, "class_counts[0][0]: expected a whole number ≥ 0, got -1"),
        ({"names": "abcd"}, "names: expected a list, got 'abcd'"),
        ({"names": ["a"]}, "class_counts are not those of 1 clients and 10 classes"),
        ({"title": 5}, "title: expected text, got 5"),
    ],
)
def test_settings_of_a_wrong_kind(tmp_path, change, reason):
    first, *rest = comparison(methods=2, clients=(4,), alphas=(1.0,), seeds=1)
    results = load_results([write(tmp_path / "results.jsonl", [first | change, *rest])])
    assert [damage.reason for damage in results.damaged] == [f"not a record of a setting ({reason})"]
    assert len(results.runs) == 2
    assert list(plots.draw(results, "client_mean"))


def test_resume_repeats_what_was_left_out(tmp_path):
    assert compare(*SMALL, "--out", str(tmp_path)).exit_code == 0
    path = tmp_path / "results.jsonl"
    path.write_text(path.read_text().replace('"method":"local"', '"method":5'))
    again = compare(*SMALL, "--out", str(tmp_path), "--resume")
    assert again.exit_code == 0
    assert "line 4: not a record of a run (method: expected text, got 5); left out" in again.output
    assert [run["method"] for run in records(path)] == ["centralised", "afl", 5, "local"]


def odd_names(tmp_path, name):
    """Return the path of results in which everything that has a name has this one."""
    setting, *runs = comparison(methods=3, clients=(4,), alphas=(1.0,), seeds=1, rounds=3)
    setting |= {"names": [name] * 4, "classes": [name] * 10}
    for number, run in enumerate(runs[1:]):
        run |= {"label": f"{name} {number}", "method": name, "settings": {name: name + str(number)}}
        run |= {"matrices": {name: weights([name] * 4)["aggregation weights"]}}
    return write(tmp_path / "results.jsonl", [line | {"data": name} for line in (setting, *runs)])


@pytest.mark.parametrize("name", ["$x^$", "[/b]$\\frac\x1b\x00"])
def test_any_name_can_be_shown_and_drawn(tmp_path, name):
    path = odd_names(tmp_path, name)
    for kind in ("terminal", "markdown", "latex", "csv", "html"):
        assert report(path, "--format", kind).exit_code == 0
    drawn = {
        kind.partition("-")[0]: (figure, told) for kind, figure, told in plots.draw(load_results([path]), "pooled")
    }
    for kind in ("sensitivity", "clients", "classes", "matrix"):  # a legend, ticks, and both kinds of heat maps
        ET.fromstring(plots._save_svg(drawn[kind][0], kind, drawn[kind][1]))


def test_dollars_are_drawn_as_dollars(tmp_path):
    _, figure, told = next(plots.draw(load_results([odd_names(tmp_path, "$x$")]), "client_mean"))
    with plots._matplotlib():
        svg = plots._save_svg(figure, "name", told).decode()
    assert ">$x$ 0</text>" in svg
    assert "$x$ 0: " in told


def test_a_terminal_gets_no_control_characters_from_results(tmp_path):
    path = odd_names(tmp_path, ESCAPE)
    with path.open("a") as stream:
        stream.write(json.dumps(record("x", 0.5) | {"method": [ESCAPE], "status": ESCAPE}) + "\n")
    shown = report(path)
    assert "\x1b" not in shown.output
    assert "\x07" not in shown.output
    assert r"\x1b]0;owned\x07\x1b[2J 0" in shown.output


def test_no_cell_of_a_table_is_a_formula(tmp_path):
    names = ["=HYPERLINK(1)", "+1+1", "-2+3", "@SUM(1)", "\t=1", " =1", "-5", "plain", "'=1"]
    runs = [record(name, 0.5, data="=cmd()", partition="@x") for name in names]
    path = write(tmp_path / "results.jsonl", runs)
    rows = list(csv.DictReader(io.StringIO(report(path, "--format", "csv").output)))
    assert [row["method"] for row in rows] == [
        *(f"'{name}" for name in names[:6]),
        "-5",  # a number is a number
        "plain",
        "''=1",  # one apostrophe more, so that the first one can always be taken away
    ]
    assert {(row["data"], row["partition"], row["mean"]) for row in rows} == {("'=cmd()", "'@x", "50.0000")}

"""Experiment files: allowed keys, and refusals before the first run."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fedgram as fg
from fedgram.cli import app
from fedgram.cli.options import Pace
from fedgram.core.errors import FedgramError, InvalidParameter, UnknownName
from fedgram.experiments import Experiment, read_file, runs_of
from fedgram.experiments.variants import from_options, read_variants
from support.own_method import forget_afterwards, write_method

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))


def experiment(**keys):
    return Experiment.of({"data": "digits", "methods": ["afl"], **keys})


def test_grid_has_every_combination_once():
    many = experiment(
        clients=[5, 10],
        partitions=["iid", "dirichlet:0.1", "shards:2"],
        seeds=[0, 1],
        methods=["afl", {"name": "local", "ridge": [0.1, 1]}],
    )
    runs = list(runs_of(many))
    assert len(runs) == len({run.key for run in runs}) == 2 * 3 * 2 * 4
    assert sum(run.method is None for run in runs) == 2 * 3 * 2
    assert [run.scenario.seed for run in runs] == sorted(run.scenario.seed for run in runs)


def test_backbones_are_an_axis_of_the_grid():
    many = experiment(backbone=["lite0:64", "pixels"], clients=[5, 10], seeds=[0, 1])
    runs = list(runs_of(many))
    assert len(runs) == len({run.key for run in runs}) == 2 * 2 * 2 * 2
    assert [run.scenario.backbone for run in runs[:8]] == ["lite0:64"] * 4 + ["pixels"] * 4
    assert runs[4].scenario.describe() == "digits through pixels, 5 clients, dirichlet:0.1, seed 0"
    alone = [run.key for run in runs_of(experiment(backbone="pixels", clients=5))]
    assert alone == [run.key for run in runs[4:6]]


def test_keys_depend_on_what_is_run_and_not_on_how_it_is_written():
    def keys(**about):
        return [run.key for run in runs_of(experiment(**about))]

    assert keys(methods=["afl"]) == keys(methods=[{"name": "afl", "label": "ours", "gamma": 1}])
    assert keys() == keys(clients=20, partitions="dirichlet:0.1", title="other")
    for other in (
        {"seeds": [1]},
        {"clients": 21},
        {"test_fraction": 0.3},
        {"shift": "camera:1"},
        {"methods": [{"name": "afl", "ri": False}]},
    ):
        assert keys()[1] != keys(**other)[1]


def test_keys_stay_the_same_from_version_to_version():
    # Users' results would be computed again if these changed.
    reference, afl = runs_of(experiment(methods=[{"name": "afl", "intercept": False}], centralised_intercept=False))
    assert (reference.key, afl.key) == ("5cc0844e5676b2b8", "1f2b8f317e859159")
    # With an intercept, results are others.
    reference, afl = runs_of(experiment())
    assert (reference.key, afl.key) == ("be16b4c821b5cd83", "b82bcb34daa464b6")


def test_labels_tell_variants_apart():
    entries = ["afl", {"name": "afl", "ri": False, "gamma": [1, 10.0]}, {"name": "local", "label": "alone", "ridge": 2}]
    labels = [variant.label for variant in read_variants(entries)]
    assert labels == ["afl", "afl (ri=false, gamma=1)", "afl (ri=false, gamma=10)", "alone"]


def test_labels_tell_close_values_apart():
    labels = [variant.label for variant in read_variants([{"name": "afl", "gamma": [0.1234567, 0.1234568, 2.0]}])]
    assert labels == ["afl (gamma=0.1234567)", "afl (gamma=0.1234568)", "afl (gamma=2)"]


def test_a_hyper_parameter_that_is_a_list_is_a_grid_only_as_a_list_of_lists(monkeypatch):
    @dataclass(frozen=True, kw_only=True)
    class Layered(fg.Method):
        """A method with layers."""

        hidden: tuple[int, ...] = ()

    monkeypatch.setitem(fg.registry._methods, "layered", Layered)
    one = read_variants([{"name": "layered", "hidden": [128, 64]}])
    two = read_variants([{"name": "layered", "hidden": [[128, 64], [32]]}])
    assert [variant.method.hidden for variant in (*one, *two)] == [(128, 64), (128, 64), (32,)]


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"client": 5}, UnknownName, "did you mean 'clients'"),
        ({"methods": ["afll"]}, UnknownName, "did you mean 'afl'"),
        ({"methods": [{"name": "afl", "gama": 1}]}, UnknownName, "did you mean 'gamma'"),
        ({"methods": [{"name": "afl", "gamma": "high"}]}, InvalidParameter, "gamma: expected a number"),
        ({"methods": [{"name": "afl", "gamma": [1, -1]}]}, InvalidParameter, "≥ 0, got -1"),
        ({"methods": [{"name": "afl", "gamma": []}]}, InvalidParameter, "no values"),
        ({"methods": [{"gamma": 1}]}, InvalidParameter, "a table with a name"),
        (
            {"methods": [{"name": "afl", "label": ""}]},
            InvalidParameter,
            "afl: label: expected text that is not empty",
        ),
        ({"methods": "afl"}, InvalidParameter, "methods: expected a list"),
        ({"methods": []}, InvalidParameter, "needs 'methods'"),
        ({"methods": ["afl", {"name": "afl", "gamma": 1}]}, InvalidParameter, "the same run twice"),
        ({"methods": ["afl", {"name": "local", "label": "afl"}]}, InvalidParameter, "two methods have the label 'afl'"),
        ({"methods": [{"name": "afl", "label": "centralised"}]}, InvalidParameter, "label of a reference"),
        ({"methods": [{"name": "afl", "label": "own most frequent class"}]}, InvalidParameter, "label of a reference"),
        ({"partitions": ["dirichlet:x"]}, InvalidParameter, "takes a concentration"),
        ({"partitions": ["dirichle:1"]}, UnknownName, "did you mean 'dirichlet'"),
        ({"partitions": []}, InvalidParameter, "partitions: expected at least one value"),
        ({"clients": [10, 0]}, InvalidParameter, "clients: expected a whole number ≥ 1, got 0"),
        ({"clients": [10, 10]}, InvalidParameter, "got 10 twice"),
        ({"clients": True}, InvalidParameter, "clients: expected a whole number ≥ 1, got True"),
        ({"backbone": []}, InvalidParameter, "backbone: expected at least one value"),
        (
            {"backbone": ["pixels", "pixels"]},
            InvalidParameter,
            "expected each value once, got 'pixels' twice",
        ),
        ({"backbone": ["pixels", 5]}, InvalidParameter, "backbone: expected text, got 5"),
        ({"seeds": [-1]}, InvalidParameter, "seeds: expected a whole number ≥ 0, got -1"),
        ({"seeds": 1.5}, InvalidParameter, "got 1.5"),
        ({"test": "locl"}, UnknownName, "did you mean 'local'"),
        ({"test_fraction": 1.0}, InvalidParameter, "less than 1"),
        ({"test_fraction": "half"}, InvalidParameter, "test_fraction: expected a number"),
        ({"centralised_ridge": -1}, InvalidParameter, "≥ 0"),
        ({"centralised_intercept": 1}, InvalidParameter, "true or false"),
        ({"require": "most"}, InvalidParameter, "require"),
        ({"require": float("inf")}, InvalidParameter, "got inf"),
        ({"require": float("nan")}, InvalidParameter, "got nan"),
        ({"require": 1.5}, InvalidParameter, "'all' or a whole number ≥ 1 or a number > 0 and ≤ 1, got 1.5"),
        ({"partitions": "dirichlet:0"}, InvalidParameter, "takes a number > 0, got 'dirichlet:0'"),
        ({"partitions": "dirichlet:inf"}, InvalidParameter, "takes a number > 0"),
        ({"partitions": "shards:0"}, InvalidParameter, "takes a number > 0"),
        ({"test_fraction": 0}, InvalidParameter, "nothing to test on"),
        ({"test_fraction": 0, "test": "held-out"}, InvalidParameter, "nothing to test on"),
        ({"label_column": "kind"}, InvalidParameter, "'digits' has no columns"),
        ({"client_column": "site", "data": "synthetic:1,1"}, InvalidParameter, "'synthetic:1,1' has no columns"),
        ({"methods": [{"name": "afl", "lable": "ours"}]}, UnknownName, "did you mean 'label'"),
        ({"shift": "camra:1"}, UnknownName, "did you mean 'camera'"),
        ({"shift": "camera:0"}, InvalidParameter, "a number > 0; got '0'"),
        ({"shift": 1}, InvalidParameter, "shift: expected text, got 1"),
        ({"shift": "camera:1", "test": "held-out"}, InvalidParameter, "shift needs test = 'local'"),
        ({"title": 3}, InvalidParameter, "title: expected text, got 3"),
        ({"data": 3}, InvalidParameter, "data: expected text that is not empty, got 3"),
        ({"data": ""}, InvalidParameter, "needs 'data'"),
    ],
)
def test_bad_keys_are_refused(keys, error, message):
    with pytest.raises(error) as caught:
        experiment(**keys)
    assert message in str(caught.value)


def test_what_borders_on_the_refused_is_taken():
    for require in ("all", 1, 20, 0.5, 1.0):
        assert experiment(require=require).require == require
    assert experiment(test_fraction=0, test="standard").scenarios[0].test_fraction == 0
    assert experiment(data="my.csv", label_column="kind").scenarios[0].label_column == "kind"


def test_a_file_with_a_byte_order_mark(tmp_path):
    (tmp_path / "one.toml").write_bytes(b'\xef\xbb\xbfdata = "digits"\r\n')
    assert read_file(tmp_path / "one.toml") == {"title": "one", "data": "digits"}


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "bad.toml").write_text("data = ")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    for name, message in (
        ("bad.toml", "not a TOML file"),
        ("binary.toml", "not a TOML file"),
        ("no.toml", "cannot read"),
    ):
        with pytest.raises(FedgramError, match=message):
            read_file(tmp_path / name)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_valid(path, monkeypatch):
    monkeypatch.chdir(EXAMPLES[0].parents[1])  # examples name files as seen from there
    assert list(runs_of(Experiment.of(read_file(path))))


def test_examples_are_there():
    assert {"digits", "afl-client-number", "afl-heterogeneity", "afl-ablation"} <= {path.stem for path in EXAMPLES}


@pytest.mark.usefixtures("made_up_methods")
def test_options_become_grids():
    assert from_options(["afl", "gradual"], ["afl.ri=false", "gradual.rate=0.1,0.2"]) == [
        {"name": "afl", "ri": False},
        {"name": "gradual", "rate": [0.1, 0.2]},
    ]
    for bad in ("gamma=1", "local.ridge=1", "afl.gamma"):
        with pytest.raises(InvalidParameter, match="METHOD.PARAMETER=VALUE"):
            from_options(["afl"], [bad])


def test_dry_run_prints_the_runs_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--data", "digits", "--clients", "5,10", "--partition", "iid", "--methods", "afl", "--seeds", "0,1"]
    result = CliRunner().invoke(app, ["compare", *options, "--set", "afl.gamma=1,2", "--dry-run"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[-2:] == [
        "12 runs, 4 of them the centralised reference",
        f"time: unknown, since no run is finished in {Path('results', 'compare', 'results.jsonl')}",
    ]
    assert "digits, 5 clients, iid, seed 0  afl (gamma=2): gamma=2, ri=true" in lines[2]
    assert not list(tmp_path.iterdir())


def test_dry_run_tells_the_time_by_finished_runs_of_the_same_methods(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--data", "digits", "--samples", "200", "--clients", "3", "--partition", "iid", "--out", "o"]
    assert CliRunner().invoke(app, ["compare", *options, "--methods", "afl"]).exit_code == 0
    path = tmp_path / "o" / "results.jsonl"
    # As if centralised had taken a minute, and afl an hour.
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["total_seconds"] = 3600.0 if line.get("method") == "afl" else 60.0
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    told = CliRunner().invoke(app, ["compare", *options, "--methods", "afl,local", "--seeds", "0,1,2", "--dry-run"])
    assert told.output.splitlines()[-1] == (
        f"2 of 9 runs are finished in {Path('o', 'results.jsonl')}; 4 more take about 2 h 2 min, as those of the same "
        "methods did; the time of 3 is unknown: none of local is finished"
    )


def test_the_time_of_a_method_is_that_of_its_own_setting_if_another_seed_is_finished():
    runs = list(runs_of(Experiment.of({"data": "digits", "clients": [5, 50], "methods": ["afl"], "seeds": [0, 1]})))
    pace = Pace()
    small, large = (next(run for run in runs if run.scenario.clients == n and run.label == "afl") for n in (5, 50))
    pace.add(small, 1.0)
    pace.add(large, 10.0)
    for run in runs:
        if run.label == "afl":
            assert pace.of(run) == {5: 1.0, 50: 10.0}[run.scenario.clients]
        else:
            assert np.isnan(pace.of(run))
    assert pace.mean == 5.5


def test_options_take_precedence_over_the_file(tmp_path):
    file = tmp_path / "one.toml"
    file.write_text('data = "digits"\nmethods = ["afl", "local"]\nclients = [5, 10]\nseeds = [0, 1, 2]\n')
    result = CliRunner().invoke(app, ["compare", str(file), "--seeds", "7", "--clients", "3", "--dry-run"])
    assert "3 runs" in result.output
    assert "3 clients, dirichlet:0.1, seed 7" in result.output


LINES = """
data = "digits"
methods = ["fedgram", {name = "local", label = "own", ridge = 2}, {name = "local", ridge = [3, 4]}, {name = "apfl"}]
"""


def chosen(tmp_path, *options):
    """Return the methods that `fedgram compare FILE` would run, each with its label and settings."""
    file = tmp_path / "lines.toml"
    file.write_text(LINES)
    result = CliRunner().invoke(app, ["compare", str(file), *options, "--dry-run"])
    assert result.exit_code == 0, result.output
    return [line.split("seed 0  ")[1] for line in result.output.splitlines()[1:-2]]


def test_methods_chosen_from_a_file_keep_their_settings(tmp_path):
    every = chosen(tmp_path)
    assert [line.split(":")[0] for line in every] == ["fedgram", "own", "local (ridge=3)", "local (ridge=4)", "apfl"]
    assert chosen(tmp_path, "--methods", "local") == every[1:4]
    assert chosen(tmp_path, "--methods", "apfl,fedgram") == [every[4], every[0]]


def test_a_method_that_the_file_does_not_name_has_its_defaults(tmp_path):
    fedgram = chosen(tmp_path)[0]
    assert chosen(tmp_path, "--methods", "afl,fedgram") == ["afl: gamma=1, ri=true, intercept=true", fedgram]


def test_set_changes_the_lines_of_the_file_and_their_labels(tmp_path):
    assert chosen(tmp_path, "--methods", "local", "--set", "local.intercept=false") == [
        "own (intercept=false): ridge=2, intercept=false",
        "local (ridge=3, intercept=false): ridge=3, intercept=false",
        "local (ridge=4, intercept=false): ridge=4, intercept=false",
    ]


def test_a_method_of_ones_own_is_found_in_the_file_by_any_of_its_names(tmp_path, monkeypatch):
    forget_afterwards(monkeypatch)
    path = write_method(tmp_path / "mean.py")
    line = {"name": path, "ridge": 2}
    assert from_options([f"{path}:Average"], [], ["afl", line]) == from_options(["average"], [], [line]) == [line]


def test_methods_of_a_file_that_are_no_list_are_refused(tmp_path):
    file = tmp_path / "text.toml"
    file.write_text('data = "digits"\nmethods = "afl"\n')
    result = CliRunner().invoke(app, ["compare", str(file), "--methods", "afl", "--dry-run"])
    assert isinstance(result.exception, InvalidParameter)
    assert "methods: expected a list" in str(result.exception)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "afl.gamma=1"], "--set needs --methods"),
        (["--data", "digits"], "needs 'methods'"),
        (["--data", "digits", "--methods", "afl,afl"], "--methods has 'afl' twice"),
        (["--data", "digits", "--methods", "afl", "--clients", "many"], "--clients takes whole numbers"),
    ],
)
def test_bad_options_are_refused(options, message):
    result = CliRunner().invoke(app, ["compare", *options])
    assert isinstance(result.exception, FedgramError)
    assert message in str(result.exception)

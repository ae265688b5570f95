"""Numeric outcomes in runs and comparisons: recorded, refused where classes are needed, never mixed with classes."""

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

import fedgram as fg
from fedgram.core.errors import InvalidParameter, JournalError, Mismatch
from fedgram.experiments import Experiment, Loader, Run, Scenario, execute, finished, runs_of
from fedgram.experiments.results import load_results
from support.gradual import Nobody

STUDY = """
[study]
name = "costs"
outcome = {outcome}
minimum_samples = 0
minimum_cell = 0
[columns.age]
kind = "number"
range = [0, 120]
[columns.sex]
kind = "category"
values = ["F", "M"]
[columns.cost]
kind = "number"
unit = "EUR"
range = [0, 6000]
[columns.stay]
kind = "number"
range = [-50, 50]
[columns.hospital]
kind = "ignore"
"""


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["age,sex,cost,stay,hospital"]
    for k in range(240):
        age, sex = rng.integers(20, 90), "FM"[k % 2]
        cost = 1000 + 30 * age + 200 * (sex == "M") + rng.normal(0, 150)
        lines.append(f"{age},{sex},{cost:.3f},{age / 10 + rng.normal():.3f},{'abc'[k % 3]}")
    path = tmp_path / "costs.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(
        STUDY.format(outcome='"cost"').replace(
            '[columns.stay]\nkind = "number"\nrange = [-50, 50]', '[columns.stay]\nkind = "ignore"'
        )
    )
    return path


@pytest.fixture
def scenario(table, study):
    return Scenario(data=str(table), client_column="hospital", study=str(study))


def rows(table):
    """Return the columns age, male and cost by line of the table."""
    cells = [line.split(",") for line in table.read_text().splitlines()[1:]]
    return np.array([[float(age), float(sex == "M"), float(cost)] for age, sex, cost, *_ in cells])


def test_the_reference_and_afl_are_least_squares_on_the_pooled_table(scenario, table, tmp_path):
    prepared = scenario.prepare()
    known = {tuple(row): place for place, row in enumerate(prepared.data.x)}
    train, test = (
        np.concatenate([[known[tuple(row)] for row in getattr(client, part)] for client in prepared.clients])
        for part in ("x", "x_test")
    )
    values = rows(table)
    model = LinearRegression().fit(values[train, :2], values[train, 2])
    truth, found = values[test, 2], model.predict(values[test, :2])
    outcome = execute(
        [Run(scenario, "centralised", None), Run(scenario, "afl", fg.AFL(intercept=True))],
        tmp_path / "results.jsonl",
        watcher=Nobody(),
    )
    assert not outcome.failed
    for line in (tmp_path / "results.jsonl").read_text().splitlines()[1:]:
        record = json.loads(line)
        assert record["outcomes"] == {"cost": "EUR"}
        errors = record["errors"]["cost"]
        assert errors["rmse"] == pytest.approx(root_mean_squared_error(truth, found), rel=1e-9)
        assert errors["mae"] == pytest.approx(mean_absolute_error(truth, found), rel=1e-9)
        assert errors["r2"] == pytest.approx(r2_score(truth, found), rel=1e-9)
        assert sum(record["error_sums"]["cost"]["squared"]) == pytest.approx(((truth - found) ** 2).sum(), rel=1e-9)
        assert record["accuracy"] is None


def test_what_is_written_is_read(scenario, tmp_path):
    execute([Run(scenario, "afl", fg.AFL())], tmp_path / "results.jsonl", watcher=Nobody())
    found = load_results([tmp_path / "results.jsonl"])
    [run], [spread] = found.runs, found.spreads
    assert run.is_numeric
    assert spread.is_numeric
    clients = run.judged.clients["cost"]
    assert [errors.n for errors in clients] == list(run.tested)
    assert sum(clients[1:], start=clients[0]).rmse == pytest.approx(run.judged.errors["cost"]["rmse"])
    assert run.judged.validation.names == ["a", "b", "c"]


@pytest.mark.parametrize("test", ["held-out", "local"])
def test_several_outcomes_and_a_common_test_set(scenario, study, test):
    study.write_text(STUDY.format(outcome='["cost", "stay"]'))
    prepared = replace(scenario, test=test, partition="iid", clients=4).prepare()
    scored = prepared.score(prepared.fit(fg.FedGram()))
    assert scored.pooled.keys() == {"cost", "stay"}
    assert scored.pooled["cost"].n == 48
    assert prepared.units == {"cost": "EUR", "stay": ""}
    assert 100 < scored.pooled["cost"].rmse < 220
    assert 0.7 < scored.pooled["stay"].rmse < 1.4
    reference = prepared.centralised(0.0, intercept=True)
    assert reference.pooled["cost"].rmse == pytest.approx(scored.pooled["cost"].rmse, rel=0.2)


def test_a_number_in_a_table_without_a_study_is_predicted(table):
    scenario = Scenario(data=str(table), label_column="cost", client_column="hospital")
    assert scenario.outcomes(Loader()) == ("cost",)
    prepared = scenario.prepare()
    assert prepared.score(prepared.fit(fg.AFL())).pooled["cost"].r2 > 0.8


def test_methods_that_need_classes_are_refused_by_name_before_anything_runs(scenario, table, study):
    with pytest.raises(InvalidParameter, match="fedlogit needs classes, and the outcome 'cost' is a number"):
        Run(scenario, "fedlogit", fg.FedLogit()).resolve()
    keys = {"data": str(table), "study": str(study), "client_column": "hospital", "methods": ["afl", "fedavg"]}
    with pytest.raises(InvalidParameter, match="fedavg needs classes"):
        list(runs_of(Experiment.of(keys)))


def test_classes_and_numbers_do_not_go_into_one_experiment(table, tmp_path):
    other = tmp_path / "ill.csv"
    other.write_text("x,y,cost\n" + "".join(f"{k},{'ab'[k % 2]},{'well' if k % 3 else 'ill'}\n" for k in range(40)))
    with pytest.raises(
        InvalidParameter, match=r"all classes or all numbers.*costs.csv has numbers, .*ill.csv has classes"
    ):
        Experiment.of({"data": [str(table), str(other)], "label_column": "cost", "methods": ["afl"]}).resolve()


def test_classes_and_numbers_do_not_go_into_one_file(scenario, tmp_path):
    path, digits = tmp_path / "results.jsonl", Scenario(data="digits", clients=3, partition="iid", samples=90)
    execute([Run(scenario, "afl", fg.AFL())], path, watcher=Nobody())
    done, _ = finished(path)
    with pytest.raises(Mismatch, match="has results for numeric outcomes, and digits has classes.*--out"):
        execute([Run(digits, "local", fg.Local())], path, done=done, watcher=Nobody())
    other = tmp_path / "other.jsonl"
    execute([Run(digits, "local", fg.Local())], other, watcher=Nobody())
    with pytest.raises(JournalError, match="some of these results are for classes and some for numeric outcomes"):
        load_results([path, other])

"""Tables are run under a study, given or drafted: texts, dates, identifiers, missing values and complete numbers."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import fedgram as fg
from fedgram.cli import app
from fedgram.core.errors import BadSamples, Doubtful, InvalidData, InvalidParameter, UnknownName
from fedgram.experiments import Experiment, Run, Scenario
from fedgram.studies import Study
from fedgram.studies.drafting import draft
from fedgram.studies.encoding import read_client
from fedgram.studies.loading import StudyDataset
from support.runner import records

HEADER = "patient_id,admitted,age,weight,sex,diagnosis,hospital"
OPTIONS = ["--label", "diagnosis", "--client-column", "hospital"]


def fedgram(*options):
    return CliRunner().invoke(app, list(map(str, options)))


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    for k in range(n):
        age, ill = rng.integers(20, 90), rng.random() < 0.5
        weight = "" if rng.random() < 0.2 else f"{60 + 40 * ill + rng.normal(0, 8):.1f}"
        sex = rng.choice(["F", "M"])
        yield f"W{1000 + k},2026-01-{1 + k % 28:02},{age},{weight},{sex},{'ill' if ill else 'well'},{'abc'[k % 3]}"


@pytest.fixture
def mixed(tmp_path):
    path = tmp_path / "patients.csv"
    path.write_text("\n".join([HEADER, *rows(150)]) + "\n")
    return path


@pytest.fixture
def agreed(tmp_path, mixed):
    path = tmp_path / "study.toml"
    path.write_text(draft(mixed, "diagnosis", ignore=("hospital",)).text)
    return path


def test_the_command_of_the_readme_works_on_a_real_table(mixed):
    done = fedgram("run", "--data", mixed, *OPTIONS)
    assert done.exit_code == 0, done.output
    used = "numbers: age, weight; categories: sex; ignored: patient_id, admitted, hospital"
    assert f"study drafted from the table: outcome: diagnosis (ill, well); {used}" in done.stderr
    record = json.loads(fedgram("run", "--data", mixed, *OPTIONS, "--json").stdout)
    assert record["clients"] == 3
    assert record["accuracy"]["pooled"] > 0.8


def test_a_comparison_has_the_same_study(tmp_path, mixed):
    done = fedgram("compare", "--data", mixed, *OPTIONS, "--methods", "afl,fedgram", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "study drafted from the table: outcome: diagnosis (ill, well)" in done.stderr
    reference, afl, _ = records(tmp_path / "out" / "results.jsonl")
    alone = json.loads(fedgram("run", "--data", mixed, *OPTIONS, "--json").stdout)
    assert afl["correct"] == alone["correct"] == reference["correct"], "AFL without a ridge is pooled least squares"
    assert afl["key"] == alone["key"]


def test_numbers_without_gaps_have_a_study_too(tmp_path):
    path = tmp_path / "numbers.csv"
    path.write_text("a,b,label\n" + "".join(f"{k % 7},{k % 5},{k % 2}\n" for k in range(40)))
    prepared = Scenario(data=str(path), clients=2, partition="iid").prepare()
    assert prepared.study.sent == prepared.data.columns == ("a", "b")
    path.write_text(path.read_text() + "1,,0\n")
    assert Scenario(data=str(path), clients=2, partition="iid").prepare().study.sent == ("a", "b", "b missing")


def test_settings_of_studies_leave_the_keys_of_other_runs(tmp_path):
    run = Run(Scenario(data="digits", clients=10, partition="iid"), "afl", fg.AFL())
    assert run.key == "53919b51d22f0b5f", "as it was before there were studies"
    other = replace(run, scenario=replace(run.scenario, data=str(tmp_path / "t.csv"), study="study.toml"))
    assert other.key != replace(other, scenario=replace(other.scenario, study=None)).key


def test_an_agreed_study_from_one_file_and_from_a_file_for_each_party(tmp_path, mixed, agreed):
    lines = mixed.read_text().splitlines()[1:]
    for name in "abc":
        own = [line.rpartition(",")[0] for line in lines if line.endswith(name)]
        # Another order of the columns is the same table.
        turned = [",".join(reversed(line.split(","))) for line in [HEADER.rpartition(",")[0], *own]]
        (tmp_path / f"{name}.csv").write_text("\n".join(turned) + "\n")
    one = Scenario(data=str(mixed), client_column="hospital", study=str(agreed)).prepare()
    many = Scenario(data=",".join(str(tmp_path / f"{name}.csv") for name in "abc"), study=str(agreed)).prepare()
    assert one.names == many.names == ["a", "b", "c"]
    for left, right in zip(one.clients, many.clients, strict=True):
        np.testing.assert_array_equal(left.x, right.x)
        np.testing.assert_array_equal(left.y_test, right.y_test)
    direct = read_client(Study.read(agreed), "a", tmp_path / "a.csv")
    assert len(direct.x) == len(many.clients[0].x) + len(many.clients[0].x_test)


def test_whoever_is_no_party_is_refused_by_name(mixed, agreed):
    agreed.write_text(agreed.read_text().replace("parties = []", 'parties = ["a", "b", "north"]'))
    with pytest.raises(UnknownName, match="unknown party of study 'my-study' 'c': known: a, b, north"):
        Scenario(data=str(mixed), client_column="hospital", study=str(agreed)).prepare()


def test_a_study_file_that_changes_changes_the_data(mixed, agreed):
    scenario = Scenario(data=str(mixed), client_column="hospital", study=str(agreed))
    before = scenario.prepare().fingerprint
    agreed.write_text(agreed.read_text().replace('name = "my-study"', 'name = "another-study"'))
    assert scenario.prepare().fingerprint != before


def test_columns_are_chosen_and_dropped(mixed, agreed):
    def sent(**settings):
        return Scenario(data=str(mixed), client_column="hospital", **settings).prepare().study.sent

    assert sent(label_column="diagnosis", columns="age,sex") == ("age", "sex=M")
    assert sent(label_column="diagnosis", drop="age,weight") == ("sex=M",)
    assert sent(study=str(agreed), drop="weight") == ("age", "sex=M")
    assert sent(study=str(agreed), columns="weight") == ("weight", "weight missing")


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"label_column": "diagnosis", "drop": "wieght"}, UnknownName, "did you mean 'weight'"),
        ({"label_column": "diagnosis", "columns": "admitted"}, InvalidData, "'admitted' cannot be used .dates"),
        ({"label_column": "diagnosis", "columns": "patient_id"}, InvalidData, "150 different texts"),
        ({"study": "STUDY", "columns": "patient_id"}, InvalidParameter, "ignores column 'patient_id'"),
        ({"study": "STUDY", "drop": "height"}, UnknownName, "'height'"),
        ({"study": "STUDY", "label_column": "sex"}, InvalidParameter, "outcome of study 'my-study' is diagnosis"),
        ({"study": "nowhere.toml"}, InvalidData, "cannot read nowhere.toml"),
        ({"label_column": "diagnosis", "test": "held-out", "test_data": "t.csv"}, InvalidParameter, "leave one out"),
        ({"label_column": "diagnosis", "test_data": "nowhere.csv"}, InvalidData, "nowhere.csv.: there is no such file"),
        ({"label_column": "weight"}, InvalidData, "column 'weight' must not be empty"),
    ],
)
def test_what_does_not_go_together_is_refused(mixed, agreed, settings, kind, words):
    given = {key: str(agreed) if value == "STUDY" else value for key, value in settings.items()}
    with pytest.raises(kind, match=words):
        Scenario(data=str(mixed), client_column="hospital", **given).prepare()


def test_several_files_need_a_study_and_names(tmp_path, mixed, agreed):
    both = f"{mixed},{mixed}"
    with pytest.raises(InvalidParameter, match="fedgram study new"):
        Scenario(data=both).prepare()
    with pytest.raises(InvalidParameter, match="a name of its own"):
        Scenario(data=both, study=str(agreed)).prepare()
    with pytest.raises(InvalidParameter, match="each table is one party's already"):
        Scenario(data=both, study=str(agreed), client_column="hospital").prepare()
    with pytest.raises(InvalidParameter, match="data set 'digits' has no columns"):
        Scenario(data="digits", study=str(agreed))


def test_values_that_look_alike_are_warned_of_once(mixed):
    mixed.write_text(mixed.read_text() + "W1,2026-01-01,50,70,f,Ill,a\n")
    for settings in ({}, {"drop": "age"}):
        with pytest.warns(Doubtful) as heard:
            Scenario(data=str(mixed), label_column="diagnosis", client_column="hospital", **settings).prepare()
        assert sorted(str(warning.message)[:13] for warning in heard) == ["'F' and 'f' i", "'Ill' and 'il"]


def test_decimal_commas_are_not_ignored_as_texts(tmp_path):
    path = tmp_path / "commas.csv"
    path.write_text("a;b;label\n" + "".join(f"{k},5;{k};{k % 2}\n" for k in range(50)))
    with pytest.raises(InvalidData, match="column 'a': expected numbers with a decimal point, got 0,5 .* --decimal ,"):
        Scenario(data=str(path)).prepare()


def test_a_column_named_client_needs_no_option(mixed, agreed):
    mixed.write_text(mixed.read_text().replace("hospital", "client", 1))
    agreed.write_text(agreed.read_text().replace("hospital", "client", 1))
    for settings in ({"label_column": "diagnosis"}, {"study": str(agreed)}):
        assert Scenario(data=str(mixed), **settings).prepare().names == ["a", "b", "c"]


def test_some_of_the_samples_and_other_partitions(mixed):
    prepared = Scenario(data=str(mixed), label_column="diagnosis", samples=90, clients=4, partition="iid").prepare()
    assert sum(len(client.x) + len(client.x_test) for client in prepared.clients) == 90
    assert prepared.fit(fg.FedGram()).contributors == tuple(prepared.names)


def test_parquet_drafts_the_same_study(mixed):
    arrow_csv, parquet = (pytest.importorskip(f"pyarrow.{name}") for name in ("csv", "parquet"))
    parquet.write_table(arrow_csv.read_csv(mixed), mixed.with_suffix(".parquet"))
    one, other = (
        Scenario(data=str(path), label_column="diagnosis", client_column="hospital").prepare()
        for path in (mixed, mixed.with_suffix(".parquet"))
    )
    assert one.study == other.study
    np.testing.assert_array_equal(one.data.x, other.data.x)


def test_rows_that_are_really_bad_are_refused_by_line_or_skipped(mixed):
    mixed.write_text(mixed.read_text() + "W1,2026-01-01,many,70,F,ill,a\n")
    scenario = Scenario(data=str(mixed), label_column="diagnosis", client_column="hospital")
    with pytest.raises(BadSamples, match="1 bad row in .*line 152: column 'age' must hold numbers"):
        scenario.prepare()
    with pytest.warns(UserWarning, match="skipped 1 bad row"):
        prepared = replace(scenario, on_bad="skip").prepare()
    assert isinstance(prepared.data, StudyDataset)
    assert len(prepared.data) == 150


def test_test_samples_from_a_file_of_their_own(tmp_path, mixed, agreed):
    test = tmp_path / "test.csv"
    test.write_text("\n".join([HEADER, *rows(30, seed=1)]) + "\n")
    scenario = Scenario(data=str(mixed), client_column="hospital", study=str(agreed), test_data=str(test))
    assert scenario.test == "standard"
    prepared = scenario.prepare()
    assert [(len(client.x), len(client.x_test)) for client in prepared.clients] == [(50, 10)] * 3
    experiment = Experiment.of(
        {
            "data": str(mixed),
            "client_column": "hospital",
            "study": str(agreed),
            "test_data": str(test),
            "methods": ["afl"],
        }
    )
    assert experiment.scenarios == (scenario,)
    shared = replace(scenario, partition="iid", clients=4).prepare()
    assert not shared.tested_by_clients
    assert sum(shared.score(shared.fit(fg.AFL())).tested.values()) == 30

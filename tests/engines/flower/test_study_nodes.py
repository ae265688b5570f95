"""Deployed nodes under a study: the runs they take part in, their use of tables, and their disclosures.

The nodes are in this process; test_federation.py has a study with real ones.
"""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Message
from flwr.common.serde import message_to_proto
from typer.testing import CliRunner

import fedgram as fg
from fedgram.cli import app
from fedgram.core import wire
from fedgram.core.errors import Skipped
from fedgram.core.hashing import readable
from fedgram.engines.flower import flower_messages
from fedgram.engines.flower.app import _party
from fedgram.engines.flower.node import MODEL_FILE
from fedgram.engines.flower.project import write_app
from fedgram.protocol.fit import load, load_model
from fedgram.studies import Study
from fedgram.studies.encoding import read_client
from fedgram.studies.study import named
from support.flower_grid import LocalGrid
from support.hospitals import pooled_correct, program
from support.patients import RUN, STUDY, TEXT, config_of, rows, write_table


@pytest.fixture
def nodes(tmp_path):
    """Two nodes whose columns come in another order, and their own copies of the study."""
    made = []
    for k, name in enumerate(STUDY.parties):
        (tmp_path / name).mkdir()
        columns = ["diagnosis", "sex", "age", "patient_id"] if k else None
        (tmp_path / name / "study.toml").write_text(f"# {name}'s copy\n{TEXT}")
        made.append({
            "name": name, "data": write_table(tmp_path / name / "patients.csv", rows(60, k), columns),
            "test-data": write_table(tmp_path / name / "test.csv", rows(30, 10 + k), columns),
            "study": str(tmp_path / name / "study.toml"), "folder": str(tmp_path / name / "models"),
        })  # fmt: skip
    return made


WITHOUT = {"study": "", "study-fingerprint": ""}


def party(node, **run):
    return _party(None, LocalGrid([node], RUN | run).context(1, node))


def hello(node, **run):
    """Return the node's reply to the first step of a run."""
    grid = LocalGrid([node], RUN | run)
    request = {"round": 0, "seed": 0, "step": "hello", "classes": STUDY.classes, "payload": None}
    grid.push_messages([Message(flower_messages.letter(wire.encode(request)), 1, flower_messages.STEP)])
    return grid.seen[-1]


@pytest.mark.filterwarnings("ignore:with two contributors:fedgram.core.errors.Revealing")
def test_a_run_equals_one_process(nodes, tmp_path):
    """The whole way: the app that `flower new` writes, tables of the nodes, and models that predict from tables."""
    (tmp_path / "study.toml").write_text(TEXT)
    done = CliRunner().invoke(app, ["flower", "new", str(tmp_path / "app"), "--study", str(tmp_path / "study.toml")])
    assert done.exit_code == 0, done.output
    LocalGrid(nodes, config_of(tmp_path / "app") | {"out": str(tmp_path / "out")}).serve()
    report = json.loads((tmp_path / "out" / "7" / "report.json").read_text())
    tested = [read_client(STUDY, "test", node["test-data"]) for node in nodes]
    clients = [
        replace(read_client(STUDY, node["name"], node["data"]), x_test=test.x, y_test=test.y)
        for node, test in zip(nodes, tested, strict=True)
    ]
    here = fg.FedGram().fit(clients, study=STUDY, classes=STUDY.classes)
    assert report["contributors"] == ["north", "south"]
    assert report["method"] == "fedgram"
    assert report["accuracy"] == here.evaluation.summary()
    there = load(tmp_path / "out" / "7" / "fit.safetensors")
    np.testing.assert_allclose(there.model.weights, here.model.weights, rtol=1e-9)
    own = load_model(tmp_path / "north" / "models" / MODEL_FILE)
    assert own.study == STUDY
    want = here.predictor("north").predict_proba(nodes[0]["test-data"])
    np.testing.assert_allclose(own.predict_proba(nodes[0]["test-data"]), want, rtol=1e-9)


def test_three_hospitals_get_the_pooled_figures(tmp_path, caplog):
    """The example, on the same test patients as in one process and in the simulation."""
    pytest.importorskip("sklearn", reason="the patients come with scikit-learn")
    example = program()
    example.make(tmp_path)
    hospitals = [
        {
            "name": name, "data": str(tmp_path / f"{name}.csv"), "test-data": str(tmp_path / f"{name}-test.csv"),
            "study": str(tmp_path / "study.toml"), "folder": str(tmp_path / name),
        }
        for name in example.HOSPITALS
    ]  # fmt: skip
    config = config_of(write_app(tmp_path / "app", "afl", {}, study=tmp_path / "study.toml"))
    LocalGrid(hospitals, config | {"out": str(tmp_path / "out")}).serve()
    fit = load(tmp_path / "out" / "7" / "fit.safetensors")
    assert fit.evaluation.correct == pooled_correct(example, tmp_path)
    assert caplog.text.count("'east' sends sums of 12 samples in 12 columns") == 1


def test_numeric_outcomes_take_the_same_way(nodes, tmp_path):
    text = TEXT.replace('outcome = "diagnosis"', 'outcome = "age"').replace('classes = ["ill", "well"]\n', "")
    text = text.replace('missing = "mean"\n', "") + '[columns.diagnosis]\nkind = "category"\nvalues = ["ill", "well"]\n'
    study = Study.parse(text)
    for k, node in enumerate(nodes):
        (tmp_path / node["name"] / "study.toml").write_text(text)
        cells = rows(60, k)
        cells["age"] = np.where(cells["age"] == "NA", "33", cells["age"])
        write_table(tmp_path / node["name"] / "patients.csv", cells)
        del node["test-data"]
    run = {"study": text, "study-fingerprint": study.fingerprint, "method": "afl", "out": str(tmp_path / "out")}
    LocalGrid(nodes, run).serve()
    report = json.loads((tmp_path / "out" / "7" / "report.json").read_text())
    clients = [_party(None, LocalGrid([node], run).context(1, node)).client for node in nodes]
    assert report["errors"] == fg.AFL().fit(clients, study=study).evaluation.summary()


def test_what_is_held_back_is_the_nodes_choice_and_the_same_in_every_run(nodes):
    # Half of them: a tenth might be too few of a class to be tested with, since the node's key is drawn anew.
    node = {key: value for key, value in nodes[0].items() if key != "test-data"} | {"test-fraction": 0.5}
    first = party(node).client
    assert 10 < len(first.x) < 50
    assert len(first.x) + len(first.x_test) == 60
    for run in ({"seed": 5}, {"method": "afl"}, {"minimum-samples": 3}):
        assert np.array_equal(party(node, **run).client.x, first.x)


def test_a_run_of_another_study_is_refused(nodes):
    """Also a run whose study differs only in the encoding of an age, and a run without a study."""
    other = Study.parse(TEXT.replace("[0, 120]", "[0, 121]"))
    reply = hello(nodes[0], **{"study-fingerprint": other.fingerprint})
    assert reply.error.reason == (
        f"study: the run is of study {readable(other.fingerprint)}, and study {named(STUDY)} is expected: this node "
        "has agreed to the latter; agree on one file, and write the app anew with it"
    )
    reply = hello(nodes[0], **WITHOUT)
    assert "the run is of study none, and study" in reply.error.reason


def test_a_node_without_a_study_takes_no_part_in_one(nodes):
    """A run that could choose the study would choose the rows."""
    reply = hello({key: value for key, value in nodes[0].items() if key != "study"})
    assert "this node has not agreed to a study" in reply.error.reason


def test_a_node_uses_its_own_words_and_refuses_a_run_that_says_others(nodes):
    """The node's own file counts; a run whose study does not match its fingerprint is refused."""
    assert party(nodes[0], study=TEXT + "# a comment\n").study == STUDY
    reply = hello(nodes[0], study=TEXT.replace("[0, 120]", "[55, 56]"))
    assert "study-fingerprint is of study" in reply.error.reason


def test_a_stranger_is_no_party(nodes):
    assert "unknown party of the study 'west'" in hello(nodes[0] | {"name": "west"}).error.reason


@pytest.mark.parametrize(
    ("own", "run", "rule"),
    [
        ({"minimum-samples": 61}, {}, "minimum-samples"),
        ({}, {"minimum-samples": 61}, "minimum-samples"),
        ({"minimum-cell": 31}, {}, "minimum-cell"),
        ({"minimum-samples": 60, "minimum-cell": 30}, {}, None),
        ({"minimum-samples": 0, "minimum-cell": 0}, {}, None),
    ],
)
def test_the_strictest_threshold_counts(nodes, own, run, rule):
    reply = hello(nodes[0] | own, **run)
    assert reply.has_error() == (rule is not None)
    if rule is not None:
        assert rule in reply.error.reason
        assert not any(figure in reply.error.reason for figure in "0123456789")


@pytest.mark.parametrize(
    ("n", "ill", "refused"), [(11, 0.5, True), (12, 0.5, False), (40, 0.05, True), (40, 0.0, False)]
)
def test_the_study_is_as_strict_as_it_says_where_the_node_asks_for_less(nodes, tmp_path, n, ill, refused):
    """A class that the party lacks altogether is allowed."""
    write_table(tmp_path / "north" / "patients.csv", rows(n, 0, ill=ill))
    lax = nodes[0] | {"minimum-samples": 0, "minimum-cell": 0, "test-data": "", "test-fraction": 0}
    assert hello(lax).has_error() == refused


SECRETS = ("W1000", "131.25", "Fem", "flue", "patients.csv", "north/")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"age": "131.25"}, "bad rows: column 'age' must be from 0 to 120 years"),
        ({"age": "W1000"}, "bad rows: column 'age' must hold numbers"),
        ({"sex": "Fem"}, "bad rows: column 'sex' must be one of 'F', 'M'"),
        ({"sex": ""}, "bad rows: column 'sex' must not be empty"),
        ({"diagnosis": "flue"}, "bad rows: outcome 'diagnosis' must be one of 'ill', 'well'"),
    ],
)
def test_errors_name_column_and_rule_and_no_cell(nodes, tmp_path, change, told, caplog):
    cells = rows(60, 0)
    for column, value in change.items():
        cells[column] = [value, *cells[column][1:]]
    write_table(tmp_path / "north" / "patients.csv", cells)
    with caplog.at_level(logging.ERROR, logger="flwr"):
        reply = hello(nodes[0])
    left = message_to_proto(reply).SerializeToString().decode(errors="replace")
    assert told in left
    assert not [secret for secret in SECRETS if secret in left]
    assert str(tmp_path) not in left
    assert "line 2" in caplog.text, "the node's own log has all of it"
    assert not hello(nodes[0] | {"on-bad": "skip"}).has_error()


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"label": "diagnosis"}, "remove label"),
        ({"backbone": "pixels"}, "remove backbone"),
        ({"data": "nowhere.csv"}, "data: there is no such file or folder"),
        ({"data": "digits"}, "InvalidParameter: an option given here cannot be used"),
        ({"study": "nowhere.toml"}, "study: the node's own study file cannot be used"),
        ({"on-bad": "drop"}, "InvalidParameter: an option given here cannot be used"),
    ],
)
def test_node_configurations_that_do_not_go_with_a_study(nodes, config, told):
    assert told in hello(nodes[0] | config).error.reason


def test_several_tables_are_refused(nodes):
    data = ",".join(node["data"] for node in nodes)
    assert "data: under a study a node has one table" in hello(nodes[0] | {"data": data}).error.reason


def test_test_data_needs_a_study(nodes):
    node = {key: value for key, value in nodes[0].items() if key != "study"}
    reply = hello(node, **WITHOUT)
    assert reply.error.reason == "node-config: test-data is for nodes under a study: remove it"


def test_a_node_with_few_samples_reads_in_its_log_what_it_reveals(nodes, tmp_path, caplog):
    """With and without a study; the server gets no notice of it."""
    limits = "minimum_cell = 3\nmaximum_columns_per_row = 0"
    wide = TEXT.replace("minimum_cell = 3", limits) + "".join(f'[columns.c{k}]\nkind = "number"\n' for k in range(14))
    (tmp_path / "north" / "study.toml").write_text(wide)
    cells = rows(14, 0) | {f"c{k}": [str(k * j % 7) for j in range(14)] for k in range(14)}
    write_table(tmp_path / "north" / "patients.csv", cells)
    del nodes[0]["test-data"]
    run = {"study": wide, "study-fingerprint": Study.parse(wide).fingerprint}
    reply = hello(nodes[0] | {"test-fraction": 0}, **run)
    assert not reply.has_error()
    assert caplog.text.count("'north' sends sums of 14 samples in 17 columns") == 1
    assert "merge with another site before anything is sent" in caplog.text
    caplog.clear()
    np.savez(tmp_path / "north" / "plain.npz", x=np.eye(14), y=np.arange(14) % 2)
    plain = {"name": "north", "data": str(tmp_path / "north" / "plain.npz"), "folder": str(tmp_path)}
    assert not hello(plain | {"test-fraction": 0}, classes="2", **WITHOUT).has_error()
    assert "'north' sends sums of 14 samples in 14 columns" in caplog.text
    caplog.clear()
    hello(plain | {"minimum-samples": 0, "minimum-cell": 0}, **WITHOUT)
    assert "sends sums" not in caplog.text


class Unsteady:
    """A backbone whose features depend on the number of texts in a batch, as real backbones' last digits do."""

    name, dim, fingerprint, batch = "minilm", 2, "f" * 64, 512

    def __call__(self, batch):
        return np.full((len(batch), 2), 1 / len(batch), dtype=np.float32)


def test_no_row_changes_sides_because_of_a_backbone(nodes, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("fedgram.studies.media._opened", lambda spec: Unsteady())
    text = TEXT + '[columns.note]\nkind = "text"\nbackbone = "minilm"\nmissing = "mean"\n'
    (tmp_path / "north" / "study.toml").write_text(text)
    run = {"study": text, "study-fingerprint": Study.parse(text).fingerprint}
    node = {key: value for key, value in nodes[0].items() if key != "test-data"} | {"on-bad": "skip"}
    cells = rows(80, 0) | {"age": [str(20 + k) for k in range(80)], "note": ["", "fine"] * 40}

    def held_back(n):
        write_table(tmp_path / "north" / "patients.csv", {name: column[:n] for name, column in cells.items()})
        client = party(node, **run).client
        return {round(60 + 60 * age) - 20 for age in client.x_test[:, 0]}, client

    before, client = held_back(70)
    after, _ = held_back(80)
    assert 3 < len(before) < 40
    assert after & set(range(70)) == before
    assert client.columns[-3:] == ("note.0", "note.1", "note missing")
    cells["age"][0] = "old"  # a row that is left out moves no other one
    with pytest.warns(Skipped, match="1 bad row"):
        assert held_back(70)[0] == before - {0}

"""Nodes with tables that are too large to hold: the same answers, the same split, the same models.

The nodes are in this process; every table counts as large here.
"""

import json

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core import wire
from fedgram.core.errors import Skipped
from fedgram.data.client import StreamedRows
from fedgram.data.own import csvfiles
from fedgram.engines.flower import flower_messages
from fedgram.engines.flower.app import _party
from fedgram.protocol.fit import load, load_model
from fedgram.studies import Study, streams
from support.campaign import examples
from support.flower_grid import LocalGrid
from support.patients import RUN, STUDY, TEXT, rows, write_table

pytestmark = pytest.mark.filterwarnings("ignore:with two contributors:fedgram.core.errors.Revealing")
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def nodes_of(folder, sizes=(90, 70), seed=0, *, test=True):
    made = []
    for k, (name, n) in enumerate(zip(STUDY.parties, sizes, strict=True)):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "study.toml").write_text(TEXT)
        node = {"name": name, "study": str(folder / name / "study.toml"), "folder": str(folder / name / "models")}
        node["data"] = write_table(folder / name / "patients.csv", rows(n, seed + k))
        if test:
            node["test-data"] = write_table(folder / name / "test.csv", rows(30, seed + 10 + k))
        made.append(node)
    return made


@pytest.fixture
def large(monkeypatch):
    """After a call, every table is read in blocks of a few rows."""

    def make():
        monkeypatch.setattr(streams, "HELD_BYTES", 0)
        monkeypatch.setattr(csvfiles, "BYTES", 300)

    return make


def run(nodes, folder, **settings):
    """Return the fit, the report and the nodes' own models of a run."""
    LocalGrid(nodes, RUN | {"out": str(folder)} | settings).serve()
    report = json.loads((folder / "7" / "report.json").read_text())
    own = [load_model(f"{node['folder']}/model.safetensors") for node in nodes]
    return load(folder / "7" / "fit.safetensors"), report, own


@pytest.mark.parametrize("test", [True, False], ids=["test-data", "held back"])
@pytest.mark.parametrize("method", ["afl", "fedhip", "fedgram", "fedlogit"])
def test_a_run_is_the_same(tmp_path, large, method, test):
    # A fifth of 160 rows: a smaller table might have too few of a class to test with, since the node's key is drawn.
    nodes = nodes_of(tmp_path, test=test)
    want, said, kept = run(nodes, tmp_path / "held", method=method)
    large()
    got, told, own = run(nodes, tmp_path / "streamed", method=method)
    np.testing.assert_allclose(got.model.weights, want.model.weights, **CLOSE)
    np.testing.assert_allclose(got.model.intercept, want.model.intercept, **CLOSE)
    assert told["accuracy"] == said["accuracy"]
    assert got.evaluation == want.evaluation
    assert got.evaluation.probabilities.brier == pytest.approx(want.evaluation.probabilities.brier, rel=1e-9)
    for one, other, node in zip(own, kept, nodes, strict=True):
        table = node.get("test-data", node["data"])
        np.testing.assert_allclose(one.predict_proba(table), other.predict_proba(table), **CLOSE)


def party(node, **settings):
    return _party(None, LocalGrid([node], RUN | settings).context(1, node))


@examples(8)
@given(st.integers(0, 2**31), st.integers(70, 150), st.floats(0.3, 0.7))
def test_the_same_rows_are_held_back(tmp_path_factory, seed, n, fraction):
    folder = tmp_path_factory.mktemp("nodes")
    [node, _] = nodes_of(folder, (n, 40), seed, test=False)
    node |= {"test-fraction": fraction}
    held = party(node).client
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "HELD_BYTES", 0)
        patch.setattr(csvfiles, "BYTES", 300)
        streamed = party(node).client
        assert isinstance(streamed.x, StreamedRows)
        for name in ("x", "y", "x_test", "y_test"):
            np.testing.assert_array_equal(np.asarray(getattr(streamed, name)), getattr(held, name))


def test_thresholds_are_those_of_any_table(tmp_path, large):
    large()
    [node, _] = nodes_of(tmp_path)
    for rule in ({"minimum-samples": 91}, {"minimum-cell": 46}):
        [name] = rule
        with pytest.raises(Exception, match=name):
            party(node | rule)
    none = party({key: value for key, value in node.items() if key != "test-data"} | {"test-fraction": 0}).client
    assert (none.x.shape[0], none.x_test.shape) == (90, (0, len(STUDY.sent)))
    # A test set that is smaller than a cell is left aside.
    few = write_table(tmp_path / "north" / "few.csv", rows(4, 3))
    assert party(node | {"test-data": few, "minimum-cell": 5}).client.x_test.shape == (0, len(STUDY.sent))


def test_bad_rows_are_left_out_where_the_node_says_so(tmp_path, large):
    large()
    cells = rows(90, 0)
    cells["age"] = ["old", *cells["age"][1:]]
    nodes = nodes_of(tmp_path)
    write_table(tmp_path / "north" / "patients.csv", cells)
    with pytest.warns(Skipped):
        client = party(nodes[0] | {"on-bad": "skip"}).client
    assert np.asarray(client.x).shape == (89, len(STUDY.sent))


class Unsteady:
    """A backbone whose features depend on the number of texts in a batch."""

    name, dim, fingerprint, batch = "minilm", 2, "f" * 64, 512

    def __call__(self, batch):
        return np.full((len(batch), 2), 1 / len(batch), dtype=np.float32)


def test_texts_decide_by_their_cells_which_rows_are_held_back(tmp_path, large, monkeypatch):
    monkeypatch.setenv("FEDGRAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("fedgram.studies.media._opened", lambda spec: Unsteady())
    text = TEXT + '[columns.note]\nkind = "text"\nbackbone = "minilm"\nmissing = "mean"\n'
    [node, _] = nodes_of(tmp_path, test=False)
    (tmp_path / "north" / "study.toml").write_text(text)
    write_table(tmp_path / "north" / "patients.csv", rows(90, 0) | {"note": ["", "fine", "ill"] * 30})
    settings = {"study": text, "study-fingerprint": Study.parse(text).fingerprint}
    held = party(node, **settings).client
    large()
    streamed = party(node, **settings).client
    for name in ("x", "x_test"):
        # The last columns are the backbone's, which sees other texts together here.
        np.testing.assert_array_equal(np.asarray(getattr(streamed, name))[:, :3], getattr(held, name)[:, :3])


@pytest.mark.parametrize("name", ["patients.csv", "test.csv"])
def test_data_that_change_during_a_run_are_refused(tmp_path, name):
    grid = LocalGrid(nodes_of(tmp_path)[:1], RUN | {"method": "local"})

    def ask(step):
        request = {"round": 0, "seed": 0, "step": step, "classes": STUDY.classes, "payload": None}
        grid.push_messages([Message(flower_messages.letter(wire.encode(request)), 1, flower_messages.STEP)])
        return grid.seen[-1]

    assert not ask("hello").has_error()
    assert not ask("train").has_error()
    write_table(tmp_path / "north" / name, rows(70, 0))
    refused = "the node's data have changed during the run (more in the node's own log)"
    assert ask("train").error.reason == refused
    assert not ask("hello").has_error(), "a new run may have new data"
    assert not ask("train").has_error()

"""A dishonest server asks a node under a study for FedLogit's gradients: the node checks as parties by files do."""

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message

import fedgram as fg
from fedgram.core import wire
from fedgram.engines.flower import flower_messages
from fedgram.engines.flower.app import _party
from fedgram.models import LinearModel
from fedgram.moments.basis import Basis
from fedgram.protocol.clientside import ClientSide
from fedgram.studies import Study
from support.flower_grid import LocalGrid
from support.patients import RUN, STUDY, TEXT, rows, write_table

LOGIT = RUN | {"method": "fedlogit"}


@pytest.fixture
def node(tmp_path):
    (tmp_path / "study.toml").write_text(TEXT)
    return {
        "name": "north", "data": write_table(tmp_path / "patients.csv", rows(60, 0)), "test-data": "",
        "study": str(tmp_path / "study.toml"), "folder": str(tmp_path / "models"),
    }  # fmt: skip


@pytest.fixture
def side(node):
    party = _party(None, LocalGrid([node], LOGIT).context(1, node))
    agreed = {"classes": STUDY.classes, "columns": STUDY.sent}
    basis = STUDY.basis_of(ClientSide(party.client, **agreed).moments())
    return ClientSide(party.client, basis=basis, **agreed)


class Server:
    """Says hello to a node, and then sends any request."""

    def __init__(self, node, run=LOGIT):
        self.grid = LocalGrid([node], run)
        self.told("hello")

    def told(self, step, payload=None, **more):
        """Return a reply, or the node's refusal."""
        request = {"round": 0, "seed": 0, "step": step, "classes": STUDY.classes, "payload": payload} | more
        self.grid.push_messages([Message(flower_messages.letter(wire.encode(request)), 1, flower_messages.STEP)])
        reply = self.grid.seen[-1]
        return reply.error.reason if reply.has_error() else wire.decode(flower_messages.body(reply))

    def gradient(self, side, slopes, intercept, basis=None, **options):
        weights = np.zeros((side.shape[0], 2))
        weights[:, 0] = slopes
        model = LinearModel(weights, STUDY.classes, np.array([intercept, 0.0]), "", side.columns, **options)
        asked = {"model": model, "leverage": 0.0}
        return self.told("gradient", asked, basis=side.basis if basis is None else basis, columns=STUDY.sent)


def test_a_node_refuses_what_shows_a_row_and_remembers_across_runs(node, side, caplog):
    # The oldest men are several, the one who is farthest from the others is one.
    away = side.x[np.square(side.x).sum(axis=1).argmax()]
    first, second = np.sort(side.x @ away)[[-1, -2]]
    assert first > second
    steep = 1e3 / (first - second)
    server = Server(node)
    assert server.gradient(side, 0.0, 1e3)["gradient"].shape == (side.shape[0] + 1, 2)
    assert "no record yet of what 'north' has sent" in caplog.text
    [record] = Path(node["folder"]).glob("*.answers")
    assert record.stat().st_mode & 0o777 == 0o600
    for asking in (server, Server(node)):
        refusal = asking.gradient(side, -steep * away, steep * (first + second) / 2)
        assert refusal.startswith("minimum_cell: an answer would show fewer samples")
        assert "60" not in refusal
    assert "mostly be of 1" in caplog.text
    assert server.gradient(side, 1.0, 0.0, temperature=2.0).startswith("RefusedMessage")
    assert "expected a model without a temperature" in caplog.text
    assert server.gradient(side, 1.0, 0.0)["gradient"].shape == (side.shape[0] + 1, 2)


def test_a_node_refuses_a_round_of_logistic_regression_that_shows_a_row(node, side):
    server, d = Server(node, RUN | {"method": "logistic"}), side.shape[0]
    away = side.x[np.square(side.x).sum(axis=1).argmax()]
    first, second = np.sort(side.x @ away)[[-1, -2]]
    steep, estimated = 1e2 / (first - second), np.arange(d + 1)

    def asked(slopes, intercept):
        payload = {"coefficients": np.append(slopes, intercept), "estimated": estimated}
        return server.told("likelihood", payload, basis=side.basis, columns=STUDY.sent)

    assert asked(np.zeros(d), 0.0)["gradient"].shape == (d + 1,)
    refusal = asked(steep * away, -steep * (first + second) / 2)
    assert refusal.startswith("minimum_cell: an answer would show fewer samples")
    assert asked(np.full(d, 0.1), 0.0)["information"].shape == ((d + 1) * (d + 2) // 2,)


def test_a_server_cannot_fill_the_record(node, side, caplog, monkeypatch):
    """Each answer is kept and compared with all others, so without an end a server could fill a node's disk."""
    monkeypatch.setattr("fedgram.protocol.disclosure.MOST_ANSWERS", 2)
    server = Server(node)
    for slope in (0.0, 0.5, 0.0):  # the last was answered before
        assert server.gradient(side, slope, 0.0)["gradient"].shape == (side.shape[0] + 1, 2)
    refusal = server.gradient(side, 1.0, 0.0)
    assert refusal.startswith("this client has answered as many rounds of the study as it can compare")
    assert "holds 2, and at most 2 can be compared" in caplog.text


def test_a_node_takes_the_studys_own_columns_only(node, side, caplog):
    wide = Basis.of({f"x{i}": ({"age": 1.0}, 0.0) for i in range(100_000)}, STUDY.sent)
    refusal = Server(node).gradient(side, 0.0, 0.0, basis=wide)
    assert refusal.startswith("Mismatch: this step cannot be performed here")
    assert "got 100000 of" in caplog.text


def test_classes_and_columns_come_in_the_studys_order(node, side, caplog):
    """In another order each number would be compared with that of another class, and two rounds could show a row."""
    server, classes = Server(node), STUDY.classes[::-1]
    model = LinearModel(np.zeros((side.shape[0], 2)), classes, np.zeros(2), "", side.columns)
    asked = {"model": model, "leverage": 0.0}
    for order in ({"classes": classes}, {"columns": STUDY.sent[::-1]}):
        refusal = server.told("gradient", asked, basis=side.basis, **order)
        assert refusal.startswith("Mismatch: this step cannot be performed here")
    assert caplog.text.count("classes and columns: expected those of the study, in its order, got others") == 2


def hello(node, **run):
    """Return a node's refusal of the first step of a run, "" if it takes part."""
    grid = LocalGrid([node], RUN | run)
    request = {"round": 0, "seed": 0, "step": "hello", "classes": STUDY.classes, "payload": None}
    grid.push_messages([Message(flower_messages.letter(wire.encode(request)), 1, flower_messages.STEP)])
    return grid.seen[-1].error.reason if grid.seen[-1].has_error() else ""


@pytest.mark.parametrize("method", fg.registry)
def test_no_method_gets_round_the_record_of_answers(node, method):
    """One step of FedAvg on all rows from weights of the server's choice is FedLogit's gradient, and was not checked.

    Two such steps told a patient's row, although none of them alone is of few samples.
    """
    refusal = hello(node, method=method)
    if method in ("afl", "alone", "apfl", "fedgram", "fedhip", "fedlogit", "local", "logistic", "poisson"):
        assert not refusal
    else:
        assert refusal.startswith(f"methods: this node takes no part in {method} under study 'stroke', which names ")
    # Which rows are held back is drawn anew, so a method of small batches may be refused for them.
    assert "takes no part" not in hello(node | {"methods": f"fedgram, {method}"}, method=method)


def test_the_studys_own_method_is_agreed_by_all(node, tmp_path):
    text = TEXT.replace('method = "fedgram"', 'method = "fedavg"')
    (tmp_path / "study.toml").write_text(text)
    run = {"study": text, "study-fingerprint": Study.parse(text).fingerprint}
    assert not hello(node, **run, method="fedavg")
    assert not hello(node, **run, method="fedgram")
    assert "takes no part in fedprox" in hello(node, **run, method="fedprox")

"""Nodes that attack a run: their messages are refused by name, and the run goes on without them.

The nodes are in this process; test_hostile_deployment.py has real ones, over TLS.
"""

import json

import pytest
from flwr.app import ConfigRecord, Message, MetricRecord

from fedgram.core import wire
from fedgram.engines.flower.app import client
from fedgram.engines.flower.flower_messages import STEP, body, letter
from fedgram.studies import Study
from support.flower_grid import LocalGrid
from support.patients import RUN, STUDY, TEXT, rows, write_table

pytestmark = pytest.mark.filterwarnings("ignore:with two contributors:fedgram.core.errors.Revealing")


@pytest.fixture
def serve(tmp_path):
    """A function that runs a study of two parties, where `evil` changes one party's replies; it returns the report.

    A fault is given the step, the message, the honest reply and a function that performs the step again.
    """

    def run(fault, *, evil="south", study=TEXT, samples=(60, 60), **config):
        nodes, about = [], {"study": study, "study-fingerprint": Study.parse(study).fingerprint}
        for k, name in enumerate(STUDY.parties):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "study.toml").write_text(study)
            nodes.append({
                "name": name, "data": write_table(tmp_path / name / "patients.csv", rows(samples[k], k)),
                "test-data": write_table(tmp_path / name / "test.csv", rows(30, 10 + k)),
                "study": str(tmp_path / name / "study.toml"), "folder": str(tmp_path / name / "models"),
            })  # fmt: skip

        def performs(message, context):
            reply = client(message, context)
            if evil not in (context.node_config["name"], "all") or message.metadata.message_type != STEP:
                return reply
            return fault(wire.decode(body(message))["step"], message, reply, context)

        about |= {"require": "1", "out": str(tmp_path / "out")}
        LocalGrid(nodes, RUN | about | config, performs=performs).serve()
        return json.loads((tmp_path / "out" / "7" / "report.json").read_text(), parse_constant=pytest.fail)

    return run


def changed(message, data, **cost):
    return Message(letter(data, **cost), reply_to=message)


def hello(**lies):
    """Return a fault: a first reply with some changed fields."""

    def fault(step, message, reply, context):
        if step != "hello":
            return reply
        return changed(message, wire.encode(wire.decode(body(reply)) | lies))

    return fault


@pytest.mark.parametrize(
    "record",
    [{"note": ConfigRecord({"a": ""})}, {"note": ConfigRecord({"a": []})}, {"fedgram": MetricRecord({"wire": 1})}],
    ids=["empty text", "empty list", "no array"],
)
def test_a_reply_that_flower_cannot_count_is_its_nodes_failure(serve, record):
    """Flower raises an error of its own when it counts these; that ended the run for all."""

    def fault(step, message, reply, context):
        for name, value in record.items():
            reply.content[name] = value
        return reply

    report = serve(fault)
    assert report["contributors"] == ["north"]
    assert "a message that is not fedgram's" in report["absent"]["south"]


def test_a_node_cannot_say_that_it_worked_for_ever(serve):
    """The sum of two such times is infinite, which JSON does not have."""
    report = serve(lambda step, message, reply, context: changed(message, body(reply), seconds=1.7e308, wall=1.7e308))
    assert report["contributors"] == ["north", "south"]
    assert report["cpu_seconds"]["clients"] < 1e6


@pytest.mark.parametrize("evil", STUDY.parties)
@pytest.mark.parametrize(
    ("lies", "told"),
    [
        ({"features": "f" * 64}, "features 'ffff"),
        ({"columns": ("a", "b", "c")}, "lacks columns 'age'"),
        ({"shape": (2,), "columns": ("age", "sex=M")}, "lacks column 'age missing'"),
    ],
    ids=["features", "columns", "shape"],
)
def test_of_two_the_node_that_has_other_data_than_the_study_is_refused(serve, evil, lies, told):
    """The study decides, so there is no vote; a tie used to end the run."""
    report = serve(hello(**lies), evil=evil)
    assert report["contributors"] == [name for name in STUDY.parties if name != evil]
    assert told in report["absent"][evil]
    assert "the study has" in report["absent"][evil]


@pytest.mark.parametrize("evil", STUDY.parties)
def test_no_node_chooses_the_order_of_columns_under_a_study(serve, evil):
    """Of two orders the first in the alphabet was taken, which an honest node then refused."""
    head, age, sex = TEXT.partition("[columns.age]")[0], *TEXT.partition("[columns.age]")[2].split("[columns.sex]")
    study = f"{head}[columns.sex]{sex}[columns.age]{age}"
    assert Study.parse(study).sent == ("sex=M", "age", "age missing")
    report = serve(hello(columns=("age", "age missing", "sex=M")), evil=evil, study=study, method="fedlogit")
    assert report["contributors"] == ["north", "south"]


def test_a_node_that_was_restarted_during_a_run_is_refused(serve):
    """Its memory is gone; what it would send could be of other samples."""

    def fault(step, message, reply, context):
        if step == "hello":
            context.state.clear()
        return reply

    report = serve(fault)
    assert report["contributors"] == ["north"]
    assert "this node has lost its state: it was restarted during the run" in report["absent"]["south"]


def test_another_partys_reply_does_not_fit(serve):
    """It is of another number of samples than the node's first reply; of the same number it is a plausible lie."""
    taken = {}

    def fault(step, message, reply, context):
        if step == "hello":
            return reply
        return changed(message, taken.setdefault(step, body(reply)))

    report = serve(fault, evil="all", samples=(60, 50))
    assert report["contributors"] == ["north"]
    assert "must be moments of number of samples 50, got moments of number of samples 60" in report["absent"]["south"]


def test_replies_twice_late_and_to_nothing_are_ignored(tmp_path, node):
    class Repeating(LocalGrid):
        old = ()

        def pull_messages(self, message_ids):
            found = super().pull_messages(message_ids)
            again = [*found, *found, *self.old]
            self.old = [*self.old, *found]
            return again

    nodes = [node | {"name": name, "folder": str(tmp_path / name)} for name in "abc"]
    run = {"method": "afl", "classes": "2", "clients": "a, b, c", "out": str(tmp_path / "out")}
    reports = []
    for kind in (LocalGrid, Repeating):
        kind(nodes, run).serve()
        reports.append(json.loads((tmp_path / "out" / "7" / "report.json").read_text()))
    assert reports[0]["accuracy"] == reports[1]["accuracy"]
    assert reports[0]["carried"] == reports[1]["carried"]


@pytest.mark.parametrize("names", [("a", "unknown-1"), ("a", "node 3"), ("unknown-1", "unknown-2")])
def test_no_name_makes_a_missing_node_uncounted(tmp_path, node, names):
    """Three are expected and two have names: for any names one of three is missing, and not a client."""
    named = [node | {"name": name, "folder": str(tmp_path / name)} for name in names]
    run = {"method": "afl", "classes": "2", "nodes": 3, "wait": 0.3, "require": "0.6", "out": str(tmp_path / "out")}
    for nameless in ([], [{}]):
        LocalGrid([*named, *nameless], run).serve()
        report = json.loads((tmp_path / "out" / "7" / "report.json").read_text())
        assert report["contributors"] == sorted(names)
        assert len(report["nodes"]) == 3

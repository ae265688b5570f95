"""A server or submitter that attacks nodes: requests and configurations are refused by name."""

import logging
import signal
import tracemalloc
from pathlib import Path
from time import monotonic

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from fedgram.core import wire
from fedgram.core.errors import ClientFailed, InvalidParameter, UnknownName
from fedgram.engines.flower import flower_messages
from fedgram.engines.flower.config import App, NodeConfig
from fedgram.engines.flower.node import MODEL_FILE
from fedgram.engines.flower.node_keys import key_line, make_certificates, read_keys
from fedgram.engines.flower.project import write_app
from fedgram.models import LinearModel
from support.flower_grid import LocalGrid
from support.patients import RUN, STUDY, TEXT, config_of, rows, write_table

HELLO = {"step": "hello", "round": 0, "seed": 0, "classes": None, "payload": None}
ASKED = HELLO | {"step": "summarize", "classes": 2}


@pytest.fixture
def party(tmp_path):
    (tmp_path / "study.toml").write_text(TEXT)
    return {
        "name": "north", "data": write_table(tmp_path / "patients.csv", rows(60, 0)),
        "study": str(tmp_path / "study.toml"), "folder": str(tmp_path / "models"),
    }  # fmt: skip


def ask(node, *requests, run=None):
    """Return the node's reply to the last of some requests."""
    grid = LocalGrid([node], run or {"method": "afl"})
    for request in requests:
        data = request if isinstance(request, bytes) else wire.encode(request)
        grid.push_messages([Message(flower_messages.letter(data), 1, flower_messages.STEP)])
    return grid.seen[-1]


def without(name):
    return {key: value for key, value in ASKED.items() if key != name}


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        ([1], "request: expected its fields by name, got a list"),
        (None, "request: expected its fields by name, got a NoneType"),
        (without("step"), "request/step: expected str, got nothing"),
        (without("classes"), "request/classes: expected int or tuple or list or nothing, got nothing"),
        (ASKED | {"step": ["summarize"]}, "request/step: expected str, got list"),
        (ASKED | {"round": "1"}, "request/round: expected int, got str"),
        (ASKED | {"round": -1}, "request/round: expected a number from 0 to"),
        (ASKED | {"round": 10**30}, "request/round: expected a number from 0 to"),
        (ASKED | {"round": True}, "request/round: expected int, got bool"),
        (ASKED | {"seed": 1.5}, "request/seed: expected int, got float"),
        (ASKED | {"classes": {"ill": 1}}, "request/classes: expected int or tuple or list or nothing, got dict"),
        (ASKED | {"columns": 7}, "request/columns: expected tuple or list, got int"),
        (ASKED | {"basis": "x"}, "request/basis: expected Basis, got str"),
        (ASKED | {"targets": "x"}, "request/targets: expected Targets, got str"),
        (ASKED | {"folder": "/etc"}, "request: unknown field 'folder'"),
    ],
)
def test_a_request_that_is_none_is_refused_by_name(node, request_, told):
    """Some were accepted unchecked; for others the server got 'TypeError: unexpected'."""
    assert told in ask(node, HELLO, request_).error.reason


@pytest.mark.parametrize("step", ["__class__", "serve", "fit", "settings", "../hello", ""])
def test_only_steps_of_the_method_are_performed(node, step):
    assert ask(node, HELLO, ASKED | {"step": step}).error.reason.startswith(
        "UnknownName: this step cannot be performed"
    )


def test_under_a_study_every_step_has_its_classes_and_columns(party, caplog):
    """Only recorded answers were checked; with a list of a million classes a table gives a large answer."""
    run, agreed = RUN | {"method": "afl"}, ASKED | {"classes": STUDY.classes}
    assert not ask(party, HELLO, agreed, run=run).has_error()
    for other in ({"classes": ["well", "ill"]}, {"classes": ["ill", "other", "well"]}, {"columns": STUDY.sent[::-1]}):
        assert ask(party, HELLO, agreed | other, run=run).has_error()
        assert "expected those of the study, in its order, got others" in caplog.text
        caplog.clear()


def test_memory_of_an_earlier_run_is_not_gone_on_with(node):
    """Flower keeps a node's memory over a series of runs; a run that does not begin with hello would use it."""
    grid = LocalGrid([node], {"method": "afl"})
    grid.push_messages([Message(flower_messages.letter(wire.encode(HELLO)), 1, flower_messages.STEP)])
    kept = grid.states[1]["fedgram"]
    memory = wire.decode(flower_messages.unpack(kept)) | {"run": "6"}
    grid.states[1] = RecordDict({"fedgram": flower_messages.pack(wire.encode(memory))})
    grid.push_messages([Message(flower_messages.letter(wire.encode(ASKED)), 1, flower_messages.STEP)])
    assert grid.seen[-1].error.reason == "step: expected 'hello' first in a run, got another; start the run again"


def test_a_server_writes_no_control_characters_into_a_nodes_log(node, caplog):
    """An operator reads it on a terminal; an error may quote a message."""
    caplog.set_level(logging.INFO, logger="flwr")
    evil = "\x1b[2J\r\x9b\u202eroot: all is well"
    ask(node, HELLO, ASKED | {"step": evil})
    ask(node, HELLO, ASKED | {"payload": {evil: evil}})
    ask(node, HELLO, ASKED | {evil: 1})
    ask(node, HELLO, run={"method": evil})
    ask(node, HELLO, run={evil: 1})
    ask(node, HELLO, run={"settings." + evil: 1})
    assert caplog.messages
    for message in caplog.messages:
        assert all(c.isprintable() for c in message.replace("\n  | ", "")), message


def test_errors_of_a_node_are_short(node, caplog):
    """An error quotes what was sent, which can be a megabyte."""
    for run in ({"method": "x" * 10**6}, {"settings." + "x" * 10**6: 1}, {"backbone": "x" * 10**6}):
        caplog.clear()
        assert len(ask(node, HELLO, run=run).error.reason) < 3000
        assert len(caplog.text) < 5000


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"method": b"afl"}, "method: expected text or a number, got b'afl'"),
        ({"method": ["afl"]}, r"method: expected text or a number, got \['afl'\]"),
        ({"nodes": b"2"}, "nodes: expected a whole number ≥ 0 and ≤ 1e\\+06, got b'2'"),
        ({"wait": None}, "wait: expected a number > 0, got None"),
        ({"timeout": [1]}, r"timeout: expected a number > 0, got \[1\]"),
        ({"settings.gamma": [1]}, "settings.gamma must be text, a number or true/false"),
        ({"nodes": 1e300}, "nodes: expected a whole number .*, got 1e\\+300"),
        ({"minimum-samples": -1}, "minimum-samples: expected a whole number ≥ 0, got -1"),
        ({"minimum-cell": -1}, "minimum-cell: expected a whole number ≥ 0, got -1"),
    ],
)
def test_values_of_other_types_and_sizes_are_refused_by_name(config, told):
    with pytest.raises(InvalidParameter, match=told):
        App.read(config)


def test_errors_about_a_configuration_are_short():
    for config in ({"x" * 10**6: 1}, {"study-fingerprint": "x" * 10**6}):
        with pytest.raises((UnknownName, InvalidParameter)) as caught:
            App.read(config)
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize("name", ["x" * 201, "a\nb", " a", "a\x1b[2J"])
def test_a_nodes_name_can_be_shown(name):
    with pytest.raises(InvalidParameter, match="node-config: name: expected up to 200 printable characters"):
        NodeConfig(name=name).client_name()


INJECTED = ["x%0Award-1", "x%22%22%22%0A%5Btool.x%5D%0Ay=%22%22%22", "a=b", "a,b", "%5Cu0041", "a%1b[31m", " ", "%20a"]


@pytest.mark.parametrize("stem", INJECTED)
def test_a_name_of_a_key_file_is_a_name_and_nothing_else(tmp_path, stem):
    """The coordinator gets these files from others; a line break in a name listed a key for another client."""
    make_certificates(tmp_path / "keys", host="127.0.0.1", nodes=["a"])
    file = tmp_path / f"{stem}.pub"
    file.write_bytes((tmp_path / "keys" / "a.pub").read_bytes())
    with pytest.raises(InvalidParameter, match="the client's name: expected up to 200 printable characters"):
        key_line(file)
    key = key_line(tmp_path / "keys" / "a.pub").partition(" = ")[2]
    with pytest.raises(InvalidParameter):
        read_keys(f'"a" = {key}')


@pytest.mark.parametrize("text", [f"# \U0001f600 '''\n{TEXT}", f"# \u200b\U0001f600\n{TEXT}"])
def test_any_character_of_a_study_comes_through_an_app(tmp_path, text):
    """TOML has no pairs of halves of a character, which JSON writes."""
    (tmp_path / "study.toml").write_text(text, encoding="utf-8")
    assert config_of(write_app(tmp_path / "app", None, {}, study=tmp_path / "study.toml"))["study"] == text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"nodes": ["a", "a"]}, "node: expected each name once, got 'a' 2 times"),
        ({"nodes": [""]}, "node: expected up to 200 printable characters"),
        ({"nodes": ["x" * 300]}, "node: expected up to 200 printable characters"),
        ({"host": "bad host\n"}, "host: expected an IP address or a name"),
        ({"host": "ü.example"}, "host: expected an IP address or a name"),
    ],
)
def test_certificates_are_refused_by_name(tmp_path, options, told):
    with pytest.raises(InvalidParameter, match=told):
        make_certificates(tmp_path / "keys", **{"host": "127.0.0.1", "nodes": ["a"]} | options)
    (tmp_path / "file").touch()
    with pytest.raises(InvalidParameter, match="choose another folder"):
        make_certificates(tmp_path / "file", host="127.0.0.1", nodes=[])


def test_the_folder_of_keys_is_for_its_owner_alone(tmp_path):
    make_certificates(tmp_path / "keys", host="127.0.0.1", nodes=["a"])
    assert (tmp_path / "keys").stat().st_mode & 0o077 == 0
    assert np.all([file.stat().st_mode & 0o077 == 0 for file in (tmp_path / "keys").iterdir()])


@pytest.mark.parametrize("payload", [None, "model", [1], {"weights": np.zeros((4, 2))}])
def test_a_node_keeps_nothing_but_models(node, payload):
    """A server's message in place of a model overwrote the node's model."""
    kept = Path(node["folder"]) / MODEL_FILE
    assert not ask(node, HELLO, ASKED | {"step": "receive", "payload": model(2)}).has_error()
    before = kept.read_bytes()
    reply = ask(node, HELLO, ASKED | {"step": "receive", "payload": payload})
    assert "request/payload: expected a model to receive" in reply.error.reason
    assert kept.read_bytes() == before


@pytest.mark.parametrize("step", ["receive", "evaluate"])
def test_a_model_has_the_agreed_classes(node, step):
    reply = ask(node, HELLO, ASKED | {"step": step, "payload": model(3)})
    assert reply.error.reason == "request/payload: expected a model of the agreed classes, got others"


def test_judging_a_model_of_many_classes_takes_little_memory(node):
    """Half a megabyte took 3 GB: the square of the number of classes."""
    tracemalloc.start()
    try:
        reply = ask(node, HELLO, ASKED | {"step": "evaluate", "classes": 10_000, "payload": model(10_000)})
        assert not reply.has_error()
        assert tracemalloc.get_traced_memory()[1] < 200e6
    finally:
        tracemalloc.stop()


def model(count):
    return LinearModel(np.zeros((4, count)), tuple(range(count)), np.zeros(count))


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no such timer")
@pytest.mark.parametrize("limit", ["the node's", "the run's"])
def test_no_run_keeps_a_node_busy_for_ever(node, tmp_path, limit, monkeypatch):
    """A SuperNode takes one message at a time: what went on computing after its run had ended blocked all others."""
    monkeypatch.setattr("fedgram.engines.flower.grid.GRACE", 0.0)
    own, run = ({"timeout": 2}, {}) if limit == "the node's" else ({}, {"timeout": 2})
    run |= {"method": "fedavg", "classes": "2", "clients": "a", "settings.epochs": 10**9, "out": str(tmp_path / "out")}
    begun = monotonic()
    with pytest.raises(ClientFailed, match="timeout: this node gives a step up after 2 s"):
        LocalGrid([node | own], run).serve()
    assert monotonic() - begun < 60
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)

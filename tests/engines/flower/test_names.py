"""Identity of nodes: names bound to keys, nodes of one name, and reports of runs that end in any way."""

import json
import logging

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.app import Error, Message

import fedgram as fg
from fedgram.core.errors import ClientFailed, InvalidParameter, UnknownName
from fedgram.engines.flower.app import client
from fedgram.engines.flower.config import App
from fedgram.engines.flower.node_keys import key_line, make_certificates, read_keys
from support.flower_grid import LocalGrid


@pytest.fixture
def keys(tmp_path):
    make_certificates(tmp_path / "keys", host="127.0.0.1", nodes=["a", "b", "ward 3", "stranger"])
    return tmp_path / "keys"


def nodes(tmp_path, *names):
    """Return node-configs of nodes that give these names, all with data of their own."""
    rng = np.random.default_rng(0)
    for k, name in enumerate(names):
        np.savez(tmp_path / f"{k}.npz", x=rng.normal(size=(60, 4)), y=np.arange(60) % 2)
        yield {"name": name, "data": str(tmp_path / f"{k}.npz"), "folder": str(tmp_path / f"node-{k}")}


def came_with(keys, *names):
    """Return public keys as a SuperLink tells them."""
    for name in names:
        key = load_ssh_public_key((keys / f"{name}.pub").read_bytes())
        yield key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def serve(tmp_path, names, came=(), **config):
    """Run with nodes of these names and return the report."""
    grid = LocalGrid(nodes(tmp_path, *names), {"out": str(tmp_path / "out"), "wait": 0.3} | config, keys=came)
    try:
        grid.serve()
    finally:
        grid.report = json.loads((tmp_path / "out" / "7" / "report.json").read_text())
    return grid.report


def listed(keys, *names):
    return "\n".join(key_line(keys / f"{name}.pub") for name in names)


def test_with_keys_the_one_with_the_key_is_the_client(tmp_path, keys, caplog):
    """An impostor is left out and named, at any place in the order, and the run needs no quorum for that."""
    for order in (("stranger", "a", "b"), ("a", "stranger", "b")):
        caplog.clear()
        called = ["a" if name == "stranger" else name for name in order]
        report = serve(tmp_path, called, list(came_with(keys, *order)), keys=listed(keys, "a", "b"))
        assert report["contributors"] == ["a", "b"]
        assert report["nodes"]["a"] == str(1 + order.index("a"))
        impostor = f"node {1 + order.index('stranger')}"
        assert report["refused"] == {impostor: "it calls itself 'a', but does not have the key that is listed for 'a'"}
        assert f"{impostor} takes no part" in caplog.text


def test_with_keys_a_node_cannot_take_another_name(tmp_path, keys):
    """The holder of b's key cannot be a, and unlisted names take no part."""
    report = serve(tmp_path, ["a", "a", "c"], list(came_with(keys, "a", "b", "stranger")),
                   keys=listed(keys, "a", "b"), require="1")  # fmt: skip
    assert report["contributors"] == ["a"]
    assert "not connected within" in report["absent"]["b"]
    assert set(report["refused"]) == {"node 2", "node 3"}
    assert "'c', for which no key is listed" in report["refused"]["node 3"]


def test_a_node_without_a_key_is_refused(tmp_path, keys):
    report = serve(tmp_path, ["a", "a"], [b"", *came_with(keys, "a")], keys=listed(keys, "a"))
    assert report["nodes"] == {"a": "2"}


def test_without_keys_two_of_one_name_are_that_clients_failure(tmp_path):
    for config in ({"clients": "a, b"}, {"nodes": 3}):
        report = serve(tmp_path, ["a", "b", "a"], require="1", **config)
        assert report["contributors"] == ["b"]
        assert "2 nodes are named 'a'" in report["absent"]["a"]
    with pytest.raises(ClientFailed, match="client 'a': 2 nodes are named 'a'"):
        serve(tmp_path, ["a", "b", "a"], clients="a, b")


def test_keys_are_read(keys):
    text = listed(keys, "a", "ward 3")
    assert list(read_keys(text)) == list(read_keys(text.replace("\n", ", "))) == ["a", "ward 3"]
    assert App.read({"keys": text}).client_names() == ["a", "ward 3"]
    assert App.read({"keys": text, "clients": "a"}).client_names() == ["a"]
    with pytest.raises(InvalidParameter, match="keys are listed, but none for the client 'b'"):
        App.read({"keys": text, "clients": "a, b"})
    with pytest.raises(InvalidParameter, match="'a' is listed twice"):
        read_keys(f"{text}\n{text}")
    with pytest.raises(InvalidParameter, match="keys: 'a' is not a public key"):
        read_keys("a = AAAA")
    with pytest.raises(InvalidParameter, match="has no name"):
        read_keys("= AAAA")
    with pytest.raises(InvalidParameter, match="cannot read the public key"):
        key_line(keys / "nobody.pub")
    with pytest.raises(InvalidParameter, match="ca.crt is not a public key"):
        key_line(keys / "ca.crt")


@pytest.mark.parametrize(
    "error", [RuntimeError("broken"), KeyboardInterrupt(), SystemExit(1), fg.errors.InvalidData("x")]
)
def test_a_run_that_ends_by_any_error_leaves_its_report(error, tmp_path):
    def performs(message, context):
        raise error

    grid = LocalGrid(nodes(tmp_path, "a"), {"out": str(tmp_path / "out"), "nodes": 1}, performs=performs)
    with pytest.raises(type(error)):
        grid.serve()
    report = json.loads((tmp_path / "out" / "7" / "report.json").read_text())
    assert type(error).__name__ in report["error"] or str(error) == report["error"]


def test_a_run_with_a_wrong_setting_leaves_its_report(tmp_path):
    with pytest.raises(UnknownName, match="did you mean 'method'"):
        serve(tmp_path, ["a"], metod="afl")
    assert "metod" in json.loads((tmp_path / "out" / "7" / "report.json").read_text())["error"]


def test_what_a_node_says_is_cut_and_shows_no_control_characters(tmp_path):
    def performs(message, context):
        if context.node_config["name"] == "b":
            return Message(Error(code=2, reason="\x1b[31m\n" + "x" * 10**6), reply_to=message)
        if context.node_config["name"] == "d":
            return Message(Error(code=2), reply_to=message)
        return client(message, context)

    named = nodes(tmp_path, "a", "b", "c\n[INFO] all is well", "d")
    config = {"out": str(tmp_path / "out"), "wait": 0.3, "nodes": 4, "require": "1"}
    grid = LocalGrid(named, config, performs=performs)
    grid.serve()
    report = json.loads((tmp_path / "out" / "7" / "report.json").read_text())
    assert report["contributors"] == ["a"]
    assert all(len(why) < 1100 and why.isprintable() for why in report["nodes"].values())


def test_nodes_without_a_name_do_not_outvote_the_others(tmp_path):
    grid = LocalGrid(
        [*nodes(tmp_path, "a", "b"), *[{}] * 7],
        {"out": str(tmp_path / "out"), "wait": 0.3, "nodes": 3, "require": "0.6"},
    )
    grid.serve()
    report = json.loads((tmp_path / "out" / "7" / "report.json").read_text())
    assert report["contributors"] == ["a", "b"]
    assert (len(report["nodes"]), len(report["refused"])) == (3, 6)


def test_progress_counts_answers_and_names_failures(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="flwr"):
        grid = LocalGrid(nodes(tmp_path, "a", "b", "c"), {"out": str(tmp_path / "out"), "nodes": 3, "require": "2"})
        (tmp_path / "2.npz").unlink()
        grid.serve()
    assert "hello: 2 of 3" in caplog.text
    assert "3 of 3" not in caplog.text
    assert "client 'c': data: there is no such file" in caplog.text

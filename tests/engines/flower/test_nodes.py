"""A deployed node's disclosures and refusals: it chooses its rows, and its errors name no data."""

import json
import logging
import stat
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message
from flwr.common.serde import message_to_proto

import fedgram as fg
from fedgram.core import wire
from fedgram.core.errors import FedgramError, InvalidData, InvalidParameter
from fedgram.data import digits
from fedgram.engines.flower import flower_messages
from fedgram.engines.flower.app import _party
from fedgram.engines.flower.config import KEY_FILE, App, NodeConfig, held_back, node_key
from support.campaign import size
from support.flower_grid import LocalGrid
from support.own_method import forget_afterwards, write_method


@contextmanager
def importable(folder):
    """Make modules in the folder importable: an attempt would succeed."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def party(node, **run):
    grid = LocalGrid([node], run)
    return _party(None, grid.context(1, node)).client


def ask(node, run=None, step="hello", payload=None, classes=None):
    """Return the node's reply to one step of a run."""
    request = {"round": 0, "seed": 0}
    grid = LocalGrid([node], run or {})
    hello = {"step": "hello", "classes": None, "payload": None}
    for asked in [hello, {"step": step, "classes": classes, "payload": payload}]:
        grid.push_messages([Message(flower_messages.letter(wire.encode(request | asked)), 1, flower_messages.STEP)])
    return grid.seen[-1]


@pytest.mark.campaign
def test_no_run_changes_the_rows_that_are_used(node):
    rng = np.random.default_rng(1)
    first = party(node)
    assert 30 < len(first.x) < 60
    for _ in range(size(300)):
        run = {
            "seed": int(rng.integers(1e9)), "method": str(rng.choice(["afl", "fedhip", "fedavg", "fedacnnl"])),
            "classes": str(rng.choice(["", "2", "0, 1"])), "clients": str(rng.choice(["", "a"])),
            "nodes": int(rng.integers(5)), "minimum-samples": int(rng.integers(20)),
        }  # fmt: skip
        again = party(node, **run)
        assert np.array_equal(again.x, first.x)
        assert np.array_equal(again.y_test, first.y_test)


@pytest.mark.parametrize("name", ["test-fraction", "data", "on-bad", "partition", "partition-id", "num-partitions"])
def test_a_run_cannot_choose_what_is_the_nodes(node, name):
    reply = ask(node, {name: 0.999999})
    assert reply.has_error()
    assert name in reply.error.reason


def test_test_fraction_is_the_nodes(node):
    with pytest.raises(InvalidParameter, match="test-fraction is each node's own choice"):
        App.read({"test-fraction": 0.2})
    assert not len(party(node | {"test-fraction": 0}).x_test)
    with pytest.raises(InvalidParameter, match="test-fraction: expected a number ≥ 0 and < 1, got 1.0"):
        NodeConfig.read({"test-fraction": 1.0})


def test_the_partition_to_try_things_out_does_not_follow_the_run(tmp_path):
    config = {"name": "a", "data": "digits", "partition-id": 0, "num-partitions": 3, "folder": str(tmp_path)}
    assert np.array_equal(party(config, seed=1).x, party(config, seed=2).x)
    assert not np.array_equal(party(config).x[:20], party(config | {"partition-seed": 1}).x[:20])
    for wrong in (-1, 3):
        with pytest.raises(InvalidParameter, match=f"partition-id must be from 0 to 2, .* got {wrong}"):
            party(config | {"partition-id": wrong})


def test_the_key_is_made_once_and_only_its_owner_reads_it(tmp_path):
    key = node_key(tmp_path / "node")
    file = tmp_path / "node" / KEY_FILE
    assert len(key) == 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert node_key(tmp_path / "node") == key != node_key(tmp_path / "other")
    file.write_bytes(key[:-1])
    with pytest.raises(InvalidData, match="damaged: it has 31 bytes, not 32"):
        node_key(tmp_path / "node")
    assert file.read_bytes() == key[:-1], "never written over"


def test_the_split_is_of_content_with_the_key():
    data = digits()
    x, labels = np.round(16 * data.x[:400]), data.y[:400].tolist()
    chosen = held_back(x, labels, 0.2, b"k" * 32)
    assert 40 < chosen.sum() < 120
    order = np.random.default_rng(0).permutation(400)
    assert np.array_equal(held_back(x[order], [labels[i] for i in order], 0.2, b"k" * 32), chosen[order])
    assert np.array_equal(held_back(x.astype(np.int16), list(map(str, labels)), 0.2, b"k" * 32), chosen)
    assert not np.array_equal(held_back(x, labels, 0.2, b"l" * 32), chosen), "who has no key cannot tell"
    assert (chosen <= held_back(x, labels, 0.5, b"k" * 32)).all()
    assert not held_back(x, labels, 0.0, b"k" * 32).any()
    texts = np.array(["well", "ill", "well"] * 20)
    twice = held_back(texts, [0, 1, 0] * 20, 0.5, b"k" * 32)
    assert len(set(twice[::3])) == len(set(twice[1::3])) == 1, "duplicates are on one side"


def test_images_are_split_by_their_files(tmp_path):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for k in range(60):
        folder = tmp_path / "images" / ("ill" if k % 2 else "well")
        folder.mkdir(parents=True, exist_ok=True)
        image.fromarray(rng.integers(0, 255, (4, 4), dtype=np.uint8)).save(folder / f"{k}.png")
    config = {"name": "a", "data": str(tmp_path / "images"), "folder": str(tmp_path / "a")}
    one, two = (party(config, backbone="pixels", seed=seed) for seed in (0, 1))
    assert np.array_equal(one.x, two.x)
    assert 30 < len(one.x) < 60


@pytest.mark.parametrize("step", ["hello", "summarize"])
def test_too_few_samples_are_refused_by_rule_without_figures(node, tmp_path, step, caplog):
    np.savez(tmp_path / "a.npz", x=np.eye(9), y=np.arange(9) % 2)
    reply = ask(node | {"test-fraction": 0}, step=step, classes=2)
    assert "minimum-samples" in reply.error.reason
    assert not any(figure in reply.error.reason for figure in "0123456789")
    assert "9 training samples in a reply, minimum-samples is 10" in caplog.text
    assert not ask(node | {"test-fraction": 0, "minimum-samples": 9}, step=step, classes=2).has_error()


def test_a_rare_class_is_refused_by_rule_without_its_name(node, tmp_path):
    np.savez(
        tmp_path / "a.npz", x=np.eye(60), y=np.where(np.arange(60) < 2, "rare", np.where(np.arange(60) % 2, "b", "c"))
    )
    config = node | {"test-fraction": 0}
    reply = ask(config)
    assert "minimum-cell" in reply.error.reason
    assert "rare" not in str(reply.error)
    assert not ask(config | {"minimum-cell": 2}).has_error()
    np.savez(tmp_path / "a.npz", x=np.eye(60), y=np.arange(60) % 2, x_test=np.eye(60)[:3], y_test=[0, 1, 2])
    assert "minimum-cell" in ask(config).error.reason, "a class that is only tested is one that it has"


def test_the_stricter_minimum_counts(node):
    assert "minimum-samples" in ask(node, {"minimum-samples": 100}).error.reason
    assert "minimum-samples" in ask(node | {"minimum-samples": 100}, {"minimum-samples": 1}).error.reason
    assert "minimum-cell" in ask(node, {"minimum-cell": 100}).error.reason
    assert not ask(node, {"minimum-samples": 1, "minimum-cell": 1}).has_error()


def test_a_few_batches_are_too_few_samples(node):
    """One step of one sample would be that sample, chosen by the run's seed."""
    few = {"method": "fedavg", "settings.batch": 1, "settings.local_steps": 1}
    assert "minimum-samples" in ask(node, few).error.reason
    assert not ask(node, few | {"settings.local_steps": 10}).has_error()
    assert fg.FedAvg(batch=4, local_steps=3).fewest_samples(100) == 12


@pytest.mark.parametrize("forgetting", [{"method": "fedavg", "settings.weight_decay": 100.0}, {"settings.mu": 100.0}])
def test_steps_that_forget_all_but_the_last_sample_are_too_few_samples(node, forgetting):
    """With lr · weight decay = 1, or a pull as strong, an epoch leaves only the gradient of its last batch."""
    forgets = {"method": "fedprox", "settings.batch": 1, "settings.lr": 0.01, "settings.momentum": 0.0} | forgetting
    assert "minimum-samples" in ask(node, forgets).error.reason
    assert fg.FedProx(mu=100.0, lr=0.01, momentum=0.0, batch=32).fewest_samples(100) == 4
    assert fg.FedProx().fewest_samples(100) == 100


def test_a_test_set_of_less_than_a_cell_is_left_aside(node, tmp_path):
    x, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 2
    np.savez(tmp_path / "a.npz", x=x, y=y, x_test=x[:2], y_test=y[:2])
    assert len(party(node).x_test) == 0
    assert len(party(node | {"minimum-cell": 2}).x_test) == 2


@pytest.mark.parametrize("backbone", ["hub:someone/model", "model.onnx", "/etc/model.onnx", "hub:lite0"])
def test_a_run_does_not_choose_files_or_models_for_a_node(backbone):
    with pytest.raises(InvalidParameter, match="does not come with fedgram"):
        NodeConfig(name="a").backbone_for(App(backbone=backbone))
    assert NodeConfig(name="a", backbone="own.onnx").backbone_for(App(backbone=backbone)) == "own.onnx"
    assert NodeConfig(name="a").backbone_for(App(backbone="lite0:96")) == "lite0:96"


SECRETS = ("W1000", "flu", "ward-1.csv", "patients")
CSV = "patient_id,age,label\n" + "".join(f"W{1000 + k},{20 + k},{'flu' if k % 2 else 'well'}\n" for k in range(40))


@pytest.mark.filterwarnings("ignore::fedgram.data.own.bad.Doubtful")
@pytest.mark.parametrize(
    ("content", "classes", "told", "logged"),
    [
        (CSV, None, "column 'patient_id' must hold numbers", "holds 'W1000', not a number"),
        (CSV.replace("W", ""), ["ill", "well"], "a label is not one of the agreed classes", "label 'flu' is not one"),
        (CSV.replace("W", "").replace(",20,", ",nan,"), None, "column 'age' must be finite", "column 'age' is nan"),
        (CSV.replace("W", "").replace("label", "outcome"), None, "name the label column", "it has patient_id, age"),
        (CSV.replace("W", "").replace(",flu", ",0.5").replace("well", "1.5"), None, "whole numbers or names", "1.5"),
        (None, None, "there is no such file or folder", "patients/ward-1.csv"),
        ("a,label\n1,\xff", None, "InvalidData: the data here cannot be used", "ward-1.csv is not UTF-8"),
    ],
    ids=["text", "label", "nan", "no label", "fractions", "no file", "not text"],
)
def test_errors_that_leave_a_node_name_rules_not_data(content, classes, told, logged, tmp_path, caplog):
    file = tmp_path / "patients" / "ward-1.csv"
    file.parent.mkdir()
    if content is not None:
        file.write_text(content, encoding="latin-1")
    with caplog.at_level(logging.ERROR, logger="flwr"):
        reply = ask({"name": "a", "data": str(file), "folder": str(tmp_path / "a")}, classes=classes)
    left = message_to_proto(reply).SerializeToString().decode(errors="replace")
    assert told in left
    assert not [secret for secret in SECRETS if secret in left]
    assert str(tmp_path) not in left
    assert logged in caplog.text, "the node's own log has all of it"


def test_of_unexpected_errors_only_the_kind_leaves(node, caplog):
    reply = ask(node, step="summarize", classes=2, payload="not what the step takes")
    assert reply.error.reason == "TypeError: unexpected (more in the node's own log)"
    assert "Traceback" in caplog.text


def test_in_process_errors_say_all():
    clients = [fg.Client(name, np.eye(4), ["a", "b", "a", "flu"]) for name in ("p", "q")]
    with pytest.raises(FedgramError, match="label 'flu' is not one of the 2 classes"):
        fg.AFL().fit(clients, classes=["a", "b"])


def test_labels_outside_the_classes_are_refused_not_dropped(node):
    """The server's classes cannot narrow the rows: a label outside them ends the step."""
    assert ask(node, step="summarize", classes=[0, 2]).error.reason.startswith("a label is not one of the agreed")


def test_a_run_of_deployed_nodes(node, tmp_path):
    """The whole way, with the real apps: a report, the same accuracy as in process, distinct nodes."""
    nodes = [node | {"name": name, "folder": str(tmp_path / name)} for name in "ab"]
    grid = LocalGrid(nodes, {"method": "afl", "classes": "2", "clients": "a, b", "out": str(tmp_path / "out")})
    grid.serve()
    report = json.loads((tmp_path / "out" / "7" / "report.json").read_text())
    parties = [party(config) for config in nodes]
    assert not np.array_equal(parties[0].x, parties[1].x), "each has its own key"
    assert report["accuracy"] == fg.AFL().fit(parties, classes=2).evaluation.summary()
    assert report["contributors"] == ["a", "b"]
    assert not Counter(report["refused"])


def test_of_test_samples_nodes_send_sums_and_none_about_the_confidence_of_few(node, tmp_path):
    nodes = [node | {"name": name, "folder": str(tmp_path / name), "minimum-cell": 4} for name in "ab"]
    for name in "ab":  # with other keys other samples are held back, and sometimes no bin has few samples
        (tmp_path / name).mkdir()
        (tmp_path / name / KEY_FILE).write_bytes(f"key3-{name}--".encode() * 4)
    LocalGrid(nodes, {"method": "afl", "classes": "2", "clients": "a, b", "out": str(tmp_path / "out")}).serve()
    fit = fg.load(tmp_path / "out" / "7" / "fit.safetensors")
    for name, sums in fit.evaluation.calibration.items():
        assert sums.n == fit.evaluation.tested[name]
        assert min(count for count in sums.samples if count) >= 4
    here = fg.AFL().fit([party(config) for config in nodes], classes=2)
    report = json.loads((tmp_path / "out" / "7" / "report.json").read_text())
    assert report["probabilities"]["brier"] == pytest.approx(here.evaluation.probabilities.brier)
    assert any(0 < count < 4 for sums in here.evaluation.calibration.values() for count in sums.samples)
    assert report["validation"]["errors"][""]["left_out"]["brier"] == pytest.approx(
        here.report()["validation"]["errors"][""]["left_out"]["brier"]
    )


def test_a_node_may_keep_to_some_methods(node):
    config = node | {"methods": "afl, FedGram"}
    assert ask(config, {"method": "fedavg"}).error.reason == "methods: this node takes no part in fedavg"
    assert not ask(config, {"method": "fedgram"}).has_error()


def test_code_that_a_run_names_is_read_only_where_the_node_names_it_too(node, tmp_path, monkeypatch):
    forget_afterwards(monkeypatch)
    theirs, own = write_method(tmp_path / "server" / "mean.py", "Meanhere"), str(tmp_path / "node" / "mean.py")
    (tmp_path / "node").symlink_to(tmp_path / "server")  # one process cannot have the same method twice
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w').close()\n" + Path(own).read_text())
    for run in (str(trap), f"{trap}:Meanhere", "trap:Meanhere"):
        for methods in ("", "afl", own):
            with importable(tmp_path):
                reply = ask(node | {"methods": methods}, {"method": run})
            assert "only if its own --node-config names that file or module" in reply.error.reason
    assert not ask(node, {"method": "afl", "settings-of": "afl"}).has_error()
    assert "only if its own" in ask(node, {"method": "afl", "settings-of": str(trap)}).error.reason
    assert not (tmp_path / "sprung").exists(), "nothing was read"
    for named in (theirs, own, "meanhere"):
        assert not ask(node | {"methods": f"afl, {own}"}, {"method": named}).has_error()
    assert ask(node | {"methods": own}, {"method": "afl"}).error.reason == "methods: this node takes no part in afl"


def test_a_nodes_own_broken_method_is_nobody_elses_business(node, tmp_path):
    (tmp_path / "secret.py").write_text("raise RuntimeError('patient 7')\n")
    reason = ask(node | {"methods": str(tmp_path / "secret.py")}, {"method": "afl"}).error.reason
    assert reason == "InvalidParameter: an option given here cannot be used (more in the node's own log)"


def test_a_run_of_a_file_at_the_nodes(node, tmp_path, monkeypatch):
    forget_afterwards(monkeypatch)
    theirs = write_method(tmp_path / "server" / "mean.py", "Meanthere")
    nodes = []
    for name in "ab":
        (tmp_path / f"at-{name}").symlink_to(tmp_path / "server")
        own = str(tmp_path / f"at-{name}" / "mean.py")
        nodes.append(node | {"name": name, "folder": str(tmp_path / name), "methods": own})
    run = {"method": theirs, "classes": "2", "clients": "a, b", "out": str(tmp_path / "out"), "settings.ridge": 2.0}
    LocalGrid(nodes, run).serve()
    report = json.loads((tmp_path / "out" / "7" / "report.json").read_text())
    assert report["contributors"] == ["a", "b"]
    assert (report["method"], report["settings"]) == ("meanthere", {"ridge": 2.0})


def test_a_node_imports_only_the_networks_that_it_lists(node):
    """Importing is running code, and the name comes from the server."""
    run = {"method": "fedavg", "settings.network": "antigravity:fly"}
    for config in (node, node | {"networks": "antigravity:land, mlp"}, node | {"networks": "antigravity"}):
        assert ask(config, run).error.reason == (
            "networks: this node does not import 'antigravity:fly'; its operator can allow that with "
            "--node-config 'networks=\"antigravity:fly\"'"
        )
    assert not ask(node | {"networks": "a.b:c, antigravity:fly"}, run).has_error()
    assert not ask(node, run | {"settings.network": "mlp:8"}).has_error()
    assert "antigravity" not in sys.modules

"""The study of docs/guides/flower.md, with failing nodes: real processes on loopback, TLS, authenticated nodes.

One SuperLink and its nodes serve all tests. Two runs with faults are under way from the start; while one of them waits
for nodes that will never answer, the study without faults is run.
"""

import json
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.hashing import readable
from fedgram.engines.flower.project import write_app
from fedgram.protocol.fit import load, load_model
from fedgram.studies import Study
from fedgram.studies.encoding import read_client
from fedgram.studies.study import named
from support import flower_misbehaving, networks
from support.command import run as command
from support.flower_processes import Federation
from support.patients import STUDY, TEXT, rows, write_table
from support.waiting import wait_for

pytestmark = pytest.mark.xdist_group("federation")

HONEST, FAULTY = ("ward-0", "ward-1"), ("garbage", "nan", "slow", "killed")
PARTIES = tuple(STUDY.parties)
OWN_NETWORK = f"{networks.HERE}:mlp"
# How long the run that can do without the faulty nodes waits for them; on a busy machine the others need some, too. The
# study whose models are checked starts later: its models stay, for any order in which the runs end.
LONG = 120.0
D = 2048  # answers of 17 MB: a node can be killed while it uploads one

HOSTILE = """
from pathlib import Path
Path("hostile.txt").write_text("ran")  # where the node was started
from fedgram.engines.flower.app import client as honest
client = honest
"""


@dataclass
class Lab:
    """A federation with two runs under way: one that can do without the faulty nodes, and one that cannot."""

    federation: Federation
    clients: dict[str, fg.Client]
    data: Path
    app: Path
    quorum: str
    strict: str


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    keys, clients = folder / "keys", {client.name: client for client in samples()}
    nodes = (*HONEST, *FAULTY, *PARTIES, "intruder", "stranger")
    fedgram("flower", "certificates", keys, *(word for name in nodes for word in ("--node", name)))
    for name, client in clients.items():
        np.savez(folder / name, x=client.x, y=client.y, x_test=client.x_test, y_test=client.y_test)
    app = write_app(folder / "faults", "afl", {"gamma": "10", "ri": "false"})
    replace_client(app, Path(flower_misbehaving.__file__).read_text(encoding="utf-8"))
    with Federation(folder / "federation", keys=keys) as federation:
        federation.register((*HONEST, *FAULTY, *PARTIES, "intruder"))
        for name in FAULTY:
            federation.start_node(name, data=str(folder / f"{name}.npz"))
        for name in HONEST:
            start_installed(federation, name, folder / f"{name}.npz", networks=OWN_NETWORK)
        everyone = ", ".join((*HONEST, *FAULTY))
        quorum = federation.submit(app, clients=everyone, require="2", timeout=LONG)
        strict = federation.submit(app, clients=", ".join((*HONEST, "garbage", "nan")))
        wait_for((federation.home("killed") / "uploading").exists, "the upload", pause=0.01)
        os.kill(federation.nodes["killed"].pid, signal.SIGKILL)
        federation.end_node("killed", signal.SIGKILL)  # with its child processes: none of them can send a last message
        yield Lab(federation, clients, folder, app, quorum, strict)


def samples():
    rng = np.random.default_rng(0)
    means = rng.normal(size=(3, D))
    for name in (*HONEST, *FAULTY):
        y = np.arange(620) % 3
        x = (means[y] + rng.normal(size=(620, D))).astype(np.float32)
        yield fg.Client(name, x[:600], y[:600], x[600:], y[600:])


def test_a_study_with_tls_and_authenticated_nodes(lab):
    """Nodes run installed code, for any content of the app; a name belongs to its key; the unregistered stay out."""
    federation = lab.federation
    app = lab.data / "study"
    fedgram("flower", "new", app, "--method", "fedhip", "--set", "beta=2", *keys_of(federation, HONEST))
    replace_client(app, HOSTILE)
    start_installed(federation, "intruder", lab.data / "ward-0.npz", name="ward-0")  # admitted, but not as ward-0
    start_installed(federation, "stranger", lab.data / "ward-0.npz")  # has a key that is not registered
    report = federation.run(app, classes="3", seed=3)
    assert wait_for(federation.nodes["stranger"].poll, "the refusal of the stranger") > 0
    assert "Failed to activate SuperNode" in federation.log("stranger")
    for node in (*HONEST, "intruder"):
        assert not (federation.home(node) / "hostile.txt").exists()
    [intruder] = re.findall(r"SuperNode ID: (\d+)", federation.log("intruder"))
    assert intruder not in report["nodes"].values()
    why = "it calls itself 'ward-0', but does not have the key that is listed for 'ward-0'"
    assert report["refused"].get(f"node {intruder}", why) == why, "the run need not wait for it"
    assert list(report["nodes"]) == report["contributors"] == list(HONEST)
    assert report["engine"] == "flower"
    assert report["settings"]["beta"] == 2
    clients = [lab.clients[name] for name in HONEST]
    here = fg.FedHiP(beta=2.0).fit(clients, classes=3, seed=3)
    assert report["accuracy"] == here.evaluation.summary()
    for client in clients:
        file = federation.folder / "models" / client.name / "model.safetensors"
        there, own = load_model(file), here.personal[client.name]
        np.testing.assert_allclose(there.scores(client.x), own.scores(client.x), rtol=1e-9, atol=1e-9)
        np.savez(lab.data / "new", x=client.x_test)
        said = json.loads(fedgram("predict", file, lab.data / "new.npz", "--json"))
        assert said["labels"] == own.predict(client.x_test).tolist()


@pytest.mark.slow  # a minute of waiting; tests/methods/gradient/test_any_network.py trains one on the simulation
def test_a_network_of_ones_own_is_trained(lab):
    """Server and nodes import it by its name; the nodes have said that they do."""
    federation, app = lab.federation, lab.data / "network"
    settings = {"network": OWN_NETWORK, "rounds": 1, "epochs": 2, "lr": 0.05}
    given = (word for name, value in settings.items() for word in ("--set", f"{name}={value}"))
    fedgram("flower", "new", app, "--method", "fedavg", *given, *keys_of(federation, HONEST))
    run = federation.submit(app, classes="3", seed=3)
    report, clients = federation.report(run), [lab.clients[name] for name in HONEST]
    assert report["contributors"] == list(HONEST)
    there = load(federation.results / run / "fit.safetensors")
    here = fg.FedAvg(**settings).fit(clients, classes=3, seed=3)
    assert there.model.network == OWN_NETWORK
    np.testing.assert_allclose(there.model.vector, here.model.vector, rtol=fg.FedAvg.rounding, atol=1e-6)
    assert there.rounds == here.rounds
    assert report["accuracy"] == here.evaluation.summary()
    assert here.evaluation.pooled > 0.6, "it has learned something"


def test_a_party_takes_part_in_the_study_that_it_has_agreed_to(lab):
    """Both read their own tables by their own copies of the study; one copy has another threshold than the run's."""
    federation, folder = lab.federation, lab.data / "tables"
    folder.mkdir()
    lax = TEXT.replace("minimum_samples = 12", "minimum_samples = 1")
    for k, (name, text) in enumerate(zip(PARTIES, (TEXT, lax), strict=True)):
        table = write_table(folder / f"{name}.csv", rows(40, k))
        (folder / f"{name}.toml").write_text(text)
        start_installed(federation, name, table, **{"study": str(folder / f"{name}.toml"), "test-data": table})
    agreed, other = PARTIES
    app = write_app(folder / "app", "afl", {}, study=folder / f"{agreed}.toml")
    run = federation.submit(app, require="1")
    report = federation.report(run)
    assert report["contributors"] == [agreed]
    assert report["absent"] == {
        other: f"step 'hello': study: the run is of study {readable(STUDY.fingerprint)}, and study "
        f"{named(Study.parse(lax))} is expected: this node has agreed to the latter; agree on one file, and write the "
        "app anew with it"
    }
    there, table = load(federation.results / run / "fit.safetensors"), folder / f"{agreed}.csv"
    client = read_client(STUDY, agreed, table)
    here = fg.AFL().fit([client], study=STUDY, classes=STUDY.classes)
    np.testing.assert_allclose(there.model.weights, here.model.weights, rtol=1e-9, atol=1e-9)
    assert report["accuracy"]["pooled"] == (here.model.predict(client.x) == client.y).mean()
    # The node's own model predicts from its table as it is.
    own = load_model(federation.folder / "models" / agreed / "model.safetensors")
    np.testing.assert_allclose(own.scores(table), here.predictor().scores(table), rtol=1e-9, atol=1e-9)
    for name in PARTIES:
        federation.end_node(name)


def test_nothing_partial_passes_for_whole(lab):
    report = lab.federation.report(lab.strict)
    assert "client 'garbage': message from 'garbage' refused" in report["error"]
    assert "client 'nan': message from 'nan' refused" in report["error"]
    assert "is nan" in report["error"]
    assert not (lab.federation.results / lab.strict / "fit.safetensors").exists()
    assert wait_for(lambda: "failed" in lab.federation.status(lab.strict), "the run's end")
    shown = lab.federation.run_log(lab.strict)
    [line] = [line for line in shown.splitlines() if "ERROR" in line]
    assert line.endswith(f"the run failed: {report['error']}")
    assert "Traceback" not in shown
    assert "unhandled exception" not in shown


def test_the_quorum_goes_on(lab):
    report = lab.federation.report(lab.quorum)
    assert report["contributors"] == list(HONEST)
    assert set(report["absent"]) == set(FAULTY)
    assert "not a fedgram message" in report["absent"]["garbage"]
    assert "is nan" in report["absent"]["nan"]
    assert f"no answer within {LONG:.0f} s" in report["absent"]["slow"]
    # Flower notices after two missed heartbeats; our time-out may come first.
    assert f"no answer within {LONG:.0f} s" in report["absent"]["killed"] or "vailable" in report["absent"]["killed"]
    equals_in_process(lab, lab.quorum, HONEST)


def test_after_a_restart_all_are_back(lab):
    federation, names = lab.federation, (*HONEST, "killed")
    federation.end_node("intruder")  # which has ward-0's name: without keys in the app, that would end the run
    federation.restart_superlink()
    federation.start_node("killed", data=str(lab.data / "killed.npz"))
    run = federation.submit(lab.app, clients=", ".join(names))
    report = federation.report(run)
    assert report["contributors"] == list(names)
    assert not report["absent"]
    # Flower's count of the same bytes, without its envelopes, names and evaluation.
    for way, ours in report["traffic"].items():
        assert ours > len(names) * (8 * D * (D + 1) // 2 if way == "up" else 8 * D * 3)
        assert ours < report["carried"][way] < ours + 10_000
    equals_in_process(lab, run, names)
    assert "completed" in wait_for(lambda: done(federation.status(run)), "the run's end")


def equals_in_process(lab, run, names):
    """The ridge of this AFL grows with the number of contributors: it must be the real one."""
    there = load(lab.federation.results / run / "fit.safetensors")
    here = fg.AFL(gamma=10.0, ri=False).fit([lab.clients[name] for name in names])
    np.testing.assert_allclose(there.model.weights, here.model.weights, rtol=1e-9, atol=1e-9)
    assert there.evaluation == here.evaluation


def done(status):
    return status if status.startswith("finished") else None


def keys_of(federation, names):
    """Return the options with which an app lists the keys of its nodes."""
    return [word for name in names for word in ("--key", federation.keys / f"{name}.pub")]


def start_installed(federation, node, data, **config):
    """Start a node that runs only installed code."""
    federation.start_node(node, command=("fedgram", "flower", "node"), data=str(data), **config)


def replace_client(app, code):
    """Put code into an app, in place of our ClientApp."""
    project = app / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    assert "fedgram.engines.flower.app:client" in text
    project.write_text(text.replace("fedgram.engines.flower.app:client", "other:client"), encoding="utf-8")
    (app / "other.py").write_text(code, encoding="utf-8")


def fedgram(*arguments):
    """Run our own command line."""
    told = command(*arguments)
    assert told.returncode == 0, told.stderr
    return told.stdout

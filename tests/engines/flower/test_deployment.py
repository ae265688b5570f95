"""A study as docs/flower.md describes it: real processes on loopback, TLS, authenticated nodes."""

import json
import os
import re
import subprocess

import numpy as np

import fedgram as fg
from fedgram import checks
from fedgram.protocol.fit import load_model
from support.flower_processes import BIN, Federation, wait_for

HOSTILE = """
from pathlib import Path
Path("hostile.txt").write_text("ran")  # where the node was started
from fedgram.engines.flower.app import client as honest
client = honest
"""


def test_a_study_with_tls_and_authenticated_nodes(tmp_path):
    """Nodes run what is installed, whatever the app holds; a name belongs to its key; the unregistered stay out."""
    keys, app = tmp_path / "keys", tmp_path / "study"
    clients = [fg.Client(f"ward-{k}", c.x, c.y, c.x_test, c.y_test) for k, c in enumerate(checks.some_clients(2))]
    nodes = ("ward-0", "ward-1", "intruder", "stranger")
    fedgram("flower", "certificates", keys, *(word for name in nodes for word in ("--node", name)))
    listed = ("--key", keys / "ward-0.pub", "--key", keys / "ward-1.pub")
    fedgram("flower", "new", app, "--method", "fedhip", "--set", "beta=2", *listed)
    replace_client(app, HOSTILE)
    with Federation(tmp_path / "federation", keys=keys) as federation:
        federation.flwr("supernode", "register", keys / "intruder.pub", "lab")
        start(federation, "intruder", tmp_path / "ward-0.npz", name="ward-0")  # let in, but not as ward-0
        for client in clients:
            federation.flwr("supernode", "register", keys / f"{client.name}.pub", "lab")
            np.savez(tmp_path / client.name, x=client.x, y=client.y, x_test=client.x_test, y_test=client.y_test)
            start(federation, client.name, tmp_path / f"{client.name}.npz")
        start(federation, "stranger", tmp_path / "ward-0.npz")  # has a key, but nobody has registered it
        report = federation.run(app, classes="10", seed=3)
        assert wait_for(federation.nodes["stranger"].poll, "the refusal of the stranger") > 0
        assert "Failed to activate SuperNode" in (federation.folder / "stranger.log").read_text()
        assert not (federation.folder / "hostile.txt").exists()
        [intruder] = re.findall(r"SuperNode ID: (\d+)", (federation.folder / "intruder.log").read_text())
    assert intruder not in report["nodes"].values()
    why = {f"node {intruder}": "it calls itself 'ward-0', but has not the key that is listed for 'ward-0'"}
    assert report["refused"] in (why, {}), "the run need not wait for it"
    assert list(report["nodes"]) == report["contributors"] == ["ward-0", "ward-1"]
    assert report["engine"] == "flower"
    assert report["settings"]["beta"] == 2
    here = checks.fit(fg.FedHiP(beta=2.0), clients, seed=3)
    assert report["accuracy"] == here.evaluation.summary()
    for client in clients:
        file = federation.folder / "models" / client.name / "model.safetensors"
        there, own = load_model(file), here.personal[client.name]
        np.testing.assert_allclose(there.scores(client.x), own.scores(client.x), rtol=1e-9, atol=1e-9)
        np.savez(tmp_path / "new", x=client.x_test)
        said = json.loads(fedgram("predict", file, tmp_path / "new.npz", "--json"))
        assert said["labels"] == own.predict(client.x_test).tolist()


def start(federation, node, data, **config):
    command = ("fedgram", "flower", "node")
    federation.start_node(node, key=federation.keys / node, command=command, data=str(data), **config)


def replace_client(app, code):
    """Put code into an app, in place of our ClientApp."""
    project = app / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    assert "fedgram.engines.flower.app:client" in text
    project.write_text(text.replace("fedgram.engines.flower.app:client", "hostile:client"), encoding="utf-8")
    (app / "hostile.py").write_text(code, encoding="utf-8")


def fedgram(*command):
    """Run our own command line."""
    done = subprocess.run([BIN / "fedgram", *command], env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout

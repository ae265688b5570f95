"""A study as docs/flower.md describes it: real processes on loopback, TLS, authenticated nodes."""

import json
import os
import subprocess

import numpy as np

import fedgram as fg
from fedgram import checks
from fedgram.methods.fit import load_model
from flower_processes import BIN, Federation, wait_for


def test_a_study_with_tls_and_authenticated_nodes(tmp_path):
    keys, app = tmp_path / "keys", tmp_path / "study"
    clients = [fg.Client(f"ward-{k}", c.x, c.y, c.x_test, c.y_test) for k, c in enumerate(checks.some_clients(2))]
    fedgram("flower", "certificates", keys, "--node", "ward-0", "--node", "ward-1", "--node", "stranger")
    fedgram("flower", "new", app, "--method", "fedhip", "--set", "beta=2")
    with Federation(tmp_path / "federation", keys=keys) as federation:
        for client in clients:
            federation.flwr("supernode", "register", keys / f"{client.name}.pub", "lab")
            np.savez(tmp_path / client.name, x=client.x, y=client.y, x_test=client.x_test, y_test=client.y_test)
            start(federation, client.name, tmp_path / f"{client.name}.npz")
        start(federation, "stranger", tmp_path / "ward-0.npz")  # has a key, but nobody has registered it
        report = federation.run(app, classes="10", seed=3)
        assert wait_for(federation.nodes["stranger"].poll, "the refusal of the stranger") > 0
        assert "Failed to activate SuperNode" in (federation.folder / "stranger.log").read_text()
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


def start(federation, name, data):
    federation.start_node(name, key=federation.keys / name, data=str(data))


def fedgram(*command):
    """Run our own command line."""
    done = subprocess.run([BIN / "fedgram", *command], env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout

"""Nodes that fail, as real processes: one federation, faults side by side."""

import os
import shutil
import signal

import numpy as np

import fedgram as fg
from fedgram.engines.flower.project import write_app
from fedgram.protocol.fit import load
from support import flower_misbehaving
from support.flower_processes import Federation, wait_for

NODES = ("a", "b", "garbage", "nan", "slow", "killed")
D = 2048  # answers of 17 MB: a node can be killed while it uploads one


def samples():
    rng = np.random.default_rng(0)
    means = rng.normal(size=(3, D))
    for name in NODES:
        y = np.arange(620) % 3
        x = (means[y] + rng.normal(size=(620, D))).astype(np.float32)
        yield fg.Client(name, x[:600], y[:600], x[600:], y[600:])


def misbehaving_app(folder):
    """Return what `fedgram flower new` writes, with another ClientApp."""
    app = write_app(folder, "afl", {"gamma": "10", "ri": "false"})
    shutil.copy(flower_misbehaving.__file__, app / "misbehaving.py")
    text = (app / "pyproject.toml").read_text(encoding="utf-8")
    wanted = text.replace("fedgram.engines.flower.app:client", "misbehaving:client")
    assert wanted != text
    (app / "pyproject.toml").write_text(wanted, encoding="utf-8")
    return app


def test_faults(tmp_path):
    clients = {client.name: client for client in samples()}
    app = misbehaving_app(tmp_path / "app")
    with Federation(tmp_path / "federation") as federation:
        for name, client in clients.items():
            file = tmp_path / f"{name}.npz"
            np.savez(file, x=client.x, y=client.y, x_test=client.x_test, y_test=client.y_test)
            federation.start_node(name, data=str(file))

        quorum = federation.submit(app, clients=", ".join(NODES), require="2", timeout=90.0)
        strict = federation.submit(app, clients="a, b, garbage, nan")
        wait_for((federation.folder / "uploading").exists, "the upload", pause=0.01)
        os.kill(federation.nodes["killed"].pid, signal.SIGKILL)
        federation.kill_node("killed")  # and what worked for it

        nothing_partial_passes_for_whole(federation, strict)
        the_quorum_goes_on(federation, quorum, [clients["a"], clients["b"]])

        federation.restart_superlink()
        federation.start_node("killed", data=str(tmp_path / "killed.npz"))
        all_are_back(federation, app, [clients[name] for name in ("a", "b", "killed")])


def nothing_partial_passes_for_whole(federation, run):
    report = federation.report(run)
    assert "client 'garbage': message from 'garbage' refused" in report["error"]
    assert "client 'nan': message from 'nan' refused" in report["error"]
    assert "is nan" in report["error"]
    assert not (federation.results / run / "fit.safetensors").exists()
    assert wait_for(lambda: "failed" in federation.status(run), "the run's end")


def the_quorum_goes_on(federation, run, contributors):
    report = federation.report(run)
    assert report["contributors"] == ["a", "b"]
    assert set(report["absent"]) == {"garbage", "nan", "slow", "killed"}
    assert "not a fedgram message" in report["absent"]["garbage"]
    assert "is nan" in report["absent"]["nan"]
    assert "no answer within 90 s" in report["absent"]["slow"]
    # Flower notices after two missed heartbeats; our time-out may come first.
    assert "no answer within 90 s" in report["absent"]["killed"] or "vailable" in report["absent"]["killed"]
    equals_in_process(federation, run, contributors)


def all_are_back(federation, app, clients):
    run = federation.submit(app, clients=", ".join(client.name for client in clients))
    report = federation.report(run)
    assert report["contributors"] == [client.name for client in clients]
    assert not report["absent"]
    # The same bytes as Flower counts them, but for its envelopes, names and evaluation.
    for way, ours in report["traffic"].items():
        assert ours > len(clients) * (8 * D * (D + 1) // 2 if way == "up" else 8 * D * 3)
        assert ours < report["carried"][way] < ours + 10_000
    equals_in_process(federation, run, clients)
    assert "completed" in wait_for(lambda: done(federation.status(run)), "the run's end")


def equals_in_process(federation, run, clients):
    """The ridge of this AFL grows with the number of contributors: it must be the real one."""
    there, here = load(federation.results / run / "fit.safetensors"), fg.AFL(gamma=10.0, ri=False).fit(clients)
    np.testing.assert_allclose(there.model.weights, here.model.weights, rtol=1e-9, atol=1e-9)
    assert there.evaluation == here.evaluation


def done(status):
    return status if status.startswith("finished") else None

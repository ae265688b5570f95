"""A real deployment over TLS, attacked: by nodes whose replies Flower cannot carry, and from the network."""

import os
import shutil
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from fedgram.engines.flower import node_keys
from fedgram.engines.flower.project import write_app
from support.flower_processes import Federation, free_port
from support.waiting import wait_for

pytestmark = [pytest.mark.xdist_group("federation"), pytest.mark.slow]

HONEST, HOSTILE = ("ward-0", "ward-1"), ("silent", "broken", "vast")
PATIENCE = 90.0


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    node_keys.make_certificates(folder / "keys", host="127.0.0.1", nodes=(*HONEST, *HOSTILE, "stranger"))
    node_keys.make_certificates(folder / "others", host="127.0.0.1", nodes=HONEST)
    rng = np.random.default_rng(0)
    for name in (*HONEST, *HOSTILE):
        np.savez(folder / name, x=rng.normal(size=(60, 4)), y=np.arange(60) % 2)
    with Federation(folder / "federation", keys=folder / "keys") as federation:
        federation.register((*HONEST, *HOSTILE))
        for name in HONEST:
            start(federation, name, folder)
        for name in HOSTILE:
            command = ("python", "-m", "support.flower_hostile_node", name)
            federation.start_node(name, command=command, data=str(folder / f"{name}.npz"))
        yield federation, folder


def start(federation, name, folder, **config):
    data = str(folder / f"{name}.npz")
    federation.start_node(name, command=("fedgram", "flower", "node"), data=data, **config)


def test_a_run_goes_on_without_nodes_whose_replies_cannot_be_carried(lab):
    federation, folder = lab
    app = write_app(folder / "app", "afl", {})
    run = federation.submit(app, clients=", ".join((*HONEST, *HOSTILE)), require="2", timeout=PATIENCE)
    report = federation.report(run)
    assert report["contributors"] == list(HONEST)
    assert "a message that Flower cannot read" in report["absent"]["broken"]
    assert "bytes or more: expected at most" in report["absent"]["vast"]
    assert f"no answer within {PATIENCE:.0f} s" in report["absent"]["silent"]
    assert report["seconds"] < 2 * PATIENCE
    for name in HOSTILE:
        federation.end_node(name)


def stranger(federation, name, *trust):
    """Start a node that must not be admitted, and return its output when it ends."""
    address = ["--superlink", f"127.0.0.1:{federation.port}", "--host", "127.0.0.1", "--port", str(free_port())]
    retries = ["--max-retries", "1", "--node-config", 'name="stranger"']
    process = federation.start(name, "fedgram", "flower", "node", *trust, *address, *retries)
    wait_for(lambda: process.poll() is not None, f"the end of {name}")
    assert process.returncode
    return federation.log(name)


def test_the_network_alone_lets_nobody_in(lab):
    federation, folder = lab
    keys, others = folder / "keys", folder / "others"
    known, unknown = keys / "ward-0", keys / "stranger"
    root = ("--root-certificates", keys / "ca.crt")
    stranger(federation, "no-tls", "--insecure")
    said = stranger(federation, "wrong-ca", "--root-certificates", others / "ca.crt",
                    "--auth-supernode-private-key", known)  # fmt: skip
    assert "certificate" in said.lower()
    assert "Failed to activate SuperNode" in stranger(
        federation, "unknown", *root, "--auth-supernode-private-key", unknown
    )
    stranger(federation, "no-key", *root)


def test_an_expired_certificate_is_refused(lab, tmp_path, monkeypatch):
    _, folder = lab
    keys = folder / "expired"

    class Past(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(UTC) - timedelta(days=2 * node_keys.DAYS)

    monkeypatch.setattr(node_keys, "datetime", Past)
    node_keys.make_certificates(keys, host="127.0.0.1", nodes=HONEST)
    shutil.copy(keys / "server.crt", tmp_path)
    with Federation(tmp_path / "federation", keys=keys) as federation:
        said = stranger(federation, "ward-0", "--root-certificates", keys / "ca.crt",
                        "--auth-supernode-private-key", keys / "ward-0")  # fmt: skip
        assert "expired" in said


def test_a_private_key_that_others_may_read_is_warned_of(lab):
    federation, folder = lab
    key = folder / "stranger"
    shutil.copy(folder / "keys" / "stranger", key)
    os.chmod(key, 0o644)
    said = stranger(federation, "wide", "--root-certificates", folder / "keys" / "ca.crt",
                    "--auth-supernode-private-key", key)  # fmt: skip
    assert "others on this machine may read the private key" in said

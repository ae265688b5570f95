"""Flower as real processes on loopback: a SuperLink, SuperNodes, `flwr run`. All are ended by their ids, always.

Every process carries a mark in its environment, which its children inherit; so those that Flower detaches are found.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

from fedgram.engines.flower.isolation import QUIET
from support.waiting import PATIENCE, wait_for

BIN = Path(sys.executable).parent
TESTS = Path(__file__).parents[1]
MARK = "FEDGRAM_TEST_MARK"
REGISTER = """
import sys
from flwr.cli.app import app
for key in sys.argv[1:]:
    app(["supernode", "register", key, "lab", "--format", "json"], standalone_mode=False)
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Federation:
    """A SuperLink and its SuperNodes in `folder`, over TLS, with `keys`, a folder of certificates and keys."""

    def __init__(self, folder, keys):
        self.folder, self.keys = Path(folder), keys
        self.port = free_port()
        self.mark = uuid4().hex
        self.nodes = {}
        self.superlink = None
        self.started = []
        self.results = self.folder / "results"
        self.environment = (
            os.environ
            | QUIET
            | {
                MARK: self.mark,
                "FLWR_HOME": str(self.folder / "flwr"),
                "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",  # Flower starts its helpers by name
                # Where the user's own networks are, at the server and at every node.
                "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])),
                "OPENBLAS_NUM_THREADS": "1",
                "PYTHONUNBUFFERED": "1",
            }
        )

    def __enter__(self):
        (self.folder / "flwr").mkdir(parents=True)
        trust = f'root-certificates = "{self.keys / "ca.crt"}"'
        connection = f'[superlink.lab]\naddress = "127.0.0.1:{self.port}"\n{trust}\n'
        (self.folder / "flwr" / "config.toml").write_text(connection)
        self.start_superlink()
        return self

    def __exit__(self, *_):
        # They must not survive a second Ctrl-C.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.end_all()
        finally:
            signal.signal(signal.SIGINT, before)

    def end_all(self):
        self.end(list(self.marked()))
        for process in self.started:
            process.wait(timeout=PATIENCE)
        left = list(self.marked())
        assert not left, f"still running: {left}"

    def start_superlink(self):
        trust = [
            "--ssl-ca-certfile", self.keys / "ca.crt",
            "--ssl-certfile", self.keys / "server.crt",
            "--ssl-keyfile", self.keys / "server.key",
            "--enable-supernode-auth",
        ]  # fmt: skip
        address = ["--host", "127.0.0.1", "--port", str(self.port), "--database", "state.db"]
        self.superlink = self.start(
            "superlink", "flower-superlink", *trust, *address, "--disable-runtime-dependency-installation"
        )
        wait_for(lambda: answers(self.port), "the SuperLink")

    def restart_superlink(self):
        self.superlink.terminate()  # it ends its own helpers
        self.superlink.wait(timeout=PATIENCE)
        wait_for(lambda: not answers(self.port), "the end of the SuperLink")
        self.start_superlink()

    def start_node(self, node, command=("flower-supernode",), **config):
        """Start a SuperNode with its own configuration, and with the key of its name."""
        trust = ["--root-certificates", self.keys / "ca.crt", "--auth-supernode-private-key", self.keys / node]
        given = {"name": node, "folder": str(self.folder / "models" / node)} | config
        text = " ".join(f"{key}={json.dumps(value)}" for key, value in given.items())
        address = ["--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1", "--port", str(free_port())]
        self.nodes[node] = self.start(node, *command, *trust, *address, "--node-config", text)

    def end_node(self, name, how=signal.SIGTERM):
        """End a node, if it was started, with the processes that work for it."""
        if name in self.nodes:
            self.end([self.nodes[name].pid, *self.descendants(self.nodes[name].pid)], how)

    def run(self, app, **config):
        """Run an app and return its report."""
        return self.report(self.submit(app, **config))

    def submit(self, app, **config):
        """Submit an app and return the run's id."""
        given = {"out": str(self.results)} | config
        text = " ".join(f"{key}={json.dumps(value)}" for key, value in given.items())
        said = self.flwr("run", app, "lab", "--run-config", text)
        return str(said["run-id"])

    def report(self, run):
        path = self.results / run / "report.json"
        wait_for(path.exists, f"the report of run {run}; see {self.folder}")
        return json.loads(path.read_text())

    def status(self, run):
        [found] = self.flwr("ls", "lab", "--run-id", run)["runs"]
        return found["status"]

    def flwr(self, *command):
        """Run Flower's command line and return its output."""
        return json.loads(self._said([BIN / "flwr", *command, "--format", "json"]))

    def register(self, nodes):
        """Let nodes in by their public keys; by one process, since each import of Flower takes seconds."""
        self._said([sys.executable, "-c", REGISTER, *(self.keys / f"{node}.pub" for node in nodes)])

    def _said(self, command):
        done = subprocess.run(
            command,
            env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run_log(self, run):
        """Return what a run has logged so far."""
        return self._said([BIN / "flwr", "log", run, "lab", "--show"])

    def home(self, name):
        """Return the folder in which a process was started."""
        return self.folder / name

    def log(self, name):
        """Return a process's output so far."""
        return (self.home(name) / "log.txt").read_text()

    def start(self, name, command, *arguments):
        self.home(name).mkdir(exist_ok=True)
        with (self.home(name) / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                [BIN / command, *arguments],
                env=self.environment, cwd=self.home(name), stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        return process

    def marked(self):
        """Yield the ids of all processes that were started here, by us or by Flower, and still run."""
        for entry in Path("/proc").iterdir():
            try:
                ours = entry.name.isdecimal() and f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes()
                if ours and (entry / "stat").read_text().rsplit(") ", 1)[1][0] != "Z":
                    yield int(entry.name)
            except OSError:
                continue  # it has just ended

    def descendants(self, pid):
        parents = {}
        for each in self.marked():
            try:
                parents[each] = int(Path(f"/proc/{each}/stat").read_text().rsplit(") ", 1)[1].split()[1])
            except OSError:
                continue
        family, size = {pid}, 0
        while len(family) > size:
            size = len(family)
            family |= {child for child, parent in parents.items() if parent in family}
        return family - {pid}

    def end(self, pids, how=signal.SIGTERM):
        """End processes by id: gently, and after some seconds by force."""
        for sent in (how, signal.SIGKILL):
            for pid in pids:
                try:
                    os.kill(pid, sent)
                except ProcessLookupError:
                    continue
            for _ in range(80):
                for process in self.started:
                    process.poll()  # takes note of those that have ended
                pids = [pid for pid in self.marked() if pid in pids]
                if not pids:
                    return
                time.sleep(0.1)

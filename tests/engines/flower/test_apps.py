"""Files of a deployment: the app, its configuration, each node's, keys, and predictions afterwards."""

import inspect
import json
import logging
import subprocess
import sys
import tomllib
from contextlib import closing
from importlib import import_module

import numpy as np
import pytest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore import log as flower_log
from flwr.supercore.exit.exit_code import EXIT_CODE_HELP, ExitCode
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.runtime import run_serverapp
from httpx import HTTPStatusError

import fedgram as fg
from fedgram.core.errors import InvalidData, InvalidParameter, MissingClients, UnknownName
from fedgram.data import digits
from fedgram.engines.flower import supernode
from fedgram.engines.flower.config import App, NodeConfig
from fedgram.engines.flower.node import MODEL_FILE, keep
from fedgram.engines.flower.node_keys import make_certificates
from fedgram.engines.flower.project import write_app
from fedgram.protocol.named_methods import resolve
from support.command import run as fedgram
from support.flower_processes import BIN, answers, free_port
from support.own_method import forget_afterwards, write_method
from support.waiting import PATIENCE, wait_for


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Nodes without a configured folder keep their files in the user's data folder."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))


def flattened(config):
    """Return an app's configuration as Flower gives it: nested names with dots."""
    settings = {f"settings.{name}": value for name, value in config["settings"].items()}
    return {name: value for name, value in config.items() if name != "settings"} | settings


@pytest.mark.parametrize("method", fg.registry)
def test_a_new_app_is_the_method_with_its_defaults(method, tmp_path):
    folder = write_app(tmp_path / "my study", method, {})
    text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)
    assert project["project"]["name"] == "my-study"
    config = project["tool"]["flwr"]["app"]["config"]
    app = App.read(flattened(config))
    assert app.configured() == fg.registry[method]()
    assert set(config) == {name.replace("_", "-") for name in App.__dataclass_fields__}, "everything is there to change"


def test_an_app_of_a_file_names_it_where_the_server_finds_it(tmp_path, monkeypatch):
    forget_afterwards(monkeypatch)
    path = write_method(tmp_path / "own" / "mean.py", "Meanapp")
    monkeypatch.chdir(tmp_path)
    for given in ("own/mean.py", "own/mean.py:Meanapp"):
        folder = write_app(tmp_path / given.replace("/", "-").replace(":", "-"), given, {"ridge": "2"})
        config = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
        app = App.read(flattened(config))
        assert app.method == path + given.removeprefix("own/mean.py")
        assert app.configured(resolve).settings() == {"ridge": 2.0}
        with pytest.raises(UnknownName, match="unknown method"):
            app.configured()


def test_flower_new(tmp_path):
    done = fedgram("flower", "new", tmp_path / "app", "--method", "fedhip", "--set", "alpha=2")
    assert done.returncode == 0, done.stderr
    config = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert App.read(flattened(config)).configured() == fg.FedHiP(alpha=2.0)
    again = fedgram("flower", "new", tmp_path / "app")
    assert (again.returncode, "not an empty folder" in again.stderr) == (2, True)
    wrong = fedgram("flower", "new", tmp_path / "other", "--method", "fedhop")
    assert (wrong.returncode, "did you mean 'fedhip'" in wrong.stderr) == (2, True)
    assert not (tmp_path / "other").exists()


def test_flower_new_with_keys(tmp_path):
    make_certificates(tmp_path / "keys", host="127.0.0.1", nodes=["a", "ward 3"])
    keys = [word for name in ("a", "ward 3") for word in ("--key", tmp_path / "keys" / f"{name}.pub")]
    done = fedgram("flower", "new", tmp_path / "app", *keys)
    assert done.returncode == 0, done.stderr
    config = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert App.read(flattened(config)).client_names() == ["a", "ward 3"]
    wrong = fedgram("flower", "new", tmp_path / "other", "--key", tmp_path / "keys" / "ca.crt")
    assert (wrong.returncode, "is not a public key" in wrong.stderr) == (2, True)


INSTALLED_ONLY = """
from fedgram.engines.flower import supernode
for prepare, module, function in supernode.PROGRAMS.values():
    prepare()
from flwr.supernode import start_client_internal as node
from flwr.supernode.runtime import run_clientapp as run
from fedgram.engines.flower.app import client
assert node.TaskType.AGENT_APP == node.TaskType.CLIENT_APP == "flwr-clientapp"
assert run.install_from_fab(b"not even a bundle", skip_prompt=True) is None
assert run.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)("a/b", "1.0", "f00") is client
for start in (node.subprocess.Popen, supernode._start):
    try:
        start(["flwr-agentapp", "--token", "t"])
    except PermissionError as error:
        print(error)
"""


def test_a_node_starts_nothing_but_the_installed_app():
    """Every name that is replaced in Flower is there; the deployment test runs it all."""
    done = subprocess.run([sys.executable, "-c", INSTALLED_ONLY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == 2 * "a node of fedgram does not start flwr-agentapp\n"


FORKED = """
import multiprocessing
from fedgram.engines.flower import supernode
for _ in range(2):
    supernode._start(["flwr-clientapp", "--help"])
    for child in multiprocessing.active_children():
        child.join(60)
        print(child.exitcode)
"""


def test_a_message_is_answered_by_a_fork_of_what_is_installed(tmp_path):
    """Nothing is imported from the folder in which the node was started."""
    for module in ("flwr", "fedgram", "numpy"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('hostile')")
    done = subprocess.run(
        [sys.executable, "-P", "-c", FORKED], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "hostile" not in done.stderr
    assert done.stdout.count("Run a Flower ClientApp") == done.stdout.count("\n0\n") == 2


def test_a_node_installs_nothing_and_leaves_nothing_to_others():
    done = fedgram("flower", "node", "--insecure", "--allow-runtime-dep")
    assert (done.returncode, "install it beforehand" in done.stderr) == (2, True)
    address = ("--superlink", f"127.0.0.1:{free_port()}", "--port", str(free_port()))
    done = fedgram("flower", "node", "--insecure", *address, "--isolation", "process")
    assert (done.returncode, "--isolation: expected subprocess, got process" in done.stderr) == (2, True)


def test_only_a_nodes_own_programs_take_its_messages(tmp_path):
    """Another user of the machine could take them from the port on loopback, and answer as the node."""
    port = free_port()
    arguments = ["--insecure", "--superlink", f"127.0.0.1:{free_port()}", "--port", str(port)]
    with (tmp_path / "log").open("wb") as log:
        node = subprocess.Popen([BIN / "fedgram", "flower", "node", *arguments], stdout=log, stderr=log)
    try:
        wait_for(lambda: answers(port), "the node's port")
        other = RuntimeHttpClient.from_server_address(
            f"127.0.0.1:{port}",
            insecure=True,
            root_certificates=None,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
        )
        with closing(other), pytest.raises(HTTPStatusError, match="401 Unauthorized"):
            other.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-clientapp"]))
    finally:
        node.terminate()
        node.wait(PATIENCE)


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower uses it
def test_flower_builds_the_app(tmp_path):
    """Flower itself accepts our files; it decides on its format."""
    from flwr.cli.build import build_fab_from_disk

    assert build_fab_from_disk(write_app(tmp_path / "app", "afl", {}))


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        ({"metod": "afl"}, UnknownName, "unknown name in app configuration 'metod': did you mean 'method'"),
        ({"nodes": "two"}, InvalidParameter, "nodes: expected a whole number ≥ 0 .*, got 'two'"),
        ({"nodes": 1.5}, InvalidParameter, "nodes: expected a whole number ≥ 0 .*, got 1.5"),
        ({"nodes": -1}, InvalidParameter, "nodes: expected a whole number ≥ 0 and ≤ 1e.06, got -1"),
        ({"timeout": 0}, InvalidParameter, "timeout: expected a number > 0, got 0"),
        ({"seed": True}, InvalidParameter, "seed: expected a whole number, got True"),
    ],
)
def test_bad_app_configurations(config, error, words):
    with pytest.raises(error, match=words):
        App.read(config)


def test_app_configuration_is_read():
    app = App.read({"method": "afl", "classes": "ill, well", "require": "0.8", "settings.gamma": 3})
    assert app.class_names() == ["ill", "well"]
    assert app.requirement() == 0.8
    assert app.configured() == fg.AFL(gamma=3.0)
    assert App().class_names() is None
    with pytest.raises(InvalidParameter, match="nodes: expected a whole number ≥ 0 .*, got inf"):
        App.read({"nodes": float("inf")})
    assert App.read({"classes": 10}).class_names() == 10
    with pytest.raises(InvalidParameter, match="require takes all, a number or a fraction, got 'most'"):
        App(require="most").requirement()
    with pytest.raises(UnknownName, match="unknown parameter of AFL 'gama'"):
        App.read({"settings.gama": 1}).configured()


def test_a_run_of_another_method_takes_over_what_was_changed_and_it_has(tmp_path, caplog):
    """`-c 'method=…'` leaves the written method's settings in the configuration; they do not end the run."""
    written = write_app(tmp_path / "app", "fedhip", {"alpha": "2"})
    config = flattened(tomllib.loads((written / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])
    assert App.read(config).configured() == fg.FedHiP(alpha=2.0)
    with caplog.at_level("INFO", logger="flwr"):
        assert App.read(config | {"method": "fedgram"}).configured() == fg.FedGram()
    assert "settings of fedhip that are not those of fedgram are left out: alpha" in caplog.text
    for method in fg.registry:
        assert App.read(config | {"method": method}).configured().name == method
    written = write_app(tmp_path / "other", "fedavg", {"rounds": "7"})
    config = flattened(tomllib.loads((written / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])
    changed = config | {"settings.lr": 0.02, "method": "pfedme"}
    assert App.read(changed).configured() == fg.registry["pfedme"](rounds=7, lr=0.02), "its own defaults for the rest"
    with pytest.raises(UnknownName, match="unknown parameter of FedAvg 'ruonds'"):
        App.read(config | {"settings.ruonds": 3, "method": "pfedme"}).configured()


def test_a_node_must_have_a_name_and_data():
    with pytest.raises(InvalidParameter, match="this node has no name: start it with --node-config"):
        NodeConfig.read({"data": "digits"}).client_name()
    with pytest.raises(InvalidParameter, match="this node has no data"):
        NodeConfig.read({"name": "a"}).client(App())
    with pytest.raises(UnknownName, match="unknown name in node-config 'daat'"):
        NodeConfig.read({"daat": "digits"})


def test_a_node_keeps_its_model_in_a_folder_of_its_own(tmp_path):
    a, b = (NodeConfig(name=name).model_folder() for name in ("../a", ".."))
    assert a.parent == b.parent
    assert a != b
    assert NodeConfig(name="a", folder=str(tmp_path / "own")).model_folder() == tmp_path / "own"


def test_nodes_with_partitions_have_the_samples_of_the_clients_of_one_process():
    """The demonstration with shared data has the parts of `fedgram run`; each node chooses the rows held back."""
    shared = {"data": "digits", "num-partitions": 3, "partition": "dirichlet:1", "partition-seed": 4}
    nodes = [NodeConfig.read(shared | {"partition-id": k}) for k in range(3)]
    parts = fg.partition.dirichlet(digits().y, clients=3, alpha=1.0, seed=4)
    for k, (node, part) in enumerate(zip(nodes, parts, strict=True)):
        party = node.client(App(seed=5))
        assert party.name == f"client-{k}"
        got, want = np.concatenate([party.x, party.x_test]), digits().x[part]
        assert np.array_equal(np.sort(got, axis=0), np.sort(want, axis=0))
        assert len(party.x_test) == pytest.approx(0.2 * len(part), rel=0.4)


def test_nodes_agree_on_names_not_on_numbers(tmp_path):
    """Each node numbers its own labels; it sends their names."""
    rng = np.random.default_rng(0)
    for name, labels in {"a": ["cat", "dog"], "b": ["dog", "fox"]}.items():
        np.savez(tmp_path / f"{name}.npz", x=rng.normal(size=(20, 3)), y=np.array(labels)[np.arange(20) % 2])
    parties = [NodeConfig(name=name, data=str(tmp_path / f"{name}.npz")).client(App()) for name in "ab"]
    assert fg.AFL().fit(parties).model.classes == ("cat", "dog", "fox")
    assert all(set(party.y) | set(party.y_test) <= {"cat", "dog", "fox"} for party in parties)


def test_a_nodes_own_test_set_is_used(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 3)), np.arange(20) % 2
    np.savez(tmp_path / "a.npz", x=x[:12], y=y[:12], x_test=x[12:], y_test=y[12:])
    party = NodeConfig(name="a", data=str(tmp_path / "a.npz")).client(App())
    assert (len(party.x), len(party.x_test)) == (12, 8)


def test_predict(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    y = np.where(x[:, 0] > 0, "well", "ill")
    fit = fg.AFL().fit([fg.Client("a", x[:40], y[:40])])
    fit.save(tmp_path / "fit.safetensors")
    model = keep(fit.model, tmp_path / "node")
    assert model.name == MODEL_FILE
    np.savez(tmp_path / "new.npz", x=x[40:])
    np.savez(tmp_path / "labelled.npz", x=x[40:], y=y[40:])
    np.savetxt(tmp_path / "new.csv", x[40:], delimiter=",", header="a,b,c,d", comments="")
    want = fit.model.predict(x[40:]).tolist()
    for source in (model, tmp_path / "fit.safetensors"):
        for data in ("new.npz", "new.csv"):
            done = fedgram("predict", source, tmp_path / data)
            assert done.returncode == 0, done.stderr
            assert done.stdout.split() == want
    told = json.loads(fedgram("predict", model, tmp_path / "labelled.npz", "--json").stdout)
    assert told["accuracy"] == pytest.approx(np.mean(np.array(want) == y[40:]))
    fedgram("predict", model, tmp_path / "new.npz", "--out", tmp_path / "labels.txt")
    assert (tmp_path / "labels.txt").read_text().split() == want


def test_predict_refuses_what_does_not_fit(tmp_path):
    rng = np.random.default_rng(0)
    model = keep(fg.LinearModel(np.eye(4, 2), (0, 1), features="lite0:96@abc"), tmp_path)
    np.savez(tmp_path / "new.npz", x=rng.normal(size=(5, 4)))
    done = fedgram("predict", model, tmp_path / "new.npz")
    assert (done.returncode, "holds features already" in done.stderr) == (2, True)
    plain = keep(fg.LinearModel(np.eye(3, 2), (0, 1)), tmp_path / "plain")
    done = fedgram("predict", plain, tmp_path / "new.npz")
    assert (done.returncode, "samples of shape (n, 3), got (5, 4)" in done.stderr) == (2, True)
    done = fedgram("predict", tmp_path / "new.npz", tmp_path / "new.npz")
    assert (done.returncode, "expected a saved fit or model, got a zip archive" in done.stderr) == (2, True)


def test_a_model_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidData, match="cannot write"):
        keep(fg.LinearModel(np.eye(3, 2), (0, 1)), tmp_path / "file" / "folder")


def test_importing_fedgram_imports_no_flower():
    code = "import sys, fedgram, fedgram.cli; print([m for m in ('flwr', 'ray', 'grpc') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    "command",
    [("run", "--engine", "flower-sim"), ("flower", "certificates", "keys"), ("flower", "node", "--insecure")],
)
def test_without_the_extra_one_line_says_what_to_install(command, tmp_path):
    code = "import sys; sys.modules['flwr'] = sys.modules['cryptography'] = None; from fedgram.cli import main; main()"
    arguments = [sys.executable, "-c", code, *command]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "pip install 'fedgram[flower]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.xdist_group("simulation-command")
def test_run_on_the_simulation_from_the_command_line():
    """It starts Ray itself, gives the results of one process, and leaves no process running."""
    options = ["run", "--method", "fedhip", "--data", "digits", "--clients", "3", "--partition", "iid", "--json"]
    here = json.loads(fedgram(*options).stdout)
    done = fedgram(*options, "--engine", "flower-sim", "--workers", "2")
    assert done.returncode == 0, done.stderr
    there = json.loads(done.stdout)
    assert there["engine"] == "flower-sim"
    assert there["accuracy"] == here["accuracy"]
    assert there["traffic"] == here["traffic"]
    assert there["carried"]["up"] > there["traffic"]["up"]


@pytest.mark.skipif(sys.platform == "win32", reason="modes are of POSIX")
def test_a_node_warns_of_a_private_key_that_others_may_read(tmp_path, caplog):
    key = tmp_path / "ward-1"
    key.touch()
    for mode, warned in ((0o600, False), (0o640, True), (0o644, True)):
        key.chmod(mode)
        for option in ([supernode.KEY_OPTION, str(key)], [f"{supernode.KEY_OPTION}={key}"]):
            caplog.clear()
            supernode._warn_of_readable(["--insecure", *option, "--port", "1"])
            assert ("others on this machine may read the private key" in caplog.text) == warned
    supernode._warn_of_readable(["--insecure", supernode.KEY_OPTION])


def test_a_failure_that_is_explained_is_one_line_of_the_log(caplog):
    """In the words of Flower's process that runs the ServerApp, which imports our app."""
    import_module("fedgram.engines.flower.app")
    source = inspect.getsource(run_serverapp)
    assert 'log(ERROR, "%s raised an exception", exc_entity, exc_info=ex)' in source
    end = EXIT_CODE_HELP[ExitCode.SERVERAPP_EXCEPTION]
    assert "unhandled exception" in end

    def logged(error):
        caplog.clear()
        try:
            try:
                raise KeyError("the cause")
            except KeyError as cause:
                raise error from cause
        except Exception as found:
            flower_log(logging.ERROR, "%s raised an exception", "ServerApp", exc_info=found)
        flower_log(logging.ERROR, f"Exit Code: 201\n\n{end}")
        return caplog.text

    said = logged(RuntimeError("a fault of ours"))
    assert "Traceback" in said
    assert "unhandled exception" in said
    said = logged(MissingClients("2 clients left,\x1b[2J 3 required"))
    [line] = said.splitlines()
    assert line.endswith(r"the run failed: 2 clients left,\x1b[2J 3 required")

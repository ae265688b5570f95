"""What a deployment runs: the ServerApp and the ClientApp that `fedgram flower new` puts into an app."""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from platformdirs import user_data_path

from fedgram.core.errors import FedgramError, about_the_request, tell
from fedgram.core.files import replace_file, writing
from fedgram.core.hashing import hash_json
from fedgram.engines.flower.agreed import agreed_study, table_client
from fedgram.engines.flower.config import App, NodeConfig
from fedgram.engines.flower.grid import Expected, GridTransport, Post, roll_call
from fedgram.engines.flower.node import Node, Party, client_app
from fedgram.protocol import session
from fedgram.protocol.clientside import explain
from fedgram.protocol.fit import Fit
from fedgram.protocol.sources import resolve
from fedgram.studies.loading import state_of

NAME = "flower"

log = logging.getLogger("flwr")  # so that it shows where Flower's own lines do
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configured method once; write the fit and a report into the folder `out`, also about a failure."""
    out = context.run_config.get("out")
    folder = Path(str(out)).expanduser() if out else user_data_path("fedgram", appauthor=False) / "runs"
    folder /= str(context.run_id)
    report: dict[str, Any] = {"run": str(context.run_id), "engine": NAME}
    try:
        fit = _run(grid, App.read(context.run_config), report)
        _write(folder, report, fit)
    except BaseException as error:  # also a run that is stopped
        _write_failure(folder, report | {"error": explain(error)})
        raise
    log.info("result: %s", folder)


def _run(grid: Grid, app: App, report: dict[str, Any]) -> Fit:
    """Run the method; enter into the report what is known so far."""
    report["method"] = app.method
    # Whoever submits a run decides what the server runs anyway; a node decides for itself.
    method, post = app.configured(resolve), Post(grid, app.timeout)
    expected = Expected(app.client_names(), app.nodes, app.wait, app.public_keys())
    nodes, refused = roll_call(post, expected)
    report["nodes"] = {name: str(node) for name, node in nodes.items()}
    report["refused"] = {node: str(error) for node, error in refused.items()}
    log.info("clients: %s", ", ".join(nodes))
    fit = session.run(
        method,
        GridTransport(post, nodes, engine=NAME),
        classes=app.class_names(),
        seed=app.seed,
        require=app.requirement(),
        progress=_log_progress,
        recipe=app.agreed,
    )
    report |= fit.report() | {"contributors": list(fit.contributors)}
    return fit


def _log_progress(step: str, round: int, done: int, total: int) -> None:
    if done == 0:
        return  # replies are what an operator waits for
    log.info("%s%s: %d of %d", step, f" of round {round + 1}" if round else "", done, total)


def _write(folder: Path, report: dict[str, Any], fit: Fit | None = None) -> None:
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if fit is not None:
            fit.save(folder / "fit.safetensors")
        replace_file(folder / "report.json", json.dumps(report, indent=2).encode())


def _write_failure(folder: Path, report: dict[str, Any]) -> None:
    """Write the report of a failure; if that fails too, the first error is the one to be seen."""
    try:
        _write(folder, report)
    except FedgramError as error:
        log.error("no report of this failure: %s", error)


def _name(message: Message, context: Context) -> str:
    return NodeConfig.read(context.node_config).client_name()


def _party(message: Message, context: Context) -> Party:
    """Return what the node brings to any step; if it may not take part, no step is performed."""
    own = NodeConfig.read(context.node_config)
    find, state = own.finding(), hash_json([state_of(own.data), state_of(own.test_data)])
    with about_the_request():
        app = App.read(context.run_config)
        method = app.configured(find)
    study = agreed_study(own, app)
    client = own.client(app) if study is None else table_client(own, study)
    admitted = own.admitted(client, app, method, study)
    cell = max(own.minimum_cell, app.minimum_cell)
    folder = own.model_folder()
    return Party(admitted, method, folder, study, own.has_minimum, cell, state, None if study is None else folder)


def _told(error: Exception) -> str:
    """Return what may leave the node about an error; all of it goes to the node's own log."""
    log.error("%s", explain(error), exc_info=None if isinstance(error, FedgramError) else error)
    said = tell(error)
    return said if said == str(error) else f"{said} (more in the node's own log)"


@contextmanager
def _warnings_logged() -> Iterator[None]:
    """Write warnings into the node's own log, where whoever runs it looks; nobody else gets them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", UserWarning)
        try:
            yield
        finally:
            for text in dict.fromkeys(str(warning.message) for warning in caught):
                log.warning("%s", text)


client = client_app(Node(name=_name, party=_party, explain=_told, around=_warnings_logged))

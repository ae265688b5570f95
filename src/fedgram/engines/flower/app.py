"""What a deployment runs: the ServerApp and the ClientApp that `fedgram flower new` puts into an app."""

import json
import logging
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from platformdirs import user_data_path

from fedgram.cache import replace_file
from fedgram.engines import session
from fedgram.engines.flower.config import App, NodeConfig, split
from fedgram.engines.flower.grid import Expected, GridTransport, Post, roll_call
from fedgram.engines.flower.node import Node, Party, client_app
from fedgram.errors import FedgramError, InvalidData
from fedgram.methods.fit import Fit, outcome

NAME = "flower"

log = logging.getLogger("flwr")  # so that it shows where Flower's own lines do
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configured method once; write the fit and a report into the folder `out`, also about a failure."""
    app = App.read(context.run_config)
    folder = Path(app.out).expanduser() if app.out else user_data_path("fedgram", appauthor=False) / "runs"
    folder /= str(context.run_id)
    report: dict[str, Any] = {"run": str(context.run_id), "engine": NAME, "method": app.method}
    try:
        method, post = app.configured(), Post(grid, app.timeout)
        nodes = roll_call(post, Expected(split(app.clients), app.nodes, app.wait))
        report["nodes"] = {name: str(node) for name, node in nodes.items()}
        log.info("clients: %s", ", ".join(nodes))
        fit = session.run(
            method,
            GridTransport(post, nodes, engine=NAME),
            classes=app.class_names(),
            seed=app.seed,
            require=app.requirement(),
            progress=lambda step, done, total: log.info("%s: %d of %d", step, done, total),
        )
        report |= outcome(fit) | {"contributors": list(fit.contributors)}
        _write(folder, report, fit)
    except FedgramError as error:
        _write(folder, report | {"error": str(error)})
        raise
    log.info("result: %s", folder)


def _write(folder: Path, report: dict[str, Any], fit: Fit | None = None) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if fit is not None:
            fit.save(folder / "fit.safetensors")
        replace_file(folder / "report.json", json.dumps(report, indent=2).encode())
    except OSError as error:
        raise InvalidData(f"cannot write to {folder}: {error.strerror or error}") from error


def _name(message: Message, context: Context) -> str:
    return NodeConfig.read(context.node_config).client_name()


def _party(message: Message, context: Context) -> Party:
    app, own = App.read(context.run_config), NodeConfig.read(context.node_config)
    return Party(own.client(app), app.configured(), own.model_folder())


client = client_app(Node(name=_name, party=_party))

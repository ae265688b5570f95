"""The ServerApp and the ClientApp of a deployment, which `fedgram flower new` puts into an app.

Under a study, a node reads its own study file and takes part only in runs of that study.
"""

import json
import logging
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread, main_thread
from traceback import format_exception
from typing import Any, cast

import numpy as np
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from platformdirs import user_data_path

from fedgram.core.errors import (
    ClientFailed,
    FedgramError,
    InvalidData,
    InvalidParameter,
    UnknownName,
    about_the_request,
    tell,
)
from fedgram.core.filesystem import replace_file, writing
from fedgram.core.hashing import hash_json
from fedgram.core.terminal import visible
from fedgram.data.client import Client
from fedgram.data.own.bad import OnBad, check_on_bad
from fedgram.data.own.blocks import open_table
from fedgram.data.own.cells import Mask
from fedgram.engines.flower.config import App, NodeConfig, held_back, node_key
from fedgram.engines.flower.grid import Expected, GridTransport, Post, roll_call
from fedgram.engines.flower.node import Node, Party, client_app
from fedgram.protocol import session
from fedgram.protocol.clientside import explain
from fedgram.protocol.fit import Fit
from fedgram.protocol.named_methods import resolve
from fedgram.studies import Study, streams
from fedgram.studies.encoding import Rows, StudyTable, as_client, open_for
from fedgram.studies.loading import state_of, table_files
from fedgram.studies.streams import collect
from fedgram.studies.study import check_same

NAME = "flower"
LONGEST_LINE = 2000  # characters of an error, which may quote what the other side has sent
log = logging.getLogger("flwr")  # Flower's log, so that our lines appear among its own


class OneLine(logging.Filter):
    """Filter of Flower's log that shows a `FedgramError` as one line, without a traceback.

    Flower would log a traceback of 50 lines, and then a note that the exception was not handled. The filter drops the
    note, too. Errors of other kinds keep their traceback.
    """

    _explained = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is shown; rewrite that of an explained error."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, FedgramError):
            self._explained = True
            record.msg, record.args = "the run failed: %s", (visible(str(error)[:LONGEST_LINE]),)
            record.exc_info = record.exc_text = None
        return not (self._explained and "unhandled exception occurred in the ServerApp" in record.getMessage())


log.addFilter(OneLine())
server = ServerApp()
REMEDY = "this node has agreed to the latter; agree on one file, and write the app anew with it"


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
    # The user who submits a run decides anyway what the server runs; a node decides for itself.
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
        study=app.agreed,
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
    """Write the report of a failure; if that fails, too, log it, so that the first error is shown."""
    try:
        _write(folder, report)
    except FedgramError as error:
        log.error("no report of this failure: %s", error)


def _name(message: Message, context: Context) -> str:
    return NodeConfig.read(context.node_config).client_name()


def _party(message: Message, context: Context) -> Party:
    """Return the node's part in any step; raise if it may not take part."""
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
    """Return the text about an error that may leave the node; all of it goes to the node's own log.

    An error may quote what a server has sent, so control characters are escaped: a log is read on terminals.
    """
    lines = [explain(error)] if isinstance(error, FedgramError) else "".join(format_exception(error)).splitlines()
    log.error("%s", "\n  | ".join(visible(line[:LONGEST_LINE]) for line in lines))
    said = tell(error)
    return said[:LONGEST_LINE] if said == str(error) else f"{said[:LONGEST_LINE]} (more in the node's own log)"


@contextmanager
def _warnings_logged() -> Iterator[None]:
    """Write warnings into the node's own log, and nowhere else."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", UserWarning)
        try:
            yield
        finally:
            for text in dict.fromkeys(str(warning.message) for warning in caught):
                log.warning("%s", visible(text))


@contextmanager
def _answering(message: Message, context: Context) -> Iterator[None]:
    """Log warnings, and give up when the server no longer waits, or after the node's own limit.

    A SuperNode takes one message at a time: without a limit a run could keep it busy for ever, also after its end.
    """
    seconds = min(NodeConfig.read(context.node_config).timeout, message.metadata.ttl)

    def give_up(*_: object) -> None:
        raise ClientFailed(f"timeout: this node gives a step up after {seconds:g} s").telling()

    with _warnings_logged():
        if not hasattr(signal, "setitimer") or current_thread() is not main_thread():
            yield  # Windows
            return
        before = signal.signal(signal.SIGALRM, give_up)
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


client = client_app(Node(name=_name, party=_party, explain=_told, around=_answering))


def agreed_study(own: NodeConfig, app: App) -> Study | None:
    """Return the study that both the node and the run name, None if neither does; raise if they differ.

    The node reads its own file. A study says which rows are used and how they are encoded: if the run could choose it,
    the difference of two runs would show single rows.
    """
    if not own.study:
        if not app.study_fingerprint:
            return None
        raise InvalidParameter(
            "study: this run is of a study, and this node has not agreed to a study; its operator can do so with "
            "--node-config 'study=\"study.toml\"'"
        ).telling()
    try:
        study = Study.read(Path(own.study).expanduser())
        fingerprint = study.fingerprint
    except FedgramError as error:
        raise error.telling("study: the node's own study file cannot be used") from None
    try:
        # The run's study is looked at only if its fingerprint is right, and then every word of it.
        whole = app.agreed if app.study_fingerprint == fingerprint else None
        check_same("study: the run", study, app.study_fingerprint, whole, remedy=REMEDY)
    except FedgramError as error:
        raise error.telling() from None
    if study.parties and own.client_name() not in study.parties:
        raise UnknownName("party of the study", own.client_name(), study.parties).telling()
    return study


def table_client(own: NodeConfig, study: Study) -> Client:
    """Return the node's table as a client of the study, with some rows held back for testing.

    The node's own key decides which rows, or they are in a table of their own, `test-data`.
    """
    given = {"label": own.label, "backbone": own.backbone, "num-partitions": own.num_partitions}
    if superfluous := [name for name, value in given.items() if value]:
        raise InvalidParameter(
            f"node-config: under a study a node has one table and the study says what its columns are: remove "
            f"{superfluous[0]}"
        ).telling()
    check_on_bad(own.on_bad)
    on_bad = cast("OnBad", own.on_bad)
    table = open_for(study, open_table(_only(own.data, "data"), own.notation))
    if own.test_data:
        x, labels = collect(table, on_bad, held=streams.HELD_BYTES).samples()
        tested = open_for(study, open_table(_only(own.test_data, "test-data"), own.notation))
        x_test, y_test = collect(tested, on_bad, held=streams.HELD_BYTES).samples()
    else:
        key = node_key(own.model_folder())

        def aside(rows: Rows) -> Mask:
            labels = [0] * len(rows.x) if rows.labels is None else rows.labels.tolist()
            return held_back(_content(table, rows), labels, own.test_fraction, key)

        found = collect(table, on_bad, held=streams.HELD_BYTES, aside=aside)
        (x, labels), (x_test, y_test) = found.split()
    return as_client(study, own.client_name(), x, labels, x_test=x_test, y_test=y_test)


def _content(table: StudyTable, rows: Rows) -> Any:
    """Return the content that decides on each row whether it is held back: never features of a backbone.

    Their last digits depend on which samples ran together: with one row more, others would change sides. Images and
    texts count as the cells that they are in the table.
    """
    if not rows.media:
        return rows.x
    made = {sent for name in table.media for sent in table.study.used[name].sent(name)}
    numbers = rows.x[:, [place for place, sent in enumerate(table.study.sent) if sent not in made]]
    cells = zip(*(column.tolist() for column in rows.media), strict=True)
    return np.array([json.dumps(row) for row in zip(numbers.tolist(), cells, strict=True)], dtype=np.str_)


def _only(data: str, what: str) -> Path:
    files = table_files(data)
    if len(files) != 1:
        raise InvalidData(f"{what} names {len(files)} tables: under a study a node has one").telling(
            f"{what}: under a study a node has one table"
        )
    return files[0]

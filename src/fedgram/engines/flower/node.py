"""The node's side: one adapter that performs the steps of any method.

A client's memory between messages (its state, its model) is in Flower's `Context.state`, as bytes of `wire`; a
simulated node may be performed by another process each time.

The node's folder keeps its model; of several runs at once, the model of the run that started last.
"""

import json
import logging
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time, time
from types import NoneType
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from fedgram.core import wire
from fedgram.core.classes import as_classes
from fedgram.core.columns import as_columns
from fedgram.core.errors import ClientFailed, InvalidData, Mismatch, RefusedMessage, about_the_request
from fedgram.core.filesystem import locked, read_regular, replace_file, writing
from fedgram.data.client import Client, warn_if_few
from fedgram.engines.flower import flower_messages
from fedgram.models import Model
from fedgram.moments.basis import Basis
from fedgram.moments.targets import Targets
from fedgram.protocol.clientside import ClientSide, explain, perform
from fedgram.protocol.disclosure import answered, record_path, recording, weighing_of
from fedgram.protocol.method import Method

if TYPE_CHECKING:
    from fedgram.studies.study import Study

_MEMORY = "fedgram"
_MOST_ROUNDS = 1 << 31
_NAMES = (tuple, list)  # a list of texts or numbers
_REQUIRED: dict[str, tuple[type, ...]] = {
    "step": (str,),
    "round": (int,),
    "seed": (int,),
    "classes": (int, *_NAMES, NoneType),
}
_OPTIONAL: dict[str, tuple[type, ...]] = {"columns": _NAMES, "basis": (Basis,), "targets": (Targets,)}
_ANYTHING = ("payload",)  # is checked by the step
_RAISED = 2  # Flower's code for a ClientApp that raised an exception
MODEL_FILE = "model.safetensors"
RUN_FILE, LOCK_FILE = "model.run.json", ".model.lock"
_TOLD = "the node cannot write its model into its own folder"
log = logging.getLogger("flwr")  # Flower's log, so that our lines appear among its own


@dataclass(frozen=True)
class Party:
    """A node's part in a step: its data, the method it takes part in, the folder for its model (None: keep none).

    `study` is the study that the node takes part in and whose rules it keeps, if any. With `warned`, the node is warned
    at the start of a run of what its replies reveal if it has few samples. `minimum_cell` is the node's own
    rule: the smallest number of test samples that a reported sum about confidence may cover. `state` changes when the
    node's data do. `records` is the folder for the record of its answers under a study; None: keep no record.
    """

    client: Client
    method: Method
    folder: Path | None
    study: "Study | None" = None
    warned: bool = False
    minimum_cell: int = 0
    state: str = ""
    records: Path | None = None


@dataclass(frozen=True)
class Node:
    """Functions that define a node: its name, which is quick to find, its whole `Party`, and its words for errors."""

    name: Callable[[Message, Context], str]
    party: Callable[[Message, Context], Party]
    explain: Callable[[Exception], str] = explain  # what to tell the server of an error
    around: Callable[[Message, Context], AbstractContextManager[None]] = lambda *_: nullcontext()  # for each answer


def client_app(node: Node) -> ClientApp:
    """Return the ClientApp of a node. Errors are sent to the server as text; Flower alone would hide some of them."""
    app = ClientApp()

    @app.query(flower_messages.action(flower_messages.NAME))
    def name(message: Message, context: Context) -> Message:
        return _reply(node, message, context, lambda: wire.encode(node.name(message, context)))

    @app.query(flower_messages.action(flower_messages.STEP))
    def step(message: Message, context: Context) -> Message:
        return _reply(node, message, context, lambda: _perform(node.party(message, context), message, context))

    return app


def _reply(node: Node, message: Message, context: Context, answer: Callable[[], bytes]) -> Message:
    started, began = process_time(), perf_counter()
    try:
        with node.around(message, context):
            data = answer()
    except Exception as error:
        return Message(Error(code=_RAISED, reason=node.explain(error)), reply_to=message)
    seconds, wall = process_time() - started, perf_counter() - began
    return Message(flower_messages.letter(data, seconds=seconds, wall=wall), reply_to=message)


def _perform(party: Party, message: Message, context: Context) -> bytes:
    """Return the reply to a step: restore the client's memory, perform the step, store the memory."""
    with about_the_request():
        request = _request(flower_messages.body(message))
    if party.study is not None:
        _check_agreed(party.study, request)
    side = ClientSide(party.client, study=party.study, minimum_cell=party.minimum_cell)
    if request["step"] == "hello":
        # A run begins. Flower may bring memory from an earlier run, which is dropped.
        context.state.pop(_MEMORY, None)
        started = start_of_run(party.folder)
        if party.warned:
            client = party.client
            warn_if_few(client.name, math.prod(client.x.shape[1:]), party.method.fewest_samples(len(client.y)))
    else:
        started = _recall(side, party, context)
    model = side.model
    reply = _reply_to(party, side, request)
    data = wire.encode(reply)
    if side.model is not model and side.model is not None and party.folder is not None:
        # With its study, so that it predicts from the party's tables as they are.
        own = side.model if party.study is None else party.study.model(side.model)
        keep_of_run(own, party.folder, str(context.run_id), started)
    memory = {"state": side.state, "model": side.model, "personal": side.personal, "started": started}
    about = {"data": party.state, "run": str(context.run_id)}
    context.state[_MEMORY] = flower_messages.pack(wire.encode({**memory, **about}))
    return data


def _request(data: bytes) -> dict[str, Any]:
    """Return a request; raise for unknown or missing fields, or values of a wrong type."""
    request = wire.decode(data, sender="the server")
    if not isinstance(request, dict):
        raise RefusedMessage(f"request: expected its fields by name, got a {type(request).__name__}")
    for name, kinds in {**_REQUIRED, **_OPTIONAL}.items():
        value = request.get(name)
        if name not in request and name in _OPTIONAL:
            continue
        if name not in request or not isinstance(value, kinds) or isinstance(value, bool):
            wanted = " or ".join(kind.__name__ for kind in kinds).replace("NoneType", "nothing")
            got = type(value).__name__ if name in request else "nothing"
            raise RefusedMessage(f"request/{name}: expected {wanted}, got {got}")
    if strange := sorted(set(request).difference(_REQUIRED, _OPTIONAL, _ANYTHING)):
        raise RefusedMessage(f"request: unknown field {strange[0][:60]!r}")
    if not 0 <= request["round"] < _MOST_ROUNDS:
        raise RefusedMessage(f"request/round: expected a number from 0 to {_MOST_ROUNDS - 1}")
    _check_model(request)
    return request


def _check_model(request: dict[str, Any]) -> None:
    """Raise unless a model to keep or to judge is a model of the agreed classes."""
    model, classes = request["payload"], request["classes"]
    if request["step"] == "receive" and not isinstance(model, Model):
        raise RefusedMessage(f"request/payload: expected a model to receive, got a {type(model).__name__}")
    if isinstance(model, Model) and model.classes and classes is not None and model.classes != as_classes(classes):
        raise RefusedMessage("request/payload: expected a model of the agreed classes, got others")


def _reply_to(party: Party, side: ClientSide, request: dict[str, Any]) -> wire.Payload:
    """Return the reply to a step; under a study it is checked and recorded as for parties that answer by files."""
    weighing = weighing_of(type(party.method), str(request["step"]))
    if party.study is None or party.records is None or weighing is None:
        [reply] = perform(party.method, [side], [request])
        return reply
    features, name = party.study.features, party.client.name
    with recording(record_path(party.records, features, name), features, name) as record:
        return answered(party.method, side, request, side.minimum_cell, record)


def _check_agreed(study: "Study", request: dict[str, Any]) -> None:
    """Raise for classes or columns in another order than the study's: sums would be added to those of other columns."""
    classes, columns = request["classes"], request.get("columns")
    if (classes is None or as_classes(classes) == study.schema.classes) and (
        not columns or as_columns(columns) == study.schema.columns
    ):
        return
    raise Mismatch(
        "classes and columns: expected those of the study, in its order, got others; ask with the study that this node "
        "has agreed to"
    )


def _recall(side: ClientSide, party: Party, context: Context) -> float:
    """Return the start of the run after restoring the side's memory of it.

    The data are read anew for each message. If they have changed since the run began they are refused, because the
    replies of one run must be about the same samples.
    """
    if _MEMORY not in context.state.array_records:
        raise ClientFailed(
            "this node has lost its state: it was restarted during the run; start the run again"
        ).telling()
    memory = wire.decode(flower_messages.unpack(context.state.array_records[_MEMORY]))
    if memory["run"] != str(context.run_id):  # Flower may bring memory from an earlier run
        raise ClientFailed("step: expected 'hello' first in a run, got another; start the run again").telling()
    if memory["data"] != party.state:
        raise InvalidData(
            f"the data of {party.client.name!r} have changed since the run began: leave them as they are during a run, "
            "and start it again"
        ).telling("the node's data have changed during the run")
    side.state, side.model, side.personal = memory["state"], memory["model"], memory["personal"]
    return float(memory["started"])


def keep(model: object, folder: Path) -> Path:
    """Write a node's model into its folder, whole or not at all, for `fedgram predict`."""
    path = folder / MODEL_FILE
    with writing(path, told=_TOLD):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, wire.encode(model))
    return path


def start_of_run(folder: Path | None) -> float:
    """Return the start of a run: now, or if the clock was set back, just after the start of the kept model's run."""
    _, last = _run_of(folder) if folder is not None else ("", 0.0)
    return max(time(), last + 1e-3)


def keep_of_run(model: object, folder: Path, run: str, started: float) -> None:
    """Keep the model of a run, and the run's id, unless the folder has the model of a run that started later.

    The run that ends last need not be the newest: it may have waited for a node that was gone.
    """
    with locked(folder / LOCK_FILE, nullcontext, told=_TOLD):  # runs are processes of their own
        other, last = _run_of(folder)
        if last > started:
            log.warning("run %s: its model is not kept, because run %s, which started later, has one here", run, other)
            return
        keep(model, folder)
        with writing(folder / RUN_FILE, told=_TOLD):
            replace_file(folder / RUN_FILE, json.dumps({"run": run, "started": started}).encode())


def _run_of(folder: Path) -> tuple[str, float]:
    """Return the run of the model in the folder, and its start; ("", 0) if they are not known."""
    if not (folder / MODEL_FILE).exists():
        return "", 0.0
    try:
        told = json.loads(read_regular(folder / RUN_FILE, most=1 << 12))
        return str(told["run"]), float(told["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", 0.0

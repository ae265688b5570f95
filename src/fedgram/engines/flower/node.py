"""The node's side: one adapter that performs the steps of any method.

What a client remembers between messages (its state, its model) is in Flower's `Context.state`, as bytes of `wire`; a
simulated node may be performed by another process each time.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any
from urllib.parse import quote

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from fedgram.core import wire
from fedgram.core.columns import as_columns
from fedgram.core.errors import ClientFailed, InvalidData, Mismatch, about_the_request
from fedgram.core.labels import as_classes
from fedgram.data.client import Client, warn_if_few
from fedgram.engines.flower import envelope
from fedgram.engines.flower.kept import keep_of_run, start_of_run
from fedgram.protocol.clientside import ClientSide, explain, perform
from fedgram.protocol.disclosure import answered, record_path, recording
from fedgram.protocol.method import Method
from fedgram.protocol.recipe import Recipe

_MEMORY = "fedgram"
_RAISED = 2  # Flower's code for a ClientApp that raised an exception


@dataclass(frozen=True)
class Party:
    """What a node brings: its data, the method it takes part in, the folder for its model (None: keep none).

    `recipe` is the study that it takes part in, whose rules it keeps, where there is one. With `warned` it hears at the
    start what it reveals if it has few samples. `minimum_cell` is the node's own rule: of how few test samples a sum
    about confidence may be. `state` is another one if the node's data have changed. `records` is the folder for the
    record of its answers under a study, None where none is kept.
    """

    client: Client
    method: Method
    folder: Path | None
    recipe: Recipe | None = None
    warned: bool = False
    minimum_cell: int = 0
    state: str = ""
    records: Path | None = None


@dataclass(frozen=True)
class Node:
    """How a node finds out what it is (its name, at little cost, and all of it), and what it says when it fails."""

    name: Callable[[Message, Context], str]
    party: Callable[[Message, Context], Party]
    explain: Callable[[Exception], str] = explain  # what to tell the server of an error
    around: Callable[[], AbstractContextManager[None]] = nullcontext  # entered for each answer


def client_app(node: Node) -> ClientApp:
    """Return the ClientApp of such nodes. An error is sent to the server in words; Flower would hide some of them."""
    app = ClientApp()

    @app.query(envelope.action(envelope.NAME))
    def name(message: Message, context: Context) -> Message:
        return _reply(node, message, lambda: wire.encode(node.name(message, context)))

    @app.query(envelope.action(envelope.STEP))
    def step(message: Message, context: Context) -> Message:
        return _reply(node, message, lambda: _perform(node.party(message, context), message, context))

    return app


def _reply(node: Node, message: Message, answer: Callable[[], bytes]) -> Message:
    started, began = process_time(), perf_counter()
    try:
        with node.around():
            data = answer()
    except Exception as error:
        return Message(Error(code=_RAISED, reason=node.explain(error)), reply_to=message)
    seconds, wall = process_time() - started, perf_counter() - began
    return Message(envelope.letter(data, seconds=seconds, wall=wall), reply_to=message)


def _perform(party: Party, message: Message, context: Context) -> bytes:
    """Perform one step: recall, do it, remember."""
    with about_the_request():
        request = wire.decode(envelope.body(message), sender="the server")
    side = ClientSide(party.client, recipe=party.recipe, minimum_cell=party.minimum_cell)
    if request["step"] == "hello":
        # A run begins. Flower may bring memory from an earlier run; what was then is over.
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
        own = side.model if party.recipe is None else party.recipe.model(side.model)
        keep_of_run(own, party.folder, str(context.run_id), started)
    memory = {"state": side.state, "model": side.model, "personal": side.personal, "started": started}
    context.state[_MEMORY] = envelope.pack(wire.encode({**memory, "data": party.state}))
    return data


def _reply_to(party: Party, side: ClientSide, request: dict[str, Any]) -> wire.Payload:
    """Perform a step; under a study as parties by files do, with a record of what was answered."""
    weighing = getattr(getattr(type(party.method), str(request["step"]), None), "fedgram_weighing", None)
    if party.recipe is None or party.records is None or weighing is None:
        [reply] = perform(party.method, [side], [request])
        return reply
    _check_agreed(party.recipe, request)
    features, name = party.recipe.features, party.client.name
    with recording(record_path(party.records, features, name), features, name) as record:
        return answered(party.method, side, request, side.minimum_cell, record)


def _check_agreed(study: Recipe, request: dict[str, Any]) -> None:
    """Refuse classes and columns in another order than the study's: answers would be compared with others' columns."""
    classes, columns = request["classes"], request.get("columns")
    if (classes is None or as_classes(classes) == study.kind.classes) and (
        not columns or as_columns(columns) == study.kind.columns
    ):
        return
    raise Mismatch(
        "classes and columns: expected those of the study, in its order, got others; ask with the study that this node "
        "has agreed to"
    )


def _recall(side: ClientSide, party: Party, context: Context) -> float:
    """Give the side back what it remembers of this run; return when the run started.

    The data are read anew for each message. If they have changed since the run began they are refused, because the
    replies of one run must be about the same samples.
    """
    if _MEMORY not in context.state.array_records:
        raise ClientFailed(
            "this node has lost its state: it was restarted during the run; start the run again"
        ).telling()
    memory = wire.decode(envelope.unpack(context.state.array_records[_MEMORY]))
    if memory["data"] != party.state:
        raise InvalidData(
            f"the data of {party.client.name!r} have changed since the run began: leave them as they are during a run, "
            "and start it again"
        ).telling("the node's data have changed during the run")
    side.state, side.model, side.personal = memory["state"], memory["model"], memory["personal"]
    return float(memory["started"])


def folder_name(client: str) -> str:
    """Return a name for a client's folder that is safe on every system.

    >>> folder_name("ward 3"), folder_name("../etc"), folder_name("..")
    ('ward%203', '%2E%2E%2Fetc', '%2E%2E')
    """
    return quote(client, safe="").replace(".", "%2E")

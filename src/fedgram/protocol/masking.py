"""The client's side of a run on secure sums: all that leaves a client is masked, or on the short list below.

The list does not depend on the server's requests: a client that takes part in such a run refuses a plain request.
"""

from collections.abc import Mapping
from hashlib import sha256
from hmac import digest as keyed_digest
from secrets import token_bytes
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgram.core import wire
from fedgram.core.arrays import as_blocks
from fedgram.core.errors import ClientFailed, InvalidData, MissingExtra, RefusedMessage, Withheld
from fedgram.core.hashing import blocks_of
from fedgram.evaluation import BINS, ERROR_SUMS, Calibration, Errors, NumericErrors, Performance, RightLabels
from fedgram.moments.targets import ClassTargets, NumericTargets, Targets
from fedgram.protocol import replies
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.disclosure import weighing_of
from fedgram.protocol.replies import ColumnSums, LabelCounts, MomentsOf, Number, Numbers, Question, Reply
from fedgram.protocol.reply_layouts import Layout, layout_of, numbers_of
from fedgram.secure.secure_sums import Request, SecureParty
from fedgram.secure.witness_ledger import TEST, TRAINING

if TYPE_CHECKING:
    from fedgram.protocol.method import Method

# All that leaves a client unmasked: nothing, in reply to a step that only tells it something; these fields of hello,
# and whether it has samples for training and for testing at all; and one of these refusals.
HELLO = ("shape", "features", "columns", "kind")
REFUSALS: Mapping[type[Exception], str] = {
    Withheld: "its own thresholds keep it from answering",
    MissingExtra: "a package that the step needs is not installed there",
    InvalidData: "its data cannot be used",
    RefusedMessage: "it refuses the request",
    Exception: "it could not perform the step",
}
PERCENT = 100  # a client's accuracy is sent in whole percent


def unmasked(step: str, reply: Any) -> Any:
    """Return the part of a reply that may leave a client without a mask; raise if the reply needs one."""
    if reply is None:
        return None
    if step == "hello":
        # The agreement asks for these; the same number for everyone with samples tells no more.
        told = {"n": min(reply["n"], 1), "tested": min(reply["tested"], 1), "far": 0, "labels": None}
        return {name: reply[name] for name in HELLO} | told
    raise RefusedMessage(f"request for {step!r}: expected one for a masked reply, got one for a plain reply")


def refusal(error: Exception) -> ClientFailed:
    """Return the error that the server hears of: one of a fixed list, without any text of the client's."""
    text = next(text for kind, text in REFUSALS.items() if isinstance(error, kind))
    failure = ClientFailed(text)
    failure.__cause__ = error  # for a user of one process, who has all data anyway
    return failure


class MaskingClient:
    """A client that masks its replies.

    Parameters
    ----------
    party
        The client as a party of secure sums.
    side
        The client as steps see it.
    parties
        How many clients there are; a sum of as many replies must fit.

    """

    def __init__(self, party: SecureParty, side: ClientSide, parties: int) -> None:
        self._party, self._side, self._parties = party, side, parties
        self._secret = token_bytes(32)
        self._versions: dict[str, str] = {}

    def sent(self, method: "Method", request: Mapping[str, Any], reply: Any, digest: str) -> bytes:
        """Return the bytes that leave the client in reply to a request with this SHA-256 digest."""
        step, asked = request["step"], request.get("secure")
        if asked is None:
            return wire.encode(unmasked(step, reply), sealed=False)
        if reply is None and step == "evaluate":  # without a model
            return wire.encode(unmasked(step, reply), sealed=False)
        # As it would arrive without a mask: lists, plain numbers and arrays, all finite.
        reply = wire.decode(wire.encode(reply, sealed=False), finite=True)
        side, rows = self._side, TEST if step == "evaluate" else TRAINING
        # Two sums under different weights are two equations for what two of the clients have.
        if asked["weighted"] and (rows == TEST or _sums_samples(method, step, self._question(request))):
            raise RefusedMessage(f"weighted: expected no weights for sums over samples, got them for {step!r}")
        if rows == TEST:
            layout, reply = self._evaluation(reply)
        else:
            question = self._question(request)
            kind = kind_of(method, step, question)
            replies.check(reply, kind, question)  # only here: the server sees no single reply
            layout = layout_of(kind, question)
        times = side.n if asked["weighted"] else 1
        value, layout = {"value": reply, "weight": 1}, weighed(layout)
        numbers = numbers_of(layout, value, parties=self._parties, secret=self._secret, times=times)
        bound = Request(asked["run"], asked["number"], step, request["round"], digest, asked["count"])
        upload = self._party.upload(bound, numbers, version=self._version(rows), rows=rows)
        return wire.encode({"upload": np.frombuffer(upload, dtype=np.uint8)}, sealed=False)

    def _evaluation(self, reply: Any) -> tuple[Layout, dict[str, Any]]:
        """Return the layout of an evaluation and its sums."""
        targets = self._side.targets
        layout = layout_of_evaluation(targets)
        if layout is None or not isinstance(reply, dict):
            raise RefusedMessage("evaluation: expected sums about probabilities or errors, got something else")
        return layout, evaluation_sums(targets, reply, self._side.tested)

    def _question(self, request: Mapping[str, Any]) -> Question:
        side = self._side
        return Question(
            side.name,
            request["payload"],
            request["round"],
            side.classes,
            side.shape,
            side.data.features,
            side.n,
            side.tested,
            side.columns,
            side.targets.names if side.basis is not None else (),
            side.targets,
        )

    def _version(self, rows: str) -> str:
        """Return a digest of the client's rows under a secret of its own: it changes with them, and tells nothing."""
        if rows not in self._versions:  # the data do not change in a run
            self._versions[rows] = self._digest(rows)
        return self._versions[rows]

    def _digest(self, rows: str) -> str:
        data = self._side.data
        x, y = (data.x_test, data.y_test) if rows == TEST else (data.x, data.y)
        found = sha256()
        for block in as_blocks(x):
            for part in blocks_of(np.asarray(block)):
                found.update(part)
        found.update(repr(np.asarray(y).tolist()).encode())
        return keyed_digest(self._secret, rows.encode() + found.digest(), "sha256").hex()


def kind_of(method: "Method", step: str, question: Question) -> Reply:
    """Return the kind of reply to a question."""
    declared: Any = replies.expected(type(method), step)  # type: ignore[arg-type]
    return declared(method, question) if callable(declared) else declared


def _sums_samples(method: "Method", step: str, question: Question) -> bool:
    """Return whether a step replies with sums over samples, which grow with their number by themselves."""
    if weighing_of(type(method), step) is not None:
        return True
    return isinstance(kind_of(method, step, question), MomentsOf | ColumnSums | LabelCounts)


def weighed(layout: Layout) -> Layout:
    """Return the layout of a reply with its weight, which is multiplied in."""
    return {"value": layout, "weight": layout_of(Number(whole=True), None)}


def layout_of_evaluation(targets: Targets) -> Layout | None:
    """Return the layout of the sums that judge a model, for classes or numeric outcomes; None for other targets."""
    if isinstance(targets, NumericTargets):
        return layout_of({name: Numbers((len(targets.names),)) for name in _NUMERIC} | {"n": Number(whole=True)}, None)
    if not isinstance(targets, ClassTargets):
        return None
    whole = Numbers((BINS,), "int64")
    numbers = {"squared": Number(), "accuracy": Number(whole=True)}
    return layout_of({"samples": whole, "right": whole, "confidence": Numbers((BINS,))} | numbers, None)


_NUMERIC = ("squared", "absolute", "total", "squares")


def evaluation_sums(targets: Targets, reply: dict[str, Any], n: int) -> dict[str, Any]:
    """Return the sums of an evaluation on n test samples as numbers that add up over clients.

    A client's accuracy goes in whole percent. With all its digits, a sum of a few fractions could be taken apart into
    their numerators and denominators: each client's accuracy and number of test samples.
    """
    if not targets.names:
        accuracy = round(PERCENT * int(reply["right"].sum()) / n)
        return reply | {"accuracy": accuracy}
    # About zero instead of about the client's own mean, so that it adds up.
    squares = reply["spread"] + np.square(reply["total"]) / n
    return {name: reply[name] for name in ERROR_SUMS if name != "spread"} | {"squares": squares, "n": n}


def performance(targets: Targets, sums: Mapping[str, Any]) -> Performance:
    """Return the performance over all clients' test samples, from the sums of `evaluation_sums`."""
    if not targets.names:
        return RightLabels.of(Calibration.of_sums(sums))
    n = sums["n"]
    spread = np.maximum(sums["squares"] - np.square(sums["total"]) / n, 0.0)
    columns = zip(*(sums[name].tolist() for name in ("squared", "absolute", "total")), spread.tolist(), strict=True)
    return NumericErrors({name: Errors(n, *column) for name, column in zip(targets.names, columns, strict=True)})

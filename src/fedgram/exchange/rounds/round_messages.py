"""Messages of methods by files: a `Round` asks all parties, and each party replies with an `Answer`.

A `Round` is the payload of a file of kind `round`, such as `round-1.fgm`; an `Answer` that of a file of kind `answer`.
A party performs only the step that a method marks with `by_files`, no matter what a file asks for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from fedgram.core import wire
from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch, RefusedMessage
from fedgram.data.client import Client, warn_if_few
from fedgram.exchange.format.coordinator import check_coordinator
from fedgram.exchange.format.fgm import MOST_FEATURES, File
from fedgram.moments.basis import Basis
from fedgram.moments.moments import Moments
from fedgram.protocol import replies
from fedgram.protocol.agreement import Agreement
from fedgram.protocol.byfiles import Joined, asked_by_files
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.disclosure import Record, answered
from fedgram.protocol.method import Method
from fedgram.protocol.registry import registry
from fedgram.protocol.replies import MomentsOf, Question
from fedgram.studies.study import Study

MOST_ROUNDS = 10_000


@wire.register_message
@dataclass(frozen=True, eq=False)
class Round:
    """Request of the coordinator to all parties in one round: a step's payload, and the columns that the step sees.

    Attributes
    ----------
    number
        Number of the round, from 1.
    method
        Name of the method.
    settings
        Hyper-parameters of the method.
    basis
        Map from the columns that were sent to those that the method sees.
    payload
        Payload of the step, such as the model so far.

    """

    number: int
    method: str
    settings: Mapping[str, Any]
    basis: Basis  # maps the columns that were sent to those that the method sees
    payload: Any

    wire_name: ClassVar[str] = "exchange-round"
    wire_version: ClassVar[int] = 1
    wire_fields: ClassVar[Mapping[str, wire.Field]] = {}

    @property
    def step(self) -> str:
        """Name of the step."""
        return asked_by_files(self.method).name

    def configured(self) -> Method:
        """Return the method with its settings."""
        _ = self.step  # raises for methods without a step by files
        return registry[self.method](**self.settings)

    def to_fields(self) -> dict[str, Any]:
        """Return the fields for the wire."""
        return {name: getattr(self, name) for name in ("number", "method", "settings", "basis", "payload")}

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Return the request of these fields from the wire."""
        _check_number(fields["number"])
        for name, kind in (("method", str), ("settings", dict), ("basis", Basis)):
            if not isinstance(fields[name], kind):
                raise RefusedMessage(f"round, field {name!r}: expected a {kind.__name__}, got {fields[name]!r:.60}")
        return cls(*(fields[name] for name in ("number", "method", "settings", "basis", "payload")))

    def check(self) -> None:
        """Raise if the method has no step by files, or does not have these settings."""
        self.configured()


@wire.register_message
@dataclass(frozen=True, eq=False)
class Answer:
    """Answer of a party to a round.

    Attributes
    ----------
    number
        Number of the round.
    request
        Digest of the file that asked.
    reply
        Reply of the step.

    """

    number: int
    request: str
    reply: Any

    wire_name: ClassVar[str] = "exchange-answer"
    wire_version: ClassVar[int] = 1
    wire_fields: ClassVar[Mapping[str, wire.Field]] = {}

    def to_fields(self) -> dict[str, Any]:
        """Return the fields for the wire."""
        return {"number": self.number, "request": self.request, "reply": self.reply}

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Return the answer of these fields from the wire."""
        _check_number(fields["number"])
        if not isinstance(fields["request"], str):
            raise RefusedMessage(f"answer, field 'request': expected a digest, got {fields['request']!r:.60}")
        return cls(fields["number"], fields["request"], fields["reply"])

    def check(self) -> None:
        """Do nothing: `check_answer` checks the reply with its request."""


def answer(study: Study, request: File, client: Client, record: Record | None = None) -> Answer:
    """Return a party's answer to a round, from its rows as the study encodes them.

    `record` has the party's earlier answers, and receives this one; without it there is no comparison. Raises if the
    answer, or its difference to an earlier answer, would mostly be of fewer samples than the study allows.
    """
    asked = _asked(study, request)
    method, n = asked.configured(), len(client.y)
    study.admit(client, method.fewest_samples(n))
    wanted = _wanted(study, asked, client.name, n)[0]
    if isinstance(wanted, MomentsOf) and wanted.dimension is not None:
        if wanted.dimension > MOST_FEATURES:
            raise InvalidParameter(
                f"{request.name} asks for moments of {wanted.dimension} features, and a party makes at most "
                f"{MOST_FEATURES}: ask the coordinator for fewer"
            )
        if study.minimum_samples or study.minimum_cell:
            warn_if_few(client.name, wanted.dimension, n)
    side = ClientSide(client, classes=study.schema.classes, columns=study.sent, basis=asked.basis)
    order = {"step": asked.step, "round": asked.number - 1, "seed": 0, "classes": None, "payload": asked.payload}
    record = Record(study.features, client.name) if record is None else record
    try:
        reply = answered(method, side, order, study.minimum_cell, record)
    except (InvalidData, RefusedMessage) as error:
        raise type(error)(f"{request.name} refused: {error}") from error
    return Answer(asked.number, request.digest, reply)


def check_answer(study: Study, request: File, answered: File, joined: Moments) -> Answer:
    """Return the answer in a party's file; raise if it is to another round or cannot be the step's reply.

    `joined` are the moments of the summary that the party has joined with.
    """
    asked, found = _asked(study, request), answered.of_kind("answer").holding(Answer)
    party = answered.header.party
    answered.check_study(study, remedy="answer with the study file that all have agreed on")
    if found.number != asked.number or found.request != request.digest:
        raise Mismatch(
            f"{answered.name}: expected an answer to round {asked.number} (request {request.digest[:16]}), got one to "
            f"round {found.number} (request {found.request[:16]}); answer the newest round's file"
        )
    if answered.header.samples != joined.n:
        raise Mismatch(
            f"{answered.name}: expected the {joined.n} samples that {party!r} has joined with, got "
            f"{answered.header.samples}; answer with the same table"
        )
    wanted, question = _wanted(study, asked, party, joined.n)
    try:
        replies.check(found.reply, wanted, question)
        bounds = asked_by_files(asked.method).bounds
        bounds(found.reply, Joined.of(asked.basis, joined), asked.configured(), asked.payload)
    except RefusedMessage as error:
        raise RefusedMessage(f"{answered.name} of {party!r} refused: {error}") from error
    return found


def _wanted(study: Study, asked: Round, party: str, samples: int) -> tuple[Any, Question]:
    """Return the kind of reply expected of a party with this many samples, and the question."""
    kind = study.schema
    question = Agreement(
        kind.classes,
        (len(study.sent),),
        study.features,
        study.sent,
        samples={party: samples},
        study=study,
        basis=asked.basis,
    ).question(party, asked.payload, asked.number - 1)
    method = asked.configured()
    expected: Any = replies.expected(type(method), asked.step)  # type: ignore[arg-type]
    return expected(method, question) if callable(expected) else expected, question


def _asked(study: Study, request: File) -> Round:
    """Return the request in a file; raise if it is not of this study."""
    asked = request.of_kind("round").holding(Round)
    request.check_study(study, remedy="give the study file that the coordinator has")
    check_coordinator(request, study)
    try:
        study.check_basis(asked.basis)
    except Mismatch as error:
        raise Mismatch(f"{request.name} refused: {error}") from error
    if not study.classes and not asked.configured().numeric:
        raise InvalidParameter(f"{asked.method} needs classes, and the outcome of study {study.name!r} is a number")
    return asked


def _check_number(number: Any) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MOST_ROUNDS:
        raise RefusedMessage(f"a round's number: expected 1 to {MOST_ROUNDS}, got {number!r:.60}")

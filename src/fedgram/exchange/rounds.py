"""Methods of several rounds by files: a request goes out as `round-1.fgm`, each party answers with a file of its own.

A `Round` is the payload of a file of kind `round`, an `Answer` that of a file of kind `answer`. A party performs only
the steps that are listed here, whatever a file asks for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Self

from fedgram.core import wire
from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch, RefusedMessage
from fedgram.data.client import Client, warn_if_few
from fedgram.exchange.bounds import Own, check_features, check_gradient
from fedgram.exchange.coordinator import check_coordinator
from fedgram.exchange.files import File
from fedgram.moments.basis import Basis
from fedgram.moments.moments import Moments
from fedgram.protocol import replies
from fedgram.protocol.agreement import Agreement
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.disclosure import Record, answered
from fedgram.protocol.method import Method
from fedgram.protocol.registry import registry
from fedgram.protocol.replies import MomentsOf, Question
from fedgram.studies.study import Study

MOST_ROUNDS = 10_000
MOST_FEATURES = 1 << 14  # that a party makes moments of: a file of 1 GB


@dataclass(frozen=True)
class Asking:
    """The one step of a method that parties answer by files, and what refuses replies that cannot be theirs.

    `check` takes a reply, the party's own moments, the method and what was asked.
    """

    name: str
    check: Callable[[Any, Own, Any, Any], None]


# Once summaries have joined, these are asked for, and nothing else: FedLogit's gradients are of a model that is not
# known before, and APFL's features are not linear in the columns, so that no sums of these give theirs.
STEPS: Mapping[str, Asking] = MappingProxyType(
    {
        "fedlogit": Asking("gradient", check_gradient),
        "apfl": Asking("summarize", check_features),
    }
)


def step_of(method: str) -> Asking:
    """Return the step of a method that is answered by files."""
    if method not in STEPS:
        raise InvalidParameter(f"{method!r} has no step that is answered by files: only {', '.join(STEPS)}")
    return STEPS[method]


@wire.register_message
@dataclass(frozen=True, eq=False)
class Round:
    """What the coordinator asks all parties in one round: a step's payload, and the columns that it is about.

    Rounds count from 1, as their files do. `settings` are the method's.
    """

    number: int
    method: str
    settings: Mapping[str, Any]
    basis: Basis  # how the columns that the method sees are made of those that were sent
    payload: Any

    wire_name: ClassVar[str] = "exchange-round"
    wire_version: ClassVar[int] = 1
    wire_fields: ClassVar[Mapping[str, wire.Field]] = {}

    @property
    def step(self) -> str:
        """The step that is asked for."""
        return step_of(self.method).name

    def configured(self) -> Method:
        """Return the method with its settings."""
        _ = self.step  # only of listed methods
        return registry[self.method](**self.settings)

    def to_fields(self) -> dict[str, Any]:
        """Take the request apart for the wire."""
        return {name: getattr(self, name) for name in ("number", "method", "settings", "basis", "payload")}

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Put a request together from the wire."""
        _check_number(fields["number"])
        for name, kind in (("method", str), ("settings", dict), ("basis", Basis)):
            if not isinstance(fields[name], kind):
                raise RefusedMessage(f"field {name!r} of a round must be a {kind.__name__}, got {fields[name]!r:.60}")
        return cls(*(fields[name] for name in ("number", "method", "settings", "basis", "payload")))

    def check(self) -> None:
        """Refuse a method that is not answered by files, or settings that it does not have."""
        self.configured()


@wire.register_message
@dataclass(frozen=True, eq=False)
class Answer:
    """What a party's samples say to a round: its number, the digest of the file that asked, and the step's reply."""

    number: int
    request: str
    reply: Any

    wire_name: ClassVar[str] = "exchange-answer"
    wire_version: ClassVar[int] = 1
    wire_fields: ClassVar[Mapping[str, wire.Field]] = {}

    def to_fields(self) -> dict[str, Any]:
        """Take the answer apart for the wire."""
        return {"number": self.number, "request": self.request, "reply": self.reply}

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Put an answer together from the wire."""
        _check_number(fields["number"])
        if not isinstance(fields["request"], str):
            raise RefusedMessage(f"field 'request' of an answer must be a digest, got {fields['request']!r:.60}")
        return cls(fields["number"], fields["request"], fields["reply"])

    def check(self) -> None:
        """Nothing more: `check_answer` knows what was asked."""


def answer(study: Study, request: File, client: Client, record: Record | None = None) -> Answer:
    """Return a party's answer to a round, from its rows as the study encodes them.

    `record` has the party's earlier answers, and gets this one; without it the answer is compared with none. An answer
    that is mostly of fewer samples than the study allows is refused, alone or less an earlier one.
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
    side = ClientSide(client, classes=study.kind.classes, columns=study.sent, basis=asked.basis)
    order = {"step": asked.step, "round": asked.number - 1, "seed": 0, "classes": None, "payload": asked.payload}
    record = Record(study.features, client.name) if record is None else record
    try:
        reply = answered(method, side, order, study.minimum_cell, record)
    except (InvalidData, RefusedMessage) as error:
        raise type(error)(f"{request.name} refused: {error}") from error
    return Answer(asked.number, request.digest, reply)


def check_answer(study: Study, request: File, answered: File, joined: Moments) -> Answer:
    """Return the answer in a party's file, if it answers this round and can be what the step replies with.

    `joined` are the moments of the summary that the party has joined with.
    """
    asked, found = _asked(study, request), answered.of_kind("answer").holding(Answer)
    party = answered.header.party
    answered.check_study(study, remedy="answer with the study file that all have agreed on")
    if found.number != asked.number or found.request != request.digest:
        raise Mismatch(
            f"{answered.name} answers round {found.number} (request {found.request[:16]}), and round {asked.number} "
            f"(request {request.digest[:16]}) is asked: answer the newest round's file"
        )
    if answered.header.samples != joined.n:
        raise Mismatch(
            f"{answered.name} is of {answered.header.samples} samples, and {party!r} has joined with {joined.n}: "
            "answer with the same table"
        )
    wanted, question = _wanted(study, asked, party, joined.n)
    try:
        replies.check(found.reply, wanted, question)
        step_of(asked.method).check(found.reply, Own.of(asked.basis, joined), asked.configured(), asked.payload)
    except RefusedMessage as error:
        raise RefusedMessage(f"{answered.name} of {party!r} refused: {error}") from error
    return found


def _wanted(study: Study, asked: Round, party: str, samples: int) -> tuple[Any, Question]:
    """Return what a party with so many samples must reply, and the question that it replies to."""
    kind = study.kind
    question = Agreement(
        kind.classes,
        (len(study.sent),),
        study.features,
        study.sent,
        samples={party: samples},
        recipe=study,
        basis=asked.basis,
    ).question(party, asked.payload, asked.number - 1)
    method = asked.configured()
    expected: Any = replies.expected(type(method), asked.step)  # type: ignore[arg-type]
    return expected(method, question) if callable(expected) else expected, question


def _asked(study: Study, request: File) -> Round:
    """Return the request in a file, if it is one of this study."""
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
        raise RefusedMessage(f"a round's number is from 1 to {MOST_ROUNDS}, got {number!r:.60}")

"""What comes of a run: the model, the personal ones, who took part, and what it cost."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, cast

import numpy as np

from fedgram.core import wire
from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch
from fedgram.core.files import replace_file, writing
from fedgram.data.client import Client
from fedgram.evaluation import Evaluation
from fedgram.models import Model, with_columns
from fedgram.moments.moments import Moments
from fedgram.protocol.contributions import Contributions
from fedgram.protocol.fitfields import check_fields
from fedgram.protocol.registry import registry

if TYPE_CHECKING:
    from fedgram.protocol.onemessage import OneMessage, Publishing


class Pool(NamedTuple):
    """Everybody's moments, of how many parties, and the shape of a sample before the method made features of it."""

    total: Moments
    parties: int
    shape: tuple[int, ...]


@dataclass
class Traffic:
    """Bytes that really crossed between server and clients; evaluation is not counted."""

    by_client: dict[str, dict[str, int]] = field(default_factory=dict)

    def count(self, client: str, *, up: int = 0, down: int = 0) -> None:
        """Add to a client's account."""
        account = self.by_client.setdefault(client, {"up": 0, "down": 0})
        account["up"] += up
        account["down"] += down

    @property
    def up(self) -> int:
        """Bytes from all clients to the server."""
        return sum(account["up"] for account in self.by_client.values())

    @property
    def down(self) -> int:
        """Bytes from the server to all clients."""
        return sum(account["down"] for account in self.by_client.values())


@wire.register_message
@dataclass(frozen=True, eq=False)
class Fit:
    """The result of `Method.fit`.

    `model` is the global model, None where a method has only personal ones. `contributors` are the clients whose
    data entered the model; `absent` says of every other one why not, `lost` of which contributors nothing more was
    heard, and why.
    `personal` holds the clients' own models where the engine can see them (in one process). `evaluation` is None
    if no client has test samples; `rounds` has one evaluation per round that an iterative method reported. `total`
    holds everybody's moments where the method needs no more: then `add` and `remove` work, and `contributions` has a
    record of each client's moments. `message` is what the server published, where moments alone do not give it again.
    `traffic` counts our messages; `carried` is what the `engine` itself counts, envelopes and evaluation included.
    `notes` are what a method found worth seeing. Seconds are those without the rounds' evaluations.
    """

    model: Any
    method: str
    settings: Mapping[str, Any]
    seed: int
    contributors: tuple[str, ...]
    absent: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    personal: Mapping[str, Model] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    evaluation: Evaluation | None = None
    rounds: Sequence[Evaluation] = ()
    seconds: float = 0.0
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    total: Moments | None = None
    contributions: Contributions | None = None
    message: Any = None
    shape: tuple[int, ...] = ()  # of a sample
    engine: str = "inprocess"
    carried: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    wire_name: ClassVar[str] = "fit"
    wire_version: ClassVar[int] = 1
    wire_fields: ClassVar[Mapping[str, wire.Field]] = {}

    @cached_property
    def published(self) -> Any:
        """What the server published: all that a client needs to personalize."""
        if self.message is not None:
            return self.message
        if self.total is None:
            raise InvalidParameter(f"a fit of {self.method} has nothing published to personalize from")
        method, pool = self._one_message()
        return method.publish(pool)

    def personalize(self, client: Client) -> Model:
        """Return a client's own model from what was published; it need not have been there before.

        One with a contributor's name counts as that contributor, whose samples are in the total.
        """
        if not isinstance(client, Client):
            raise InvalidData(f"personalize takes an fg.Client, got a {type(client).__name__}")
        published, method = self.published, cast("Publishing", registry[self.method](**self.settings))
        return method.adapt(published, client, member=client.name in self.contributors)

    def summarize(self, client: Client) -> Moments:
        """Return the moments that a client sends to join, or has sent: what `add` and `remove` take.

        They are of its training samples. For one with a contributor's name they must be what it contributed, to
        rounding: if the run held samples back for testing, the client has to come with the same split.
        """
        method, pool = self._one_message()
        if not isinstance(client, Client):
            raise InvalidData(f"summarize takes an fg.Client, got a {type(client).__name__}")
        moments = method.summary(client, pool.total.classes, pool.total.kind.columns)
        if self.contributions is not None and client.name in self.contributions.by_name:
            pool.total.kind.check_same(moments.kind)
            self.contributions.check_same(client.name, moments)
        return moments

    def add(self, moments: Moments, *, name: str | None = None) -> Self:
        """Return the fit with a late client's moments in it: exactly as if they had been there from the start.

        `name` is the client's, and must be given. Moments that are in already are refused, under whatever name.
        Personal models are not carried over, because they belong to the old total; `personalize` makes new ones.
        """
        _, pool = self._one_message()
        known = self._checked(moments, name)
        moments.check()
        changed = known.plus(cast("str", name), moments)
        return self._with(pool.total + moments, changed)

    def remove(self, moments: Moments, *, name: str | None = None) -> Self:
        """Return the fit without a client, exactly as if it had never been there.

        `name` is the client's, and must be given; `moments` are those that it contributed: the same bytes, or equal
        to rounding with equal class counts, as from another processor. Anything else is refused. A client that
        deleted some of its samples leaves with the old moments and joins again with the new ones.
        """
        _, pool = self._one_message()
        known = self._checked(moments, name)
        changed = known.minus(cast("str", name), moments)
        return self._with(pool.total - moments, changed)

    def _checked(self, moments: object, name: object) -> Contributions:
        """Return the records, if these can be a client's moments and its name."""
        assert self.total is not None
        if not isinstance(moments, Moments):
            raise InvalidData(
                f"moments such as fit.summarize(client) returns are wanted, got a {type(moments).__name__}"
            )
        if not isinstance(name, str) or not name:
            raise InvalidParameter(f"name must say whose moments these are, as a non-empty text, got {name!r}")
        if self.contributions is None:
            raise InvalidData(
                "this fit has no records of what its clients contributed, so nobody can join or leave safely: "
                "it was saved by an earlier version; run it again"
            )
        self.total.kind.check_same(moments.kind)
        return self.contributions

    def _with(self, total: Moments, contributions: Contributions) -> Self:
        method, _ = self._one_message()
        stayed = [name for name in self.contributors if name in contributions.by_name]
        contributors = (*stayed, *(name for name in contributions.by_name if name not in stayed))
        model = method.global_model(method.publish(Pool(total, len(contributors), self.shape)))
        model = with_columns(model, total.kind.columns)
        stale: dict[str, Any] = {"evaluation": None, "rounds": ()}
        stale |= {name: {} for name in ("personal", "absent", "lost", "notes")}
        return replace(self, model=model, total=total, contributors=contributors, contributions=contributions, **stale)

    def _one_message(self) -> "tuple[OneMessage, Pool]":
        if self.total is None:
            raise InvalidParameter(f"a fit of {self.method} cannot be changed: it is not made from moments alone")
        method = cast("OneMessage", registry[self.method](**self.settings))
        return method, Pool(self.total, len(self.contributors), self.shape)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fit to one file, whole or not at all."""
        with writing(Path(path)):
            replace_file(Path(path), wire.encode(self))

    def to_fields(self) -> dict[str, Any]:
        """Take the fit apart for the wire."""
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "traffic": self.traffic.by_client,
            "evaluation": _counts(self.evaluation),
            "rounds": [_counts(evaluation) for evaluation in self.rounds],
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Put a fit together from the wire."""
        check_fields(fields)
        return cls(
            # Fits of earlier versions lack what was added since; that has defaults.
            **{name: fields[name] for name in _PLAIN if name in fields}
            | {name: tuple(fields.get(name, ())) for name in ("contributors", "shape")},
            traffic=Traffic(fields["traffic"]),
            evaluation=fields["evaluation"] and Evaluation(**fields["evaluation"]),
            rounds=[Evaluation(**counts) for counts in fields["rounds"]],
        )

    def check(self) -> None:
        """Refuse records that do not belong to the total; the models in it have been checked one by one."""
        if self.contributions is not None:
            self._check_contributions(self.contributions)

    def _check_contributions(self, known: Contributions) -> None:
        if not isinstance(known, Contributions) or not isinstance(self.total, Moments):
            raise Mismatch("field 'contributions' must be records of the moments in field 'total'")
        counts = sum(record.counts.astype(object) for record in known.by_name.values())
        if (
            set(known.by_name) != set(self.contributors)
            or known.direction.shape != (self.total.d,)
            or not np.array_equal(counts, self.total.counts)
        ):
            raise Mismatch("field 'contributions' has records of other clients, features or samples than field 'total'")


_PLAIN = (
    "model",
    "method",
    "settings",
    "seed",
    "contributors",
    "absent",
    "lost",
    "personal",
    "seconds",
    "cpu_seconds",
    "total",
    "contributions",
    "message",
    "shape",
    "engine",
    "carried",
    "notes",
)


def _counts(evaluation: Evaluation | None) -> dict[str, Any] | None:
    return None if evaluation is None else asdict(evaluation)


def outcome(fit: Fit, evaluation: Evaluation | None = None) -> dict[str, Any]:
    """Return what to report of a fit, ready for JSON; `evaluation` stands in for the fit's own."""
    judged = evaluation or fit.evaluation
    return {
        "method": fit.method,
        "settings": dict(fit.settings),
        "seed": fit.seed,
        "engine": fit.engine,
        "accuracy": judged.summary() if judged and any(judged.tested.values()) else None,
        "untested": judged.untested if judged else len(fit.contributors),
        "failed": dict(judged.failed) if judged else {},
        "absent": dict(fit.absent),
        "lost": dict(fit.lost),
        "traffic": {"up": fit.traffic.up, "down": fit.traffic.down},
        "carried": dict(fit.carried),
        "reveals": fit.notes.get("reveals"),
        "seconds": round(fit.seconds, 4),
        "cpu_seconds": {who: round(seconds, 4) for who, seconds in fit.cpu_seconds.items()},
    }


def load(path: str | os.PathLike[str]) -> Fit:
    """Return the fit that `Fit.save` wrote, checked like anything that another party sends."""
    fit = _read(path)
    if not isinstance(fit, Fit):
        raise Mismatch(f"{os.fspath(path)} holds a {type(fit).__name__}, not a fit")
    return fit


def load_model(path: str | os.PathLike[str]) -> Model:
    """Return the model of a file: one that a client kept, or the global one of a fit."""
    found = _read(path)
    model = found.model if isinstance(found, Fit) else found
    if not isinstance(model, Model):
        what = "a fit without a global model" if isinstance(found, Fit) else f"a {type(found).__name__}"
        raise Mismatch(f"{os.fspath(path)} holds {what}, not a model")
    return model


def _read(path: str | os.PathLike[str]) -> Any:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InvalidData(f"cannot read {os.fspath(path)}: {error.strerror}") from error
    return wire.decode(data, sender=os.fspath(path))

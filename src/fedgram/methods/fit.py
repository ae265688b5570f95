"""What comes of a run: the model, the personal ones, who took part, and what it cost."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, cast

from fedgram import wire
from fedgram.cache import replace_file
from fedgram.data.client import Client
from fedgram.errors import InvalidData, InvalidParameter, Mismatch, UnknownName
from fedgram.evaluation import Evaluation
from fedgram.methods.registry import registry
from fedgram.models import Model, with_columns
from fedgram.moments import Moments

if TYPE_CHECKING:
    from fedgram.methods.onemessage import OneMessage


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
    holds everybody's moments where the method needs no more: then `add` and `remove` work. `traffic` counts our
    messages; `carried` is what the `engine` itself counts, envelopes and evaluation included. `notes` are what a
    method found worth seeing. Seconds are those without the rounds' evaluations.
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
        method, pool = self._one_message()
        return method.publish(pool)

    def personalize(self, client: Client) -> Model:
        """Return a client's own model from what was published; it need not have been there before.

        One with a contributor's name counts as that contributor, whose samples are in the total.
        """
        method, _ = self._one_message()
        return method.adapt(self.published, client, member=client.name in self.contributors)

    def summarize(self, client: Client) -> Moments:
        """Return the moments that a client would send to join: what `add` and `remove` take."""
        method, pool = self._one_message()
        return method.summary(client, pool.total.classes, pool.total.kind.columns)

    def add(self, moments: Moments, *, name: str | None = None) -> Self:
        """Return the fit with a late client's moments in it: exactly as if they had been there from the start.

        With `name` the client is listed as a contributor. Personal models are not carried over, because they belong
        to the old total; `personalize` makes new ones.
        """
        _, pool = self._one_message()
        if name in self.contributors:
            raise InvalidData(f"client {name!r} has contributed already: remove its old moments first")
        return self._with(pool.total + moments, (*self.contributors, *([] if name is None else [name])))

    def remove(self, moments: Moments, *, name: str | None = None) -> Self:
        """Return the fit without these moments, exactly as if they had never been there.

        With `name` the client is no contributor any more; without, it has only deleted some of its samples.
        """
        _, pool = self._one_message()
        if name is not None and name not in self.contributors:
            raise UnknownName("contributor", name, self.contributors)
        return self._with(pool.total - moments, tuple(other for other in self.contributors if other != name))

    def _with(self, total: Moments, contributors: tuple[str, ...]) -> Self:
        method, _ = self._one_message()
        model = method.global_model(method.publish(Pool(total, len(contributors), self.shape)))
        model = with_columns(model, total.kind.columns)
        stale: dict[str, Any] = {"evaluation": None, "rounds": ()}
        stale |= {name: {} for name in ("personal", "absent", "lost", "notes")}
        return replace(self, model=model, total=total, contributors=contributors, **stale)

    def _one_message(self) -> "tuple[OneMessage, Pool]":
        if self.total is None:
            raise InvalidParameter(f"a fit of {self.method} cannot be changed: it is not made from moments alone")
        method = cast("OneMessage", registry[self.method](**self.settings))
        return method, Pool(self.total, len(self.contributors), self.shape)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fit to one file, whole or not at all."""
        target = Path(path)
        try:
            replace_file(target, wire.encode(self))
        except OSError as error:
            raise InvalidData(f"cannot write {target}: {error.strerror or error}") from error

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
        return cls(
            # Fits of earlier versions lack what was added since; that has defaults.
            **{name: fields[name] for name in _PLAIN if name in fields}
            | {name: tuple(fields.get(name, ())) for name in ("contributors", "shape")},
            traffic=Traffic(fields["traffic"]),
            evaluation=fields["evaluation"] and Evaluation(**fields["evaluation"]),
            rounds=[Evaluation(**counts) for counts in fields["rounds"]],
        )

    def check(self) -> None:
        """Accept: the models in it have been checked one by one."""


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

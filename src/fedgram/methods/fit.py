"""What comes of a run: the model, the personal ones, who took part, and what it cost."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from fedgram import wire
from fedgram.cache import replace_file
from fedgram.errors import InvalidData, Mismatch
from fedgram.evaluation import Evaluation
from fedgram.models import Model


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
    data entered the model; `absent` says of every other one why not.
    `personal` holds the clients' own models where the engine can see them (in one process). `evaluation` is None
    if no client has test samples; `rounds` has one evaluation per round that an iterative method reported.
    `traffic` counts our messages; `carried` is what the `engine` itself counts, envelopes and evaluation included.
    """

    model: Any
    method: str
    settings: Mapping[str, Any]
    seed: int
    contributors: tuple[str, ...]
    absent: Mapping[str, str] = field(default_factory=dict)
    personal: Mapping[str, Model] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    evaluation: Evaluation | None = None
    rounds: Sequence[Evaluation] = ()
    seconds: float = 0.0
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    engine: str = "inprocess"
    carried: Mapping[str, int] = field(default_factory=dict)

    wire_name: ClassVar[str] = "fit"
    wire_version: ClassVar[int] = 1
    wire_fields: ClassVar[Mapping[str, wire.Field]] = {}

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
            | {"contributors": tuple(fields["contributors"])},
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
    "personal",
    "seconds",
    "cpu_seconds",
    "engine",
    "carried",
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

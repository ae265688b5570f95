"""What comes of a run: the model, the personal ones, who took part, and what it cost."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from fedgram.core import wire
from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch, UnknownName
from fedgram.core.files import read_regular, replace_file, writing
from fedgram.core.wire.container import MOST_BYTES
from fedgram.data.client import Client
from fedgram.evaluation import Evaluation
from fedgram.models import Model, with_columns
from fedgram.moments.basis import Basis
from fedgram.moments.moments import Moments
from fedgram.numeric_evaluation import NumericEvaluation
from fedgram.protocol.contributions import Contributions
from fedgram.protocol.fitfields import check_fields
from fedgram.protocol.pool import Pool, Pooling, Publishes
from fedgram.protocol.recipe import Recipe, in_source
from fedgram.protocol.registry import registry
from fedgram.protocol.reporting import outcome
from fedgram.protocol.sites import Sites
from fedgram.protocol.transport import Traffic


@wire.register_message
@dataclass(frozen=True, eq=False)
class Fit:
    """The result of `Method.fit`.

    `model` is the global model, None where a method has only personal ones. `contributors` are the clients whose
    data entered the model; `absent` says of every other one why not, `lost` of which contributors nothing more was
    heard, and why.
    `personal` holds the clients' own models where the engine can see them (in one process). `evaluation` is None
    if no client has test samples; `rounds` has one evaluation per round that an iterative method reported. Where the
    outcome is a number, `errors` takes the place of `evaluation`. `total`
    holds the pooled moments where the method needs no more: then `add` and `remove` work, and `contributions` has a
    record of each client's moments. `message` is what the server published, where moments alone do not give it again.
    `traffic` counts our messages; `carried` is what the `engine` itself counts, envelopes and evaluation included.
    `notes` are what a method found worth seeing. Seconds are those without the rounds' evaluations. `timing` has
    each client's seconds of `computing`, `communication` and `idle` time, and in how many rounds it was `asked`;
    clients that train together in this process have no `idle`, because it is not measured.
    `sites` says how well the other clients' model predicts each one, where clients sent moments.
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
    recipe: Recipe | None = None  # the study, where columns are made of those that clients have
    basis: Basis | None = None  # how they were made; without a study, what was subtracted from columns far from zero
    timing: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    errors: NumericEvaluation | None = None
    sites: Sites | None = field(default=None, repr=False)  # is not saved

    wire_name: ClassVar[str] = "fit"
    wire_version: ClassVar[int] = 1
    wire_fields: ClassVar[Mapping[str, wire.Field]] = {}

    @cached_property
    def _configured(self) -> Any:
        """The method that this is a fit of, with its settings."""
        try:
            method = registry[self.method]
        except UnknownName as error:
            raise InvalidParameter(
                f"this fit is of a method {self.method!r} that is not known here: import the file or package that "
                "registers it first"
            ) from error
        return method(**self.settings)

    def _pool(self) -> tuple[Pooling, Pool]:
        """Return the pooled moments, and the method that made a model of them."""
        if self.total is None or not isinstance(self._configured, Pooling):
            raise InvalidParameter(f"a fit of {self.method} cannot be changed: it is not made from moments alone")
        if self.recipe is not None and not self._configured.finds_columns:
            raise InvalidParameter(
                f"a fit of {self.method} under a study cannot be changed: its columns were standardised by a sum of "
                "their own, which moments do not hold"
            )
        outcomes = 0 if self.recipe is None else len(self.recipe.targets)
        pool = Pool(self.total, self.contributors, self.shape, self.contributions, self.recipe, outcomes)
        return self._configured, pool

    @cached_property
    def published(self) -> Any:
        """What the server published: all that a client needs to personalize."""
        if self.message is not None:
            return self.message
        if self.total is None:
            raise InvalidParameter(f"a fit of {self.method} has nothing published to personalize from")
        method, pool = self._pool()
        return method.publish(pool)

    def personalize(self, client: Client) -> Model:
        """Return a client's own model from what was published; it need not have been there before.

        One with a contributor's name counts as that contributor, whose samples are in the total.
        """
        party, published, method = _client(client, "personalize"), self.published, self._configured
        if not isinstance(method, Publishes):
            raise InvalidParameter(f"a fit of {self.method} has nothing published to personalize from")
        return method.model_for(published, party, member=party.name in self.contributors, basis=self.basis)

    def summarize(self, client: Client) -> Moments:
        """Return the moments that a client sends to join, or has sent: what `add` and `remove` take.

        They are of its training samples. For one with a contributor's name they must be what it contributed, to
        rounding: if the run held samples back for testing, the client has to come with the same split.
        """
        method, pool = self._pool()
        party = _client(client, "summarize")
        if self.recipe is not None:
            self.recipe.admit(party, len(party.y))
        basis = self.basis if self.recipe is None else None  # what is sent under a study, the study alone says
        moments = method.summary(party, pool.sent.classes, pool.sent.kind.columns, basis=basis)
        return pool.checked(client.name, moments)

    def add(self, moments: Moments, *, name: str | None = None) -> Self:
        """Return the fit with a late client's moments in it: exactly as if they had been there from the start.

        `name` is the client's, and must be given. Moments that are in already are refused, under whatever name.
        Personal models are not carried over, because they belong to the old total; `personalize` makes new ones.
        """
        method, pool = self._pool()
        return self._of(method, pool.add(moments, name))

    def remove(self, moments: Moments, *, name: str | None = None) -> Self:
        """Return the fit without a client, exactly as if it had never been there.

        `name` is the client's, and must be given; `moments` are those that it contributed: the same bytes, or equal
        to rounding with equal class counts, as from another processor. Anything else is refused. A client that
        deleted some of its samples leaves with the old moments and joins again with the new ones.
        """
        method, pool = self._pool()
        return self._of(method, pool.remove(moments, name))

    def _of(self, method: Pooling, pool: Pool) -> Self:
        """Return the fit of another pool, by the same method."""
        model = with_columns(method.global_model(method.publish(pool)), pool.total.kind.columns)
        basis = self.basis if self.recipe is None else pool.basis
        model = in_source(model, basis, pool.sent.kind.columns)
        changed: dict[str, Any] = {"evaluation": None, "errors": None, "sites": None, "rounds": ()}
        changed |= {name: {} for name in ("personal", "absent", "lost", "notes")}
        changed |= {
            "basis": basis,
            "total": pool.sent,
            "contributors": pool.contributors,
            "contributions": pool.contributions,
        }
        return replace(self, model=model, **changed)

    def predictor(self, client: str | None = None) -> Model:
        """Return the global model, or a client's own; under a study, as a model of tables as the parties have them."""
        model = self.model
        if client is not None:
            if client not in self.personal:
                raise UnknownName("client with a model of its own in this fit", client, self.personal)
            model = self.personal[client]
        if model is None:
            raise InvalidParameter(f"a fit of {self.method} has no global model: name a client, to use its own")
        return model if self.recipe is None else self.recipe.model(model)

    def report(self) -> dict[str, Any]:
        """Return what came of the run, ready for JSON: how good the models are, who took part, what it cost."""
        return outcome(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fit to one file, whole or not at all."""
        with writing(Path(path)):
            replace_file(Path(path), wire.encode(self))

    def to_fields(self) -> dict[str, Any]:
        """Take the fit apart for the wire."""
        return {
            **{name: getattr(self, name) for name in _PLAIN if name not in _LATER or getattr(self, name) is not None},
            "traffic": self.traffic.by_client,
            "evaluation": _counts(self.evaluation),
            "rounds": [_counts(evaluation) for evaluation in self.rounds],
            **({"timing": self.timing} if self.timing else {}),
            **({} if self.errors is None else {"errors": asdict(self.errors)}),
        }

    @classmethod
    def from_fields(cls, found: dict[str, Any]) -> Self:
        """Put a fit together from the wire."""
        check_fields(found)
        return cls(
            # Fits of earlier versions lack what was added since; that has defaults.
            **{name: found[name] for name in (*_PLAIN, "timing") if name in found}
            | {name: tuple(found.get(name, ())) for name in ("contributors", "shape")},
            traffic=Traffic(found["traffic"]),
            evaluation=found["evaluation"] and Evaluation.of_fields(found["evaluation"]),
            rounds=[Evaluation.of_fields(counts) for counts in found["rounds"]],
            errors=NumericEvaluation.of_fields(found["errors"]) if "errors" in found else None,
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


# Fields that cross the wire as they are.
_LATER = ("recipe", "basis")  # only in fits of studies, so that others are written as before
_OTHERS = ("traffic", "evaluation", "rounds", "timing", "errors", "sites")
_PLAIN = [each.name for each in fields(Fit) if each.name not in _OTHERS]


def _client(given: object, what: str) -> Client:
    if not isinstance(given, Client):
        raise InvalidData(f"{what} takes an fg.Client, got a {type(given).__name__}")
    return given


def _counts(evaluation: Evaluation | None) -> dict[str, Any] | None:
    """Return the fields of an evaluation; what is not known of probabilities takes no bytes."""
    if evaluation is None:
        return None
    return {name: value for name, value in asdict(evaluation).items() if value or name != "calibration"}


def load(path: str | os.PathLike[str]) -> Fit:
    """Return the fit that `Fit.save` wrote, checked like anything that another party sends."""
    fit = _read(path)
    if not isinstance(fit, Fit):
        raise Mismatch(f"{os.fspath(path)} holds a {type(fit).__name__}, not a fit")
    return fit


def load_model(path: str | os.PathLike[str], client: str | None = None) -> Model:
    """Return the model of a file: one that a client kept, or of a fit the global one, or that of a client."""
    found = _read(path)
    if isinstance(found, Fit) and (client is not None or found.model is not None):
        return found.predictor(client)
    if client is not None:
        raise InvalidParameter(f"{os.fspath(path)} is no fit with models of several clients: leave the client out")
    if not isinstance(found, Model):
        own = f" (it has those of {', '.join(list(found.personal)[:5])})" if getattr(found, "personal", None) else ""
        what = f"a fit without a global model{own}" if isinstance(found, Fit) else f"a {type(found).__name__}"
        raise Mismatch(f"{os.fspath(path)} holds {what}, not a model")
    return found


def _read_studies() -> None:
    """Have the messages of studies registered, which few files hold."""
    import_module("fedgram.studies.model")


wire.when_unknown(_read_studies)


def _read(path: str | os.PathLike[str]) -> Any:
    try:
        data = read_regular(path, most=MOST_BYTES)
    except OSError as error:
        raise InvalidData(f"cannot read {os.fspath(path)}: {error.strerror}") from error
    return wire.decode(data, sender=os.fspath(path))

"""The result of a run: the model, personal models, the clients that took part, and the cost; and its file."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from importlib import import_module
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from fedgram.core import wire
from fedgram.core.classes import NUMERIC
from fedgram.core.container import MOST_BYTES, is_exchanged
from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch, MissingFile, RefusedMessage, UnknownName
from fedgram.core.filesystem import read_regular
from fedgram.data.client import Client
from fedgram.evaluation import BINS, Evaluation, NumericErrors, Performance, RightLabels
from fedgram.models import Model
from fedgram.moments.basis import Basis, targets_under
from fedgram.moments.moments import Moments
from fedgram.moments.targets import ClassTargets, Targets
from fedgram.pipeline import Pipeline
from fedgram.protocol.comparison import Comparison
from fedgram.protocol.pool import Contributions, Pool, Pooling, Publishes
from fedgram.protocol.registry import registry
from fedgram.protocol.sites import Sites
from fedgram.protocol.transport import SPANS, Timing, Traffic

if TYPE_CHECKING:
    from fedgram.inference.table import Coefficients
    from fedgram.studies.study import Study


@wire.register_message
@dataclass(frozen=True, eq=False)
class Fit(wire.Saved):
    """The result of `Method.fit`: models, evaluations, and the cost of the run.

    Parameters
    ----------
    model : Model or None
        The global model, None where a method has only personal ones. Under a study it is a model of the columns that
        methods see; `predictor` is the model of tables.
    method : str
        The name of the method.
    settings : Mapping[str, Any]
        The hyper-parameters of the method.
    seed : int
        The seed of the run.
    contributors : tuple[str, ...]
        The clients whose data entered the model.
    absent : Mapping[str, str]
        The other clients, each with the reason of its absence.
    lost : Mapping[str, str]
        The contributors that failed after they had contributed, each with the reason.
    personal : Mapping[str, Model]
        The clients' own models, where the engine can see them (in one process).
    traffic : Traffic
        The bytes of our messages, by client, without evaluations.
    evaluation : Evaluation
        The evaluation on the clients' test samples. If no client has any, it is false, and its means are NaN.
    rounds : Sequence[Evaluation]
        The evaluation after each round that an iterative method reported.
    seconds : float
        The wall-clock time of the run, without the evaluations of rounds.
    cpu_seconds : Mapping[str, float]
        The CPU time of "clients" and "server".
    total : Moments or None
        The pooled moments, where the method needs no more: then `add` and `remove` work.
    contributions : Contributions or None
        A record of each client's moments, where there is a total.
    message : Any
        The published message, where moments alone do not give it again.
    shape : tuple[int, ...]
        The shape of a sample.
    engine : str
        The name of the engine.
    carried : Mapping[str, int]
        The bytes that the engine itself counted, envelopes and evaluations included.
    notes : Mapping[str, Any]
        Notes that the method left, such as matrices of weights.
    study : Study or None
        The study that the run was under.
    basis : Basis or None
        The map from the clients' columns to those that methods see; without a study, what was subtracted from columns
        far from zero.
    timing : Mapping[str, Mapping[str, float]]
        Each client's seconds of `computing`, `communication` and `idle` time, and the number of rounds in which it was
        `asked`. Clients that train together in this process have no `idle`, because it is not measured.
    targets : Targets or None
        The targets that were given to `fit`, where they are neither classes nor numbers of a study.
    sites : Sites or None
        The errors of the other clients' model at each client, where clients sent moments. They are not saved.

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
    evaluation: Evaluation = field(default_factory=Evaluation)
    rounds: Sequence[Evaluation] = ()
    seconds: float = 0.0
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    total: Moments | None = None
    contributions: Contributions | None = None
    message: Any = None
    shape: tuple[int, ...] = ()
    engine: str = "inprocess"
    carried: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    study: "Study | None" = None
    basis: Basis | None = None
    timing: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    targets: Targets | None = None
    sites: Sites | None = field(default=None, repr=False)

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
        if self.study is not None and not self._configured.finds_columns:
            raise InvalidParameter(
                f"a fit of {self.method} under a study cannot be changed: its columns were standardised with a "
                "separate sum, which moments do not hold"
            )
        targets = self._targets(self.total)
        pool = Pool(self.total, self.contributors, self.shape, targets, self.contributions, self.study)
        return self._configured, pool

    def _targets(self, total: Moments) -> Targets:
        """Return the targets of the models: a study's, those that were given, or the classes."""
        given = self.targets if self.study is None else self.study.targets
        return given or ClassTargets(total.classes)

    @cached_property
    def published(self) -> Any:
        """The message that the server published, from which a client can personalize."""
        if self.message is not None:
            return self.message
        if self.total is None:
            raise InvalidParameter(f"a fit of {self.method} has nothing published to personalize from")
        method, pool = self._pool()
        try:
            return method.publish(pool)
        except np.linalg.LinAlgError as error:
            raise InvalidData(
                f"total of a fit: expected moments of some data, got moments without a model ({error})"
            ) from None

    def personalize(self, client: Client) -> Model:
        """Return a client's own model, made from the published message.

        Parameters
        ----------
        client : Client
            The client, which need not have taken part. A client with a contributor's name counts as that contributor,
            whose samples are in the total.

        """
        party, (method, published) = _client(client, "personalize"), self._publishing()
        member = party.name in self.contributors
        return method.model_for(published, party, member=member, basis=self.basis, targets=self.targets)

    def compare(self, client: Client, *, progress: Callable[[int], None] | None = None) -> Comparison:
        """Return the errors of a client's own model and of the global model on its rows, which neither has seen.

        The rows are left out in turn, one by one, or many rows in ten groups: of the own model, and of the global model
        as far as the published message allows. `Comparison.how` says how far that is.

        Parameters
        ----------
        client : Client
            The client, as in `personalize`.
        progress : Callable or None
            A function that is called with each number of rows that are done.

        Examples
        --------
        >>> import numpy as np, fedgram as fg
        >>> rng = np.random.default_rng(0)
        >>> x, y = rng.normal(size=(90, 2)), rng.integers(0, 2, size=90)
        >>> clients = [fg.Client(f"site-{k}", x[k::3] + 2 * y[k::3, None], y[k::3]) for k in range(3)]
        >>> found = fg.FedHiP().fit(clients, classes=2).compare(clients[0])
        >>> found.rows, found.how, found.own.right, found.shared.right
        (30, 'removed', 27, 27)

        """
        party, (method, published) = _client(client, "compare"), self._publishing()
        known: dict[str, Any] = {"basis": self.basis, "targets": self.targets, "progress": progress}
        return method.compare(published, party, member=party.name in self.contributors, **known)

    def _publishing(self) -> tuple[Publishes, Any]:
        """Return the method and its published message; raise where there is nothing to personalize from."""
        published, method = self.published, self._configured
        if not isinstance(method, Publishes):
            raise InvalidParameter(f"a fit of {self.method} has nothing published to personalize from")
        if not hasattr(published, "features"):
            raise Mismatch(f"message of a fit: expected a message of {self.method}, got a {type(published).__name__}")
        return method, published

    def summarize(self, client: Client) -> Moments:
        """Return the moments of a client's training samples, which `add` and `remove` take.

        Parameters
        ----------
        client : Client
            The client that joins or leaves. With a contributor's name, its moments must be those that it contributed,
            to rounding: if the run held samples back for testing, it has to come with the same split.

        """
        method, pool = self._pool()
        party = _client(client, "summarize")
        if self.study is not None:
            self.study.admit(party, len(party.y))
        basis = self.basis if self.study is None else None  # under a study, the study alone decides what is sent
        moments = method.summary(party, pool.sent.classes, pool.sent.schema.columns, basis=basis)
        return pool.checked(client.name, moments)

    def coefficients(self, *, clients: Iterable[Client] | None = None, **options: Any) -> "Coefficients":
        """Return the regression table of a numeric outcome: coefficients in the study's units, with errors and tests.

        It is exact: the table of all rows in one place. It is of the rows that the run trained on, without those that
        it held back for testing.

        Parameters
        ----------
        clients : Iterable[Client] or None
            The contributors again, with the same samples; needed for site effects, robust errors and heterogeneity,
            because a fit does not keep the moments of each client.
        options
            Those of `fedgram.studies.design.Request`, such as `columns`, `site_effects` and `level`.

        """
        from fedgram.studies.design import Request, coefficients  # takes a while, and few fits need it

        if self.study is None or self.total is None or self.total.schema != self.study.schema:
            what = "a study" if self.study is None else "these moments"
            raise InvalidParameter(
                f"coefficients: expected a fit with a study and its pooled moments, got one without {what}; fit a "
                "method of one message, such as afl, under a study (moments of joint_moments have coefficients, too)"
            )
        sites = None
        if clients is not None:
            known = {client.name: client for client in clients}
            if set(known) != set(self.contributors):
                raise InvalidParameter(
                    f"clients: expected the {len(self.contributors)} contributors of this fit, got {len(known)}, or "
                    "others; give the clients that it was fitted on"
                )
            sites = ((name, self.summarize(client)) for name, client in known.items())
        return coefficients(self.study, self.total, Request(**options), sites=sites)

    def add(self, moments: Moments, *, name: str | None = None) -> Self:
        """Return the fit with a late client's moments in it: exactly as if they had been there from the start.

        Personal models are not carried over, because they belong to the old total; `personalize` makes new ones.

        Parameters
        ----------
        moments : Moments
            The client's moments, from `summarize`. Moments that are in the total already are refused, under any name.
        name : str
            The client's name.

        """
        method, pool = self._pool()
        return self._of(method, pool.add(moments, name))

    def remove(self, moments: Moments, *, name: str | None = None) -> Self:
        """Return the fit without a client, exactly as if it had never been there.

        A client that deleted some of its samples leaves with the old moments and joins again with the new ones.

        Parameters
        ----------
        moments : Moments
            The moments that the client contributed: the same bytes, or equal to rounding with equal class counts, as
            from another processor. Other moments are refused.
        name : str
            The client's name.

        """
        method, pool = self._pool()
        return self._of(method, pool.remove(moments, name))

    def _of(self, method: Pooling, pool: Pool) -> Self:
        """Return the fit of another pool, by the same method."""
        basis = self.basis if self.study is None else pool.basis
        targets = targets_under(basis, pool.targets)
        model = Pipeline.of(method.global_model(method.publish(pool)), basis, targets, pool.sent.schema.columns)
        changed: dict[str, Any] = {"evaluation": Evaluation(), "sites": None, "rounds": ()}
        changed |= {name: {} for name in ("personal", "absent", "lost", "notes")}
        changed |= {
            "basis": basis,
            "total": pool.sent,
            "contributors": pool.contributors,
            "contributions": pool.contributions,
        }
        return replace(self, model=model, **changed)

    def predictor(self, client: str | None = None) -> Model:
        """Return the global model, or a client's own; under a study, as a model of the parties' tables.

        Parameters
        ----------
        client : str or None
            The name of the client with a model of its own; None for the global model.

        """
        model = self.model
        if client is not None:
            if client not in self.personal:
                raise UnknownName("client with a model of its own in this fit", client, self.personal)
            model = self.personal[client]
        if model is None:
            raise InvalidParameter(f"a fit of {self.method} has no global model: name a client, to use its own")
        return model if self.study is None else self.study.model(model)

    def report(self, evaluation: Evaluation | None = None) -> dict[str, Any]:
        """Return the evaluation, the participants and the cost, ready for JSON.

        Parameters
        ----------
        evaluation : Evaluation or None
            The evaluation to report in the place of the fit's own.

        """
        tested = self.evaluation if evaluation is None else evaluation
        return {
            "method": self.method,
            "settings": dict(self.settings),
            "seed": self.seed,
            "engine": self.engine,
            **tested.report(),
            "untested": tested.untested if tested.tested else len(self.contributors),
            "failed": dict(tested.failed),
            "absent": dict(self.absent),
            "lost": dict(self.lost),
            "traffic": {"up": self.traffic.up, "down": self.traffic.down},
            "carried": dict(self.carried),
            "reveals": self.notes.get("reveals"),
            "seconds": round(self.seconds, 6),
            "cpu_seconds": {who: round(seconds, 6) for who, seconds in self.cpu_seconds.items()},
            "timing": {span: round(value, 6) for span, value in Timing.summary(self.timing).items()},
            **({} if self.sites is None else {"validation": self.sites.report()}),
        }

    def __repr__(self) -> str:
        """Return about ten lines: the method, who took part, the model, how good it is, and the cost."""
        settings = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        found, known = self.report(), {"clients": list(self.contributors), "absent": list(self.absent)}
        lines = {what: f"{len(names):,}: {_shown(names)}" for what, names in known.items() if names}
        if self.lost:
            lines["lost"] = f"{len(self.lost):,} after they contributed: {_shown(list(self.lost))}"
        if self.model is not None:
            lines["model"] = _described(self.model)
        if self.personal:
            lines["personal models"] = f"{len(self.personal):,}: {_described(next(iter(self.personal.values())))}"
        if found["accuracy"]:
            words = {"pooled": "pooled", "client_mean": "mean of clients", "worst_decile": "worst tenth"}
            lines["accuracy"] = ", ".join(f"{found['accuracy'][name]:.2%} {word}" for name, word in words.items())
        for name, errors in found.get("errors", {}).items():
            figures = (f"{what.upper()} {value:.4g}" for what, value in errors.items() if value is not None)
            lines[f"errors in {name}"] = ", ".join(figures)
        lines["bytes"] = f"{self.traffic.up:,} up, {self.traffic.down:,} down"
        lines["seconds"] = f"{self.seconds:.2f}"
        return "\n".join(
            [
                f"Fit of {self.method}({settings}), seed {self.seed}, engine {self.engine}",
                *(f"  {what}: {text}" for what, text in lines.items()),
            ]
        )

    def to_fields(self) -> dict[str, Any]:
        """Return the fit as fields of a message."""
        return {
            **{name: getattr(self, name) for name in _PLAIN if name not in _LATER or getattr(self, name) is not None},
            "traffic": self.traffic.by_client,
            "evaluation": self.evaluation.to_fields() if self.evaluation.tested else None,
            "rounds": [evaluation.to_fields() for evaluation in self.rounds],
            **({"timing": self.timing} if self.timing else {}),
        }

    @classmethod
    def from_fields(cls, found: dict[str, Any]) -> Self:
        """Return the fit in the fields of a message."""
        check_fields(found)
        return cls(
            # Optional fields that are missing get their defaults.
            **{name: found[name] for name in (*_PLAIN, "timing") if name in found}
            | {name: tuple(found.get(name, ())) for name in ("contributors", "shape")},
            traffic=Traffic(found["traffic"]),
            evaluation=Evaluation.of_fields(found["evaluation"]) if found["evaluation"] else Evaluation(),
            rounds=[Evaluation.of_fields(counts) for counts in found["rounds"]],
        )

    def check(self) -> None:
        """Raise if the contributions do not belong to the total; models are checked when they are decoded."""
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
_LATER = ("study", "basis", "targets")  # written only if they are set
_OTHERS = ("traffic", "evaluation", "rounds", "timing", "sites")
_PLAIN = [each.name for each in fields(Fit) if each.name not in _OTHERS]


def _shown(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def _described(model: Any) -> str:
    """Return the kind of a model, with its number of classes."""
    classes = getattr(model, "classes", NUMERIC)
    return type(model).__name__ + ("" if classes == NUMERIC else f" of {len(classes):,} classes")


def _client(given: object, what: str) -> Client:
    if not isinstance(given, Client):
        raise InvalidData(f"{what} takes an fg.Client, got a {type(given).__name__}")
    return given


def load(path: str | os.PathLike[str]) -> Any:
    """Return what `save` wrote, a fit, a model or an estimator, or the content of an `.fgm` file.

    An `.fgm` file holds a fit if it was published, or a party's model.

    A file is checked like a message of another party. The signature of an `.fgm` file must fit; without one there is a
    warning.

    Parameters
    ----------
    path : str or PathLike
        The file to read.

    """
    found = _read(path)
    if isinstance(found, bytes):
        return import_module("fedgram.exchange.rounds.party_side").loaded(path)  # a layer above, which few need
    if not isinstance(found, Fit) and not hasattr(found, "predict"):
        raise Mismatch(f"{os.fspath(path)}: expected a saved fit, model or estimator, got a {type(found).__name__}")
    return found


def load_model(path: str | os.PathLike[str], client: str | None = None) -> Model:
    """Return the model in a file: that of a client, or the global model or a client's own in a fit.

    Parameters
    ----------
    path : str or PathLike
        The file to read.
    client : str or None
        The client whose own model is wanted, where the file is a fit.

    """
    found = _read(path)
    if isinstance(found, bytes):
        raise Mismatch(f"{os.fspath(path)} is a file that parties exchange: read it with fedgram.load")
    if isinstance(found, Fit) and (client is not None or found.model is not None):
        return found.predictor(client)
    if client is not None:
        raise InvalidParameter(f"{os.fspath(path)} is not a fit with models of several clients: leave the client out")
    if not isinstance(found, Model):
        own = f" (it has those of {', '.join(list(found.personal)[:5])})" if getattr(found, "personal", None) else ""
        what = f"a fit without a global model{own}" if isinstance(found, Fit) else f"a {type(found).__name__}"
        raise Mismatch(f"{os.fspath(path)} holds {what}, not a model")
    return found


def _read_studies() -> None:
    """Register the message types of studies, which few files hold."""
    import_module("fedgram.studies.model")


wire.when_unknown(_read_studies)
wire.when_unknown(lambda: import_module("fedgram.sklearn.estimators"), "gram-classifier", "gram-regressor")


def _read(path: str | os.PathLike[str]) -> Any:
    """Return the message in a file, or the bytes of an exchanged file as they are."""
    where = os.fspath(path)
    try:
        data = read_regular(path, most=MOST_BYTES)
    except FileNotFoundError as error:
        raise MissingFile(f"cannot read {where}: {error.strerror}") from error
    except OSError as error:
        raise InvalidData(f"cannot read {where}: {error.strerror}") from error
    if is_exchanged(data) or (data[8:9] != b"{" and where.endswith(".fgm")):
        return data
    if what := _other_file(data):
        raise Mismatch(f"{where}: expected a saved fit or model, got {what}")
    return wire.decode(data, sender=where)


def _other_file(data: bytes) -> str:
    r"""Return the kind of a file that is mistaken for a model; "" for one that may be a message of fedgram.

    >>> _other_file(b"age,sex\n70,F\n"), _other_file(b"PK\x03\x04")
    ('a text, such as a table (CSV)', 'a zip archive, such as an Excel file (.xlsx) or .npz')
    """
    if not data:
        return "an empty file"
    if data[8:9] == b"{":  # a message: the length of its header in eight bytes, then the header
        return ""
    for beginning, what in _BEGINNINGS.items():
        if data.startswith(beginning):
            return what
    start = data[:4096]
    text = start.decode("utf-8", errors="ignore")
    is_text = bool(text) and "\0" not in text and len(text.encode()) > len(start) - 4
    return "a text, such as a table (CSV)" if is_text else ""


_BEGINNINGS = {
    b"PAR1": "a Parquet table",
    b"PK\x03\x04": "a zip archive, such as an Excel file (.xlsx) or .npz",
    b"\x93NUMPY": "an array of NumPy (.npy)",
    b"\x80": "a pickle, such as one of joblib or torch",
}


# Checks of a saved fit's fields: an error names the wrong field when the file is read.
Check = Callable[[str, Any], None]
LARGEST = 1e300  # beyond, a whole number has no float


def _is(kind: str, test: Callable[[Any], bool]) -> Check:
    def check(name: str, value: Any) -> None:
        if not test(value):
            shown = f"{value!r}" if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
            raise RefusedMessage(f"field {name!r} of a fit must be {kind}, got {shown[:60]}")

    return check


def _each(check: Check) -> Check:
    def check_all(name: str, value: Any) -> None:
        _is("a list", lambda found: isinstance(found, list | tuple))(name, value)
        for place, item in enumerate(value):
            check(f"{name}/{place}", item)

    return check_all


def _table(check: Check) -> Check:
    def check_all(name: str, value: Any) -> None:
        _is("a table", lambda found: isinstance(found, Mapping))(name, value)
        for key, item in value.items():
            check(f"{name}/{key}", item)

    return check_all


def _has(parts: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    every = {**parts, **(optional or {})}

    def check(name: str, value: Any) -> None:
        _is("a table", lambda found: isinstance(found, Mapping))(name, value)
        if not parts.keys() <= value.keys() <= every.keys():
            raise RefusedMessage(f"field {name!r} of a fit must have {sorted(every)}, got {sorted(value)[:10]}")
        for part, item in value.items():
            every[part](f"{name}/{part}", item)

    return check


def _or_none(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def _setting(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_setting, value))
    return value is None or isinstance(value, str | bool) or _number(value)


def _is_study(value: Any) -> bool:
    from fedgram.studies.study import Study  # takes a while, and most fits have none

    return isinstance(value, Study)


def _model(value: Any) -> bool:
    return isinstance(value, Model) and isinstance(value.features, str)


_TEXT = _is("text", lambda value: isinstance(value, str))
_NUMBER = _is("a number", _number)
_COUNT = _is("a whole number ≥ 0", lambda value: _number(value) and isinstance(value, int) and value >= 0)
_MODEL = _is("a model", _model)
_POSITIVE = _is("a number ≥ 0", lambda value: _number(value) and value >= 0)
_BINS = {"samples": _each(_COUNT), "right": _each(_COUNT), "confidence": _each(_POSITIVE)}
_COUNTS = _has(
    {"correct": _table(_COUNT), "tested": _table(_COUNT)},
    {"failed": _table(_TEXT), "calibration": _table(_has({"squared": _POSITIVE, **_BINS}))},
)


def _evaluation(name: str, value: Any) -> None:
    """Raise for a wrong evaluation; its kind is known by a field that only this kind has."""
    found = value if isinstance(value, Mapping) else {}
    kind = next((kind for kind in Performance.kinds if kind.packed in found), RightLabels)
    if kind is RightLabels:
        _right_labels(name, value)
    elif kind is NumericErrors:
        _errors(name, value)
    else:
        kind.check_packed(name, value)


def _right_labels(name: str, value: Any) -> None:
    _COUNTS(name, value)
    for client, sums in value.get("calibration", {}).items():
        if {len(sums[part]) for part in _BINS} != {BINS} or sum(sums["samples"]) != value["tested"].get(client):
            raise RefusedMessage(
                f"field {name!r} of a fit: calibration of {client!r} must have {BINS} ranges with all its test samples"
            )
    for client, tested in value["tested"].items():
        if tested and not value["correct"].get(client, inf) <= tested:
            raise RefusedMessage(f"field {name!r} of a fit: {client!r} must have from 0 to {tested} correct samples")


_SUMS = _has({"n": _COUNT, "squared": _POSITIVE, "absolute": _POSITIVE, "total": _NUMBER, "spread": _POSITIVE})
_ALL_ERRORS = _has({"errors": _table(_table(_SUMS)), "tested": _table(_COUNT)}, {"failed": _table(_TEXT)})


def _errors(name: str, value: Any) -> None:
    _ALL_ERRORS(name, value)
    if len({tuple(sums) for sums in value["errors"].values()}) > 1:
        raise RefusedMessage(f"field {name!r} of a fit: clients must have errors of the same outcomes")
    for client, tested in value["tested"].items():
        errors = value["errors"].get(client, {})
        if tested and (not errors or any(sums["n"] != tested for sums in errors.values())):
            raise RefusedMessage(f"field {name!r} of a fit: {client!r} must have errors of {tested} samples")


_CHECKS: dict[str, Check] = {
    "model": _or_none(_MODEL),
    "method": _TEXT,
    "settings": _table(_is("text, a number, true, false, null or a list of them", _setting)),
    "seed": _COUNT,
    "contributors": _each(_TEXT),
    "absent": _table(_TEXT),
    "lost": _table(_TEXT),
    "personal": _table(_MODEL),
    "traffic": _table(_has({"up": _COUNT, "down": _COUNT})),
    "evaluation": _or_none(_evaluation),
    "rounds": _each(_evaluation),
    "seconds": _NUMBER,
    "cpu_seconds": _table(_NUMBER),
    "total": _or_none(_is("moments", lambda value: isinstance(value, Moments))),
    "study": _or_none(_is("a study", _is_study)),
    "basis": _or_none(_is("a basis", lambda value: isinstance(value, Basis))),
    "targets": _or_none(_is("targets", lambda value: isinstance(value, Targets))),
    "shape": _each(_COUNT),
    "engine": _TEXT,
    "carried": _table(_COUNT),
    "notes": _table(lambda name, value: None),
    "timing": _table(_has({name: _NUMBER for name in (*SPANS, "asked") if name != "idle"}, {"idle": _NUMBER})),
}


def check_fields(fields: Mapping[str, Any]) -> None:
    """Raise, with the field's name, if a field of a saved fit has a wrong type or value; unknown fields are ignored."""
    for name, check in _CHECKS.items():
        if name in fields:
            check(name, fields[name])

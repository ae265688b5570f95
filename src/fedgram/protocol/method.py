"""Methods: hyper-parameters, a server's side, and client steps."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Never, Protocol, Self, TypeAlias, TypeVar, overload

import numpy as np

from fedgram.core.arrays import as_blocks
from fedgram.core.classes import Label
from fedgram.core.columns import Columns, listed
from fedgram.core.errors import Doubtful, InvalidData, InvalidParameter, UnknownName
from fedgram.data.client import Client
from fedgram.models import Model
from fedgram.moments import far_columns
from fedgram.moments.accumulate import not_finite
from fedgram.moments.moments import study_of
from fedgram.moments.targets import Targets
from fedgram.protocol import parameters, replies
from fedgram.protocol.agreement import NAMES, NUMBERS
from fedgram.protocol.byfiles import Bounds
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.disclosure import Weighing
from fedgram.protocol.fit import Fit
from fedgram.protocol.replies import SOMETHING, ColumnSums, Either, Judgement, ListOf, Number, Text
from fedgram.protocol.transport import Progress

if TYPE_CHECKING:
    from fedgram.studies.study import Study

Require: TypeAlias = Literal["all"] | int | float
F = TypeVar("F", bound=Callable[..., Any])
# Most classes that a run may find from the clients' labels; more would make every message large, and must be given.
MOST_FOUND = 2**14
# Most samples of a client. The server cannot verify the number, and many methods weigh clients by it.
MOST_SAMPLES = 2**31
# Standard deviations from zero beyond which a column's variation is hardly visible to a method that is not
# `shift_invariant`, and the fewest samples by which that is judged.
UNLIKE, FEW = 100.0, 8
COUNT, LABEL = Number(0, MOST_SAMPLES, whole=True), Either(Text(), Number(-(2**63), 2**63 - 1, whole=True))
HELLO = {
    "n": COUNT,
    "shape": ListOf(Number(0, 2**31, whole=True), most=8),
    "features": Text(),
    "columns": ListOf(Text(), most=2**20),
    "kind": Text(choices=(NAMES, NUMBERS)),
    "far": Number(0, 2**31, whole=True),
    "tested": COUNT,
}


def _hello(_: "Method", question: replies.Question) -> dict[str, replies.Reply]:
    """Return the rule for a reply to hello; it has labels if, and only if, the classes were not given."""
    return HELLO | {"labels": None if question.classes else ListOf(LABEL, most=MOST_FOUND)}


@overload
def step(function: F) -> F: ...
@overload
def step(
    *, batched: bool = ..., reply: replies.Reply = ..., weighs: Weighing | None = ..., by_files: Bounds | None = ...
) -> Callable[[F], F]: ...
def step(
    function: F | None = None,
    *,
    batched: bool = False,
    reply: replies.Reply = SOMETHING,
    weighs: Weighing | None = None,
    by_files: Bounds | None = None,
) -> F | Callable[[F], F]:
    """Mark a method's function as a step that the server may ask clients to perform.

    A step takes the client and at most one payload, and returns a payload. With `batched` it takes lists of clients and
    payloads and returns a list of replies: the engine may hand it many clients at once, or one. `reply` is the rule
    for a reply (see `replies`); a reply that breaks it counts as its client's failure. `weighs` gives the weights of
    samples in a reply that sums over them, so that a party can refuse a reply that would show too few samples (see
    `disclosure`). With `by_files` parties also answer the step by files, once their summaries have joined; it is a
    function that raises for replies that a party's own moments rule out (see `byfiles`).
    """

    def mark(function: F) -> F:
        function.fedgram_step = "batched" if batched else "single"  # type: ignore[attr-defined]
        function.fedgram_reply = reply  # type: ignore[attr-defined]
        function.fedgram_weighing = weighs  # type: ignore[attr-defined]
        function.fedgram_by_files = by_files  # type: ignore[attr-defined]
        return function

    return mark if function is None else mark(function)


class Engine(Protocol):
    """A carrier of a method's messages between server and clients."""

    def run(
        self,
        method: "Method",
        clients: Sequence[Client],
        *,
        classes: int | Iterable[Label] | Targets | None,
        seed: int,
        require: Require,
        progress: Progress | None,
        study: "Study | None" = None,
    ) -> Fit:
        """Return the fit of the method, run from hello to evaluation."""
        ...


# Engines by name; each registers itself here, so that methods need not import them.
engines: dict[str, Callable[..., Engine]] = {}


@dataclass(frozen=True, kw_only=True)
class Method:
    """Base of all methods: a frozen dataclass whose fields are the hyper-parameters.

    A method implements `serve`, the server's side, and marks the client's side with `@step`. It does not depend
    on the engine: it sees the clients only through the `Clients` it is given, and all messages pass through `wire`.
    """

    name: ClassVar[str] = ""
    # A better known method of the same name, which errors about hyper-parameters tell apart.
    namesake: ClassVar[str] = ""
    # Whether clients end with models of their own; if not, they are sent the global one.
    personal: ClassVar[bool] = False
    # The version of the computation: raise it when the same settings give other results. Subclasses inherit it.
    revision: ClassVar[int] = 1
    # Methods of the same `draws` get the same random numbers from a seed; by default each has its own.
    draws: ClassVar[str] = ""
    # Relative precision to which results are the same for any order of the clients and any engine.
    rounding: ClassVar[float] = 1e-9
    # Settings with which the contract (`fedgram.checks`) is checked in seconds, where the defaults take longer.
    quick: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    # Whether the method asks for moments of the raw columns first, from which the study's basis follows; for other
    # methods, the run asks for the columns' sums before it begins.
    finds_columns: ClassVar[bool] = False
    # Whether the outcome may be a number, or several; methods that need classes refuse such a study.
    numeric: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Name the method after its class, in lower case, unless it names itself."""
        cls.name = cls.__dict__.get("name") or cls.__name__.lower()

    def __new__(cls, *_: Any, **settings: Any) -> Self:
        """Raise for an unknown hyper-parameter, with the nearest known name."""
        for setting in settings:
            parameters.check_name(cls, setting)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Check the hyper-parameters against their annotations; a subclass adds its own checks after this."""
        parameters.check_values(self)

    def serve(self, clients: Clients) -> Model | None:
        """Return the global model, or None without one; on the way, ask clients for steps."""
        raise TypeError(f"{type(self).__name__} must define serve(self, clients)")

    def fit(
        self,
        clients: Iterable[Client],
        *others: Never,
        study: "Study | None" = None,
        classes: int | Iterable[Label] | Targets | None = None,
        seed: int = 0,
        engine: str | Engine = "inprocess",
        require: Require = "all",
        progress: Progress | None = None,
    ) -> Fit:
        """Return the fit of the method to clients.

        Rounds count from 0, as `client.round` does; a method without rounds stays in round 0.

        Parameters
        ----------
        clients : Iterable[Client]
            The clients, each with a name of its own; a list of them.
        *others : Never
            Nothing: a table and its labels, as scikit-learn takes them, raise an error that says what to do.
        study : Study or None
            The study of the clients' columns, which decides how methods see them.
        classes : int, Iterable[Label], Targets or None
            The number of classes, or their names in order, or targets of another kind. None takes the labels that
            occur, or the numeric outcomes of the study.
        seed : int
            The seed of all random numbers.
        engine : str or Engine
            The engine that carries messages, or its name.
        require : "all", int or float
            The clients that must take part: all of them, a number, or a fraction. The fit lists who did.
        progress : Progress or None
            A function that is called with (step, round, done, total) as replies arrive; refused replies do not count
            as done.

        """
        parties: list[Any] = [clients, *others] if others else list(clients)
        for party in parties:
            if not isinstance(party, Client):
                raise InvalidData(
                    f"clients must be fg.Client objects, got a {type(party).__name__}; give a list of clients, each "
                    "with its table and labels: [fg.Client('north', x, y), …]; for a single table there is "
                    "fedgram.sklearn.GramClassifier().fit(x, y)"
                )
        if isinstance(engine, str):
            if engine not in engines:
                raise UnknownName("engine", engine, engines)
            engine = engines[engine]()
        options = {} if study is None else {"study": study}
        return engine.run(self, parties, classes=classes, seed=seed, require=require, progress=progress, **options)

    def effort(self, n: int) -> float:
        """Return a client's relative work in a step with n samples; clients that train together share time by it."""
        return n

    def fewest_samples(self, n: int) -> int:
        """Return the smallest number of a client's n samples behind a reply, with these settings."""
        return n

    @property
    def shift_invariant(self) -> bool:
        """Whether predictions stay the same if a number is subtracted from a column of all samples.

        If so, a centre is subtracted from columns far from zero; otherwise clients are warned of such columns.
        """
        return False

    def imports(self) -> list[str]:
        """Return the names of code outside fedgram in the settings, to be checked where the sender is not trusted."""
        return []

    @property
    def has_global_model(self) -> bool:
        """Whether `serve` may return a global model: not if it is annotated with `-> None`."""
        return self.serve.__annotations__.get("return", Model) not in (None, "None")

    @property
    def purpose(self) -> str:
        """The purpose of random numbers, from which they are derived."""
        return self.draws or self.name

    def settings(self) -> dict[str, Any]:
        """Return the hyper-parameters by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def steps(cls) -> dict[str, bool]:
        """Return the steps that may be asked for, and whether each takes a batch of clients."""
        return _steps(cls)  # type: ignore[arg-type]

    @step(reply=_hello)
    def hello(self, client: ClientSide) -> dict[str, Any]:
        """Return a description of the client's data, the first reply of a run; with labels if no classes were given."""
        client.admit(self)
        data = client.data
        return {
            "n": client.n,
            "shape": data.x.shape[1:],
            "features": data.features,
            "columns": data.columns,
            "kind": NAMES if data.y.dtype.kind == "U" else NUMBERS,
            "labels": None if client.classes else data.labels(),
            "far": self._far(client),
            "tested": 0 if data.x_test is None else len(data.x_test),
        }

    def _far(self, client: ClientSide) -> int:
        """Return the number of columns of a client that are far from zero; warn of them if the method depends on it.

        A study brings columns near zero by their ranges.
        """
        x = client.data.x
        if x.ndim != 2 or not len(x) or study_of(client.data.features) or not isinstance(x, np.ndarray):
            return 0
        if not self.shift_invariant:
            _warn_of_far(self.name, client.data)
        return int(far_columns.far_in(x).sum())

    @step(reply=ColumnSums())
    def column_sums(self, client: ClientSide) -> dict[str, Any]:
        """Return the sums of the columns and of their squares, from which they are standardised and means imputed."""
        sums, squares = np.zeros(client.data.x.shape[1:]), np.zeros(client.data.x.shape[1:])
        for block in as_blocks(client.data.x):
            x = block.astype(np.float64, copy=False)
            sums += x.sum(axis=0)
            squares += np.square(x).sum(axis=0)
            if not np.isfinite(squares).all():
                raise not_finite(block)
        return {"sums": sums, "squares": squares, "n": client.n}

    @step
    def receive(self, client: ClientSide, model: Model) -> None:
        """Keep the global model as the client's own, for methods without personal models."""
        client.model = model

    @step(reply=Either(None, Judgement()))
    def evaluate(self, client: ClientSide, model: Model | None = None) -> Any:
        """Return sums that score the client's model, or the given model, on the client's test samples.

        With classes, they score labels and probabilities; with numeric outcomes, they are sums of errors. A method that
        judges in another way may return the number of right samples alone, or None.
        """
        judged = client.model if model is None else client.of_the_data(model)
        return None if judged is None else client.judge(judged).sums()


def _warn_of_far(method: str, data: Client) -> None:
    """Warn of columns whose mean hides their variation; in the same words for all clients, so that it is shown once."""
    found = np.flatnonzero(far_columns.far_in(data.x, UNLIKE)) if len(data.x) >= FEW else np.zeros(0, dtype=np.int64)
    # `far_in` looks at some rows only, which may be alike by chance, so the columns it finds are judged by all rows.
    columns = np.asarray(data.x[:, found], dtype=np.float64)
    spread = columns.std(axis=0)
    is_far = (np.abs(columns.mean(axis=0)) > UNLIKE * spread) & (np.ptp(columns, axis=0) > 0)
    varying = found[is_far].tolist()
    if varying:
        names = listed([data.columns[place] for place in varying]) if data.columns else f"columns {varying[:6]}"
        warnings.warn(
            f"{names}: the mean is more than {UNLIKE:.0f} standard deviations from zero, and {method} depends on where "
            "zero is: standardise the columns, or give a study with their ranges",
            Doubtful,
            stacklevel=3,
        )


def check_outcomes(methods: Iterable[Method], outcomes: Columns) -> None:
    """Raise for numeric outcomes if some methods need classes; the error names them all."""
    if outcomes and (refusing := sorted({method.name for method in methods if not method.numeric})):
        raise InvalidParameter(
            f"{', '.join(refusing)} need{'s' * (len(refusing) == 1)} classes, and the outcome "
            f"{', '.join(map(repr, outcomes))} is a number: use a method for numbers, such as afl, fedhip, apfl, "
            "fedgram or local, or give the outcome classes in the study"
        )


@cache
def _steps(cls: type[Method]) -> dict[str, bool]:
    marks = {name: getattr(getattr(cls, name), "fedgram_step", None) for name in dir(cls)}
    return {name: mark == "batched" for name, mark in marks.items() if mark}

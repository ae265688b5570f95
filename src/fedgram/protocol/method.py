"""What a method is: hyper-parameters, a server's side, and client steps."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias, TypeVar, overload

import numpy as np

from fedgram.core.blocks import as_blocks
from fedgram.core.columns import Columns, listed
from fedgram.core.errors import Doubtful, InvalidData, InvalidParameter, UnknownName
from fedgram.core.labels import Label
from fedgram.data.client import Client
from fedgram.evaluation import Calibration
from fedgram.models import Model
from fedgram.moments import digits
from fedgram.moments.accumulate import not_finite
from fedgram.moments.kind import study_of
from fedgram.numeric_evaluation import sum_errors_of
from fedgram.protocol import parameters, replies
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.disclosure import Weighing
from fedgram.protocol.fit import Fit
from fedgram.protocol.recipe import Recipe
from fedgram.protocol.replies import SOMETHING, ColumnSums, Either, ErrorSums, Judgement, ListOf, Number, Text
from fedgram.protocol.transport import Progress

Require: TypeAlias = Literal["all"] | int | float
F = TypeVar("F", bound=Callable[..., Any])
NAMES, NUMBERS = "names as", "numbers as"  # what labels are
# Classes that clients may find out among themselves; more of them would make every message large, so they are agreed.
MOST_FOUND = 2**14
# Samples of one client. The server cannot count them, and many methods weigh clients by them.
MOST_SAMPLES = 2**31
# Standard deviations from zero beyond which a method that is not `shift_invariant` hardly sees how a column varies, and
# of how few samples that is not judged.
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
    """Return what a hello must be; labels are in it if, and only if, the classes are to be found out."""
    return HELLO | {"labels": None if question.classes else ListOf(LABEL, most=MOST_FOUND)}


@overload
def step(function: F) -> F: ...
@overload
def step(*, batched: bool = ..., reply: replies.Reply = ..., weighs: Weighing | None = ...) -> Callable[[F], F]: ...
def step(
    function: F | None = None,
    *,
    batched: bool = False,
    reply: replies.Reply = SOMETHING,
    weighs: Weighing | None = None,
) -> F | Callable[[F], F]:
    """Mark a method's function as a step that the server may ask clients to perform.

    A step takes the client and at most one payload, and returns a payload. With `batched` it takes lists of clients and
    payloads and returns a list of replies: the engine may hand it many clients at once, or one. `reply` says what a
    reply must be (see `replies`); one that is not so counts as its client's failure. `weighs` says how samples count in
    a reply that is made of sums over them, so that a party can refuse one that would show too few (see `disclosure`).
    """

    def mark(function: F) -> F:
        function.fedgram_step = "batched" if batched else "single"  # type: ignore[attr-defined]
        function.fedgram_reply = reply  # type: ignore[attr-defined]
        function.fedgram_weighing = weighs  # type: ignore[attr-defined]
        return function

    return mark if function is None else mark(function)


class Engine(Protocol):
    """Something that carries a method's messages between server and clients."""

    def run(
        self,
        method: "Method",
        clients: Sequence[Client],
        *,
        classes: int | Iterable[Label] | None,
        seed: int,
        require: Require,
        progress: Progress | None,
        recipe: Recipe | None = None,
    ) -> Fit:
        """Run the method from hello to evaluation."""
        ...


# Engines enter themselves here, so that methods need not know them.
engines: dict[str, Callable[..., Engine]] = {}


@dataclass(frozen=True, kw_only=True)
class Method:
    """Base of all methods: a frozen dataclass whose fields are the hyper-parameters.

    A method implements `serve`, the server's side, and marks the client's side with `@step`. It knows no engine: all it
    sees of the clients is the `Clients` it is given, and what crosses is a message that has been through `wire`.
    """

    name: ClassVar[str] = ""
    # Whether clients end with models of their own; if not, they are sent the global one.
    personal: ClassVar[bool] = False
    # The version of the computation: raise it when the same settings give other results. Subclasses inherit it.
    revision: ClassVar[int] = 1
    # Methods of the same `draws` get the same random numbers from a seed; by default each has its own.
    draws: ClassVar[str] = ""
    # To what relative precision results are the same for any order of the clients and any engine.
    rounding: ClassVar[float] = 1e-9
    # Settings with which the contract (`fedgram.checks`) is checked in seconds, where the defaults take longer.
    quick: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    # Whether the moments of samples as they are, which the method asks for first, say which columns a study makes of
    # them; other methods ask for the sums of the columns before they begin.
    finds_columns: ClassVar[bool] = False
    # Whether the outcome may be a number, or several; methods that need classes refuse such a study.
    numeric: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Name the method after its class, in lower case, unless it names itself."""
        cls.name = cls.__dict__.get("name") or cls.__name__.lower()

    def __new__(cls, *_: Any, **settings: Any) -> Self:
        """Refuse an unknown hyper-parameter, naming the nearest one."""
        for setting in settings:
            parameters.check_name(cls, setting)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Check the hyper-parameters against their annotations; a method that wants more of them checks after this."""
        parameters.check_values(self)

    def serve(self, clients: Clients) -> Model | None:
        """Return the global model (None if there is none); ask clients for steps on the way."""
        raise TypeError(f"{type(self).__name__} must define serve(self, clients)")

    def fit(
        self,
        clients: Iterable[Client],
        *,
        study: Recipe | None = None,
        classes: int | Iterable[Label] | None = None,
        seed: int = 0,
        engine: str | Engine = "inprocess",
        require: Require = "all",
        progress: Progress | None = None,
    ) -> Fit:
        """Run the method over clients and return what came of it.

        `classes` is a number, or the names in order; None takes the labels that occur, or the numeric outcomes of the
        study. `require` says how many
        clients must take part: "all", a number, or a fraction; the result lists who did. `engine` is a name or an
        engine object.
        `progress(step, round, done, total)` is called as replies arrive; those that are refused do not count as done.
        Rounds count from 0, as `client.round` does; a method without rounds stays in round 0.
        """
        parties = list(clients)
        for party in parties:
            if not isinstance(party, Client):
                raise InvalidData(f"clients must be fg.Client objects, got a {type(party).__name__}")
        if isinstance(engine, str):
            if engine not in engines:
                raise UnknownName("engine", engine, engines)
            engine = engines[engine]()
        options = {} if study is None else {"recipe": study}
        return engine.run(self, parties, classes=classes, seed=seed, require=require, progress=progress, **options)

    def effort(self, n: int) -> float:
        """Return how much work a client with n samples has in a step, to scale; who train together share time so."""
        return n

    def fewest_samples(self, n: int) -> int:
        """Return of how few of a client's n samples a reply may be made, with these settings."""
        return n

    @property
    def shift_invariant(self) -> bool:
        """Whether predictions stay the same if a number is subtracted from a column of all samples.

        It then gets samples less a centre where columns are far from zero; otherwise clients are warned of these.
        """
        return False

    def imports(self) -> list[str]:
        """Return what the settings name of code outside fedgram; whoever does not trust the sender looks here first."""
        return []

    @property
    def has_global_model(self) -> bool:
        """Whether `serve` may return a global model: not if it is annotated with `-> None`."""
        return self.serve.__annotations__.get("return", Model) not in (None, "None")

    @property
    def purpose(self) -> str:
        """What random numbers are drawn for."""
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
        """Tell what kind of data the client has, before anything is computed; its labels only if classes are sought."""
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
        """Return how many columns of a client are far from zero; warn of them if the method depends on it.

        A study brings columns near zero by their ranges.
        """
        x = client.data.x
        if x.ndim != 2 or not len(x) or study_of(client.data.features) or not isinstance(x, np.ndarray):
            return 0
        if not self.shift_invariant:
            _warn_of_far(self.name, client.data)
        return int(digits.far_in(x).sum())

    @step(reply=ColumnSums())
    def column_sums(self, client: ClientSide) -> dict[str, Any]:
        """Return the sums of the columns and of their squares: all that standardising and imputing means need."""
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
        """Take the global model as the client's own, where the method has not given it a personal one."""
        client.model = model

    @step(reply=Either(None, Judgement()))
    def evaluate(self, client: ClientSide, model: Model | None = None) -> Any:
        """Return how many of its own test samples the client's model (or the one given) gets right, and how sure it is.

        Only sums are returned. A method that judges otherwise may return the number of right samples alone, or None.
        """
        judged = client.model if model is None else client.of_the_data(model)
        if judged is None:
            return None
        x_test = as_blocks(client.data.x_test)
        return Calibration.judged(judged, x_test, client.y_test_blocks, least=client.minimum_cell).sums()

    @step(reply=Either(None, ErrorSums()))
    def sum_errors(self, client: ClientSide) -> dict[str, Any] | None:
        """Return sums of the errors in numeric outcomes that the client's model makes on its own test samples."""
        if client.model is None or client.basis is None or client.basis.outcomes is None:
            return None
        return sum_errors_of(client.model, as_blocks(client.data.x_test), client.basis)


def _warn_of_far(method: str, data: Client) -> None:
    """Warn of columns whose size hides how they vary; in the same words for all clients, so that it is shown once."""
    found = np.flatnonzero(digits.far_in(data.x, UNLIKE)) if len(data.x) >= FEW else np.zeros(0, dtype=np.int64)
    # Some rows may be alike where others are not, so what they say of a column is asked of all rows.
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
    """Refuse numeric outcomes for methods that need classes; all of these are named."""
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

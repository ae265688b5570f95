"""Kinds of replies. Every reply is checked before it is added to others, so that a wrong one fails its client alone.

A step says what it replies with: `@step(reply=…)` takes one of the kinds below, an array that the reply must be like, a
dict or list of these, or a function of the method and the `Question` that returns one of them. A step that says
nothing, but is annotated to return None or Moments, is checked for that; one that says nothing at all may send any
payload, and sums are made of what most clients send (see `clients.tally`).

A kind that knows the largest number that an honest client can send refuses more. For the trained numbers of a network
such a bound is not known. Their kind notes the size of a reply (`Question.note`), and a reply that is far larger than
those of the other clients is refused (see `channel.Peers`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import inf
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.classes import Classes
from fedgram.core.columns import Columns
from fedgram.core.errors import RefusedMessage
from fedgram.core.wire import Payload
from fedgram.evaluation import MUCH
from fedgram.moments.feasibility import check_size
from fedgram.moments.moments import Moments
from fedgram.moments.targets import ClassTargets, Targets

Reply: TypeAlias = Any  # a kind, an array, a dict or list of these, None, or a function that returns one of them
SOMETHING = object()  # any payload at all
# Beyond any numbers that a network can learn with, and far from where 32 bits overflow.
LARGEST_LEARNT = 1e9
# Largest factor of trained numbers over those of other clients. Between honest clients it was at most
# 8 in all gradient methods, with digits spread over 20 clients by Dirichlet shares of α = 0.05.
FAR = 1e3
# In sums of this many times the size, double precision loses all that the other clients have sent.
DROWNS = 2.0**52


class Size(NamedTuple):
    """The largest number of a part of a reply, in its own units, and the largest factor over those of other clients."""

    largest: float
    times: float


@dataclass(frozen=True)
class Question:
    """A question to one client, with the facts that the run knows of it."""

    client: str
    payload: Payload
    round: int
    classes: Classes
    shape: tuple[int, ...]  # of a sample
    features: str
    samples: int
    tested: int
    columns: Columns = ()
    outcomes: Columns = ()  # numeric outcomes, in addition to the columns
    targets: Targets | None = field(default=None, compare=False)  # None for the classes
    centre: tuple[float, ...] = ()  # the numbers subtracted from the columns before they are summed
    squares: Array | None = field(default=None, compare=False)  # sums over all clients, by column, where they are known
    sizes: dict[str, Size] = field(default_factory=dict, compare=False, repr=False)  # what kinds noted of the reply

    def note(self, where: str, largest: float, times: float = FAR) -> None:
        """Leave the size of a part of the reply to be compared with those of the other clients."""
        self.sizes[where] = Size(largest, times)


class Kind(Protocol):
    """A kind of reply."""

    def check(self, value: Any, question: Question, where: str) -> None:
        """Raise RefusedMessage if the value is not of this kind."""
        ...


@dataclass(frozen=True)
class Numbers:
    """An array of this shape and dtype, with elements from `low` to `high`."""

    shape: tuple[int, ...]
    dtype: str = "float64"
    low: float = -inf
    high: float = inf

    def check(self, value: Any, question: Question, where: str) -> None:
        """Refuse anything else."""
        self.largest(value, where)

    def largest(self, value: Any, where: str) -> float:
        """Return the largest absolute value; raise if the value is not of this kind."""
        if not isinstance(value, np.ndarray) or value.shape != self.shape or value.dtype.name != self.dtype:
            raise _wrong(where, f"an array of {self.dtype} with shape {self.shape}", value)
        if not value.size:
            return 0.0
        lowest, highest = float(value.min()), float(value.max())  # a bound may be beyond single precision
        if not self.low <= lowest <= highest <= self.high:
            raise _wrong(where, f"from {self.low:g} to {self.high:g}", f"{lowest:g} … {highest:g}")
        return max(-lowest, highest)


@dataclass(frozen=True, eq=False)
class UpTo:
    """An array of float64 with its own bound for each element, from -largest to largest."""

    largest: Array

    def check(self, value: Any, question: Question, where: str) -> None:
        """Refuse anything else."""
        Numbers(self.largest.shape).largest(value, where)
        if len(wrong := np.argwhere(~(np.abs(value) <= self.largest))):
            place = tuple(wrong[0].tolist())
            raise _wrong(f"{where}/{place}", f"at most {self.largest[place]:g} but for its sign", f"{value[place]:g}")


@dataclass(frozen=True)
class Learnt:
    """An array of numbers whose size only the other clients' replies can tell, such as weights after training.

    `unit` is a number to which they are proportional, as a sum is to the number of samples.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    unit: float = 1.0

    def check(self, value: Any, question: Question, where: str) -> None:
        """Refuse anything else, and note how large the numbers are."""
        high = LARGEST_LEARNT * self.unit
        largest = Numbers(self.shape, self.dtype, -high, high).largest(value, where)
        question.note(where, largest / self.unit)


@dataclass(frozen=True)
class ByClass:
    """A dict of "classes", indices of those that a client has, ascending, and arrays with a row for each of them.

    `rows` has the arrays' names, each with the rule for a row.
    """

    rows: Mapping[str, Numbers | Learnt]

    def check(self, value: Any, question: Question, where: str) -> None:
        """Refuse anything else."""
        classes = value.get("classes") if isinstance(value, dict) else None
        known = max(classes.size if isinstance(classes, np.ndarray) else 1, 1)  # a client has samples, so it has one
        kinds = {name: replace(row, shape=(known, *row.shape)) for name, row in self.rows.items()}
        indices = Numbers((known,), "int32", 0, len(question.classes) - 1)
        check(value, {"classes": indices, **kinds}, question, where)
        if (np.diff(value["classes"]) <= 0).any():
            raise _wrong(f"{where}/classes", "in ascending order, each once", value["classes"].tolist())


@dataclass(frozen=True)
class Number:
    """A number from `low` to `high`; a `whole` one has no fraction."""

    low: float = -inf
    high: float = inf
    whole: bool = False

    def check(self, value: Any, question: Question, where: str) -> None:
        """Refuse anything else."""
        kinds = int if self.whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not self.low <= value <= self.high:
            raise _wrong(where, f"a {'whole ' * self.whole}number from {self.low:.15g} to {self.high:.15g}", value)


@dataclass(frozen=True)
class Text:
    """A text of at most so many characters, if need be one of `choices`."""

    most: int = 1000
    choices: tuple[str, ...] = ()

    def check(self, value: Any, question: Question, where: str) -> None:
        """Refuse anything else."""
        if not isinstance(value, str) or len(value) > self.most or (self.choices and value not in self.choices):
            choices = " or ".join(map(repr, self.choices))
            raise _wrong(where, choices or f"a text of up to {self.most} characters", value)


@dataclass(frozen=True)
class ListOf:
    """A list of at most so many items of a kind."""

    item: Reply
    most: int

    def check(self, value: Any, question: Question, where: str) -> None:
        """Refuse anything else."""
        if not isinstance(value, list) or len(value) > self.most:
            raise _wrong(where, f"a list of up to {self.most} items", value)
        for i, item in enumerate(value):
            check(item, self.item, question, f"{where}/{i}")


@dataclass(frozen=True)
class Either:
    """One of two kinds."""

    one: Reply
    other: Reply

    def check(self, value: Any, question: Question, where: str) -> None:
        """Refuse what is neither."""
        try:
            check(value, self.one, question, where)
        except RefusedMessage:
            check(value, self.other, question, where)


@dataclass(frozen=True)
class LabelCounts:
    """The counts of the client's samples by agreed class: whole numbers that add up to all of them."""

    def check(self, value: Any, question: Question, where: str) -> None:
        """Refuse anything else."""
        Numbers((len(question.classes),), "int64", low=0, high=question.samples).check(value, question, where)
        if value.sum() != question.samples:
            raise _wrong(where, f"counts of {question.samples} samples", f"counts of {value.sum()}")


@dataclass(frozen=True)
class ColumnSums:
    """Sums of the columns and of their squares over the client's samples, and how many these are."""

    def check(self, value: Any, question: Question, where: str) -> None:
        """Refuse anything else, and sums that no samples have."""
        n = question.samples
        sums, squares = Numbers(question.shape), Numbers(question.shape, low=0)
        check(value, {"sums": sums, "squares": squares, "n": Number(n, n)}, question, where)
        check_size(value["squares"], "squares")
        if (np.abs(value["sums"]) > np.sqrt(n * value["squares"]) * MUCH).any():
            raise _wrong(f"{where}/sums", "sums of the numbers whose squares add up to 'squares'", "other sums")
        question.note(f"{where}/squares", float(value["squares"].max(initial=0.0)), DROWNS)


@dataclass(frozen=True)
class Judgement:
    """Sums over the client's test samples, as the targets say: right labels, `Calibration`, or errors of numbers."""

    def check(self, value: Any, question: Question, where: str) -> None:
        """Refuse sums that no model has on these test samples."""
        targets = question.targets or ClassTargets(question.classes)
        targets.check_sums(value, question.tested, where)


@dataclass(frozen=True)
class MomentsOf:
    """Moments of the agreed classes; by default of the client's samples as they are.

    `dimension` and `features` are those of a method that makes other features first, `rows` how many rows it makes of a
    sample, `bias` whether it adds a column of ones to them.
    """

    dimension: int | None = None
    features: str | None = None
    rows: int = 1
    bias: bool = False

    def check(self, value: Any, question: Question, where: str) -> None:
        """Refuse anything else."""
        if not isinstance(value, Moments):
            raise _wrong(where, "moments", value)
        kind = value.schema
        dimension = question.shape[0] if self.dimension is None else self.dimension
        features = question.features if self.features is None else self.features
        # Features of another dimension may have forgotten what they were made from.
        known = (*question.columns, *question.outcomes)
        columns = () if self.dimension is not None and not kind.columns else known
        for what, got, want in (
            ("classes", kind.classes, question.classes),
            ("features", kind.features, features),
            ("bias", kind.bias, self.bias),
            ("dimension", kind.dimension - kind.bias, dimension + len(question.outcomes)),
            ("columns", kind.columns, columns),
            ("centre", kind.centre, question.centre if self.dimension is None else ()),
            ("number of samples", value.n, self.rows * question.samples),
        ):
            if got != want:
                raise _wrong(where, f"moments of {what} {_short(want)}", f"moments of {what} {_short(got)}")
        with np.errstate(over="ignore"):
            squares = value.squares
        check_size(squares, "gram")
        question.note(where, float(squares.max(initial=0.0)), DROWNS)


def learnt(start: Any, unit: float = 1.0) -> Learnt:
    """Return the rule for an array of the shape of `start` after training, in units of `unit`."""
    return Learnt(start.shape, start.dtype.name, unit)


def like_payload(method: Any, question: Question) -> Learnt:
    """Return the rule for the array that was sent, after training."""
    return learnt(question.payload)


@cache
def expected(method: type, step: str) -> Reply:
    """Return the kind of reply that a method declares for a step; that of a base class holds unless declared anew."""
    for cls in method.__mro__:
        function = vars(cls).get(step)
        declared = getattr(function, "fedgram_reply", SOMETHING)
        if declared is not SOMETHING:
            return declared
        annotation = getattr(function, "__annotations__", {}).get("return")
        if annotation is Moments:
            return MomentsOf()
        if annotation is None and "return" in getattr(function, "__annotations__", {}):
            return None
    return SOMETHING


def check(value: Any, kind: Reply, question: Question, where: str = "reply") -> None:
    """Raise RefusedMessage if a reply is not what its step declares."""
    if kind is SOMETHING:
        return
    if kind is None:
        if value is not None:
            raise _wrong(where, "nothing", value)
    elif isinstance(kind, np.ndarray):
        Numbers(kind.shape, kind.dtype.name).check(value, question, where)
    elif isinstance(kind, Mapping):
        if not isinstance(value, dict) or value.keys() != kind.keys():
            raise _wrong(where, f"a dict of {sorted(kind)}", value)
        for key in kind:
            check(value[key], kind[key], question, f"{where}/{key}")
    elif isinstance(kind, list | tuple):
        if not isinstance(value, list) or len(value) != len(kind):
            raise _wrong(where, f"a list of {len(kind)} items", value)
        for i, item in enumerate(kind):
            check(value[i], item, question, f"{where}/{i}")
    else:
        kind.check(value, question, where)


def _wrong(where: str, want: str, got: Any) -> RefusedMessage:
    return RefusedMessage(f"{where} must be {want}, got {_describe(got)}")


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype.name} with shape {value.shape}"
    if isinstance(value, dict):
        return f"a dict of {_short(sorted(value))}"
    return _short(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]} …"

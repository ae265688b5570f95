"""Optimizers of clients and servers, and learning-rate schedules, as values with a text form.

The text is a name and, behind colons, numbers in the order of the value's fields: "adam", "adam:0.9:0.99",
"momentum:0.9". Numbers that are left out have their defaults. Command lines, experiment files and messages carry the
text; Python users may give the value.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, fields
from functools import lru_cache
from math import cos, pi
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidParameter, did_you_mean
from fedgram.core.schema import BelowOne, Count, Positive, PositiveShare, Share, annotations_of
from fedgram.core.schema import read as read_plain
from fedgram.nets.layers import Tensor, Vector

T = TypeVar("T", bound="Choice")
Step: TypeAlias = Callable[[Tensor, Tensor, float], None]


@dataclass(frozen=True)
class Choice:
    """Base of all values here: a name and bounds of the numbers, both for the text form.

    >>> str(Momentum(beta=0.5)), str(Cosine())
    ('momentum:0.5:1.0', 'cosine:0.0')
    """

    name: ClassVar[str]

    def __post_init__(self) -> None:
        """Raise if a number is out of the bounds of its annotation."""
        own: type = type(self)
        for name, kind in annotations_of(own).items():
            read_plain(kind, getattr(self, name), f"{name} of {self.name}", error=InvalidParameter)

    def __str__(self) -> str:
        return ":".join([self.name, *(str(getattr(self, field.name)) for field in fields(self))])

    @classmethod
    def form(cls) -> str:
        """Return the text form with the fields' names for the numbers."""
        return cls.name + "".join(f"[:{field.name.upper()}" for field in fields(cls)) + "]" * len(fields(cls))


# clients
@dataclass(frozen=True)
class ClientOptimizer(Choice, ABC):
    """A rule that turns gradients into steps, for the weights (clients, trained) of clients that train together."""

    @abstractmethod
    def begin(self, weights: Tensor) -> Step:
        """Return a function (weights, gradient, lr) that changes the weights of the first so many clients in place."""


@dataclass(frozen=True)
class SGD(ClientOptimizer):
    """Stochastic gradient descent: v ← m v + g, w ← w - η v.

    Parameters
    ----------
    momentum
        m, the share of the last step's direction that is kept.

    """

    name: ClassVar[str] = "sgd"
    momentum: BelowOne = 0.0

    def begin(self, weights: Tensor) -> Step:
        """Return a function (weights, gradient, lr) that takes a step in place."""
        velocity = weights.new_zeros(weights.shape) if self.momentum else None

        def take(w: Tensor, gradient: Tensor, lr: float) -> None:
            if velocity is not None:
                gradient = velocity[: len(w)].mul_(self.momentum).add_(gradient)
            w.sub_(gradient, alpha=lr)

        return take

    def length(self, steps: int) -> float:
        """Return ‖a‖₁, the sum of the gradients' weights in the total change after so many steps, in units of η.

        >>> SGD().length(5), SGD(0.5).length(2)
        (5.0, 2.5)
        """
        m = self.momentum
        return float(steps if not m else (steps - m * (1 - m**steps) / (1 - m)) / (1 - m))


@dataclass(frozen=True)
class Adam(ClientOptimizer):
    """Adam — Kingma and Ba 2015, Algorithm 1, as in torch: w ← w - η m̂/(√v̂ + ε).

    Parameters
    ----------
    beta1
        β₁, how much of the mean of past gradients m is kept.
    beta2
        β₂, how much of the mean of their squares v is kept.
    eps
        ε, what keeps the quotient finite.

    """

    name: ClassVar[str] = "adam"
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    eps: Positive = 1e-8

    def begin(self, weights: Tensor) -> Step:
        """Return a function (weights, gradient, lr) that takes a step in place."""
        mean, square, steps = weights.new_zeros(weights.shape), weights.new_zeros(weights.shape), 0

        def take(w: Tensor, gradient: Tensor, lr: float) -> None:
            nonlocal steps
            steps += 1
            m, v = mean[: len(w)], square[: len(w)]
            m.lerp_(gradient, 1 - self.beta1)
            v.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
            below = (v.sqrt() / (1 - self.beta2**steps) ** 0.5).add_(self.eps)
            w.addcdiv_(m, below, value=-lr / (1 - self.beta1**steps))

        return take


# servers
State: TypeAlias = MutableMapping[str, Array]


@dataclass(frozen=True)
class ServerOptimizer(Choice, ABC):
    """A rule that makes new global weights of the old ones and the clients' mean (FedOpt — Reddi et al. 2021).

    What it remembers from round to round is in a dict of arrays, which can be saved.
    """

    def towards(self, mean: Vector, weights: Vector, state: State) -> Vector:
        """Return the new weights."""
        change = mean.astype(np.float64) - weights  # Δ
        return np.asarray(weights + self.step(change, state), dtype=np.float32)

    @abstractmethod
    def step(self, change: Array, state: State) -> Array:
        """Return the step of the weights for a change Δ, the clients' mean less the weights."""


@dataclass(frozen=True)
class Mean(ServerOptimizer):
    """The clients' mean itself: FedAvg."""

    name: ClassVar[str] = "mean"

    def towards(self, mean: Vector, weights: Vector, state: State) -> Vector:
        """Return the mean as it is."""
        return mean

    def step(self, change: Array, state: State) -> Array:
        """Return the whole change."""
        return change


@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    """FedAvgM — Hsu, Qi and Brown 2019: v ← βv + Δ, w ← w + ηv.

    Parameters
    ----------
    beta
        β, how much of the last step's direction is kept.
    lr
        η, the server's learning rate.

    """

    name: ClassVar[str] = "momentum"
    beta: BelowOne = 0.9
    lr: Positive = 1.0

    def step(self, change: Array, state: State) -> Array:
        """Return ηv."""
        state["v"] = self.beta * state.get("v", np.zeros_like(change)) + change
        return self.lr * state["v"]


@dataclass(frozen=True)
class Adaptive(ServerOptimizer):
    """Base of FedAdam and FedYogi — Reddi et al. 2021, Algorithm 2: m ← β₁m + (1 - β₁)Δ, w ← w + ηm/(√v + τ).

    m begins at 0 and v at τ²; as in the paper, neither is corrected for that.

    Parameters
    ----------
    lr
        η, the server's learning rate.
    beta1
        β₁, how much of m, the mean of past changes, is kept.
    beta2
        β₂, how much of v, the mean of their squares, is kept.
    tau
        τ, how little the method adapts: with a large τ all numbers have the same rate η/τ.

    """

    lr: Positive = 0.01
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.99
    tau: Positive = 1e-3

    def step(self, change: Array, state: State) -> Array:
        """Return ηm/(√v + τ)."""
        state["m"] = self.beta1 * state.get("m", np.zeros_like(change)) + (1 - self.beta1) * change
        state["v"] = self.squares(state.get("v", np.full_like(change, self.tau**2)), np.square(change))
        return np.asarray(self.lr * state["m"] / (np.sqrt(state["v"]) + self.tau))

    @abstractmethod
    def squares(self, v: Array, square: Array) -> Array:
        """Return the new v from the old one and Δ²."""


@dataclass(frozen=True)
class FedAdam(Adaptive):
    """FedAdam — Reddi et al. 2021, Algorithm 2: v ← β₂v + (1 - β₂)Δ²."""

    name: ClassVar[str] = "adam"

    def squares(self, v: Array, square: Array) -> Array:
        """Return the new v."""
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class FedYogi(Adaptive):
    """FedYogi — Reddi et al. 2021, Algorithm 2: v ← v - (1 - β₂)Δ² sign(v - Δ²)."""

    name: ClassVar[str] = "yogi"

    def squares(self, v: Array, square: Array) -> Array:
        """Return the new v."""
        return np.asarray(v - (1 - self.beta2) * square * np.sign(v - square))


# schedules
@dataclass(frozen=True)
class Schedule(Choice, ABC):
    """A factor of the learning rate by round."""

    @abstractmethod
    def factor(self, number: int, rounds: int) -> float:
        """Return the factor in a round, which are numbered from 0."""


@dataclass(frozen=True)
class Constant(Schedule):
    """The same learning rate in all rounds."""

    name: ClassVar[str] = "constant"

    def factor(self, number: int, rounds: int) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class Steps(Schedule):
    """A learning rate that is multiplied by a factor after every so many rounds.

    Parameters
    ----------
    every
        Rounds between two changes.
    by
        The factor.

    """

    name: ClassVar[str] = "step"
    every: Count = 10
    by: PositiveShare = 0.5

    def factor(self, number: int, rounds: int) -> float:
        """Return the factor to the power of the changes so far."""
        return float(self.by ** (number // self.every))


@dataclass(frozen=True)
class Cosine(Schedule):
    """A learning rate that falls along half a cosine — Loshchilov and Hutter 2017, (5), without restarts.

    Parameters
    ----------
    last
        The share of the first learning rate that would be reached after the last round.

    """

    name: ClassVar[str] = "cosine"
    last: Share = 0.0

    def factor(self, number: int, rounds: int) -> float:
        """Return the height of the cosine."""
        return self.last + (1 - self.last) * (1 + cos(pi * number / rounds)) / 2


@dataclass(frozen=True)
class Exponential(Schedule):
    """A learning rate that is multiplied by a factor after every round.

    Parameters
    ----------
    by
        The factor.

    """

    name: ClassVar[str] = "exponential"
    by: PositiveShare = 0.99

    def factor(self, number: int, rounds: int) -> float:
        """Return the factor to the power of the round."""
        return float(self.by**number)


CLIENT_OPTIMIZERS: tuple[type[ClientOptimizer], ...] = (SGD, Adam)
SERVER_OPTIMIZERS: tuple[type[ServerOptimizer], ...] = (Mean, Momentum, FedAdam, FedYogi)
SCHEDULES: tuple[type[Schedule], ...] = (Constant, Steps, Cosine, Exponential)


def read(field: str, text: str, kinds: tuple[type[T], ...], **defaults: Any) -> T:
    """Return the value that a text stands for; `defaults` are of numbers that it leaves out.

    >>> read("server", "momentum:0.5", SERVER_OPTIMIZERS)
    Momentum(beta=0.5, lr=1.0)
    """
    found: T = _read(field, text, kinds, tuple(defaults.items()))
    return found


@lru_cache(maxsize=256)  # every client asks in every round
def _read(field: str, text: str, kinds: tuple[type[T], ...], defaults: tuple[tuple[str, Any], ...]) -> Any:
    name, *numbers = text.split(":")
    forms = " or ".join(kind.form() for kind in kinds)
    kind = next((kind for kind in kinds if kind.name == name), None)
    if kind is None or len(numbers) > len(fields(kind)):
        near = did_you_mean(name, [kind.name for kind in kinds]) if kind is None else "leave numbers out"
        raise InvalidParameter(f"{field}: expected {forms}, got {text!r}" + (f"; {near}" if near else ""))
    names = [each.name for each in fields(kind)]
    given: dict[str, Any] = {key: value for key, value in defaults if key in names}
    for key, number in zip(names, numbers, strict=False):
        try:
            given[key] = int(number) if number.isdecimal() else float(number)
        except ValueError:
            raise InvalidParameter(
                f"{field}: expected a number for {key.upper()} in {kind.form()}, got {number!r}; "
                f"write for example {kind()}"
            ) from None
    try:
        return kind(**given)
    except InvalidParameter as error:
        raise InvalidParameter(f"{field}: {error} in {text!r}; write for example {kind()}") from None


def as_text(value: "str | Choice | None") -> str | None:
    """Return a value's text form; texts stay as they are."""
    return str(value) if isinstance(value, Choice) else value

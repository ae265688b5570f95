"""Steps that parties answer by files, long after their summaries have joined, and the bounds on their answers.

A method marks at most one of its steps with `@step(by_files=bounds)`. `bounds` takes a reply, the moments that the
party has joined with (`Joined`), the method and the payload of the request, and raises `RefusedMessage` if no
samples with these moments can give this reply. A party and a store both know these moments, so both can check a reply.
Each bound leaves room for rounding and no more: honest answers are never refused.

The store adds replies up in fixed point, so a reply is `Moments`, or a dict of numbers and arrays, which come back as
float64.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidParameter, RefusedMessage
from fedgram.evaluation import MUCH
from fedgram.moments import solve
from fedgram.moments.basis import Basis
from fedgram.moments.moments import Moments
from fedgram.moments.targets import NumericTargets
from fedgram.protocol.registry import registry

if TYPE_CHECKING:
    from fedgram.protocol.method import Method

REMEDY = "answer with the table that was summarized"


@dataclass(frozen=True, eq=False)
class Joined:
    """The moments that a party has joined with, in the columns of a round, and the rounding errors of their squares.

    `noise` (d,) is for the diagonal; an element off it is wrong by at most the root of the product of two of these.
    `targets` are the numeric outcomes, the last columns of the moments; None where there are classes.
    """

    moments: Moments
    noise: Array
    targets: NumericTargets | None = None

    @classmethod
    def of(cls, basis: Basis, sent: Moments) -> Self:
        """Return the moments that were sent in the columns of a basis."""
        # A shifted column is a difference, whose rounding error is as large as those of the two numbers subtracted.
        parts = np.abs(basis.values) * np.sqrt(sent.squares[basis.rows])
        size = np.bincount(basis.places, parts, minlength=len(basis.shift)) + np.abs(basis.shift) * sqrt(sent.n)
        return cls(basis.moments(sent), 8 * solve.rounding_level(sent.d, sent.n) * size**2, basis.outcomes)

    @property
    def n(self) -> int:
        """Number of samples."""
        return self.moments.n

    @property
    def outcomes(self) -> int:
        """Number of numeric outcomes."""
        return 0 if self.targets is None else len(self.targets.names)

    def check_counts(self, reply: Moments) -> None:
        """Raise if moments have other class counts than the summary."""
        if not np.array_equal(reply.counts, self.moments.counts):
            raise RefusedMessage(
                f"it is of {reply.counts.tolist()} samples by class, and its summary of "
                f"{self.moments.counts.tolist()}: {REMEDY}"
            )

    def check_outcomes(self, reply: Moments) -> None:
        """Raise if the last columns of moments, the numeric outcomes, have other sums or products than the summary."""
        if not self.outcomes:
            return
        last = slice(-self.outcomes, None)
        noise = np.sqrt(self.noise[last] * reply.d)  # few samples are sent as a factor, which rounds more
        # A sum of n numbers is off by √n times the root of what their squares are off by.
        sums = np.abs(reply.cross[last] - self.moments.cross[last]) <= sqrt(self.n) * noise[:, None]
        products = np.abs(reply.gram[last, last] - self.moments.gram[last, last]) <= np.outer(noise, noise)
        if not (sums.all() and products.all()):
            raise RefusedMessage(f"its outcomes have other sums or products than in its summary: {REMEDY}")


Bounds: TypeAlias = Callable[[Any, Joined, Any, Any], None]


class FileStep(NamedTuple):
    """The step of a method that parties answer by files."""

    name: str
    bounds: Bounds


def check_range(name: str, value: float, low: float, high: float, rule: str) -> None:
    """Raise if a number is outside its range by more than rounding; `rule` says where the range comes from."""
    slack = (MUCH - 1) * max(-low, high, 0)
    if not low - slack <= value <= high + slack:
        raise RefusedMessage(f"{name!r} is {value:g}, and can be {low:g} to {high:g} ({rule}): {REMEDY}")


def file_step(method: "type[Method]") -> FileStep | None:
    """Return the step of a method that parties answer by files, None if it has none."""
    marked = {name: getattr(getattr(method, name), "fedgram_by_files", None) for name in method.steps()}
    found = [FileStep(name, bounds) for name, bounds in marked.items() if bounds is not None]
    if len(found) > 1:
        names = ", ".join(each.name for each in found)
        raise TypeError(f"{method.__name__}: expected at most 1 step with by_files, got {names}; mark one of them")
    return found[0] if found else None


def asked_by_files(method: str) -> FileStep:
    """Return the step of the named method that parties answer by files; raise if it has none."""
    found = file_step(registry[method]) if method in registry and registry[method].name == method else None
    if found is None:
        raise InvalidParameter(f"{method!r} has no step that is answered by files; choose another method")
    return found

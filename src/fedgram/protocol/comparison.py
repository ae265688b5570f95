"""Own model or global model: errors of both on a client's own rows, which neither of them has seen."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.core.classes import Label
from fedgram.core.randomness import generator
from fedgram.evaluation import Errors
from fedgram.models import finite

# Up to EACH rows are left out one by one. More rows are left out in GROUPS groups, in turn. With more than ALL rows,
# only one group is left out: 1 / PARTS of the rows, at most HELD_OUT. Methods with slow models have their own EACH.
EACH, GROUPS, ALL, PARTS, HELD_OUT = 200, 10, 5_000, 5, 10_000
ROUNDING = 1e-9  # relative differences of squared errors up to this are ties

# Why a global model has not seen the rows that it is judged by, or "seen" if it has.
How: TypeAlias = Literal["new", "removed", "corrected", "seen"]
HOW: Mapping[How, str] = {  # the worst last
    "new": "the global model was made without these rows",
    "removed": "left out of the global model, too: their sums were subtracted from what was published",
    "corrected": "left out of the global model to first order: what was published does not hold the sums to subtract",
    "seen": "the global model has seen these rows, which cannot be subtracted from what was published: its figures "
    "look better than they are",
}


@dataclass(frozen=True)
class Score:
    """Sums over rows that were left out: the number of right labels, or the errors in each numeric outcome."""

    right: int = 0
    errors: Mapping[str, Errors] = field(default_factory=dict)

    def __add__(self, other: "Score") -> "Score":
        """Return the sums over the rows of both."""
        errors = {name: self.errors[name] + found if self.errors else found for name, found in other.errors.items()}
        return Score(self.right + other.right, errors)


@dataclass(frozen=True)
class Comparison:
    """The errors of a client's own model and of the global model, each on rows that it has not seen.

    Attributes
    ----------
    rows
        The number of the client's rows that were left out and predicted; 0 if it has too few.
    of
        The number of all its rows.
    how
        Why the global model has not seen the rows, one of `HOW`.
    own, shared
        The sums of the own and of the global model.
    lacking
        The classes that the client has no rows of, and others have.
    personal
        Whether the method makes personal models.
    units
        The units that squared errors of several numeric outcomes are added in.

    """

    rows: int
    of: int
    how: How = "new"
    own: Score = Score()
    shared: Score = Score()
    lacking: tuple[Label, ...] = ()
    personal: bool = True
    units: Mapping[str, float] = field(default_factory=dict)

    @property
    def own_is_better(self) -> bool:
        """Whether the own model is known to be better; it never is for a client that lacks rows of a class."""
        if not self.rows or self.lacking or not self.personal:
            return False
        if self.units:
            own, shared = (
                sum(found.errors[name].squared / unit**2 for name, unit in self.units.items())
                for found in (self.own, self.shared)
            )
            return own < shared * (1 - ROUNDING)
        return self.own.right > self.shared.right

    def fields(self) -> dict[str, Any]:
        """Return the comparison as plain values for JSON."""

        def plain(score: Score) -> dict[str, Any] | None:
            if not self.rows:
                return None
            if self.units:
                return {"errors": {name: errors.plain() for name, errors in score.errors.items()}}
            return {"right": score.right, "accuracy": score.right / self.rows}

        return {
            "rows": self.rows,
            "own": plain(self.own),
            "global": plain(self.shared),
            "how": self.how,
            "lacking": list(self.lacking),
        }


def groups_of(n: int, each: int = EACH) -> Iterator[npt.NDArray[np.intp]]:
    """Yield the groups of rows that are left out together, in turn: always the same ones.

    >>> [group.tolist() for group in groups_of(3)]
    [[0], [1], [2]]
    >>> [len(group) for group in groups_of(2005)], [len(group) for group in groups_of(1_000_000)]
    ([201, 201, 201, 201, 201, 200, 200, 200, 200, 200], [10000])
    """
    if n <= max(each, GROUPS):
        yield from np.arange(n)[:, None]
        return
    shuffled = generator(0, "left out").permutation(n)
    if n > ALL:
        yield np.sort(shuffled[: min(n // PARTS, HELD_OUT)])
        return
    yield from (np.sort(shuffled[start::GROUPS]) for start in range(GROUPS))


def score(predicted: Array, truth: npt.NDArray[Any], names: tuple[str, ...], change: Array | float = 0.0) -> Score:
    """Return the sums of some rows, given their scores (n, c) and label indices (n,), or outcomes (n, t) by name."""
    if names:
        return Score(errors={name: Errors.of(predicted[:, place], truth[:, place]) for place, name in enumerate(names)})
    return Score(right=int((finite(predicted + change).argmax(axis=1) == truth).sum()))


Judged: TypeAlias = Callable[[npt.NDArray[np.intp]], tuple[How, Score, Score]]


def compared(n: int, judged: Judged, progress: Callable[[int], None], *, each: int = EACH, **known: Any) -> Comparison:
    """Return the comparison on groups of n rows; `judged` leaves out one group and scores both models on it."""
    how: How = "new"
    rows, own, shared = 0, Score(), Score()
    for group in groups_of(n, each) if n > 1 else ():
        found, of_own, of_shared = judged(group)
        how = max(how, found, key=list(HOW).index)
        rows, own, shared = rows + len(group), own + of_own, shared + of_shared
        progress(len(group))
    return Comparison(rows, n, how, own, shared, **known)

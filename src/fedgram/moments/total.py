"""Sums of moments that arrive one by one."""

from typing import Generic, TypeVar

import numpy as np

from fedgram.core.errors import InvalidData, NotMoments
from fedgram.moments.accumulate import Accumulator
from fedgram.moments.plausible import MOST_SAMPLES
from fedgram.moments.statistic import Statistic

S = TypeVar("S", bound=Statistic)


class Total(Generic[S]):
    """A running sum of moments, for those that arrive one by one: O(d²) memory for any number of them.

    >>> from fedgram import Moments
    >>> total = Total[Moments]()
    >>> for part in ([[1.0, 2.0]], [[3.0, 4.0]]):
    ...     total.add(Moments.of(part, ["ill"], classes=["ill", "well"]))
    >>> total.moments().cross
    array([[4., 0.],
           [6., 0.]])
    """

    def __init__(self) -> None:
        self._first: S | None = None
        self._sum: Accumulator | None = None

    def add(self, part: S) -> None:
        """Add moments of the same kind."""
        if self._first is None:
            # A d × d matrix is made when a second part has come: one small upload cannot claim as much.
            self._first = part
            return
        part = part.aligned(self._first.kind)
        if self._sum is None:
            self._counts, self._sum = np.zeros_like(part.counts), Accumulator(part.d, len(part.classes))
            self._accumulate(self._first, self._sum)
        self._accumulate(part, self._sum)

    def _accumulate(self, part: S, total: Accumulator) -> None:
        if sum(self._counts.tolist()) + part.n > MOST_SAMPLES:
            raise NotMoments(f"{part.n} samples more make more than the {MOST_SAMPLES} that can be")
        self._counts += part.counts
        part.add_to(total)

    def moments(self) -> S:
        """Return the sum; nothing can be added afterwards."""
        if self._first is None:
            raise InvalidData("a sum of no moments has no shape: give at least one")
        if self._sum is None:
            return self._first
        self._sum.flush()
        sums, counts = self._sum.sums[self._counts > 0], self._counts
        return type(self._first)(self._first.kind, sums=sums, counts=counts, packed=self._sum.packed)

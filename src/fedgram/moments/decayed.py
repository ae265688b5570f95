"""Moments of labelled samples whose weights are no longer whole numbers: `0.99 * moments`."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from fedgram.core import wire
from fedgram.core.classes import NUMERIC, Classes
from fedgram.core.columns import Columns
from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch
from fedgram.models import LinearModel
from fedgram.moments.moments import Moments, Schema
from fedgram.moments.regression import Ridge
from fedgram.moments.weighted import SLACK, WeightedMoments


@wire.message("decayed-moments", version=1)
@dataclass(frozen=True, eq=False, repr=False)
class DecayedMoments(WeightedMoments):
    """Moments with a weight for each sample: of `0.99 * moments`, and of its sums and differences with other moments.

    All sums are multiplied by the factor, so that the model is that of a fit with these sample weights. They are for
    one's own use: methods and studies take `Moments`, whose counts are numbers of samples.

    Parameters
    ----------
    n : int
        The number of samples, not the sum of their weights.
    weight : float
        The sum of the samples' weights.
    mean : Array
        The weighted mean of the features, (d,).
    target_mean : Array
        The share of each class in the weight, (c,).
    packed : Array
        The weighted Gram matrix about the mean, as `fedgram.moments.packing` packs it.
    cross : Array
        The weighted products of features and classes about their means, (d, c).
    squares : Array
        The weighted squares of the classes about their means, (c,).
    handled : Array
        The diagonal of all that was added and subtracted, (d,), whose rounding errors remain.
    classes : Classes
        The classes.
    features : str
        The fingerprint of the features.
    columns : Columns
        The names of the features, () where they have none.

    Examples
    --------
    >>> import fedgram as fg
    >>> old = fg.Moments.of([[0.0], [1.0]], ["well", "ill"], classes=["ill", "well"])
    >>> new = fg.Moments.of([[3.0]], ["ill"], classes=["ill", "well"])
    >>> total = 0.5 * old + new
    >>> total.weight, total.mean, total.target_mean
    (2.0, array([1.75]), array([0.75, 0.25]))
    >>> total.model(ridge=1.0).predict([[2.0]])
    array(['ill'], dtype='<U4')

    """

    classes: Classes
    features: str = ""
    columns: Columns = ()

    @classmethod
    def of_moments(cls, moments: Moments) -> Self:
        """Return moments as they are, each sample with weight 1."""
        schema, n = moments.schema, moments.n
        if not n:
            raise InvalidData("moments of no samples: expected at least one; leave them out")
        if schema.bias:
            raise InvalidParameter(
                "moments with a column of ones: expected moments without one; make them without bias=True, since "
                "models of weighted samples have an intercept anyway"
            )
        problem, counts = moments.regression(intercept=True), moments.counts.astype(np.float64)
        return cls(
            n,
            float(n),
            problem.mean + (np.array(schema.centre) if schema.centre else 0.0),
            problem.target_mean,
            problem.packed,
            problem.cross,
            counts - counts**2 / n,
            SLACK * moments.squares,
            schema.classes,
            schema.features,
            schema.columns,
        )

    @property
    def schema(self) -> Schema:
        """The classes, columns and features that moments must share to be added."""
        return Schema(self.classes, len(self.mean), self.features, columns=self.columns)

    def model(self, ridge: Ridge = 0.0, *, intercept: bool = True) -> LinearModel:
        """Return the least-squares classifier of samples with these weights.

        Parameters
        ----------
        ridge
            The ridge, "auto" for that of least generalised cross-validation error.
        intercept
            Whether to fit an intercept, which the ridge does not shrink.

        """
        if self.classes == NUMERIC:
            raise InvalidParameter(
                "numeric outcomes have no classifier: use GramRegressor, which can be multiplied, too"
            )
        problem = self.regression(intercept=intercept)
        weights, _ = problem.solve(ridge)
        return LinearModel(weights, self.classes, problem.offset(weights), self.features, self.columns)

    def __add__(self, other: "Moments | Self") -> Self:
        """Return the moments of both together."""
        return NotImplemented if (like := self._like(other)) is None else super().__add__(like)

    def __radd__(self, other: object) -> Self:
        """Add moments on the left; let `sum([a, b])` start from 0."""
        return self if isinstance(other, int) and other == 0 else self + other  # type: ignore[operator]

    def __sub__(self, other: "Moments | Self") -> Self:
        """Return the moments without `other`, which was added before with these weights."""
        return NotImplemented if (like := self._like(other)) is None else super().__sub__(like)

    def __rsub__(self, other: Moments) -> Self:
        """Subtract from moments."""
        return type(self).of_moments(other) - self if isinstance(other, Moments) else NotImplemented

    def _like(self, other: Any) -> Self | None:
        """Return moments to combine with these, None for anything else; raise for another schema."""
        if isinstance(other, Moments):
            alike = set(other.schema.columns) == set(self.columns)
            other = type(self).of_moments(other.reordered(self.columns) if self.columns and alike else other)
        if not isinstance(other, type(self)):
            return None
        self.schema.check_same(other.schema)
        return other

    def check(self) -> None:
        """Raise for arrays that no samples could have as their moments."""
        super().check()
        if (self.target_mean < 0).any():
            raise Mismatch("field 'target_mean' must be shares of classes, got negative numbers")

    def to_bytes(self) -> bytes:
        """Return the moments as bytes, to keep as a file."""
        return wire.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the moments in `data`, checked like a message of another party."""
        payload = wire.decode(data, sender="bytes")
        if not isinstance(payload, cls):
            raise Mismatch(f"bytes: expected decayed moments, got a {type(payload).__name__}")
        return payload

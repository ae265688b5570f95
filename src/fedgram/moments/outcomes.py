"""Moments of features and targets seen alike: targets are numeric outcomes, or classes as one-hot rows.

For numeric outcomes, moments are those of the joint columns [x, y] as samples of one class: XᵀY and YᵀY are blocks of
their Gram matrix. They add, subtract, travel and are checked like any others.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array, unmasked
from fedgram.core.columns import Columns, as_columns, as_table, names_of, samples_of
from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch
from fedgram.core.labels import NUMERIC
from fedgram.moments import digits, packing, solve
from fedgram.moments.accumulate import as_features
from fedgram.moments.moments import Moments
from fedgram.moments.regression import Regression


def joint_moments(
    x: Any, y: npt.ArrayLike, *, features: str = "", columns: Iterable[str] = (), outcomes: Iterable[str] = ()
) -> Moments:
    """Return the moments of the columns [x, y] for features x (n, d) and numeric outcomes y, (n,) or (n, t).

    `columns` and `outcomes` name the columns of x and y; a table brings the names of its own.

    >>> moments = joint_moments([[1.0], [2.0], [4.0]], [1.0, 3.0, 7.0])
    >>> weights, _ = Joint.of(moments, outcomes=1).regression(intercept=True).solve(0.0)
    >>> weights
    array([[2.]])
    """
    x, targets = as_table(x), np.asarray(unmasked(y, "outcomes"))
    names = as_columns(columns) or names_of(x)
    rows = as_features(samples_of(x, names) if names else x)
    targets = as_features(targets[:, None] if targets.ndim == 1 else targets)
    if len(rows) != len(targets):
        raise InvalidData(f"{len(rows)} samples but {len(targets)} outcomes")
    labels = tuple(outcomes)
    if bool(names) != bool(labels):
        raise InvalidParameter(f"name the columns of both x and y, or of neither: got {names} and {labels}")
    return Moments.of(
        np.column_stack([rows, targets]),
        np.zeros(len(rows), dtype=np.int64),
        classes=NUMERIC,
        features=features,
        columns=(*names, *labels),
    )


def regression_of(moments: Moments, outcomes: int = 0, *, intercept: bool) -> Regression:
    """Return the regression on the features: of the classes, or of the last `outcomes` columns where there are any."""
    if not outcomes:
        return moments.regression(intercept=intercept)
    digits.warn_of_lost(moments)
    return Joint.of(moments, outcomes=outcomes).regression(intercept=intercept)


def feature_columns(moments: Moments, outcomes: int = 0) -> Columns:
    """Return the names of the columns that features are, or were made from, without the last `outcomes` ones."""
    columns = moments.kind.columns
    return columns[: len(columns) - outcomes]


@dataclass(frozen=True, eq=False)
class Joint:
    """XᵀX packed, XᵀY (d, t), the squares of each target (t,), sums of features (d,) and targets (t,), of n samples."""

    packed: Array
    cross: Array
    squares: Array
    sums: Array
    target_sums: Array
    n: int

    @classmethod
    def of(cls, moments: Moments, *, outcomes: int = 0) -> Self:
        """Return the view of moments whose last `outcomes` columns are numeric outcomes; 0 for those with classes."""
        if not outcomes:
            counts = moments.counts.astype(np.float64)
            return cls(moments.packed, moments.cross, counts, moments.cross.sum(axis=1), counts, moments.n)
        if moments.kind.bias or moments.classes != NUMERIC:
            raise Mismatch(f"these are not moments of numeric outcomes ({moments!r}): make them with joint_moments")
        if not 0 < outcomes < moments.d:
            raise InvalidParameter(f"outcomes must be from 1 to {moments.d - 1} of {moments.d} columns, got {outcomes}")
        d, gram, sums = moments.d - outcomes, moments.gram, moments.cross[:, 0]
        packed = packing.pack(gram[:d, :d])
        return cls(packed, gram[:d, d:], gram.diagonal()[d:], sums[:d], sums[d:], moments.n)

    def regression(self, *, intercept: bool) -> Regression:
        """Return the regression of the targets on the features, about the means if with an intercept."""
        squares = float(self.squares.sum())
        return Regression.of(self.packed, self.cross, self.sums, self.target_sums, squares, self.n, intercept=intercept)

    def squares_about_mean(self) -> Array:
        """Return each target's sum of squares about its mean, (t,); exactly 0 where that is rounding."""
        about = self.squares - self.target_sums**2 / max(self.n, 1)
        return np.where(about > solve.rounding_level(len(self.sums), self.n) * self.squares, about, 0.0)

    def squared_errors(self, weights: Array, intercept: Array | None) -> Array:
        """Return each target's sum of squared errors of the scores x @ weights + intercept, (t,).

        It is a quadratic form in the moments. About the samples' own means, so that what these have in common with the
        model's does not cancel.
        """
        centred = self.regression(intercept=True)
        off = centred.target_mean - centred.mean @ weights - (0.0 if intercept is None else intercept)
        gram = packing.unpack(centred.packed, len(weights))
        around = self.squares_about_mean() + ((gram @ weights - 2 * centred.cross) * weights).sum(axis=0)
        errors: Array = np.maximum(around, 0.0) + self.n * off**2
        return errors

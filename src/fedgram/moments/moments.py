"""Moments of a data set: XᵀX, XᵀY, n and the class counts, with what they are moments *of*.

Moments of disjoint data sets add; that one fact is the whole of analytic federated learning. Taking a data set's
moments away again is exact unlearning.

>>> rng = np.random.default_rng(0)
>>> x, y = rng.normal(size=(50, 3)), rng.integers(0, 2, size=50)
>>> whole = Moments.of(x, y, classes=2)
>>> parts = Moments.of(x[:20], y[:20], classes=2) + Moments.of(x[20:], y[20:], classes=2)
>>> bool(np.allclose(whole.gram, parts.gram)), parts.n
(True, 50)
"""

import warnings
from collections.abc import Iterable
from dataclasses import replace
from math import isfinite
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.columns import Columns, as_columns, as_table, names_of, samples_of
from fedgram.core.errors import InvalidData, LostPrecision, NotMoments
from fedgram.core.labels import Classes, Label, as_classes, to_indices
from fedgram.models import LinearModel
from fedgram.moments import digits, packing, solve
from fedgram.moments.accumulate import Accumulator, as_block, as_features, class_sums, not_finite
from fedgram.moments.kind import Kind
from fedgram.moments.plausible import nearest
from fedgram.moments.regression import Regression
from fedgram.moments.statistic import Counts, Statistic
from fedgram.moments.total import Total


@wire.register_message
class Moments(Statistic):
    """Immutable moments of (n, d) features and their labels, of which there is one kind (see `Kind`)."""

    @classmethod
    def of(
        cls,
        x: Any,
        y: npt.ArrayLike,
        *,
        classes: int | Iterable[Label],
        bias: bool = False,
        features: str = "",
        columns: Iterable[str] = (),
    ) -> Self:
        """Return the moments of features x (n, d), float32 or float64, and labels y (n,).

        A table (pandas, polars, Arrow) brings the names of its columns; `columns` names those of an array, or says
        which of a table's columns to take, in which order.
        Works by blocks of rows and accumulates in float64; there is never a float64 copy of everything.
        """
        x, names = as_table(x), as_classes(classes)
        chosen = as_columns(columns) or names_of(x)
        rows = as_features(samples_of(x, chosen) if chosen else x)
        as_columns(chosen, rows.shape[1])
        labels = to_indices(y, names)
        return cls.of_indices(rows, labels, classes=names, bias=bias, features=features, columns=chosen)

    @classmethod
    def of_indices(
        cls,
        rows: npt.NDArray[Any],
        labels: Counts,
        *,
        classes: Classes,
        bias: bool = False,
        features: str = "",
        columns: Columns = (),
        centre: Array | None = None,
    ) -> Self:
        """Do what `of` does with labels that are known to be indices into `classes`, about a centre (d,)."""
        if len(rows) != len(labels):
            raise InvalidData(f"{len(rows)} samples but {len(labels)} labels")
        about = () if centre is None else tuple(centre.tolist())
        kind = Kind(classes, rows.shape[1] + bias, features, bias, columns, about)
        counts = np.bincount(labels, minlength=len(classes))
        [present] = counts.nonzero()
        ranks = present.searchsorted(labels)
        if len(rows) < kind.dimension / 4:
            block = as_block(rows, bias=bias, centre=centre)
            factor = solve.triangular_factor(block)
            moments = cls(kind, sums=class_sums(block, ranks, len(present)), counts=counts, factor=factor)
            evidence = np.vdot(factor, factor)
        else:
            total = Accumulator(kind.dimension, len(present))
            total.add_samples(rows, ranks, bias=bias, centre=centre)
            moments = cls(kind, sums=total.sums, counts=counts, packed=total.packed)
            evidence = moments._diagonal().sum()
        # A NaN or infinity anywhere shows in the sum of all squares, and so do features too large to be squared.
        if not isfinite(evidence):
            raise not_finite(rows)
        return moments

    def solve(self, ridge: float = 0.0) -> Array:
        """Return the least-squares weights (d, c) with a ridge ≥ 0: (XᵀX + ridge I)⁻¹ XᵀY.

        With ridge 0 and features that do not span their space: the minimum-norm solution, and a warning with the rank.
        """
        moments = self.about_zero()
        digits.warn_of_lost(moments)
        return solve.factor(moments.packed, self.d, ridge=ridge, n=self.n).solve(moments.cross)

    def model(self, ridge: float = 0.0, *, intercept: bool = True) -> LinearModel:
        """Return the least-squares classifier, by default with an intercept that the ridge does not shrink.

        Where moments have a bias column, that becomes the intercept, and is shrunk like any other weight.
        """
        kind = self.kind
        if kind.bias or not intercept:
            weights = self.solve(ridge)
            parts = (weights[:-1], weights[-1]) if kind.bias else (weights, None)
            return LinearModel(parts[0], self.classes, parts[1], kind.features, kind.columns)
        problem = self.regression(intercept=True)
        weights = problem.factor(ridge).solve(problem.cross)
        offset = problem.target_mean - (problem.mean + (kind.centre or 0.0)) @ weights
        return LinearModel(weights, self.classes, offset, kind.features, kind.columns)

    def about_zero(self) -> Self:
        """Return the moments of the features as they are, where they are about a centre (`Kind.centre`).

        Columns that are far from zero lose digits by it, as if they had never had a centre.
        """
        if not self.kind.centre:
            return self
        centre = np.append(self.kind.centre, np.zeros(int(self.kind.bias)))
        half = self.cross.sum(axis=1) + self.n / 2 * centre
        gram = np.tril(self.gram + np.outer(centre, half) + np.outer(half, centre))
        sums = (self.cross + np.outer(centre, self.counts)).T[self.counts > 0]
        return type(self)(replace(self.kind, centre=()), sums=sums, counts=self.counts, packed=packing.pack(gram))

    def regression(self, *, intercept: bool) -> Regression:
        """Return the regression of the classes on the features, about the means if with an intercept."""
        digits.warn_of_lost(self)
        counts, squares = self.counts.astype(np.float64), float(self.n)  # a one-hot row has length 1
        return Regression.of(
            self.packed, self.cross, self.cross.sum(axis=1), counts, squares, self.n, intercept=intercept
        )

    def __add__(self, other: "Moments") -> "Moments":
        """Return the moments of both data sets together."""
        return Moments.sum((self, other)) if isinstance(other, Moments) else NotImplemented

    @classmethod
    def sum(cls, parts: "Iterable[Moments]") -> "Moments":
        """Return the moments of all the data sets together, in O(d²) memory for any number of them."""
        total = Total[Moments]()
        for part in parts:
            total.add(part)
        return total.moments()

    def __radd__(self, other: object) -> Self:
        """Let `sum([a, b])` start from 0."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __sub__(self, other: Self) -> Self:
        """Return the moments without those of `other`, a data set that was added before (exact unlearning)."""
        if not isinstance(other, Moments):
            return NotImplemented
        other = other.aligned(self.kind)
        counts = self.counts - other.counts
        if (counts < 0).any():
            label = self.classes[int(np.argmax(counts < 0))]
            raise NotMoments(f"cannot subtract: it has more samples of class {label!r} than there are")
        sums, packed, noise = (self.cross - other.cross).T, self.packed - other.packed, self._noise()
        # What is left of a class, or of everything, when all its samples are gone must be rounding.
        if (np.abs(sums[counts == 0]) > np.sqrt(noise * self.n)).any() or (
            not counts.any() and (np.abs(packed) > noise).any()
        ):
            raise NotMoments("cannot subtract: these are not the moments of samples that were added")
        # A feature that only the others had leaves its rounding behind; in its own units that would be a feature still.
        where, level = packing.diagonal(self.d), 8 * solve.rounding_level(1, self.n)
        gone = np.abs(packed[where]) <= level * self._diagonal()
        if packed[where][gone].any():
            full = packing.unpack(packed, self.d)
            full[gone], full[:, gone], sums[:, gone] = 0.0, 0.0, 0.0
            packed = packing.pack(full)
        rest = type(self)(self.kind, sums=sums[counts > 0], counts=counts, packed=packed * counts.any())
        rest.check(noise)
        try:
            rest.check()
        except NotMoments:
            # The whole's rounding is more than the rest can bear.
            mended = nearest(packed, rest._class_means(), rest.n, bias=self.kind.bias)
            warnings.warn(
                f"the {rest.n} samples left are smaller than the rounding errors of the {self.n} they were taken from: "
                f"their Gram matrix was changed by up to {np.abs(mended - packed).max():.2g} "
                f"(its largest element is {np.abs(packed).max():.2g}) to be one again; adding up anew is exact",
                LostPrecision,
                stacklevel=2,
            )
            rest = type(self)(self.kind, sums=sums[counts > 0], counts=counts, packed=mended)
        return rest

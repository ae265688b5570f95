"""Moments of weighted samples with numeric targets, about their means: what estimators add up.

Unlike `Moments` they never travel, so they need no integer counts, and they are kept about their means: columns far
from zero (the year 2026, say) keep their digits. Classes are targets too, as one-hot rows.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack
from scipy.linalg.blas import dsyrk

from fedgram.core import threads
from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidData, LostPrecision, NotMoments
from fedgram.moments import packing, solve
from fedgram.moments.accumulate import ROWS_AT_ONCE, class_sums
from fedgram.moments.plausible import TINY
from fedgram.moments.regression import Regression

# Rounding errors of sums and differences, in units of what is expected of a single product.
SLACK = 8
# What part of a variance may be lost by a subtraction without a word.
MOST_LOST = 1e-4


class Samples(NamedTuple):
    """Features (n, d), an array or a sparse matrix in CSR, with targets, and weights (n,) or None for ones.

    Targets are numbers (n, t), or with `classes` indices (n,) of so many classes.
    """

    x: Any
    y: npt.NDArray[Any]
    weights: Array | None = None
    classes: int = 0

    def blocks(self) -> Iterator["Samples"]:
        """Yield a few thousand samples at a time, features as an array; samples without weight are left out."""
        for start in range(0, self.x.shape[0], ROWS_AT_ONCE):
            block = slice(start, start + ROWS_AT_ONCE)
            x, y = self.x[block], self.y[block]
            x = x if isinstance(x, np.ndarray) else x.toarray()
            weights = None if self.weights is None else self.weights[block]
            if weights is not None and not weights.all():
                [kept] = weights.nonzero()
                x, y, weights = x[kept], y[kept], weights[kept]
            if len(x):
                yield Samples(x, y, weights, self.classes)

    def targets(self) -> Array:
        """Return the targets as numbers (n, t), classes as one-hot rows."""
        return np.eye(self.classes)[self.y] if self.classes else self.y


@dataclass(frozen=True, eq=False)
class WeightedMoments:
    """Σw(x - μ)(x - μ)ᵀ, packed, Σw(x - μ)(y - ν)ᵀ (d, t) and Σw(y - ν)² (t,) of n samples.

    μ is `mean` (d,), ν `target_mean` (t,), and Σw `weight`. A weight of 2 is a sample that is there twice. `handled`
    (d,) is the diagonal of all that was added and subtracted to get here, whose rounding errors remain.
    """

    n: int
    weight: float
    mean: Array
    target_mean: Array
    packed: Array
    cross: Array
    squares: Array
    handled: Array

    @classmethod
    def of(cls, samples: Samples) -> Self:
        """Return the moments of samples, block by block.

        Everything is less the first sample until the means are known: that takes one pass, and a feature that never
        varies is exactly zero.
        """
        d, t = samples.x.shape[1], samples.classes or samples.y.shape[1]
        # On the whole square: for tall blocks that is a little faster than on the packed one.
        gram, cross, squares = np.zeros((d, d), order="F"), np.zeros((t, d)), np.zeros(t)
        sums, target_sums, weight, n = np.zeros(d), np.zeros(t), 0.0, 0
        first, first_target = np.zeros(d), np.zeros(t)
        buffer = np.empty((min(samples.x.shape[0], ROWS_AT_ONCE), d))
        for x, y, weights, classes in samples.blocks():
            if not n:
                first = x[0].astype(np.float64)
                first_target = first_target if classes else y[0].astype(np.float64)
            own = np.ones(len(x)) if weights is None else weights
            roots = np.sqrt(own)
            with np.errstate(over="ignore", invalid="ignore"):  # looked for below
                rows = np.subtract(x, first, out=buffer[: len(x)])
                if weights is not None:
                    rows *= roots[:, None]
                with threads.symmetric(rows.shape[1]):
                    gram = dsyrk(1.0, rows.T, beta=1.0, c=gram, lower=1, overwrite_c=1)
                if classes:
                    masses = np.bincount(y, own, classes)
                    products = class_sums(rows if weights is None else rows * roots[:, None], y, classes)
                    sums += products.sum(axis=0)
                    cross += products
                    target_sums += masses
                    squares += masses
                else:
                    targets = (y - first_target) * roots[:, None]
                    products = np.column_stack([roots, targets]).T @ rows
                    sums += products[0]
                    cross += products[1:]
                    target_sums += roots @ targets
                    squares += (targets**2).sum(axis=0)
            n, weight = n + len(x), weight + float(own.sum())
        if not n or not isfinite(weight):
            raise InvalidData(f"the weights of the samples add up to {weight}: they must be finite, and not all zero")
        if not isfinite(gram.diagonal().sum() + squares.sum()):
            raise InvalidData("features or targets are so large that their squares overflow: rescale them")
        return cls(
            n,
            weight,
            first + sums / weight,
            first_target + target_sums / weight,
            _rank_one(packing.pack(gram), sums, -1 / weight),
            cross.T - np.outer(sums, target_sums) / weight,
            np.maximum(squares - target_sums**2 / weight, 0.0),
            SLACK * gram.diagonal(),
        )

    def __add__(self, other: Self) -> Self:
        """Return the moments of both together: scatter about one's own mean, and between the two means."""
        weight = self.weight + other.weight
        return self._combined(other, 1, weight, self.weight * other.weight / weight)

    def __sub__(self, other: Self) -> Self:
        """Return the moments without `other`, which was added before.

        Where little is left of much, a warning says how few digits it has: what was added up is rounded.
        """
        weight = self.weight - other.weight
        if other.n >= self.n or weight <= SLACK * solve.rounding_level(1, self.n) * self.weight:
            raise NotMoments(
                f"cannot subtract {other.n} samples of weight {other.weight:g} from {self.n} of weight {self.weight:g}:"
                " nothing would be left"
            )
        between = self.weight * other.weight / weight
        rest = self._combined(other, -1, weight, -between)
        where, d = packing.diagonal(len(self.mean)), len(self.mean)
        before, level = self.packed[where], SLACK * solve.rounding_level(d, self.n)
        # Means far from zero are rounded, too, and so is the scatter between them.
        apart = np.abs(other.mean - self.mean)
        rounded = SLACK * solve.EPS * (np.abs(self.mean) + np.abs(other.mean))
        blurred = between * (2 * apart * rounded + rounded**2)
        length, unsure = np.linalg.norm(apart), np.linalg.norm(rounded)
        noise = max(level * float(before.sum()) + between * float(2 * length * unsure + unsure**2), TINY)
        if not solve.is_positive_semidefinite(rest.packed, d, noise):
            raise NotMoments("cannot subtract: these are not the moments of samples that were added")
        # A feature or target that only the others had leaves its rounding errors behind, and these are no feature.
        left = np.abs(rest.packed[where])
        varies = left > level * before + blurred
        lost = np.where(varies, (level * before + blurred) / np.where(varies, left, 1.0), 0.0)
        if (worst := float(lost.max(initial=0.0))) > MOST_LOST:
            warnings.warn(
                f"what is left of feature {int(lost.argmax())} is sure to {worst:.0e} of its variance only: it is "
                "small beside what was subtracted; fitting the samples that are left anew is exact",
                LostPrecision,
                stacklevel=3,
            )
        target_varies = rest.squares > level * self.squares
        full = packing.unpack(rest.packed, d)
        full *= varies
        full *= varies[:, None]
        return replace(
            rest,
            packed=packing.pack(full),
            cross=rest.cross * varies[:, None] * target_varies,
            squares=rest.squares * target_varies,
        )

    def _combined(self, other: Self, sign: int, weight: float, between: float) -> Self:
        """Add or take away `other`; `weight` is of what comes out, `between` that of the scatter between the means."""
        apart, target_apart, share = other.mean - self.mean, other.target_mean - self.target_mean, other.weight / weight
        return replace(
            self,
            n=self.n + sign * other.n,
            weight=weight,
            mean=self.mean + sign * share * apart,
            target_mean=self.target_mean + sign * share * target_apart,
            packed=_rank_one(self.packed + sign * other.packed, apart, between),
            cross=self.cross + sign * other.cross + between * np.outer(apart, target_apart),
            squares=np.maximum(self.squares + sign * other.squares + between * target_apart**2, 0.0),
            handled=self.handled + other.handled + SLACK * abs(between) * apart**2,
        )

    def spread(self, places: Any, count: int) -> Self:
        """Return the moments with `count` targets: one's own at `places`, and zero elsewhere."""
        target_mean, squares, cross = np.zeros(count), np.zeros(count), np.zeros((len(self.mean), count))
        target_mean[places], squares[places], cross[:, places] = self.target_mean, self.squares, self.cross
        return replace(self, target_mean=target_mean, squares=squares, cross=cross)

    def regression(self, *, intercept: bool) -> Regression:
        """Return the regression of the targets on the features."""
        d, t = self.cross.shape
        if intercept:
            squares = float(self.squares.sum())
            return Regression(
                self.packed, self.cross, self.mean, self.target_mean, self.weight, True, squares, self.handled
            )
        return Regression(
            _rank_one(self.packed, self.mean, self.weight),
            self.cross + self.weight * np.outer(self.mean, self.target_mean),
            np.zeros(d),
            np.zeros(t),
            self.weight,
            False,
            float((self.squares + self.weight * self.target_mean**2).sum()),
            self.handled,
        )


def _rank_one(packed: Array, vector: Array, factor: float) -> Array:
    """Return a packed matrix plus factor · vector vectorᵀ."""
    return np.asarray(lapack.dsfrk(len(vector), 1, factor, vector[:, None], 1.0, packed, trans="N", uplo="L"))

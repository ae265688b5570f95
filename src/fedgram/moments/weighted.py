"""Moments of weighted samples about their means, with numeric targets or classes as one-hot rows. Arrays only.

Unlike `Moments` they hold weights instead of counts, and they are kept about their means: columns far from zero (the
year 2026, say) keep their digits. They add, subtract, and can be multiplied by a number.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from math import isclose, isfinite
from numbers import Real
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack
from scipy.linalg.blas import dsyrk

from fedgram.core import threads, wire
from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidData, InvalidParameter, LostPrecision, NotMoments
from fedgram.moments import packing, solve, sparse
from fedgram.moments.accumulate import ROWS_AT_ONCE, class_sums
from fedgram.moments.feasibility import TINY
from fedgram.moments.regression import STEPS, Regression

# Rounding errors of sums and differences, in units of the rounding error expected of a single product.
SLACK = 8
# The share of a variance that a subtraction may lose without a warning.
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
            weights = None if self.weights is None else self.weights[block]
            samples = Samples(self.x[block], self.y[block], weights, self.classes).counted()
            if len(samples.y):
                yield samples if isinstance(samples.x, np.ndarray) else samples._replace(x=samples.x.toarray())

    def counted(self) -> "Samples":
        """Return the samples that have a weight."""
        if self.weights is None or self.weights.all():
            return self
        [kept] = self.weights.nonzero()
        return self._replace(x=self.x[kept], y=self.y[kept], weights=self.weights[kept])

    def targets(self) -> Array:
        """Return the targets as numbers (n, t), classes as one-hot rows."""
        return np.eye(self.classes)[self.y] if self.classes else self.y


class _Sums(NamedTuple):
    """Weighted sums of n samples less the first: the Gram matrix (in the lower triangle), sums (d,) and YᵀX (t, d)."""

    n: int
    weight: float
    first: Array
    first_target: Array
    gram: Array
    sums: Array
    cross: Array
    target_sums: Array
    squares: Array

    @classmethod
    def of_rows(cls, samples: Samples) -> Self:
        """Return the sums of samples, features as an array, block by block."""
        d, t = samples.x.shape[1], samples.classes or samples.y.shape[1]
        # The full square matrix: for tall blocks that is a little faster than the packed one.
        gram, cross, squares = np.zeros((d, d), order="F"), np.zeros((t, d)), np.zeros(t)
        sums, target_sums, weight, n = np.zeros(d), np.zeros(t), 0.0, 0
        first, first_target = np.zeros(d), np.zeros(t)
        buffer = np.empty((min(len(samples.x), ROWS_AT_ONCE), d))
        for x, y, weights, classes in samples.blocks():
            if not n:
                first = x[0].astype(np.float64)
                first_target = first_target if classes else y[0].astype(np.float64)
            own = np.ones(len(x)) if weights is None else weights
            roots = np.sqrt(own)
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
        return cls(n, weight, first, first_target, gram, sums, cross, target_sums, squares)

    @classmethod
    def of_sparse(cls, samples: Samples) -> Self:
        """Return the sums of samples with sparse features: blocks of the Gram matrix of features, ones and targets."""
        from scipy.sparse import csr_array, hstack

        x, y, weights, classes = samples.counted()
        (n, d), t = x.shape, classes or samples.y.shape[1]
        first_target = np.zeros(t) if classes or not n else y[0].astype(np.float64)
        targets = sparse.one_hot(y, classes) if classes else csr_array(y - first_target)
        rows = csr_array(hstack([x, csr_array(np.ones((n, 1))), targets], format="csr"))
        own = np.ones(n) if weights is None else weights
        whole, shift = sparse.gram(rows, roots=None if weights is None else np.sqrt(own), shifted=d)
        squares, target_sums = whole.diagonal()[d + 1 :], whole[d, d + 1 :]
        gram = np.asfortranarray(whole[:d, :d])
        return cls(
            n, float(own.sum()), shift[:d], first_target, gram, whole[d, :d], whole[d + 1 :, :d], target_sums, squares
        )


@wire.message("weighted-moments", version=1)
@dataclass(frozen=True, eq=False)
class WeightedMoments:
    """Σw(x - μ)(x - μ)ᵀ, packed, Σw(x - μ)(y - ν)ᵀ (d, t) and Σw(y - ν)² (t,) of n samples.

    μ is `mean` (d,), ν `target_mean` (t,), and Σw `weight`. A sample of weight 2 counts as two equal samples. Weights
    that add up to less than n, as normalised ones do, count as if they added up to n. `handled` (d,) is the diagonal of
    the sum of all terms that were added and subtracted, whose rounding errors remain.
    """

    n: int
    weight: float
    mean: Annotated[Array, wire.Shape("d")]
    target_mean: Annotated[Array, wire.Shape("c")]
    packed: Annotated[Array, wire.Shape("p")]
    cross: Annotated[Array, wire.Shape("d", "c")]
    squares: Annotated[Array, wire.Shape("c")]
    handled: Annotated[Array, wire.Shape("d")]

    @classmethod
    def of(cls, samples: Samples) -> Self:
        """Return the moments of samples.

        The first sample is subtracted from all samples, since the means are known only at the end: this needs one pass,
        and a constant feature becomes exactly zero.
        """
        made = _Sums.of_rows if isinstance(samples.x, np.ndarray) else _Sums.of_sparse
        with np.errstate(over="ignore", invalid="ignore"):  # infinite sums raise below
            n, weight, first, first_target, gram, sums, cross, target_sums, squares = made(samples)
        _check_weight(weight)
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
        """Return the moments of both together: the scatter about each mean, plus that between the two means."""
        weight = self.weight + other.weight
        return self._combined(other, 1, weight, self.weight * other.weight / weight)

    def __sub__(self, other: Self) -> Self:
        """Return the moments without `other`, which was added before.

        If the rest is small compared with the whole, a warning says how many digits it has lost to rounding.
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
        # Means far from zero have rounding errors, too, and so does the scatter between them.
        apart = np.abs(other.mean - self.mean)
        rounded = SLACK * solve.EPS * (np.abs(self.mean) + np.abs(other.mean))
        blurred = between * (2 * apart * rounded + rounded**2)
        length, unsure = np.linalg.norm(apart), np.linalg.norm(rounded)
        noise = max(level * float(before.sum()) + between * float(2 * length * unsure + unsure**2), TINY)
        if not solve.is_positive_semidefinite(rest.packed, d, noise):
            raise NotMoments("cannot subtract: these are not the moments of samples that were added")
        # A feature or target that varied only in `other` leaves rounding errors behind, which are set to zero.
        left = np.abs(rest.packed[where])
        varies = left > level * before + blurred
        lost = np.where(varies, (level * before + blurred) / np.where(varies, left, 1.0), 0.0)
        if (worst := float(lost.max(initial=0.0))) > MOST_LOST:
            warnings.warn(
                f"the remaining variance of feature {int(lost.argmax())} may be off by a share of {worst:.0e}: it is "
                "small compared with the subtracted one; a new fit of the remaining samples is exact",
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

    def __mul__(self, factor: float) -> Self:
        """Return the moments with all weights multiplied by a factor > 0, as if each sample had so much more weight."""
        times = checked_factor(factor)
        return replace(
            self,
            weight=times * self.weight,
            packed=times * self.packed,
            cross=times * self.cross,
            squares=times * self.squares,
            handled=times * self.handled,
        )

    __rmul__ = __mul__

    def _combined(self, other: Self, sign: int, weight: float, between: float) -> Self:
        """Return the sum or difference with `other`: `weight` of the result, `between` of the scatter between means."""
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

    @property
    def effective(self) -> float:
        """The number of samples from which a ridge and probabilities are chosen."""
        return max(self.weight, float(self.n))

    def spread(self, places: Any, count: int) -> Self:
        """Return the moments with `count` targets: the present ones at `places`, and zeros elsewhere."""
        target_mean, squares, cross = np.zeros(count), np.zeros(count), np.zeros((len(self.mean), count))
        target_mean[places], squares[places], cross[:, places] = self.target_mean, self.squares, self.cross
        return replace(self, target_mean=target_mean, squares=squares, cross=cross)

    def __repr__(self) -> str:
        sizes = f"d={len(self.mean)}, targets={len(self.target_mean)}"
        return f"{type(self).__name__}(n={self.n}, weight={self.weight:g}, {sizes})"

    def check(self) -> None:
        """Raise for arrays that no samples could have as their moments."""
        d = len(self.mean)
        if len(self.packed) != packing.size(d):
            raise NotMoments(f"field 'packed' has {len(self.packed)} numbers; {d} features need {packing.size(d)}")
        if not (self.n > 0 and self.weight > 0 and (self.squares >= 0).all() and (self.handled >= 0).all()):
            raise NotMoments("fields 'n' and 'weight' must be more than 0, and 'squares' and 'handled' not negative")
        level = SLACK * solve.rounding_level(d, self.n)
        noise = level * float(self.packed[packing.diagonal(d)].sum() + self.handled.sum()) + TINY
        if not solve.is_positive_semidefinite(self.packed, d, noise):
            raise NotMoments("field 'packed' must be positive semidefinite: these are not the moments of any samples")

    def regression(self, *, intercept: bool) -> Regression:
        """Return the regression of the targets on the features."""
        d, t = self.cross.shape
        if intercept:
            squares = float(self.squares.sum())
            return Regression(
                self.packed, self.cross, self.mean, self.target_mean, self.effective, True, squares, self.handled
            )
        return Regression(
            _rank_one(self.packed, self.mean, self.weight),
            self.cross + self.weight * np.outer(self.mean, self.target_mean),
            np.zeros(d),
            np.zeros(t),
            self.effective,
            False,
            float((self.squares + self.weight * self.target_mean**2).sum()),
            self.handled,
        )


@dataclass(frozen=True, eq=False)
class ClassMoments:
    """Moments of the samples of each class apart, None for a class without samples, so that classes can be balanced.

    Balanced weights depend on the numbers of samples of all classes, which change with every sum and difference. So
    they are applied last, to a Gram matrix for each class.
    """

    parts: tuple[WeightedMoments | None, ...]

    @classmethod
    def of(cls, samples: Samples) -> Self:
        """Return the moments of samples with classes."""
        x, y, weights, classes = samples
        own = np.ones(len(y)) if weights is None else weights
        masses, none = np.bincount(y, own, classes), np.zeros_like(y)
        _check_weight(float(masses.sum()))
        return cls(
            tuple(
                WeightedMoments.of(Samples(x, none, own * (y == place), 1)) if mass else None
                for place, mass in enumerate(masses.tolist())
            )
        )

    def balanced(self) -> WeightedMoments:
        """Return the moments of all samples, weighted so that each class that has samples has the same weight.

        The weight of all samples stays what it is.
        """
        count, there = len(self.parts), [(k, part) for k, part in enumerate(self.parts) if part is not None]
        each = sum(part.weight for _, part in there) / len(there)
        weighed = [part.spread([place], count) * (each / part.weight) for place, part in there]
        return reduce(WeightedMoments.__add__, weighed)

    def spread(self, places: Any, count: int) -> Self:
        """Return the moments with `count` classes: the present ones at `places`, and none elsewhere."""
        found: list[WeightedMoments | None] = [None] * count
        for place, part in zip(places, self.parts, strict=True):
            found[place] = part
        return replace(self, parts=tuple(found))

    def __add__(self, other: Self) -> Self:
        """Return the moments of both together."""
        pairs = zip(self.parts, other.parts, strict=True)
        return replace(self, parts=tuple(b if a is None else a if b is None else a + b for a, b in pairs))

    def __sub__(self, other: Self) -> Self:
        """Return the moments without `other`, which was added before."""
        left = tuple(_left(a, b) for a, b in zip(self.parts, other.parts, strict=True))
        if not any(left):
            raise NotMoments("cannot subtract all samples: nothing would be left")
        return replace(self, parts=left)

    def __mul__(self, factor: float) -> Self:
        """Return the moments with all weights multiplied by a factor > 0."""
        return replace(self, parts=tuple(part and part * factor for part in self.parts))

    __rmul__ = __mul__


def _check_weight(weight: float) -> None:
    if not 0 < weight < np.inf:
        raise InvalidData(f"the weights of the samples add up to {weight}: they must be finite, and not all zero")


def _left(whole: WeightedMoments | None, other: WeightedMoments | None) -> WeightedMoments | None:
    """Return what is left of a class's moments, None if it was all."""
    if other is None:
        return whole
    if whole is None:
        raise NotMoments(f"cannot subtract {other.n} samples of a class that has none")
    if whole.n == other.n and isclose(whole.weight, other.weight, rel_tol=SLACK * solve.rounding_level(1, whole.n)):
        return None
    return whole - other


def checked_factor(factor: object) -> float:
    """Return a factor of weights; raise for anything but a number > 0."""
    if isinstance(factor, bool) or not isinstance(factor, Real) or not 0 < float(factor) < np.inf:
        raise InvalidParameter(f"factor of moments: expected a number > 0, got {factor!r}; 0.99 forgets one per cent")
    return float(factor)


def leave_one_out(problem: Regression, samples: Samples) -> float:
    """Return the ridge of least squared leave-one-out error, among `STEPS` mean eigenvalues.

    `problem` is the regression of these samples. A model without sample i misses its target by eᵢ / (1 - hᵢ), where eᵢ
    is the residual of the model with it and hᵢ its element of the hat matrix's diagonal. If no feature varies, every
    ridge gives the same model, and 1 is returned.
    """
    values, vectors = problem.eigenpairs
    if not len(values):
        return 1.0
    weight = float(samples.x.shape[0] if samples.weights is None else samples.weights.sum())
    ridges = STEPS * values.mean()
    projected, errors = vectors.T @ problem.cross, np.zeros(len(ridges))
    for block in samples.blocks():
        rows, targets = (block.x - problem.mean) @ vectors, block.targets() - problem.target_mean
        own = np.ones(len(rows)) if block.weights is None else block.weights
        squares = rows**2
        for i, ridge in enumerate(ridges):
            kept = 1 / (values + ridge)
            leverage = own * (squares @ kept + problem.intercept / weight)
            residuals = targets - rows @ (projected * kept[:, None])
            # A single sample may have leverage 1: there are no others to predict it from.
            left = np.maximum(1 - leverage, solve.EPS)
            errors[i] += own @ ((residuals / left[:, None]) ** 2).sum(axis=1)
    return solve.least(ridges, errors)


def _rank_one(packed: Array, vector: Array, factor: float) -> Array:
    """Return a packed matrix plus factor · vector vectorᵀ."""
    return np.asarray(lapack.dsfrk(len(vector), 1, factor, vector[:, None], 1.0, packed, trans="N", uplo="L"))

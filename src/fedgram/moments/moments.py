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

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import isfinite
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.columns import Columns, as_columns, as_table, difference, names_of, order, samples_of
from fedgram.core.errors import InvalidData, LostPrecision, Mismatch, NotMoments
from fedgram.core.hashing import hash_bytes
from fedgram.core.labels import Classes, Label, as_classes, read_classes, shorten, to_indices
from fedgram.models import LinearModel, sent_columns
from fedgram.moments import solve
from fedgram.moments.accumulate import Accumulator, as_block, as_features, class_sums, not_finite
from fedgram.moments.plausible import MOST_SAMPLES, check_counts, check_factor, check_gram, nearest
from fedgram.moments.regression import Regression

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Kind:
    """What moments are of: only moments of one kind may be added.

    `features` is a fingerprint of how the features were made (backbone and options). With `bias` they have a column of
    ones at the end, and the dimension counts it. `columns` are the names of the table's columns that the features are,
    or were made from; () where samples came without names.
    """

    classes: Classes
    dimension: int
    features: str = ""
    bias: bool = False
    columns: Columns = ()

    def check_same(self, other: "Kind") -> None:
        """Refuse another kind, naming both sides."""
        if self == other:
            return
        if unlike := difference(other.columns, self.columns):
            raise Mismatch(f"moments of different columns cannot be combined: one {unlike}")
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if mine != theirs:
                raise Mismatch(f"moments of different {field.name} cannot be combined: {mine!r} and {theirs!r}")


@wire.register_message
class Moments:
    """Immutable moments of (n, d) features and their labels.

    Kept packed (see `solve`). A data set of n < d/4 samples is kept and sent as its triangular factor R instead:
    the same information in fewer numbers.
    """

    wire_name: ClassVar[str] = "moments"
    wire_version: ClassVar[int] = 1
    wire_fields: ClassVar[Mapping[str, wire.Field]] = {
        "gram": wire.Field("float64", ("p",), optional=True),
        "factor": wire.Field("float64", ("n", "d"), optional=True),
        "sums": wire.Field("float64", ("present", "d")),
        "counts": wire.Field("int64", ("c",)),
    }

    def __init__(
        self, kind: Kind, *, sums: Array, counts: Counts, packed: Array | None = None, factor: Array | None = None
    ) -> None:
        """Hold arrays already computed; `Moments.of` computes them.

        `sums` has a row for each class that has samples, its sum of features; `packed` or `factor` is given, as `solve`
        makes them.
        """
        self.kind = kind
        self.counts = counts
        self.n: int = sum(counts.tolist())  # whole numbers of Python do not overflow
        self._sums, self._packed, self._factor = sums, packed, factor
        for array in (packed, factor, sums, counts):
            if array is not None:
                array.setflags(write=False)

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
    ) -> Self:
        """Do what `of` does with labels that are known to be indices into `classes`."""
        if len(rows) != len(labels):
            raise InvalidData(f"{len(rows)} samples but {len(labels)} labels")
        kind = Kind(classes, rows.shape[1] + bias, features, bias, columns)
        counts = np.bincount(labels, minlength=len(classes))
        [present] = counts.nonzero()
        ranks = present.searchsorted(labels)
        if len(rows) < kind.dimension / 4:
            block = as_block(rows, bias=bias)
            factor = solve.triangular_factor(block)
            moments = cls(kind, sums=class_sums(block, ranks, len(present)), counts=counts, factor=factor)
            evidence = np.vdot(factor, factor)
        else:
            total = Accumulator(kind.dimension, len(present))
            total.add_samples(rows, ranks, bias=bias)
            moments = cls(kind, sums=total.sums, counts=counts, packed=total.packed)
            evidence = moments._diagonal().sum()
        # A NaN or infinity anywhere shows in the sum of all squares, and so do features too large to be squared.
        if not isfinite(evidence):
            raise not_finite(rows)
        return moments

    @property
    def classes(self) -> Classes:
        """The classes, in the order of the counts."""
        return self.kind.classes

    @property
    def d(self) -> int:
        """Number of features, the bias column included."""
        return self.kind.dimension

    @cached_property
    def gram(self) -> Array:
        """XᵀX, (d, d)."""
        full = solve.unpack(self.packed, self.d)
        full.flags.writeable = False
        return full

    @cached_property
    def cross(self) -> Array:
        """XᵀY for one-hot Y, (d, c): column j is the sum of class j's features."""
        sums = np.zeros((len(self.classes), self.d))
        sums[self.counts > 0] = self._sums
        sums.flags.writeable = False
        return sums.T

    @cached_property
    def packed(self) -> Array:
        """XᵀX as `solve` packs it."""
        if self._packed is not None:
            return self._packed
        assert self._factor is not None
        packed = np.zeros(solve.packed_size(self.d))
        solve.add_gram(packed, self._factor)
        packed.flags.writeable = False
        return packed

    def _diagonal(self) -> Array:
        return self.packed[solve.packed_diagonal(self.d)]

    @property
    def squares(self) -> Array:
        """The sum of squares of each feature, (d,): the diagonal of XᵀX."""
        return self._diagonal() if self._factor is None else np.square(self._factor).sum(axis=0)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the kind and all the numbers, in hexadecimal: one for one content, whatever message it is in."""
        kind = [getattr(self.kind, field.name) for field in fields(self.kind)]
        parts = {"counts": self.counts, "sums": self._sums, "gram": self._packed, "factor": self._factor}
        shapes = {name: array.shape for name, array in parts.items() if array is not None}
        numbers = (
            np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).data
            for array in parts.values()
            if array is not None and array.size
        )
        return hash_bytes((json.dumps([kind, shapes]).encode(), *numbers))

    def sketch(self, direction: Array) -> tuple[Array, Array]:
        """Return XᵀX r (d,) and YᵀX r (c,) for a direction r (d,), in O(d²) and without the matrix XᵀX."""
        if self._factor is None:
            gram = solve.times(self.packed, direction)
        else:
            gram = self._factor.T @ (self._factor @ direction)
        sums = np.zeros(len(self.classes))
        sums[self.counts > 0] = self._sums @ direction
        return gram, sums

    def solve(self, ridge: float = 0.0) -> Array:
        """Return the least-squares weights (d, c) with a ridge ≥ 0: (XᵀX + ridge I)⁻¹ XᵀY.

        With ridge 0 and features that do not span their space: the minimum-norm solution, and a warning with the rank.
        """
        return solve.factor(self.packed, self.d, ridge=ridge, n=self.n).solve(self.cross)

    def model(self, ridge: float = 0.0, *, intercept: bool = True) -> LinearModel:
        """Return the least-squares classifier, by default with an intercept that the ridge does not shrink.

        Where moments have a bias column, that becomes the intercept, and is shrunk like any other weight.
        """
        if self.kind.bias:
            weights = self.solve(ridge)
            return LinearModel(weights[:-1], self.classes, weights[-1], self.kind.features, self.kind.columns)
        problem = self.regression(intercept=intercept)
        weights = problem.factor(ridge).solve(problem.cross)
        return LinearModel(weights, self.classes, problem.offset(weights), self.kind.features, self.kind.columns)

    def regression(self, *, intercept: bool) -> Regression:
        """Return the regression of the classes on the features, about the means if with an intercept."""
        return Regression.of(self.packed, self.cross, self.counts, intercept=intercept)

    def reordered(self, columns: Sequence[str]) -> Self:
        """Return the moments of the same samples with their columns in another order; other columns are refused.

        >>> moments = Moments.of([[1.0, 2.0]], [0], classes=2, columns=["age", "bp"])
        >>> moments.reordered(["bp", "age"]).cross[:, 0]
        array([2., 1.])
        """
        own, bias = self.kind.columns, self.kind.bias
        if tuple(columns) == own:
            return self
        places = order(own, columns)
        if self.kind.features or len(places) + bias != self.d:
            raise Mismatch("these features were made from columns in another order: make them anew in the agreed one")
        places = np.append(places, self.d - 1) if bias else places
        kind, sums = replace(self.kind, columns=tuple(columns)), self._sums[:, places]
        if self._factor is not None:
            factor = solve.triangular_factor(np.ascontiguousarray(self._factor[:, places]))
            return type(self)(kind, sums=sums, counts=self.counts, factor=factor)
        packed = solve.pack(np.tril(self.gram[np.ix_(places, places)]))
        return type(self)(kind, sums=sums, counts=self.counts, packed=packed)

    def aligned(self, kind: Kind) -> Self:
        """Return the moments with their columns in the order of another kind, if it is that kind; refuse others."""
        alike = self.kind.columns and set(self.kind.columns) == set(kind.columns)
        moments = self.reordered(kind.columns) if alike else self
        kind.check_same(moments.kind)
        return moments

    def __add__(self, other: "Moments") -> "Moments":
        """Return the moments of both data sets together."""
        return Moments.sum((self, other)) if isinstance(other, Moments) else NotImplemented

    @classmethod
    def sum(cls, parts: "Iterable[Moments]") -> "Moments":
        """Return the moments of all the data sets together, in O(d²) memory for any number of them."""
        total = Total()
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
        where, level = solve.packed_diagonal(self.d), 8 * solve.rounding_level(1, self.n)
        gone = np.abs(packed[where]) <= level * self._diagonal()
        if packed[where][gone].any():
            full = solve.unpack(packed, self.d)
            full[gone], full[:, gone], sums[:, gone] = 0.0, 0.0, 0.0
            packed = solve.pack(full)
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

    def _class_means(self) -> Array:
        """Return the classes' sums divided by the roots of their counts, (present, d), as `plausible` wants them."""
        return self._sums / np.sqrt(self.counts[self.counts > 0])[:, None]

    def _noise(self) -> float:
        """Return how large rounding errors in the Gram matrix may be, as `solve` estimates them."""
        with np.errstate(over="ignore"):
            return 8 * solve.rounding_level(self.d, self.n) * float(self.squares.sum())

    def check(self, noise: float | None = None) -> None:
        """Refuse arrays that no data set could have as its moments, but for rounding errors up to `noise`.

        The whole matrix [X Y]ᵀ[X Y] must be positive semidefinite. Since YᵀY is the diagonal of class counts, that
        is the scatter within classes, XᵀX - Σ_c s_c s_cᵀ / n_c, being so.
        """
        check_counts(self.counts)
        noise = self._noise() if noise is None else noise
        if self._factor is not None:
            check_factor(self._factor, self._class_means(), noise, bias=self.kind.bias)
        else:
            check_gram(self.packed, self._class_means(), self.n, noise, bias=self.kind.bias)

    def to_fields(self) -> dict[str, Any]:
        """Take the moments apart for the wire."""
        return {
            "gram": self._packed,
            "factor": self._factor,
            "sums": self._sums,
            "counts": self.counts,
            "n": self.n,
            "classes": shorten(self.classes),
            "features": self.kind.features,
            "bias": self.kind.bias,
            **sent_columns(self.kind.columns),
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Put moments together from the wire."""
        counts, sums = fields["counts"], fields["sums"]
        classes = read_classes(fields["classes"], len(counts))
        packed, factor = fields["gram"], fields["factor"]
        columns = as_columns(fields.get("columns", ()))
        kind = Kind(classes, sums.shape[1], str(fields["features"]), bool(fields["bias"]), columns)
        moments = cls(kind, sums=sums, counts=counts, packed=packed, factor=factor)
        d, n, present = moments.d, moments.n, np.count_nonzero(counts)
        if fields["n"] != n:
            raise NotMoments(f"field 'n' is {fields['n']} but the class counts add up to {n}")
        if len(sums) != present:
            raise NotMoments(f"field 'sums' has {len(sums)} rows for {present} classes with samples")
        if (packed is None) == (factor is None):
            raise NotMoments("either field 'gram' or field 'factor' must be there")
        if packed is not None and len(packed) != solve.packed_size(d):
            raise NotMoments(f"field 'gram' has {len(packed)} numbers; {d} dimensions need {solve.packed_size(d)}")
        if factor is not None and len(factor) != n:
            raise NotMoments(f"field 'factor' has {len(factor)} rows for {n} samples")
        return moments

    def to_bytes(self) -> bytes:
        """Return the moments as bytes, fit to be a file that one party sends another."""
        return wire.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes, *, sender: str = "bytes") -> Self:
        """Return the moments in `data`, with every check that another party's message gets."""
        payload = wire.decode(data, sender=sender)
        if not isinstance(payload, cls):
            raise Mismatch(f"message from {sender!r} holds a {type(payload).__name__}, not moments")
        return payload

    def __eq__(self, other: object) -> bool:
        """Say whether both hold the same numbers of the same kind of data."""
        if not isinstance(other, Moments):
            return NotImplemented
        return (
            self.kind == other.kind
            and np.array_equal(self.counts, other.counts)
            and np.array_equal(self._sums, other._sums)
            and np.array_equal(self.packed, other.packed)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Moments(n={self.n}, d={self.d}, classes={len(self.classes)}, features={self.kind.features!r})"


class Total:
    """A running sum of moments, for those that arrive one by one: O(d²) memory for any number of them.

    >>> total = Total()
    >>> for part in ([[1.0, 2.0]], [[3.0, 4.0]]):
    ...     total.add(Moments.of(part, ["ill"], classes=["ill", "well"]))
    >>> total.moments().cross
    array([[4., 0.],
           [6., 0.]])
    """

    def __init__(self) -> None:
        self._first: Moments | None = None
        self._sum: Accumulator | None = None

    def add(self, part: Moments) -> None:
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

    def _accumulate(self, part: Moments, total: Accumulator) -> None:
        if sum(self._counts.tolist()) + part.n > MOST_SAMPLES:
            raise NotMoments(f"{part.n} samples more make more than the {MOST_SAMPLES} that can be")
        self._counts += part.counts
        total.sums[part.counts > 0] += part._sums
        if part._factor is None:
            total.packed += part.packed
        else:
            total.add_factor(part._factor)

    def moments(self) -> Moments:
        """Return the sum; nothing can be added afterwards."""
        if self._first is None:
            raise InvalidData("a sum of no moments has no shape: give at least one")
        if self._sum is None:
            return self._first
        self._sum.flush()
        sums, counts = self._sum.sums[self._counts > 0], self._counts
        return Moments(self._first.kind, sums=sums, counts=counts, packed=self._sum.packed)

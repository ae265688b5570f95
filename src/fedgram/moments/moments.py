"""Moments of a data set: XᵀX, XᵀY, n and the class counts, with the schema that they share with others.

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
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array, as_sparse
from fedgram.core.classes import NUMERIC, Classes, Label, as_classes, read_classes, shorten, to_indices
from fedgram.core.columns import Columns, as_columns, as_table, difference, names_of, order, samples_of
from fedgram.core.errors import InvalidData, InvalidParameter, LostPrecision, Mismatch, NotMoments, UnknownName
from fedgram.core.hashing import hash_bytes, readable
from fedgram.models import LinearModel, sent_columns
from fedgram.moments import far_columns, packing, solve, sparse
from fedgram.moments.accumulate import Accumulator, as_block, as_features, class_sums, not_finite
from fedgram.moments.feasibility import MOST_SAMPLES, check_counts, check_factor, check_gram, nearest
from fedgram.moments.regression import Regression

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from fedgram.inference.table import Coefficients
    from fedgram.moments.decayed import DecayedMoments

Counts: TypeAlias = npt.NDArray[np.int64]
STUDY = "study:"  # the prefix of the fingerprint of a study's features
_FEATURES = re.compile(rf"{STUDY}(?P<name>.*)@(?P<fingerprint>[0-9a-f]{{64}})", re.DOTALL)


@dataclass(frozen=True)
class Schema:
    """Classes, columns and feature fingerprint that two moments must share to be added.

    Parameters
    ----------
    classes
        The classes, in the order of the counts.
    dimension
        The number of features, with the bias column if there is one.
    features
        The fingerprint of the way that features were made (backbone and options).
    bias
        Whether the last feature is a column of ones.
    columns
        The names of the table's columns that the features are, or were made from; () for samples without names.
    centre
        The numbers that were subtracted from the features before they were summed; () for none.

    """

    classes: Classes
    dimension: int
    features: str = ""
    bias: bool = False
    columns: Columns = ()
    centre: tuple[float, ...] = ()

    @property
    def study(self) -> str:
        """The name of the study that the features belong to, "" without a study."""
        return study_of(self.features)

    def check_same(self, other: "Schema") -> None:
        """Raise `Mismatch` for another schema, naming both sides."""
        if self == other:
            return
        if unlike := difference(other.columns, self.columns):
            raise Mismatch(f"moments of different columns cannot be combined: one {unlike}")
        if self.centre != other.centre:
            raise Mismatch(
                "moments about different centres cannot be combined: columns far from zero were summed less a centre "
                "of their run; make the moments of others with that run's fit.summarize(client)"
            )
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if field.name == "features" and mine != theirs:
                raise Mismatch(
                    f"moments of different data cannot be combined: {described(mine)} and {described(theirs)}"
                )
            if mine != theirs:
                raise Mismatch(f"moments of different {field.name} cannot be combined: {mine!r} and {theirs!r}")


@wire.register_message
class Moments:
    """Immutable moments XᵀX, XᵀY, n and class counts of (n, d) features and their labels, of one schema (see `Schema`).

    XᵀX is kept packed (see `packing`). For a data set of n < d/4 samples its triangular factor R is kept and sent
    instead: the same information in fewer numbers.
    """

    wire_name: ClassVar[str] = "moments"
    wire_version: ClassVar[int] = 1
    wire_fields: ClassVar[Mapping[str, wire.Field]] = {
        "gram": wire.Field("float64", ("p",), optional=True),
        "factor": wire.Field("float64", ("n", "d"), optional=True),
        "sums": wire.Field("float64", ("present", "d")),
        "counts": wire.Field("int64", ("c",)),
        "centre": wire.Field("float64", (None,), optional=True),
    }

    def __init__(
        self, schema: Schema, *, sums: Array, counts: Counts, packed: Array | None = None, factor: Array | None = None
    ) -> None:
        """Set arrays that are already computed; `Moments.of` computes them.

        `sums` has a row for each class that has samples, its sum of features; `packed` (see `packing`) or `factor` (see
        `solve`) is given.
        """
        self.schema = schema
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

        Rows are taken by blocks and added up in float64, without a float64 copy of all of them.

        Parameters
        ----------
        x
            The features: an array, a sparse matrix or array of SciPy, or a table (pandas, polars, Arrow) with named
            columns.
        y
            The labels.
        classes
            The classes, or their number.
        bias
            Whether to add a column of ones.
        features
            The fingerprint of the features.
        columns
            The names of an array's columns, or the columns of a table to take, in this order.

        """
        x, names = as_table(x), as_classes(classes)
        chosen = as_columns(columns) or names_of(x)
        labels, sparse_rows = to_indices(y, names), as_sparse(x)
        if sparse_rows is None:
            rows = as_features(samples_of(x, chosen) if chosen else x)
        else:
            schema = Schema(names, sparse_rows.shape[1] + bias, features, bias, chosen)
            if len(labels) >= schema.dimension / 4:
                return cls._of_sparse(sparse_rows, labels, schema)
            rows = sparse_rows.toarray()  # so few that their factor is kept, which is as large
        as_columns(chosen, rows.shape[1])
        return cls.of_indices(rows, labels, classes=names, bias=bias, features=features, columns=chosen)

    @classmethod
    def _of_sparse(cls, rows: "csr_array", labels: Counts, schema: Schema) -> Self:
        """Return the moments of sparse rows (n, d), without a dense copy of them."""
        if rows.shape[0] != len(labels):
            raise InvalidData(f"{rows.shape[0]} samples but {len(labels)} labels")
        as_columns(schema.columns, rows.shape[1])
        counts = np.bincount(labels, minlength=len(schema.classes))
        with np.errstate(over="ignore", invalid="ignore"):  # infinite sums raise below
            gram, sums = sparse.sums(rows, labels, len(schema.classes), bias=schema.bias)
        if not isfinite(gram.diagonal().sum()):
            raise sparse.not_finite(rows)
        return cls(schema, sums=sums[counts > 0], counts=counts, packed=packing.pack(gram))

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
        """Return the moments of features and labels that are indices into `classes`, about a centre (d,)."""
        if len(rows) != len(labels):
            raise InvalidData(f"{len(rows)} samples but {len(labels)} labels")
        about = () if centre is None else tuple(centre.tolist())
        schema = Schema(classes, rows.shape[1] + bias, features, bias, columns, about)
        counts = np.bincount(labels, minlength=len(classes))
        [present] = counts.nonzero()
        ranks = present.searchsorted(labels)
        if len(rows) < schema.dimension / 4:
            block = as_block(rows, bias=bias, centre=centre)
            factor = solve.triangular_factor(block)
            moments = cls(schema, sums=class_sums(block, ranks, len(present)), counts=counts, factor=factor)
            evidence = np.vdot(factor, factor)
        else:
            total = Accumulator(schema.dimension, len(present))
            total.add_samples(rows, ranks, bias=bias, centre=centre)
            moments = cls(schema, sums=total.sums, counts=counts, packed=total.packed)
            evidence = moments._diagonal().sum()
        # A NaN or infinity anywhere shows in the sum of all squares, and so do features too large to be squared.
        if not isfinite(evidence):
            raise not_finite(rows)
        return moments

    @property
    def classes(self) -> Classes:
        """The classes, in the order of the counts."""
        return self.schema.classes

    @property
    def d(self) -> int:
        """The number of features, the bias column included."""
        return self.schema.dimension

    @cached_property
    def gram(self) -> Array:
        """XᵀX, (d, d)."""
        full = packing.unpack(self.packed, self.d)
        full.flags.writeable = False
        return full

    @cached_property
    def cross(self) -> Array:
        """XᵀY for one-hot Y, (d, c): column j is the sum of class j's features."""
        sums = np.zeros((len(self.classes), self.d))
        sums[self.counts > 0] = self._sums
        sums.flags.writeable = False
        return sums.T

    @property
    def factor(self) -> Array | None:
        """R (n, d) with RᵀR = XᵀX, for moments that keep it; else None."""
        return self._factor

    @cached_property
    def packed(self) -> Array:
        """XᵀX in the packed format of `packing`."""
        if self._packed is not None:
            return self._packed
        assert self._factor is not None
        packed = np.zeros(packing.size(self.d))
        packing.add_gram(packed, self._factor)
        packed.flags.writeable = False
        return packed

    def _diagonal(self) -> Array:
        return self.packed[packing.diagonal(self.d)]

    @property
    def squares(self) -> Array:
        """The sum of squares of each feature, (d,): the diagonal of XᵀX."""
        return self._diagonal() if self._factor is None else np.square(self._factor).sum(axis=0)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the schema and all numbers, in hexadecimal: the same for the same content in any message."""
        schema = [getattr(self.schema, field.name) for field in fields(self.schema) if field.name != "centre"]
        schema += [self.schema.centre] if self.schema.centre else []
        parts = {"counts": self.counts, "sums": self._sums, "gram": self._packed, "factor": self._factor}
        shapes = {name: array.shape for name, array in parts.items() if array is not None}
        numbers = (
            np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).data
            for array in parts.values()
            if array is not None and array.size
        )
        return hash_bytes((json.dumps([schema, shapes]).encode(), *numbers))

    def sketch(self, direction: Array) -> tuple[Array, Array]:
        """Return XᵀX r (d,) and YᵀX r (c,) for a direction r (d,), in O(d²) and without the matrix XᵀX."""
        if self._factor is None:
            gram = packing.times(self.packed, direction)
        else:
            gram = self._factor.T @ (self._factor @ direction)
        sums = np.zeros(len(self.classes))
        sums[self.counts > 0] = self._sums @ direction
        return gram, sums

    def reordered(self, columns: Sequence[str]) -> Self:
        """Return the moments of the same samples with their columns in another order; raise for other columns.

        >>> from fedgram import Moments
        >>> moments = Moments.of([[1.0, 2.0]], [0], classes=2, columns=["age", "bp"])
        >>> moments.reordered(["bp", "age"]).cross[:, 0]
        array([2., 1.])
        """
        own, bias = self.schema.columns, self.schema.bias
        if tuple(columns) == own:
            return self
        places = order(own, columns)
        if self.schema.features or len(places) + bias != self.d:
            raise Mismatch("these features were made from columns in another order: make them anew in the agreed one")
        places = np.append(places, self.d - 1) if bias else places
        centre = tuple(self.schema.centre[place] for place in places[: len(self.schema.centre)].tolist())
        schema, sums = replace(self.schema, columns=tuple(columns), centre=centre), self._sums[:, places]
        if self._factor is not None:
            factor = solve.triangular_factor(np.ascontiguousarray(self._factor[:, places]))
            return type(self)(schema, sums=sums, counts=self.counts, factor=factor)
        packed = packing.pack(np.tril(self.gram[np.ix_(places, places)]))
        return type(self)(schema, sums=sums, counts=self.counts, packed=packed)

    def aligned(self, schema: Schema) -> Self:
        """Return the moments with columns in the order of another schema; raise if the schemas differ otherwise."""
        alike = self.schema.columns and set(self.schema.columns) == set(schema.columns)
        moments = self.reordered(schema.columns) if alike else self
        schema.check_same(moments.schema)
        return moments

    def add_to(self, total: Accumulator) -> None:
        """Add the numbers to a sum over as many classes."""
        total.sums[self.counts > 0] += self._sums
        if self._factor is None:
            total.packed += self.packed
        else:
            total.add_factor(self._factor)

    def _class_means(self) -> Array:
        """Return the classes' sums divided by the roots of their counts, (present, d), as `plausible` wants them."""
        return self._sums / np.sqrt(self.counts[self.counts > 0])[:, None]

    def _noise(self) -> float:
        """Return the largest rounding errors to expect in the Gram matrix, as `solve` estimates them."""
        with np.errstate(over="ignore"):
            return 8 * solve.rounding_level(self.d, self.n) * float(self.squares.sum())

    def solve(self, ridge: float = 0.0) -> Array:
        """Return the least-squares weights (d, c) with a ridge ≥ 0: (XᵀX + ridge I)⁻¹ XᵀY.

        Parameters
        ----------
        ridge
            The ridge. With 0 and features that do not span their space, the result is the minimum-norm solution, and a
            warning tells the rank.

        """
        moments = self.about_zero()
        moments.warn_of_lost_digits()
        return solve.factor(moments.packed, self.d, ridge=ridge, n=self.n).solve(moments.cross)

    def model(self, ridge: float = 0.0, *, intercept: bool = True) -> LinearModel:
        """Return the least-squares classifier, by default with an intercept that the ridge does not shrink.

        Parameters
        ----------
        ridge
            The ridge.
        intercept
            Whether to fit an intercept. A bias column of the moments is the intercept in any case, and is shrunk like
            any other weight.

        """
        schema = self.schema
        if schema.bias or not intercept:
            weights = self.solve(ridge)
            parts = (weights[:-1], weights[-1]) if schema.bias else (weights, None)
            return LinearModel(parts[0], self.classes, parts[1], schema.features, schema.columns)
        problem = self.regression(intercept=True)
        weights = problem.factor(ridge).solve(problem.cross)
        offset = problem.target_mean - (problem.mean + (schema.centre or 0.0)) @ weights
        return LinearModel(weights, self.classes, offset, schema.features, schema.columns)

    def coefficients(
        self,
        *,
        outcome: str | None = None,
        columns: Iterable[str] | None = None,
        ridge: float | None = None,
        level: float = 0.95,
    ) -> "Coefficients":
        """Return the regression table of joint moments (see `joint_moments`): coefficients with errors and tests.

        Parameters
        ----------
        outcome
            The name of the outcome's column; by default the last. Columns without names are x1, x2 and so on, and y.
        columns
            The names of the columns in the model; by default all others.
        ridge
            The penalty on squared coefficients; None for least squares. A ridge has no standard errors.
        level
            The confidence level of the intervals.

        Examples
        --------
        >>> from fedgram.moments.targets import joint_moments
        >>> moments = joint_moments([[1.0], [2.0], [3.0], [4.0]], [1.0, 3.0, 2.0, 5.0])
        >>> slope = moments.coefficients()["x1"]
        >>> round(slope.estimate, 3), round(slope.se, 3), round(slope.p, 3)
        (1.1, 0.52, 0.168)

        """
        from fedgram.inference.linear import LeastSquares, Sums  # takes a while, and few programs need it

        if self.classes != NUMERIC or self.schema.bias:
            raise InvalidData(
                f"moments: expected those of a numeric outcome, got {self!r}; make them with joint_moments"
            )
        if self.schema.study:
            raise InvalidData(
                f"moments: expected columns in their own units, got those that study {self.schema.study!r} sends; "
                "fit.coefficients and Store.coefficients have the study's table"
            )
        known = self.schema.columns or (*(f"x{place}" for place in range(1, self.d)), "y")
        target = known[-1] if outcome is None else outcome
        chosen = [name for name in known if name != target] if columns is None else list(dict.fromkeys(columns))
        for name in (*chosen, target):
            if name not in known:
                raise UnknownName("column", name, known)
        if target in chosen:
            raise InvalidParameter(f"columns: expected columns other than the outcome, got {target!r}; leave it out")
        origin = np.array(self.schema.centre or np.zeros(self.d))
        sums = Sums.about(origin, known, self.n, self.cross.sum(axis=1), self.gram).chosen([*chosen, target])
        fit, column_of = LeastSquares(sums), {name: name for name in chosen}
        if ridge is not None:
            return fit.ridge(ridge, np.ones(len(chosen)), column_of, level=level)
        return fit.table(column_of, level=level)

    def about_zero(self) -> Self:
        """Return the moments about zero, for moments about a centre (`Schema.centre`).

        Columns that are far from zero lose digits by it, as if they had never had a centre.
        """
        if not self.schema.centre:
            return self
        centre = np.append(self.schema.centre, np.zeros(int(self.schema.bias)))
        half = self.cross.sum(axis=1) + self.n / 2 * centre
        gram = np.tril(self.gram + np.outer(centre, half) + np.outer(half, centre))
        sums = (self.cross + np.outer(centre, self.counts)).T[self.counts > 0]
        return type(self)(replace(self.schema, centre=()), sums=sums, counts=self.counts, packed=packing.pack(gram))

    def regression(self, *, intercept: bool) -> Regression:
        """Return the regression of the classes on the features, about the means if with an intercept."""
        self.warn_of_lost_digits()
        counts, squares = self.counts.astype(np.float64), float(self.n)  # a one-hot row has length 1
        return Regression.of(
            self.packed, self.cross, self.cross.sum(axis=1), counts, squares, self.n, intercept=intercept
        )

    def warn_of_lost_digits(self) -> None:
        """Warn about columns, by name or number, so far from zero that hardly a digit of their variance is left."""
        schema, sums, n = self.schema, self.cross.sum(axis=1), self.n
        width = self.d - schema.bias
        made = bool(schema.features) and not schema.study  # from other columns, by a map or backbone
        named = schema.columns if len(schema.columns) == width and not made else tuple(range(width))
        names = [f"{'feature' if made else 'column'} {name!r}" for name in named]
        level = solve.rounding_level(1, n)
        if schema.centre:  # a constant column minus its centre leaves the centre's rounding error, not a mean
            rounded = 8 * level * np.append(np.abs(schema.centre), np.zeros(int(schema.bias))) * n
            sums = np.where(np.abs(sums) > rounded, sums, 0.0)

        def remedy(place: int) -> str:
            if made:
                return "standardise the columns that features are made of"
            return f"subtract {sums[place] / n:.6g} from it, or give it a range in a study"

        far_columns.warn(names, sums[: len(names)], self.squares[: len(names)], n, remedy, level=level)

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

    def __mul__(self, factor: float) -> "DecayedMoments":
        """Return the moments with a weight for each sample, instead of counts: 0.99 forgets one per cent."""
        from fedgram.moments.decayed import DecayedMoments

        return DecayedMoments.of_moments(self) * factor

    __rmul__ = __mul__

    def __radd__(self, other: object) -> Self:
        """Let `sum([a, b])` start from 0."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __sub__(self, other: Self) -> Self:
        """Return the moments without those of `other`, a data set that was added before (exact unlearning)."""
        if not isinstance(other, Moments):
            return NotImplemented
        other = other.aligned(self.schema)
        counts = self.counts - other.counts
        if (counts < 0).any():
            label = self.classes[int(np.argmax(counts < 0))]
            raise NotMoments(f"cannot subtract: it has more samples of class {label!r} than there are")
        sums, packed, noise = (self.cross - other.cross).T, self.packed - other.packed, self._noise()
        # After all samples of a class, or all samples, were subtracted, only rounding errors may be left.
        if (np.abs(sums[counts == 0]) > np.sqrt(noise * self.n)).any() or (
            not counts.any() and (np.abs(packed) > noise).any()
        ):
            raise NotMoments("cannot subtract: these are not the moments of samples that were added")
        # A feature that varied only in `other` leaves rounding errors, which would look like a feature in its units.
        where, level = packing.diagonal(self.d), 8 * solve.rounding_level(1, self.n)
        gone = np.abs(packed[where]) <= level * self._diagonal()
        if packed[where][gone].any():
            full = packing.unpack(packed, self.d)
            full[gone], full[:, gone], sums[:, gone] = 0.0, 0.0, 0.0
            packed = packing.pack(full)
        rest = type(self)(self.schema, sums=sums[counts > 0], counts=counts, packed=packed * counts.any())
        rest.check(noise)
        try:
            rest.check()
        except NotMoments:
            # Rounding errors of the whole are too large for the rest, so the nearest possible moments are taken.
            mended = nearest(packed, rest._class_means(), rest.n, bias=self.schema.bias)
            warnings.warn(
                f"the {rest.n} samples left are smaller than the rounding errors of the {self.n} they were taken from: "
                f"their Gram matrix was changed by up to {np.abs(mended - packed).max():.2g} "
                f"(its largest element is {np.abs(packed).max():.2g}) to be possible; adding the rest up anew is exact",
                LostPrecision,
                stacklevel=2,
            )
            rest = type(self)(self.schema, sums=sums[counts > 0], counts=counts, packed=mended)
        return rest

    def check(self, noise: float | None = None) -> None:
        """Raise `NotMoments` for arrays that no data set could have as its moments, up to rounding errors of `noise`.

        The whole matrix [X Y]ᵀ[X Y] must be positive semidefinite. YᵀY is the diagonal matrix of class
        counts, so the condition is that the scatter within classes, XᵀX - Σ_c s_c s_cᵀ / n_c, is positive semidefinite.
        """
        check_counts(self.counts)
        noise = self._noise() if noise is None else noise
        if self._factor is not None:
            check_factor(self._factor, self._class_means(), noise, bias=self.schema.bias)
        else:
            check_gram(self.packed, self._class_means(), self.n, noise, bias=self.schema.bias)

    def to_fields(self) -> dict[str, Any]:
        """Return the fields for the wire."""
        return {
            "gram": self._packed,
            "factor": self._factor,
            "sums": self._sums,
            "counts": self.counts,
            "n": self.n,
            "classes": shorten(self.classes),
            "features": self.schema.features,
            "bias": self.schema.bias,
            **({"centre": np.array(self.schema.centre)} if self.schema.centre else {}),
            **sent_columns(self.schema.columns),
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Return the moments made of fields from the wire."""
        counts, sums = fields["counts"], fields["sums"]
        classes = read_classes(fields["classes"], len(counts))
        packed, factor = fields["gram"], fields["factor"]
        columns, centre = as_columns(fields.get("columns", ())), fields.get("centre")
        about = () if centre is None else tuple(centre.tolist())
        schema = Schema(classes, sums.shape[1], str(fields["features"]), bool(fields["bias"]), columns, about)
        if about and len(about) != schema.dimension - schema.bias:
            raise NotMoments(f"field 'centre' has {len(about)} numbers for {schema.dimension - schema.bias} features")
        moments = cls(schema, sums=sums, counts=counts, packed=packed, factor=factor)
        d, n, present = moments.d, moments.n, np.count_nonzero(counts)
        if fields["n"] != n:
            raise NotMoments(f"field 'n' is {fields['n']} but the class counts add up to {n}")
        if len(sums) != present:
            raise NotMoments(f"field 'sums' has {len(sums)} rows for {present} classes with samples")
        if (packed is None) == (factor is None):
            raise NotMoments("either field 'gram' or field 'factor' must be there")
        if packed is not None and len(packed) != packing.size(d):
            raise NotMoments(f"field 'gram' has {len(packed)} numbers; {d} dimensions need {packing.size(d)}")
        if factor is not None and len(factor) != n:
            raise NotMoments(f"field 'factor' has {len(factor)} rows for {n} samples")
        return moments

    def to_bytes(self) -> bytes:
        """Return the moments as bytes, to send or to keep as a file."""
        return wire.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes, *, sender: str = "bytes") -> Self:
        """Return the moments in `data`, with all checks of a message from another party."""
        payload = wire.decode(data, sender=sender)
        if not isinstance(payload, cls):
            raise Mismatch(f"message from {sender!r} holds a {type(payload).__name__}, not moments")
        return payload

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same numbers and the same schema."""
        if not isinstance(other, Moments):
            return NotImplemented
        return (
            self.schema == other.schema
            and np.array_equal(self.counts, other.counts)
            and np.array_equal(self._sums, other._sums)
            and np.array_equal(self.packed, other.packed)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Moments(n={self.n}, d={self.d}, classes={len(self.classes)}, features={self.schema.features!r})"


class Total:
    """A running sum of moments that arrive one by one: O(d²) memory for any number of them.

    >>> from fedgram import Moments
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
        """Add moments of the same schema."""
        if self._first is None:
            # A d × d matrix is made when a second part has come: one small upload cannot claim as much.
            self._first = part
            return
        part = part.aligned(self._first.schema)
        if self._sum is None:
            self._counts, self._sum = np.zeros_like(part.counts), Accumulator(part.d, len(part.classes))
            self._accumulate(self._first, self._sum)
        self._accumulate(part, self._sum)

    def _accumulate(self, part: Moments, total: Accumulator) -> None:
        if sum(self._counts.tolist()) + part.n > MOST_SAMPLES:
            raise NotMoments(f"{part.n} samples more make more than the {MOST_SAMPLES} that can be")
        self._counts += part.counts
        part.add_to(total)

    def moments(self) -> Moments:
        """Return the sum; nothing can be added afterwards."""
        if self._first is None:
            raise InvalidData("a sum of no moments has no shape: give at least one")
        if self._sum is None:
            return self._first
        self._sum.flush()
        sums, counts = self._sum.sums[self._counts > 0], self._counts
        return Moments(self._first.schema, sums=sums, counts=counts, packed=self._sum.packed)


def study_features(name: str, fingerprint: str) -> str:
    """Return the feature fingerprint of a study's samples.

    >>> study_of(study_features("walks", "0f" * 32)), study_of("lite0:96"), study_of("")
    ('walks', '', '')
    """
    return f"{STUDY}{name}@{fingerprint}"


def described(features: str) -> str:
    """Return a feature fingerprint for messages: a study by its name and the readable form of its fingerprint.

    >>> described(study_features("walks", "0f" * 32)), described("lite0:96"), described("")
    ("study 'walks' b4hq-6dyp-b4hq-6dyp-b4hq-6dyp-b4hq-6dyp", "features 'lite0:96'", 'data of no study')
    """
    if found := _FEATURES.fullmatch(features):
        return f"study {found['name']!r} {readable(found['fingerprint'])}"
    return f"features {features!r}" if features else "data of no study"


def study_of(features: str) -> str:
    """Return the name of the study that a feature fingerprint belongs to, "" if it belongs to none."""
    return features.removeprefix(STUDY).rpartition("@")[0] if features.startswith(STUDY) else ""

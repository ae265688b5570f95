"""What moments consist of: their arrays, in memory and on the wire, and what is asked of them.

`moments` says where they come from and what is computed with them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.columns import as_columns, order
from fedgram.core.errors import Mismatch, NotMoments
from fedgram.core.hashing import hash_bytes
from fedgram.core.labels import Classes, read_classes, shorten
from fedgram.models import sent_columns
from fedgram.moments import packing, solve
from fedgram.moments.accumulate import Accumulator
from fedgram.moments.kind import Kind
from fedgram.moments.plausible import check_counts, check_factor, check_gram

Counts = npt.NDArray[np.int64]


class Statistic:
    """XᵀX, XᵀY, n and the class counts of (n, d) features and their labels; immutable.

    Kept packed (see `packing`). A data set of n < d/4 samples is kept and sent as its triangular factor R instead:
    the same information in fewer numbers.
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
        self, kind: Kind, *, sums: Array, counts: Counts, packed: Array | None = None, factor: Array | None = None
    ) -> None:
        """Hold arrays already computed; `Moments.of` computes them.

        `sums` has a row for each class that has samples, its sum of features; `packed` (see `packing`) or `factor` (see
        `solve`) is given.
        """
        self.kind = kind
        self.counts = counts
        self.n: int = sum(counts.tolist())  # whole numbers of Python do not overflow
        self._sums, self._packed, self._factor = sums, packed, factor
        for array in (packed, factor, sums, counts):
            if array is not None:
                array.setflags(write=False)

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
        """R (n, d) with RᵀR = XᵀX, where that is what is kept; else None."""
        return self._factor

    @cached_property
    def packed(self) -> Array:
        """XᵀX as `packing` packs it."""
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
        """SHA-256 of the kind and all the numbers, in hexadecimal: one for one content, whatever message it is in."""
        kind = [getattr(self.kind, field.name) for field in fields(self.kind) if field.name != "centre"]
        kind += [self.kind.centre] if self.kind.centre else []
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
            gram = packing.times(self.packed, direction)
        else:
            gram = self._factor.T @ (self._factor @ direction)
        sums = np.zeros(len(self.classes))
        sums[self.counts > 0] = self._sums @ direction
        return gram, sums

    def reordered(self, columns: Sequence[str]) -> Self:
        """Return the moments of the same samples with their columns in another order; other columns are refused.

        >>> from fedgram import Moments
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
        centre = tuple(self.kind.centre[place] for place in places[: len(self.kind.centre)].tolist())
        kind, sums = replace(self.kind, columns=tuple(columns), centre=centre), self._sums[:, places]
        if self._factor is not None:
            factor = solve.triangular_factor(np.ascontiguousarray(self._factor[:, places]))
            return type(self)(kind, sums=sums, counts=self.counts, factor=factor)
        packed = packing.pack(np.tril(self.gram[np.ix_(places, places)]))
        return type(self)(kind, sums=sums, counts=self.counts, packed=packed)

    def aligned(self, kind: Kind) -> Self:
        """Return the moments with their columns in the order of another kind, if it is that kind; refuse others."""
        alike = self.kind.columns and set(self.kind.columns) == set(kind.columns)
        moments = self.reordered(kind.columns) if alike else self
        kind.check_same(moments.kind)
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
            **({"centre": np.array(self.kind.centre)} if self.kind.centre else {}),
            **sent_columns(self.kind.columns),
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Put moments together from the wire."""
        counts, sums = fields["counts"], fields["sums"]
        classes = read_classes(fields["classes"], len(counts))
        packed, factor = fields["gram"], fields["factor"]
        columns, centre = as_columns(fields.get("columns", ())), fields.get("centre")
        about = () if centre is None else tuple(centre.tolist())
        kind = Kind(classes, sums.shape[1], str(fields["features"]), bool(fields["bias"]), columns, about)
        if about and len(about) != kind.dimension - kind.bias:
            raise NotMoments(f"field 'centre' has {len(about)} numbers for {kind.dimension - kind.bias} features")
        moments = cls(kind, sums=sums, counts=counts, packed=packed, factor=factor)
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
        if not isinstance(other, Statistic):
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

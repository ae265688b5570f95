"""Moments in fixed point: what a store adds up, takes away again and knows by one digest.

Moments travel as float64. A Gram matrix of them converts number by number. A small upload is a triangular factor R
instead, and RᵀR depends on how a BLAS library adds; so it is computed here in such parts that every library gives the
same bits (see `exact_gram`). A sum is therefore the same on every machine, in any order and in any tree.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.columns import as_columns
from fedgram.core.errors import NotMoments
from fedgram.core.hashing import hash_bytes
from fedgram.core.labels import read_classes, shorten
from fedgram.exchange.fixedpoint import Fixed
from fedgram.moments import packing
from fedgram.moments.kind import Kind
from fedgram.moments.moments import Moments
from fedgram.moments.plausible import MOST_SAMPLES, check_counts
from fedgram.moments.statistic import Counts

MANTISSA = 53  # bits of a float64
LISTS = ("classes", "columns", "centre")  # fields of a kind that JSON has as lists
SLICES = 3  # of a factor's numbers: three times 20 bits or more are more than a float64 has


@wire.register_message
@dataclass(frozen=True, eq=False)
class Sum:
    """A sum of moments of one kind: class counts (c,), and in fixed point the packed Gram matrix and the sums of all
    classes.
    """

    kind: Kind
    counts: Counts
    numbers: Fixed

    wire_name: ClassVar[str] = "moments-sum"
    wire_version: ClassVar[int] = 1
    wire_fields: ClassVar[Mapping[str, wire.Field]] = {
        "high": wire.Field("uint64", ("m",)),
        "low": wire.Field("uint64", ("m",)),
        "counts": wire.Field("int64", ("c",)),
    }

    @classmethod
    def of(cls, moments: Moments, *, parties: int = 1) -> Self:
        """Return moments in fixed point, with room for a sum over so many parties."""
        if moments.factor is None:
            gram = Fixed.of(moments.packed, parties=parties, name="the Gram matrix")
        else:
            gram = exact_gram(moments.factor, parties=parties)
        sums = Fixed.of(moments.cross.T.ravel(), parties=parties, name="the class sums")
        numbers = Fixed(np.concatenate([gram.high, sums.high]), np.concatenate([gram.low, sums.low]))
        return cls(moments.kind, moments.counts.copy(), numbers)

    @classmethod
    def empty(cls, kind: Kind) -> Self:
        """Return the sum of no moments."""
        classes = len(kind.classes)
        return cls(kind, np.zeros(classes, dtype=np.int64), Fixed.zeros(size(kind)))

    @property
    def n(self) -> int:
        """How many samples it is of."""
        return sum(self.counts.tolist())

    def __add__(self, other: Self) -> Self:
        """Return the sum of both."""
        self._check(other.kind, other.n)
        return type(self)(self.kind, self.counts + other.counts, self.numbers + other.numbers)

    def plus(self, part: "Moments | Sum") -> Self:
        """Return the sum with moments, or with another sum; the same as with `Sum.of(moments)`, only quicker."""
        if isinstance(part, Sum) or part.factor is not None:
            return self + (part if isinstance(part, Sum) else Sum.of(part))  # type: ignore[operator]
        self._check(part.kind, part.n)
        numbers = self.numbers.plus({"the Gram matrix": part.packed, "the class sums": part.cross.T.ravel()})
        return type(self)(self.kind, self.counts + part.counts, numbers)

    def _check(self, kind: Kind, n: int) -> None:
        """Refuse to add what is of another kind, or too much."""
        self.kind.check_same(kind)
        if self.n + n > MOST_SAMPLES:
            raise NotMoments(f"{n} samples more make more than the {MOST_SAMPLES} that can be")

    def __sub__(self, other: Self) -> Self:
        """Return the sum without the other, which was added before: bit for bit as if it had never been."""
        self.kind.check_same(other.kind)
        if (other.counts > self.counts).any():
            raise NotMoments("cannot subtract: it has more samples of a class than there are")
        return type(self)(self.kind, self.counts - other.counts, self.numbers - other.numbers)

    def moments(self) -> Moments:
        """Return the moments, each number rounded once."""
        found, gram = self.numbers.floats(), packing.size(self.kind.dimension)
        sums = found[gram:].reshape(len(self.counts), -1)[self.counts > 0]
        return Moments(self.kind, sums=sums, counts=self.counts.copy(), packed=found[:gram])

    @property
    def squares(self) -> Array:
        """The sum of squares of each feature, (d,)."""
        where = packing.diagonal(self.kind.dimension)
        return Fixed(self.numbers.high[where], self.numbers.low[where]).floats()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the kind, the counts and all the numbers, in hexadecimal: the same on every machine."""
        return hash_bytes([json.dumps([*about(self.kind).values(), self.counts.tolist()]).encode(), *self._limbs()])

    def _limbs(self) -> Iterator[memoryview]:
        for limbs in (self.numbers.high, self.numbers.low):
            if limbs.size:
                yield np.ascontiguousarray(limbs, dtype="<u8").data

    def to_fields(self) -> dict[str, Any]:
        """Take the sum apart for the wire."""
        arrays = {"high": self.numbers.high, "low": self.numbers.low, "counts": self.counts}
        return arrays | about(self.kind) | {"classes": shorten(self.kind.classes)}

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Put a sum together from the wire."""
        classes = read_classes(fields["classes"], len(fields["counts"]))
        columns, dimension = as_columns(fields["columns"]), fields["dimension"]
        centre = fields["centre"]
        if not isinstance(centre, list) or not all(type(number) is float for number in centre):
            raise NotMoments("field 'centre' must be a list of numbers")
        kind = Kind(classes, dimension, str(fields["features"]), bool(fields["bias"]), columns, tuple(centre))
        if type(dimension) is not int or dimension < 1 or size(kind) != len(fields["low"]):
            raise NotMoments(f"a sum of {len(fields['low'])} numbers does not have {dimension!r:.20} dimensions")
        return cls(kind, fields["counts"], Fixed(fields["high"], fields["low"]))

    def check(self) -> None:
        """Refuse sums that no data set could have as its moments."""
        check_counts(self.counts)
        start = packing.size(self.kind.dimension)
        for limbs in (self.numbers.high, self.numbers.low):
            if limbs[start:].reshape(len(self.counts), -1)[self.counts == 0].any():
                raise NotMoments("a class without samples has sums that are not 0")
        self.moments().check()

    def __eq__(self, other: object) -> bool:
        """Say whether both are the same bit for bit."""
        if not isinstance(other, Sum):
            return NotImplemented
        same = self.kind == other.kind and np.array_equal(self.counts, other.counts)
        return same and self.numbers == other.numbers

    __hash__ = None  # type: ignore[assignment]


def size(kind: Kind) -> int:
    """Return how many numbers in fixed point a sum of this kind has."""
    return packing.size(kind.dimension) + len(kind.classes) * kind.dimension


def about(kind: Kind) -> dict[str, Any]:
    """Return what moments are moments of, as JSON can say it."""
    found = {field.name: getattr(kind, field.name) for field in fields(kind)}
    return found | {name: list(found[name]) for name in LISTS}


def kind_of(found: Mapping[str, Any]) -> Kind:
    """Return the kind that `about` told of."""
    dimension, features, bias = found["dimension"], found["features"], found["bias"]
    if type(dimension) is not int or type(features) is not str or type(bias) is not bool:
        raise NotMoments(f"moments of {dimension!r:.20} dimensions, features {features!r:.60} and bias {bias!r:.20}")
    centre = tuple(float(number) for number in found["centre"])
    return Kind(tuple(found["classes"]), dimension, features, bias, as_columns(found["columns"]), centre)


def exact_gram(factor: Array, *, parties: int = 1) -> Fixed:
    """Return RᵀR (packed) of a factor R (n, d), the same bits whatever library multiplies.

    The numbers of R are cut into slices of so few bits that sums of n products of them are whole numbers below 2⁵³:
    float64 adds these without rounding, in whatever order. What is left out, products of the last slices, is smaller
    than the rounding of one product. (The idea is Ozaki's, 2012.)
    """
    n, d = factor.shape
    if not n:
        return Fixed.zeros(packing.size(d))
    # A power of two for each column, so that dividing by it is exact.
    exponents = np.frexp(np.abs(factor).max(axis=0))[1]
    bits = (MANTISSA - int(n).bit_length()) // 2
    rest, slices = np.ldexp(factor, -exponents), []
    for place in range(1, SLICES + 1):
        slices.append(np.ldexp(np.rint(np.ldexp(rest, place * bits)), -place * bits))
        rest = rest - slices[-1]
    first, second, third = slices
    total = Fixed.zeros(packing.size(d))
    for left, right in ((first, first), (first, second), (second, second), (first, third)):
        product = left.T @ right
        product = product if left is right else product + product.T  # both orders; exact once more
        scaled = np.ldexp(np.ldexp(product, exponents[:, None]), exponents[None, :])
        total = total + Fixed.of(packing.pack(scaled), parties=parties, name="the Gram matrix")
    return total

"""Moments in fixed point, for exact sums that one digest identifies.

Moments travel as float64. A Gram matrix of them converts number by number (see `core.fixed_point`). A small upload is a
triangular factor R instead, and RᵀR depends on the order in which a BLAS library adds. So `exact_gram` computes it in
parts that have the same bits with every library. A sum is therefore the same on every machine, in any order and in any
tree.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.classes import read_classes, shorten
from fedgram.core.columns import as_columns
from fedgram.core.errors import NotMoments
from fedgram.core.fixed_point import Fixed
from fedgram.core.hashing import hash_bytes
from fedgram.moments import packing
from fedgram.moments.feasibility import MOST_SAMPLES, check_counts
from fedgram.moments.moments import Counts, Moments, Schema

MANTISSA = 53  # bits of a float64
LISTS = ("classes", "columns", "centre")  # fields of a schema that are lists in JSON
SLICES = 3  # for each number of a factor: three slices of 20 bits or more cover all 53


@wire.register_message
@dataclass(frozen=True, eq=False)
class Sum:
    """Sum of moments of one schema, in fixed point.

    Attributes
    ----------
    schema
        Classes, columns and features that all parts share.
    counts
        Samples of each class, (c,).
    numbers
        The packed Gram matrix and the class sums, one behind the other.

    """

    schema: Schema
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
        """Return moments in fixed point, with room for a sum over this many parties."""
        if moments.factor is None:
            gram = Fixed.of(moments.packed, parties=parties, name="the Gram matrix")
        else:
            gram = exact_gram(moments.factor, parties=parties)
        sums = Fixed.of(moments.cross.T.ravel(), parties=parties, name="the class sums")
        numbers = Fixed(np.concatenate([gram.high, sums.high]), np.concatenate([gram.low, sums.low]))
        return cls(moments.schema, moments.counts.copy(), numbers)

    @classmethod
    def empty(cls, schema: Schema) -> Self:
        """Return the sum of no moments."""
        classes = len(schema.classes)
        return cls(schema, np.zeros(classes, dtype=np.int64), Fixed.zeros(size(schema)))

    @property
    def n(self) -> int:
        """Number of samples."""
        return sum(self.counts.tolist())

    def __add__(self, other: Self) -> Self:
        """Return the sum of both."""
        self._check(other.schema, other.n)
        return type(self)(self.schema, self.counts + other.counts, self.numbers + other.numbers)

    def plus(self, part: "Moments | Sum") -> Self:
        """Return the sum with moments or with another sum: the same as adding `Sum.of(moments)`, only quicker."""
        if isinstance(part, Sum) or part.factor is not None:
            return self + (part if isinstance(part, Sum) else Sum.of(part))  # type: ignore[operator]
        self._check(part.schema, part.n)
        numbers = self.numbers.plus({"the Gram matrix": part.packed, "the class sums": part.cross.T.ravel()})
        return type(self)(self.schema, self.counts + part.counts, numbers)

    def _check(self, schema: Schema, n: int) -> None:
        """Raise if a part has another schema, or the sum would have too many samples."""
        self.schema.check_same(schema)
        if self.n + n > MOST_SAMPLES:
            raise NotMoments(f"samples: expected at most {MOST_SAMPLES} in all, got {self.n} + {n}")

    def __sub__(self, other: Self) -> Self:
        """Return the sum without a part of it, bit for bit as if that part had never been added."""
        self.schema.check_same(other.schema)
        if (other.counts > self.counts).any():
            raise NotMoments(
                "samples of a class: expected at most those of the sum, got more; subtract a part of the sum only"
            )
        return type(self)(self.schema, self.counts - other.counts, self.numbers - other.numbers)

    def moments(self) -> Moments:
        """Return the moments, each number rounded once."""
        found, gram = self.numbers.floats(), packing.size(self.schema.dimension)
        sums = found[gram:].reshape(len(self.counts), -1)[self.counts > 0]
        return Moments(self.schema, sums=sums, counts=self.counts.copy(), packed=found[:gram])

    @property
    def squares(self) -> Array:
        """The sum of squares of each feature, (d,)."""
        where = packing.diagonal(self.schema.dimension)
        return Fixed(self.numbers.high[where], self.numbers.low[where]).floats()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the schema, the counts and all the numbers, in hexadecimal: the same on every machine."""
        return hash_bytes([json.dumps([*about(self.schema).values(), self.counts.tolist()]).encode(), *self._limbs()])

    def _limbs(self) -> Iterator[memoryview]:
        for limbs in (self.numbers.high, self.numbers.low):
            if limbs.size:
                yield np.ascontiguousarray(limbs, dtype="<u8").data

    def to_fields(self) -> dict[str, Any]:
        """Return the fields for the wire."""
        arrays = {"high": self.numbers.high, "low": self.numbers.low, "counts": self.counts}
        return arrays | about(self.schema) | {"classes": shorten(self.schema.classes)}

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Return the sum of these fields from the wire."""
        classes = read_classes(fields["classes"], len(fields["counts"]))
        columns, dimension = as_columns(fields["columns"]), fields["dimension"]
        centre = fields["centre"]
        if not isinstance(centre, list) or not all(type(number) is float for number in centre):
            raise NotMoments(f"field 'centre': expected a list of numbers, got {centre!r:.60}")
        schema = Schema(classes, dimension, str(fields["features"]), bool(fields["bias"]), columns, tuple(centre))
        if type(dimension) is not int or dimension < 1 or size(schema) != len(fields["low"]):
            raise NotMoments(f"field 'dimension': expected that of {len(fields['low'])} numbers, got {dimension!r:.20}")
        return cls(schema, fields["counts"], Fixed(fields["high"], fields["low"]))

    def check(self) -> None:
        """Raise if no data set can have these sums as its moments."""
        check_counts(self.counts)
        start = packing.size(self.schema.dimension)
        for limbs in (self.numbers.high, self.numbers.low):
            if limbs[start:].reshape(len(self.counts), -1)[self.counts == 0].any():
                raise NotMoments("class sums: expected 0 for a class without samples, got other numbers")
        self.moments().check()

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same, bit for bit."""
        if not isinstance(other, Sum):
            return NotImplemented
        same = self.schema == other.schema and np.array_equal(self.counts, other.counts)
        return same and self.numbers == other.numbers

    __hash__ = None  # type: ignore[assignment]


def size(schema: Schema) -> int:
    """Return the number of fixed-point numbers in a sum of this schema."""
    return packing.size(schema.dimension) + len(schema.classes) * schema.dimension


def about(schema: Schema) -> dict[str, Any]:
    """Return a schema as values that JSON can write."""
    found = {field.name: getattr(schema, field.name) for field in fields(schema)}
    return found | {name: list(found[name]) for name in LISTS}


def schema_of(found: Mapping[str, Any]) -> Schema:
    """Return the schema of values that `about` made."""
    dimension, features, bias = found["dimension"], found["features"], found["bias"]
    if type(dimension) is not int or type(features) is not str or type(bias) is not bool:
        raise NotMoments(
            "schema: expected a whole dimension, text as features and a boolean bias, got "
            f"{dimension!r:.20}, {features!r:.60} and {bias!r:.20}"
        )
    centre = tuple(float(number) for number in found["centre"])
    return Schema(tuple(found["classes"]), dimension, features, bias, as_columns(found["columns"]), centre)


def exact_gram(factor: Array, *, parties: int = 1) -> Fixed:
    """Return RᵀR (packed) of a factor R (n, d), with the same bits for every BLAS library.

    The numbers of R are cut into slices of so few bits that sums of n products of them are whole numbers below 2⁵³:
    float64 adds these without rounding, in any order. Products of the last slices are left out; they are smaller
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

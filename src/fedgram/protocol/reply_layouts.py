"""Layouts of replies as vectors of numbers, which all clients of a secure sum share.

A layout follows from the kind that a step declares (see `replies`) and from what all clients have agreed on, never from
a client's data: a missing class or a smaller array would tell of them. Replies whose form depends on data have none.

>>> layout = layout_of({"w": Numbers((2,)), "n": Number(whole=True)}, question=None)
>>> sent = [numbers_of(layout, {"w": np.array([w, 0.0]), "n": 1}, parties=3, secret=bytes(32)) for w in (0.5, 0.25)]
>>> value_of(layout, sent[0] + sent[1])
{'n': 2, 'w': array([0.75, 0.  ])}
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidParameter, Mismatch
from fedgram.core.fixed_point import Fixed
from fedgram.moments import packing
from fedgram.moments.moments import Moments, Schema
from fedgram.protocol.replies import (
    ColumnSums,
    LabelCounts,
    Learnt,
    MomentsOf,
    Number,
    Numbers,
    Question,
    Reply,
    UpTo,
)

WHOLE = 0  # significant bits of whole numbers, which are added exactly
# Significant bits that an array's numbers are sent with.
BITS = {"float64": 53, "float32": 24, "int64": WHOLE, "int32": WHOLE}


@dataclass(frozen=True)
class Part:
    """An array or, as a `number`, a single number."""

    shape: tuple[int, ...]
    dtype: str = "float64"
    number: bool = False

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return prod(self.shape)


@dataclass(frozen=True)
class MomentsPart:
    """Moments of a schema: their counts, their packed Gram matrix, and the sums of all classes."""

    schema: Schema

    @property
    def parts(self) -> tuple[Part, Part, Part]:
        """The arrays, one behind the other."""
        classes, dimension = len(self.schema.classes), self.schema.dimension
        return Part((classes,), "int64"), Part((packing.size(dimension),)), Part((classes, dimension))


Layout: TypeAlias = Part | MomentsPart | Mapping[str, "Layout"] | list["Layout"]


def layout_of(kind: Reply, question: Question | None, where: str = "reply") -> Layout:
    """Return the layout of replies of a kind; raise for a kind whose form may depend on data.

    Parameters
    ----------
    kind
        The kind.
    question
        The question that is answered; only what all clients have in common is used.
    where
        The name of the reply in errors.

    """
    match kind:
        case np.ndarray():
            return Part(kind.shape, kind.dtype.name)
        case Numbers(shape, dtype) | Learnt(shape, dtype):
            return Part(shape, dtype)
        case UpTo():
            return Part(kind.largest.shape)
        case Number():
            return Part((), "int64" if kind.whole else "float64", number=True)
        case LabelCounts() if question is not None:
            return Part((len(question.classes),), "int64")
        case ColumnSums() if question is not None:
            sums = Part(question.shape)
            return {"n": Part((), "int64", number=True), "squares": sums, "sums": sums}
        case MomentsOf() if question is not None:
            return MomentsPart(_schema(kind, question))
        case Mapping():
            return {key: layout_of(kind[key], question, f"{where}/{key}") for key in sorted(kind)}
        case list() | tuple():
            return [layout_of(item, question, f"{where}/{place}") for place, item in enumerate(kind)]
    raise InvalidParameter(
        f"{where}: expected numbers whose form is the same for all clients, got a reply that may have any; secure sums "
        "add numbers: declare them with @step(reply=...), or run without secure"
    )


def _schema(kind: MomentsOf, question: Question) -> Schema:
    dimension = question.shape[0] if kind.dimension is None else kind.dimension
    features = question.features if kind.features is None else kind.features
    columns = (*question.columns, *question.outcomes)
    centre = question.centre if kind.dimension is None else ()
    size = dimension + len(question.outcomes) + kind.bias
    return Schema(question.classes, size, features, kind.bias, columns, centre)


def size_of(layout: Layout) -> int:
    """Return how many numbers replies of a layout have."""
    return sum(part.size for part in _parts(layout))


def _parts(layout: Layout) -> Iterator[Part]:
    if isinstance(layout, Part):
        yield layout
    elif isinstance(layout, MomentsPart):
        yield from layout.parts
    else:
        for item in layout.values() if isinstance(layout, Mapping) else layout:
            yield from _parts(item)


def numbers_of(layout: Layout, value: Any, *, parties: int, secret: bytes, times: int = 1) -> Fixed:
    """Return a reply, times a whole number, as numbers in fixed point, with room for a sum over this many parties.

    The last bits of numbers with fractions depend on the client's `secret` (see `masks.blurred`).
    """
    from fedgram.secure.masks import blurred

    found = []
    for part, array in zip(_parts(layout), _arrays(layout, value), strict=True):
        if BITS[part.dtype] == WHOLE:
            found.append(Fixed.whole(np.asarray(array, dtype=np.int64).ravel() * times))
        else:
            x = np.asarray(array, dtype=np.float64).ravel() * times
            found.append(blurred(Fixed.of(x, parties=parties, name="a reply"), x, BITS[part.dtype], secret))
    return _joined(found)


def _joined(parts: list[Fixed]) -> Fixed:
    return Fixed(np.concatenate([part.high for part in parts]), np.concatenate([part.low for part in parts]))


def _arrays(layout: Layout, value: Any) -> Iterator[npt.NDArray[Any]]:
    """Yield the arrays of a reply that `replies.check` has passed."""
    if isinstance(layout, Part):
        yield value
    elif isinstance(layout, MomentsPart):
        if value.schema != layout.schema:
            raise Mismatch("moments of a secure sum: expected the agreed columns and classes, got others")
        yield from (value.counts, value.packed, value.cross.T)
    elif isinstance(layout, Mapping):
        for key, item in layout.items():
            yield from _arrays(item, value[key])
    else:
        for item, own in zip(layout, value, strict=True):
            yield from _arrays(item, own)


def value_of(layout: Layout, numbers: Fixed, *, over: float | None = None) -> Any:
    """Return numbers as a reply of a layout, each rounded once; divided by a number, such as the weights of a mean."""
    arrays, start = [], 0
    for part in _parts(layout):
        own, start = numbers.part(start, start + part.size), start + part.size
        whole = BITS[part.dtype] == WHOLE
        found: npt.NDArray[Any] = own.wholes() if whole else own.floats()
        if over is not None:
            found = found / over
        if not whole:
            found = found.astype(part.dtype)
        arrays.append(found.reshape(part.shape))
    return _put_together(layout, iter(arrays))


def _put_together(layout: Layout, arrays: Iterator[npt.NDArray[Any]]) -> Any:
    if isinstance(layout, Part):
        return next(arrays).item() if layout.number else next(arrays)
    if isinstance(layout, MomentsPart):
        counts, gram, sums = next(arrays), next(arrays), next(arrays)
        return _moments(layout.schema, counts, gram, sums)
    if isinstance(layout, Mapping):
        return {key: _put_together(item, arrays) for key, item in layout.items()}
    return [_put_together(item, arrays) for item in layout]


def _moments(schema: Schema, counts: npt.NDArray[np.int64], gram: Array, sums: Array) -> Moments:
    """Return the moments with all checks of a message from another party: a spoilt sum is noticed here or never."""
    moments = Moments(schema, sums=sums[counts > 0], counts=counts, packed=gram)
    moments.check()
    return moments

"""Numbers in 128-bit fixed point, whose sums are exact in any order.

x becomes the whole number nearest to x · 2⁶⁴, modulo 2¹²⁸, as two uint64 limbs. Any float64 of at least 2⁻¹² in size
converts without rounding. A smaller one is off by at most 2⁻⁶⁵, the rounding error of float64 for numbers near 2⁻¹².
Adding whole numbers rounds nothing. So a sum does not depend on its order, and subtracting a number gives the same sum
as never adding it.

>>> whole = Fixed.of(np.array([0.1, 0.2])) + Fixed.of(np.array([0.7, -0.2]))
>>> whole - Fixed.of(np.array([0.7, -0.2])) == Fixed.of(np.array([0.1, 0.2]))
True
>>> whole.floats()
array([0.8, 0. ])
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidData, Mismatch

Limbs: TypeAlias = npt.NDArray[np.uint64]
# Sums over all parties stay below this; the bit above it shows an overflow.
LIMIT = 2.0**62
HALF = 2.0**32  # half of a limb's 64 bits
ONE = np.uint64(1)
TOP = np.uint64(1 << 63)
# Numbers at a time, so that intermediate results stay in the processor's cache.
BLOCK = 1 << 13


@dataclass(frozen=True, eq=False)
class Fixed:
    """Numbers (m,) in fixed point; immutable.

    Attributes
    ----------
    high, low
        Upper and lower 64 bits of their two's complement, (m,) uint64.

    """

    high: Limbs
    low: Limbs

    def __post_init__(self) -> None:
        self.high.setflags(write=False)
        self.low.setflags(write=False)

    @classmethod
    def of(cls, x: Array, *, parties: int = 1, name: str = "numbers") -> Self:
        """Return float64 numbers (m,) in fixed point, each rounded to the nearest multiple of 2⁻⁶⁴.

        Numbers that are not finite raise, and so do numbers so large that a sum over this many `parties` might not
        fit. `name` is the name of the numbers in errors.
        """
        high, low = _room(len(x))
        for part in _blocks(len(x)):
            _convert(x[part], high[part], low[part], LIMIT / parties, name)
        return cls(high, low)

    @classmethod
    def whole(cls, x: npt.NDArray[np.int64]) -> Self:
        """Return whole numbers (m,) in fixed point, exactly."""
        return cls(x.astype(np.int64).view(np.uint64), np.zeros(len(x), dtype=np.uint64))

    @classmethod
    def zeros(cls, count: int) -> Self:
        """Return this many zeros."""
        return cls(np.zeros(count, dtype=np.uint64), np.zeros(count, dtype=np.uint64))

    def floats(self) -> Array:
        """Return the nearest float64 of each number; halfway between two, the even one."""
        found = np.empty(len(self.low))
        for part in _blocks(len(found)):
            negative = self.high[part] >= TOP
            high, low = self.high[part].copy(), self.low[part].copy()
            _negate_where(negative, high, low)
            # The leading 64 bits of the number; the last of them is set if any bit follows.
            shift = np.frexp(high.astype(np.float64))[1].astype(np.uint64)
            rest = np.uint64(64) - shift
            leading = (high << rest) | (low >> shift) | ((low << rest) != 0)
            leading = np.where(shift == 0, low, leading)
            size = np.ldexp(leading.astype(np.float64), shift.astype(np.int32) - 64)
            found[part] = np.where(negative, -size, size)
        return found

    def part(self, start: int, end: int) -> Self:
        """Return the numbers from one place to before another."""
        return type(self)(self.high[start:end], self.low[start:end])

    def wholes(self) -> npt.NDArray[np.int64]:
        """Return whole numbers as they were before `whole`; raise for numbers with fractions."""
        if self.low.any():
            raise InvalidData("a sum of whole numbers: expected no fraction, got one; have the parts sent again")
        return self.high.view(np.int64).copy()

    def __add__(self, other: Self) -> Self:
        """Return the sums; raise if one does not fit."""
        high, low = self._paired(other)
        for part in _blocks(len(low)):
            _add(self.high[part], self.low[part], other.high[part], other.low[part], high[part], low[part])
        return type(self)(high, low)

    def wrapped_sum(self, other: Self) -> Self:
        """Return the sums modulo 2¹²⁸, in which nothing is an overflow: for numbers that hide others."""
        high, low = self._paired(other)
        for part in _blocks(len(low)):
            _add_limbs(self.high[part], self.low[part], other.high[part], other.low[part], high[part], low[part])
        return type(self)(high, low)

    def plus(self, pieces: Mapping[str, Array], *, parties: int = 1) -> Self:
        """Return the sums with float64 numbers in named pieces, one behind the other.

        The same as converting them first, in less time and memory.
        """
        if (count := sum(map(len, pieces.values()))) != len(self):
            raise Mismatch(f"{len(self)} numbers in fixed point cannot be combined with {count}")
        (high, low), start = _room(len(self)), 0
        own_high, own_low = _room(BLOCK)
        for name, x in pieces.items():
            for part in _blocks(len(x)):
                block = x[part]
                there, here = slice(start, start + len(block)), slice(len(block))
                _convert(block, own_high[here], own_low[here], LIMIT / parties, name)
                _add(self.high[there], self.low[there], own_high[here], own_low[here], high[there], low[there])
                start += len(block)
        return type(self)(high, low)

    def __sub__(self, other: Self) -> Self:
        """Return the differences."""
        high, low = self._paired(other)
        for part in _blocks(len(low)):
            np.subtract(self.low[part], other.low[part], out=low[part])
            np.subtract(self.high[part], other.high[part], out=high[part])
            high[part] -= self.low[part] < other.low[part]  # the borrow
        return type(self)(high, low)

    def _paired(self, other: Self) -> tuple[Limbs, Limbs]:
        """Return empty limbs for a result of both; raise if their lengths differ."""
        if len(self) != len(other):
            raise Mismatch(f"{len(self)} numbers in fixed point cannot be combined with {len(other)}")
        return _room(len(self))

    def __len__(self) -> int:
        return len(self.low)

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same numbers, bit for bit."""
        if not isinstance(other, Fixed):
            return NotImplemented
        return np.array_equal(self.high, other.high) and np.array_equal(self.low, other.low)

    __hash__ = None  # type: ignore[assignment]


def _blocks(count: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK) for start in range(0, count, BLOCK))


def _negate_where(negative: npt.NDArray[np.bool_], high: Limbs, low: Limbs) -> None:
    """Turn some of the numbers into their two's complement, in place."""
    flip = negative.astype(np.uint64)
    np.negative(flip, out=flip)  # all bits, or none
    low ^= flip
    high ^= flip
    low -= flip  # adds one where all bits were flipped
    high += negative & (low == 0)


def _room(count: int) -> tuple[Limbs, Limbs]:
    return np.empty(count, dtype=np.uint64), np.empty(count, dtype=np.uint64)


def _convert(x: Array, high: Limbs, low: Limbs, limit: float, name: str) -> None:
    """Write a block of float64 numbers in fixed point."""
    size = np.abs(x)
    if size.size and not size.max() < limit:  # also true for NaN
        raise _too_large(x, limit, name)
    # Differences and products are exact; only bits below 2⁻⁶⁴ are rounded. Whole numbers below 2⁶³ become int64,
    # which processors convert much faster, and in place, since memory takes most of the time.
    whole = np.floor(size)
    np.copyto(high.view(np.int64), whole, casting="unsafe")
    size -= whole
    size *= HALF
    np.floor(size, out=whole)
    np.copyto(low.view(np.int64), whole, casting="unsafe")
    low <<= np.uint64(32)
    size -= whole
    size *= HALF
    low += np.rint(size, out=size).astype(np.int64).view(np.uint64)
    _negate_where(x < 0, high, low)


def _add_limbs(high: Limbs, low: Limbs, other_high: Limbs, other_low: Limbs, out_high: Limbs, out_low: Limbs) -> None:
    """Write the sums of two blocks modulo 2¹²⁸."""
    np.add(low, other_low, out=out_low)
    np.add(high, other_high, out=out_high)
    out_high += out_low < other_low  # the carry


def _add(high: Limbs, low: Limbs, other_high: Limbs, other_low: Limbs, out_high: Limbs, out_low: Limbs) -> None:
    """Write the sums of two blocks; raise if one does not fit."""
    _add_limbs(high, low, other_high, other_low, out_high, out_low)
    # Overflow: two numbers of the same sign whose sum has the other sign.
    if (((high ^ out_high) & (other_high ^ out_high)) >= TOP).any():
        raise InvalidData(
            f"a sum: expected less than {2 * LIMIT:.2g}, got more than fixed point holds; rescale the features"
        )


def _too_large(x: Array, limit: float, name: str) -> InvalidData:
    worst = x[int(np.argmax(~(np.abs(x) < limit)))]
    share = f", that is 2⁶² over {LIMIT / limit:,.0f} parties" if limit < LIMIT else ""
    return InvalidData(
        f"{name} has {worst:g}, and fixed point holds numbers below {limit:.3g}{share}: rescale the features"
    )

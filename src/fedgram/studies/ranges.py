"""Ranges of numbers in a study: what is a range, which one to draft for numbers that were seen, and how to write it."""

from math import ceil, floor, log10
from sys import float_info

MOST_NARROW = 1e-300  # half of a range, in whose units numbers are sent


def rounded_outward(low: float, high: float) -> tuple[float, float]:
    """Return a range with round ends that holds both.

    >>> rounded_outward(23.0, 87.4), rounded_outward(2025.0, 2027.0), rounded_outward(5.0, 5.0)
    ((20.0, 90.0), (2025.0, 2027.0), (4.0, 6.0))
    >>> rounded_outward(-0.1, 0.1 + 0.2)  # where round ends would leave something out, they are as found
    (-0.1, 0.30000000000000004)
    """
    if high - low < MOST_NARROW:
        margin = max(1.0, abs(low) * 0.1) // 1
        return max(low - margin, -float_info.max), min(high + margin, float_info.max)
    if high - low > float_info.max / 10:
        return low, high
    step = 10.0 ** floor(log10(high - low))
    step = step / 10 if (high - low) / step < 3 else step
    ends = floor(low / step + 1e-9) * step, ceil(high / step - 1e-9) * step
    # Multiples of 0.1 and the like have digits at their ends that nobody meant.
    short = [float(f"{end:.12g}") for end in ends]
    first, last = (less if abs(less - end) < step / 1000 else end for less, end in zip(short, ends, strict=True))
    return (first if first <= low else low), (last if last >= high else high)


def written(number: float) -> str:
    """Return a number in as few digits as tell it from others.

    >>> written(120.0), written(1234567.0), written(0.1 + 0.2)
    ('120', '1234567', '0.30000000000000004')
    """
    short = f"{number:.12g}"
    return short if float(short) == number else repr(number)

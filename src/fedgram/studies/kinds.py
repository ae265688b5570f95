"""Kinds of columns in a study: how their cells are read, which columns are sent, and which features a model sees.

The numbers sent for a row depend on that row alone, so a party needs no data of others. Features are derived
afterwards from pooled sums: the mean that stands in for a missing value is the mean of all parties.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from difflib import get_close_matches
from sys import float_info
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.classes import Label
from fedgram.core.errors import InvalidData
from fedgram.data.own.cells import POINT, Coded, Mask, Notation, is_missing, number_of
from fedgram.data.own.labels import one_form

MOST_NARROW = 1e-300  # smallest half width of a range, the unit in which numbers are sent


def widened(low: float, high: float) -> tuple[float, float]:
    """Return a range with round ends for numbers from `low` to `high`, which hides the exact `low` and `high`.

    The ends are multiples of a step of 1, 2 or 5 times a power of ten that is at least the spread, and at least half
    the spread away from the numbers; but where no number is negative, the range does not go below 0.

    >>> widened(23.0, 87.4), widened(2025.0, 2027.0), widened(5.0, 5.0), widened(-0.1, 0.1 + 0.2)
    ((0.0, 200.0), (2024.0, 2028.0), (0.0, 10.0), (-0.5, 1.0))
    """
    # A constant column is taken as one whose spread is its size: any narrower range would show its value.
    spread = high - low if high - low > 1e-12 * max(abs(low), abs(high)) else max(abs(low), abs(high))
    spread = max(spread, 1.0 if low == high == 0 else 1e3 * MOST_NARROW)
    least = 0.0 if low >= 0 else -float_info.max
    if spread > float_info.max / 100:
        return least, float_info.max
    power = Decimal(10) ** Decimal(spread).adjusted()
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= Decimal(spread))
    ends = (Decimal(low) - Decimal(spread) / 2) / step, (Decimal(high) + Decimal(spread) / 2) / step
    first, last = ends[0].to_integral_value(ROUND_FLOOR) * step, ends[1].to_integral_value(ROUND_CEILING) * step
    return max(float(first), least), float(last)


def written(number: float) -> str:
    """Return a number in as few digits as tell it from others.

    >>> written(120.0), written(1234567.0), written(0.1 + 0.2)
    ('120', '1234567', '0.30000000000000004')
    """
    short = f"{number:.12g}"
    return short if float(short) == number else repr(number)


_WITH_UNIT = re.compile(r"(?P<name>.*\S)\s*[\[(](?P<unit>[^\[\]()]*)[\])]\s*")


def split_unit(header: str) -> tuple[str, str] | None:
    """Return the name and the unit in a header such as `bp [mmHg]` or `bp (mmHg)`, None if it has no brackets.

    >>> split_unit("bp [mmHg]"), split_unit("crp (mg/l)"), split_unit("age")
    (('bp', 'mmHg'), ('crp', 'mg/l'), None)
    """
    found = _WITH_UNIT.fullmatch(header)
    return None if found is None else (found["name"], found["unit"].strip())


def same_unit(one: str, other: str) -> bool:
    """Return whether two units are the same, however they are written.

    >>> same_unit("mm²", "mm^2"), same_unit("µg / dL", "ug/dl"), same_unit("mg", "g")
    (True, True, False)
    """
    return _plain_unit(one) == _plain_unit(other)


def _plain_unit(unit: str) -> str:
    """Return a unit without signs that only some keyboards have: digits set high, micro, minus, blanks, L for litre."""
    plain = unicodedata.normalize("NFKC", unit).replace("\N{GREEK SMALL LETTER MU}", "u")
    plain = plain.replace("\N{MINUS SIGN}", "-").replace("\N{MIDDLE DOT}", "*").replace("L", "l")
    return "".join(plain.split()).replace("^", "")


Missing: TypeAlias = Literal["mean", "flag", "drop", "refuse"]
Outside: TypeAlias = Literal["refuse", "clip", "missing"]
HINTED, MOST_COMPARED = 20, 1000  # wrong cells in a block that get a hint; values that a cell is compared with
_ABSENT, _WRONG = -1, -2  # codes of empty cells, and of cells with an unknown value
YES, NO = ("1", "1.0", "true", "yes", "y", "t"), ("0", "0.0", "false", "no", "n", "f")


@dataclass(frozen=True)
class Problem:
    """Cells of one column that break a rule. `rule` quotes no cell, so that it may be told to others.

    `column` is set where the study leaves such rows out (`missing = "drop"`): they are not bad, and are counted by it.
    """

    cells: Mask
    rule: str
    found: Mapping[int, str] | Coded | Array | None = None  # the cells' content, for those who may see it
    known: tuple[str, ...] = ()  # what a cell may have been meant to be
    column: str = ""
    notation: Notation | None = None  # of a column of numbers

    def of(self, row: int) -> str:
        """Return the fault of one row with its cell, for readers who may see the data."""
        found = self._found(row)
        return self.rule if found is None else f"{self.rule}, got {found}{self._hint(row)}"

    def _found(self, row: int) -> Any:
        if self.found is None:
            return None
        return self.found.get(row) if isinstance(self.found, Mapping) else self.found[row]

    def _hint(self, row: int) -> str:
        """Return a hint at the likely meaning of a wrong cell; a hint on the notation of numbers is given once."""
        before = np.flatnonzero(self.cells[:row]).tolist()
        if len(before) >= HINTED:  # to compare texts is slow, and a table may have a wrong cell in each row
            return ""
        if self.notation is None:
            return nearest(str(self._found(row)), self.known)
        hint = self.notation.instead(str(self._found(row)))
        return "" if hint in (self.notation.instead(str(self._found(each))) for each in before) else hint


@dataclass(frozen=True)
class NotNumbers:
    """Cells of a column of numbers that hold other texts, `found`, in a table with this notation of numbers."""

    cells: Mask
    found: Coded | None = None
    notation: Notation = POINT


class Column(Protocol):
    """A kind of column in a study."""

    kind: ClassVar[str]
    numeric: ClassVar[bool]

    def sent(self, name: str) -> tuple[str, ...]:
        """Return the names of the columns that are sent."""
        ...

    def encode(self, name: str, cells: Any, bad: NotNumbers | None, out: Array) -> list[Problem]:
        """Return the cells that break a rule, after writing the columns that are sent to `out` (n, columns).

        `cells` are an array or `Coded`; `bad` marks cells that should be numbers and are not.
        """
        ...

    def design(self, name: str, sums: Mapping[str, float], n: float) -> dict[str, dict[str, float]]:
        """Return a model's features as linear combinations of the columns sent, given the pooled sums of these."""
        ...


def unknown(name: str) -> str:
    """Return the name of the column that indicates missing values.

    >>> unknown("age")
    'age missing'
    """
    return f"{name} missing"


def gaps(name: str, missing: str, absent: Mask) -> list[Problem]:
    """Return the rows with a missing value where the study refuses or drops these."""
    if missing not in ("refuse", "drop") or not absent.any():
        return []
    if missing == "drop":
        return [Problem(absent, f"column {name!r} is empty, and the study leaves such rows out", column=name)]
    return [Problem(absent, f"column {name!r} must not be empty")]


class MayBeMissing:
    """A column of numbers in which the pooled mean of known values can replace missing values."""

    missing: Missing

    @property
    def filled(self) -> bool:
        """Whether rows with a missing value are used."""
        return self.missing in ("mean", "flag")

    def values(self, name: str) -> tuple[str, ...]:
        """Return the names of the numbers made from a cell; by default a single number."""
        return (name,)

    def sent(self, name: str) -> tuple[str, ...]:
        """Return the names of the values, and of the indicator of missing values if these are allowed."""
        return (*self.values(name), unknown(name)) if self.filled else self.values(name)

    def design(self, name: str, sums: Mapping[str, float], n: float) -> dict[str, dict[str, float]]:
        """Return the values with pooled means where they are missing, and the indicator if the study wants it."""
        if not self.filled:
            return {value: {value: 1.0} for value in self.values(name)}
        known = n - sums[unknown(name)]
        filled = {
            value: {value: 1.0, unknown(name): sums[value] / known if known > 0 else 0.0} for value in self.values(name)
        }
        return filled | {unknown(name): {unknown(name): 1.0}} if self.missing == "flag" else filled


@dataclass(frozen=True)
class Number(MayBeMissing):
    """A number with a unit. It is sent in units of its range, so that sums of squares lose no digits."""

    kind: ClassVar[str] = "number"
    numeric: ClassVar[bool] = True

    unit: str = ""
    range: tuple[float, float] | None = None
    outside: Outside = "refuse"
    missing: Missing = "refuse"

    def __post_init__(self) -> None:
        """Take a range of whole numbers as floats: a study's fingerprint must not depend on how they were written."""
        if self.range is not None:
            low, high = self.range
            object.__setattr__(self, "range", (float(low), float(high)))

    @property
    def centre(self) -> float:
        """The middle of the range, which is subtracted before summing; 0 without a range."""
        return 0.0 if self.range is None else self.range[0] / 2 + self.range[1] / 2

    @property
    def half(self) -> float:
        """Half of the range, by which values are divided; 1 without a range."""
        return 1.0 if self.range is None else self.range[1] / 2 - self.range[0] / 2

    def encode(self, name: str, cells: Array, bad: NotNumbers | None, out: Array) -> list[Problem]:
        """Write the values in units of the range, 0 for missing values."""
        low, high = self.range or (-np.finfo(float).max, np.finfo(float).max)
        problems: list[Problem] = []
        out[:, 1:] = 0.0  # whether it is missing
        # Nearly all columns of nearly all blocks are clean, which two passes show: a NaN makes both ends NaN.
        clean = not len(cells) or (cells.min() >= low and cells.max() <= high)
        values = cells if clean else self._mended(name, cells, bad, out, problems)
        scaled = np.subtract(values, self.centre, out=out[:, 0])
        scaled /= self.half
        if not clean:
            scaled[np.isnan(scaled)] = 0.0
        return problems

    def known(self, cells: Array, bad: NotNumbers | None) -> Array:
        """Return the values that may be computed with, in the column's unit, NaN where there is none."""
        values = np.where(np.isinf(cells) | (False if bad is None else bad.cells), np.nan, cells)
        low, high = self.range or (-np.inf, np.inf)
        if self.outside == "clip":
            return np.clip(values, low, high)
        return np.where((values < low) | (values > high), np.nan, values)

    def _mended(self, name: str, cells: Array, wrong: NotNumbers | None, out: Array, problems: list[Problem]) -> Array:
        """Return the values, NaN where missing or wrong; add to `problems`, and write missing indicators to `out`."""
        bad = np.isinf(cells) if wrong is None else wrong.cells | np.isinf(cells)
        values = np.where(bad, np.nan, cells)
        if bad.any():
            found = cells if wrong is None or wrong.found is None else wrong.found
            notation = None if wrong is None else wrong.notation
            problems.append(Problem(bad, f"column {name!r} must hold numbers", found, notation=notation))
        if self.range is not None:
            low, high = self.range
            outside = (values < low) | (values > high)
            if self.outside == "refuse" and outside.any():
                unit = f" {self.unit}" if self.unit else ""
                problems.append(
                    Problem(outside, f"column {name!r} must be from {written(low)} to {written(high)}{unit}", cells)
                )
            elif self.outside == "clip":
                values = values.clip(low, high)
            elif self.outside == "missing":
                values[outside] = np.nan
        absent = np.isnan(values)
        out[:, 1:] = absent[:, None]
        problems += gaps(name, self.missing, absent & ~bad)
        return values


@dataclass(frozen=True)
class Flag(MayBeMissing):
    """A column of yes and no."""

    kind: ClassVar[str] = "flag"
    numeric: ClassVar[bool] = False

    missing: Missing = "refuse"

    def encode(self, name: str, cells: Coded, bad: NotNumbers | None, out: Array) -> list[Problem]:
        """Write 1 for yes, and 0 for no or a missing value."""
        codes = cells.map(_flag, np.int8)
        problems = []
        np.equal(codes, 1, out=out[:, 0])
        out[:, 1:] = (codes == _ABSENT)[:, None]
        if (wrong := codes == _WRONG).any():
            problems.append(Problem(wrong, f"column {name!r} must be yes or no (or 1 and 0, true and false)", cells))
        return problems + gaps(name, self.missing, codes == _ABSENT)

    def known(self, cells: Coded) -> Array:
        """Return 1 for yes, 0 for no, and NaN for other cells."""
        codes = cells.map(_flag, np.int8)
        return np.where(codes < 0, np.nan, codes)


@dataclass(frozen=True)
class Category:
    """A column of agreed values, sent as a column of 0 and 1 for each value but the first."""

    kind: ClassVar[str] = "category"
    numeric: ClassVar[bool] = False

    values: tuple[str, ...]
    missing: Literal["category", "drop", "refuse"] = "refuse"

    def sent(self, name: str) -> tuple[str, ...]:
        """Return a column for each value but the first, and one for missing ones if they are a category."""
        rest = tuple(f"{name}={value}" for value in self.values[1:])
        return (*rest, unknown(name)) if self.missing == "category" else rest

    def encode(self, name: str, cells: Coded, bad: NotNumbers | None, out: Array) -> list[Problem]:
        """Write the columns of 0 and 1."""
        cells, place = spelt(cells, self.values), {value: i for i, value in enumerate(self.values)}
        codes = cells.map(lambda cell: place.get(cell, _ABSENT if is_missing(cell) else _WRONG), np.int64)
        for column in range(len(self.values) - 1):
            np.equal(codes, column + 1, out=out[:, column])
        absent = codes == _ABSENT
        if self.missing == "category":
            out[:, -1] = absent
        problems = gaps(name, self.missing, absent)
        if (wrong := codes == _WRONG).any():
            problems.append(Problem(wrong, self._rule(name), cells, self.values))
        return problems

    def _rule(self, name: str) -> str:
        return f"column {name!r} must be one of {', '.join(map(repr, self.values[:8]))}" + (
            ", …" if len(self.values) > 8 else ""
        )

    def design(self, name: str, sums: Mapping[str, float], n: float) -> dict[str, dict[str, float]]:
        """Return the columns as they are."""
        return {column: {column: 1.0} for column in self.sent(name)}


@dataclass(frozen=True)
class Ignore:
    """A column that is not used, and may be missing."""

    kind: ClassVar[str] = "ignore"
    numeric: ClassVar[bool] = False

    def sent(self, name: str) -> tuple[str, ...]:
        """Return nothing."""
        return ()

    def encode(self, name: str, cells: Any, bad: NotNumbers | None, out: Array) -> list[Problem]:
        """Write nothing."""
        return []

    def design(self, name: str, sums: Mapping[str, float], n: float) -> dict[str, dict[str, float]]:
        """Return nothing."""
        return {}


class ModelTerm(NamedTuple):
    """A term of a model in the study's unit: `half` times a combination of the columns sent, plus `centre`.

    `owner` is the study's column, `parts` are the coefficients of the columns sent, and `is_binary` says whether known
    values are 0 and 1 only.
    """

    name: str
    owner: str
    parts: Mapping[str, float]
    half: float
    centre: float
    is_binary: bool


def model_terms(owner: str, column: Column, sums: Mapping[str, float], n: float) -> Iterator[ModelTerm]:
    """Yield the terms of one of the study's columns, given the pooled sums of the columns sent."""
    for name, parts in column.design(owner, sums, n).items():
        half, centre = (column.half, column.centre) if isinstance(column, Number) and name == owner else (1.0, 0.0)
        is_binary = isinstance(column, Flag | Category) or name == unknown(owner)
        yield ModelTerm(name, owner, parts, half, centre, is_binary)


def _flag(cell: str) -> int:
    text = cell.lower()
    if text in YES or text in NO:
        return int(text in YES)
    number = number_of(cell)  # 01 and 1.00 are other ways to write 1
    return int(number) if number in (0, 1) else _ABSENT if is_missing(cell) else _WRONG


def refuse_twice_sent(columns: Mapping[str, Column]) -> None:
    """Refuse two columns that would be sent under one name, such as `age missing` and the indicator of `age`."""
    seen: dict[str, str] = {}
    # Features of a backbone are not named without its weights, which a reader of the study need not have.
    named = {name: isinstance(column, Number | Flag | Category | Ignore) for name, column in columns.items()}
    for name, column in columns.items():
        sends = column.sent(name) if named[name] else [unknown(name)] * getattr(column, "filled", False)
        for sent in sends:
            feature = _FEATURE.fullmatch(sent)
            other = feature["name"] if feature and not named.get(feature["name"], True) else name
            if other != name or (other := seen.setdefault(sent, name)) != name:
                raise InvalidData(f"columns {other!r} and {name!r} are both sent as {sent!r}: give one another name")


_FEATURE = re.compile(r"(?P<name>.*)\.[0-9]+", re.DOTALL)  # of a backbone, as it is sent


def spelt(cells: Coded, known: Sequence[Label]) -> Coded:
    """Return the cells as the study writes them: other programs write 1 as 1.0 if there are gaps.

    >>> spelt(Coded.of(["1.0", "2", "01"]), ("1", "2")).values
    ('1', '2', '01')
    """
    forms = {one_form(str(value)): str(value) for value in known}
    return Coded(tuple(forms.get(one_form(value), value) for value in cells.values), cells.codes)


def nearest(cell: str, values: tuple[str, ...]) -> str:
    """Return a hint at the value that was probably meant, "" if there is none or it would take long to find."""
    if len(values) > MOST_COMPARED or len(cell) > 200:
        return ""
    near = get_close_matches(cell, values, n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""

"""Kinds of columns in a study: how their cells are read, what is sent of them, and what a model sees.

What is sent is made of single rows, so that nobody needs to know the others' data. What a model sees is made of pooled
sums afterwards: the mean that stands in for a missing value is the mean of all parties.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidData
from fedgram.core.labels import Label
from fedgram.data.own.cells import Coded, Mask, is_missing
from fedgram.data.own.labels import one_form
from fedgram.studies.ranges import written

Missing: TypeAlias = Literal["mean", "flag", "refuse"]
Outside: TypeAlias = Literal["refuse", "clip", "missing"]
HINTED, MOST_COMPARED = 20, 1000  # of wrong cells in a block, those with a hint; values that one is compared with
_ABSENT, _WRONG = -1, -2  # codes of cells in which nothing is, or nothing that is known
YES, NO = ("1", "1.0", "true", "yes", "y", "t"), ("0", "0.0", "false", "no", "n", "f")


@dataclass(frozen=True)
class Problem:
    """Cells of one column that break a rule. `rule` quotes no cell, so that it may be told to others."""

    cells: Mask
    rule: str
    found: Mapping[int, str] | Coded | Array | None = None  # the cells' content, for those who may see it
    known: tuple[str, ...] = ()  # what a cell may have been meant to be

    def of(self, row: int) -> str:
        """Say what is wrong with one row, to somebody who may see it."""
        found = (
            self.found.get(row) if isinstance(self.found, Mapping) else None if self.found is None else self.found[row]
        )
        # To compare texts is slow, and a table may have a wrong cell in each row.
        near = nearest(str(found), self.known) if np.count_nonzero(self.cells[:row]) < HINTED else ""
        return self.rule if found is None else f"{self.rule}, got {found}{near}"


class Column(Protocol):
    """What a kind of column must say."""

    kind: ClassVar[str]
    numeric: ClassVar[bool]

    def sent(self, name: str) -> tuple[str, ...]:
        """Return the names of the columns that are sent."""
        ...

    def encode(self, name: str, cells: Any, bad: Mask | None, out: Array) -> list[Problem]:
        """Write what is sent of the cells, an array or `Coded`, to `out` (n, columns); return those that break a rule.

        `bad` marks cells that should be numbers and are none.
        """
        ...

    def design(self, name: str, sums: Mapping[str, float], n: float) -> dict[str, dict[str, float]]:
        """Return the columns that a model sees, as sums of sent ones times numbers, given pooled sums of these."""
        ...


def unknown(name: str) -> str:
    """Return what the indicator of a missing value is called.

    >>> unknown("age")
    'age missing'
    """
    return f"{name} missing"


class MayBeMissing:
    """A column of numbers: the pooled mean of what is known can stand where nothing is."""

    missing: Missing

    def values(self, name: str) -> tuple[str, ...]:
        """Return the names of the numbers that a cell becomes: one, unless a kind says otherwise."""
        return (name,)

    def sent(self, name: str) -> tuple[str, ...]:
        """Return the values, and whether they are missing if they may be."""
        return self.values(name) if self.missing == "refuse" else (*self.values(name), unknown(name))

    def design(self, name: str, sums: Mapping[str, float], n: float) -> dict[str, dict[str, float]]:
        """Return the values with pooled means where they are missing, and the indicator if the study wants it."""
        if self.missing == "refuse":
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
        """What is subtracted before anything is summed."""
        return 0.0 if self.range is None else self.range[0] / 2 + self.range[1] / 2

    @property
    def half(self) -> float:
        """What is divided by."""
        return 1.0 if self.range is None else self.range[1] / 2 - self.range[0] / 2

    def encode(self, name: str, cells: Array, bad: Mask | None, out: Array) -> list[Problem]:
        """Write the values in units of the range, 0 where nothing is there."""
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

    def _mended(self, name: str, cells: Array, bad: Mask | None, out: Array, problems: list[Problem]) -> Array:
        """Return the values, NaN where there is none or a rule is broken; note missing ones and problems."""
        infinite = np.isinf(cells)
        bad = infinite if bad is None else bad | infinite
        values = np.where(bad, np.nan, cells)
        if bad.any():
            problems.append(Problem(bad, f"column {name!r} must hold numbers"))
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
        if self.missing == "refuse" and (absent & ~bad).any():
            problems.append(Problem(absent & ~bad, f"column {name!r} must not be empty"))
        return values


@dataclass(frozen=True)
class Flag(MayBeMissing):
    """Yes or no."""

    kind: ClassVar[str] = "flag"
    numeric: ClassVar[bool] = False

    missing: Missing = "refuse"

    def encode(self, name: str, cells: Coded, bad: Mask | None, out: Array) -> list[Problem]:
        """Write 1 for yes and 0 for no or nothing."""
        codes = cells.map(_flag, np.int8)
        problems = []
        np.equal(codes, 1, out=out[:, 0])
        out[:, 1:] = (codes == _ABSENT)[:, None]
        if (wrong := codes == _WRONG).any():
            problems.append(Problem(wrong, f"column {name!r} must be yes or no (or 1 and 0, true and false)", cells))
        if self.missing == "refuse" and (absent := codes == _ABSENT).any():
            problems.append(Problem(absent, f"column {name!r} must not be empty"))
        return problems


@dataclass(frozen=True)
class Category:
    """One of some agreed values: a column of 0 and 1 for each but the first."""

    kind: ClassVar[str] = "category"
    numeric: ClassVar[bool] = False

    values: tuple[str, ...]
    missing: Literal["category", "refuse"] = "refuse"

    def sent(self, name: str) -> tuple[str, ...]:
        """Return a column for each value but the first, and one for missing ones if they are a category."""
        rest = tuple(f"{name}={value}" for value in self.values[1:])
        return (*rest, unknown(name)) if self.missing == "category" else rest

    def encode(self, name: str, cells: Coded, bad: Mask | None, out: Array) -> list[Problem]:
        """Write the columns of 0 and 1."""
        cells, place = spelt(cells, self.values), {value: i for i, value in enumerate(self.values)}
        codes = cells.map(lambda cell: place.get(cell, _ABSENT if is_missing(cell) else _WRONG), np.int64)
        for column in range(len(self.values) - 1):
            np.equal(codes, column + 1, out=out[:, column])
        problems = []
        absent = codes == _ABSENT
        if self.missing == "category":
            out[:, -1] = absent
        elif absent.any():
            problems.append(Problem(absent, f"column {name!r} must not be empty"))
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

    def encode(self, name: str, cells: Any, bad: Mask | None, out: Array) -> list[Problem]:
        """Write nothing."""
        return []

    def design(self, name: str, sums: Mapping[str, float], n: float) -> dict[str, dict[str, float]]:
        """Return nothing."""
        return {}


def _flag(cell: str) -> int:
    text = cell.lower()
    return 1 if text in YES else 0 if text in NO else _ABSENT if is_missing(cell) else _WRONG


def refuse_twice_sent(columns: Mapping[str, Column]) -> None:
    """Refuse two columns of a study that would be sent by one name, such as `age missing` and what `age` sends."""
    seen: dict[str, str] = {}
    # Features of a backbone are not named without its weights, which a reader of the study need not have.
    named = {name: isinstance(column, Number | Flag | Category | Ignore) for name, column in columns.items()}
    for name, column in columns.items():
        sends = column.sent(name) if named[name] else [unknown(name)] * (getattr(column, "missing", "") != "refuse")
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

"""Kinds of columns in a study: how their cells are read, what is sent of them, and what a model sees.

What is sent is made of single rows, so that nobody needs to know the others' data. What a model sees is made of pooled
sums afterwards: the mean that stands in for a missing value is the mean of all parties.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import ClassVar, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.data.own.blocks import Texts
from fedgram.data.own.tables import is_missing

Mask: TypeAlias = npt.NDArray[np.bool_]
Missing: TypeAlias = Literal["mean", "flag", "refuse"]
Outside: TypeAlias = Literal["refuse", "clip", "missing"]
YES, NO = ("1", "1.0", "true", "yes", "y", "t"), ("0", "0.0", "false", "no", "n", "f")


@dataclass(frozen=True)
class Problem:
    """Cells of one column that break a rule. `rule` quotes no cell, so that it may be told to others."""

    cells: Mask
    rule: str
    found: "Mapping[int, str] | Texts | Array | None" = None  # the cells' content, for those who may see it

    def of(self, row: int) -> str:
        """Say what is wrong with one row, to somebody who may see it."""
        found = (
            self.found.get(row) if isinstance(self.found, Mapping) else None if self.found is None else self.found[row]
        )
        return self.rule if found is None else f"{self.rule}, got {found}"


class Column(Protocol):
    """What a kind of column must say."""

    kind: ClassVar[str]
    numeric: ClassVar[bool]

    def sent(self, name: str) -> tuple[str, ...]:
        """Return the names of the columns that are sent."""
        ...

    def encode(self, name: str, cells: "Array | Texts", bad: Mask) -> tuple[Array, list[Problem]]:
        """Return what is sent (n, columns), and the cells that break a rule."""
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
        return 0.0 if self.range is None else (self.range[0] + self.range[1]) / 2

    @property
    def half(self) -> float:
        """What is divided by."""
        return 1.0 if self.range is None else (self.range[1] - self.range[0]) / 2

    def encode(self, name: str, cells: "Array | Texts", bad: Mask) -> tuple[Array, list[Problem]]:
        """Return the values in units of the range, 0 where nothing is there."""
        values = np.array(cells, dtype=np.float64)
        problems = [Problem(bad, f"column {name!r} must hold numbers")] if bad.any() else []
        if self.range is not None:
            low, high = self.range
            out = (values < low) | (values > high)
            if out.any():
                if self.outside == "refuse":
                    unit = f" {self.unit}" if self.unit else ""
                    problems.append(Problem(out, f"column {name!r} must be from {low:g} to {high:g}{unit}", cells))
                elif self.outside == "clip":
                    values = values.clip(low, high)
                else:
                    values[out] = np.nan
        absent = np.isnan(values)
        if self.missing == "refuse" and (absent & ~bad).any():
            problems.append(Problem(absent & ~bad, f"column {name!r} must not be empty"))
        scaled = np.where(absent, 0.0, (values - self.centre) / self.half)
        return np.column_stack([scaled] if self.missing == "refuse" else [scaled, absent]), problems


@dataclass(frozen=True)
class Flag(MayBeMissing):
    """Yes or no."""

    kind: ClassVar[str] = "flag"
    numeric: ClassVar[bool] = False

    missing: Missing = "refuse"

    def encode(self, name: str, cells: "Array | Texts", bad: Mask) -> tuple[Array, list[Problem]]:
        """Return 1 for yes and 0 for no or nothing."""
        code = dict.fromkeys(YES, 1.0) | dict.fromkeys(NO, 0.0)
        values = np.array([code.get(str(cell).lower(), 2.0) for cell in cells])
        absent = np.array([is_missing(str(cell)) for cell in cells], dtype=bool)
        wrong = (values == 2.0) & ~absent
        problems = []
        if wrong.any():
            problems.append(
                Problem(wrong | bad, f"column {name!r} must be yes or no (or 1 and 0, true and false)", cells)
            )
        if self.missing == "refuse" and absent.any():
            problems.append(Problem(absent, f"column {name!r} must not be empty"))
        values = np.where(values == 1.0, 1.0, 0.0)
        return np.column_stack([values] if self.missing == "refuse" else [values, absent]), problems


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

    def encode(self, name: str, cells: "Array | Texts", bad: Mask) -> tuple[Array, list[Problem]]:
        """Return the columns of 0 and 1."""
        place = {value: i for i, value in enumerate(self.values)}
        absent_place = len(self.values)
        codes = np.array([place.get(cell, -1) for cell in cells], dtype=np.int64)
        problems = []
        strange = codes < 0
        if strange.any():
            absent = np.array([is_missing(str(cell)) for cell in cells], dtype=bool) & strange
            codes[absent] = absent_place
            if self.missing == "refuse" and absent.any():
                problems.append(Problem(absent, f"column {name!r} must not be empty"))
            if (wrong := strange & ~absent).any():
                problems.append(Problem(wrong, self._rule(name), _nearest(cells, wrong, self.values)))
        width = len(self.sent(name)) + 1
        hot = np.zeros((len(codes), max(width, absent_place + 1)))
        hot[np.arange(len(codes)), np.maximum(codes, 0)] = 1.0
        return hot[:, 1:width], problems

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

    def encode(self, name: str, cells: "Array | Texts", bad: Mask) -> tuple[Array, list[Problem]]:
        """Return nothing."""
        return np.zeros((len(cells), 0)), []

    def design(self, name: str, sums: Mapping[str, float], n: float) -> dict[str, dict[str, float]]:
        """Return nothing."""
        return {}


def _nearest(cells: "Array | Texts", wrong: Mask, values: tuple[str, ...]) -> dict[int, str]:
    """Return what stands in the wrong cells, with the value that was probably meant."""
    found = {}
    for row in np.flatnonzero(wrong)[:100].tolist():
        near = get_close_matches(str(cells[row]), values, n=1, cutoff=0.6)
        found[row] = f"{cells[row]} (did you mean {near[0]}?)" if near else str(cells[row])
    return found

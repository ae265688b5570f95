"""A first study file from one party's table: kinds are guessed, and comments say where a human must decide."""

import json
import re
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any

import numpy as np

from fedgram.core.errors import InvalidData, UnknownName
from fedgram.data.own.blocks import TableFile, open_table, parse_numbers
from fedgram.data.own.tables import LABEL_NAMES, is_missing
from fedgram.studies.kinds import NO, YES

MOST_CLASSES, MOST_VALUES = 20, 30
ROWS = 200_000  # that are looked at
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}( .*)?")
_ID = re.compile(r"(.*[_\-. ])?(id|ids|uuid|guid|mrn|nr|no|name)|unnamed: 0|index", re.IGNORECASE)
_BARE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Seen:
    """What was seen of a column: its distinct cells with how many rows have each, and how many rows have nothing."""

    name: str
    cells: dict[str, int]
    empty: int

    @property
    def rows(self) -> int:
        """How many rows were seen."""
        return sum(self.cells.values()) + self.empty

    @property
    def all_different(self) -> bool:
        """Whether no two rows share a cell, so that it says who or which, not what."""
        return len(self.cells) > 20 and len(self.cells) == sum(self.cells.values())


def draft(source: Any, outcome: str | None = None, *, name: str = "my-study", ignore: tuple[str, ...] = ()) -> str:
    r"""Return the text of a study file drafted from a table; `ignore` are columns that are not to be used.

    >>> import pathlib, tempfile
    >>> rows = [f"{20 + k % 20},{'FM'[k % 2]},{k % 3 % 2}" for k in range(40)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "north.csv"
    ...     _ = path.write_text("\n".join(["age,sex,ill", *rows]))
    ...     print(draft(path, "ill").split("# Columns")[1])
    ...
    <BLANKLINE>
    [columns.age]
    kind = "number"
    unit = ""  # say in what it is measured
    range = [20, 39]  # of this table, rounded outward; widen it to what can be
    missing = "mean"
    <BLANKLINE>
    [columns.sex]
    kind = "category"
    values = ["F", "M"]  # of this table; add those that others have
    missing = "refuse"
    <BLANKLINE>
    """
    table = open_table(source)
    columns = _look(table)
    chosen = _outcome(table, outcome)
    lines = [
        "# Drafted from one party's table. Read it through, settle what the comments ask, and send it to all parties:",
        "# all must use the same file.",
        "[study]",
        f"name = {_quoted(name)}",
        f"outcome = {_quoted(chosen)}",
        *_outcome_lines(columns[chosen]),
        "parties = []  # names of those who take part; empty: anybody who has this file",
        'method = "fedgram"',
        "minimum_samples = 10  # a party with fewer sends nothing",
        "minimum_cell = 3  # nor one with fewer of a class that it has",
        "",
        "# Columns",
    ]
    for column in columns.values():
        if column.name != chosen or not _has_classes(column):
            lines += [*_column_lines(column, ignored=column.name in ignore, outcome=column.name == chosen), ""]
    return "\n".join(lines)


def _look(table: TableFile) -> dict[str, Seen]:
    counts: dict[str, dict[str, int]] = {name: {} for name in table.names}
    empty = dict.fromkeys(table.names, 0)
    rows = 0
    for block in table.blocks([], table.names):
        for name, cells in block.texts.items():
            for cell in cells.tolist():
                if is_missing(cell):
                    empty[name] += 1
                else:
                    counts[name][cell] = counts[name].get(cell, 0) + 1
        rows += block.rows
        if rows >= ROWS:
            break
    if not rows:
        raise InvalidData(f"{table.title} has no rows to draft a study from")
    return {name: Seen(name, counts[name], empty[name]) for name in table.names}


def _outcome(table: TableFile, asked: str | None) -> str:
    if asked is not None:
        if asked not in table.names:
            raise UnknownName(f"column of {table.title}", asked, table.names)
        return asked
    usual = [name for name in table.names if name.lower() in LABEL_NAMES]
    if len(usual) != 1:
        raise InvalidData(
            f"{table.title}: say which column is the outcome (--outcome); it has {', '.join(table.names[:8])}"
        )
    return usual[0]


def _has_classes(column: Seen) -> bool:
    """Say whether an outcome is one of few values, rather than a number."""
    _, bad = parse_numbers(column.cells)
    whole = not bad.any() and all(float(cell).is_integer() for cell in column.cells)
    return bool(bad.any()) or (whole and len(column.cells) <= MOST_CLASSES)


def _outcome_lines(column: Seen) -> list[str]:
    if not _has_classes(column):
        return []
    if len(column.cells) > 10 * MOST_CLASSES:
        raise InvalidData(
            f"outcome {column.name!r} has {len(column.cells)} different values, which are no numbers: "
            "name the column that is to be predicted"
        )
    classes = ", ".join(_quoted(cell) for cell in sorted(column.cells))
    return [f"classes = [{classes}]  # of this table; add those that others have"]


def _column_lines(column: Seen, *, ignored: bool, outcome: bool) -> list[str]:
    head = f"[columns.{column.name if _BARE.fullmatch(column.name) else _quoted(column.name)}]"
    if ignored:
        return [head, 'kind = "ignore"']
    values, bad = parse_numbers(column.cells)
    if not column.cells:
        return [head, 'kind = "ignore"  # nothing is in it here']
    if all(_DATE.fullmatch(cell) for cell in column.cells):
        return [head, 'kind = "ignore"  # dates; a number of days since an event can be used']
    if _ID.fullmatch(column.name) or (column.all_different and (bad.any() or _whole(values))):
        return [head, 'kind = "ignore"  # looks like an identifier']
    lower = {cell.lower() for cell in column.cells}
    if len(column.cells) <= 2 and lower <= {*YES, *NO}:
        return [head, 'kind = "flag"', 'missing = "mean"']
    wrong = sum(count for (_, count), is_bad in zip(column.cells.items(), bad, strict=True) if is_bad)
    if wrong <= 0.05 * column.rows:
        return _number_lines(head, values[~bad], wrong, "refuse" if outcome else "mean")
    if len(column.cells) > MOST_VALUES:
        return [head, f'kind = "ignore"  # {len(column.cells)} different texts: too many to be categories']
    listed = ", ".join(_quoted(cell) for cell in sorted(column.cells))
    missing = "category" if column.empty else "refuse"
    return [
        head,
        'kind = "category"',
        f"values = [{listed}]  # of this table; add those that others have",
        f'missing = "{missing}"',
    ]


def _number_lines(head: str, values: Any, wrong: int, missing: str) -> list[str]:
    low, high = rounded_outward(float(values.min()), float(values.max()))
    lines = [head, 'kind = "number"']
    if wrong:
        lines[-1] += f"  # {wrong} cells here are no numbers: mend them"
    return [
        *lines,
        'unit = ""  # say in what it is measured',
        f"range = [{low:.12g}, {high:.12g}]  # of this table, rounded outward; widen it to what can be",
        f'missing = "{missing}"',
    ]


def rounded_outward(low: float, high: float) -> tuple[float, float]:
    """Return a range with round ends that holds both.

    >>> rounded_outward(23.0, 87.4), rounded_outward(2025.0, 2027.0), rounded_outward(5.0, 5.0)
    ((20.0, 90.0), (2025.0, 2027.0), (4.0, 6.0))
    """
    if low == high:
        return low - max(1.0, abs(low) * 0.1) // 1, high + max(1.0, abs(high) * 0.1) // 1
    step = 10.0 ** floor(log10(high - low))
    step = step / 10 if (high - low) / step < 3 else step
    return floor(low / step + 1e-9) * step, ceil(high / step - 1e-9) * step


def _whole(values: Any) -> bool:
    return bool((values == np.rint(values)).all())


def _quoted(text: str) -> str:
    """Return a text as TOML has it, which is as JSON has it for all that can be printed."""
    return json.dumps(text, ensure_ascii=False)

"""A first study file from one party's table: kinds are guessed, and comments say where a human must decide."""

import json
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.core.errors import Doubtful, InvalidData, InvalidParameter, UnknownName
from fedgram.core.progress import with_bar
from fedgram.data.own.blocks import TableFile, open_table
from fedgram.data.own.cells import is_missing, parse_numbers
from fedgram.data.own.labels import are_dates, one_form
from fedgram.data.own.tables import LABEL_NAMES
from fedgram.studies.kinds import NO, YES
from fedgram.studies.ranges import rounded_outward, written

MOST_CLASSES, MOST_VALUES = 20, 30
ROWS = 200_000  # that are looked at
_ID = re.compile(r"(.*[_\-. ])?(id|ids|uuid|guid|mrn|nr|no|name)|unnamed: 0|index", re.IGNORECASE)
_COMMA = re.compile(r"[+-]?\d+(,\d+)+(\.\d+)?|[+-]?\d+(\.\d{3})*,\d+")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_IMAGE = re.compile(r".+\.(png|jpe?g|tiff?|bmp|webp)", re.IGNORECASE)
_NESTED = re.compile(r"\[.*\]|\{.*\}", re.DOTALL)
_SENTENCE = re.compile(r"\S+(\s+\S+){2,}")  # three words or more


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

    @property
    def is_flag(self) -> bool:
        """Whether it says yes or no."""
        if len(self.cells) == 1 and len(min(self.cells)) == 1 and min(self.cells).isalpha():
            return False  # a column of nothing but F is of women sooner than of what is false
        return len(self.cells) <= 2 and {cell.lower() for cell in self.cells} <= {*YES, *NO}


def draft(
    source: Any,
    outcome: str | None = None,
    *,
    name: str = "my-study",
    client: str | None = None,
    ignore: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    rows: int | None = ROWS,
) -> str:
    r"""Return the text of a study file drafted from a table; `ignore` are columns that are not to be used.

    `client` is the column that names each row's client, which is not used either: a model must not know it.
    `columns` are the only ones that are used, also where one looks like an identifier. `rows` are looked at, None for
    all there are.

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
    chosen = _outcome(table, outcome)
    named = () if client is None else (client,)
    for asked in (*named, *ignore, *(columns or ())):
        if asked not in table.names:
            raise UnknownName(f"column of {table.title}", asked, table.names)
    if chosen in (*named, *ignore):
        raise InvalidParameter(
            f"column {chosen!r} is the outcome, so it can neither name clients nor be left out: give another column"
        )
    seen = _look(table, rows)
    lines = [
        "# Drafted from one party's table. Read it through, settle what the comments ask, and send it to all parties:",
        "# all must use the same file.",
        "[study]",
        f"name = {_quoted(name)}",
        f"outcome = {_quoted(chosen)}",
        *_outcome_lines(seen[chosen]),
        "parties = []  # names of those who take part; empty: anybody who has this file",
        'method = "fedgram"',
        "minimum_samples = 10  # a party with fewer sends nothing",
        "minimum_cell = 3  # nor one with fewer of a class that it has",
        "",
        "# Columns",
    ]
    for column in seen.values():
        if column.name == chosen and _has_classes(column):
            continue
        outcome_itself = column.name == chosen
        wanted = outcome_itself or (columns is not None and column.name in columns)
        if column.name == client:
            written = [_head(column), 'kind = "ignore"  # names the client of each row, which says nothing to others']
        elif column.name in ignore or (columns is not None and not wanted):
            written = [_head(column), 'kind = "ignore"']
        else:
            written = _column_lines(column, wanted=wanted, outcome=outcome_itself)
        lines += [*written, ""]
    return "\n".join(lines)


def _look(table: TableFile, most: int | None) -> dict[str, Seen]:
    counts: dict[str, Counter[str]] = {name: Counter() for name in table.names}
    rows = 0
    for block in with_bar(table.blocks([], table.names), f"reading {table.title}"):
        for name, cells in block.texts.items():
            counts[name].update(cells.stripped().counts())
        rows += block.rows
        if most is not None and rows >= most:
            break
    if not rows:
        raise InvalidData(f"{table.title} has no rows to draft a study from")
    seen = {}
    for name, found in counts.items():
        empty = sum(found.pop(cell) for cell in list(found) if is_missing(cell))
        seen[name] = Seen(name, found, empty)
    return seen


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
        _warn_of_few_fractions(column)
        return []
    if len(column.cells) > 10 * MOST_CLASSES:
        raise InvalidData(
            f"outcome {column.name!r} has {len(column.cells)} different values, which are no numbers: "
            "name the column that is to be predicted"
        )
    if are_dates(column.cells):
        raise InvalidData(
            f"outcome {column.name!r} holds dates, which are neither classes nor numbers: name another column, or make "
            "it a number of days since an event"
        )
    found = sorted({one_form(cell) for cell in column.cells})
    if len(found) < 2:
        here = f"only {found[0]!r} in it" if found else "nothing in it"
        raise InvalidData(f"outcome {column.name!r} has {here} here: draft the study from a table with two classes")
    classes = ", ".join(map(_quoted, found))
    return [f"classes = [{classes}]  # of this table; add those that others have"]


def _warn_of_few_fractions(column: Seen) -> None:
    """Warn of an outcome that would have classes but for a few cells: a typo there makes it a number."""
    whole = {cell: count for cell, count in column.cells.items() if float(cell).is_integer()}
    total, found = sum(column.cells.values()), sum(whole.values())
    if 2 <= len(whole) <= MOST_CLASSES and found >= 0.95 * total:
        odd = next(cell for cell in column.cells if cell not in whole)
        warnings.warn(
            f"outcome {column.name!r} is taken as a number because of {total - found} of {total} values, such as "
            f"{odd}: the others are {len(whole)} whole numbers. If these are classes, correct the values that are not, "
            "or give a study that lists the classes (--study)",
            Doubtful,
            stacklevel=4,
        )


def _head(column: Seen) -> str:
    return f"[columns.{column.name if _BARE.fullmatch(column.name) else _quoted(column.name)}]"


def _column_lines(column: Seen, *, wanted: bool, outcome: bool) -> list[str]:
    head = _head(column)
    values, bad = parse_numbers(column.cells)
    if why := _useless(column, values, bad, wanted=wanted):
        if wanted:
            raise InvalidData(f"column {column.name!r} cannot be used ({why}): leave it out")
        return [head, f'kind = "ignore"  # {why}']
    if column.is_flag:
        return [head, 'kind = "flag"', 'missing = "mean"']
    wrong = _wrong(column, bad)
    if _numeric(column, bad):
        return _number_lines(head, values[~bad], wrong, "refuse" if outcome else "mean")
    listed = ", ".join(_quoted(cell) for cell in sorted({one_form(cell) for cell in column.cells}))
    missing = "category" if column.empty else "refuse"
    return [
        head,
        'kind = "category"',
        f"values = [{listed}]  # of this table; add those that others have",
        f'missing = "{missing}"',
    ]


def _useless(column: Seen, values: Any, bad: Any, *, wanted: bool) -> str:
    """Say why a column cannot be used, "" if it can; one that somebody wants may look like an identifier."""
    if not column.cells:
        return "nothing is in it here"
    if are_dates(column.cells):
        return "dates; a number of days since an event can be used"
    if all(_IMAGE.fullmatch(cell) for cell in column.cells):
        return 'image files; kind = "image" with backbone = "lite0:96" uses them'
    if len(column.cells) > MOST_VALUES and _mostly(_SENTENCE, column):
        return 'texts; kind = "text" with backbone = "minilm" uses them'
    if all(_NESTED.fullmatch(cell) for cell in column.cells):
        return "lists; one number or text a cell can be used"
    if _mostly(_COMMA, column):
        # Ignored as texts, such a column would be missed by nobody but the model.
        raise InvalidData(f"column {column.name!r} has numbers with commas: write a decimal point, and no separators")
    numeric = _numeric(column, bad)  # one text among measured numbers does not make identifiers of them
    names_rows = column.all_different and (not numeric or _whole(values[~bad]))
    if not wanted and (_ID.fullmatch(column.name) or names_rows):
        return "looks like an identifier"
    if numeric:
        return ""
    if len(column.cells) > MOST_VALUES:
        return f"{len(column.cells)} different texts: too many to be categories"
    return "" if len(column.cells) > 1 or column.is_flag else "the same text in every row"


def _mostly(form: "re.Pattern[str]", column: Seen) -> bool:
    return sum(form.fullmatch(cell) is not None for cell in column.cells) > 0.5 * len(column.cells)


def _wrong(column: Seen, bad: Any) -> int:
    """Return how many rows have something else than a number."""
    return sum(count for count, is_bad in zip(column.cells.values(), bad, strict=True) if is_bad)


def _numeric(column: Seen, bad: Any) -> bool:
    """Say whether a column holds numbers, but for a few cells that somebody must mend."""
    return not bad.all() and _wrong(column, bad) <= 0.05 * column.rows


def _number_lines(head: str, values: Any, wrong: int, missing: str) -> list[str]:
    low, high = rounded_outward(float(values.min()), float(values.max()))
    lines = [head, 'kind = "number"']
    if wrong:
        lines[-1] += f"  # {wrong} cells here are no numbers: mend them"
    return [
        *lines,
        'unit = ""  # say in what it is measured',
        f"range = [{written(low)}, {written(high)}]  # of this table, rounded outward; widen it to what can be",
        f'missing = "{missing}"',
    ]


def _whole(values: Any) -> bool:
    return bool((values == np.rint(values)).all())


def _quoted(text: str) -> str:
    """Return a text as TOML has it, which is as JSON has it but for one control character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007F")

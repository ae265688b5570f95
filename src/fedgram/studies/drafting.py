"""The text of study files: a draft from one party's table, and public keys entered into a file.

A draft's kinds are guessed, and comments say where a human must decide. Entering keys leaves all other text as it is.
"""

import json
import re
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, isfinite
from typing import Any, Literal

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.errors import Doubtful, InvalidData, InvalidParameter, UnknownName, did_you_mean
from fedgram.core.progress_bars import with_bar
from fedgram.data.own.blocks import TableFile, open_table
from fedgram.data.own.cells import POINT, Block, Notation, is_missing, number_of, parse_numbers
from fedgram.data.own.labels import are_dates, names_identifier, one_form
from fedgram.data.own.tables import LABEL_NAMES
from fedgram.studies.kinds import NO, YES, Category, Column, Flag, Ignore, Number, split_unit, widened, written
from fedgram.studies.study import Study

MOST_CLASSES, MOST_VALUES = 20, 30
ROWS = 200_000  # most rows that are read for a draft
HEAD = (
    "# Drafted from one party's table. Read it through, settle what the comments ask, and send it to all parties:",
    "# all must use the same file.",
)
MOST_ODD = 0.05  # share of cells that are not numbers, in a column of numbers that has to be mended
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_IMAGE = re.compile(r".+\.(png|jpe?g|tiff?|bmp|webp)", re.IGNORECASE)
_NESTED = re.compile(r"\[.*\]|\{.*\}", re.DOTALL)
_SENTENCE = re.compile(r"\S+(\s+\S+){2,}")  # three words or more


@dataclass
class Seen:
    """Summary of a column's cells, block by block.

    `cells` are the distinct texts with their counts: all of them where the column is read as texts, and otherwise only
    those that are not numbers. `count`, `low`, `high` and `whole` are of its numbers, `empty` counts missing cells.
    """

    name: str
    as_texts: bool
    notation: Notation = POINT
    rows: int = 0
    cells: Counter[str] = field(default_factory=Counter)
    count: int = 0
    low: float = inf
    high: float = -inf
    whole: bool = True
    _distinct: Array | None = field(default_factory=lambda: np.zeros(0))  # whole numbers, while all are different

    def add(self, block: Block) -> None:
        """Add a block of rows."""
        self.rows += block.rows
        if self.as_texts:
            self.cells.update(self.notation.texts(block.texts[self.name].stripped()).counts())
            return
        values = block.numbers[self.name]
        if (odd := block.odd.get(self.name)) is not None:
            self.cells.update({cell: n for cell, n in odd.stripped().counts().items() if not self._is_finite(cell)})
        infinite = np.isinf(values)
        if infinite.any():
            self.cells.update({"inf": int(np.count_nonzero(infinite))})
        self._add_numbers(values[np.isfinite(values)])

    def settle(self) -> None:
        """Tell missing cells from others, and numbers from texts, when all blocks have been added."""
        for cell in [cell for cell in self.cells if is_missing(cell)]:
            del self.cells[cell]
        if self.as_texts and self.cells:
            values, bad = parse_numbers(self.cells, self.notation)
            counts = np.fromiter(self.cells.values(), np.int64, len(self.cells))
            self._add_numbers(values[~bad])
            self.count = int(counts[~bad].sum())

    def _is_finite(self, cell: str) -> bool:
        number = number_of(cell, self.notation)
        return number is not None and isfinite(number)

    def _add_numbers(self, values: Array) -> None:
        if not len(values):
            return
        self.count += len(values)
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        self.whole = self.whole and bool((values == np.rint(values)).all())
        if self._distinct is not None:
            merged = np.unique(np.concatenate([self._distinct, values])) if self.whole else None
            different = merged is not None and len(merged) == len(self._distinct) + len(values)
            self._distinct = merged if different else None

    @property
    def odd(self) -> int:
        """The number of cells that hold something else than a number."""
        return sum(self.cells.values()) - (self.count if self.as_texts else 0)

    @property
    def empty(self) -> int:
        """The number of empty cells."""
        return self.rows - self.count - self.odd

    @property
    def is_numeric(self) -> bool:
        """Whether the column holds numbers, except for a few cells that have to be mended."""
        return self.count > 0 and self.odd <= MOST_ODD * self.rows

    @property
    def names_rows(self) -> bool:
        """Whether each row has another text or whole number, as in a column of ids."""
        if self.is_numeric and not self.whole:
            return False
        if self.as_texts:
            return len(self.cells) > 20 and len(self.cells) == sum(self.cells.values())
        return self._distinct is not None and len(self._distinct) > 20 and not self.odd

    @property
    def is_flag(self) -> bool:
        """Whether the column holds only forms of yes and no."""
        if not self.as_texts:
            return self.whole and self.low in (0, 1) and self.high in (0, 1) and not self.odd
        if len(self.cells) == 1 and len(min(self.cells)) == 1 and min(self.cells).isalpha():
            return False  # a column that holds only F more likely means female than false
        return len(self.cells) <= 2 and {cell.lower() for cell in self.cells} <= {*YES, *NO}


@dataclass(frozen=True)
class Draft:
    """A study drafted from a table, with notes on its columns for the people who settle it.

    `study` is the study itself; it raises while all columns are ignored, but `text` can be mended by hand.
    """

    title: str  # of the table
    name: str
    outcome: str
    classes: tuple[str, ...]
    columns: Mapping[str, Column]
    notes: Mapping[str, str]
    minimum_samples: int
    minimum_cell: int

    @cached_property
    def study(self) -> Study:
        """The study as it is drafted."""
        rules = {"minimum_samples": self.minimum_samples, "minimum_cell": self.minimum_cell}
        try:
            return Study(self.name, self.outcome, self.columns, self.classes, **rules)  # type: ignore[arg-type]
        except InvalidData as error:
            raise InvalidData(f"the study drafted from {self.title}: {error}") from None

    @property
    def text(self) -> str:
        """The draft as a study file, with comments where a human must decide."""
        lines = [
            *HEAD,
            "[study]",
            f"name = {_quoted(self.name)}",
            f"outcome = {_quoted(self.outcome)}",
        ]
        if self.classes:
            lines.append(f"classes = [{_listed(self.classes)}]  # of this table; add those that others have")
        lines += [
            "parties = []  # names of those who take part; empty: every party that has this file",
            'method = "fedgram"',
            f"minimum_samples = {self.minimum_samples}  # a party with fewer sends nothing",
            f"minimum_cell = {self.minimum_cell}  # fewest of a class, or of a group that sums single out",
            "",
            "# Columns",
        ]
        for name, column in self.columns.items():
            lines += [f"[columns.{name if _BARE.fullmatch(name) else _quoted(name)}]", *self._column(name, column), ""]
        return "\n".join(lines)

    def _column(self, name: str, column: Column) -> list[str]:
        note = f"  # {self.notes[name]}" if name in self.notes else ""
        lines = [f'kind = "{column.kind}"{note}']
        match column:
            case Number(range=(low, high)):
                ends = f"[{written(low)}, {written(high)}]"
                unknown = "" if column.unit else "  # say in what it is measured"
                lines.append(f"unit = {_quoted(column.unit)}{unknown}")
                lines.append(f"range = {ends}  # DECIDE: the values possible at any party; wider than in this table")
            case Category():
                lines.append(f"values = [{_listed(column.values)}]  # of this table; add those that others have")
        missing = getattr(column, "missing", None)
        if missing is None:
            return lines
        allowed = "category" if isinstance(column, Category) else "mean"
        no_gap = f'  # no gap here; "{allowed}" or "drop" if others have some' if missing == "refuse" else ""
        return [*lines, f'missing = "{missing}"{no_gap if name != self.outcome else ""}']


def draft(
    source: Any,
    outcome: str | None = None,
    *,
    name: str = "my-study",
    client: str | None = None,
    ignore: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    rows: int | None = ROWS,
    minimum_samples: int = 10,
    minimum_cell: int = 3,
) -> Draft:
    r"""Return a study drafted from a table: `study` itself, and the `text` of its file.

    Parameters
    ----------
    source
        A CSV or Parquet file, or a table of pandas, polars or Arrow, also one that `open_table` has opened.
    outcome
        The column to be predicted. Default: the one that is called label, y, target or class.
    name
        The study's name.
    client
        The column that names each row's client. It is not used: a model must not know it.
    ignore
        Columns that are not used.
    columns
        The only columns that are used, also where one looks like an identifier. Default: all that can be.
    rows
        How many rows are looked at, None for all.
    minimum_samples, minimum_cell
        The study's thresholds.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> rows = [f"{20 + k % 20},{'FM'[k % 2]},{k % 3 % 2}" for k in range(40)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "north.csv"
    ...     _ = path.write_text("\n".join(["age,sex,ill", *rows]))
    ...     print(draft(path, "ill").text.split("# Columns")[1])
    ...
    <BLANKLINE>
    [columns.age]
    kind = "number"
    unit = ""  # say in what it is measured
    range = [0, 60]  # DECIDE: the values possible at any party; wider than in this table
    missing = "refuse"  # no gap here; "mean" or "drop" if others have some
    <BLANKLINE>
    [columns.sex]
    kind = "category"
    values = ["F", "M"]  # of this table; add those that others have
    missing = "refuse"  # no gap here; "category" or "drop" if others have some
    <BLANKLINE>

    """
    table = open_table(source)
    chosen = _outcome(table, outcome)
    client = None if client is None else _header(table, client)
    ignore = [_header(table, asked) for asked in ignore]
    columns = None if columns is None else [_header(table, asked) for asked in columns]
    named = () if client is None else (client,)
    if chosen in (*named, *ignore):
        raise InvalidParameter(
            f"column {chosen!r} is the outcome, so it can neither name clients nor be left out: give another column"
        )
    left_out = {*named, *ignore, *(() if columns is None else {*table.names}.difference(columns))} - {chosen}
    seen = _look(table, [column for column in table.names if column not in left_out], chosen, rows)
    classes = _classes(seen[chosen])
    described: dict[str, Column] = {}
    notes: dict[str, str] = {}
    if client is not None:
        notes[client] = "names the client of each row, and means nothing at other clients"
    for header in table.names:
        if header == chosen and classes:
            continue
        if header in left_out:
            described[header] = Ignore()
            continue
        kind, note = _described(seen[header], wanted=columns is not None or header == chosen)
        title = header
        if isinstance(kind, Number):
            if (parts := split_unit(header)) and parts[0] not in (*table.names, *described):
                title, kind = parts[0], replace(kind, unit=parts[1])
            if header == chosen:
                chosen, kind = title, replace(kind, missing="refuse")
        described[title] = kind
        notes |= {title: note} if note else {}
    return Draft(table.title, name, chosen, classes, described, notes, minimum_samples, minimum_cell)


def _look(table: TableFile, names: Sequence[str], outcome: str, most: int | None) -> dict[str, Seen]:
    """Return summaries of columns, in one pass; columns that turn out to hold texts take another one."""
    numbers = [name for name in table.number_like() if name in names and name != outcome]
    seen = _summaries(table, numbers, [name for name in names if name not in numbers], most)
    texts = [name for name in numbers if not seen[name].is_numeric and seen[name].odd]
    return seen | (_summaries(table, [], texts, most) if texts else {})


def _summaries(table: TableFile, numbers: Sequence[str], texts: Sequence[str], most: int | None) -> dict[str, Seen]:
    seen = {name: Seen(name, name in texts, table.notation) for name in (*numbers, *texts)}
    rows = 0
    for block in with_bar(table.blocks(numbers, texts), f"reading {table.title}"):
        for column in seen.values():
            column.add(block)
        rows += block.rows
        if most is not None and rows >= most:
            break
    if not rows:
        raise InvalidData(f"{table.title} has no rows to draft a study from")
    for column in seen.values():
        column.settle()
    return seen


def _header(table: TableFile, asked: str) -> str:
    """Return the table's column of this name, with a unit in its header or without."""
    if asked in table.names:
        return asked
    found = [header for header in table.names if (split_unit(header) or ("", ""))[0] == asked]
    if len(found) != 1:
        raise UnknownName("column", asked, table.names, where=table.title)
    return found[0]


def _outcome(table: TableFile, asked: str | None) -> str:
    if asked is not None:
        return _header(table, asked)
    usual = [name for name in table.names if name.lower() in LABEL_NAMES]
    if len(usual) != 1:
        raise InvalidData(
            f"{table.title}: expected one column named {', '.join(LABEL_NAMES)}, got {', '.join(table.names[:8])}"
            f"{', …' * (len(table.names) > 8)}; name the outcome (--outcome)"
        )
    return usual[0]


def _classes(column: Seen) -> tuple[str, ...]:
    """Return the classes of an outcome, () if it is a number rather than one of few values."""
    has_classes = column.odd > 0 or (column.whole and len(column.cells) <= MOST_CLASSES)
    if not has_classes:
        _warn_of_few_fractions(column)
        return ()
    if len(column.cells) > 10 * MOST_CLASSES:
        raise InvalidData(
            f"outcome {column.name!r} has {len(column.cells)} different values, which are not numbers: "
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
    return tuple(found)


def _warn_of_few_fractions(column: Seen) -> None:
    """Warn of an outcome that would have classes but for a few cells: a typo there makes it a number."""
    numbers = {cell: number_of(cell, column.notation) for cell in column.cells}
    whole = {cell: count for cell, count in column.cells.items() if (numbers[cell] or 0.0).is_integer()}
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


def _described(column: Seen, *, wanted: bool) -> tuple[Column, str]:
    """Return a column's kind, and a note on it; a `wanted` column is used even if it looks like an identifier."""
    if why := _useless(column, wanted=wanted):
        if wanted:
            raise InvalidData(f"column {column.name!r} cannot be used ({why}): leave it out")
        return Ignore(), why
    missing: Literal["mean", "refuse"] = "mean" if column.empty else "refuse"
    if column.is_flag:
        return Flag(missing), ""
    if column.is_numeric:
        note = f"{column.odd} cells here are not numbers: mend them" if column.odd else ""
        return Number(range=widened(column.low, column.high), missing=missing), note
    values = tuple(sorted({one_form(cell) for cell in column.cells}))
    return Category(values, missing="category" if column.empty else "refuse"), ""


def _useless(column: Seen, *, wanted: bool) -> str:
    """Return the reason why a column cannot be used, "" if it can."""
    if not column.cells and not column.count:
        return "nothing is in it here"
    if column.as_texts and (why := _not_a_value(column)):
        return why
    if not wanted and (names_identifier(column.name) or column.names_rows):
        return "looks like an identifier"
    if column.is_numeric:
        return ""
    if len(column.cells) > MOST_VALUES:
        return f"{len(column.cells)} different texts: too many to be categories"
    return "" if len(column.cells) > 1 or column.is_flag else "the same text in every row"


def _not_a_value(column: Seen) -> str:
    """Return the reason why the texts of a column are neither numbers nor categories, "" if they may be."""
    if are_dates(column.cells):
        return "dates; a number of days since an event can be used"
    if all(_IMAGE.fullmatch(cell) for cell in column.cells):
        return 'image files; kind = "image" with backbone = "lite0:96" uses them'
    if len(column.cells) > MOST_VALUES and _mostly(_SENTENCE, column):
        return 'texts; kind = "text" with backbone = "minilm" uses them'
    if all(_NESTED.fullmatch(cell) for cell in column.cells):
        return "lists; one number or text a cell can be used"
    hints = Counter(hint for cell in column.cells if (hint := column.notation.instead(cell)))
    if hints.total() > 0.5 * len(column.cells):
        # Such a column would otherwise be ignored as texts, and the model would silently lack it.
        hint, _ = hints.most_common(1)[0]
        mark = "point" if column.notation.decimal == "." else "comma"
        found = next(cell for cell in column.cells if column.notation.instead(cell) == hint)
        raise InvalidData(f"column {column.name!r}: expected numbers with a decimal {mark}, got {found}{hint}")
    return ""


def _mostly(form: "re.Pattern[str]", column: Seen) -> bool:
    return sum(form.fullmatch(cell) is not None for cell in column.cells) > 0.5 * len(column.cells)


def _listed(texts: Iterable[Any]) -> str:
    return ", ".join(_quoted(str(text)) for text in texts)


def _quoted(text: str) -> str:
    """Return a text as TOML has it, which differs from JSON in a single control character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007F")


_SETTING = re.compile(r"\s*parties\s*=")
_STUDY = re.compile(r"^[ \t]*\[[ \t]*study[ \t]*\][ \t]*(#.*)?$", re.MULTILINE)
_TABLE = re.compile(r"\s*\[\s*(study\s*\.\s*)?parties\s*\]\s*(#.*)?")


def with_keys(text: str, keys: Mapping[str, str], *, where: str = "study") -> str:
    """Return a study file's text with these parties' keys in `[parties]`, at its end.

    Raises for a name that the study does not list, if it lists any. Raises also for a second key of a party: files
    signed with the first would no longer count.
    """
    study = Study.parse(text, where=where)
    parties = dict(study.parties)
    for name, key in keys.items():
        if study.parties and name not in study.parties:
            hint = f" ({found})" if (found := did_you_mean(name, study.parties)) else ""
            raise InvalidData(
                f"{where}: party {name!r} is not listed in study {study.name!r}{hint}; before the first summary add it "
                "to the file's parties, and afterwards leave the file as it is: fedgram amend STORE --add"
            )
        if parties.get(name) not in (None, "", key):
            raise InvalidData(
                f"{where} has another key of {name!r} already: before the first summary take that line out, if the new "
                "one is right, and afterwards leave the file as it is: fedgram amend STORE --rotate"
            )
        parties[name] = key
    lines = [f"{json.dumps(name, ensure_ascii=False)} = {json.dumps(key)}" for name, key in parties.items()]
    table = "\n".join(["[parties]", *lines])
    made = f"{_without_parties(text).rstrip()}\n\n{table}\n"
    if Study.parse(made, where=where) != replace(study, parties=parties):
        raise InvalidData(f"{where} is written in a way that cannot be edited here: put this at its end:\n{table}")
    return made


def with_coordinator(text: str, key: str, *, where: str = "study") -> str:
    """Return a study file's text with the coordinator's key in `[study]`; another one that is there is refused."""
    study = Study.parse(text, where=where)
    if study.coordinator not in ("", key):
        raise InvalidData(f"{where} names another coordinator already: take that line out, if the new one is right")
    if study.coordinator:
        return text
    setting = f"coordinator = {json.dumps(key)}"
    made = _STUDY.sub(lambda found: f"{found[0]}\n{setting}", text, count=1)
    if Study.parse(made, where=where) != replace(study, coordinator=key):
        raise InvalidData(f"{where} is written in a way that cannot be edited here: put this into [study]: {setting}")
    return made


def _without_parties(text: str) -> str:
    """Return the text without its parties: a setting of one or more lines, or a table."""
    lines = text.splitlines(keepends=True)
    for start, line in enumerate(lines):
        if _SETTING.match(line):
            ends = (end for end in range(start + 1, len(lines) + 1) if _is_toml("".join(lines[start:end])))
            return "".join(lines[:start] + lines[next(ends, start + 1) :])
        if _TABLE.fullmatch(line.rstrip("\n")):
            ends = (end for end in range(start + 1, len(lines)) if lines[end].lstrip().startswith("["))
            end = next(ends, len(lines))
            comments = [line for line in lines[start + 1 : end] if line.lstrip()[:1] in ("", "#")]
            return "".join(lines[:start] + comments + lines[end:])
    return text


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True

"""Some rows of a table by column: numbers as arrays, texts by their distinct values; and words for missing values."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array, unmasked
from fedgram.core.errors import InvalidData, InvalidParameter
from fedgram.core.escaping import BLANKS, NUMBER

Mask = npt.NDArray[np.bool_]
# Words of other programs for a missing value, in upper or lower case. "None" is Python's; "none" may be a class.
MISSING = frozenset([
    "", "na", "n/a", "#n/a", "#n/a n/a", "#na", "<na>", "nan", "-nan", "+nan", "null",
    "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan",
])  # fmt: skip

_FOREIGN = "_\x1c\x1d\x1e\x1f"  # characters of ASCII that only Python accepts in a number


def is_missing(text: str) -> bool:
    """Return whether a text stands for a missing value.

    >>> is_missing(" NaN "), is_missing("None"), is_missing("none")
    (True, True, False)
    """
    stripped = text.strip()
    return stripped.lower() in MISSING or stripped == "None"


@dataclass(frozen=True)
class Notation:
    """The notation of numbers in a table. It belongs to a party's file, and is not part of a study.

    Parameters
    ----------
    decimal
        Decimal mark: "." or ",".
    thousands
        Mark between groups of three digits: "", ".", ",", " " or "'". A number may do without it.

    Examples
    --------
    >>> Notation(",", ".").plain("1.234,5"), Notation(",", ".").plain("1.5"), Notation(",").plain("-1,5e3")
    ('1234.5', '', '-1.5e3')

    """

    decimal: str = "."
    thousands: str = ""

    def __post_init__(self) -> None:
        """Raise for marks that cannot be told apart."""
        for name, mark, known in (("decimal", self.decimal, (".", ",")), ("thousands", self.thousands, _GROUPING)):
            if mark not in known:
                raise InvalidParameter(f"{name}: expected one of {', '.join(map(repr, known))}, got {mark!r}")
        if self.decimal == self.thousands:
            other = "," if self.decimal == "." else "."
            raise InvalidParameter(
                f"decimal and thousands: expected two marks, got {self.decimal!r} for both; give --decimal {other} if "
                "that is the decimal mark"
            )

    @cached_property
    def _form(self) -> "re.Pattern[str]":
        grouped = f"|[0-9]{{1,3}}(?:{_GROUPING[self.thousands]}[0-9]{{3}})+" if self.thousands else ""
        whole, rest = f"[0-9]+{grouped}", rf"(?:{re.escape(self.decimal)}([0-9]*))?"
        return re.compile(rf"([+-]?)({whole})?{rest}(e[+-]?[0-9]+)?", re.IGNORECASE)

    def plain(self, text: str) -> str:
        """Return the text of a number with a decimal point and no other marks, "" if it is not written this way."""
        if self == POINT or not any(letter.isdigit() for letter in text):
            return text  # an infinity is written alike everywhere
        found = self._form.fullmatch(text)
        if found is None:
            return ""
        sign, whole, rest, power = (part or "" for part in found.groups())
        return f"{sign}{re.sub('[^0-9]', '', whole)}{rest and '.'}{rest}{power}"

    def texts(self, cells: "Coded") -> "Coded":
        """Return texts with a decimal point in whole numbers that have a decimal comma, as some codes do: 1.0 for 1,0.

        >>> Notation(",").texts(Coded.of(["1,0", "a,0", "1,5"])).values
        ['1.0', 'a,0', '1,5']
        """
        if self.decimal == ".":
            return cells
        return Coded([_WHOLE_WITH_COMMA.sub(r"\1.\2", value) for value in cells.values], cells.codes)

    def instead(self, cell: str) -> str:
        """Return a question about another notation in which the cell would be a number, "" if there is none.

        >>> POINT.instead("3,5"), POINT.instead("3.5"), POINT.instead("high")
        (' (a decimal comma? read the table with --decimal ,)', '', '')
        >>> POINT.instead("1.234,5")
        ' (a decimal comma? read the table with --decimal , --thousands .)'
        """
        if number_of(cell, self) is not None:
            return ""
        for decimal, thousands in _NOTATIONS:
            if number_of(cell, Notation(decimal, thousands)) is not None:
                shown = thousands if thousands in ".," else f'"{thousands}"'
                options = f"--decimal {decimal}" + (f" --thousands {shown}" if thousands else "")
                return f" (a decimal {'comma' if decimal == ',' else 'point'}? read the table with {options})"
        return ""


_GROUPING = {"": "", ".": r"\.", ",": ",", " ": "[ \u00a0\u2009\u202f]", "'": "['\u2019]"}
_NOTATIONS = [(decimal, mark) for mark in _GROUPING for decimal in (",", ".") if decimal != mark]
_WHOLE_WITH_COMMA = re.compile(r"\A(-?[0-9]+),(0*)\Z")
POINT = Notation()


@dataclass(frozen=True, eq=False)
class Coded:
    """A column of texts: row i has `values[codes[i]]`. Functions are called once per value, not per row.

    >>> column = Coded.of(["F", "M", "F"])
    >>> column.values, column[2], column.map(str.lower, object)
    (('F', 'M'), 'F', array(['f', 'm', 'f'], dtype=object))
    """

    values: Sequence[str]
    codes: npt.NDArray[np.integer[Any]]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Coded":
        """Return a column of these texts."""
        seen: dict[str, int] = {}
        codes = np.fromiter((seen.setdefault(text, len(seen)) for text in texts), np.int64)
        return cls(tuple(seen), codes)

    @classmethod
    def joined(cls, parts: "Sequence[Coded]") -> "Coded":
        """Return the columns one below the other, with distinct values and codes of the smallest sufficient type."""
        seen: dict[str, int] = {}
        for part in parts:
            for text in part.values:
                seen.setdefault(text, len(seen))
        kind = np.min_scalar_type(len(seen))
        codes = [part.map(seen.__getitem__, kind) for part in parts]
        return cls(tuple(seen), np.concatenate([np.zeros(0, dtype=kind), *codes]))

    def compact(self) -> "Coded":
        """Return the same column with codes of the smallest sufficient type."""
        return Coded(self.values, self.codes.astype(np.min_scalar_type(len(self.values))))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str:
        return self.values[int(self.codes[row])]

    def map(self, function: Callable[[str], Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return a function's value for the text of each row."""
        answers = np.array([function(value) for value in self.values], dtype=dtype)
        return np.asarray(answers[self.codes])

    def rows(self, chosen: slice | Mask) -> "Coded":
        """Return some of the rows."""
        return Coded(self.values, self.codes[chosen])

    def stripped(self) -> "Coded":
        """Return the texts without blanks around them."""
        return Coded([value.strip() for value in self.values], self.codes)

    def counts(self) -> dict[str, int]:
        """Return the number of rows of each text that occurs."""
        found: dict[str, int] = {}
        for value, count in zip(self.values, np.bincount(self.codes, minlength=len(self.values)).tolist(), strict=True):
            if count:
                found[value] = found.get(value, 0) + count
        return found

    def tolist(self) -> list[str]:
        """Return the text of each row."""
        return [self.values[code] for code in self.codes.tolist()]


@dataclass(frozen=True)
class Block:
    """Some rows of a table. `start` is the number of the first among all rows.

    Numbers are NaN if missing, may be infinite, and must not be written to. `bad` marks cells that should be numbers
    and are not; `odd` has all cells of such a column as texts. `ragged` marks rows with more or fewer cells
    than there are columns. `share` of the table has been read so far.
    """

    start: int
    rows: int
    numbers: dict[str, Array]
    texts: dict[str, Coded]
    bad: dict[str, Mask] = field(default_factory=dict)
    ragged: Mask | None = None
    share: float = 1.0
    odd: dict[str, Coded] = field(default_factory=dict)

    def with_numbers_of(self, names: Sequence[str], notation: Notation = POINT) -> "Block":
        """Return the block with some columns of texts also as numbers."""
        read = {name: parse_numbers(self.texts[name].values, notation) for name in names}
        codes = {name: self.texts[name].codes for name in names}
        numbers = {name: values[codes[name]] for name, (values, _) in read.items()}
        bad = {name: wrong[codes[name]] for name, (_, wrong) in read.items() if wrong.any()}
        if self.ragged is not None:
            bad |= {name: bad.get(name, False) | self.ragged for name in names}
        odd = {name: self.texts[name] for name in bad}
        return replace(self, numbers=self.numbers | numbers, bad=self.bad | bad, odd=self.odd | odd)


def number_of(text: str, notation: Notation = POINT) -> float | None:
    """Return the number that a cell holds, None if it does not hold one. Every table is read by this rule.

    A number is a sign, ASCII digits with a point, and an exponent, all but some digits optional, with blanks around it;
    or a signed infinity, "inf" or "infinity". This is what pyarrow and pandas take for a number.

    >>> number_of(" -1.5e3"), number_of(".5"), number_of("Inf"), number_of("1_000"), number_of("１２"), number_of("NaN")
    (-1500.0, 0.5, inf, None, None, None)
    """
    stripped = notation.plain(text.strip(BLANKS))
    return float(stripped) if NUMBER.fullmatch(stripped) else None


def parse_numbers(texts: Iterable[str], notation: Notation = POINT) -> tuple[Array, Mask]:
    """Return texts as numbers, NaN if missing, and the mask of texts that are not finite numbers.

    >>> parse_numbers(["1.5", " NA", "ill", "inf"])
    (array([1.5, nan, nan, nan]), array([False, False,  True,  True]))
    """
    values = [float("nan") if is_missing(text) else number_of(text, notation) for text in texts]
    bad = np.array([value is None or np.isinf(value) for value in values], dtype=bool)
    return np.where(bad, np.nan, np.array(values, dtype=np.float64)), bad


def column_of_numbers(cells: Sequence[str], notation: Notation, *, clean: bool) -> tuple[Array, Mask | None]:
    """Return the result of `parse_numbers`; faster, and with infinite numbers kept, if all cells are `clean` numbers.

    `clean` says that no cell has a character that only Python accepts in a number, see `is_clean`.
    """
    if not clean or notation != POINT:
        return parse_numbers(cells, notation)
    try:
        return np.fromiter(map(float, cells), np.float64, len(cells)), None
    except ValueError:
        return parse_numbers(cells)


def is_clean(text: str) -> bool:
    """Return whether `float` and `number_of` agree on all numbers made of the characters of a text.

    >>> is_clean("1.5,+7"), is_clean("1_000"), is_clean("１２")
    (True, False, False)
    """
    return text.isascii() and not any(mark in text for mark in _FOREIGN)


Numbers: TypeAlias = tuple[Array, Mask | None, Coded | None]  # values; cells that are not numbers; those cells' texts


def block_of(start: int, rows: int, numbers: dict[str, Numbers], texts: dict[str, Coded], **more: Any) -> Block:
    """Return a block of columns that have been read."""
    bad = {name: marked for name, (_, marked, _) in numbers.items() if marked is not None and marked.any()}
    odd = {name: cells for name, (_, _, cells) in numbers.items() if name in bad and cells is not None}
    values = {name: column for name, (column, _, _) in numbers.items()}
    return Block(start, rows, values, texts, bad, odd=odd, **more)


def arrow_block(
    start: int, batch: Any, numbers: Iterable[str], texts: Iterable[str], notation: Notation = POINT, *, share: float
) -> Block:
    """Return a record batch of Arrow as a block; numbers without nulls are not copied."""
    return block_of(
        start,
        batch.num_rows,
        {name: _arrow_numbers(batch.column(name), notation) for name in numbers},
        {name: _arrow_texts(batch.column(name)) for name in texts},
        share=share,
    )


def _arrow_numbers(column: Any, notation: Notation) -> Numbers:
    import pyarrow as pa

    kind = column.type
    try:
        if pa.types.is_boolean(kind):
            column = column.cast(pa.float64())
        elif pa.types.is_string(kind) and notation == POINT:
            numbers = column.cast(pa.float64())
            values = numbers.to_numpy(zero_copy_only=False)
            # More NaN than missing values would mean that pyarrow has taken a text such as "nan(7)" for a number.
            if np.count_nonzero(np.isnan(values)) == numbers.null_count:
                return values, None, None
    except pa.ArrowInvalid:
        pass
    if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
        return column.to_numpy(zero_copy_only=False).astype(np.float64, copy=False), None, None
    cells = _arrow_texts(column)
    values, bad = parse_numbers(cells.values, notation)
    return values[cells.codes], bad[cells.codes], cells


def _arrow_texts(column: Any) -> Coded:
    import pyarrow as pa

    column = _with_plain_texts(column)
    if pa.types.is_nested(column.type):  # lists and tables in cells, which have no dictionary
        return Coded.of("" if _is_nothing(value) else str(value) for value in column.to_pylist())
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    elif len(column.dictionary) > len(column):  # maybe that of a whole row group, with values from elsewhere
        column = column.dictionary_decode().dictionary_encode()
    values = ["" if _is_nothing(value) else str(value) for value in column.dictionary.to_pylist()]
    codes = column.indices
    if codes.null_count:
        codes, values = codes.fill_null(len(values)), [*values, ""]
    places = codes.to_numpy(zero_copy_only=False)
    if len(places) and not 0 <= places.min() <= places.max() < len(values):
        raise pa.ArrowInvalid("a cell has a text that the column's dictionary does not have")
    return Coded(values, places)


def _with_plain_texts(column: Any) -> Any:
    """Return a column of times or bytes as texts, without Python objects, which cannot represent all of them."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind) and not pa.types.is_nested(kind.value_type):
        values = _with_plain_texts(column.dictionary)
        return column if values is column.dictionary else pa.DictionaryArray.from_arrays(column.indices, values)
    if pa.types.is_duration(kind):
        numbers = column.cast(pa.int64()).to_pylist()
        return pa.array([None if number is None else f"{number} {kind.unit}" for number in numbers], pa.string())
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp(kind.unit)).cast(pa.string())  # without its zone: in UTC
    others = (pa.types.is_date, pa.types.is_time, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string_view)
    if not any(is_one(kind) for is_one in others):
        return column
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        raise InvalidData("the table has a column of bytes that are not UTF-8 text: write texts or numbers") from None


def column_numbers(column: Any, notation: Notation) -> Numbers:
    """Return a column of a table in memory as numbers."""
    values = np.asarray(unmasked(column, "a column of the table"))
    if values.ndim == 1 and values.dtype.kind in "fiub":
        return values.astype(np.float64, copy=False), None, None
    cells = column_texts(column)
    values, bad = parse_numbers(cells.values, notation)
    return values[cells.codes], bad[cells.codes], cells


def column_texts(column: Any) -> Coded:
    """Return a column of a table in memory as texts."""
    cells = np.asarray(unmasked(column, "a column of the table"))
    if cells.dtype.kind in "mM":  # times, which would be whole numbers of nanoseconds
        return Coded.of("" if np.isnat(cell) else str(cell) for cell in cells)
    cells = np.asarray(column, dtype=object).tolist()
    return Coded.of("" if _is_nothing(cell) else str(cell) for cell in cells)


def _is_nothing(cell: Any) -> bool:
    return cell is None or (isinstance(cell, float) and np.isnan(cell))

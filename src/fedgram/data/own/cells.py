"""Some rows of a table by column: numbers as arrays, texts by their distinct values; and what counts as nothing."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array, unmasked
from fedgram.core.errors import InvalidData

Mask = npt.NDArray[np.bool_]
# How others write that nothing is there, in any case. "None" is Python's word for it; "none" may well be a class.
MISSING = frozenset([
    "", "na", "n/a", "#n/a", "#n/a n/a", "#na", "<na>", "nan", "-nan", "+nan", "null",
    "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan",
])  # fmt: skip

_NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf|infinity)", re.IGNORECASE)
_FORMULA = re.compile(r"'*(?:\s*[=+\-@＝＋－＠].|[\t\r\n])", re.DOTALL)  # a lone sign is not one
_BLANKS = " \t\n\r\f\v"
_FOREIGN = "_\x1c\x1d\x1e\x1f"  # of ASCII, what Python alone takes for part of a number


def is_missing(text: str) -> bool:
    """Say whether a text means that nothing is there.

    >>> is_missing(" NaN "), is_missing("None"), is_missing("none")
    (True, True, False)
    """
    stripped = text.strip()
    return stripped.lower() in MISSING or stripped == "None"


@dataclass(frozen=True, eq=False)
class Coded:
    """A column of texts: row i has `values[codes[i]]`. A question about a text is asked once per value, not per row.

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
        """Return the columns one below the other, each text once among the values, and codes in as few bytes as do."""
        seen: dict[str, int] = {}
        for part in parts:
            for text in part.values:
                seen.setdefault(text, len(seen))
        kind = np.min_scalar_type(len(seen))
        codes = [part.map(seen.__getitem__, kind) for part in parts]
        return cls(tuple(seen), np.concatenate([np.zeros(0, dtype=kind), *codes]))

    def compact(self) -> "Coded":
        """Return the same column with codes in as few bytes as do."""
        return Coded(self.values, self.codes.astype(np.min_scalar_type(len(self.values))))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str:
        return self.values[int(self.codes[row])]

    def map(self, function: Callable[[str], Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return what a function says of the text of each row."""
        answers = np.array([function(value) for value in self.values], dtype=dtype)
        return np.asarray(answers[self.codes])

    def rows(self, chosen: slice | Mask) -> "Coded":
        """Return some of the rows."""
        return Coded(self.values, self.codes[chosen])

    def stripped(self) -> "Coded":
        """Return the texts without blanks around them."""
        return Coded([value.strip() for value in self.values], self.codes)

    def counts(self) -> dict[str, int]:
        """Return how many rows have each text that occurs."""
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
    """Some rows of a table. `start` is the place of the first among all.

    Numbers are NaN where nothing is there, may be infinite, and must not be written to. `bad` marks cells that should
    be numbers and are none, `ragged` rows with more or fewer cells than there are columns. `share` of the table has
    been read so far.
    """

    start: int
    rows: int
    numbers: dict[str, Array]
    texts: dict[str, Coded]
    bad: dict[str, Mask] = field(default_factory=dict)
    ragged: Mask | None = None
    share: float = 1.0

    def with_numbers_of(self, names: Sequence[str]) -> "Block":
        """Return the block with some columns of texts also as numbers."""
        read = {name: parse_numbers(self.texts[name].values) for name in names}
        codes = {name: self.texts[name].codes for name in names}
        numbers = {name: values[codes[name]] for name, (values, _) in read.items()}
        bad = {name: wrong[codes[name]] for name, (_, wrong) in read.items() if wrong.any()}
        if self.ragged is not None:
            bad |= {name: bad.get(name, False) | self.ragged for name in names}
        return replace(self, numbers=self.numbers | numbers, bad=self.bad | bad)


def number_of(text: str) -> float | None:
    """Return the number that a cell holds, None if it does not hold one. Every table is read by this rule.

    A number is a sign, ASCII digits with a point, and an exponent, all but some digits optional, with blanks around it;
    or a signed infinity, "inf" or "infinity". This is what pyarrow and pandas take for a number.

    >>> number_of(" -1.5e3"), number_of(".5"), number_of("Inf"), number_of("1_000"), number_of("１２"), number_of("NaN")
    (-1500.0, 0.5, inf, None, None, None)
    """
    stripped = text.strip(_BLANKS)
    return float(stripped) if _NUMBER.fullmatch(stripped) else None


def guarded(text: str) -> str:
    """Return a text as a cell of a CSV file that fedgram writes: with an apostrophe in front of what may be a formula.

    A spreadsheet would compute a cell that begins with =, +, - or @, and a formula can start programs. Numbers stay as
    they are. `unguarded` takes the apostrophe away again.

    >>> guarded("=1+1"), guarded("-1.5"), guarded("-"), guarded("'=1"), guarded("W-7")
    ("'=1+1", '-1.5', '-', "''=1", 'W-7')
    """
    return f"'{text}" if _FORMULA.match(text) and number_of(text) is None else text


def unguarded(text: str) -> str:
    """Return the text that `guarded` has made a cell of.

    >>> [unguarded(guarded(text)) for text in ("=1+1", "-1.5", "'=1", "'n")]
    ['=1+1', '-1.5', "'=1", "'n"]
    """
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def parse_numbers(texts: Iterable[str]) -> tuple[Array, Mask]:
    """Return texts as numbers, NaN where nothing is there, and which of them are not finite numbers.

    >>> parse_numbers(["1.5", " NA", "ill", "inf"])
    (array([1.5, nan, nan, nan]), array([False, False,  True,  True]))
    """
    values = [float("nan") if is_missing(text) else number_of(text) for text in texts]
    bad = np.array([value is None or np.isinf(value) for value in values], dtype=bool)
    return np.where(bad, np.nan, np.array(values, dtype=np.float64)), bad


def column_of_numbers(cells: Sequence[str], *, clean: bool) -> tuple[Array, Mask | None]:
    """Do the same faster where all cells are numbers, which may then be infinite, and `clean`.

    That means that they have no character that Python alone takes for part of a number, see `is_clean`.
    """
    if not clean:
        return parse_numbers(cells)
    try:
        return np.fromiter(map(float, cells), np.float64, len(cells)), None
    except ValueError:
        return parse_numbers(cells)


def is_clean(text: str) -> bool:
    """Say whether a text has only characters for which `float` and `number_of` agree on what a number is.

    >>> is_clean("1.5,+7"), is_clean("1_000"), is_clean("１２")
    (True, False, False)
    """
    return text.isascii() and not any(mark in text for mark in _FOREIGN)


def block_of(
    start: int, rows: int, numbers: dict[str, tuple[Array, Mask | None]], texts: dict[str, Coded], **more: Any
) -> Block:
    """Return a block of columns that have been read, each number with what is none, or None where all are numbers."""
    bad = {name: marked for name, (_, marked) in numbers.items() if marked is not None and marked.any()}
    return Block(start, rows, {name: values for name, (values, _) in numbers.items()}, texts, bad, **more)


def arrow_block(start: int, batch: Any, numbers: Iterable[str], texts: Iterable[str], *, share: float) -> Block:
    """Return a record batch of Arrow as a block; numbers without nulls are not copied."""
    return block_of(
        start,
        batch.num_rows,
        {name: _arrow_numbers(batch.column(name)) for name in numbers},
        {name: _arrow_texts(batch.column(name)) for name in texts},
        share=share,
    )


def _arrow_numbers(column: Any) -> tuple[Array, Mask | None]:
    import pyarrow as pa

    kind = column.type
    try:
        if pa.types.is_boolean(kind):
            column = column.cast(pa.float64())
        elif pa.types.is_string(kind):
            numbers = column.cast(pa.float64())
            values = numbers.to_numpy(zero_copy_only=False)
            # More that are not numbers than were missing: pyarrow takes "nan(7)" for one.
            if np.count_nonzero(np.isnan(values)) == numbers.null_count:
                return values, None
    except pa.ArrowInvalid:
        pass
    if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
        return column.to_numpy(zero_copy_only=False).astype(np.float64, copy=False), None
    cells = _arrow_texts(column)
    values, bad = parse_numbers(cells.values)
    return values[cells.codes], bad[cells.codes]


def _arrow_texts(column: Any) -> Coded:
    import pyarrow as pa

    column = _with_plain_texts(column)
    if pa.types.is_nested(column.type):  # lists and tables in cells, which have no dictionary
        return Coded.of("" if _is_nothing(value) else str(value) for value in column.to_pylist())
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    elif len(column.dictionary) > len(column):  # of a whole row group, maybe: most of it does not occur here
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
    """Return a column of times, or of bytes, as texts; Python may have no object for one, and no time zones."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind) and not pa.types.is_nested(kind.value_type):
        values = _with_plain_texts(column.dictionary)
        return column if values is column.dictionary else pa.DictionaryArray.from_arrays(column.indices, values)
    if pa.types.is_duration(kind):
        numbers = column.cast(pa.int64()).to_pylist()
        return pa.array([None if number is None else f"{number} {kind.unit}" for number in numbers], pa.string())
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp(kind.unit)).cast(pa.string())  # without its zone: as it is in UTC
    others = (pa.types.is_date, pa.types.is_time, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string_view)
    if not any(is_one(kind) for is_one in others):
        return column
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        raise InvalidData("the table has a column of bytes that are no UTF-8 text: write texts or numbers") from None


def column_numbers(column: Any) -> tuple[Array, Mask | None]:
    """Return a column of a table in memory as numbers."""
    values = np.asarray(unmasked(column, "a column of the table"))
    if values.ndim == 1 and values.dtype.kind in "fiub":
        return values.astype(np.float64, copy=False), None
    return parse_numbers(column_texts(column).tolist())


def column_texts(column: Any) -> Coded:
    """Return a column of a table in memory as texts."""
    cells = np.asarray(unmasked(column, "a column of the table"))
    if cells.dtype.kind in "mM":  # times, which would be whole numbers of nanoseconds
        return Coded.of("" if np.isnat(cell) else str(cell) for cell in cells)
    cells = np.asarray(column, dtype=object).tolist()
    return Coded.of("" if _is_nothing(cell) else str(cell) for cell in cells)


def _is_nothing(cell: Any) -> bool:
    return cell is None or (isinstance(cell, float) and np.isnan(cell))

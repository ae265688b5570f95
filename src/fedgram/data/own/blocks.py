"""Tables of any size, read in blocks of rows: CSV, Parquet, and tables in memory.

A block has its columns by name: numbers as float64 with NaN where nothing is there, and texts with "" there. A cell
that should be a number and is none is marked as bad; what becomes of its row is for others to say.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.core.columns import Columns, as_columns, as_table, names_of
from fedgram.core.errors import FedgramError, InvalidData
from fedgram.core.extras import require
from fedgram.data.own.tables import MISSING, is_missing

ROWS, BYTES = 1 << 16, 1 << 24  # of a block
ENCODING = "utf-8-sig"
TEXT_FILES = (".csv", ".tsv", ".txt")
Texts = npt.NDArray[np.object_]


@dataclass(frozen=True)
class Block:
    """Some rows of a table. `start` is the place of the first among all, `bad` marks cells that are no numbers."""

    start: int
    rows: int
    numbers: dict[str, Array]
    texts: dict[str, Texts]
    bad: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)


@dataclass(frozen=True)
class TableFile:
    """A table that can be read in blocks: the names of its columns, and where it comes from."""

    source: Any  # a path, or a table in memory
    names: Columns
    delimiter: str = ","

    @property
    def title(self) -> str:
        """What to call it in a message."""
        return str(self.source) if isinstance(self.source, Path) else "the table"

    def blocks(self, numbers: Sequence[str], texts: Sequence[str]) -> Iterator[Block]:
        """Yield the rows in blocks, with these columns."""
        if not isinstance(self.source, Path):
            yield from _in_memory(self.source, numbers, texts)
        elif self.source.suffix.lower() in TEXT_FILES:
            with _reading(self.source):
                yield from _csv_blocks(self.source, self.names, self.delimiter, numbers, texts)
        else:
            with _reading(self.source):
                yield from _parquet_blocks(self.source, numbers, texts)

    def line(self, place: int) -> str:
        """Say where a row is, for people: by its line in a CSV file, which may have rows of several lines."""
        if not isinstance(self.source, Path) or self.source.suffix.lower() not in TEXT_FILES:
            return f"row {place + 1}"
        with self.source.open(newline="", encoding=ENCODING) as file:
            reader = csv.reader(file, delimiter=self.delimiter)
            next(reader, None)
            before = reader.line_num
            for found, _ in enumerate(row for row in reader if row):
                if found == place:
                    return f"line {before + 1}"
                before = reader.line_num
        return f"row {place + 1}"


def open_table(source: Any) -> TableFile:
    """Return a CSV (or TSV) file, a Parquet file or a table of pandas, polars or Arrow, ready to be read in blocks."""
    if isinstance(source, str | Path):
        return _open_file(Path(source).expanduser())
    table = as_table(source)
    names = names_of(table)
    if not names:
        raise InvalidData(
            f"a table with named columns is wanted (a file, or one of pandas, polars or Arrow), got a "
            f"{type(source).__name__}"
        )
    return TableFile(table, names)


def _open_file(path: Path) -> TableFile:
    suffix = path.suffix.lower()
    with _reading(path):
        if suffix in TEXT_FILES:
            with path.open(newline="", encoding=ENCODING) as file:
                first = file.readline()
            delimiter = max(",;\t", key=first.count)
            header = next(csv.reader([first], delimiter=delimiter), [])
            if not header:
                raise InvalidData(f"{path} is empty: a table begins with a line of column names")
            _check_delimiter(path, header, first, delimiter)
            return TableFile(path, _named(header, path), delimiter)
        if suffix in (".parquet", ".pq"):
            pq = require("pyarrow.parquet", "tables", "reading Parquet")
            with path.open("rb") as raw, pq.ParquetFile(raw) as parquet:
                return TableFile(path, _named(parquet.schema_arrow.names, path))
    raise InvalidData(f"{path} is no table: give a .csv, .tsv or .parquet file")


def _named(header: Iterable[str], path: Path) -> Columns:
    try:
        return as_columns(name.strip() for name in header)
    except InvalidData as error:
        raise InvalidData(f"{path}: {error}") from None


def _check_delimiter(path: Path, header: Sequence[str], first: str, delimiter: str) -> None:
    """Refuse a header in which two delimiters compete: whichever were taken, columns would be glued together."""
    for other in set(",;\t") - {delimiter}:
        if first.count(other) and any(name.count(other) for name in header):
            shown = {",": "commas", ";": "semicolons", "\t": "tabs"}
            raise InvalidData(
                f"{path}: the header has {shown[delimiter]} and {shown[other]} between its names: save the table "
                f"with one of them, or put quotation marks around names that hold {shown[other]}"
            )


class _reading:  # noqa: N801 - used like a function
    """Turns whatever a damaged file raises into one sentence."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if error is None or isinstance(error, FedgramError | KeyboardInterrupt | GeneratorExit):
            return
        if isinstance(error, UnicodeDecodeError):
            raise InvalidData(f"{self._path} is not UTF-8 text ({error.reason}): save it as UTF-8") from error
        if isinstance(error, OSError) and not type(error).__module__.startswith("pyarrow"):
            raise InvalidData(f"cannot read {self._path}: {error.strerror or error}") from error
        if isinstance(error, Exception):
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            raise InvalidData(f"{self._path} cannot be read as a table ({reason})") from error


def _in_memory(table: Any, numbers: Sequence[str], texts: Sequence[str]) -> Iterator[Block]:
    n = len(table)
    found = {name: _column_numbers(table[name]) for name in numbers}
    yield Block(
        0,
        n,
        {name: values for name, (values, _) in found.items()},
        {name: _column_texts(table[name]) for name in texts},
        {name: bad for name, (_, bad) in found.items() if bad.any()},
    )


def _column_numbers(column: Any) -> tuple[Array, npt.NDArray[np.bool_]]:
    values = np.asarray(column)
    if values.ndim == 1 and values.dtype.kind in "fiub":
        return values.astype(np.float64), np.zeros(len(values), dtype=bool)
    return parse_numbers(_column_texts(column))


def _column_texts(column: Any) -> Texts:
    values = column.to_pylist() if hasattr(column, "to_pylist") else np.asarray(column, dtype=object).tolist()
    empty = [value is None or (isinstance(value, float) and np.isnan(value)) for value in values]
    return np.array(
        ["" if none else str(value).strip() for value, none in zip(values, empty, strict=True)], dtype=object
    )


def parse_numbers(texts: Iterable[str]) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Return texts as numbers, NaN where nothing is there, and which of them are none.

    >>> parse_numbers(["1.5", " NA", "ill", "inf"])
    (array([1.5, nan, nan, nan]), array([False, False,  True,  True]))
    """
    values = [_number(text) for text in texts]
    bad = np.array([value is None for value in values], dtype=bool)
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64), bad


def _number(text: str) -> float | None:
    if is_missing(text):
        return float("nan")
    try:
        value = float(text)
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def _csv_blocks(
    path: Path, names: Columns, delimiter: str, numbers: Sequence[str], texts: Sequence[str]
) -> Iterator[Block]:
    """Yield blocks read by pyarrow while it can, and by Python's own reader from where it cannot."""
    done = 0
    try:
        for block in _arrow_csv_blocks(path, names, delimiter, numbers, texts):
            yield block
            done += block.rows
    except _CannotRead:
        yield from _plain_csv_blocks(path, names, delimiter, numbers, texts, done)


class _CannotRead(Exception):
    """Pyarrow is not there, or finds a cell that is no number or a row of another length."""


def _arrow_csv_blocks(
    path: Path, names: Columns, delimiter: str, numbers: Sequence[str], texts: Sequence[str]
) -> Iterator[Block]:
    try:
        import pyarrow as pa
        from pyarrow import csv as arrow_csv
    except ImportError:
        raise _CannotRead from None
    convert = arrow_csv.ConvertOptions(
        column_types=dict.fromkeys(numbers, pa.float64()) | dict.fromkeys(texts, pa.string()),
        include_columns=[*numbers, *texts],
        null_values=sorted({form for word in MISSING for form in (word, word.upper(), word.title())} | {"NaN", "None"}),
        strings_can_be_null=False,
    )
    try:
        with path.open("rb") as raw:
            reader = arrow_csv.open_csv(
                raw,
                read_options=arrow_csv.ReadOptions(column_names=list(names), skip_rows=1, block_size=BYTES),
                parse_options=arrow_csv.ParseOptions(delimiter=delimiter),
                convert_options=convert,
            )
            start = 0
            for batch in reader:
                values = {name: np.array(batch.column(name).to_numpy(zero_copy_only=False)) for name in numbers}
                if any(np.isinf(column).any() for column in values.values()):
                    raise _CannotRead
                found = {name: _tidy(batch.column(name).to_pylist()) for name in texts}
                yield Block(start, batch.num_rows, values, found)
                start += batch.num_rows
    except pa.ArrowInvalid:
        raise _CannotRead from None


def _plain_csv_blocks(
    path: Path, names: Columns, delimiter: str, numbers: Sequence[str], texts: Sequence[str], start: int
) -> Iterator[Block]:
    places = {name: place for place, name in enumerate(names)}
    with path.open(newline="", encoding=ENCODING) as file:
        reader = csv.reader(file, delimiter=delimiter)
        next(reader, None)
        rows = islice((row for row in reader if row), start, None)
        while block := list(islice(rows, ROWS)):
            whole = np.array([len(row) == len(names) for row in block])
            cells = [row if len(row) == len(names) else [""] * len(names) for row in block]
            found = {name: parse_numbers(row[places[name]] for row in cells) for name in numbers}
            bad = {name: marked | ~whole for name, (_, marked) in found.items() if (marked | ~whole).any()}
            if not numbers and not whole.all():
                bad = dict.fromkeys(texts, ~whole)
            yield Block(
                start,
                len(block),
                {name: values for name, (values, _) in found.items()},
                {name: _tidy([row[places[name]] for row in cells]) for name in texts},
                bad,
            )
            start += len(block)


def _parquet_blocks(path: Path, numbers: Sequence[str], texts: Sequence[str]) -> Iterator[Block]:
    pa, pq = (require(name, "tables", "reading Parquet") for name in ("pyarrow", "pyarrow.parquet"))
    with path.open("rb") as raw, pq.ParquetFile(raw) as file:
        start = 0
        for batch in file.iter_batches(batch_size=ROWS, columns=[*numbers, *texts]):
            found: dict[str, Array] = {}
            bad: dict[str, npt.NDArray[np.bool_]] = {}
            for name in numbers:
                column = batch.column(name)
                if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
                    found[name] = np.array(column.to_numpy(zero_copy_only=False), dtype=np.float64)
                    marked = np.isinf(found[name])
                else:
                    found[name], marked = parse_numbers(_column_texts(column))
                if marked.any():
                    bad[name] = marked
            yield Block(start, batch.num_rows, found, {name: _column_texts(batch.column(name)) for name in texts}, bad)
            start += batch.num_rows


def _tidy(cells: Iterable[str]) -> Texts:
    return np.array([cell.strip() for cell in cells], dtype=object)

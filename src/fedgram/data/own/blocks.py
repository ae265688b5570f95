"""Tables of any size, read in blocks of rows: CSV, Parquet, and tables in memory.

Bad cells are only marked here; callers decide what becomes of their rows.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.core.arrays import Array, unmasked
from fedgram.core.columns import Columns, as_columns, as_table, names_of
from fedgram.core.errors import FedgramError, InvalidData
from fedgram.core.extras import require
from fedgram.core.filesystem import check_regular, stamp
from fedgram.data.own.cells import (
    POINT,
    Block,
    Notation,
    arrow_block,
    block_of,
    column_numbers,
    column_texts,
    is_missing,
    number_of,
)
from fedgram.data.own.csvfiles import DELIMITERS, Header, csv_blocks, find_rows, first_rows, read_header

ROWS = 1 << 14  # of a block, except for CSV files
GLANCE = 200  # rows by which columns of numbers are told from others
PAGE = 1 << 16  # bytes of a Parquet column that are read at a time; without it, a whole row group would be in memory
SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".numbers")
IS_SPREADSHEET = "is a spreadsheet, which is not read: save it there as 'CSV UTF-8', or as CSV with the encoding UTF-8"
_SPREADSHEET_BYTES = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # with which such files begin, under any name
TEXT_FILES, PARQUET_FILES = (".csv", ".tsv", ".txt"), (".parquet", ".pq")


@dataclass(frozen=True)
class TableFile:
    """A table that can be read in blocks: the names of its columns, and where it comes from.

    `rows` is the number of rows if it is known beforehand, and `words` has the types of Parquet columns that are not
    numeric. `notation` says how its texts write numbers. A file whose `stamp` shows that it has changed since it was
    opened is refused, because its rows would no longer fit the results of an earlier pass.
    """

    source: Any  # a path, or a table in memory
    names: Columns
    rows: int | None = None
    words: dict[str, str] | None = None
    stamp: tuple[int, int] | None = None
    notation: Notation = POINT

    @property
    def title(self) -> str:
        """The table's name in messages."""
        return str(self.source) if isinstance(self.source, Path) else "the table"

    @property
    def is_csv(self) -> bool:
        """Whether it is a CSV file."""
        return isinstance(self.source, Path) and self.source.suffix.lower() in TEXT_FILES

    def blocks(self, numbers: Sequence[str], texts: Sequence[str]) -> Iterator[Block]:
        """Yield the rows in blocks, with these columns; a column that is wanted as both is read as texts once."""
        if both := [name for name in numbers if name in set(texts)]:
            once = [name for name in numbers if name not in both]
            yield from (block.with_numbers_of(both, self.notation) for block in self.blocks(once, texts))
            return
        if not isinstance(self.source, Path):
            yield from _in_memory(self.source, numbers, texts, self.notation)
            return
        with _reading(self.source):
            self._check_unchanged(self.source)
            read = csv_blocks if self.is_csv else _parquet_blocks
            for block in read(self.source, self.names, numbers, texts, self.notation):
                self._check_unchanged(self.source)
                yield block
            self._check_unchanged(self.source)  # it may have been cut short where a block ended

    def number_like(self) -> list[str]:
        """Return the columns that seem numeric, in CSV files by their first rows, otherwise by their types."""
        if isinstance(self.source, Path) and not self.is_csv:
            return [name for name in self.names if name not in (self.words or {})]
        if not isinstance(self.source, Path):
            return [name for name in self.names if _holds_numbers(self.source[name])]
        with _reading(self.source):
            rows = [row for row in first_rows(self.source, GLANCE) if len(row) == len(self.names)]
        columns = dict(zip(self.names, zip(*rows, strict=True), strict=True)) if rows else {}
        found = {name: [cell for cell in cells if not is_missing(cell)] for name, cells in columns.items()}
        return [
            name
            for name, cells in found.items()
            if cells and all(number_of(cell, self.notation) is not None for cell in cells)
        ]

    def find(self, places: Iterable[int]) -> dict[int, tuple[str, list[str]]]:
        """Return the position of rows for messages, and their raw cells if the file is CSV, in one pass for all.

        `places` are row numbers from 0. The position in a CSV file is a line, because a row may have several lines.
        """
        if not (self.is_csv and isinstance(self.source, Path)):
            return {place: (f"row {place + 1}", []) for place in places}
        with _reading(self.source):
            found = find_rows(self.source, places)
            self._check_unchanged(self.source)
            return {place: (f"line {line}", row) for place, (line, row) in found.items()}

    def changed(self) -> InvalidData:
        """Return the error for a file that has changed since it was opened."""
        return InvalidData(
            f"{self.title} has changed since this run first read it: leave it as it is, and run again"
        ).telling("the table has changed during the run")

    def _check_unchanged(self, path: Path) -> None:
        if not path.exists() or stamp(path) != self.stamp:
            raise self.changed()


def open_table(source: Any, notation: Notation = POINT) -> TableFile:
    r"""Return a CSV (or TSV) file, a Parquet file or a table of pandas, polars or Arrow, ready to be read in blocks.

    The result may be given wherever a table may. That is how a file with decimal commas is read.

    Parameters
    ----------
    source
        A path, or a table in memory. A table that is open already is returned as it is.
    notation
        How the table writes numbers. It does not matter for columns that are numeric by their type.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from fedgram.studies import Study, read_client
    >>> study = Study.parse('''
    ... [study]
    ... name = "s"
    ... outcome = "ill"
    ... classes = ["no", "yes"]
    ... [columns.crp]
    ... kind = "number"''')
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "nord.csv"
    ...     _ = path.write_text("crp;ill\n1.003,5;yes\n4,25;no\n")
    ...     read_client(study, "nord", open_table(path, Notation(",", "."))).x.ravel()
    ...
    array([1003.5 ,    4.25])

    """
    if isinstance(source, TableFile):
        return source
    if isinstance(source, str | Path):
        return replace(_open_file(Path(source).expanduser()), notation=notation)
    table = as_table(source)
    names = names_of(table)
    if not names:
        raise InvalidData(
            f"a table with named columns is wanted (a file, or one of pandas, polars or Arrow), got a "
            f"{type(source).__name__}"
        )
    if not hasattr(table, "__len__"):
        raise InvalidData(f"a {type(source).__name__} has no rows yet: collect it first")
    return TableFile(table, names, len(table), notation=notation)


def stacked(parts: list[Array], columns: int) -> Array:
    """Return blocks of rows as one array (n, columns); the list is emptied meanwhile to save memory."""
    whole = np.empty((sum(map(len, parts)), columns))
    end = len(whole)
    while parts:
        part = parts.pop()
        whole[end - len(part) : end] = part
        end -= len(part)
    return whole


def _open_file(path: Path) -> TableFile:
    suffix = path.suffix.lower()
    with _reading(path):
        check_regular(path)
        now = stamp(path)
        if suffix in TEXT_FILES:
            with path.open("rb") as file:
                if file.read(4) in _SPREADSHEET_BYTES:
                    raise InvalidData(f"{path} {IS_SPREADSHEET}").telling(
                        "the table is a spreadsheet, which is not read"
                    )
            header = read_header(path)
            if not header.names:
                raise InvalidData(f"{path} is empty: a table begins with a line of column names")
            _check_delimiter(path, header)
            return TableFile(path, _named(header.names, path), stamp=now)
        if suffix in PARQUET_FILES:
            pa, pq = (require(name, "tables", "reading Parquet") for name in ("pyarrow", "pyarrow.parquet"))
            with _native(path) as raw, pq.ParquetFile(raw) as parquet:
                names, types = _named(parquet.schema_arrow.names, path), parquet.schema_arrow.types
                words = {
                    name: str(kind)
                    for name, kind in zip(names, types, strict=True)
                    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind))
                }
                return TableFile(path, names, parquet.metadata.num_rows, words, now)
    if suffix in SPREADSHEETS:
        raise InvalidData(f"{path} {IS_SPREADSHEET}").telling("the table is a spreadsheet, which is not read")
    raise InvalidData(f"{path} is not a table: give a .csv, .tsv or .parquet file")


def _named(header: Iterable[str], path: Path) -> Columns:
    try:
        return as_columns(name.strip() for name in header)
    except InvalidData as error:
        raise InvalidData(f"{path}: {error}") from None


def _check_delimiter(path: Path, header: Header) -> None:
    """Raise for a header with two delimiters: by either of them, some columns would not be separated."""
    for other, shown in DELIMITERS.items():
        if other != header.delimiter and other in header.bare:
            raise InvalidData(
                f"{path}: the header has {DELIMITERS[header.delimiter]} and {shown} between its names: save the table "
                f"with one of them, or put quotation marks around names that hold {shown}"
            )


class _reading:  # noqa: N801 - used like a function
    """Context that turns any error from a damaged file into one sentence."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if error is None or isinstance(error, FedgramError | KeyboardInterrupt | GeneratorExit):
            return
        if isinstance(error, UnicodeDecodeError):
            raise InvalidData(
                f"{self._path} is not UTF-8 text ({error.reason}): save it as UTF-8 (in Excel: CSV UTF-8)"
            ) from error
        if isinstance(error, OSError) and error.errno is not None:  # an error of pyarrow has none
            raise InvalidData(f"cannot read {self._path}: {error.strerror or error}") from error
        if isinstance(error, Exception):
            parquet = self._path.suffix.lower() in PARQUET_FILES
            what = "is not a Parquet file that can be read" if parquet else "cannot be read as a table"
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            raise InvalidData(f"{self._path} {what} ({reason}): write it again") from error


def _holds_numbers(column: Any) -> bool:
    return np.asarray(unmasked(column, "a column of the table")).dtype.kind in "iuf"


def _in_memory(table: Any, numbers: Sequence[str], texts: Sequence[str], notation: Notation) -> Iterator[Block]:
    if hasattr(table, "to_batches"):  # Arrow
        start = 0
        for batch in table.select([*numbers, *texts]).to_batches(max_chunksize=ROWS):
            yield arrow_block(start, batch, numbers, texts, notation, share=(start + batch.num_rows) / len(table))
            start += batch.num_rows
        return
    found = {name: column_numbers(table[name], notation) for name in numbers}
    yield block_of(0, len(table), found, {name: column_texts(table[name]) for name in texts})


def _native(path: Path) -> Any:
    """Return a file opened by pyarrow, whose threads would wait for the interpreter with a file of Python."""
    return require("pyarrow", "tables", "reading Parquet").OSFile(os.fsencode(path), "rb")


def _parquet_blocks(
    path: Path, names: Columns, numbers: Sequence[str], texts: Sequence[str], notation: Notation
) -> Iterator[Block]:
    pa, pq = (require(name, "tables", "reading Parquet") for name in ("pyarrow", "pyarrow.parquet"))
    with _native(path) as raw, pq.ParquetFile(raw) as file:
        given = dict(zip(names, file.schema_arrow.names, strict=True))  # in the file, names may have blanks around them
        strings = [given[name] for name in texts if pa.types.is_string(file.schema_arrow.field(given[name]).type)]
    wanted = [*dict.fromkeys([*numbers, *texts])]
    options = {"read_dictionary": strings, "buffer_size": PAGE, "pre_buffer": False}  # else the whole group
    with _native(path) as raw, pq.ParquetFile(raw, **options) as file:
        start, total = 0, max(file.metadata.num_rows, 1)
        for batch in file.iter_batches(ROWS, columns=[given[name] for name in wanted], use_threads=False):
            renamed = pa.RecordBatch.from_arrays([batch.column(given[name]) for name in wanted], names=wanted)
            yield arrow_block(start, renamed, numbers, texts, notation, share=(start + batch.num_rows) / total)
            start += batch.num_rows

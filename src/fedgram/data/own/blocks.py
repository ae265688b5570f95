"""Tables of any size, read in blocks of rows: CSV, Parquet, and tables in memory.

What becomes of a row with a bad cell is for others to say.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.columns import Columns, as_columns, as_table, names_of
from fedgram.core.errors import FedgramError, InvalidData
from fedgram.core.extras import require
from fedgram.core.files import check_regular, stamp
from fedgram.data.own.cells import Block, arrow_block, block_of, column_numbers, column_texts
from fedgram.data.own.csvfiles import DELIMITERS, Header, csv_blocks, find_rows, read_header

ROWS = 1 << 14  # of a block, of a table that is no CSV file
PAGE = 1 << 16  # bytes of a Parquet column that are read at a time; otherwise a whole row group is in memory
TEXT_FILES, PARQUET_FILES = (".csv", ".tsv", ".txt"), (".parquet", ".pq")


@dataclass(frozen=True)
class TableFile:
    """A table that can be read in blocks: the names of its columns, and where it comes from.

    `rows` is their number where that is known beforehand, and `words` says of Parquet's columns which hold no numbers,
    and what they hold. A file that has changed since it was opened, which `stamp` tells, is refused: its rows would no
    longer go with what an earlier pass found.
    """

    source: Any  # a path, or a table in memory
    names: Columns
    rows: int | None = None
    words: dict[str, str] | None = None
    stamp: tuple[int, int] | None = None

    @property
    def title(self) -> str:
        """What to call it in a message."""
        return str(self.source) if isinstance(self.source, Path) else "the table"

    @property
    def is_csv(self) -> bool:
        """Whether it is a file with lines."""
        return isinstance(self.source, Path) and self.source.suffix.lower() in TEXT_FILES

    def blocks(self, numbers: Sequence[str], texts: Sequence[str]) -> Iterator[Block]:
        """Yield the rows in blocks, with these columns; one that is wanted as both is read as texts."""
        if both := [name for name in numbers if name in set(texts)]:
            once = [name for name in numbers if name not in both]
            yield from (block.with_numbers_of(both) for block in self.blocks(once, texts))
            return
        if not isinstance(self.source, Path):
            yield from _in_memory(self.source, numbers, texts)
            return
        with _reading(self.source):
            self._check_unchanged(self.source)
            read = csv_blocks if self.is_csv else _parquet_blocks
            for block in read(self.source, self.names, numbers, texts):
                self._check_unchanged(self.source)
                yield block
            self._check_unchanged(self.source)  # it may have been cut short where a block ended

    def find(self, places: Iterable[int]) -> dict[int, tuple[str, list[str]]]:
        """Return where rows are, for people, and the cells of a CSV file's as they stand, in one pass for all.

        A place is among all rows. Lines are counted in a CSV file, which may have rows of several lines.
        """
        if not (self.is_csv and isinstance(self.source, Path)):
            return {place: (f"row {place + 1}", []) for place in places}
        with _reading(self.source):
            found = find_rows(self.source, places)
            self._check_unchanged(self.source)
            return {place: (f"line {line}", row) for place, (line, row) in found.items()}

    def changed(self) -> InvalidData:
        """Return the error for a file that is not what it was when it was opened."""
        return InvalidData(
            f"{self.title} has changed since this run first read it: leave it as it is, and run again"
        ).telling("the table has changed during the run")

    def _check_unchanged(self, path: Path) -> None:
        if not path.exists() or stamp(path) != self.stamp:
            raise self.changed()


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
    if not hasattr(table, "__len__"):
        raise InvalidData(f"a {type(source).__name__} has no rows yet: collect it first")
    return TableFile(table, names, len(table))


def stacked(parts: list[Array], columns: int) -> Array:
    """Return blocks of rows as one array (n, columns); the list is emptied, so that there is hardly a second copy."""
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
    raise InvalidData(f"{path} is no table: give a .csv, .tsv or .parquet file")


def _named(header: Iterable[str], path: Path) -> Columns:
    try:
        return as_columns(name.strip() for name in header)
    except InvalidData as error:
        raise InvalidData(f"{path}: {error}") from None


def _check_delimiter(path: Path, header: Header) -> None:
    """Refuse a header in which two delimiters compete: whichever were taken, columns would be glued together."""
    for other, shown in DELIMITERS.items():
        if other != header.delimiter and other in header.bare:
            raise InvalidData(
                f"{path}: the header has {DELIMITERS[header.delimiter]} and {shown} between its names: save the table "
                f"with one of them, or put quotation marks around names that hold {shown}"
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
        if isinstance(error, OSError) and error.errno is not None:  # one of pyarrow has none
            raise InvalidData(f"cannot read {self._path}: {error.strerror or error}") from error
        if isinstance(error, Exception):
            parquet = self._path.suffix.lower() in PARQUET_FILES
            what = "is not a Parquet file that can be read" if parquet else "cannot be read as a table"
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            raise InvalidData(f"{self._path} {what} ({reason}): write it again") from error


def _in_memory(table: Any, numbers: Sequence[str], texts: Sequence[str]) -> Iterator[Block]:
    if hasattr(table, "to_batches"):  # Arrow
        start = 0
        for batch in table.select([*numbers, *texts]).to_batches(max_chunksize=ROWS):
            yield arrow_block(start, batch, numbers, texts, share=(start + batch.num_rows) / len(table))
            start += batch.num_rows
        return
    found = {name: column_numbers(table[name]) for name in numbers}
    yield block_of(0, len(table), found, {name: column_texts(table[name]) for name in texts})


def _native(path: Path) -> Any:
    """Open a file for pyarrow, whose threads would wait for the interpreter with one of Python's."""
    return require("pyarrow", "tables", "reading Parquet").OSFile(os.fsencode(path), "rb")


def _parquet_blocks(path: Path, names: Columns, numbers: Sequence[str], texts: Sequence[str]) -> Iterator[Block]:
    pa, pq = (require(name, "tables", "reading Parquet") for name in ("pyarrow", "pyarrow.parquet"))
    with _native(path) as raw, pq.ParquetFile(raw) as file:
        given = dict(zip(names, file.schema_arrow.names, strict=True))  # there, names may have blanks around them
        strings = [given[name] for name in texts if pa.types.is_string(file.schema_arrow.field(given[name]).type)]
    wanted = [*dict.fromkeys([*numbers, *texts])]
    options = {"read_dictionary": strings, "buffer_size": PAGE, "pre_buffer": False}  # that would be the whole group
    with _native(path) as raw, pq.ParquetFile(raw, **options) as file:
        start, total = 0, max(file.metadata.num_rows, 1)
        for batch in file.iter_batches(ROWS, columns=[given[name] for name in wanted], use_threads=False):
            renamed = pa.RecordBatch.from_arrays([batch.column(given[name]) for name in wanted], names=wanted)
            yield arrow_block(start, renamed, numbers, texts, share=(start + batch.num_rows) / total)
            start += batch.num_rows

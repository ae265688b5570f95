"""CSV files, read in pieces that hold whole rows.

Pyarrow reads a piece if it is installed and can; otherwise Python's own reader does, which needs no package and reads
rows of any length. Both agree on what a number is.
"""

import csv
import io
import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import InvalidData
from fedgram.core.filesystem import open_regular
from fedgram.data.own.cells import (
    MISSING,
    POINT,
    Block,
    Coded,
    Mask,
    Notation,
    Numbers,
    arrow_block,
    block_of,
    column_of_numbers,
    is_clean,
)

BYTES = 1 << 22  # size of a piece: large enough that the fixed work per piece costs little
PLAIN = 1 << 17  # size of a piece without pyarrow: a cell as a Python object takes ten times the memory
PARSED = 1 << 20  # bytes that pyarrow parses at a time: they stay in the processor's cache
TAIL = 1 << 12  # bytes at the end of a file that are looked at for lines of empty cells
MOST_BYTES = 1 << 25  # size of a cell in quotation marks; in a longer one the closing mark is missing
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_ENCODING, _ORDER_MARK = "utf-8-sig", b"\xef\xbb\xbf"
_QUOTED = re.compile(r'"[^"]*"')
_MARK = ord('"')
# Quotation marks enclose a cell if they are its first character; elsewhere they stand for themselves, as in 5" pipe.
_CELLS = {
    delimiter: re.compile(rb'"(?:(?<=[%b\r\n]")|(?<=\A"))[^"]*+(?:""[^"]*+)*+("?)' % delimiter.encode())
    for delimiter in DELIMITERS
}
_BESIDE = {delimiter: np.isin(np.arange(256), [*f'{delimiter}\r\n"'.encode()]) for delimiter in DELIMITERS}
_LINE_END = re.compile(rb"\r\n|\r|\n")
_NAN = re.compile(rb"nan\(", re.IGNORECASE)  # which pyarrow takes for a number
_NULLS = sorted({form for word in MISSING for form in (word, word.upper(), word.title())} | {"NaN", "None"})


@dataclass(frozen=True)
class Header:
    """The header of a CSV file: the column names, the delimiter, and the text of its first line or lines."""

    names: tuple[str, ...]
    delimiter: str
    text: str

    @property
    def bare(self) -> str:
        """The text outside of quotation marks."""
        return _QUOTED.sub("", self.text)

    @property
    def lines(self) -> int:
        """The number of lines before the first row: a quoted name may have several."""
        return len(io.StringIO(self.text, newline="").readlines())

    @property
    def newline(self) -> bytes:
        """The last byte of a line's end."""
        return b"\r" if self.text.endswith("\r") else b"\n"


def read_header(path: Path) -> Header:
    """Return the header; comma, semicolon and tab are told apart by which occurs most outside of quotation marks."""
    with io.TextIOWrapper(open_regular(path), _ENCODING, newline="") as file:
        taken = [file.readline()]
        delimiter = max(DELIMITERS, key=_QUOTED.sub("", taken[0]).count)

        def lines() -> Iterator[str]:
            yield taken[0]
            while line := file.readline():
                taken.append(line)
                yield line

        try:
            names = next(csv.reader(lines(), delimiter=delimiter, strict=True), [])
        except csv.Error as error:
            raise _not_closed(path, 1, f"a column name in the header ({error})") from None
    return Header(tuple(names), delimiter, "".join(taken))


def csv_blocks(
    path: Path, names: Sequence[str], numbers: Sequence[str], texts: Sequence[str], notation: Notation = POINT
) -> Iterator[Block]:
    """Yield the rows in blocks, with the columns `numbers` and `texts` out of `names`."""
    header, start = read_header(path), 0
    for piece in _pieces(path, header, _size()):
        found, block = _with_arrow(piece, header.delimiter, names, numbers, texts, notation), None
        if found is not None:
            block = arrow_block(start, found, numbers, texts, notation, share=piece.share)
            if _has_odd_nan(piece, block, found):
                block = None
        if block is None:
            block = _row_by_row(piece, header.delimiter, names, numbers, texts, start, notation)
        yield block
        start += block.rows


def first_rows(path: Path, count: int) -> list[list[str]]:
    """Return the cells of the first rows."""
    return [cells for _, cells in islice(_rows(path), count)]


def find_rows(path: Path, places: Iterable[int]) -> dict[int, tuple[int, list[str]]]:
    """Return the line and the cells of rows, given by number among all rows that are not blank."""
    wanted, found = set(places), {}
    if wanted:
        for place, (line, cells) in enumerate(_rows(path)):
            if place in wanted:
                found[place] = line, cells
                if len(found) == len(wanted):
                    break
    return found


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield each row's first line and cells, split in the same pieces and by the same rules as in `csv_blocks`."""
    header = read_header(path)
    before = header.lines
    for piece in _pieces(path, header, _size()):
        reader = csv.reader(io.StringIO(str(piece.content, "utf-8"), newline=""), delimiter=header.delimiter)
        first = 1
        for cells in reader:
            if cells:
                yield before + first, cells
            first = reader.line_num + 1
        before += reader.line_num


def _size() -> int:
    return min(BYTES, PLAIN) if _arrow() is None else BYTES


@dataclass(frozen=True)
class _Piece:
    """Whole rows of a file: their bytes, valid until the next piece, and the share of the file read so far.

    `marks` holds those of quotation mark, opening parenthesis and carriage return that occur in the bytes.
    """

    content: memoryview
    share: float
    marks: frozenset[bytes]


def _pieces(path: Path, header: Header, size: int) -> Iterator[_Piece]:
    """Yield a file in pieces of whole rows."""
    with open_regular(path) as file:
        total = max(os.fstat(file.fileno()).st_size, 1)
        mark = 3 if file.read(3) == _ORDER_MARK else 0
        start = done = mark + len(header.text.encode())
        stop = _end_of_cells(file, start, header.delimiter)
        file.seek(start)
        buffer, kept = bytearray(size), 0
        while True:
            got = _fill(file, memoryview(buffer)[kept : kept + stop - done])
            end, done = kept + got, done + got
            if not end:
                return
            try:
                marks = _enclosing(buffer, end, header.delimiter)
                if len(marks) % 2 and (not got or end - _opening(marks) >= MOST_BYTES):
                    raise _Unclosed(_opening(marks))
            except _Unclosed as error:
                raise _not_closed(path, _line_of(path, start + error.place), "a cell") from None
            cut = _end_of_rows(buffer, end, header.newline, marks) if got else end
            if cut:
                there = frozenset(mark for mark in (b'"', b"(", b"\r") if buffer.find(mark, 0, cut) >= 0)
                yield _Piece(memoryview(buffer)[:cut], done / total, there)
                buffer[: end - cut] = buffer[cut:end]
                start += cut
            elif end == len(buffer):
                buffer = buffer + bytearray(len(buffer))
            kept = end - cut


class _Unclosed(Exception):
    """A cell whose quotation marks are not closed, by its place in a piece."""

    def __init__(self, place: int) -> None:
        self.place = place


def _not_closed(path: Path, line: int, what: str) -> InvalidData:
    return InvalidData(
        f"{path}, line {line}: expected quotation marks around {what} to be closed before a delimiter or the end of a "
        'line, got other text or the end of the file; close them, or double each mark inside the cell ("")'
    ).telling("the table has quotation marks that are not closed")


def _line_of(path: Path, place: int) -> int:
    """Return the number of the line that has the byte at `place`."""
    end = number = 0
    with io.TextIOWrapper(open_regular(path), "latin-1", newline="") as file:  # a character for each byte
        while end <= place:
            end, number = end + len(file.readline()), number + 1
    return number


def _fill(file: Any, space: memoryview) -> int:
    """Return the number of bytes read into the space: it is full, or the file has ended.

    A network disk may give fewer than asked for. Pieces must not depend on that: every pass has the same blocks.
    """
    end = 0
    while end < len(space) and (got := file.readinto(space[end:])):
        end += got
    return end


def _end_of_cells(file: Any, start: int, delimiter: str) -> int:
    """Return the end of the rows of a file whose first row is at `start`.

    Lines of empty cells at the end are not rows: spreadsheets write them where cells once held something.
    """
    end: int = file.seek(0, os.SEEK_END)
    last = end
    empty = f"{delimiter} \t\r\n".encode()
    while last > start:
        first = max(start, last - TAIL)
        tail = _read_at(file, first, last - first)
        last = first + len(tail.rstrip(empty))
        if last > first:
            break
    if last == start:
        return start
    found = _LINE_END.search(_read_at(file, last, min(end - last, TAIL)))
    return end if found is None else last + found.end()


def _read_at(file: Any, place: int, count: int) -> bytes:
    buffer = bytearray(count)
    file.seek(place)
    return bytes(buffer[: _fill(file, memoryview(buffer))])


def _enclosing(buffer: bytearray, end: int, delimiter: str) -> npt.NDArray[np.int64]:
    """Return the places of the quotation marks that open and close cells, in turn; doubled ones may be among them.

    The buffer begins where a row does. Raises `_Unclosed` for a cell with other text behind its closing mark.
    """
    if buffer.find(b'"', 0, end) < 0:
        return np.zeros(0, dtype=np.int64)
    content = np.frombuffer(buffer, np.uint8, end)
    marks, beside = np.flatnonzero(content == _MARK), _BESIDE[delimiter]
    # Quick check: if opening and closing marks alternate, each is beside a delimiter, a line's end or another mark.
    opening, closing = marks[::2], marks[1::2]
    first, last = int(opening[0] == 0), len(closing) - int(len(closing) > 0 and closing[-1] == end - 1)
    if beside[content[opening[first:] - 1]].all() and beside[content[closing[:last] + 1]].all():
        return marks
    found: list[int] = []
    for cell in _CELLS[delimiter].finditer(buffer, 0, end):
        found.append(cell.start())
        if cell[1]:
            found.append(cell.end() - 1)
            if cell.end() < end and not beside[buffer[cell.end()]]:
                raise _Unclosed(cell.start())
    return np.array(found, dtype=np.int64)


def _opening(marks: npt.NDArray[np.int64]) -> int:
    """Return the start of the cell that the last mark leaves open."""
    place = len(marks) - 1
    while place and marks[place] == marks[place - 1] + 1:  # a doubled one: both stand for one inside the cell
        place -= 2
    return int(marks[place])


def _end_of_rows(buffer: bytearray, end: int, newline: bytes, marks: npt.NDArray[np.int64]) -> int:
    """Return the end of the last whole row: a line's end that no quotation marks enclose."""
    cut = buffer.rfind(newline, 0, end) + 1
    while cut and (before := bisect_left(marks, cut)) % 2:
        cut = buffer.rfind(newline, 0, int(marks[before - 1])) + 1
    return cut


def _arrow() -> tuple[Any, Any] | None:
    """Return pyarrow and its reader of CSV, if they are installed."""
    try:
        import pyarrow as pa
        from pyarrow import csv as arrow_csv
    except ImportError:
        return None
    return pa, arrow_csv


def _with_arrow(
    piece: _Piece,
    delimiter: str,
    names: Sequence[str],
    numbers: Sequence[str],
    texts: Sequence[str],
    notation: Notation,
) -> Any:
    """Return a record batch if pyarrow is there and finds as many cells in every row as there are names."""
    # Pyarrow drops a byte order mark wherever it begins to read; in concatenated files the mark may be part of a cell.
    if (modules := _arrow()) is None or piece.content[:3] == _ORDER_MARK:
        return None
    pa, arrow_csv = modules
    # Bytes in memory, not a Python file: for a Python file pyarrow's threads need the interpreter, and they abort the
    # process if the interpreter has ended meanwhile.
    content = pa.py_buffer(piece.content)
    quoted = b'"' in piece.marks
    # Where a block ends inside of a cell between \r and \n, pyarrow loses the \n.
    size = max(len(content), PARSED) if quoted and b"\r" in piece.marks else PARSED
    # Threads would take a quarter more CPU time: parsed data lie in the cache of another core.
    read = arrow_csv.ReadOptions(column_names=list(names), block_size=size, use_threads=False)
    # Support for rows of several lines costs a seventh of the time; without quotation marks there are no such rows.
    parse = arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=quoted)
    # If a cell is not a number, all cells are read as texts, and only its column is parsed text by text. Pyarrow does
    # not know marks between thousands.
    for kind in (pa.string(),) if notation.thousands else (pa.float64(), pa.string()):
        convert = arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(numbers, kind) | dict.fromkeys(texts, pa.dictionary(pa.int32(), pa.string())),
            include_columns=[*numbers, *texts],
            null_values=_NULLS,
            strings_can_be_null=False,
            decimal_point=notation.decimal,
        )
        try:
            table = arrow_csv.read_csv(
                pa.BufferReader(content), read_options=read, parse_options=parse, convert_options=convert
            )
        except pa.ArrowInvalid as error:
            if "conversion error" not in str(error):
                break
        else:
            [batch] = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
            return batch
    return None


def _has_odd_nan(piece: _Piece, block: Block, batch: Any) -> bool:
    """Return whether pyarrow has taken a text such as "nan(7)" for a number."""
    if b"(" not in piece.marks:
        return False
    for name, values in block.numbers.items():
        bad = block.bad.get(name)
        known = batch.column(name).null_count + (0 if bad is None else np.count_nonzero(bad))
        if np.count_nonzero(np.isnan(values)) > known and _NAN.search(piece.content):
            return True
    return False


def _row_by_row(
    piece: _Piece,
    delimiter: str,
    names: Sequence[str],
    numbers: Sequence[str],
    texts: Sequence[str],
    start: int,
    notation: Notation,
) -> Block:
    text = str(piece.content, "utf-8")
    rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row]
    ragged = np.array([len(row) != len(names) for row in rows], dtype=bool)
    if ragged.any():
        empty = [""] * len(names)
        rows = [row if len(row) == len(names) else empty for row in rows]
    clean = is_clean(text)
    columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(names, ())
    return block_of(
        start,
        len(rows),
        {name: _numbers(columns[name], ragged, notation, clean=clean) for name in numbers},
        {name: Coded.of(columns[name]) for name in texts},
        ragged=ragged if ragged.any() else None,
        share=piece.share,
    )


def _numbers(cells: Sequence[str], ragged: Mask, notation: Notation, *, clean: bool) -> Numbers:
    values, bad = column_of_numbers(cells, notation, clean=clean)
    if bad is None or not bad.any():
        return values, ragged, None
    return values, bad | ragged, Coded.of(cells)

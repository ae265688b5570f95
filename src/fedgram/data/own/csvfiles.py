"""CSV files, read in pieces that hold whole rows.

Pyarrow reads a piece if it is installed and can; otherwise Python's own reader does, which needs nothing and knows rows
of any length. Both agree on what a number is.
"""

import csv
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.core.arrays import Array
from fedgram.data.own.cells import MISSING, Block, Coded, Mask, arrow_block, block_of, parse_numbers

BYTES = 1 << 22  # of a piece: large enough for what is done once for each to cost little
PLAIN = 1 << 17  # of a piece where pyarrow is not there: a cell of Python's takes ten times the memory
PARSED = 1 << 20  # bytes that pyarrow parses at a time: they stay in the processor's cache
MOST_BYTES = 1 << 25  # of a piece whose rows seem to have no end: a quotation mark that nobody closes
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_ENCODING = "utf-8-sig"
_QUOTED = re.compile(r'"[^"]*"')
_NULLS = sorted({form for word in MISSING for form in (word, word.upper(), word.title())} | {"NaN", "None"})


@dataclass(frozen=True)
class Header:
    """How a CSV file begins: the names as they stand, the text that holds them, and how the rest is to be read."""

    names: tuple[str, ...]
    delimiter: str
    text: str

    @property
    def bare(self) -> str:
        """What no quotation marks enclose."""
        return _QUOTED.sub("", self.text)

    @property
    def lines(self) -> int:
        """How many lines there are before the first row: a quoted name may have several."""
        return len(io.StringIO(self.text, newline="").readlines())

    @property
    def newline(self) -> bytes:
        """What ends a line, or is the last of what does."""
        return b"\r" if self.text.endswith("\r") else b"\n"


def read_header(path: Path) -> Header:
    """Return the header; comma, semicolon and tab are told apart by which occurs most outside of quotation marks."""
    with path.open(newline="", encoding=_ENCODING) as file:
        taken = [file.readline()]
        delimiter = max(DELIMITERS, key=_QUOTED.sub("", taken[0]).count)

        def lines() -> Iterator[str]:
            yield taken[0]
            while line := file.readline():
                taken.append(line)
                yield line

        names = next(csv.reader(lines(), delimiter=delimiter), [])
    return Header(tuple(names), delimiter, "".join(taken))


def csv_blocks(path: Path, names: Sequence[str], numbers: Sequence[str], texts: Sequence[str]) -> Iterator[Block]:
    """Yield the rows in blocks, with these columns of those in `names`."""
    header, start = read_header(path), 0
    for piece, share in _pieces(path, header, _size()):
        found = _with_arrow(piece, header.delimiter, names, numbers, texts)
        if found is None:
            block = _row_by_row(piece, header.delimiter, names, numbers, texts, start, share)
        else:
            block = arrow_block(start, found, numbers, texts, share=share)
        yield block
        start += block.rows


def find_rows(path: Path, places: Iterable[int]) -> dict[int, tuple[int, list[str]]]:
    """Return the line and the cells of rows, given by place among all that are not blank."""
    wanted, found = set(places), {}
    if wanted:
        for place, (line, cells) in enumerate(_rows(path)):
            if place in wanted:
                found[place] = line, cells
                if len(found) == len(wanted):
                    break
    return found


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield each row's first line and cells, told apart in the same pieces and by the same rules as they are read."""
    header = read_header(path)
    before = header.lines
    for piece, _ in _pieces(path, header, _size()):
        reader = csv.reader(io.StringIO(str(piece, "utf-8"), newline=""), delimiter=header.delimiter)
        first = 1
        for cells in reader:
            if cells:
                yield before + first, cells
            first = reader.line_num + 1
        before += reader.line_num


def _size() -> int:
    return min(BYTES, PLAIN) if _arrow() is None else BYTES


def _pieces(path: Path, header: Header, size: int) -> Iterator[tuple[memoryview, float]]:
    """Yield pieces of whole rows, each valid until the next, and how much of the file has been read."""
    with path.open("rb", buffering=0) as file:
        total = max(os.fstat(file.fileno()).st_size, 1)
        mark = 3 if file.read(3) == b"\xef\xbb\xbf" else 0
        done = file.seek(mark + len(header.text.encode()))
        buffer, kept = bytearray(size), 0
        while True:
            got = _fill(file, memoryview(buffer)[kept:])
            end, done = kept + got, done + got
            if not end:
                return
            cut = _end_of_rows(buffer, end, header.newline) if got else end
            if cut:
                yield memoryview(buffer)[:cut], done / total
                buffer[: end - cut] = buffer[cut:end]
            elif end == len(buffer):
                buffer = buffer + bytearray(len(buffer))
            kept = end - cut


def _fill(file: io.FileIO, space: memoryview) -> int:
    """Read until the space is full or the file ends; return how many bytes there are.

    A network disk may give fewer than asked for. Pieces must not depend on that: every pass has the same blocks.
    """
    end = 0
    while end < len(space) and (got := file.readinto(space[end:])):
        end += got
    return end


def _end_of_rows(buffer: bytearray, end: int, newline: bytes) -> int:
    """Return where the last whole row ends: at a line's end that no quotation marks enclose."""
    last = cut = buffer.rfind(newline, 0, end) + 1
    if buffer.find(b'"', 0, cut) < 0:
        return cut
    marks = np.frombuffer(buffer, np.uint8, cut) == ord('"')  # where texts are quoted, `count` would take much longer
    enclosed = np.count_nonzero(marks) % 2
    while cut and enclosed:
        before = buffer.rfind(newline, 0, cut - 1) + 1
        enclosed ^= np.count_nonzero(marks[before:cut]) % 2
        cut = before
    return cut if cut or end < MOST_BYTES else last


def _arrow() -> tuple[Any, Any] | None:
    """Return pyarrow and its reader of CSV, if they are installed."""
    try:
        import pyarrow as pa
        from pyarrow import csv as arrow_csv
    except ImportError:
        return None
    return pa, arrow_csv


def _with_arrow(
    piece: memoryview, delimiter: str, names: Sequence[str], numbers: Sequence[str], texts: Sequence[str]
) -> Any:
    """Return a record batch if pyarrow is there and finds as many cells in every row as there are names."""
    if (modules := _arrow()) is None:
        return None
    pa, arrow_csv = modules
    # Bytes in memory, not a file of Python's: pyarrow's threads would ask for the interpreter, and abort the process if
    # that has ended meanwhile.
    content = pa.py_buffer(piece)
    quoted = bool((np.frombuffer(piece, np.uint8) == ord('"')).any())
    # Threads would take a quarter more time in all: what one has parsed is in another one's cache.
    read = arrow_csv.ReadOptions(column_names=list(names), block_size=PARSED, use_threads=False)
    # To look for rows of several lines takes a seventh of the time, and without quotation marks there are none.
    parse = arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=quoted)
    # If a cell is no number, all are read as texts, and only the column that has it is looked at text by text.
    for kind in (pa.float64(), pa.string()):
        convert = arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(numbers, kind) | dict.fromkeys(texts, pa.dictionary(pa.int32(), pa.string())),
            include_columns=[*numbers, *texts],
            null_values=_NULLS,
            strings_can_be_null=False,
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


def _row_by_row(
    piece: memoryview,
    delimiter: str,
    names: Sequence[str],
    numbers: Sequence[str],
    texts: Sequence[str],
    start: int,
    share: float,
) -> Block:
    text = io.StringIO(str(piece, "utf-8"), newline="")
    rows = [row for row in csv.reader(text, delimiter=delimiter) if row]
    ragged = np.array([len(row) != len(names) for row in rows], dtype=bool)
    if ragged.any():
        empty = [""] * len(names)
        rows = [row if len(row) == len(names) else empty for row in rows]
    columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(names, ())
    return block_of(
        start,
        len(rows),
        {name: _numbers(columns[name], ragged) for name in numbers},
        {name: Coded.of(columns[name]) for name in texts},
        ragged=ragged if ragged.any() else None,
        share=share,
    )


def _numbers(cells: Sequence[str], ragged: Mask) -> tuple[Array, Mask]:
    try:
        return np.fromiter(map(float, cells), np.float64, len(cells)), ragged
    except ValueError:
        values, bad = parse_numbers(cells)
        return values, bad | ragged

"""CSV files, read with pyarrow where it is installed.

Only rows that are bad are looked at cell by cell. What pyarrow cannot lay out in rows is left to the reader below,
which needs nothing; both agree on what a number is, and know a bad row's line.
"""

import csv
import math
import os
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import InvalidData
from fedgram.data.own.bad import SHOWN, OnBad, Reason
from fedgram.data.own.tables import Cells, Roles, Table, Wanted, is_missing, table_of

_BLOCK_ROWS = 8192
_ENCODING = "utf-8-sig"
Row = list[str]


def read_csv(path: Path, wanted: Wanted, on_bad: OnBad) -> Table:
    """Read a CSV file with a header line; comma, semicolon and tab are told apart by the header."""
    try:
        with path.open(newline="", encoding=_ENCODING) as file:
            first = file.readline()
            delimiter = max(",;\t", key=first.count)
            roles = Roles.of(next(csv.reader([first], delimiter=delimiter), []), wanted, path)
            cells = _with_arrow(path, roles, delimiter)
            if cells is None:
                cells = _row_by_row(csv.reader(file, delimiter=delimiter), roles)
            return table_of(cells, roles, path, on_bad)
    except UnicodeDecodeError as error:
        raise InvalidData(f"{path} is not UTF-8 text ({error.reason}): save it as UTF-8") from error
    except csv.Error as error:
        raise InvalidData(f"{path} is not a CSV file ({error})") from error
    except OSError as error:
        raise InvalidData(f"cannot read {path}: {error.strerror or error}") from error


def _row_by_row(reader: Any, roles: Roles) -> Cells:
    blocks: list[npt.NDArray[np.float64]] = [np.zeros((0, len(roles.features)))]
    texts: dict[int, list[str]] = {place: [] for place in roles.texts}
    described: list[str] = []
    # The header has been read already, so lines are counted from 2.
    numbered = ((reader.line_num + 1, row) for row in reader if row)
    while block := list(islice(numbered, _BLOCK_ROWS)):
        rows = [row for _, row in block]
        numbers = _numbers(rows, roles)
        if numbers is None:
            numbers = np.concatenate([_numbers_of_one(row, roles) for row in rows])
        blocks.append(numbers)
        for place, cells in texts.items():
            cells += [row[place] if len(row) == len(roles.names) else "" for row in rows]
        described += _described(block, roles, numbers, SHOWN - len(described))
    labels, clients = (None if place is None else texts[place] for place in (roles.label, roles.client))
    return Cells(np.concatenate(blocks), labels, clients, lambda bad: described[: len(bad)])


def _described(block: list[tuple[int, Row]], roles: Roles, numbers: npt.NDArray[np.float64], most: int) -> list[str]:
    """Say what is wrong with the first bad rows of a block."""
    needed = [place for place in roles.texts if place != roles.label or roles.labelled]
    bad = (
        (line, row)
        for (line, row), usable in zip(block, np.asarray(np.isfinite(numbers).all(axis=1)).tolist(), strict=True)
        if not usable or any(is_missing(row[place]) for place in needed)
    )
    return [_why_bad(row, roles).at(f"line {line}") for line, row in islice(bad, most)] if most else []


def _numbers(rows: list[Row], roles: Roles) -> npt.NDArray[np.float64] | None:
    """Return the features of a block of rows, or None if any of them is no number."""
    if any(len(row) != len(roles.names) for row in rows):
        return None
    # One feature alone would be given as a text, not as a tuple of texts: take it by a list of length one.
    cells = (
        map(itemgetter(*roles.features), rows)
        if len(roles.features) > 1
        else ([row[roles.features[0]]] for row in rows)
    )
    try:
        x = np.fromiter(map(float, chain.from_iterable(cells)), np.float64, len(rows) * len(roles.features))
    except ValueError:
        return None
    return x.reshape(len(rows), -1)


def _numbers_of_one(row: Row, roles: Roles) -> npt.NDArray[np.float64]:
    if len(row) != len(roles.names):
        return np.full((1, len(roles.features)), np.nan)
    return np.array([[_number(row[place]) for place in roles.features]])


def _why_bad(row: Row, roles: Roles) -> Reason:
    """Return what is wrong with a row."""
    if len(row) != len(roles.names):
        return Reason(f"{len(row)} values for {len(roles.names)} columns", "a row must have a value for each column")
    features, texts = set(roles.features), set(roles.texts)
    for i, cell in enumerate(row):
        column = f"column {roles.names[i]!r}"
        if i in texts and (i != roles.label or roles.labelled) and is_missing(cell):
            what = "empty" if not cell.strip() else f"missing ({cell.strip()})"
            return Reason(f"{column} is {what}", f"{column} must not be empty")
        if i in features:
            if not cell.strip():
                return Reason(f"{column} is empty", f"{column} must not be empty")
            try:
                value = float(cell)
            except ValueError:
                remedy = "" if roles.label is not None else " (if it is the label, say so: --label)"
                return Reason(f"{column} holds {cell!r}, not a number{remedy}", f"{column} must hold numbers")
            if not math.isfinite(value):
                return Reason(f"{column} is {value}", f"{column} must be finite")
    return Reason("", "")


def _with_arrow(path: Path, roles: Roles, delimiter: str) -> Cells | None:
    """Return the cells if pyarrow is there and finds as many in every row as the header has."""
    try:
        import pyarrow as pa
        from pyarrow import csv as arrow_csv
    except ImportError:
        return None
    features, texts = [str(i) for i in roles.features], [str(i) for i in roles.texts]

    content = _content(path)

    def read(kind: Any) -> Any:
        return arrow_csv.read_csv(
            pa.BufferReader(content),
            read_options=arrow_csv.ReadOptions(column_names=[str(i) for i in range(len(roles.names))], skip_rows=1),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(features, kind) | dict.fromkeys(texts, pa.string()),
                include_columns=[*features, *texts],
            ),
        )

    try:
        arrow = read(pa.float64())
    except pa.ArrowInvalid as error:
        if "conversion error" not in str(error):
            return None
        try:
            arrow = read(pa.string())
        except pa.ArrowInvalid:
            return None
    x = np.empty((len(arrow), len(features)))
    for j, name in enumerate(features):
        x[:, j] = _as_numbers(arrow.column(name))
    found = {name: arrow.column(name).to_pylist() for name in texts}
    labels, clients = (None if place is None else found[str(place)] for place in (roles.label, roles.client))
    return Cells(x, labels, clients, lambda bad: _reasons(path, delimiter, roles, bad))


def _content(path: Path) -> Any:
    """Return the bytes of a file in memory of pyarrow's own.

    It cannot open every name that a system has, and with a file of Python's its threads would ask for the interpreter:
    if that has ended meanwhile, they abort the process.
    """
    import pyarrow as pa

    with path.open("rb") as file:
        content = pa.allocate_buffer(os.fstat(file.fileno()).st_size)
        read = file.readinto(memoryview(content).cast("B"))
    return content.slice(0, read)  # it may have become shorter


def _as_numbers(column: Any) -> npt.NDArray[np.float64]:
    """Return a column as numbers; cells that are none become NaN, one by one only where there are such."""
    import pyarrow as pa

    if pa.types.is_floating(column.type):
        return np.asarray(column.to_numpy())
    try:
        return np.asarray(column.cast(pa.float64()).to_numpy())
    except pa.ArrowInvalid:
        return np.array([_number(cell) for cell in column.to_pylist()])


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _reasons(path: Path, delimiter: str, roles: Roles, bad: Sequence[int]) -> list[str]:
    """Say what is wrong with rows, given by place among all that are not blank."""
    wanted = set(bad)
    found = islice(((line, row) for place, line, row in _rows(path, delimiter) if place in wanted), len(wanted))
    return [_why_bad(next(csv.reader([row], delimiter=delimiter)), roles).at(f"line {line}") for line, row in found]


def _rows(path: Path, delimiter: str) -> Iterator[tuple[int, int, str]]:
    """Yield each row's place, line and text. A row may span lines only where there are quotation marks."""
    with path.open(newline="", encoding=_ENCODING) as file:
        file.readline()
        place = -1
        text = ""
        for line, more in enumerate(file, start=2):
            text += more
            if text.count('"') % 2:
                continue
            if text.strip("\r\n"):
                place += 1
                yield place, line, text
            text = ""

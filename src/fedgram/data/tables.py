"""Tables of numbers with a label column: CSV and Parquet.

CSV is read with pyarrow where it is installed and the file is clean. Anything unusual is left to the reader
below, which needs nothing, is the reference for what a bad row is, and knows its line.
"""

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.data.bad import OnBad, Reason, settle
from fedgram.errors import InvalidData, MissingExtra, UnknownName

LABEL_NAMES = ("label", "y", "target", "class")
CLIENT_NAME = "client"
_BLOCK_ROWS = 8192
_WHOLE = re.compile(r"-?(0|[1-9]\d*)(\.0*)?")
Row = list[str]


@dataclass(frozen=True)
class Table:
    """Features (n, d), labels (n,) as int64 or names, and each row's client where there is such a column."""

    x: npt.NDArray[np.float64]
    labels: npt.NDArray[Any]
    groups: npt.NDArray[Any] | None


@dataclass(frozen=True)
class Roles:
    """Which columns are what, by position."""

    names: list[str]
    label: int
    client: int | None
    features: list[int]

    @staticmethod
    def of(names: list[str], label: str | None, client: str | None, path: Path) -> "Roles":
        """Find label and client among the column names, by the name given or the usual ones."""
        for asked in (label, client):
            if asked is not None and asked not in names:
                raise UnknownName(f"column of {path.name}", asked, names).telling(f"there is no column {asked!r}")
        lower = [name.strip().lower() for name in names]
        label = label or next((names[lower.index(usual)] for usual in LABEL_NAMES if usual in lower), None)
        if label is None:
            raise InvalidData(
                f"{path} has no column named {', '.join(LABEL_NAMES)} (it has {', '.join(names[:6])}"
                f"{', …' if len(names) > 6 else ''}): name the label column"
            ).telling(f"there is no column named {', '.join(LABEL_NAMES)}: name the label column")
        client = client or (names[lower.index(CLIENT_NAME)] if CLIENT_NAME in lower else None)
        taken = {names.index(label)} | ({names.index(client)} if client is not None else set())
        features = [i for i in range(len(names)) if i not in taken]
        if not features:
            raise InvalidData(f"{path} has no feature columns, only {', '.join(names)}")
        return Roles(names, names.index(label), names.index(client) if client is not None else None, features)


def read_csv(path: Path, label: str | None, client: str | None, on_bad: OnBad) -> Table:
    """Read a CSV file with a header line; comma, semicolon and tab are told apart by the header."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            delimiter = max(",;\t", key=first.count)
            names = next(csv.reader([first], delimiter=delimiter), [])
            roles = Roles.of(names, label, client, path)
            table = _read_csv_with_arrow(path, roles, delimiter)
            if table is None:
                table = _read_csv_rows(csv.reader(file, delimiter=delimiter), roles, path, on_bad)
            return table
    except UnicodeDecodeError as error:
        raise InvalidData(f"{path} is not UTF-8 text ({error.reason}): save it as UTF-8") from error
    except csv.Error as error:
        raise InvalidData(f"{path} is not a CSV file ({error})") from error


def read_parquet(path: Path, label: str | None, client: str | None, on_bad: OnBad) -> Table:
    """Read a Parquet file whose feature columns are numbers."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtra("reading Parquet needs the 'tables' extra: pip install 'fedgram[tables]'") from None
    try:
        arrow = pq.read_table(path)
    except pa.ArrowInvalid as error:
        raise InvalidData(f"{path} is not a Parquet file ({error})") from error
    roles = Roles.of(arrow.column_names, label, client, path)
    for i in roles.features:
        if not _is_number(arrow.column(i).type):
            kind = f"column {roles.names[i]!r} of {path} holds {arrow.column(i).type}"
            rule = f"column {roles.names[i]!r} must hold numbers"
            raise InvalidData(f"{kind}, not numbers: drop it or encode it").telling(rule)
    x = _stacked(arrow, roles)
    texts = _texts(arrow.column(roles.label))
    clients = None if roles.client is None else _texts(arrow.column(roles.client))
    empty = np.array([text == "" for text in texts])
    if clients is not None:
        empty |= np.array([text == "" for text in clients])
    good = np.isfinite(x).all(axis=1) & ~empty
    bad = [_why_not_finite(x[i], roles).at(f"row {i + 1}") for i in np.flatnonzero(~good).tolist()]
    settle(bad, int(good.sum()), str(path), "row", on_bad)
    kept = np.flatnonzero(good).tolist()
    groups = None if clients is None else np.array([clients[i] for i in kept])
    return Table(x[good], parse_labels([texts[i] for i in kept], str(path)), groups)


def parse_labels(texts: Sequence[str], where: str) -> npt.NDArray[Any]:
    """Return labels as int64 if all are whole numbers, else as names; refuse fractions.

    >>> parse_labels(["2", "0", "1.0"], "a.csv"), parse_labels(["cat", "2"], "a.csv")
    (array([2, 0, 1]), array(['cat', '2'], dtype='<U3'))
    """
    values, inverse = np.unique(np.array(texts, dtype=np.str_), return_inverse=True)
    if all(_WHOLE.fullmatch(value) for value in values):
        return np.array([int(value.partition(".")[0]) for value in values], dtype=np.int64)[inverse]
    if all(_fraction(value) for value in values if not _WHOLE.fullmatch(value)):
        raise InvalidData(
            f"the label column of {where} holds numbers like {texts[0]}: labels are whole or names"
        ).telling("the label column must hold whole numbers or names")
    return values[inverse]


def _read_csv_rows(reader: Any, roles: Roles, path: Path, on_bad: OnBad) -> Table:
    blocks: list[npt.NDArray[np.float64]] = []
    labels: list[str] = []
    clients: list[str] = []
    bad: list[str] = []
    # The header has been read already, so lines are counted from 2.
    numbered = ((reader.line_num + 1, row) for row in reader if row)
    while block := list(islice(numbered, _BLOCK_ROWS)):
        rows = [row for _, row in block]
        numbers = _numbers(rows, roles)
        if numbers is None:
            reasons = [(line, _why_bad(row, roles)) for line, row in block]
            bad += [reason.at(f"line {line}") for line, reason in reasons if reason]
            rows = [row for row, (_, reason) in zip(rows, reasons, strict=True) if not reason]
            numbers = _numbers(rows, roles)
        if numbers is not None:
            blocks.append(numbers)
        labels += [row[roles.label].strip() for row in rows]
        if roles.client is not None:
            clients += [row[roles.client].strip() for row in rows]
    settle(bad, len(labels), str(path), "row", on_bad)
    groups = None if roles.client is None else np.array(clients)
    return Table(np.concatenate(blocks), parse_labels(labels, str(path)), groups)


def _numbers(rows: list[Row], roles: Roles) -> npt.NDArray[np.float64] | None:
    """Return the features of a block of rows, or None if there are none or any row is bad."""
    width = len(roles.names)
    texts = [roles.label, *([] if roles.client is None else [roles.client])]
    if not rows or any(len(row) != width or not all(row[i].strip() for i in texts) for row in rows):
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
    x = x.reshape(len(rows), -1)
    return x if np.isfinite(x).all() else None


def _why_bad(row: Row, roles: Roles) -> Reason | None:
    """Return what is wrong with a row, or nothing."""
    if len(row) != len(roles.names):
        return Reason(f"{len(row)} values for {len(roles.names)} columns", "a row must have a value for each column")
    for i, cell in enumerate(row):
        column = f"column {roles.names[i]!r}"
        if not cell.strip():
            return Reason(f"{column} is empty", f"{column} must not be empty")
        if i in roles.features:
            try:
                value = float(cell)
            except ValueError:
                return Reason(f"{column} holds {cell!r}, not a number", f"{column} must hold numbers")
            if not math.isfinite(value):
                return Reason(f"{column} is {value}", f"{column} must be finite")
    return None


def _read_csv_with_arrow(path: Path, roles: Roles, delimiter: str) -> Table | None:
    """Return the table if pyarrow is there and finds nothing unusual in the file."""
    try:
        import pyarrow as pa
        from pyarrow import csv as arrow_csv
    except ImportError:
        return None
    texts = {roles.names[i]: pa.string() for i in (roles.label, roles.client) if i is not None}
    try:
        arrow = arrow_csv.read_csv(
            path,
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter),
            convert_options=arrow_csv.ConvertOptions(column_types=texts),
        )
    except pa.ArrowInvalid:
        return None
    usual = arrow.column_names == roles.names and len(set(roles.names)) == len(roles.names) and len(arrow)
    if not usual or not all(_is_number(arrow.column(i).type) for i in roles.features):
        return None
    x = _stacked(arrow, roles)
    columns = {
        i: [text.strip() for text in _texts(arrow.column(name))] for i, name in enumerate(roles.names) if name in texts
    }
    if not np.isfinite(x).all() or not all(all(column) for column in columns.values()):
        return None
    groups = None if roles.client is None else np.array(columns[roles.client])
    return Table(x, parse_labels(columns[roles.label], str(path)), groups)


def _stacked(arrow: Any, roles: Roles) -> npt.NDArray[np.float64]:
    x = np.empty((len(arrow), len(roles.features)))
    for j, i in enumerate(roles.features):
        x[:, j] = arrow.column(i).to_numpy()  # nulls become NaN
    return x


def _texts(column: Any) -> list[str]:
    return ["" if value is None else str(value) for value in column.to_pylist()]


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _why_not_finite(row: npt.NDArray[np.float64], roles: Roles) -> Reason:
    for j, i in enumerate(roles.features):
        if not np.isfinite(row[j]):
            column = f"column {roles.names[i]!r}"
            return Reason(f"{column} is {'empty or NaN' if np.isnan(row[j]) else row[j]}", f"{column} must be finite")
    return Reason("label or client is empty", "label and client must not be empty")


def _fraction(text: str) -> bool:
    try:
        return not float(text).is_integer()
    except ValueError:
        return False

"""Tables of numbers with a label column: the roles of their columns, and their bad rows."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.core.columns import Columns, listed
from fedgram.core.errors import BadSamples, Doubtful, InvalidData, Mismatch, UnknownName
from fedgram.core.progress_bars import with_bar
from fedgram.data.own.bad import SHOWN, OnBad, Reason, check_expansion, settle
from fedgram.data.own.blocks import TableFile, open_table, stacked
from fedgram.data.own.cells import POINT, Block, Coded, Mask, Notation, is_missing, number_of
from fedgram.data.own.labels import names_identifier, parsed, tidied_column

LABEL_NAMES = ("label", "y", "target", "class")
CLIENT_NAME = "client"
_ID_ROWS = 20  # in fewer rows, any whole numbers are easily distinct


@dataclass(frozen=True)
class Wanted:
    """The user's choice of columns; None where the usual column names decide.

    `columns` are the features, None for all columns except label and client. Without `labelled`, labels may be
    missing.
    """

    label: str | None = None
    client: str | None = None
    columns: Columns | None = None
    labelled: bool = True
    notation: Notation = POINT


@dataclass(frozen=True)
class Table:
    """Features (n, d), labels (n,) as int64 or names (None if there are none), and each row's client if it has one.

    Where labels may be missing, `labels` is masked in the rows without a label. `left_out` are the row numbers of bad
    rows.
    """

    x: npt.NDArray[np.float64]
    labels: npt.NDArray[Any] | None
    groups: npt.NDArray[Any] | None
    roles: "Roles"
    left_out: tuple[int, ...] = ()


@dataclass(frozen=True)
class Roles:
    """The positions of the label, client and feature columns."""

    names: Columns
    label: int | None
    client: int | None
    features: tuple[int, ...]
    labelled: bool = True

    @staticmethod
    def of(names: Columns, wanted: Wanted, path: Path) -> "Roles":
        """Return the roles of the columns: label and client by the names given, or else by the usual names."""
        for asked in (wanted.label, wanted.client):
            if asked is not None and asked.strip() not in names:
                raise UnknownName("column", asked, names, where=path.name).telling(f"there is no column {asked!r}")
        free = [name for name in names if wanted.columns is None or name not in wanted.columns]
        label = wanted.label or next((found for usual in LABEL_NAMES if (found := _usual(usual, free, path))), None)
        if label is None and wanted.labelled:
            raise InvalidData(
                f"{path} has no column named {', '.join(LABEL_NAMES)} (it has {', '.join(names[:6])}"
                f"{', …' if len(names) > 6 else ''}): name the label column, with --outcome on the command line"
            ).telling(f"there is no column named {', '.join(LABEL_NAMES)}: name the label column")
        client = wanted.client or _usual(CLIENT_NAME, free, path)
        places = {name: place for place, name in enumerate(names)}
        taken = [None if name is None else places[name.strip()] for name in (label, client)]
        if wanted.columns is None:
            features = tuple(place for place in range(len(names)) if place not in taken)
        elif missing := [name for name in wanted.columns if name not in places]:
            raise Mismatch(f"{path} lacks {listed(missing)}, which the model was made from; it has {listed(names)}")
        else:
            features = tuple(places[name] for name in wanted.columns)
        if not features:
            raise InvalidData(f"{path} has no feature columns, only {', '.join(names)}")
        return Roles(names, taken[0], taken[1], features, wanted.labelled)

    @property
    def columns(self) -> Columns:
        """The names of the features."""
        return tuple(self.names[place] for place in self.features)

    @property
    def unused(self) -> Columns:
        """The names of columns that are neither feature nor label nor client."""
        used = {*self.features, self.label, self.client}
        return tuple(name for place, name in enumerate(self.names) if place not in used)

    @property
    def texts(self) -> list[int]:
        """The positions of the columns that are read as text."""
        return [place for place in (self.label, self.client) if place is not None]

    def about(self) -> str:
        """Return a line that lists the columns by role."""
        shown = self.columns[:12]
        more = f", … ({len(self.columns)} in all)" if len(self.columns) > len(shown) else ""
        parts = [f"features: {', '.join(shown)}{more}"]
        parts += [f"label: {self.names[self.label]}"] if self.label is not None else []
        parts += [f"client: {self.names[self.client]}"] if self.client is not None else []
        return "; ".join(parts)


@dataclass(frozen=True)
class Scan:
    """The result of one pass through a table: usable rows, and the tidied cells of the label and client columns.

    `parts` are the numbers of all rows by block, None if they were not kept.
    """

    source: TableFile
    roles: Roles
    good: Mask
    labels: Coded | None
    groups: Coded | None
    parts: list[Array] | None

    def blocks(self) -> Iterator[tuple[Mask, Array]]:
        """Yield for each block, read again, the mask of its usable rows and their numbers (n, d)."""
        end = 0
        for block in self.source.blocks(self.roles.columns, []):
            end = block.start + block.rows
            good = self.good[block.start : end]
            if len(good) != block.rows:  # the file changed within the resolution of its time stamp
                raise self.source.changed()
            yield good, _numbers(block, self.roles)[good]
        if end != len(self.good):
            raise self.source.changed()


def scan(path: Path, wanted: Wanted, on_bad: OnBad, *, keep: bool = False) -> Scan:
    """Return the scan of a CSV or Parquet file, read once; unusable rows are refused or marked, as the user chose."""
    source = open_table(path, wanted.notation)
    roles = Roles.of(source.names, wanted, path)
    _refuse_words(source, roles)
    if source.rows is not None:
        check_expansion(source.rows * 8 * (len(roles.features) + len(roles.texts)), path)
    parts: list[Array] | None = [] if keep else None
    whole: list[Mask] = [np.zeros(0, dtype=bool)]
    texts: dict[str, list[Coded]] = {roles.names[place]: [] for place in roles.texts}
    needed = [roles.names[place] for place in roles.texts if place != roles.label or roles.labelled]
    usable = np.zeros(len(roles.features), dtype=bool)  # whether a column has any number
    shown: dict[int, Array] = {}
    for block in with_bar(source.blocks(roles.columns, list(texts)), f"reading {path.name}"):
        x = _numbers(block, roles)
        finite = np.isfinite(x)
        usable |= finite.any(axis=0)
        good = np.asarray(finite.all(axis=1))
        for name in needed:
            good &= ~block.texts[name].map(is_missing, bool)
        whole.append(good)
        for row in np.flatnonzero(~good)[: SHOWN - len(shown)].tolist():
            shown[block.start + row] = x[row].copy()
        if parts is not None:
            parts.append(x)
        for name, cells in block.texts.items():
            texts[name].append(cells.compact())
    labels, groups = (
        None if place is None else tidied_column(Coded.joined(texts[roles.names[place]]), f"{what} column of {path}")
        for place, what in ((roles.label, "label"), (roles.client, "client"))
    )
    good = np.concatenate(whole)
    bad = int(np.count_nonzero(~good))
    reasons, remedy = _reasons(source, roles, shown), _remedy(usable, roles) if len(good) else ""
    settle(reasons, len(good) - bad, str(path), "row", on_bad, total=bad, remedy=remedy)
    return Scan(source, roles, good, labels, groups, parts)


def read_table(path: Path, wanted: Wanted, on_bad: OnBad) -> Table:
    """Return the table in a CSV or Parquet file; unusable rows are refused or left out, as the user chose."""
    found = scan(path, wanted, on_bad, keep=True)
    assert found.parts is not None
    roles, good, labels, groups = found.roles, found.good, found.labels, found.groups
    x = stacked(found.parts, len(roles.features))
    bad = np.flatnonzero(~good).tolist()
    if bad:
        x, labels, groups = x[good], *(None if cells is None else cells.rows(good) for cells in (labels, groups))
    if roles.labelled:
        _warn_of_ids(x, roles, path)
    return Table(
        x,
        None if labels is None else parsed(labels, str(path)),
        None if groups is None else groups.map(str, np.str_),
        roles,
        tuple(bad),
    )


def _numbers(block: Block, roles: Roles) -> Array:
    """Return the features of a block, (n, d); those of a row with more or fewer cells than columns are NaN."""
    x = np.empty((block.rows, len(roles.features)))
    for place, name in enumerate(roles.columns):
        x[:, place] = block.numbers[name]
    if block.ragged is not None:
        x[block.ragged] = np.nan
    return x


def _refuse_words(source: TableFile, roles: Roles) -> None:
    """Raise for a Parquet file with a feature column that is not numeric: skipping rows would not mend that."""
    for name in roles.columns:
        if kind := (source.words or {}).get(name):
            remedy = "" if roles.label is not None else ", or if it is the label, say so (--outcome)"
            raise BadSamples(
                f"column {name!r} of {source.title} holds {kind}, not numbers: drop it or encode it{remedy}"
            ).telling(f"column {name!r} must hold numbers")


def _reasons(source: TableFile, roles: Roles, bad: Mapping[int, Array]) -> list[str]:
    """Return the faults of rows, given by row number: from the cells of a CSV file, or from the numbers read."""
    found = source.find(bad)
    return [
        (_why_bad(found[place][1], roles, source.notation) if source.is_csv else _why_not_finite(numbers, roles)).at(
            found[place][0]
        )
        for place, numbers in bad.items()
    ]


def _why_bad(row: Sequence[str], roles: Roles, notation: Notation) -> Reason:
    """Return the fault of a row of cells."""
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
            value = number_of(cell, notation)
            if value is None and not is_missing(cell):
                remedy = "" if roles.label is not None else " (if it is the label, say so: --outcome)"
                remedy = notation.instead(cell) or remedy
                return Reason(f"{column} holds {cell!r}, not a number{remedy}", f"{column} must hold numbers")
            if value is None or math.isinf(value):
                return Reason(f"{column} is {cell.strip() if value is None else value}", f"{column} must be finite")
    return Reason("", "")


def _why_not_finite(row: Array, roles: Roles) -> Reason:
    """Return the fault of a row of numbers."""
    for value, name in zip(row, roles.columns, strict=True):
        if not math.isfinite(value):
            what = "empty or NaN" if math.isnan(value) else value
            return Reason(f"column {name!r} is {what}", f"column {name!r} must be finite")
    return Reason("label or client is empty", "label and client must not be empty")


def _remedy(usable: npt.NDArray[np.bool_], roles: Roles) -> str:
    """Return advice on columns without a single number: because of them, every row would be skipped."""
    words = [name for name, column in zip(roles.columns, usable.T, strict=True) if not column.any()]
    if not words:
        return ""
    owner = "" if roles.client is not None or not roles.labelled else "; if it names the clients, say --client-column"
    return f"Take {listed(words)} out or write numbers instead, since no row has any there{owner}"


def _warn_of_ids(x: npt.NDArray[np.float64], roles: Roles, path: Path) -> None:
    """Warn of features that look like identifiers of rows or people."""
    found = [name for name, column in zip(roles.columns, x.T, strict=True) if _looks_like_id(name, column)]
    if found:
        warnings.warn(
            f"{listed(found)} of {path} {'look like identifiers' if len(found) > 1 else 'looks like an identifier'} "
            "but will be used as a feature: remove what says nothing about the label",
            Doubtful,
            stacklevel=4,
        )


def _looks_like_id(name: str, column: npt.NDArray[np.float64]) -> bool:
    if names_identifier(name):
        return True
    # A look at a few rows settles it for nearly every column.
    whole = len(column) >= _ID_ROWS and bool((column[:_ID_ROWS] == np.rint(column[:_ID_ROWS])).all())
    return whole and bool((column == np.rint(column)).all()) and len(np.unique(column)) == len(column)


def _usual(usual: str, names: Sequence[str], path: Path) -> str | None:
    """Return the column with a usual name, in lower or upper case; raise if there are several."""
    found = [name for name in names if name.lower() == usual]
    if len(found) > 1:
        raise InvalidData(f"{path} has both {found[0]!r} and {found[1]!r}: say which is the {usual} column")
    return found[0] if found else None

"""Tables of numbers with a label column: which columns are what, and what becomes of bad rows.

`csvfiles` and `parquet` read the cells; here they become a `Table`, by the same rules for both.
"""

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.columns import Columns, as_columns, listed
from fedgram.core.errors import Doubtful, InvalidData, Mismatch, UnknownName
from fedgram.data.own.bad import SHOWN, OnBad, settle, warn_of_look_alikes

LABEL_NAMES = ("label", "y", "target", "class")
CLIENT_NAME = "client"
# How others write that nothing is there, in any case. "None" is Python's word for it; "none" may well be a class.
MISSING = frozenset([
    "", "na", "n/a", "#n/a", "#n/a n/a", "#na", "<na>", "nan", "-nan", "null",
    "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan",
])  # fmt: skip
_WHOLE = re.compile(r"-?(0|[1-9]\d*)(\.0*)?")
_ID_NAME = re.compile(r"(.*[_\-. ])?(id|ids|uuid|guid)|unnamed: 0|index|", re.IGNORECASE)
_ID_ROWS = 20  # in fewer rows, any whole numbers are easily distinct


@dataclass(frozen=True)
class Wanted:
    """What somebody wants of a table: the columns by name, where usual names do not do.

    `columns` are the features, None for all that are neither label nor client. Without `labelled`, labels may be
    missing.
    """

    label: str | None = None
    client: str | None = None
    columns: Columns | None = None
    labelled: bool = True


@dataclass(frozen=True)
class Table:
    """Features (n, d), labels (n,) as int64 or names (None if there are none), and each row's client if it has one.

    Rows that have no label, where that is allowed, are those where `labels` is masked. `left_out` are the places of
    bad rows among all.
    """

    x: npt.NDArray[np.float64]
    labels: npt.NDArray[Any] | None
    groups: npt.NDArray[Any] | None
    roles: "Roles"
    left_out: tuple[int, ...] = ()


@dataclass(frozen=True)
class Cells:
    """What a reader has found: features (n, d) that are not finite where a cell is no number, and texts.

    `reasons` says of some bad rows, in order, what is wrong with each.
    """

    x: npt.NDArray[np.float64]
    labels: Sequence[str] | None
    clients: Sequence[str] | None
    reasons: Callable[[list[int]], list[str]]


@dataclass(frozen=True)
class Roles:
    """Which columns are what, by position."""

    names: Columns
    label: int | None
    client: int | None
    features: tuple[int, ...]
    labelled: bool = True

    @staticmethod
    def of(header: Sequence[str], wanted: Wanted, path: Path) -> "Roles":
        """Find label and client among the column names, by the name given or the usual ones."""
        try:
            names = as_columns(name.strip() for name in header)
        except InvalidData as error:
            raise InvalidData(f"{path}: {error}") from None
        for asked in (wanted.label, wanted.client):
            if asked is not None and asked.strip() not in names:
                raise UnknownName(f"column of {path.name}", asked, names).telling(f"there is no column {asked!r}")
        free = [name for name in names if wanted.columns is None or name not in wanted.columns]
        label = wanted.label or next((found for usual in LABEL_NAMES if (found := _usual(usual, free, path))), None)
        if label is None and wanted.labelled:
            raise InvalidData(
                f"{path} has no column named {', '.join(LABEL_NAMES)} (it has {', '.join(names[:6])}"
                f"{', …' if len(names) > 6 else ''}): name the label column"
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
        """The names of columns that are nothing."""
        used = {*self.features, self.label, self.client}
        return tuple(name for place, name in enumerate(self.names) if place not in used)

    @property
    def texts(self) -> list[int]:
        """The columns that are read as they stand."""
        return [place for place in (self.label, self.client) if place is not None]

    def about(self) -> str:
        """Say in one line which columns are used as what."""
        shown = self.columns[:12]
        more = f", … ({len(self.columns)} in all)" if len(self.columns) > len(shown) else ""
        parts = [f"features: {', '.join(shown)}{more}"]
        parts += [f"label: {self.names[self.label]}"] if self.label is not None else []
        parts += [f"client: {self.names[self.client]}"] if self.client is not None else []
        return "; ".join(parts)


def table_of(cells: Cells, roles: Roles, path: Path, on_bad: OnBad) -> Table:
    """Return the table of what was read; rows that cannot be used are refused or left out, as the user chose."""
    usable = np.isfinite(cells.x)
    good = usable.all(axis=1)
    labels, groups = (
        None if texts is None else tidied(texts, f"{what} column of {path}")
        for texts, what in ((cells.labels, "label"), (cells.clients, "client"))
    )
    for texts in (labels if roles.labelled else None, groups):
        if texts is not None:
            good &= texts != ""
    bad = np.flatnonzero(~good).tolist()
    reasons = cells.reasons(bad[:SHOWN]) if bad else []
    settle(reasons, len(cells.x) - len(bad), str(path), "row", on_bad, total=len(bad), remedy=_remedy(usable, roles))
    x = cells.x if not bad else cells.x[good]
    if roles.labelled:
        _warn_of_ids(x, roles, path)
    return Table(
        x,
        None if labels is None else _parsed(labels[good], str(path)),
        None if groups is None else groups[good],
        roles,
        tuple(bad),
    )


def parse_labels(texts: Sequence[str], where: str) -> npt.NDArray[Any]:
    """Return labels as int64 if all are whole numbers, else as names; refuse fractions.

    >>> parse_labels(["2", "0", "1.0"], "a.csv"), parse_labels(["cat", "2"], "a.csv")
    (array([2, 0, 1]), array(['cat', '2'], dtype='<U3'))
    """
    values, inverse = np.unique(np.array(texts, dtype=np.str_), return_inverse=True)
    if all(_WHOLE.fullmatch(value) for value in values):
        numbers = [int(value.partition(".")[0]) for value in values]
        if too_large := [number for number in numbers if not -(2**63) <= number < 2**63]:
            raise InvalidData(f"label {too_large[0]} of {where} does not fit into 64 bits: give classes names instead")
        return np.array(numbers, dtype=np.int64)[inverse]
    if all(_fraction(value) for value in values if not _WHOLE.fullmatch(value)):
        raise InvalidData(
            f"the label column of {where} holds numbers like {texts[0]}: labels are whole or names"
        ).telling("the label column must hold whole numbers or names")
    return values[inverse]


def is_missing(text: str) -> bool:
    """Say whether a text means that nothing is there.

    >>> is_missing(" NaN "), is_missing("None"), is_missing("none")
    (True, True, False)
    """
    stripped = text.strip()
    return stripped.lower() in MISSING or stripped == "None"


def _parsed(labels: npt.NDArray[np.str_], where: str) -> npt.NDArray[Any]:
    """Return the labels, masked where there is none."""
    there = labels != ""
    if there.all():
        return parse_labels(labels.tolist(), where)
    known = parse_labels(labels[there].tolist(), where)
    out = np.zeros(len(labels), dtype=known.dtype)
    out[there] = known
    return np.ma.masked_array(out, ~there)


def tidied(texts: Sequence[str], where: str) -> npt.NDArray[np.str_]:
    """Return texts without surrounding blanks, and "" for those that mean nothing is there."""
    values, inverse = np.unique(np.array(texts, dtype=np.str_), return_inverse=True)
    tidy = ["" if is_missing(value) else value.strip() for value in values.tolist()]
    there = [value for value in tidy if value]
    distinct = list(dict.fromkeys(there))
    if len(distinct) < len(there):
        twice = next(value for value in distinct if there.count(value) > 1)
        warnings.warn(
            f"{where} has {twice!r} with and without blanks around it: they count as one", Doubtful, stacklevel=3
        )
    warn_of_look_alikes(distinct, where)
    return np.array(tidy, dtype=np.str_)[inverse] if tidy else np.zeros(0, dtype=np.str_)


def _remedy(usable: npt.NDArray[np.bool_], roles: Roles) -> str:
    """Return what to do about columns without a single number: rows that are skipped for them would be all."""
    words = [name for name, column in zip(roles.columns, usable.T, strict=True) if not column.any()]
    if not words:
        return ""
    owner = "" if roles.client is not None or not roles.labelled else "; if it names the clients, say --client-column"
    return f"Take {listed(words)} out or write numbers instead, since no row has any there{owner}"


def _warn_of_ids(x: npt.NDArray[np.float64], roles: Roles, path: Path) -> None:
    """Warn of features that look like numbers of rows or people."""
    found = [name for name, column in zip(roles.columns, x.T, strict=True) if _looks_like_id(name, column)]
    if found:
        warnings.warn(
            f"{listed(found)} of {path} {'look like identifiers' if len(found) > 1 else 'looks like an identifier'} "
            "but will be used as a feature: remove what says nothing about the label",
            Doubtful,
            stacklevel=4,
        )


def _looks_like_id(name: str, column: npt.NDArray[np.float64]) -> bool:
    if _ID_NAME.fullmatch(name):
        return True
    # A look at a few rows settles it for nearly every column.
    whole = len(column) >= _ID_ROWS and bool((column[:_ID_ROWS] == np.rint(column[:_ID_ROWS])).all())
    return whole and bool((column == np.rint(column)).all()) and len(np.unique(column)) == len(column)


def _usual(usual: str, names: Sequence[str], path: Path) -> str | None:
    """Return the column of a usual name, in any case; several of them are refused."""
    found = [name for name in names if name.lower() == usual]
    if len(found) > 1:
        raise InvalidData(f"{path} has both {found[0]!r} and {found[1]!r}: say which is the {usual} column")
    return found[0] if found else None


def _fraction(text: str) -> bool:
    try:
        return not float(text).is_integer()
    except ValueError:
        return False

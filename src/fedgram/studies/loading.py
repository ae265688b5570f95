"""Tables as data sets under a study: an agreed one, or one drafted from a table that is not all numbers."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.core.classes import to_indices
from fedgram.core.columns import listed
from fedgram.core.errors import InvalidData, InvalidParameter, UnknownName
from fedgram.core.filesystem import stamp
from fedgram.data.dataset import Dataset, fingerprint
from fedgram.data.own.bad import OnBad, warn_of_look_alikes
from fedgram.data.own.blocks import IS_SPREADSHEET, SPREADSHEETS, TableFile, open_table
from fedgram.data.own.cells import POINT, Notation
from fedgram.data.own.tables import CLIENT_NAME
from fedgram.studies.drafting import draft
from fedgram.studies.encoding import gather, open_for
from fedgram.studies.kinds import Category, Ignore
from fedgram.studies.study import Study

State = tuple[int, ...] | None
TABLES = (".csv", ".tsv", ".parquet", ".pq")


@dataclass(frozen=True)
class StudyDataset(Dataset):
    """A data set whose samples have the columns that a study sends."""

    study: Study = field(kw_only=True)


def tables_of(data: str) -> list[Path]:
    """Return the tables that a text names: one file, or several with commas; empty if it names something else.

    >>> [path.stem for path in tables_of("north.csv,south.csv")], tables_of("digits")
    (['north', 'south'], [])
    """
    whole = Path(data).expanduser()
    paths = [whole] if whole.exists() else [Path(part.strip()).expanduser() for part in data.split(",")]
    return paths if all(path.suffix.lower() in TABLES for path in paths) else []


def state_of(data: str | None) -> State:
    """Return the stamps of the files that `data` names or contains, which change with them; None without files."""
    if not data:
        return None
    try:
        path = Path(data).expanduser()
        found = [path] if path.is_file() else sorted(path.rglob("*")) if path.is_dir() else tables_of(data)
        return tuple(number for file in found for number in stamp(file)) or None
    except OSError:
        return None


def names_in(text: str | None) -> tuple[str, ...] | None:
    """Return names of columns that are given with commas between them; a name that has a comma itself is quoted.

    >>> names_in('age,"height, standing"')
    ('age', 'height, standing')
    """
    return None if text is None else tuple(name.strip() for name in next(csv.reader([text]), []))


def drafted(
    table: Path,
    outcome: str | None = None,
    *,
    client: str | None = None,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    notation: Notation = POINT,
) -> Study:
    """Return a study drafted from the only table at hand, without thresholds, since none were agreed on."""
    _check_there(table)
    owner = client or _usual_client(open_table(table), ())
    options: dict[str, Any] = {"columns": columns, "rows": None, "minimum_samples": 0, "minimum_cell": 0}
    study = draft(open_table(table, notation), outcome, name="drafted", client=owner, ignore=drop, **options).study
    study = replace(study, maximum_columns_per_row=0.0)
    values = {name: column.values for name, column in study.columns.items() if isinstance(column, Category)}
    for name, found in (values | {", ".join(study.outcomes): study.classes}).items():
        warn_of_look_alikes(found, f"column {name!r} of {table}")
    return study


def narrowed(study: Study, columns: Sequence[str] | None, drop: Sequence[str] = ()) -> Study:
    """Return the study with fewer columns: those named in `columns`, without those in `drop`; a different study.

    >>> from fedgram.studies.kinds import Number
    >>> study = Study("stroke", "ill", {"age": Number(), "weight": Number()}, ("no", "yes"))
    >>> narrowed(study, None, ["weight"]).sent
    ('age',)
    """
    for name in (*(columns or ()), *drop):
        if name not in study.columns:
            raise UnknownName(f"column of study {study.name!r}", name, study.columns)
    if ignored := [name for name in columns or () if isinstance(study.columns[name], Ignore)]:
        raise InvalidParameter(f"study {study.name!r} ignores {listed(ignored)}: describe it in the study to use it")
    kept = {*(study.columns if columns is None else columns), *study.outcomes}.difference(drop)
    derived = {name: text for name, text in study.derived.items() if name in kept}
    described = {
        name: column if name in kept else Ignore()
        for name, column in study.columns.items()
        if name not in study.derived or name in derived
    }
    return replace(study, columns=described, derived=derived)


def read_tables(
    study: Study,
    data: str,
    *,
    client: str | None = None,
    test: str | None = None,
    on_bad: OnBad = "refuse",
    notation: Notation = POINT,
) -> StudyDataset:
    """Return tables as a data set under a study: one with a client column, or a file for each party, named after it.

    Numeric outcomes are the last columns of the samples; all samples are then of one class.
    `test` are tables with test samples, as many and in the same order.
    """
    files, test_files = table_files(data), [] if test is None else table_files(test)
    names = _parties(files, client)
    if test_files and len(test_files) != len(files):
        raise InvalidParameter(f"{len(test_files)} test tables for {len(files)} tables: give one for each")
    opened = [open_table(path, notation) for path in files]
    x, y, groups = _gathered(study, opened, names, client, on_bad)
    for owner in () if groups is None or not study.parties else np.unique(groups).tolist():
        if owner not in study.parties:
            raise UnknownName(f"party of study {study.name!r}", owner, study.parties)
    classes = study.targets.classes
    arrays: dict[str, Any] = {"x": x, "y": y, "groups": groups}
    if test_files:
        tested = _gathered(study, [open_table(path, notation) for path in test_files], names, client, on_bad)
        arrays |= dict(zip(("x_test", "y_test", "groups_test"), tested, strict=True))
    return StudyDataset(
        name=" + ".join(path.stem for path in files).encode(errors="backslashreplace").decode(),
        classes=classes,
        fingerprint=fingerprint(arrays, classes),
        features=study.features,
        columns=study.sent,
        about="; ".join(study.about()),
        unused=tuple(name for name, column in study.columns.items() if isinstance(column, Ignore)),
        study=study,
        **arrays,
    )


def table_files(data: str) -> list[Path]:
    """Return the tables that a text names; raise for files that are missing or not tables."""
    files = tables_of(data)
    if found := [part for part in data.split(",") if Path(part).suffix.lower() in SPREADSHEETS]:
        raise InvalidData(f"{found[0]} {IS_SPREADSHEET}").telling("the table is a spreadsheet, which is not read")
    if not files:
        raise InvalidParameter(f"data {data!r}: a study is of tables, {', '.join(TABLES)}")
    for path in files:
        _check_there(path)
    return files


def _check_there(path: Path) -> None:
    if not path.exists():
        raise InvalidData(f"data {str(path)!r}: there is no such file or folder").telling(
            "data: there is no such file or folder"
        )


def _parties(files: Sequence[Path], client: str | None) -> list[str]:
    """Return the parties' names if each has its own file, an empty list for a single file."""
    if len(files) == 1:
        return []
    if client is not None:
        raise InvalidParameter(f"{len(files)} tables and client column {client!r}: each table is one party's already")
    names = [path.stem for path in files]
    if len(set(names)) < len(names):
        raise InvalidParameter(f"tables are named {listed(names)}: give each party's file a name of its own")
    return names


def _gathered(
    study: Study, files: Sequence[TableFile], names: Sequence[str], client: str | None, on_bad: OnBad
) -> tuple[Array, npt.NDArray[np.int64], npt.NDArray[Any] | None]:
    """Return the samples of all files, their labels as indices of the classes, and their clients."""
    if not names:
        [table] = files
        owner = client or _usual_client(table, (*study.used, *study.outcomes))
        x, labels, groups = gather(open_for(study, table, group=owner), on_bad)
        if groups is not None:
            warn_of_look_alikes(np.unique(groups).tolist(), f"column {owner!r} of {table.title}")
        return x, to_indices(labels, study.targets.classes), groups
    parts = [gather(open_for(study, table), on_bad) for table in files]
    owners = np.repeat(np.array(names), [len(x) for x, _, _ in parts])
    labels = np.concatenate([labels for _, labels, _ in parts])
    return np.concatenate([x for x, _, _ in parts]), to_indices(labels, study.targets.classes), owners


def _usual_client(table: TableFile, known: Sequence[str]) -> str | None:
    """Return the column with the usual name of a client column, unless it is a column of the study."""
    found = [name for name in table.names if name.lower() == CLIENT_NAME and name not in known]
    return found[0] if len(found) == 1 else None

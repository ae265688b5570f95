"""Tables as data sets under a study: an agreed one, or one drafted from a table that is not all numbers."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.core.columns import listed
from fedgram.core.errors import InvalidData, InvalidParameter, UnknownName
from fedgram.core.files import stamp
from fedgram.core.labels import NUMERIC, to_indices
from fedgram.data.dataset import Dataset
from fedgram.data.fingerprint import fingerprint
from fedgram.data.own.bad import OnBad, warn_of_look_alikes
from fedgram.data.own.blocks import open_table
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
    """Return the tables that a text names: one file, or several with commas between them; none if it names no tables.

    >>> [path.stem for path in tables_of("north.csv,south.csv")], tables_of("digits")
    (['north', 'south'], [])
    """
    whole = Path(data).expanduser()
    paths = [whole] if whole.exists() else [Path(part.strip()).expanduser() for part in data.split(",")]
    return paths if all(path.suffix.lower() in TABLES for path in paths) else []


def state_of(data: str | None) -> State:
    """Return what changes when somebody's file does, or a file of somebody's folder; None of what is neither."""
    if not data:
        return None
    try:
        path = Path(data).expanduser()
        found = [path] if path.is_file() else sorted(path.rglob("*")) if path.is_dir() else tables_of(data)
        return tuple(number for file in found for number in stamp(file)) or None
    except OSError:
        return None


def names_in(text: str | None) -> tuple[str, ...] | None:
    """Return names of columns that are given with commas between them; one that has a comma itself is quoted.

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
) -> Study:
    """Return a study drafted from a table that is all there is. It asks for no thresholds: nobody has agreed on any."""
    owner = client or _usual_client(table, ())
    text = draft(table, outcome, name="drafted", client=owner, ignore=drop, columns=columns, rows=None)
    study = Study.parse(text, where=f"the study drafted from {table}")
    values = {name: column.values for name, column in study.columns.items() if isinstance(column, Category)}
    for name, found in (values | {", ".join(study.outcomes): study.classes}).items():
        warn_of_look_alikes(found, f"column {name!r} of {table}")
    return replace(study, minimum_samples=0, minimum_cell=0)


def narrowed(study: Study, columns: Sequence[str] | None, drop: Sequence[str] = ()) -> Study:
    """Return the study with fewer columns: only those named in `columns`, without those in `drop`. It is another one.

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
    return replace(
        study, columns={name: column if name in kept else Ignore() for name, column in study.columns.items()}
    )


def read_tables(
    study: Study, data: str, *, client: str | None = None, test: str | None = None, on_bad: OnBad = "refuse"
) -> StudyDataset:
    """Return tables as a data set under a study: one with a client column, or a file for each party, named after it.

    Numeric outcomes are the last columns of the samples; all samples are then of one class.
    `test` are tables with test samples, as many and in the same order.
    """
    files, test_files = table_files(data), [] if test is None else table_files(test)
    names = _parties(files, client)
    if test_files and len(test_files) != len(files):
        raise InvalidParameter(f"{len(test_files)} test tables for {len(files)} tables: give one for each")
    x, y, groups = _gathered(study, files, names, client, on_bad)
    for owner in () if groups is None or not study.parties else np.unique(groups).tolist():
        if owner not in study.parties:
            raise UnknownName(f"party of study {study.name!r}", owner, study.parties)
    classes = study.classes or NUMERIC
    arrays: dict[str, Any] = {"x": x, "y": y, "groups": groups}
    if test_files:
        arrays |= dict(
            zip(("x_test", "y_test", "groups_test"), _gathered(study, test_files, names, client, on_bad), strict=True)
        )
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
    """Return the tables that a text names; refuse what is no table, or not there."""
    files = tables_of(data)
    if not files:
        raise InvalidParameter(f"data {data!r}: a study is of tables, {', '.join(TABLES)}")
    for path in files:
        if not path.exists():
            raise InvalidData(f"{path} does not exist").telling("data: there is no such file or folder")
    return files


def _parties(files: Sequence[Path], client: str | None) -> list[str]:
    """Return the parties' names where each has a file of its own, nothing where there is one file."""
    if len(files) == 1:
        return []
    if client is not None:
        raise InvalidParameter(f"{len(files)} tables and client column {client!r}: each table is one party's already")
    names = [path.stem for path in files]
    if len(set(names)) < len(names):
        raise InvalidParameter(f"tables are named {listed(names)}: give each party's file a name of its own")
    return names


def _gathered(
    study: Study, files: Sequence[Path], names: Sequence[str], client: str | None, on_bad: OnBad
) -> tuple[Array, npt.NDArray[np.int64], npt.NDArray[Any] | None]:
    """Return the samples of all files, their labels as indices of the classes, and whose they are."""
    if not names:
        [path] = files
        owner = client or _usual_client(path, (*study.used, *study.outcomes))
        x, labels, groups = gather(open_for(study, path, group=owner), on_bad)
        if groups is not None:
            warn_of_look_alikes(np.unique(groups).tolist(), f"column {owner!r} of {path}")
        return x, to_indices(labels, study.classes or NUMERIC), groups
    parts = [gather(open_for(study, path), on_bad) for path in files]
    owners = np.repeat(np.array(names), [len(x) for x, _, _ in parts])
    labels = np.concatenate([labels for _, labels, _ in parts])
    return np.concatenate([x for x, _, _ in parts]), to_indices(labels, study.classes or NUMERIC), owners


def _usual_client(path: Path, known: Sequence[str]) -> str | None:
    """Return the column that names clients by its usual name, unless the study has it as something else."""
    found = [name for name in open_table(path).names if name.lower() == CLIENT_NAME and name not in known]
    return found[0] if len(found) == 1 else None

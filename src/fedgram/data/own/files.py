"""A user's own data as a `Dataset`; what kind it is, is told from the path."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedgram.core.columns import Columns
from fedgram.core.errors import Doubtful, InvalidData, InvalidParameter
from fedgram.core.labels import Classes, as_classes, distinct, to_indices
from fedgram.data.dataset import Dataset
from fedgram.data.fingerprint import fingerprint
from fedgram.data.own.bad import OnBad, check_on_bad
from fedgram.data.own.image_folder import open_image_folder
from fedgram.data.own.images import Size
from fedgram.data.own.npz import open_npz
from fedgram.data.own.tables import Scan, Table, Wanted, read_table, scan

MOST_LIKELY = 20  # classes that a table may have, however few rows


def open_path(
    path: str | Path,
    label: str | None = None,
    client: str | None = None,
    on_bad: OnBad = "refuse",
    *,
    size: int | Size | None = None,
    one_of_many: bool = False,
    progress: bool | None = None,
) -> Dataset:
    """Open a folder of images per class, an `.npz`, a CSV (or TSV) or a Parquet file.

    `label` and `client` name columns of a table (usual names are found by themselves) or arrays of an `.npz`.
    `size` is what images are brought to, a side or (height, width); by default their own if all share one, else
    224. A bad image or row is named, and then refused or skipped. With `one_of_many` the data are those of one party
    among others, who agree on the classes with each other: it may have a single one.
    """
    data = _open(Path(path).expanduser(), Wanted(label, client), on_bad, size=size, progress=progress)
    if not one_of_many:
        try:
            as_classes(data.classes)
        except InvalidData as error:
            raise InvalidData(
                f"{path}: {error}; a party that has one class only can take part where classes are agreed with others"
            ) from None
    return data


def open_samples(
    path: str | Path, label: str | None = None, on_bad: OnBad = "refuse", *, columns: Columns = ()
) -> Dataset:
    """Open samples that are to be scored, with labels or without: `y` is -1 where there is none.

    `columns` are the columns of a table that count, by name and in this order; others are left out.
    """
    return _open(Path(path).expanduser(), Wanted(label, None, columns or None, labelled=False), on_bad)


def scan_for(path: Path, label: str | None, columns: Columns, on_bad: OnBad) -> Scan:
    """Look through a table that is to be scored, by the same rules; its rows can then be read in blocks."""
    return scan(path, Wanted(label, None, columns or None, labelled=False), on_bad)


def _open(
    path: Path, wanted: Wanted, on_bad: OnBad, *, size: int | Size | None = None, progress: bool | None = None
) -> Dataset:
    check_on_bad(on_bad)
    data = _opened(path, wanted, on_bad, size, progress)
    # A system may have names that are not UTF-8; they could not be printed.
    return replace(data, name=data.name.encode(errors="backslashreplace").decode())


def _opened(path: Path, wanted: Wanted, on_bad: OnBad, size: int | Size | None, progress: bool | None) -> Dataset:
    if path.is_dir():
        if wanted.label or wanted.client:
            raise InvalidParameter(f"{path} is a folder of images: its subfolders are the labels, there are no columns")
        return open_image_folder(path, (size, size) if isinstance(size, int) else size, on_bad, progress)
    if not path.exists():
        raise InvalidData(f"{path} does not exist").telling("data: there is no such file or folder")
    match path.suffix.lower():
        case ".npz":
            return open_npz(path, wanted, on_bad)
        case ".csv" | ".tsv" | ".parquet" | ".pq":
            return _from_table(path.stem, read_table(path, wanted, on_bad))
    raise InvalidData(f"{path} is not of a known kind: .npz, .csv, .tsv, .parquet, or a folder of images per class")


def _from_table(name: str, table: Table) -> Dataset:
    y: npt.NDArray[np.int64] = np.full(len(table.x), -1)
    classes: Classes = ()
    if table.labels is not None:
        there = ~np.ma.getmaskarray(table.labels)
        known = np.asarray(table.labels)[there]
        classes = tuple(distinct(known))
        _warn_of_numbers(name, classes, len(known))
        y[there] = to_indices(known, classes) if classes else -1
    columns = {"x": table.x, "y": y, "groups": table.groups}
    data = Dataset(name, table.x, y, classes, fingerprint(columns, classes), groups=table.groups)
    roles = table.roles
    return replace(data, columns=roles.columns, about=roles.about(), unused=roles.unused, left_out=table.left_out)


def _warn_of_numbers(name: str, classes: Classes, rows: int) -> None:
    """Warn of labels that are hardly classes: whole numbers, nearly as many as rows."""
    if len(classes) > MOST_LIKELY and 2 * len(classes) > rows and isinstance(classes[0], int):
        warnings.warn(
            f"the labels of {name} are {len(classes)} different whole numbers in {rows} rows, and count as classes: to "
            "predict them as numbers, draft a study (fedgram study new) and give it with --study",
            Doubtful,
            stacklevel=3,
        )

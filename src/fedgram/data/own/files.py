"""A user's own data as a `Dataset`; the path decides how they are read."""

import warnings
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.classes import Classes, as_classes, as_labels, distinct, to_indices
from fedgram.core.columns import Columns, as_columns
from fedgram.core.errors import Doubtful, FedgramError, InvalidData, InvalidParameter
from fedgram.core.filesystem import open_regular
from fedgram.data.dataset import Dataset, fingerprint
from fedgram.data.own.bad import OnBad, Reason, check_expansion, check_on_bad, settle
from fedgram.data.own.blocks import IS_SPREADSHEET, SPREADSHEETS
from fedgram.data.own.cells import POINT, Notation
from fedgram.data.own.images import Size, open_image_folder
from fedgram.data.own.labels import tidied
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
    `size` is the size that images get, a side or (height, width); by default their own if all share one, else
    224. A bad image or row is named, and then refused or skipped. With `one_of_many` the data are those of one party
    among many that have agreed on the classes, and may have a single class.
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
    path: str | Path,
    label: str | None = None,
    on_bad: OnBad = "refuse",
    *,
    columns: Columns = (),
    notation: Notation = POINT,
) -> Dataset:
    """Return samples to be scored, with labels or without: `y` is -1 without a label.

    `columns` are the names of the columns of a table to use, in this order; others are left out.
    """
    wanted = Wanted(label, None, columns or None, labelled=False, notation=notation)
    return _open(Path(path).expanduser(), wanted, on_bad)


def scan_for(path: Path, label: str | None, columns: Columns, on_bad: OnBad, notation: Notation = POINT) -> Scan:
    """Return the scan of a table to be scored, by the same rules; its rows can then be read in blocks."""
    return scan(path, Wanted(label, None, columns or None, labelled=False, notation=notation), on_bad)


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
    if path.suffix.lower() in SPREADSHEETS:
        raise InvalidData(f"{path} {IS_SPREADSHEET}").telling("the table is a spreadsheet, which is not read")
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


Samples = tuple[npt.NDArray[Any], npt.NDArray[Any] | None, npt.NDArray[Any] | None, list[int]]


def open_npz(path: Path, wanted: Wanted, on_bad: OnBad) -> Dataset:
    """Read arrays x, y and optionally x_test, y_test, groups (or client), classes (names for whole-number labels)
    and columns (names of the columns of x).
    """
    arrays = load_arrays(path)
    label, client = wanted.label or "y", wanted.client
    groups_key = client or next((key for key in ("groups", "client") if key in arrays), None)
    for key in ("x", *([label] if wanted.labelled or wanted.label else []), *([client] if client else [])):
        if key not in arrays:
            raise InvalidData(f"{path} has no array {key!r}; it has {', '.join(arrays) or 'none'}").telling(
                f"there is no array {key!r}"
            )
    groups = arrays[groups_key] if groups_key else None
    usable = partial(_usable, path, on_bad=on_bad, labelled=wanted.labelled)
    x, labels, groups, left_out = usable("x", arrays["x"], arrays.get(label), groups)
    x_test, labels_test = None, None
    if "x_test" in arrays and labels is not None:
        if f"{label}_test" not in arrays:
            raise InvalidData(f"{path} has x_test but no {label}_test: add it")
        x_test, labels_test, _, bad = usable("x_test", arrays["x_test"], arrays[f"{label}_test"], None)
        left_out += [len(arrays["x"]) + place for place in bad]
    try:
        if "classes" in arrays:
            classes = as_classes(as_labels(arrays["classes"]).tolist())
        else:
            found = {*distinct(labels), *distinct(labels_test)}.difference({""})
            classes = tuple(sorted(found, key=lambda name: (str(type(name)), name)))
        y, y_test = (None if part is None else _indices(part, classes) for part in (labels, labels_test))
        columns = as_columns(as_labels(arrays["columns"]).tolist(), x.shape[1]) if "columns" in arrays else ()
    except InvalidData as error:
        raise InvalidData(f"{path}: {error}") from error
    parts = {"x": x, "y": y, "groups": groups, "x_test": x_test, "y_test": y_test}
    return Dataset(
        path.stem,
        x,
        np.full(len(x), -1) if y is None else y,
        classes,
        fingerprint(parts, classes),
        groups,
        x_test,
        y_test,
        columns=columns,
        left_out=tuple(left_out),
    )


def _indices(labels: npt.NDArray[Any], classes: Classes) -> npt.NDArray[np.int64]:
    """Return each label's index, -1 where there is none."""
    there = labels != "" if labels.dtype.kind == "U" else np.ones(len(labels), dtype=bool)
    y = np.full(len(labels), -1)
    y[there] = to_indices(labels[there], classes)
    return y


def load_arrays(path: Path) -> Mapping[str, npt.NDArray[Any]]:
    """Return the arrays of an .npz file; raise if it is damaged, or holds less than it claims."""
    try:
        with open_regular(path) as raw:
            if raw.read(6) == b"\x93NUMPY":
                raise InvalidData("a single array")
            with zipfile.ZipFile(raw) as archive:
                check_expansion(sum(info.file_size for info in archive.infolist()), path)
                return dict(_arrays(archive))
    except Exception as error:  # a damaged file can raise nearly anything
        if isinstance(error, FedgramError) and str(path) in str(error):
            raise
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reason = next(iter(said.splitlines()), "") or type(error).__name__
        raise InvalidData(f"{path} is not an .npz file of plain arrays ({reason}): save it again with numpy") from error


def _arrays(archive: zipfile.ZipFile) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    seen: set[str] = set()
    for info in archive.infolist():
        key = info.filename.removesuffix(".npy")
        if key in seen:
            raise InvalidData(f"array {key!r} is there twice: keep one of them")
        seen.add(key)
        with archive.open(info) as file:
            version = np.lib.format.read_magic(file)
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = header(file)
            held = info.file_size - file.tell()
        if dtype.hasobject:
            raise InvalidData(f"array {key!r} holds Python objects, which are never loaded")
        if min(shape, default=0) < 0 or prod(shape) * dtype.itemsize != held:
            raise InvalidData(f"array {key!r} claims shape {shape} of {dtype} but has {held:,} bytes")
        with archive.open(info) as file:
            yield key, np.lib.format.read_array(file, allow_pickle=False)


def _usable(
    path: Path,
    key: str,
    x: npt.NDArray[Any],
    y: npt.NDArray[Any] | None,
    groups: npt.NDArray[Any] | None,
    *,
    on_bad: OnBad,
    labelled: bool,
) -> Samples:
    """Return the usable samples and the places of the others: not finite, or without a label or client.

    Raises if lengths differ, or for bad samples if the user refuses them. Labels that may be missing are then "".
    """
    if x.dtype.kind not in "fiub" or x.ndim < 2 or 0 in x.shape[1:]:
        raise InvalidData(f"{key} of {path} is {x.dtype} of shape {x.shape}: expected numbers, one row per sample")
    try:
        labels = None if y is None else as_labels(y)
    except InvalidData as error:
        raise InvalidData(f"{path}: {error}") from error
    for name, other in (("labels", labels), ("groups", groups)):
        if other is not None and (other.ndim != 1 or len(other) != len(x)):
            found = len(other) if other.ndim == 1 else f"shape {other.shape} of"
            raise InvalidData(f"{path} has {len(x)} samples in {key} but {found} {name}")
    finite = np.ones(len(x), dtype=bool)
    if x.dtype.kind == "f":
        finite &= np.isfinite(x).all(axis=tuple(range(1, x.ndim)))
    has_label, has_client = np.ones(len(x), dtype=bool), np.ones(len(x), dtype=bool)
    if labels is not None and labels.dtype.kind == "U":
        labels = tidied(labels.tolist(), f"the labels of {path}")
        has_label = (labels != "") | (not labelled)
    if groups is not None and groups.dtype.kind == "U":
        groups = tidied(groups.tolist(), f"the clients of {path}")
        has_client = groups != ""
    elif groups is not None and groups.dtype.kind == "f":
        has_client = np.isfinite(groups)
    good = finite & has_label & has_client
    places = np.flatnonzero(~good).tolist()
    not_finite = Reason("holds NaN or infinity", f"{key} must be finite")
    no_label = Reason("has no label", f"{key} must have a label for each sample")
    no_client = Reason("has no client", f"{key} must have a client for each sample")
    why = [not_finite if not finite[i] else no_label if not has_label[i] else no_client for i in places]
    bad = [reason.at(f"{key}[{i}]") for i, reason in zip(places, why, strict=True)]
    settle(bad, int(good.sum()), str(path), "row", on_bad)
    if not places:
        return x, labels, groups, places
    return x[good], None if labels is None else labels[good], None if groups is None else groups[good], places

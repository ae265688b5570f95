"""A user's own data as a `Dataset`; what kind it is, is told from the path."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.data.bad import OnBad, Reason, check_on_bad, settle
from fedgram.data.dataset import Dataset
from fedgram.data.fingerprint import fingerprint
from fedgram.data.image_folder import open_image_folder
from fedgram.data.images import Size
from fedgram.data.tables import Table, read_csv, read_parquet
from fedgram.errors import InvalidData, InvalidParameter
from fedgram.labels import as_classes, as_labels, distinct, to_indices


def open_path(
    path: str | Path,
    label: str | None = None,
    client: str | None = None,
    on_bad: OnBad = "refuse",
    *,
    size: int | Size | None = None,
    progress: bool | None = None,
) -> Dataset:
    """Open a folder of images per class, an `.npz`, a CSV (or TSV) or a Parquet file.

    `label` and `client` name columns of a table (usual names are found by themselves) or arrays of an `.npz`.
    `size` is what images are brought to, a side or (height, width); by default their own if all share one, else
    224. A bad image or row is named, and then refused or skipped.
    """
    check_on_bad(on_bad)
    path = Path(path).expanduser()
    if path.is_dir():
        if label or client:
            raise InvalidParameter(f"{path} is a folder of images: its subfolders are the labels, there are no columns")
        return open_image_folder(path, (size, size) if isinstance(size, int) else size, on_bad, progress)
    if not path.exists():
        raise InvalidData(f"{path} does not exist").telling("data: there is no such file or folder")
    match path.suffix.lower():
        case ".npz":
            return _open_npz(path, label or "y", client, on_bad)
        case ".csv" | ".tsv":
            return _from_table(path.stem, read_csv(path, label, client, on_bad))
        case ".parquet" | ".pq":
            return _from_table(path.stem, read_parquet(path, label, client, on_bad))
    raise InvalidData(f"{path} is not of a known kind: .npz, .csv, .tsv, .parquet, or a folder of images per class")


def _from_table(name: str, table: Table) -> Dataset:
    classes = as_classes(distinct(table.labels))
    y = to_indices(table.labels, classes)
    columns = {"x": table.x, "y": y, "groups": table.groups}
    return Dataset(name, table.x, y, classes, fingerprint(columns, classes), groups=table.groups)


def _open_npz(path: Path, label: str, client: str | None, on_bad: OnBad) -> Dataset:
    """Read arrays x, y and optionally x_test, y_test, groups (or client), classes (names for whole-number labels)."""
    arrays = _loaded(path)
    groups_key = client or next((key for key in ("groups", "client") if key in arrays), None)
    for key in ("x", label, *([client] if client else [])):
        if key not in arrays:
            raise InvalidData(f"{path} has no array {key!r}; it has {', '.join(arrays) or 'none'}").telling(
                f"there is no array {key!r}"
            )
    groups = arrays[groups_key] if groups_key else None
    x, labels, groups = _usable(path, "x", arrays["x"], arrays[label], groups, on_bad=on_bad)
    x_test, labels_test = None, labels[:0]
    if "x_test" in arrays:
        if f"{label}_test" not in arrays:
            raise InvalidData(f"{path} has x_test but no {label}_test: add it")
        x_test, labels_test, _ = _usable(path, "x_test", arrays["x_test"], arrays[f"{label}_test"], None, on_bad=on_bad)
    if "classes" in arrays:
        classes = as_classes(as_labels(arrays["classes"]).tolist())
    else:
        classes = as_classes(
            sorted({*distinct(labels), *distinct(labels_test)}, key=lambda name: (str(type(name)), name))
        )
    y = to_indices(labels, classes)
    y_test = None if x_test is None else to_indices(labels_test, classes)
    columns = {"x": x, "y": y, "groups": groups, "x_test": x_test, "y_test": y_test}
    return Dataset(path.stem, x, y, classes, fingerprint(columns, classes), groups, x_test, y_test)


def _loaded(path: Path) -> Mapping[str, npt.NDArray[Any]]:
    try:
        with path.open("rb") as raw:
            file = np.load(raw, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("a single array")
            return {key: file[key] for key in file.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidData(f"{path} is not an .npz file of plain arrays ({error})") from error


def _usable(
    path: Path,
    key: str,
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    groups: npt.NDArray[Any] | None,
    *,
    on_bad: OnBad,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any] | None]:
    """Check that lengths agree and leave out samples that hold NaN or infinity."""
    if x.dtype.kind not in "fiub" or x.ndim < 2:
        raise InvalidData(f"{key} of {path} is {x.dtype} of shape {x.shape}: expected numbers, one row per sample")
    labels = as_labels(y)
    for name, other in (("labels", labels), ("groups", groups)):
        if other is not None and len(other) != len(x):
            raise InvalidData(f"{path} has {len(x)} samples in {key} but {len(other)} {name}")
    good = np.isfinite(x).reshape(len(x), -1).all(axis=1) if x.dtype.kind == "f" else np.ones(len(x), dtype=bool)
    not_finite = Reason("holds NaN or infinity", f"{key} must be finite")
    bad = [not_finite.at(f"{key}[{i}]") for i in np.flatnonzero(~good).tolist()]
    settle(bad, int(good.sum()), str(path), "row", on_bad)
    return (x, labels, groups) if good.all() else (x[good], labels[good], None if groups is None else groups[good])

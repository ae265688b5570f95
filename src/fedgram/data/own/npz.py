"""NumPy's .npz files, read without trust: never a pickle, and nothing is allocated that the file does not hold."""

import zipfile
from collections.abc import Iterator, Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.columns import as_columns
from fedgram.core.errors import FedgramError, InvalidData
from fedgram.core.files import open_regular
from fedgram.core.labels import Classes, as_classes, as_labels, distinct, to_indices
from fedgram.data.dataset import Dataset
from fedgram.data.fingerprint import fingerprint
from fedgram.data.own.bad import OnBad, Reason, check_expansion, settle
from fedgram.data.own.labels import tidied
from fedgram.data.own.tables import Wanted

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
    """Return the arrays of an .npz file; refuse one that is damaged, or holds less than it says."""
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
            raise InvalidData(f"array {key!r} is there twice, and one cannot tell which is meant")
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
    """Check that lengths agree and leave out samples that are not finite or whose label or client is missing.

    Also return their places. Labels of samples that need none are "" where they are missing.
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

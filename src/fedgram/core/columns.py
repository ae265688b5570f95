"""Columns by name: the names of a table's columns, and samples in the agreed order of columns.

Tables of pandas, polars and Arrow are recognised by their attributes, without importing these libraries.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import dense, unmasked
from fedgram.core.errors import InvalidData, Mismatch
from fedgram.core.extras import require

Columns: TypeAlias = tuple[str, ...]
_SHOWN = 6


def names_of(x: Any) -> Columns:
    """Return the names of a table's columns; () for an array, and for columns that are numbered, not named."""
    if isinstance(x, np.ndarray | list | tuple):
        return ()
    names = getattr(x, "column_names", None)  # Arrow, where `columns` are the columns themselves
    names = getattr(x, "columns", None) if names is None else names
    if names is None or not all(isinstance(name, str) for name in names):
        return ()
    return as_columns(names)


def as_columns(names: Iterable[str], count: int | None = None) -> Columns:
    """Return names as columns; raise for a name that occurs twice, or another number of names than `count`.

    >>> as_columns(["age", "age"])
    Traceback (most recent call last):
    fedgram.core.errors.InvalidData: column 'age' occurs twice: give each column a name of its own
    """
    columns = tuple(names)
    for name in columns:
        if not isinstance(name, str):
            raise InvalidData(f"a column's name must be a text, got {name!r}")
    if len(set(columns)) < len(columns):
        seen: set[str] = set()
        twice = next(name for name in columns if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InvalidData(f"column {twice!r} occurs twice: give each column a name of its own")
    if columns and count is not None and len(columns) != count:
        raise InvalidData(f"{len(columns)} column names for {count} columns")
    return columns


def samples_of(x: Any, columns: Sequence[str] = ()) -> npt.NDArray[Any]:
    """Return samples as an array; a table's columns are taken by name, in the order of `columns` if there are any.

    Other columns of a table are left out; a missing column raises `Mismatch`. An array stays as it is.

    >>> class Frame(dict):
    ...     columns = property(lambda self: list(self))
    >>> samples_of(Frame(sex=[0.0, 1.0], age=[30.0, 40.0]), ("age", "sex"))
    array([[30.,  0.],
           [40.,  1.]])
    """
    x = as_table(x)
    names = names_of(x)
    if not names:
        return dense(x, "features")
    if missing := [name for name in columns if name not in set(names)]:
        raise Mismatch(f"the table lacks {listed(missing)}: it has {listed(names)}")
    return np.column_stack([_numbers(x[name], name) for name in columns or names])


def order(own: Sequence[str], wanted: Sequence[str]) -> npt.NDArray[np.intp]:
    """Return the place of each wanted column among the own columns; raise for other columns, by name.

    >>> order(("sex", "age"), ("age", "sex"))
    array([1, 0])
    """
    if unlike := difference(own, wanted):
        raise Mismatch(unlike)
    places = {name: place for place, name in enumerate(own)}
    return np.array([places[name] for name in wanted], dtype=np.intp)


def difference(own: Sequence[str], wanted: Sequence[str]) -> str:
    """Return a text about missing and unknown columns; "" if both have the same columns.

    >>> difference(("age", "bmi"), ("age", "bp"))
    "lacks column 'bp'; has unknown column 'bmi'"
    """
    if set(own) == set(wanted):
        return ""
    if not own or not wanted:
        return f"has {'no column names' if wanted else 'column names'}, the others {'do' if wanted else 'do not'}"
    missing, unknown = sorted(set(wanted) - set(own)), sorted(set(own) - set(wanted))
    parts = [f"lacks {listed(missing)}"] if missing else []
    return "; ".join([*parts, *([f"has unknown {listed(unknown)}"] if unknown else [])])


def listed(names: Sequence[str]) -> str:
    """Return names for a message: the first few, and how many more.

    >>> listed(["age"]), listed(["age", "bp"])
    ("column 'age'", "columns 'age', 'bp'")
    """
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"column{'s' if len(names) > 1 else ''} {shown}{more}"


def _numbers(column: Any, name: str) -> npt.NDArray[Any]:
    values = np.asarray(unmasked(column, f"column {name!r}"))
    if values.ndim != 1 or values.dtype.kind not in "fiub":
        raise InvalidData(f"column {name!r} holds {values.dtype}, not numbers: drop it or encode it")
    return values


def as_table(x: Any) -> Any:
    """Return an object that is only a stream of Arrow as a table, and other objects as they are."""
    if hasattr(x, "columns") or hasattr(x, "column_names") or not hasattr(x, "__arrow_c_stream__"):
        return x
    return require("pyarrow", "tables", "this table").table(x)

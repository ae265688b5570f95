"""Fields of a results file's records, of the kind they must be: what is not, is a ValueError that says so.

A file may have been edited, or written by another program. Half of these values would be taken for something else by
Python's own conversions: the digits of a text for a list of numbers, 1.7 for the seed 1.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
Record = Mapping[str, Any]
MOST = 2**63  # counts beyond were never measured
LARGEST = 1e300  # so that sums and means of numbers are numbers
DEEPEST = 8  # of hyper-parameters


def text(name: str, value: Any) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise _wrong(name, "text", value)
    return value


def flag(name: str, value: Any) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise _wrong(name, "true or false", value)
    return value


def count(name: str, value: Any) -> int:
    """Return a whole number that counts something; JSON may write it as 5e7."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MOST or value % 1:
        raise _wrong(name, "a whole number ≥ 0", value)
    return int(value)


def number(name: str, value: Any) -> float:
    """Return a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST <= value <= LARGEST:
        raise _wrong(name, "a number", value)
    return float(value)


def share(name: str, value: Any) -> float:
    """Return a number from 0 to 1."""
    if not 0 <= (found := number(name, value)) <= 1:
        raise _wrong(name, "a number from 0 to 1", value)
    return found


def setting(name: str, value: Any, depth: int = DEEPEST) -> Any:
    """Return a value of any kind that is not nested too deep to be shown."""
    if isinstance(value, dict | list) and depth == 0:
        raise ValueError(f"{name} is nested deeper than {DEEPEST} levels")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        setting(name, item, depth - 1)
    if not isinstance(value, dict | list | str | bool | None):
        number(name, value)
    return value


def maybe(read: Callable[[str, Any], T], record: Record, name: str) -> T | None:
    """Return a field that may be missing, or null."""
    value = record.get(name)
    return None if value is None else read(name, value)


def each(read: Callable[[str, Any], T]) -> Callable[[str, Any], list[T]]:
    """Return a reader of lists."""

    def read_all(name: str, value: Any) -> list[T]:
        if not isinstance(value, list):
            raise _wrong(name, "a list", value)
        return [read(name, item) for item in value]

    return read_all


def table(read: Callable[[str, Any], T], record: Record, name: str) -> dict[str, T]:
    """Return a field that is a table; what is null in it is left out, and a missing one is empty."""
    value = record.get(name)
    if value is not None and not isinstance(value, dict):
        raise _wrong(name, "a table", value)
    return {key: read(f"{name}.{key}", item) for key, item in (value or {}).items() if item is not None}


def _wrong(name: str, kind: str, value: Any) -> ValueError:
    shown = f"{value!r}" if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
    return ValueError(f"{name} must be {kind}, got {shown if len(shown) <= 60 else shown[:57] + '…'}")

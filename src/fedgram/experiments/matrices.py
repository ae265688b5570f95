"""Matrices that a method left with its result, such as who takes how much of whom: written down, and read again."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Self

import numpy as np

from fedgram.experiments.fields import each, maybe, number, text
from fedgram.protocol.fit import Fit

MOST_ROWS = 200
_DIGITS = 4  # significant ones: what a client takes of others may be a thousandth of what it takes of itself


@dataclass(frozen=True)
class Matrix:
    """A matrix of a run; where `clients` are named, each has a row and a column. None is what was not finite."""

    values: Sequence[Sequence[float | None]]
    clients: Sequence[str] = ()

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Read what `recorded` wrote."""
        values = each(each(_entry))("values", record["values"])
        clients = maybe(each(text), record, "clients") or []
        if not values or not values[0] or len({len(row) for row in values}) > 1:
            raise ValueError("rows of a matrix differ in length, or are empty")
        if clients and not len(clients) == len(values) == len(values[0]):
            raise ValueError(f"a matrix of {len(values)} by {len(values[0])} is not of {len(clients)} clients")
        return cls(values, clients)

    @property
    def own(self) -> list[float]:
        """What is on the diagonal, where rows and columns are clients."""
        return _known(row[i] for i, row in enumerate(self.values)) if self.clients else []

    @property
    def range(self) -> tuple[float, float] | None:
        """The lowest and the highest value off the diagonal, which would leave all the others without colour."""
        others = _known(
            value for i, row in enumerate(self.values) for j, value in enumerate(row) if i != j or not self.clients
        )
        return (min(others), max(others)) if others else None


def recorded(fit: Fit, names: Sequence[str]) -> dict[str, Any]:
    """Return the matrices among a fit's notes, ready for JSON; `names` are all the clients', in the engine's order.

    What is no matrix of real numbers, or too large to be looked at, is left out.
    """
    found = {name: value for name, value in fit.notes.items() if _is_matrix(value)}
    return {name: _described(value, fit, names) for name, value in found.items()}


def _is_matrix(value: Any) -> bool:
    return (
        isinstance(value, np.ndarray)
        and value.ndim == 2
        and value.dtype.kind in "biuf"
        and min(value.shape) > 0
        and max(value.shape) <= MOST_ROWS
    )


def _described(matrix: np.ndarray[Any, Any], fit: Fit, names: Sequence[str]) -> dict[str, Any]:
    took_part = [name for name in names if name in fit.contributors or name not in fit.absent]
    # A client that was lost on the way has its row all the same. Nobody is named where the number does not fit.
    clients = next((some for some in (took_part, names) if (len(some), len(some)) == matrix.shape), ())
    values = [[_rounded(value) for value in row] for row in matrix.tolist()]
    return {"clients": list(clients), "values": values} if clients else {"values": values}


def _entry(name: str, value: Any) -> float | None:
    return None if value is None else number(name, value)


def _rounded(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if isfinite(value) else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]

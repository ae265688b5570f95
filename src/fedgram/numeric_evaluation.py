"""Errors of predicted numbers on clients' own test samples, from sums alone: test data stay where they are."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from math import isnan, nan, sqrt
from typing import Any, Self

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.blocks import Blocks, as_blocks
from fedgram.models import Model, finite
from fedgram.moments.basis import Basis

SUMS = ("squared", "absolute", "total", "spread")  # that clients send


@dataclass(frozen=True)
class Errors:
    """What is known of the errors in one outcome, of n samples: sums of their squares and of their absolute values.

    `total` is the sum of the outcome itself, `spread` that of its squares about its mean, which R² compares with. Kept
    about the mean, it loses no digits where outcomes are far from zero. Errors of different samples add.

    >>> both = Errors(2, 2.0, 2.0, 6.0, 8.0) + Errors(2, 0.0, 0.0, 14.0, 2.0)
    >>> both.rmse, both.mae, both.spread, round(both.r2, 3)
    (0.7071067811865476, 0.5, 26.0, 0.923)
    """

    n: int
    squared: float
    absolute: float
    total: float
    spread: float

    @classmethod
    def of(cls, predicted: Array, values: Array) -> Self:
        """Return the errors of predicted numbers (n,) against the values (n,) that they should have had."""
        sums = _sums(predicted - values, values)
        return cls(len(values), **{what: float(found) for what, found in sums.items()})

    def __add__(self, other: Self) -> "Errors":
        """Return the errors of both together."""
        n = self.n + other.n
        apart = self.total / self.n - other.total / other.n if self.n and other.n else 0.0
        return Errors(
            n,
            self.squared + other.squared,
            self.absolute + other.absolute,
            self.total + other.total,
            self.spread + other.spread + (self.n * other.n / n * apart**2 if n else 0.0),
        )

    @property
    def rmse(self) -> float:
        """Root of the mean squared error, in the outcome's own unit; NaN without samples."""
        return sqrt(self.squared / self.n) if self.n else nan

    @property
    def mae(self) -> float:
        """Mean absolute error, in the outcome's own unit; NaN without samples."""
        return self.absolute / self.n if self.n else nan

    @property
    def r2(self) -> float:
        """Share of the variance that is explained; NaN where the outcome does not vary."""
        return 1 - self.squared / self.spread if self.spread > 0 else nan

    def summary(self) -> dict[str, float]:
        """Return the three by name."""
        return {"rmse": self.rmse, "mae": self.mae, "r2": self.r2}

    def plain(self) -> dict[str, float | None]:
        """Return the three for JSON, which has no NaN: R² is one where the outcome does not vary."""
        return {name: None if isnan(value) else value for name, value in self.summary().items()}


@dataclass(frozen=True)
class NumericEvaluation:
    """How many test samples each client has, and the errors of its model in each outcome, by name.

    A client without test samples, or whose test samples could not be scored (`failed` says why), has no errors and is
    counted in `untested`. R² of a client is about that client's own mean, the pooled one about the mean of all.

    >>> result = NumericEvaluation({"a": {"cost": Errors(4, 4.0, 4.0, 20.0, 16.0)}}, tested={"a": 4, "b": 0})
    >>> result.pooled["cost"].rmse, result.by_client["a"]["cost"].r2, result.untested
    (1.0, 0.75, 1)
    """

    errors: Mapping[str, Mapping[str, Errors]]
    tested: Mapping[str, int]
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def by_client(self) -> Mapping[str, Mapping[str, Errors]]:
        """Errors of each client that has test samples, by outcome."""
        return {name: self.errors[name] for name, n in self.tested.items() if n}

    @property
    def untested(self) -> int:
        """Number of clients without test samples."""
        return sum(not n for n in self.tested.values())

    @property
    def pooled(self) -> dict[str, Errors]:
        """Errors over all test samples together, by outcome."""
        clients = list(self.by_client.values())
        names = clients[0] if clients else ()
        return {name: reduce(lambda one, other: one + other, (errors[name] for errors in clients)) for name in names}

    def summary(self) -> dict[str, dict[str, float]]:
        """Return RMSE, MAE and R² over all test samples, by outcome."""
        return {name: errors.summary() for name, errors in self.pooled.items()}

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return the evaluation that was taken apart by `asdict`."""
        errors = {
            client: {name: Errors(**sums) for name, sums in by_outcome.items()}
            for client, by_outcome in fields["errors"].items()
        }
        return cls(errors, fields["tested"], fields.get("failed", {}))


def sum_errors(model: Model, x: Any, values: Array) -> dict[str, Array]:
    """Return the sums of `Errors`, (t,) each, of a model for samples x (n, d) with these outcomes (n, t)."""
    return _sums(finite(model.scores(x)) - values, values)


def _sums(errors: Array, values: Array) -> dict[str, Any]:
    return {
        "squared": np.square(errors).sum(axis=0),
        "absolute": np.abs(errors).sum(axis=0),
        "total": values.sum(axis=0),
        "spread": np.square(values - values.mean(axis=0)).sum(axis=0),
    }


def sum_up(model: Model, samples: Iterable[tuple[Array, Array]], names: tuple[str, ...]) -> dict[str, Errors]:
    """Return a model's errors by outcome, for blocks of samples x (n, d) with these outcomes (n, t)."""
    total: dict[str, Errors] = {}
    for x, values in samples:
        found = as_errors(sum_errors(model, x, values), len(x), names)
        total = {name: total[name] + errors if total else errors for name, errors in found.items()}
    return total


def sum_errors_of(model: Model, samples: Array | Blocks[Array], basis: Basis) -> dict[str, Array]:
    """Return the sums of `Errors` for samples (n, p) as clients have them, numeric outcomes last, in blocks or not.

    `basis` has outcomes.
    """
    outcomes, width = basis.outcomes, basis.of_features.source
    assert outcomes is not None
    blocks = ((block[:, :width], outcomes.in_own_unit(basis.outcome_values(block))) for block in as_blocks(samples))
    found = sum_up(model, blocks, outcomes.names)
    return {what: np.array([getattr(found[name], what) for name in outcomes.names]) for what in SUMS}


def as_errors(sums: Mapping[str, Array], n: int, names: tuple[str, ...]) -> dict[str, Errors]:
    """Return sums over n samples as errors by outcome."""
    columns = {what: found.tolist() for what, found in sums.items()}
    return {
        name: Errors(n, **{what: found[place] for what, found in columns.items()}) for place, name in enumerate(names)
    }

"""Evaluations of models on clients' own test samples: right labels and probabilities, or errors of numbers.

Clients send sums alone, so that test data stay where they are.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from math import ceil, isfinite, nan, sqrt
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidData, RefusedMessage
from fedgram.models import Model, finite
from fedgram.models import probabilities as probabilities_of

Indices: TypeAlias = npt.NDArray[np.int64]
FEW_SAMPLES = 10  # with fewer test samples, the accuracy of a client is little more than noise
BINS = 10  # ranges of confidence, in each of which accuracy is compared with it
MUCH = 1 + 1e-9  # factor that leaves room for rounding errors in bounds
LARGEST_SUM = 1e300  # larger sums could overflow when they are added up
ERROR_SUMS = ("squared", "absolute", "total", "spread")  # that clients send for each numeric outcome


class Performance(ABC):
    """Sums over some test samples by which a model is scored; sums over different samples add up.

    There is a subclass for each kind of target: `RightLabels` for classes, `NumericErrors` for numbers.
    """

    packed: ClassVar[str]  # the field of a saved evaluation that only this kind has
    kinds: ClassVar[list["type[Performance]"]] = []
    n: int

    def __init_subclass__(cls) -> None:
        """Register the kind, so that saved evaluations of it can be read."""
        cls.kinds.append(cls)

    @abstractmethod
    def __add__(self, other: Self) -> Self:
        """Return the sums over the samples of both."""

    @abstractmethod
    def sums(self) -> Any:
        """Return the sums as a client sends them."""

    @property
    @abstractmethod
    def figure(self) -> Any:
        """The measure that reports lead with: a number, or several by name."""

    @classmethod
    @abstractmethod
    def summary(cls, clients: Sequence[Self]) -> dict[str, Any]:
        """Return measures by name, of clients that have test samples each."""

    @classmethod
    @abstractmethod
    def report(cls, clients: Sequence[Self]) -> dict[str, Any]:
        """Return the fields of a report, ready for JSON, of clients that have test samples each."""

    @classmethod
    @abstractmethod
    def record(cls, clients: Sequence[Self | None]) -> dict[str, Any]:
        """Return the fields of a run's record, lists with an element for each client; None is one without sums."""

    @classmethod
    @abstractmethod
    def pack(cls, clients: Mapping[str, Self]) -> dict[str, Any]:
        """Return the sums by client as plain fields of a saved evaluation."""

    @classmethod
    @abstractmethod
    def unpack(cls, fields: Mapping[str, Any]) -> dict[str, Self]:
        """Return the sums by client from the plain fields of a saved evaluation."""

    @classmethod
    def check_packed(cls, name: str, fields: Mapping[str, Any]) -> None:
        """Raise RefusedMessage if the field `name` of a saved fit is not what `pack` makes."""
        raise RefusedMessage(f"{name}: expected an evaluation of a kind that can be checked, got {cls.packed!r}")

    def counts(self) -> Self:
        """Return the part that is kept of every round."""
        return self


@dataclass(frozen=True)
class Evaluation:
    """The performance of each client's model on its own test samples.

    A client without test samples, or whose test samples could not be scored (`failed` says why), is left out of the
    means and counted in `untested`. Without any test samples the means are NaN, and the evaluation is false.

    Parameters
    ----------
    performances : Mapping[str, Performance]
        The sums over each client's test samples, by name: `RightLabels`, or `NumericErrors`.
    tested : Mapping[str, int]
        The number of each client's test samples.
    failed : Mapping[str, str]
        Why test samples could not be scored, by client.

    Examples
    --------
    >>> right = {"a": RightLabels(9, 10), "b": RightLabels(2, 4), "c": RightLabels(0, 0)}
    >>> result = Evaluation(right, tested={"a": 10, "b": 4, "c": 0})
    >>> result.client_mean, result.pooled, result.worst_decile, result.untested, result.few
    (0.7, 0.7857142857142857, 0.5, 1, 1)

    >>> errors = {"a": NumericErrors({"cost": Errors(4, 4.0, 4.0, 20.0, 16.0)})}
    >>> result = Evaluation(errors, tested={"a": 4, "b": 0})
    >>> result.pooled["cost"].rmse, result.by_client["a"]["cost"].r2, result.untested
    (1.0, 0.75, 1)

    """

    performances: Mapping[str, Any] = field(default_factory=dict)
    tested: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether any test samples were scored."""
        return any(self.tested.values())

    @property
    def kind(self) -> type[Performance]:
        """The kind of all clients' sums; `RightLabels` if there are no clients."""
        return next((type(found) for found in self.performances.values()), RightLabels)

    @property
    def judged(self) -> dict[str, Any]:
        """The sums of each client that has test samples."""
        return {name: self.performances[name] for name, n in self.tested.items() if n}

    @property
    def by_client(self) -> dict[str, Any]:
        """The accuracy of each client that has test samples, or its errors by numeric outcome."""
        return {name: found.figure for name, found in self.judged.items()}

    @property
    def untested(self) -> int:
        """Number of clients without test samples."""
        return sum(not n for n in self.tested.values())

    @property
    def few(self) -> int:
        """Number of clients with fewer than ten test samples, those without any left out."""
        return sum(0 < n < FEW_SAMPLES for n in self.tested.values())

    @property
    def total(self) -> Any:
        """The sums over all test samples together, None without any."""
        found = list(self.judged.values())
        return reduce(lambda one, other: one + other, found) if found else None

    @property
    def pooled(self) -> Any:
        """Accuracy over all test samples together, as FedAPA and FedACnnL report, or errors by numeric outcome.

        NaN without test samples.
        """
        total = self.counts().total
        return nan if total is None else total.figure

    @property
    def client_mean(self) -> float:
        """Mean of the clients' accuracies, as FedHiP and APFL report; NaN without test samples."""
        return mean_of(list(self.by_client.values()))

    @property
    def worst_decile(self) -> float:
        """Mean accuracy of the worst tenth of the clients (at least one)."""
        return worst_tenth(list(self.by_client.values()))

    def summary(self) -> dict[str, Any]:
        """Return the three accuracies by name; or RMSE, MAE and R² over all test samples, by numeric outcome."""
        return self.kind.summary(list(self.judged.values()))

    def report(self) -> dict[str, Any]:
        """Return the fields of a report, ready for JSON."""
        found = list(self.judged.values())
        return self.kind.report(found) if found else {"accuracy": None}

    def record(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the fields of a run's record for these clients, in this order, beside `report`."""
        judged = self.judged
        return self.kind.record([judged.get(name) for name in names])

    @property
    def correct(self) -> dict[str, int]:
        """The number of right labels of each client's model, where there are classes."""
        return {name: found.correct for name, found in self.performances.items() if isinstance(found, RightLabels)}

    @property
    def calibration(self) -> dict[str, "Calibration"]:
        """The sums about each client's probabilities, where there are classes and the sums were sent."""
        right = {name: found for name, found in self.performances.items() if isinstance(found, RightLabels)}
        return {name: found.calibration for name, found in right.items() if found.calibration is not None}

    @property
    def probabilities(self) -> "Calibration | None":
        """The sums about the probabilities of all test samples; None if no client has sent any."""
        return _pooled_calibration(self.calibration.values())

    def counts(self) -> Self:
        """Return the evaluation without sums about probabilities."""
        return replace(self, performances={name: found.counts() for name, found in self.performances.items()})

    def to_fields(self) -> dict[str, Any]:
        """Return the evaluation as plain values."""
        return {**self.kind.pack(self.performances), "tested": dict(self.tested), "failed": dict(self.failed)}

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return the evaluation in the fields of `to_fields`."""
        [kind] = [kind for kind in Performance.kinds if kind.packed in fields]
        return cls(kind.unpack(fields), fields["tested"], fields.get("failed", {}))


def mean_of(figures: Sequence[float]) -> float:
    """Return the mean of numbers, NaN without any."""
    return sum(figures) / len(figures) if figures else nan


def worst_tenth(figures: Sequence[float]) -> float:
    """Return the mean of the smallest tenth of numbers, at least one of them; NaN without any."""
    return mean_of(sorted(figures)[: ceil(len(figures) / 10)])


@dataclass(frozen=True)
class RightLabels(Performance):
    """The number of right labels among `n` test samples, with sums about the probabilities where these are known.

    >>> both = RightLabels(9, 10) + RightLabels(2, 4)
    >>> both.correct, both.n, both.figure
    (11, 14, 0.7857142857142857)
    """

    packed: ClassVar[str] = "correct"

    correct: int
    n: int
    # Sums of probabilities are the same to rounding only, so two evaluations are compared by their counts.
    calibration: "Calibration | None" = field(default=None, compare=False)

    @classmethod
    def of(cls, calibration: "Calibration") -> Self:
        """Return the counts that sums about probabilities hold, with these sums."""
        return cls(calibration.correct, calibration.n, calibration)

    @classmethod
    def of_sums(cls, sums: Any, n: int) -> Self:
        """Return a client's sums over n test samples: the number of right labels, or the sums of `Calibration`."""
        return cls.of(Calibration.of_sums(sums)) if isinstance(sums, dict) else cls(sums, n)

    def sums(self) -> Any:
        """Return the sums for the server: those of `Calibration`, or the number of right labels."""
        return self.correct if self.calibration is None else self.calibration.sums()

    @staticmethod
    def check_sums(sums: Any, n: int, where: str) -> None:
        """Raise RefusedMessage for sums that no probabilities of n test samples have."""
        if not isinstance(sums, dict):
            _check_number(sums, where, n, whole=True)
            return
        _check_names(sums, where, ("squared", "samples", "right", "confidence"))
        _check_number(sums["squared"], f"{where}/squared", 2 * n * MUCH)
        for name, dtype in (("samples", "int64"), ("right", "int64"), ("confidence", "float64")):
            _check_array(sums[name], f"{where}/{name}", dtype, BINS, 0.0, n)
        samples = sums["samples"]
        if samples.sum() != n:
            raise RefusedMessage(f"{where}/samples must be counts of {n} test samples, got counts of {samples.sum()}")
        for name in ("right", "confidence"):
            if (sums[name] > samples * MUCH).any():
                raise RefusedMessage(f"{where}/{name} must be at most as much as 'samples' in each range, got more")

    def __add__(self, other: Self) -> Self:
        """Return the counts of both together."""
        known = _pooled_calibration(each.calibration for each in (self, other) if each.calibration is not None)
        return replace(self, correct=self.correct + other.correct, n=self.n + other.n, calibration=known)

    @property
    def figure(self) -> float:
        """The accuracy; NaN without samples."""
        return self.correct / self.n if self.n else nan

    @classmethod
    def summary(cls, clients: Sequence[Self]) -> dict[str, Any]:
        """Return the three accuracies by name."""
        figures, n = [found.figure for found in clients], sum(found.n for found in clients)
        pooled = sum(found.correct for found in clients) / n if n else nan
        return {"client_mean": mean_of(figures), "pooled": pooled, "worst_decile": worst_tenth(figures)}

    @classmethod
    def report(cls, clients: Sequence[Self]) -> dict[str, Any]:
        """Return the accuracies, and the calibration of probabilities where it is known."""
        known = _pooled_calibration(found.calibration for found in clients if found.calibration is not None)
        return {"accuracy": cls.summary(clients)} | ({} if known is None else {"probabilities": known.summary()})

    @classmethod
    def record(cls, clients: Sequence[Self | None]) -> dict[str, Any]:
        """Return the counts of right labels; and sums about probabilities by client, and over all in ranges."""
        fields: dict[str, Any] = {"correct": [0 if found is None else found.correct for found in clients]}
        known = [None if found is None else found.calibration for found in clients]
        total = _pooled_calibration(found for found in known if found is not None)
        if total is not None:
            fields["squared"] = [0.0 if found is None else found.squared for found in known]
            errors = [nan if found is None else found.error for found in known]
            fields["calibration_errors"] = [error if isfinite(error) else None for error in errors]
            parts = asdict(total).items()
            fields["reliability"] = {name: list(part) if isinstance(part, tuple) else part for name, part in parts}
        return fields

    @classmethod
    def pack(cls, clients: Mapping[str, Self]) -> dict[str, Any]:
        """Return the counts by client; unknown probabilities take no bytes."""
        known = {name: asdict(found.calibration) for name, found in clients.items() if found.calibration is not None}
        correct = {name: found.correct for name, found in clients.items()}
        return {"correct": correct, **({"calibration": known} if known else {})}

    @classmethod
    def unpack(cls, fields: Mapping[str, Any]) -> dict[str, Self]:
        """Return the counts by client."""
        known = {client: Calibration.of_sums(sums) for client, sums in fields.get("calibration", {}).items()}
        tested = fields["tested"]
        return {name: cls(right, tested.get(name, 0), known.get(name)) for name, right in fields["correct"].items()}

    def counts(self) -> Self:
        """Return the counts without sums about probabilities."""
        return replace(self, calibration=None)


@dataclass(frozen=True)
class Calibration:
    """Sums about the probabilities of some samples; those of different samples add up.

    `squared` is the sum of the squared distances of probabilities from one-hot labels. The others have a number for
    each range of confidence: its samples, those that the model gets right, and the sum of confidences.

    >>> both = Calibration(0.5, (1, 3), (0, 2), (0.4, 2.7)) + Calibration(0.1, (0, 1), (0, 1), (0.0, 0.9))
    >>> both.correct, both.n, both.brier, round(both.error, 2)
    (3, 5, 0.12, 0.2)
    """

    squared: float
    samples: tuple[int, ...]
    right: tuple[int, ...]
    confidence: tuple[float, ...]

    @classmethod
    def of(cls, probabilities: npt.ArrayLike, y: npt.ArrayLike, *, bins: int = BINS, least: int = 1) -> Self:
        """Return the sums for probabilities (n, c) and label indices y (n,).

        A range with fewer than `least` samples is joined with the next ones, so that no number is about fewer.
        """
        found, labels = _checked(probabilities, y)
        return cls._of(found, labels, found.argmax(axis=1), bins).at_least(least)

    @classmethod
    def _of(cls, found: Array, labels: Indices, chosen: npt.NDArray[np.intp], bins: int) -> Self:
        confidence, right = found[np.arange(len(labels)), chosen], chosen == labels
        # A confidence exactly at an edge belongs to the bin below it, and 1 to the last bin.
        where = np.clip(np.ceil(confidence * bins).astype(np.intp) - 1, 0, bins - 1)
        parts = (np.ones(len(labels)), right.astype(np.float64), confidence)
        sums = np.array([np.bincount(where, weights=part, minlength=bins) for part in parts])
        apart = found.copy()  # minus 1 for the true class, without an identity matrix of c² numbers
        apart[np.arange(len(found)), labels] -= 1
        return cls._of_bins(float((apart**2).sum()), sums)

    @classmethod
    def _of_bins(cls, squared: float, sums: Array) -> Self:
        """Return the calibration with these sums: three rows with a number for each bin."""
        counts, hits, sure = sums.tolist()
        return cls(squared, tuple(map(int, counts)), tuple(map(int, hits)), tuple(sure))

    def at_least(self, least: int) -> Self:
        """Return the sums with ranges of fewer than `least` samples joined with the next ones."""
        bins = np.array([self.samples, self.right, self.confidence], dtype=np.float64)
        return self._of_bins(self.squared, _joined(bins, least))

    @classmethod
    def judged(cls, model: Model, samples: Iterable[tuple[Any, npt.NDArray[Any]]], *, least: int = 1) -> Self:
        """Return the sums for a model and blocks of samples x with labels y, indices into its classes."""
        total: Self | None = None
        for rows, labels in samples:
            found = cls.of_scores(model, finite(model.scores(rows)), labels)
            total = found if total is None else total + found
        return (total or cls._of_bins(0.0, np.zeros((3, BINS)))).at_least(least)

    @classmethod
    def of_scores(cls, model: Model, scores: Array, y: Indices) -> Self:
        """Return the sums for samples whose scores (n, c) by the model are known."""
        # By scores, since probabilities that are nearly equal may be equal after rounding.
        return cls._of(probabilities_of(model, scores), y, scores.argmax(axis=1), BINS)

    @classmethod
    def of_sums(cls, sums: Mapping[str, Any]) -> Self:
        """Return the calibration with these sums, from `sums` or `asdict`."""
        parts = (np.asarray(sums[name]).tolist() for name in ("samples", "right", "confidence"))
        return cls(float(sums["squared"]), *map(tuple, parts))

    def sums(self) -> dict[str, Any]:
        """Return the sums as a client sends them."""
        counts = {name: np.array(getattr(self, name), dtype=np.int64) for name in ("samples", "right")}
        return {"squared": self.squared, **counts, "confidence": np.array(self.confidence)}

    def __add__(self, other: Self) -> Self:
        """Return the sums of both together."""
        pairs = ((self.samples, other.samples), (self.right, other.right), (self.confidence, other.confidence))
        samples, right, confidence = (tuple(a + b for a, b in zip(*pair, strict=True)) for pair in pairs)
        return replace(self, squared=self.squared + other.squared, samples=samples, right=right, confidence=confidence)

    @property
    def n(self) -> int:
        """The number of samples."""
        return sum(self.samples)

    @property
    def correct(self) -> int:
        """The number of right labels."""
        return sum(self.right)

    @property
    def brier(self) -> float:
        """The Brier score; NaN without samples."""
        return self.squared / self.n if self.n else nan

    @property
    def error(self) -> float:
        """The expected calibration error; NaN without samples."""
        gaps = (abs(sure - right) for sure, right in zip(self.confidence, self.right, strict=True))
        return sum(gaps) / self.n if self.n else nan

    def summary(self) -> dict[str, float]:
        """Return the Brier score and the calibration error by name."""
        return {"brier": self.brier, "calibration_error": self.error}


def _joined(sums: Array, least: int) -> Array:
    """Return sums (3, bins), the first of them counts, with neighbouring bins joined until each has `least` samples."""
    joined, held, last = np.zeros(sums.shape), np.zeros(len(sums)), -1
    for place, column in enumerate(sums.T):
        held = held + column
        if held[0] >= max(least, 1):
            joined[:, place], held, last = held, np.zeros(len(sums)), place
    joined[:, last] += held
    return joined


def _pooled_calibration(known: Iterable[Calibration]) -> Calibration | None:
    found = list(known)
    return reduce(lambda one, other: one + other, found) if found else None


@dataclass(frozen=True)
class Errors:
    """Sums of the squares and of the absolute values of errors in one numeric outcome, over n samples.

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
        """Return RMSE, MAE and R² by name."""
        return {"rmse": self.rmse, "mae": self.mae, "r2": self.r2}

    def plain(self) -> dict[str, float | None]:
        """Return RMSE, MAE and R² for JSON, with None for NaN: R² is NaN if the outcome does not vary."""
        return {name: value if isfinite(value) else None for name, value in self.summary().items()}


@dataclass(frozen=True)
class NumericErrors(Performance):
    """The errors of a model in each numeric outcome, by name, over the same test samples.

    R² of a client is about that client's own mean, the pooled one about the mean of all.
    """

    packed: ClassVar[str] = "errors"

    by_outcome: Mapping[str, Errors]

    @staticmethod
    def check_sums(sums: Any, n: int, outcomes: int, where: str) -> None:
        """Raise RefusedMessage for sums that no errors in so many outcomes of n test samples have."""
        _check_names(sums, where, ERROR_SUMS)
        for name in ERROR_SUMS:
            low = -LARGEST_SUM if name == "total" else 0.0
            _check_array(sums[name], f"{where}/{name}", "float64", outcomes, low, LARGEST_SUM)
        # Of n numbers, the sum is at most √n times the root of the sum of squares, and at least that root.
        root = np.sqrt(sums["squared"])
        low, high = root / MUCH, np.sqrt(n) * root * MUCH
        if not ((low <= sums["absolute"]) & (sums["absolute"] <= high)).all():
            raise RefusedMessage(
                f"{where}/absolute must be a sum of the errors whose squares add up to 'squared', got another sum"
            )

    @classmethod
    def of_sums(cls, sums: Mapping[str, Array], n: int, names: Sequence[str]) -> Self:
        """Return sums over n samples, (t,) each, as errors by outcome."""
        columns = {what: found.tolist() for what, found in sums.items()}
        return cls(
            {
                name: Errors(n, **{what: found[place] for what, found in columns.items()})
                for place, name in enumerate(names)
            }
        )

    @classmethod
    def judged(cls, model: Model, samples: Iterable[tuple[Array, Array]], names: Sequence[str]) -> Self:
        """Return a model's errors by outcome, for blocks of samples x (n, d) with these outcomes (n, t)."""
        parts = [cls.of_sums(sum_errors(model, x, values), len(x), names) for x, values in samples]
        return reduce(lambda one, other: one + other, parts)

    def sums(self) -> dict[str, Array]:
        """Return the sums as a client sends them, an element for each outcome."""
        return {what: np.array([getattr(found, what) for found in self.by_outcome.values()]) for what in ERROR_SUMS}

    @property
    def n(self) -> int:  # type: ignore[override]
        """The number of samples."""
        return next((found.n for found in self.by_outcome.values()), 0)

    def __add__(self, other: Self) -> Self:
        """Return the errors of both together."""
        return replace(
            self, by_outcome={name: found + other.by_outcome[name] for name, found in self.by_outcome.items()}
        )

    @property
    def figure(self) -> Mapping[str, Errors]:
        """The errors by outcome."""
        return self.by_outcome

    @classmethod
    def summary(cls, clients: Sequence[Self]) -> dict[str, dict[str, float]]:
        """Return RMSE, MAE and R² over all test samples, by outcome."""
        if not clients:
            return {}
        total = reduce(lambda one, other: one + other, clients)
        return {name: found.summary() for name, found in total.by_outcome.items()}

    @classmethod
    def report(cls, clients: Sequence[Self]) -> dict[str, Any]:
        """Return the errors by outcome; there is no accuracy."""
        total = reduce(lambda one, other: one + other, clients)
        return {"accuracy": None, "errors": {name: found.plain() for name, found in total.by_outcome.items()}}

    @classmethod
    def record(cls, clients: Sequence[Self | None]) -> dict[str, Any]:
        """Return the sums of each outcome by client."""
        nothing = Errors(0, 0.0, 0.0, 0.0, 0.0)
        names = next((list(found.by_outcome) for found in clients if found is not None), [])
        found = {name: [nothing if each is None else each.by_outcome[name] for each in clients] for name in names}
        return {
            "error_sums": {
                name: {part: [getattr(errors, part) for errors in by_client] for part in ERROR_SUMS}
                for name, by_client in found.items()
            }
        }

    @classmethod
    def pack(cls, clients: Mapping[str, Self]) -> dict[str, Any]:
        """Return the sums by client and outcome."""
        return {
            "errors": {
                client: {name: asdict(errors) for name, errors in found.by_outcome.items()}
                for client, found in clients.items()
            }
        }

    @classmethod
    def unpack(cls, fields: Mapping[str, Any]) -> dict[str, Self]:
        """Return the errors by client."""
        return {
            client: cls({name: Errors(**sums) for name, sums in by_outcome.items()})
            for client, by_outcome in fields["errors"].items()
        }


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


def _check_names(value: Any, where: str, names: Sequence[str]) -> None:
    if not isinstance(value, dict) or value.keys() != set(names):
        raise RefusedMessage(f"{where} must be a dict of {sorted(names)}, got {_shown(value)}")


def _check_number(value: Any, where: str, high: float, *, whole: bool = False) -> None:
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value <= high:
        raise RefusedMessage(f"{where} must be a {'whole ' * whole}number from 0 to {high:.15g}, got {_shown(value)}")


def _check_array(value: Any, where: str, dtype: str, length: int, low: float, high: float) -> None:
    if not isinstance(value, np.ndarray) or value.shape != (length,) or value.dtype.name != dtype:
        raise RefusedMessage(f"{where} must be an array of {dtype} with shape {(length,)}, got {_shown(value)}")
    if value.size and not low <= value.min() <= value.max() <= high:
        raise RefusedMessage(f"{where} must be from {low:g} to {high:g}, got {value.min():g} … {value.max():g}")


def _shown(value: Any) -> str:
    """Return a value for an error, by its type where it may be long."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype.name} with shape {value.shape}"
    return repr(value)[:60] if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"


def _checked(probabilities: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Array, Indices]:
    found, labels = np.asarray(probabilities, dtype=np.float64), np.asarray(y)
    if found.ndim != 2 or labels.shape != found.shape[:1]:
        raise InvalidData(
            f"probabilities (n, c) and as many label indices (n,) are wanted, got {found.shape} and {labels.shape}"
        )
    if not np.isclose(found.sum(axis=1), 1.0).all() or (found < 0).any():
        raise InvalidData(
            "probabilities must be at least 0 and add up to 1 for each sample, as `predict_proba` returns them"
        )
    if labels.size and (labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= found.shape[1]):
        raise InvalidData(f"labels must be indices up to {found.shape[1] - 1}, got {labels.min()} to {labels.max()}")
    return found, labels.astype(np.int64)

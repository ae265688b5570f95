"""How good models are: accuracy and probabilities on clients' own test samples, from sums alone, so that test data stay
where they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from math import ceil, nan
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.core.blocks import Blocks, as_blocks
from fedgram.core.errors import InvalidData
from fedgram.models import Model, finite
from fedgram.models import probabilities as probabilities_of

Indices: TypeAlias = npt.NDArray[np.int64]
BINS = 10  # of confidence, in which it is compared with accuracy


@dataclass(frozen=True)
class Calibration:
    """What is known of the probabilities of some samples: sums, which add up over clients.

    `squared` is the sum of the squared distances from what happened. The others have a number for each range of
    confidence: how many samples are in it, how many of them the model gets right, and the sum of its confidences.

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
        confidence, right = found.max(axis=1), chosen == labels
        # What is exactly at an upper edge belongs to the bin below, and 1 to the last.
        where = np.clip(np.ceil(confidence * bins).astype(np.intp) - 1, 0, bins - 1)
        parts = (np.ones(len(labels)), right.astype(np.float64), confidence)
        sums = np.array([np.bincount(where, weights=part, minlength=bins) for part in parts])
        return cls._of_bins(float(((found - np.eye(found.shape[1])[labels]) ** 2).sum()), sums)

    @classmethod
    def _of_bins(cls, squared: float, sums: Array) -> Self:
        """Return the sums that were found: three rows with a number for each bin."""
        counts, hits, sure = sums.tolist()
        return cls(squared, tuple(map(int, counts)), tuple(map(int, hits)), tuple(sure))

    def at_least(self, least: int) -> Self:
        """Return the sums with ranges of fewer than `least` samples joined with the next ones."""
        bins = np.array([self.samples, self.right, self.confidence], dtype=np.float64)
        return self._of_bins(self.squared, _joined(bins, least))

    @classmethod
    def judged(
        cls,
        model: Model,
        x: npt.NDArray[Any] | Blocks[npt.NDArray[Any]],
        y: Indices | Blocks[Indices],
        *,
        least: int = 1,
    ) -> Self:
        """Return the sums for a model and samples x with labels y, indices into its classes; both may be in blocks."""
        total: Self | None = None
        for rows, labels in zip(as_blocks(x), as_blocks(y), strict=True):
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
        """Return what `sums` took apart, or `asdict`."""
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
        """How many samples."""
        return sum(self.samples)

    @property
    def correct(self) -> int:
        """How many of them the model gets right."""
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
        """Return both by name."""
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


@dataclass(frozen=True)
class Evaluation:
    """How many test samples each client has, and how many of them its model gets right.

    A client without test samples, or whose test samples could not be scored (`failed` says why), is left out of the
    means and counted in `untested`. `calibration` has what is known of each client's probabilities.

    >>> result = Evaluation(correct={"a": 9, "b": 2, "c": 0}, tested={"a": 10, "b": 4, "c": 0})
    >>> result.client_mean, result.pooled, result.worst_decile, result.untested
    (0.7, 0.7857142857142857, 0.5, 1)
    """

    correct: Mapping[str, int]
    tested: Mapping[str, int]
    failed: Mapping[str, str] = field(default_factory=dict)
    # Sums of probabilities are the same to rounding only, so two evaluations are compared by their counts.
    calibration: Mapping[str, Calibration] = field(default_factory=dict, compare=False)

    @property
    def by_client(self) -> dict[str, float]:
        """Accuracy of each client that has test samples."""
        return {name: self.correct[name] / n for name, n in self.tested.items() if n}

    @property
    def untested(self) -> int:
        """Number of clients without test samples."""
        return sum(not n for n in self.tested.values())

    @property
    def client_mean(self) -> float:
        """Mean of the clients' accuracies, as FedHiP and APFL report; NaN if nobody has test samples."""
        accuracies = self.by_client.values()
        return sum(accuracies) / len(accuracies) if accuracies else nan

    @property
    def pooled(self) -> float:
        """Accuracy over all test samples together, as FedAPA and FedACnnL report."""
        total = sum(self.tested.values())
        return sum(self.correct.values()) / total if total else nan

    @property
    def worst_decile(self) -> float:
        """Mean accuracy of the worst tenth of the clients (at least one)."""
        accuracies = sorted(self.by_client.values())
        worst = accuracies[: ceil(len(accuracies) / 10)]
        return sum(worst) / len(worst) if worst else nan

    def summary(self) -> dict[str, float]:
        """Return the three accuracies by name."""
        return {"client_mean": self.client_mean, "pooled": self.pooled, "worst_decile": self.worst_decile}

    @property
    def probabilities(self) -> Calibration | None:
        """What is known of the probabilities over all test samples; None if no client has told."""
        return reduce(lambda one, other: one + other, self.calibration.values()) if self.calibration else None

    def counts(self) -> Self:
        """Return the same without what is known of probabilities."""
        return replace(self, calibration={})

    @classmethod
    def of(cls, calibration: Mapping[str, Calibration], tested: Mapping[str, int]) -> Self:
        """Return the evaluation of those who have test samples; `tested` also has those who have none."""
        correct = {name: calibration[name].correct if n else 0 for name, n in tested.items()}
        return cls(correct, tested, {}, calibration)

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return the evaluation that was taken apart by `asdict`."""
        known = {client: Calibration.of_sums(sums) for client, sums in fields.get("calibration", {}).items()}
        return cls(fields["correct"], fields["tested"], fields.get("failed", {}), known)


def brier_score(probabilities: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Return the mean squared distance of probabilities (n, c) from what happened, label indices y (n,).

    0 is best. Certain and wrong is 2; two classes by a coin are 0.5.

    >>> brier_score([[1.0, 0.0], [0.5, 0.5]], [0, 1])
    0.25
    """
    return Calibration.of(probabilities, y).brier


def expected_calibration_error(probabilities: npt.ArrayLike, y: npt.ArrayLike, *, bins: int = BINS) -> float:
    """Return how far confidence and accuracy are apart, on average over samples with label indices y (n,).

    A sample's confidence is the probability (n, c) of its most likely class. Samples are compared in bins of equally
    wide ranges of confidence. 0 is best; few samples in a bin look worse than they are.

    >>> expected_calibration_error([[0.75, 0.25]] * 4, [0, 0, 1, 0])
    0.0
    >>> expected_calibration_error([[1.0, 0.0]] * 4, [0, 0, 1, 0])
    0.25
    """
    return Calibration.of(probabilities, y, bins=bins).error


def _checked(probabilities: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Array, Indices]:
    found, labels = np.asarray(probabilities, dtype=np.float64), np.asarray(y)
    if found.ndim != 2 or labels.shape != found.shape[:1]:
        raise InvalidData(
            f"probabilities (n, c) and as many label indices (n,) are wanted, got {found.shape} and {labels.shape}"
        )
    if not np.isclose(found.sum(axis=1), 1.0).all() or (found < 0).any():
        raise InvalidData(
            "probabilities must be at least 0 and add up to 1 for each sample, as `predict_proba` does it"
        )
    if labels.size and (labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= found.shape[1]):
        raise InvalidData(f"labels must be indices up to {found.shape[1] - 1}, got {labels.min()} to {labels.max()}")
    return found, labels.astype(np.int64)

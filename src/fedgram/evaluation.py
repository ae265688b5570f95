"""How good models are: accuracy on clients' own test samples, from counts alone, so that test data stay where they are;
and how good probabilities are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, nan
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidData
from fedgram.models import Model, finite

BINS = 10  # of confidence, in which it is compared with accuracy


@dataclass(frozen=True)
class Evaluation:
    """How many test samples each client has, and how many of them its model gets right.

    A client without test samples, or whose test samples could not be scored (`failed` says why), is left out of the
    means and counted in `untested`.

    >>> result = Evaluation(correct={"a": 9, "b": 2, "c": 0}, tested={"a": 10, "b": 4, "c": 0})
    >>> result.client_mean, result.pooled, result.worst_decile, result.untested
    (0.7, 0.7857142857142857, 0.5, 1)
    """

    correct: Mapping[str, int]
    tested: Mapping[str, int]
    failed: Mapping[str, str] = field(default_factory=dict)

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


def count_correct(model: Model, x: Any, y: npt.NDArray[np.int64]) -> int:
    """Return how many samples the model gets right; y holds indices into the model's classes."""
    return int((finite(model.scores(x)).argmax(axis=1) == y).sum())


def brier_score(probabilities: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Return the mean squared distance of probabilities (n, c) from what happened, label indices y (n,).

    0 is best. Certain and wrong is 2; two classes by a coin are 0.5.

    >>> brier_score([[1.0, 0.0], [0.5, 0.5]], [0, 1])
    0.25
    """
    found, labels = _checked(probabilities, y)
    return float(((found - np.eye(found.shape[1])[labels]) ** 2).sum(axis=1).mean()) if len(labels) else nan


def expected_calibration_error(probabilities: npt.ArrayLike, y: npt.ArrayLike, *, bins: int = BINS) -> float:
    """Return how far confidence and accuracy are apart, on average over samples with label indices y (n,).

    A sample's confidence is the probability (n, c) of its most likely class. Samples are compared in bins of equally
    wide ranges of confidence. 0 is best; few samples in a bin look worse than they are.

    >>> expected_calibration_error([[0.75, 0.25]] * 4, [0, 0, 1, 0])
    0.0
    >>> expected_calibration_error([[1.0, 0.0]] * 4, [0, 0, 1, 0])
    0.25
    """
    found, labels = _checked(probabilities, y)
    if not len(labels):
        return nan
    confidence, right = found.max(axis=1), found.argmax(axis=1) == labels
    # What is exactly at an upper edge belongs to the bin below, and 1 to the last.
    where = np.clip(np.ceil(confidence * bins).astype(np.intp) - 1, 0, bins - 1)
    gaps = np.bincount(where, weights=confidence - right, minlength=bins)
    return float(np.abs(gaps).sum() / len(labels))


def _checked(probabilities: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Array, npt.NDArray[np.int64]]:
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

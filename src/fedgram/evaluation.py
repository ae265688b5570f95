"""Accuracy of clients' models on clients' own test samples, from counts alone: test data stay where they are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, nan
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.models import Model, finite


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

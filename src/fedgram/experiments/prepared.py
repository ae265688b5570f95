"""A data set spread over clients: methods are fitted to it, and scored on its test samples."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedgram.core.errors import InvalidParameter
from fedgram.core.labels import to_indices
from fedgram.data.client import Client
from fedgram.data.dataset import Dataset
from fedgram.evaluation import Evaluation, count_correct
from fedgram.models import Model
from fedgram.moments.moments import Moments
from fedgram.protocol.fit import Fit
from fedgram.protocol.method import Method

TEST_SET = "test set"


@dataclass(frozen=True, eq=False)
class Prepared:
    """Clients with their data. `tested_by_clients` says whether each has test samples, rather than all one test set."""

    data: Dataset
    clients: list[Client]
    seed: int
    tested_by_clients: bool

    @property
    def names(self) -> list[str]:
        """The clients' names."""
        return [client.name for client in self.clients]

    @property
    def fingerprint(self) -> str:
        """What the features are features of, and what made them."""
        return "/".join(part for part in (self.data.fingerprint, self.data.features) if part)

    @cached_property
    def class_counts(self) -> list[list[int]]:
        """Training samples by client and class."""
        classes = len(self.data.classes)
        return [np.bincount(self._indices(client.y), minlength=classes).tolist() for client in self.clients]

    @cached_property
    def total(self) -> Moments:
        """The moments of all training samples pooled; only the reference looks at them."""
        parts = (
            Moments.of(_flat(client.x), client.y, classes=self.data.classes) for client in self.clients if len(client.x)
        )
        return Moments.sum(parts)

    def fit(self, method: Method, **options: Any) -> Fit:
        """Fit a method to the clients, with the scenario's classes and seed; the options are those of `Method.fit`."""
        return method.fit(self.clients, classes=self.data.classes, seed=self.seed, **options)

    def score(self, fit: Fit) -> Evaluation | None:
        """Return the accuracies that the scenario asks for; None if there are no test samples."""
        if self.tested_by_clients:
            return fit.evaluation
        if fit.model is None:
            raise no_global_model(fit.method)
        return self._on_test_set(fit.model, self.data.x_test)

    def centralised(self, ridge: float, *, intercept: bool) -> Evaluation:
        """Score the reference: least squares on all training samples pooled, which nobody could send."""
        model = self.total.model(ridge, intercept=intercept)
        if not self.tested_by_clients:
            return self._on_test_set(model, _flat(self.data.x_test))
        tested = {client.name: len(client.y_test) for client in self.clients}
        correct = {
            client.name: count_correct(model, _flat(client.x_test), self._indices(client.y_test))
            for client in self.clients
            if tested[client.name]
        }
        return Evaluation(correct | {name: 0 for name, n in tested.items() if not n}, tested)

    def _on_test_set(self, model: Model, x: Any) -> Evaluation:
        y = self.data.y_test
        assert y is not None
        return Evaluation({TEST_SET: count_correct(model, x, y)}, {TEST_SET: len(y)})

    def _indices(self, labels: Any) -> Any:
        return to_indices(labels, self.data.classes)


def no_global_model(method: str) -> InvalidParameter:
    """Return the error of a method that gives nothing to score on a common test set."""
    return InvalidParameter(f"method {method!r} has no global model to score on a common test set: use test = 'local'")


def _flat(x: Any) -> Any:
    """Return images as rows of pixels, and features as they are."""
    return x if x.ndim == 2 and x.dtype.kind == "f" else x.reshape(len(x), -1).astype(np.float32)

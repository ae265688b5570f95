"""A data set spread over clients: methods are fitted to it, and scored on its test samples."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedgram.core.errors import InvalidParameter
from fedgram.core.labels import to_indices
from fedgram.data.client import Client
from fedgram.data.dataset import Dataset
from fedgram.evaluation import Evaluation, count_correct
from fedgram.models import LinearModel, Model
from fedgram.moments.moments import Moments
from fedgram.protocol.fit import Fit
from fedgram.protocol.method import Method
from fedgram.protocol.recipe import basis_of, in_source
from fedgram.studies import Study
from fedgram.studies.loading import StudyDataset

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
    def study(self) -> Study | None:
        """The study that the data are of, if they are of one."""
        return self.data.study if isinstance(self.data, StudyDataset) else None

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
        return method.fit(self.clients, study=self.study, classes=self.data.classes, seed=self.seed, **options)

    def score(self, fit: Fit) -> Evaluation | None:
        """Return the accuracies that the scenario asks for; None if there are no test samples."""
        if self.tested_by_clients:
            return fit.evaluation
        if fit.model is None:
            raise no_global_model(fit.method)
        return self._on_test_set(fit.model, self.data.x_test)

    def curves(self, method: Method, fit: Fit) -> dict[str, list[float]]:
        """Return the accuracies after each round that the method reported, by name.

        With a common test set, each client scores the global model on its share, and the shares are added up. Personal
        models are not judged there, so methods with these have no curves.
        """
        if not self.tested_by_clients and method.personal:
            return {}
        reports = [report if self.tested_by_clients else _whole(report) for report in fit.rounds]
        summaries = [report.summary() for report in reports]
        return {name: [round(summary[name], 6) for summary in summaries] for name in summaries[0]} if summaries else {}

    def centralised(self, ridge: float, *, intercept: bool) -> Evaluation:
        """Score the reference: least squares on all training samples pooled, which nobody could send."""
        total = self.total
        basis = None if self.study is None else basis_of(self.study, total)
        model: LinearModel = (total if basis is None else basis.moments(total)).model(ridge, intercept=intercept)
        model = in_source(model, basis, self.data.columns)
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


def with_shares(clients: Sequence[Client], data: Dataset) -> list[Client]:
    """Return the clients with a share of the common test set each, to judge rounds by; nobody trains on it."""
    assert data.y_test is not None
    shares = [np.arange(k, len(data.y_test), len(clients)) for k in range(len(clients))]
    return [
        replace(client, x_test=data.x_test[share], y_test=data.y_test[share])
        for client, share in zip(clients, shares, strict=True)
    ]


def _whole(shares: Evaluation) -> Evaluation:
    return Evaluation({TEST_SET: sum(shares.correct.values())}, {TEST_SET: sum(shares.tested.values())})


def no_global_model(method: str) -> InvalidParameter:
    """Return the error of a method that gives nothing to score on a common test set."""
    return InvalidParameter(f"method {method!r} has no global model to score on a common test set: use test = 'local'")


def _flat(x: Any) -> Any:
    """Return images as rows of pixels, and features as they are."""
    return x if x.ndim == 2 and x.dtype.kind == "f" else x.reshape(len(x), -1).astype(np.float32)

"""A data set spread over clients: methods are fitted to it, and scored on its test samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from fedgram.core.errors import InvalidParameter
from fedgram.core.labels import from_indices, to_indices
from fedgram.data.client import Client
from fedgram.data.dataset import Dataset
from fedgram.evaluation import Calibration, Evaluation
from fedgram.heads.leastsquares import least_squares
from fedgram.models import Model
from fedgram.moments import digits
from fedgram.moments.basis import Basis
from fedgram.moments.moments import Moments
from fedgram.numeric_evaluation import NumericEvaluation, as_errors, sum_errors_of
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
    def units(self) -> dict[str, str]:
        """The numeric outcomes with their units; none where there are classes."""
        study = self.study
        return {} if study is None else {name: getattr(study.columns[name], "unit", "") for name in study.targets}

    @property
    def fingerprint(self) -> str:
        """What the features are features of, and what made them."""
        return "/".join(part for part in (self.data.fingerprint, self.data.features) if part)

    @cached_property
    def class_counts(self) -> list[list[int]]:
        """Training samples by client and class."""
        classes = len(self.data.classes)
        return [np.bincount(self._indices(client.y), minlength=classes).tolist() for client in self.clients]

    def total(self, about: Basis | None = None) -> Moments:
        """Return the moments of all training samples pooled, in a basis; only the reference looks at them."""
        return Moments.sum(
            Moments.of(x if about is None else about.apply(x), client.y, classes=self.data.classes)
            for client, x in self._samples()
        )

    def _samples(self) -> list[tuple[Client, Any]]:
        """Return the clients that have training samples, with these as rows."""
        return [(client, _flat(client.x)) for client in self.clients if len(client.x)]

    def _centre(self) -> Basis | None:
        """Return what is subtracted from columns that are far from zero, as runs do; None where there are none."""
        samples = [x for _, x in self._samples()]
        if self.study is not None or not any(digits.far_in(x).any() for x in samples):
            return None
        sums = np.sum([x.sum(axis=0, dtype=np.float64) for x in samples], axis=0)
        squares = np.sum([np.square(x, dtype=np.float64).sum(axis=0) for x in samples], axis=0)
        centre = digits.centre(sums, squares, sum(map(len, samples)))
        return None if centre is None else Basis.about(centre, self.data.columns)

    def fit(self, method: Method, **options: Any) -> Fit:
        """Fit a method to the clients, with the scenario's classes and seed; the options are those of `Method.fit`."""
        return method.fit(self.clients, study=self.study, classes=self.data.classes, seed=self.seed, **options)

    def score(self, fit: Fit) -> Evaluation | NumericEvaluation | None:
        """Return the accuracies, or errors, that the scenario asks for; None if there are no test samples."""
        if self.tested_by_clients:
            return fit.evaluation or fit.errors
        if fit.model is None:
            raise no_global_model(fit.method)
        return self._judged(fit.model, {TEST_SET: (self.data.x_test, self.data.y_test)}, fit.basis)

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

    def centralised(self, ridge: float, *, intercept: bool) -> Evaluation | NumericEvaluation:
        """Score the reference: least squares on all training samples pooled, which nobody could send."""
        centre = self._centre() if intercept else None
        total = self.total(centre)
        basis = centre if self.study is None else basis_of(self.study, total)
        seen = total if self.study is None or basis is None else basis.moments(total)
        model = least_squares(seen, ridge, len(self.units), intercept=intercept)
        tests = {client.name: (_flat(client.x_test), self._indices(client.y_test)) for client in self.clients}
        if not self.tested_by_clients:
            tests = {TEST_SET: (_flat(self.data.x_test), self.data.y_test)}
        return self._judged(in_source(model, basis, self.data.columns), tests, basis)

    def most_frequent(self) -> Evaluation:
        """Score the class that most of a client's own training samples have, predicted for all its test samples.

        A client without training samples predicts the most frequent class of all; of equals the first class counts.
        """
        usual = int(np.sum(self.class_counts, axis=0).argmax())
        correct, tested = {}, {}
        for client, counts in zip(self.clients, self.class_counts, strict=True):
            labels = self._indices(() if client.y_test is None else client.y_test)
            predicted = int(np.argmax(counts)) if any(counts) else usual
            correct[client.name], tested[client.name] = int(np.sum(labels == predicted)), len(labels)
        return Evaluation(correct, tested)

    def _judged(self, model: Model, tests: Mapping[str, Any], basis: Basis | None) -> Evaluation | NumericEvaluation:
        """Return how good a model is on test samples, pairs (x, y) by who has them."""
        tested = {name: len(y) for name, (_, y) in tests.items()}
        able = {name: test for name, test in tests.items() if tested[name]}
        if basis is None or basis.outcomes is None:
            return Evaluation.of({name: Calibration.judged(model, x, y) for name, (x, y) in able.items()}, tested)
        names = basis.outcomes.names
        errors = {name: as_errors(sum_errors_of(model, x, basis), len(x), names) for name, (x, _) in able.items()}
        return NumericEvaluation(errors, tested)

    def _indices(self, labels: Any) -> Any:
        return to_indices(labels, self.data.classes)


def with_shares(clients: Sequence[Client], data: Dataset) -> list[Client]:
    """Return the clients with a share of the common test set each, to judge rounds by; nobody trains on it."""
    assert data.y_test is not None
    labels = from_indices(data.y_test, data.classes)
    shares = [np.arange(k, len(labels), len(clients)) for k in range(len(clients))]
    return [
        replace(client, x_test=data.x_test[share], y_test=labels[share])
        for client, share in zip(clients, shares, strict=True)
    ]


def _whole(shares: Evaluation) -> Evaluation:
    return Evaluation({TEST_SET: sum(shares.correct.values())}, {TEST_SET: sum(shares.tested.values())})


def no_global_model(method: str) -> InvalidParameter:
    """Return the error of a method that gives nothing to score on a common test set."""
    return InvalidParameter(f"method {method!r} has no global model to score on a common test set: use test = 'local'")


def _flat(x: Any) -> Any:
    """Return images as rows of pixels, and features as they are."""
    return x if x.ndim == 2 and x.dtype.kind == "f" else x.reshape(len(x), prod(x.shape[1:])).astype(np.float32)

"""A data set spread over clients: methods are fitted to it, and scored on its test samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from fedgram.core.classes import from_indices, to_indices
from fedgram.core.errors import InvalidParameter
from fedgram.data.client import Client
from fedgram.data.dataset import Dataset
from fedgram.evaluation import Evaluation, RightLabels
from fedgram.heads.least_squares import least_squares
from fedgram.models import Model
from fedgram.moments import far_columns
from fedgram.moments.basis import Basis, targets_under, with_truth
from fedgram.moments.moments import Moments
from fedgram.moments.targets import ClassTargets, Targets
from fedgram.pipeline import Pipeline
from fedgram.protocol.fit import Fit
from fedgram.protocol.method import Method
from fedgram.studies import Study
from fedgram.studies.loading import StudyDataset

TEST_SET = "test set"


@dataclass(frozen=True, eq=False)
class Prepared:
    """Clients with their data. With `tested_by_clients` each has its own test samples; else all share a test set."""

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
        return (
            {} if study is None else {name: getattr(study.columns[name], "unit", "") for name in study.numeric_outcomes}
        )

    @property
    def fingerprint(self) -> str:
        """The fingerprints of the samples and of the map that made their features."""
        return "/".join(part for part in (self.data.fingerprint, self.data.features) if part)

    @cached_property
    def class_counts(self) -> list[list[int]]:
        """Training samples by client and class."""
        classes = len(self.data.classes)
        return [np.bincount(self._indices(client.y), minlength=classes).tolist() for client in self.clients]

    def total(self, about: Basis | None = None) -> Moments:
        """Return the moments of all training samples pooled, in a basis; only the reference uses them."""
        return Moments.sum(
            Moments.of(x if about is None else about.apply(x), client.y, classes=self.data.classes)
            for client, x in self._samples()
        )

    def _samples(self) -> list[tuple[Client, Any]]:
        """Return the clients that have training samples, with these as rows."""
        return [(client, _flat(client.x)) for client in self.clients if len(client.x)]

    def _centre(self) -> Basis | None:
        """Return the centre of columns far from zero, which runs subtract, too; None without such columns."""
        samples = [x for _, x in self._samples()]
        if self.study is not None or not any(far_columns.far_in(x).any() for x in samples):
            return None
        sums = np.sum([x.sum(axis=0, dtype=np.float64) for x in samples], axis=0)
        squares = np.sum([np.square(x, dtype=np.float64).sum(axis=0) for x in samples], axis=0)
        centre = far_columns.centre(sums, squares, sum(map(len, samples)))
        return None if centre is None else Basis.about(centre, self.data.columns)

    def fit(self, method: Method, **options: Any) -> Fit:
        """Fit a method to the clients, with the scenario's classes and seed; the options are those of `Method.fit`."""
        return method.fit(self.clients, study=self.study, classes=self.data.classes, seed=self.seed, **options)

    def score(self, fit: Fit) -> Evaluation:
        """Return the accuracies, or errors, that the scenario asks for."""
        if self.tested_by_clients:
            return fit.evaluation
        if fit.model is None:
            raise no_global_model(fit.method)
        return self._judged(fit.model, {TEST_SET: (self.data.x_test, self.data.y_test)}, fit.basis)

    def curves(self, method: Method, fit: Fit) -> dict[str, list[float]]:
        """Return the accuracies after each round that the method reported, by name; none where outcomes are numbers.

        With a common test set, each client scores the global model on its share, and the shares are added up. Personal
        models are not judged there, so methods with these have no curves.
        """
        if not self.tested_by_clients and method.personal:
            return {}
        reports = [report if self.tested_by_clients else _whole(report) for report in fit.rounds]
        summaries = [report.summary() for report in reports]
        names = [name for name, value in summaries[0].items() if isinstance(value, float)] if summaries else []
        return {name: [round(summary[name], 6) for summary in summaries] for name in names}

    def centralised(self, ridge: float, *, intercept: bool) -> Evaluation:
        """Score the reference: least squares on all training samples pooled, which a federation cannot have."""
        centre = self._centre() if intercept else None
        total = self.total(centre)
        basis = centre if self.study is None else self.study.basis_of(total)
        seen = total if self.study is None or basis is None else basis.moments(total)
        targets = self._targets(basis)
        model = least_squares(seen, ridge, targets, intercept=intercept)
        tests = {client.name: (_flat(client.x_test), self._indices(client.y_test)) for client in self.clients}
        if not self.tested_by_clients:
            tests = {TEST_SET: (_flat(self.data.x_test), self.data.y_test)}
        return self._judged(Pipeline.of(model, basis, targets, self.data.columns), tests, basis)

    def most_frequent(self) -> Evaluation:
        """Score the class that most of a client's own training samples have, predicted for all its test samples.

        A client without training samples predicts the most frequent class of all. Of equal classes the first is taken.
        """
        usual = int(np.sum(self.class_counts, axis=0).argmax())
        right = {}
        for client, counts in zip(self.clients, self.class_counts, strict=True):
            labels = self._indices(() if client.y_test is None else client.y_test)
            predicted = int(np.argmax(counts)) if any(counts) else usual
            right[client.name] = RightLabels(int(np.sum(labels == predicted)), len(labels))
        return Evaluation(right, {name: found.n for name, found in right.items()})

    def _judged(self, model: Model, tests: Mapping[str, Any], basis: Basis | None) -> Evaluation:
        """Return the evaluation of a model on test samples, pairs (x, y) by client."""
        tested = {name: len(y) for name, (_, y) in tests.items()}
        able = {name: test for name, test in tests.items() if tested[name]}
        targets = self._targets(basis)
        found = {name: targets.judge(model, with_truth(x, y, basis)) for name, (x, y) in able.items()}
        return Evaluation(found, tested)

    def _targets(self, basis: Basis | None) -> Targets:
        return targets_under(basis, ClassTargets(self.data.classes))

    def _indices(self, labels: Any) -> Any:
        return to_indices(labels, self.data.classes)


def with_shares(clients: Sequence[Client], data: Dataset) -> list[Client]:
    """Return the clients with a share of the common test set each, to judge rounds by; it is not trained on."""
    assert data.y_test is not None
    labels = from_indices(data.y_test, data.classes)
    shares = [np.arange(k, len(labels), len(clients)) for k in range(len(clients))]
    return [
        replace(client, x_test=data.x_test[share], y_test=labels[share])
        for client, share in zip(clients, shares, strict=True)
    ]


def _whole(shares: Evaluation) -> Evaluation:
    return Evaluation({} if shares.total is None else {TEST_SET: shares.total}, {TEST_SET: sum(shares.tested.values())})


def no_global_model(method: str) -> InvalidParameter:
    """Return the error of a method that gives nothing to score on a common test set."""
    return InvalidParameter(f"method {method!r} has no global model to score on a common test set: use test = 'local'")


def _flat(x: Any) -> Any:
    """Return images as rows of pixels, and features as they are."""
    return x if x.ndim == 2 and x.dtype.kind == "f" else x.reshape(len(x), prod(x.shape[1:])).astype(np.float32)

"""How good a model of a study is on a table with the outcome: right labels and probabilities, or errors in numbers."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.data.own.bad import OnBad
from fedgram.evaluation import Calibration
from fedgram.models import finite
from fedgram.numeric_evaluation import Errors, as_errors, sum_errors
from fedgram.studies.encoding import Rows, open_for
from fedgram.studies.model import ROWS, StudyModel


@dataclass(frozen=True)
class Judged:
    """How good a model is on `samples` rows.

    With classes: the `accuracy`, that of always naming the table's most frequent class (`usual`), the Brier score, the
    expected calibration error, and for each class how many rows it has and how many of them are right. With numeric
    outcomes: the `errors` in each.
    """

    samples: int
    accuracy: float | None = None
    usual: float | None = None
    brier: float | None = None
    calibration: float | None = None
    classes: dict[str, tuple[int, int]] | None = None
    errors: dict[str, Errors] | None = None

    def fields(self) -> dict[str, Any]:
        """Return it as plain values, for JSON; what does not apply is left out."""
        found = {name: value for name, value in vars(self).items() if value is not None and name != "errors"}
        if self.classes is not None:
            found["classes"] = {name: {"samples": n, "right": right} for name, (n, right) in self.classes.items()}
        if self.errors is not None:
            found["errors"] = {name: errors.summary() for name, errors in self.errors.items()}
        return found


def judge(model: StudyModel, table: Any, *, on_bad: OnBad = "refuse") -> Judged:
    """Return how good the model is on a table with the outcome, of which one block is in memory at a time.

    A table without a usable row is refused.
    """
    sums = _Labels(model) if model.study.classes else _Numbers(model)
    for rows in open_for(model.study, table).good_rows(on_bad):
        # A block of a narrow table has very many rows, and the scores of a row may take more memory than the row.
        for start in range(0, len(rows.x), ROWS):
            sums.add(rows, slice(start, start + ROWS))
    return sums.judged()


class _Labels:
    """Sums over rows of how right a model is about classes."""

    def __init__(self, model: StudyModel) -> None:
        self.samples = 0
        self._model, self._place = model.model, {label: place for place, label in enumerate(model.classes)}
        self._counts = np.zeros((2, len(self._place)), dtype=np.int64)  # rows of each class, and the right ones
        self._known: Calibration | None = None

    def add(self, rows: Rows, part: slice) -> None:
        assert rows.labels is not None
        labels = rows.labels.rows(part).map(self._place.__getitem__, np.int64)
        scores = finite(self._model.scores(rows.x[part]))
        right = labels[scores.argmax(axis=1) == labels]
        self._counts += [np.bincount(found, minlength=len(self._place)) for found in (labels, right)]
        known = Calibration.of_scores(self._model, scores, labels)
        self._known = known if self._known is None else self._known + known
        self.samples += len(labels)

    def judged(self) -> Judged:
        assert self._known is not None
        counts, hits = self._counts.tolist()
        return Judged(
            samples=self.samples,
            accuracy=self._known.correct / self.samples,
            usual=max(counts) / self.samples,
            brier=self._known.brier,
            calibration=self._known.error,
            classes={str(label): pair for label, pair in zip(self._place, zip(counts, hits, strict=True), strict=True)},
        )


class _Numbers:
    """Sums over rows of the errors in numeric outcomes, which are the last columns, in units of their ranges."""

    def __init__(self, model: StudyModel) -> None:
        self.samples = 0
        self._model, self._outcomes = model.model, model.study.numeric({})
        self._errors: dict[str, Errors] = {}

    def add(self, rows: Rows, part: slice) -> None:
        assert self._outcomes is not None
        x, outcomes = rows.x[part], self._outcomes
        width = x.shape[1] - len(outcomes)
        sums = sum_errors(self._model, x[:, :width], outcomes.in_own_unit(x[:, width:]))
        found = as_errors(sums, len(x), outcomes.names)
        self._errors = {name: self._errors[name] + each if self._errors else each for name, each in found.items()}
        self.samples += len(x)

    def judged(self) -> Judged:
        return Judged(samples=self.samples, errors=self._errors)

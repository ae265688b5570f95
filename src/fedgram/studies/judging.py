"""How good a model of a study is on a table with the outcome: right labels and probabilities, or errors in numbers."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.core.errors import InvalidData
from fedgram.core.labels import to_indices
from fedgram.data.own.bad import OnBad
from fedgram.evaluation import Calibration
from fedgram.models import finite, probabilities
from fedgram.numeric_evaluation import Errors, as_errors, sum_errors
from fedgram.studies.encoding import read_client
from fedgram.studies.kinds import Number
from fedgram.studies.model import StudyModel


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
    """Return how good the model is on a table with the outcome."""
    study, client = model.study, read_client(model.study, "table", table, on_bad=on_bad)
    if not len(client.y):
        raise InvalidData(f"{table} has no rows to judge a model by")
    if not study.classes:
        return _numbers(model, client.x)
    labels = to_indices(client.y, model.classes)
    found = probabilities(model.model, finite(model.model.scores(client.x)))
    known, right = Calibration.of(found, labels), found.argmax(axis=1) == labels
    counts = np.bincount(labels, minlength=len(model.classes))
    hits = np.bincount(labels[right], minlength=len(model.classes))
    return Judged(
        samples=len(labels),
        accuracy=float(right.mean()),
        usual=float(counts.max() / len(labels)),
        brier=known.brier,
        calibration=known.error,
        classes={
            str(label): (n, hit) for label, n, hit in zip(model.classes, counts.tolist(), hits.tolist(), strict=True)
        },
    )


def _numbers(model: StudyModel, x: Any) -> Judged:
    """Return the errors in numeric outcomes, which are the last columns, in units of their ranges."""
    study = model.study
    columns = [column for name in study.targets if isinstance(column := study.columns[name], Number)]
    own, width = x[:, -len(columns) :], x.shape[1] - len(columns)
    values = own * np.array([column.half for column in columns]) + np.array([column.centre for column in columns])
    sums = sum_errors(model.model, x[:, :width], values)
    return Judged(samples=len(x), errors=as_errors(sums, len(x), study.targets))

"""How good a model of a study is on a table with the outcome: right labels and probabilities, or errors in numbers."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.blocks import Blocks, as_blocks, lazily
from fedgram.core.errors import InvalidData
from fedgram.core.labels import to_indices
from fedgram.data.own.bad import OnBad
from fedgram.evaluation import Calibration
from fedgram.models import finite, probabilities
from fedgram.numeric_evaluation import Errors, sum_up
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
    n = len(client.x)
    if not n:
        raise InvalidData(f"{table} has no rows to judge a model by")
    if not study.classes:
        return Judged(samples=n, errors=_numbers(model, as_blocks(client.x)))
    known: Calibration | None = None
    hits = np.zeros(len(model.classes), dtype=np.int64)
    for x, y in zip(as_blocks(client.x), client.y_blocks, strict=True):
        labels, scores = to_indices(y, model.classes), finite(model.model.scores(x))
        found = probabilities(model.model, scores)
        some = Calibration.of(found, labels)
        known = some if known is None else known + some
        hits += np.bincount(labels[found.argmax(axis=1) == labels], minlength=len(hits))
    assert known is not None
    counts = client.label_counts()
    return Judged(
        samples=n,
        accuracy=float(hits.sum() / n),
        usual=max(counts.values()) / n,
        brier=known.brier,
        calibration=known.error,
        classes={
            str(label): (counts.get(label, 0), hit) for label, hit in zip(model.classes, hits.tolist(), strict=True)
        },
    )


def _numbers(model: StudyModel, x: Blocks[Array]) -> dict[str, Errors]:
    """Return the errors in numeric outcomes, which are the last columns, in units of their ranges."""
    study = model.study
    columns = [column for name in study.targets if isinstance(column := study.columns[name], Number)]
    half, centre = (np.array([getattr(column, what) for column in columns]) for what in ("half", "centre"))

    def parts(block: Array) -> tuple[Array, Array]:
        return block[:, : -len(columns)], block[:, -len(columns) :] * half + centre

    return sum_up(model.model, lazily(parts, x), study.targets)

"""How good a model of a study is on a table with the outcome: right labels and probabilities, or errors in numbers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.core.arrays import Array
from fedgram.data.own.bad import OnBad
from fedgram.data.own.cells import Coded
from fedgram.evaluation import Calibration
from fedgram.models import finite
from fedgram.numeric_evaluation import Errors, sum_up
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
            found["errors"] = {name: errors.plain() for name, errors in self.errors.items()}
        return found


def judge(model: StudyModel, table: Any, *, on_bad: OnBad = "refuse") -> Judged:
    """Return how good the model is on a table with the outcome, of which one block is in memory at a time.

    A table without a usable row is refused.
    """
    rows = _few_at_once(open_for(model.study, table).good_rows(on_bad))
    return _labels(model, rows) if model.study.classes else _numbers(model, rows)


def _few_at_once(rows: Iterable[Rows]) -> Iterator[tuple[Array, Coded | None]]:
    """Yield rows with their labels, a few at a time: the scores of a row may take more memory than the row."""
    for some in rows:
        for start in range(0, len(some.x), ROWS):
            part = slice(start, start + ROWS)
            yield some.x[part], None if some.labels is None else some.labels.rows(part)


def _labels(model: StudyModel, rows: Iterable[tuple[Array, Coded | None]]) -> Judged:
    place = {label: index for index, label in enumerate(model.classes)}
    counts, hits = np.zeros((2, len(place)), dtype=np.int64)
    known: Calibration | None = None
    for x, named in rows:
        assert named is not None
        # A value that no row has any more need not be a class: that of a bad row, or an unused level of a category.
        labels, scores = named.map(lambda label: place.get(label, -1), np.int64), finite(model.model.scores(x))
        assert (labels >= 0).all()
        counts += np.bincount(labels, minlength=len(place))
        hits += np.bincount(labels[scores.argmax(axis=1) == labels], minlength=len(place))
        found = Calibration.of_scores(model.model, scores, labels)
        known = found if known is None else known + found
    assert known is not None
    return Judged(
        samples=known.n,
        accuracy=known.correct / known.n,
        usual=int(counts.max()) / known.n,
        brier=known.brier,
        calibration=known.error,
        classes={
            str(label): pair
            for label, pair in zip(place, zip(counts.tolist(), hits.tolist(), strict=True), strict=True)
        },
    )


def _numbers(model: StudyModel, rows: Iterable[tuple[Array, Coded | None]]) -> Judged:
    """Judge by numeric outcomes, which are the last columns, in units of their ranges."""
    outcomes = model.study.numeric({})
    assert outcomes is not None
    parts = ((x[:, : -len(outcomes)], outcomes.in_own_unit(x[:, -len(outcomes) :])) for x, _ in rows)
    errors = sum_up(model.model, parts, outcomes.names)
    return Judged(samples=errors[outcomes.names[0]].n, errors=errors)

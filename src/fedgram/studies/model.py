"""A model together with its study: it predicts from tables as parties have them, and needs nothing else for it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.columns import Columns
from fedgram.core.errors import Mismatch
from fedgram.data.own.cells import Coded, Mask
from fedgram.models import Model, WrappedModel, finite, probabilities
from fedgram.moments.kind import described
from fedgram.regressors import Regressor
from fedgram.studies.encoding import Rows, gather, open_for
from fedgram.studies.study import Study

ROWS = 1 << 12  # that are predicted at a time


@dataclass(frozen=True)
class Predicted:
    """What was found for some rows of a table, one element for each row.

    `found` are labels, or numbers (n, t) where the outcome has no classes. `probabilities` (n, c) are of the classes.
    Where `reasons` says what is wrong with a row, the others mean nothing. `keys` and `known` are what the table itself
    says: the rows' keys and labels. `values` (n, t) are the numeric outcomes that it says, NaN where it says none.
    """

    found: npt.NDArray[Any]
    probabilities: Array | None
    reasons: list[str]
    keys: Coded | None
    known: Coded | None
    values: Array | None = None


@wire.message("study-model", version=1)
@dataclass(frozen=True, eq=False)
class StudyModel(WrappedModel):
    """A model of the columns that a study sends, as a model of tables: files, or those of pandas, polars and Arrow.

    Columns are found by name, in any order. A missing or unknown one is refused, and so are rows that break a rule of
    the study. `Study.model` makes one, and so does `Fit.predictor`.
    """

    study: Study
    model: Model

    def __post_init__(self) -> None:
        """Refuse a model that was made from something else."""
        if self.model.features != self.study.features:
            raise Mismatch(
                f"this model was made from {described(self.model.features)}, not from "
                f"{described(self.study.features)}: give the study that it was made under"
            )
        if self.model.columns != self.study.sent[: len(self.model.columns)]:
            raise Mismatch(f"this model has other columns than study {self.study.name!r} sends")
        if tuple(self.model.classes) != self.study.kind.classes:
            found, wanted = (", ".join(map(repr, each[:8])) for each in (self.model.classes, self.study.kind.classes))
            raise Mismatch(
                f"this model has the classes {found}, and study {self.study.name!r} has {wanted}: give the study that "
                "it was made under"
            )
        if self.study.targets and not (
            isinstance(self.model, Regressor) and self.model.outcomes.names == self.study.targets
        ):
            raise Mismatch(
                f"this model does not predict the outcomes of study {self.study.name!r}, "
                f"{', '.join(self.study.targets)}: give the study that it was made under"
            )

    @property
    def columns(self) -> Columns:
        """The columns of a table that are used."""
        return tuple(name for name in self.study.used if name not in self.study.outcomes)

    def unwrap(self, x: Any) -> Array:
        """Return the columns that the study makes of a table."""
        encoded, *_ = gather(open_for(self.study, x, labelled=False), "refuse")
        return encoded

    def read(self, source: Any, *, key: str | None = None) -> Iterator[Predicted]:
        """Yield what is predicted for a table of any size, block by block; a bad row keeps its place.

        `key` is a column that says which row is which; it need not be in the study.
        """
        if key is not None and getattr(self.study.columns.get(key), "numeric", False):
            raise Mismatch(
                f"column {key!r} is a number that the study uses, so it says nothing about which row is which"
            )
        for rows in open_for(self.study, source, labelled=False, key=key).rows():
            good = rows.good
            # A block of a narrow table has very many rows, and what is said of a row takes more memory than the row.
            for start in range(0, len(good), ROWS):
                yield self._predicted(rows, good, slice(start, start + ROWS))

    def _predicted(self, rows: Rows, good: Mask, part: slice) -> Predicted:
        fine = good[part]
        numeric = not self.study.classes
        scores = np.zeros((len(fine), len(self.study.outcomes if numeric else self.classes)))
        wrong = np.flatnonzero(~fine).tolist()
        scores[fine] = finite(self.model.scores(rows.x[part][fine] if wrong else rows.x[part]))
        reasons = [""] * len(fine)
        for row in wrong:
            reasons[row] = rows.reasons(part.start + row)
        keys, known = (None if texts is None else texts.rows(part) for texts in (rows.keys, rows.labels))
        if numeric:
            return Predicted(scores, None, reasons, keys, known, None if rows.values is None else rows.values[part])
        labels = np.asarray(self.classes)[scores.argmax(axis=1)]
        return Predicted(labels, probabilities(self.model, scores), reasons, keys, known)

"""A model together with its study: it predicts from tables as parties have them, and needs nothing else for it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.columns import Columns
from fedgram.core.errors import Mismatch
from fedgram.core.labels import Classes
from fedgram.data.own.cells import Coded, Mask
from fedgram.models import Model, finite, probabilities, temperature_of
from fedgram.studies.encoding import Rows, gather, open_for
from fedgram.studies.study import Study

ROWS = 1 << 12  # that are predicted at a time


@dataclass(frozen=True)
class Predicted:
    """What was found for some rows of a table, one element for each row.

    `found` are labels, or numbers (n, t) where the outcome has no classes. `probabilities` (n, c) are of the classes.
    Where `reasons` says what is wrong with a row, the others mean nothing. `keys` and `known` are what the table itself
    says: the rows' keys and labels.
    """

    found: npt.NDArray[Any]
    probabilities: Array | None
    reasons: list[str]
    keys: Coded | None
    known: Coded | None


@wire.register_message
@dataclass(frozen=True, eq=False)
class StudyModel:
    """A model of the columns that a study sends, as a model of tables: files, or those of pandas, polars and Arrow.

    Columns are found by name, in any order. A missing or unknown one is refused, and so are rows that break a rule of
    the study. `Study.model` makes one, and so does `Fit.predictor`.
    """

    study: Study
    model: Model

    wire_name: ClassVar[str] = "study-model"
    wire_version: ClassVar[int] = 1
    wire_fields: ClassVar[Mapping[str, wire.Field]] = {}

    def __post_init__(self) -> None:
        """Refuse a model that was made from something else."""
        if self.model.features != self.study.features:
            raise Mismatch(
                f"this model was made from {self.model.features or 'data of no study'!r}, not from "
                f"{self.study.features!r}: give the study that it was made under"
            )
        if self.model.columns != self.study.sent[: len(self.model.columns)]:
            raise Mismatch(f"this model has other columns than study {self.study.name!r} sends")

    @property
    def classes(self) -> Classes:
        """The classes, in the order of the scores' columns."""
        return self.model.classes

    @property
    def features(self) -> str:
        """The study's name and fingerprint."""
        return self.study.features

    @property
    def columns(self) -> Columns:
        """The columns of a table that are used."""
        return tuple(name for name in self.study.used if name not in self.study.outcomes)

    @property
    def temperature(self) -> float | None:
        """What scores are divided by to be log-probabilities, None where they are that already."""
        return temperature_of(self.model)

    def scores(self, x: Any) -> Array:
        """Return one score per row of a table and class, (n, c)."""
        return self.model.scores(self._encoded(x))

    def predict(self, x: Any) -> npt.NDArray[Any]:
        """Return the label of each row of a table, (n,)."""
        return self.model.predict(self._encoded(x))

    def predict_proba(self, x: Any) -> Array:
        """Return a probability per row of a table and class, (n, c)."""
        return probabilities(self.model, self.scores(x))

    def _encoded(self, source: Any) -> Array:
        x, *_ = gather(open_for(self.study, source, labelled=False), "refuse")
        return x

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
            return Predicted(scores, None, reasons, keys, known)
        labels = np.asarray(self.classes)[scores.argmax(axis=1)]
        return Predicted(labels, probabilities(self.model, scores), reasons, keys, known)

    def to_fields(self) -> dict[str, Any]:
        """Take the model apart for the wire."""
        return {"study": self.study, "model": self.model}

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> "StudyModel":
        """Put a model together from the wire."""
        study, model = fields["study"], fields["model"]
        if not isinstance(study, Study) or not isinstance(model, Model):
            raise Mismatch("a study-model must hold a study and a model")
        return cls(study, model)

    def check(self) -> None:
        """Nothing more: study and model are messages that have been checked."""

"""Targets, which models predict: classes, or numeric outcomes.

All that depends on the kind of target is here: the rows that moments sum, the regression that is solved for them, the
predictions that scores stand for, and the sums over test samples that say how good a model is. Another kind of target
is another subclass of `Targets`, given to `Method.fit` as its `classes`.

For numeric outcomes, moments are those of the joint columns [x, y] as samples of one class: XᵀY and YᵀY are blocks of
their Gram matrix. They add, subtract, travel and are checked like any others.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array, unmasked
from fedgram.core.classes import NUMERIC, Classes
from fedgram.core.columns import Columns, as_columns, as_table, names_of, samples_of
from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch
from fedgram.evaluation import Calibration, NumericErrors, Performance, RightLabels
from fedgram.models import Model
from fedgram.moments import packing, solve
from fedgram.moments.accumulate import as_features
from fedgram.moments.moments import Moments
from fedgram.moments.regression import Regression


class Targets(ABC):
    """A kind of target. Methods of least squares work with any; a method that needs classes says `numeric = False`.

    A subclass says which labels samples have (`classes`), the target rows that stand for them (`rows`), how scores are
    read (`predict`), and how a model is judged (`judge`, `check_sums`, `performance`). To cross the wire it is also a
    message type.
    """

    wire_name: ClassVar[str] = "targets"

    @property
    @abstractmethod
    def classes(self) -> Classes:
        """The labels that samples may have, in order; NUMERIC where samples have numbers instead."""

    if TYPE_CHECKING:  # subclasses may define it as a dataclass field, which a property here would block

        @property
        def names(self) -> Columns:
            """The numeric outcomes, which are the last columns of what clients have; () where samples have labels."""

    @property
    def scored(self) -> Classes:
        """The classes that a model has scores for; NUMERIC where its scores are numbers."""
        return NUMERIC

    @property
    def has_classes(self) -> bool:
        """Whether scores are those of classes, so that the highest wins and probabilities follow from them."""
        return self.scored != NUMERIC

    # Training
    @abstractmethod
    def rows(self, truth: npt.NDArray[Any]) -> Array:
        """Return target rows (n, t) for label indices (n,), or for numeric outcomes (n, t)."""

    def joint(self, moments: Moments) -> "Joint":
        """Return the sums of features and targets in moments."""
        codes, counts = self.rows(np.arange(len(moments.classes))), moments.counts.astype(np.float64)
        sums = moments.cross.sum(axis=1)
        return Joint(moments.packed, moments.cross @ codes, counts @ codes**2, sums, counts @ codes, moments.n)

    def regression(self, moments: Moments, *, intercept: bool) -> Regression:
        """Return the regression of the targets on the features."""
        moments.warn_of_lost_digits()
        return self.joint(moments).regression(intercept=intercept)

    def feature_columns(self, moments: Moments) -> Columns:
        """Return the names of the columns that features are, or were made from."""
        columns = moments.schema.columns
        return columns[: len(columns) - len(self.names)]

    # Predicting
    def as_outcomes(self, scores: Array) -> Array:
        """Return the scores (n, t) of a model in the units that its user sees."""
        return scores

    @abstractmethod
    def predict(self, scores: Array) -> npt.NDArray[Any]:
        """Return the predictions for scores (n, t) in the units that the user sees."""

    # Judging
    @abstractmethod
    def judge(self, model: Model, samples: Iterable[tuple[Any, npt.NDArray[Any]]], *, least: int = 1) -> Performance:
        """Return sums over test samples that say how good a model is.

        Parameters
        ----------
        model : Model
            The model to judge.
        samples : Iterable[tuple[Any, NDArray]]
            Blocks of samples, each with its label indices (n,) or numeric outcomes (n, t).
        least : int
            The smallest number of samples that a reported sum of a range of confidence may cover.

        """

    @abstractmethod
    def check_sums(self, sums: Any, n: int, where: str) -> None:
        """Raise RefusedMessage for sums that are impossible on n test samples."""

    @abstractmethod
    def performance(self, sums: Any, n: int) -> Performance:
        """Return the sums of a client over n test samples as a performance."""


@dataclass(frozen=True)
class ClassTargets(Targets):
    """Classes as one-hot rows: a sample's target is 1 for its own class and 0 for the others."""

    labels: Classes

    @property
    def classes(self) -> Classes:
        """The classes, in the order of the scores."""
        return self.labels

    @property
    def names(self) -> Columns:
        """(): there are no numeric outcomes."""
        return ()

    @property
    def scored(self) -> Classes:
        """The classes that a model has scores for."""
        return self.labels

    def rows(self, truth: npt.NDArray[Any]) -> Array:
        """Return one-hot rows (n, c) for label indices (n,)."""
        return np.asarray(np.eye(len(self.labels))[truth])

    def joint(self, moments: Moments) -> "Joint":
        """Return the sums of features and one-hot rows."""
        return Joint.of(moments)

    def predict(self, scores: Array) -> npt.NDArray[Any]:
        """Return the label of the highest score in each row."""
        best: npt.NDArray[np.intp] = scores.argmax(axis=1)
        return np.asarray(self.labels)[best]

    def judge(self, model: Model, samples: Iterable[tuple[Any, npt.NDArray[Any]]], *, least: int = 1) -> RightLabels:
        """Return the number of right labels, with sums about the probabilities."""
        return RightLabels.of(Calibration.judged(model, samples, least=least))

    def check_sums(self, sums: Any, n: int, where: str) -> None:
        """Raise RefusedMessage for an impossible number of right labels, or impossible sums of `Calibration`."""
        RightLabels.check_sums(sums, n, where)

    def performance(self, sums: Any, n: int) -> RightLabels:
        """Return the sums of a client over n test samples."""
        return RightLabels.of_sums(sums, n)


@wire.message("outcomes", version=1)
@dataclass(frozen=True, eq=False)
class NumericTargets(Targets):
    """Numeric outcomes by name. Methods see them as (value - centre) / unit, about 0 and in units of their range.

    Parameters
    ----------
    names : Columns
        The outcomes' columns, the last ones of what clients have.
    centre : Array
        The number that is subtracted from each outcome, (t,).
    unit : Array
        The number > 0 that each outcome is then divided by, (t,).

    Examples
    --------
    >>> cost = NumericTargets(("cost",), np.array([500.0]), np.array([250.0]))
    >>> cost.as_outcomes(np.array([[-1.0], [0.5]]))
    array([[250.],
           [625.]])

    """

    names: Columns
    centre: Annotated[Array, wire.Shape("d")]
    unit: Annotated[Array, wire.Shape("d")]

    @classmethod
    def named(cls, *names: str) -> Self:
        """Return targets with centre 0 and unit 1, so that methods see the outcomes unchanged."""
        return cls(names, np.zeros(len(names)), np.ones(len(names)))

    @property
    def classes(self) -> Classes:
        """NUMERIC: all samples count as one class."""
        return NUMERIC

    def rows(self, truth: npt.NDArray[Any]) -> Array:
        """Return outcomes (n, t) as methods see them."""
        return np.asarray((truth - self.centre) / self.unit)

    def joint(self, moments: Moments) -> "Joint":
        """Return the sums of features and outcomes, which are the last columns of the moments."""
        return Joint.of(moments, outcomes=len(self.names))

    def as_outcomes(self, scores: Array) -> Array:
        """Return scores (n, t) converted back to the units of the data."""
        if scores.shape[1] != len(self.names):
            raise Mismatch(f"this model predicts {scores.shape[1]} numbers for {len(self.names)} outcomes")
        return np.asarray(scores * self.unit + self.centre)

    def predict(self, scores: Array) -> npt.NDArray[Any]:
        """Return the predicted outcome (n,), or several, (n, t)."""
        return scores[:, 0] if len(self.names) == 1 else scores

    def judge(self, model: Model, samples: Iterable[tuple[Any, npt.NDArray[Any]]], *, least: int = 1) -> NumericErrors:
        """Return sums of the errors in each outcome."""
        return NumericErrors.judged(model, samples, self.names)

    def check_sums(self, sums: Any, n: int, where: str) -> None:
        """Raise RefusedMessage for impossible sums of errors."""
        NumericErrors.check_sums(sums, n, len(self.names), where)

    def performance(self, sums: Any, n: int) -> NumericErrors:
        """Return the sums of a client over n test samples."""
        return NumericErrors.of_sums(sums, n, self.names)

    def check(self) -> None:
        """Raise Mismatch for units that are not positive."""
        if not (self.unit > 0).all():
            raise Mismatch(f"outcomes: expected units > 0, got {self.unit.tolist()[:5]} for {self.names[:5]}")


@dataclass(frozen=True, eq=False)
class Joint:
    """XᵀX packed, XᵀY (d, t), the squares of each target (t,), sums of features (d,) and targets (t,), of n samples."""

    packed: Array
    cross: Array
    squares: Array
    sums: Array
    target_sums: Array
    n: int

    @classmethod
    def of(cls, moments: Moments, *, outcomes: int = 0) -> Self:
        """Return the view of moments whose last `outcomes` columns are numeric outcomes; 0 for those with classes."""
        if not outcomes:
            counts = moments.counts.astype(np.float64)
            return cls(moments.packed, moments.cross, counts, moments.cross.sum(axis=1), counts, moments.n)
        if moments.schema.bias or moments.classes != NUMERIC:
            raise Mismatch(f"these are not moments of numeric outcomes ({moments!r}): make them with joint_moments")
        if not 0 < outcomes < moments.d:
            raise InvalidParameter(f"outcomes must be from 1 to {moments.d - 1} of {moments.d} columns, got {outcomes}")
        d, gram, sums = moments.d - outcomes, moments.gram, moments.cross[:, 0]
        packed = packing.pack(gram[:d, :d])
        return cls(packed, gram[:d, d:], gram.diagonal()[d:], sums[:d], sums[d:], moments.n)

    def regression(self, *, intercept: bool) -> Regression:
        """Return the regression of the targets on the features; with an intercept, about the means."""
        squares = float(self.squares.sum())
        return Regression.of(self.packed, self.cross, self.sums, self.target_sums, squares, self.n, intercept=intercept)

    def squares_about_mean(self) -> Array:
        """Return each target's sum of squares about its mean, (t,); exactly 0 where only rounding errors are left."""
        about = self.squares - self.target_sums**2 / max(self.n, 1)
        return np.where(about > solve.rounding_level(len(self.sums), self.n) * self.squares, about, 0.0)

    def squared_errors(self, weights: Array, intercept: Array | None) -> Array:
        """Return each target's sum of squared errors of the scores x @ weights + intercept, (t,).

        It is a quadratic form in the moments, computed about the samples' means, because large means would otherwise
        cancel and cost digits.
        """
        centred = self.regression(intercept=True)
        off = centred.target_mean - centred.mean @ weights - (0.0 if intercept is None else intercept)
        gram = packing.unpack(centred.packed, len(weights))
        around = self.squares_about_mean() + ((gram @ weights - 2 * centred.cross) * weights).sum(axis=0)
        errors: Array = np.maximum(around, 0.0) + self.n * off**2
        return errors


def joint_moments(
    x: Any, y: npt.ArrayLike, *, features: str = "", columns: Iterable[str] = (), outcomes: Iterable[str] = ()
) -> Moments:
    """Return the moments of the columns [x, y] for features x (n, d) and numeric outcomes y, (n,) or (n, t).

    `columns` and `outcomes` name the columns of x and y; without `columns`, a table's own names are used for x.

    >>> moments = joint_moments([[1.0], [2.0], [4.0]], [1.0, 3.0, 7.0])
    >>> weights, _ = NumericTargets.named("y").joint(moments).regression(intercept=True).solve(0.0)
    >>> weights
    array([[2.]])
    """
    x, targets = as_table(x), np.asarray(unmasked(y, "outcomes"))
    names = as_columns(columns) or names_of(x)
    rows = as_features(samples_of(x, names) if names else x)
    targets = as_features(targets[:, None] if targets.ndim == 1 else targets)
    if len(rows) != len(targets):
        raise InvalidData(f"{len(rows)} samples but {len(targets)} outcomes")
    labels = tuple(outcomes)
    if bool(names) != bool(labels):
        raise InvalidParameter(f"name the columns of both x and y, or of neither: got {names} and {labels}")
    return Moments.of(
        np.column_stack([rows, targets]),
        np.zeros(len(rows), dtype=np.int64),
        classes=NUMERIC,
        features=features,
        columns=(*names, *labels),
    )

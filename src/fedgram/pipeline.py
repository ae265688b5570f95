"""Models of the clients' raw columns, made of models of the columns that methods see."""

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.columns import Columns, as_columns, samples_of
from fedgram.core.errors import InvalidParameter
from fedgram.models import LinearModel, Model, WrappedModel, probabilities, with_columns
from fedgram.moments.basis import Basis
from fedgram.moments.targets import Targets


@wire.message("pipeline", version=1)
@dataclass(frozen=True, eq=False)
class Pipeline(WrappedModel):
    """A model of raw columns: a basis makes columns of them, `model` scores these, and targets read the scores.

    Parameters
    ----------
    model : Model
        The model of the columns that methods see.
    basis : Basis or None
        The map from raw columns to those of the model; None where they are the same.
    targets : Targets or None
        The targets that scores stand for; None for the model's own classes.
    columns : Columns
        The names of the raw columns; () where they have none.

    Examples
    --------
    >>> import numpy as np
    >>> from fedgram.core.classes import NUMERIC
    >>> from fedgram.moments.targets import NumericTargets
    >>> cost = NumericTargets(("cost",), np.array([500.0]), np.array([250.0]))
    >>> inner = LinearModel(np.array([[1.0], [0.5]]), NUMERIC)
    >>> Pipeline(inner, targets=cost).predict([[1.0, 2.0], [0.0, 0.0]])
    array([1000.,  500.])

    """

    model: Model
    basis: Basis | None = None
    targets: Targets | None = None
    columns: Columns = ()

    def __post_init__(self) -> None:
        """Take the model's columns where there is no basis."""
        if self.basis is None and not self.columns:
            object.__setattr__(self, "columns", self.model.columns)

    @classmethod
    def of(cls, model: Any, basis: Basis | None, targets: Targets, columns: Columns) -> Any:
        """Return a model of the clients' columns from a model of the method's columns; other values unchanged.

        A linear model of classes stays a linear model.

        Parameters
        ----------
        model : Any
            The model that a method made.
        basis : Basis or None
            The basis that the method's columns were made by, numeric outcomes included.
        targets : Targets
            The targets of the run.
        columns : Columns
            The columns that clients have, numeric outcomes last.

        """
        if not isinstance(model, Model):
            return model
        source = columns[: len(columns) - len(targets.names)]
        made = None if basis is None else basis.of_features
        model = with_columns(model, source if made is None else made.columns)
        if made is not None and isinstance(model, LinearModel):
            model, made = made.back(model, source), None
        return (
            model
            if made is None and targets.has_classes
            else cls(model, made, None if targets.has_classes else targets, source)
        )

    def unwrap(self, x: Any) -> Any:
        """Return the columns that the model takes."""
        return x if self.basis is None else self.basis.apply(samples_of(x, self.columns))

    def scores(self, x: Any) -> Array:
        """Return the scores (n, t), in the units of the outcomes."""
        found = self.model.scores(self.unwrap(x))
        return found if self.targets is None else self.targets.as_outcomes(found)

    def predict(self, x: Any) -> npt.NDArray[Any]:
        """Return the label or outcome of each sample, (n,), or several outcomes, (n, t)."""
        return self.model.predict(self.unwrap(x)) if self.targets is None else self.targets.predict(self.scores(x))

    def predict_proba(self, x: Any) -> Array:
        """Return a probability per sample and class, (n, c); raise InvalidParameter where there are none."""
        if self.targets is not None:
            names = ", ".join(self.targets.names) or "these targets"
            raise InvalidParameter(f"a model of {names} predicts numbers and has no probabilities: use predict")
        return probabilities(self.model, self.scores(x))

    def check(self) -> None:
        """Raise if the number of names is not that of the raw columns."""
        if self.basis is not None:
            as_columns(self.columns, self.basis.source)

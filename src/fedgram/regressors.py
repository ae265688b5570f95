"""Models of numeric outcomes: what a method scores, in the outcome's own unit."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.columns import Columns
from fedgram.core.errors import InvalidParameter, Mismatch
from fedgram.models import Model, WrappedModel


@wire.message("outcomes", version=1)
@dataclass(frozen=True, eq=False)
class Outcomes:
    """Numeric outcomes by name. Methods see them as (value - centre) / unit, about 0 and in units of their range.

    >>> cost = Outcomes(("cost",), np.array([500.0]), np.array([250.0]))
    >>> cost.in_own_unit(np.array([[-1.0], [0.5]]))
    array([[250.],
           [625.]])
    """

    names: Columns
    centre: Annotated[Array, wire.Shape("d")]
    unit: Annotated[Array, wire.Shape("d")]

    def __len__(self) -> int:
        return len(self.names)

    def in_own_unit(self, values: Array) -> Array:
        """Return values (n, t) that methods see as they are in the data."""
        return np.asarray(values * self.unit + self.centre)

    def check(self) -> None:
        """Refuse units that are not positive."""
        if not (self.unit > 0).all():
            raise Mismatch(f"outcomes must have units > 0, got {self.unit.tolist()[:5]} for {self.names[:5]}")


@wire.message("regressor", version=1)
@dataclass(frozen=True, eq=False)
class Regressor(WrappedModel):
    """A model of numeric outcomes: `model` scores them as methods see them, and this says them in their own unit.

    >>> from fedgram.core.labels import NUMERIC
    >>> from fedgram.models import LinearModel
    >>> cost = Outcomes(("cost",), np.array([500.0]), np.array([250.0]))
    >>> Regressor(LinearModel(np.array([[1.0], [0.5]]), NUMERIC), cost).predict([[1.0, 2.0], [0.0, 0.0]])
    array([1000.,  500.])
    """

    model: Model
    outcomes: Outcomes

    @property
    def columns(self) -> Columns:
        """The names of the samples' columns; the outcomes are not among them."""
        return self.model.columns

    def unwrap(self, x: Any) -> Any:
        """Return the samples: the model inside takes the same ones."""
        return x

    def scores(self, x: Any) -> Array:
        """Return the predicted outcomes (n, t), a column for each outcome, in its own unit."""
        scores = self.model.scores(x)
        if scores.shape[1] != len(self.outcomes):
            raise Mismatch(f"this model predicts {scores.shape[1]} numbers for {len(self.outcomes)} outcomes")
        return self.outcomes.in_own_unit(scores)

    def predict(self, x: Any) -> npt.NDArray[Any]:
        """Return the predicted outcome (n,), or several, (n, t)."""
        values = self.scores(x)
        return values[:, 0] if len(self.outcomes) == 1 else values

    def predict_proba(self, x: Any) -> Array:
        """Refuse: numbers have no classes that could be probable."""
        names = ", ".join(self.outcomes.names)
        raise InvalidParameter(f"a model of {names} predicts numbers and has no probabilities: use predict")

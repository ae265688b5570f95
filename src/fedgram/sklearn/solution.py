"""The model that moments give, computed when it is first asked for."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedgram.core.arrays import Array
from fedgram.heads.temperature import of_regression
from fedgram.moments.regression import Regression, Ridge
from fedgram.moments.weighted import WeightedMoments


@dataclass(frozen=True, eq=False)
class Solution:
    """The regression of the targets on the features: `partial_fit` over many blocks solves it once, when it is used."""

    moments: WeightedMoments
    setting: Ridge
    intercept: bool

    @cached_property
    def _problem(self) -> Regression:
        return self.moments.regression(intercept=self.intercept)

    @cached_property
    def _solved(self) -> tuple[Array, float]:
        return self._problem.solve(self.setting)

    @property
    def weights(self) -> Array:
        """The weights, (d, t)."""
        return self._solved[0]

    @property
    def ridge(self) -> float:
        """The ridge that the weights have."""
        return self._solved[1]

    @cached_property
    def offset(self) -> Array:
        """The intercept, (t,), zero where there is none."""
        offset = self._problem.offset(self.weights)
        return np.zeros(self.weights.shape[1]) if offset is None else offset

    @cached_property
    def temperature(self) -> float:
        """How large a difference of scores makes odds of e, where the targets are classes."""
        counts = self.moments.weight * self.moments.target_mean
        freedom = self._problem.degrees_of_freedom(self.ridge) - self.intercept
        return of_regression(self._problem, counts, self.weights, freedom)

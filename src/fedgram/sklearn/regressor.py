"""Ridge regression that adds up."""

from typing import Any, Self

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import validate_data

from fedgram.core.arrays import Array, unmasked
from fedgram.core.errors import Mismatch
from fedgram.moments.weighted import Samples, WeightedMoments
from fedgram.sklearn.base import DTYPES, GramEstimator, checked_weights


class GramRegressor(MultiOutputMixin, RegressorMixin, GramEstimator):  # type: ignore[misc]
    """Ridge regression of one or several numeric outcomes, from moments that add up.

    `ridge` is a number ≥ 0, as `alpha` of scikit-learn's `Ridge`; or "auto", the one of least generalised
    cross-validation error, which moments alone decide, so that `fit`, `partial_fit` and `+` agree; or "loo", the one
    of least leave-one-out error, for `fit` only. With `fit_intercept` there is an intercept, which no ridge shrinks.

    A sample weight of 2 is a sample that is there twice; "loo" leaves it out with all its weight.

    >>> from sklearn.datasets import load_diabetes
    >>> x, y = load_diabetes(return_X_y=True)
    >>> north, south = GramRegressor().fit(x[:200], y[:200]), GramRegressor().fit(x[200:], y[200:])
    >>> bool(np.allclose((north + south).coef_, GramRegressor().fit(x, y).coef_))
    True
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit features X (n, d) and outcomes y, (n,) or (n, t)."""
        X, y, weights = self._checked(X, y, sample_weight, reset=True)
        self._flat = y.ndim == 1
        self._fit(Samples(X, _columns(y), weights))
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit these samples together with all before them, in O(d²) memory however many there are."""
        self._setting("partial_fit")
        first = not hasattr(self, "moments_")
        X, y, weights = self._checked(X, y, sample_weight, reset=first)
        outcomes = _columns(y).shape[1]
        if first:
            self._flat = y.ndim == 1
        elif (self._flat, self.moments_.cross.shape[1]) != (y.ndim == 1, outcomes):
            raise Mismatch(
                f"y has shape {y.shape}, but was fitted with {self._outcomes()}: give the same outcomes in every block"
            )
        moments = WeightedMoments.of(Samples(X, _columns(y), weights))
        self._take(moments if first else self.moments_ + moments)
        return self

    def predict(self, X: Any) -> Array:
        """Return the outcomes, (n,) or (n, t) as y was."""
        return np.asarray(self._scores(X))

    def _shown(self, values: Array) -> Any:
        return values[0] if self._flat else values

    def _outcomes(self) -> str:
        return "shape (n,)" if self._flat else f"shape (n, {self.moments_.cross.shape[1]})"

    def _aligned(self, other: GramEstimator) -> tuple[WeightedMoments, WeightedMoments]:
        mine, theirs = super()._aligned(other)
        assert isinstance(other, GramRegressor)
        if self._outcomes() != other._outcomes():
            raise Mismatch(f"cannot combine fits of different outcomes: {self._outcomes()} and {other._outcomes()}")
        return mine, theirs

    def _with(self, moments: WeightedMoments, other: Self) -> Self:
        fitted = super()._with(moments, other)
        fitted._flat = self._flat
        return fitted

    def _checked(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> tuple[Any, Any, Array | None]:
        X, y = validate_data(
            self,
            unmasked(X, "X"),
            unmasked(y, "y"),
            accept_sparse="csr",
            dtype=DTYPES,
            multi_output=True,
            y_numeric=True,
            reset=reset,
        )
        return X, y, checked_weights(sample_weight, X)


def _columns(y: Any) -> Any:
    return y[:, None] if y.ndim == 1 else y

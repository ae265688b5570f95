"""What both estimators share: their settings, their moments, and how these are added, subtracted and solved."""

from numbers import Real
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_array
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from fedgram.core.arrays import Array, unmasked
from fedgram.core.columns import difference
from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch
from fedgram.moments.leave_one_out import leave_one_out
from fedgram.moments.regression import Ridge
from fedgram.moments.weighted import Samples, WeightedMoments
from fedgram.sklearn.solution import Solution

Setting: TypeAlias = Ridge | Literal["loo"]
# scikit-learn's checks convert features of other types to the first of these.
DTYPES = (np.float64, np.float32)


class GramEstimator(BaseEstimator):  # type: ignore[misc]
    """Least squares from moments that add up. Subclasses say what the targets are, and what a prediction is."""

    def __init__(self, ridge: Setting = "auto", *, fit_intercept: bool = True) -> None:
        self.ridge = ridge
        self.fit_intercept = fit_intercept

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @property
    def coef_(self) -> Array:
        """The weights, in the shape that scikit-learn's linear models have."""
        return np.asarray(self._shown(self._solution().weights.T))

    @property
    def intercept_(self) -> Any:
        """The intercept; zero without one."""
        return self._shown(self._solution().offset)

    @property
    def ridge_(self) -> float:
        """The ridge of the model: the one that was chosen, or the one that was given."""
        return self._solution().ridge

    def _shown(self, values: Array) -> Any:
        """Return weights (t, d) or an intercept (t,) as users see them."""
        raise NotImplementedError

    def _solution(self) -> Solution:
        check_is_fitted(self, "moments_")
        solution: Solution = self._model
        return solution

    def _scores(self, X: Any) -> Any:
        """Return the predictions of `coef_` and `intercept_`."""
        check_is_fitted(self, "moments_")
        X = validate_data(self, unmasked(X, "X"), accept_sparse="csr", dtype=DTYPES, reset=False)
        return safe_sparse_dot(X, self.coef_.T, dense_output=True) + self.intercept_

    def _fit(self, samples: Samples) -> None:
        """Take the moments of these samples alone, and solve: warnings belong to the call that causes them."""
        ridge = self._setting()
        moments = WeightedMoments.of(samples)
        if ridge == "loo":
            ridge = leave_one_out(moments.regression(intercept=self.fit_intercept), samples)
        model = Solution(moments, ridge, self.fit_intercept)
        self.moments_, self._model, _ = moments, model, model.weights

    def _take(self, moments: WeightedMoments) -> None:
        """Take these moments; they are solved when the model is asked for."""
        ridge = self._setting("partial_fit, + and -")
        self.moments_, self._model = moments, Solution(moments, ridge, self.fit_intercept)

    def _setting(self, who: str = "") -> Any:
        """Return the ridge as it was given; refuse what is none, and for `who` one that needs the samples."""
        ridge = self.ridge
        if isinstance(ridge, str):
            if ridge not in ("auto", "loo"):
                raise InvalidParameter(f"ridge must be 'auto', 'loo' or a number ≥ 0, got {ridge!r}")
            if who and ridge == "loo":
                raise InvalidParameter(
                    f"ridge='loo' needs all the samples at once, so {who} cannot use it: take 'auto' or a number"
                )
            return ridge
        if isinstance(ridge, bool) or not isinstance(ridge, Real) or not 0 <= float(ridge) < np.inf:
            raise InvalidParameter(f"ridge must be 'auto', 'loo' or a number ≥ 0, got {ridge!r}")
        return float(ridge)

    def __add__(self, other: Self) -> Self:
        """Return the fit of both data sets together."""
        if not isinstance(other, GramEstimator):
            return NotImplemented
        mine, theirs = self._aligned(other)
        return self._with(mine + theirs, other)

    def __radd__(self, other: object) -> Self:
        """Let `sum([a, b])` start from 0."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __sub__(self, other: Self) -> Self:
        """Return the fit without the samples of `other`, which were fitted or added before (exact unlearning)."""
        if not isinstance(other, GramEstimator):
            return NotImplemented
        mine, theirs = self._aligned(other)
        return self._with(mine - theirs, other)

    def _aligned(self, other: "GramEstimator") -> tuple[WeightedMoments, WeightedMoments]:
        """Return both moments for the same targets; refuse an estimator with other settings, features or targets."""
        check_is_fitted(self, "moments_")
        check_is_fitted(other, "moments_")
        if type(self) is not type(other):
            raise Mismatch(f"cannot combine {type(self).__name__} and {type(other).__name__}: fit both as one of them")
        own, their = self.get_params(), other.get_params()
        for name, value in own.items():
            if value != their[name]:
                raise Mismatch(f"cannot combine fits with different {name}: {value!r} and {their[name]!r}")
        names, others = (list(getattr(fitted, "feature_names_in_", ())) for fitted in (self, other))
        if unlike := difference(others, names):
            raise Mismatch(f"cannot combine fits of different features: the second {unlike}")
        if names != others:
            raise Mismatch(
                f"cannot combine fits of features in another order: {names} and {others}; "
                "fit both with their columns in one order"
            )
        if self.n_features_in_ != other.n_features_in_:
            raise Mismatch(
                f"cannot combine fits of {self.n_features_in_} and {other.n_features_in_} features: give both the same"
            )
        return self.moments_, other.moments_

    def _with(self, moments: WeightedMoments, other: Self) -> Self:
        """Return an estimator like this one, fitted to these moments, which `other` has had a part in."""
        fitted: Self = clone(self)
        fitted.n_features_in_ = self.n_features_in_
        if hasattr(self, "feature_names_in_"):
            fitted.feature_names_in_ = self.feature_names_in_
        fitted._take(moments)
        return fitted


def checked_weights(sample_weight: Any, X: Any) -> Array | None:
    """Return weights ≥ 0 as an array, None for all ones; `X` has been checked."""
    if sample_weight is None:
        return None
    unmasked(sample_weight, "sample_weight")
    if isinstance(sample_weight, Real):
        sample_weight = np.full(X.shape[0], sample_weight)
    weights: Array = check_array(
        sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight", order="C"
    )
    if weights.ndim != 1:
        raise InvalidData(f"sample weights must be 1D, one for each sample, got shape {weights.shape}")
    check_consistent_length(weights, X)
    if (weights < 0).any():
        raise InvalidData(f"sample weights must not be negative, got {weights.min()}")
    return weights

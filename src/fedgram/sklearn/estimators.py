"""Estimators for scikit-learn from moments that add up: a classifier and a regressor, and the base of both.

The moments are of weighted samples with numeric targets. Unlike `Moments` they are never sent, so they need no integer
counts, and they are kept about their means: columns far from zero (the year 2026, say) keep their digits. Classes are
targets too, as one-hot rows.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from numbers import Real
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack
from scipy.linalg.blas import dsyrk
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin, clone
from sklearn.utils import check_array
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from fedgram.core import threads
from fedgram.core.arrays import Array, unmasked
from fedgram.core.columns import difference
from fedgram.core.errors import InvalidData, InvalidParameter, LostPrecision, Mismatch, NotMoments
from fedgram.heads.least_squares import of_regression
from fedgram.inference.linear import LeastSquares, Sums
from fedgram.inference.table import Coefficients
from fedgram.moments import packing, solve
from fedgram.moments.accumulate import ROWS_AT_ONCE, class_sums
from fedgram.moments.feasibility import TINY
from fedgram.moments.regression import STEPS, Regression, Ridge

# Rounding errors of sums and differences, in units of the rounding error expected of a single product.
SLACK = 8
# The share of a variance that a subtraction may lose without a warning.
MOST_LOST = 1e-4


class Samples(NamedTuple):
    """Features (n, d), an array or a sparse matrix in CSR, with targets, and weights (n,) or None for ones.

    Targets are numbers (n, t), or with `classes` indices (n,) of so many classes.
    """

    x: Any
    y: npt.NDArray[Any]
    weights: Array | None = None
    classes: int = 0

    def blocks(self) -> Iterator["Samples"]:
        """Yield a few thousand samples at a time, features as an array; samples without weight are left out."""
        for start in range(0, self.x.shape[0], ROWS_AT_ONCE):
            block = slice(start, start + ROWS_AT_ONCE)
            x, y = self.x[block], self.y[block]
            x = x if isinstance(x, np.ndarray) else x.toarray()
            weights = None if self.weights is None else self.weights[block]
            if weights is not None and not weights.all():
                [kept] = weights.nonzero()
                x, y, weights = x[kept], y[kept], weights[kept]
            if len(x):
                yield Samples(x, y, weights, self.classes)

    def targets(self) -> Array:
        """Return the targets as numbers (n, t), classes as one-hot rows."""
        return np.eye(self.classes)[self.y] if self.classes else self.y


@dataclass(frozen=True, eq=False)
class WeightedMoments:
    """Σw(x - μ)(x - μ)ᵀ, packed, Σw(x - μ)(y - ν)ᵀ (d, t) and Σw(y - ν)² (t,) of n samples.

    μ is `mean` (d,), ν `target_mean` (t,), and Σw `weight`. A sample of weight 2 counts as two equal samples. `handled`
    (d,) is the diagonal of the sum of all terms that were added and subtracted, whose rounding errors remain.
    """

    n: int
    weight: float
    mean: Array
    target_mean: Array
    packed: Array
    cross: Array
    squares: Array
    handled: Array

    @classmethod
    def of(cls, samples: Samples) -> Self:
        """Return the moments of samples, block by block.

        The first sample is subtracted from all samples, since the means are known only at the end: this needs one pass,
        and a constant feature becomes exactly zero.
        """
        d, t = samples.x.shape[1], samples.classes or samples.y.shape[1]
        # The full square matrix: for tall blocks that is a little faster than the packed one.
        gram, cross, squares = np.zeros((d, d), order="F"), np.zeros((t, d)), np.zeros(t)
        sums, target_sums, weight, n = np.zeros(d), np.zeros(t), 0.0, 0
        first, first_target = np.zeros(d), np.zeros(t)
        buffer = np.empty((min(samples.x.shape[0], ROWS_AT_ONCE), d))
        for x, y, weights, classes in samples.blocks():
            if not n:
                first = x[0].astype(np.float64)
                first_target = first_target if classes else y[0].astype(np.float64)
            own = np.ones(len(x)) if weights is None else weights
            roots = np.sqrt(own)
            with np.errstate(over="ignore", invalid="ignore"):  # infinite sums raise below
                rows = np.subtract(x, first, out=buffer[: len(x)])
                if weights is not None:
                    rows *= roots[:, None]
                with threads.symmetric(rows.shape[1]):
                    gram = dsyrk(1.0, rows.T, beta=1.0, c=gram, lower=1, overwrite_c=1)
                if classes:
                    masses = np.bincount(y, own, classes)
                    products = class_sums(rows if weights is None else rows * roots[:, None], y, classes)
                    sums += products.sum(axis=0)
                    cross += products
                    target_sums += masses
                    squares += masses
                else:
                    targets = (y - first_target) * roots[:, None]
                    products = np.column_stack([roots, targets]).T @ rows
                    sums += products[0]
                    cross += products[1:]
                    target_sums += roots @ targets
                    squares += (targets**2).sum(axis=0)
            n, weight = n + len(x), weight + float(own.sum())
        if not n or not isfinite(weight):
            raise InvalidData(f"the weights of the samples add up to {weight}: they must be finite, and not all zero")
        if not isfinite(gram.diagonal().sum() + squares.sum()):
            raise InvalidData("features or targets are so large that their squares overflow: rescale them")
        return cls(
            n,
            weight,
            first + sums / weight,
            first_target + target_sums / weight,
            _rank_one(packing.pack(gram), sums, -1 / weight),
            cross.T - np.outer(sums, target_sums) / weight,
            np.maximum(squares - target_sums**2 / weight, 0.0),
            SLACK * gram.diagonal(),
        )

    def __add__(self, other: Self) -> Self:
        """Return the moments of both together: the scatter about each mean, plus that between the two means."""
        weight = self.weight + other.weight
        return self._combined(other, 1, weight, self.weight * other.weight / weight)

    def __sub__(self, other: Self) -> Self:
        """Return the moments without `other`, which was added before.

        If the rest is small compared with the whole, a warning says how many digits it has lost to rounding.
        """
        weight = self.weight - other.weight
        if other.n >= self.n or weight <= SLACK * solve.rounding_level(1, self.n) * self.weight:
            raise NotMoments(
                f"cannot subtract {other.n} samples of weight {other.weight:g} from {self.n} of weight {self.weight:g}:"
                " nothing would be left"
            )
        between = self.weight * other.weight / weight
        rest = self._combined(other, -1, weight, -between)
        where, d = packing.diagonal(len(self.mean)), len(self.mean)
        before, level = self.packed[where], SLACK * solve.rounding_level(d, self.n)
        # Means far from zero have rounding errors, too, and so does the scatter between them.
        apart = np.abs(other.mean - self.mean)
        rounded = SLACK * solve.EPS * (np.abs(self.mean) + np.abs(other.mean))
        blurred = between * (2 * apart * rounded + rounded**2)
        length, unsure = np.linalg.norm(apart), np.linalg.norm(rounded)
        noise = max(level * float(before.sum()) + between * float(2 * length * unsure + unsure**2), TINY)
        if not solve.is_positive_semidefinite(rest.packed, d, noise):
            raise NotMoments("cannot subtract: these are not the moments of samples that were added")
        # A feature or target that varied only in `other` leaves rounding errors behind, which are set to zero.
        left = np.abs(rest.packed[where])
        varies = left > level * before + blurred
        lost = np.where(varies, (level * before + blurred) / np.where(varies, left, 1.0), 0.0)
        if (worst := float(lost.max(initial=0.0))) > MOST_LOST:
            warnings.warn(
                f"the remaining variance of feature {int(lost.argmax())} may be off by a share of {worst:.0e}: it is "
                "small compared with the subtracted one; a new fit of the remaining samples is exact",
                LostPrecision,
                stacklevel=3,
            )
        target_varies = rest.squares > level * self.squares
        full = packing.unpack(rest.packed, d)
        full *= varies
        full *= varies[:, None]
        return replace(
            rest,
            packed=packing.pack(full),
            cross=rest.cross * varies[:, None] * target_varies,
            squares=rest.squares * target_varies,
        )

    def _combined(self, other: Self, sign: int, weight: float, between: float) -> Self:
        """Return the sum or difference with `other`: `weight` of the result, `between` of the scatter between means."""
        apart, target_apart, share = other.mean - self.mean, other.target_mean - self.target_mean, other.weight / weight
        return replace(
            self,
            n=self.n + sign * other.n,
            weight=weight,
            mean=self.mean + sign * share * apart,
            target_mean=self.target_mean + sign * share * target_apart,
            packed=_rank_one(self.packed + sign * other.packed, apart, between),
            cross=self.cross + sign * other.cross + between * np.outer(apart, target_apart),
            squares=np.maximum(self.squares + sign * other.squares + between * target_apart**2, 0.0),
            handled=self.handled + other.handled + SLACK * abs(between) * apart**2,
        )

    def spread(self, places: Any, count: int) -> Self:
        """Return the moments with `count` targets: the present ones at `places`, and zeros elsewhere."""
        target_mean, squares, cross = np.zeros(count), np.zeros(count), np.zeros((len(self.mean), count))
        target_mean[places], squares[places], cross[:, places] = self.target_mean, self.squares, self.cross
        return replace(self, target_mean=target_mean, squares=squares, cross=cross)

    def regression(self, *, intercept: bool) -> Regression:
        """Return the regression of the targets on the features."""
        d, t = self.cross.shape
        if intercept:
            squares = float(self.squares.sum())
            return Regression(
                self.packed, self.cross, self.mean, self.target_mean, self.weight, True, squares, self.handled
            )
        return Regression(
            _rank_one(self.packed, self.mean, self.weight),
            self.cross + self.weight * np.outer(self.mean, self.target_mean),
            np.zeros(d),
            np.zeros(t),
            self.weight,
            False,
            float((self.squares + self.weight * self.target_mean**2).sum()),
            self.handled,
        )


def leave_one_out(problem: Regression, samples: Samples) -> float:
    """Return the ridge of least squared leave-one-out error, among `STEPS` mean eigenvalues.

    `problem` is the regression of these samples. A model without sample i misses its target by eᵢ / (1 - hᵢ), where eᵢ
    is the residual of the model with it and hᵢ its element of the hat matrix's diagonal. If no feature varies, every
    ridge gives the same model, and 1 is returned.
    """
    values, vectors = problem.eigenpairs
    if not len(values):
        return 1.0
    ridges = STEPS * values.mean()
    projected, errors = vectors.T @ problem.cross, np.zeros(len(ridges))
    for block in samples.blocks():
        rows, targets = (block.x - problem.mean) @ vectors, block.targets() - problem.target_mean
        own = np.ones(len(rows)) if block.weights is None else block.weights
        squares = rows**2
        for i, ridge in enumerate(ridges):
            kept = 1 / (values + ridge)
            leverage = own * (squares @ kept + problem.intercept / problem.n)
            residuals = targets - rows @ (projected * kept[:, None])
            # A single sample may have leverage 1: there are no others to predict it from.
            left = np.maximum(1 - leverage, solve.EPS)
            errors[i] += own @ ((residuals / left[:, None]) ** 2).sum(axis=1)
    return solve.least(ridges, errors)


def _rank_one(packed: Array, vector: Array, factor: float) -> Array:
    """Return a packed matrix plus factor · vector vectorᵀ."""
    return np.asarray(lapack.dsfrk(len(vector), 1, factor, vector[:, None], 1.0, packed, trans="N", uplo="L"))


@dataclass(frozen=True, eq=False)
class Solution:
    """The regression of the targets on the features, solved on first use, so that many `partial_fit` cost one solve."""

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
        """The difference of scores that stands for odds of e, if the targets are classes."""
        counts = self.moments.weight * self.moments.target_mean
        freedom = self._problem.degrees_of_freedom(self.ridge) - self.intercept
        return of_regression(self._problem, counts, self.weights, freedom)


Setting: TypeAlias = Ridge | Literal["loo"]
# scikit-learn's checks convert features of other types to the first of these.
DTYPES = (np.float64, np.float32)


class GramEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of least squares from moments that add up. Subclasses define the targets and the predictions."""

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
        """The ridge of the model, given or chosen."""
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

    def _checked(self, X: Any, y: Any, sample_weight: Any, **options: Any) -> tuple[Any, Any, Array | None]:
        """Return features, targets and weights as scikit-learn checks them; the options are its own."""
        X, y = validate_data(self, unmasked(X, "X"), unmasked(y, "y"), accept_sparse="csr", dtype=DTYPES, **options)
        return X, y, checked_weights(sample_weight, X)

    def _fit(self, samples: Samples) -> None:
        """Fit these samples alone, and solve at once, so that warnings come from this call."""
        ridge = self._setting()
        moments = WeightedMoments.of(samples)
        if ridge == "loo":
            ridge = leave_one_out(moments.regression(intercept=self.fit_intercept), samples)
        model = Solution(moments, ridge, self.fit_intercept)
        self.moments_, self._model, _ = moments, model, model.weights

    def _take(self, moments: WeightedMoments) -> None:
        """Set these moments; the model is solved on first use."""
        ridge = self._setting("partial_fit, + and -")
        self.moments_, self._model = moments, Solution(moments, ridge, self.fit_intercept)

    def _setting(self, who: str = "") -> Any:
        """Return the ridge setting; raise if it is invalid, or if it needs all samples in the operation `who`."""
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
        """Return the estimator itself, so that `sum([a, b])` can start from 0."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __sub__(self, other: Self) -> Self:
        """Return the fit without the samples of `other`, which were fitted or added before (exact unlearning)."""
        if not isinstance(other, GramEstimator):
            return NotImplemented
        mine, theirs = self._aligned(other)
        return self._with(mine - theirs, other)

    def _aligned(self, other: "GramEstimator") -> tuple[WeightedMoments, WeightedMoments]:
        """Return both moments for the same targets; raise for an estimator with other settings, features or targets."""
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
        """Return an estimator like this one, fitted to these moments of itself and `other`."""
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


class GramClassifier(ClassifierMixin, GramEstimator):  # type: ignore[misc]
    """The classifier of scikit-learn's `RidgeClassifier`, from moments that add up, and with probabilities.

    Parameters
    ----------
    ridge : float, "auto" or "loo"
        A number ≥ 0, as `alpha` of scikit-learn's `RidgeClassifier`; "auto" for the ridge of least generalised
        cross-validation error, which moments alone decide, so that `fit`, `partial_fit` and `+` agree; or "loo" for
        that of least leave-one-out error, for `fit` only.
    fit_intercept : bool
        Whether there is an intercept, which no ridge shrinks.

    Notes
    -----
    A sample weight of 2 is a sample that is there twice; "loo" leaves it out with all its weight.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> x, y = load_iris(return_X_y=True)
    >>> odd, even = GramClassifier().fit(x[1::2], y[1::2]), GramClassifier().fit(x[::2], y[::2])
    >>> bool(np.allclose((odd + even).coef_, GramClassifier().fit(x, y).coef_))
    True

    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit features X (n, d) and labels y (n,)."""
        X, y, weights = self._checked(X, y, sample_weight, reset=True)
        classes, indices = np.unique(y, return_inverse=True)
        self._fit(Samples(X, indices, weights, len(classes)))
        self.classes_ = classes
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Fit these samples together with all before them, in O(d²) memory however many there are.

        `classes` names all classes, in the first call; without it they are those of that call's labels.
        """
        self._setting("partial_fit")
        first = not hasattr(self, "moments_")
        X, y, weights = self._checked(X, y, sample_weight, reset=first)
        known = np.unique(y if classes is None else classes) if first else self.classes_
        if not first and classes is not None and not np.array_equal(np.unique(classes), known):
            raise InvalidData(f"the first call named the classes {known}, this one {classes}: name the same, or none")
        if unknown := sorted(set(np.unique(y).tolist()) - set(known.tolist())):
            raise InvalidData(
                f"label {unknown[0]!r} is not among the classes {known.tolist()}: "
                "name all classes in the first call, partial_fit(X, y, classes=…)"
            )
        moments = WeightedMoments.of(Samples(X, known.searchsorted(y), weights, len(known)))
        self._take(moments if first else self.moments_ + moments)
        self.classes_ = known
        return self

    def decision_function(self, X: Any) -> Array:
        """Return a score per class, (n, c), or with two classes the score of the second, (n,)."""
        scores = self._scores(X)
        return np.asarray(scores[:, 0] if len(self.classes_) <= 2 else scores)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the class of the highest score for each sample, (n,)."""
        scores = self.decision_function(X)
        if len(self.classes_) == 1:
            return np.repeat(self.classes_, len(scores))
        chosen: npt.NDArray[Any] = (scores > 0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[chosen])

    def predict_proba(self, X: Any) -> Array:
        """Return a probability per class, (n, c): softmax of the scores divided by `temperature_`."""
        scores = self._scores(X)
        if len(self.classes_) == 1:
            return np.ones((len(scores), 1))
        scores = np.hstack([-scores, scores]) if len(self.classes_) == 2 else scores
        return np.asarray(softmax(scores / self.temperature_, axis=1))

    @property
    def temperature_(self) -> float:
        """The divisor that turns scores into log-odds; chosen from moments alone, see `fedgram.heads.least_squares`."""
        return 2 * self._solution().temperature  # the scores shown are for targets 1 and -1, not 1 and 0

    def _shown(self, values: Array) -> Array:
        """Return the values for targets 1 and -1, as in `RidgeClassifier`; with two classes, those of the second."""
        signed: Array = 2 * values - values.sum(axis=0)
        return signed[1:] if len(values) == 2 else signed

    def _aligned(self, other: GramEstimator) -> tuple[WeightedMoments, WeightedMoments]:
        mine, theirs = super()._aligned(other)
        assert isinstance(other, GramClassifier)
        classes = self._classes_with(other)
        return (
            mine.spread(classes.searchsorted(self.classes_), len(classes)),
            theirs.spread(classes.searchsorted(other.classes_), len(classes)),
        )

    def _with(self, moments: WeightedMoments, other: Self) -> Self:
        fitted = super()._with(moments, other)
        fitted.classes_ = self._classes_with(other)
        return fitted

    def _classes_with(self, other: "GramClassifier") -> npt.NDArray[Any]:
        """Return the classes of both: one may lack some. Names and numbers are never the same class."""
        names = [fitted.classes_.dtype.kind in "OSU" for fitted in (self, other)]
        if names[0] != names[1]:
            mine, theirs = self.classes_.tolist()[:5], other.classes_.tolist()[:5]
            raise Mismatch(f"cannot combine fits with classes {mine} and {theirs}: name them alike")
        return np.union1d(self.classes_, other.classes_)

    def _checked(self, X: Any, y: Any, sample_weight: Any, **options: Any) -> tuple[Any, Any, Array | None]:
        X, y, weights = super()._checked(X, y, sample_weight, **options)
        check_classification_targets(y)
        return X, column_or_1d(y, warn=True), weights


class GramRegressor(MultiOutputMixin, RegressorMixin, GramEstimator):  # type: ignore[misc]
    """Ridge regression of one or several numeric outcomes, from moments that add up.

    Parameters
    ----------
    ridge : float, "auto" or "loo"
        A number ≥ 0, as `alpha` of scikit-learn's `Ridge`; "auto" for the ridge of least generalised cross-validation
        error, which moments alone decide, so that `fit`, `partial_fit` and `+` agree; or "loo" for that of least
        leave-one-out error, for `fit` only.
    fit_intercept : bool
        Whether there is an intercept, which no ridge shrinks.

    Notes
    -----
    A sample weight of 2 is a sample that is there twice; "loo" leaves it out with all its weight.

    Examples
    --------
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

    def summary(self, *, outcome: int = 0, level: float = 0.95) -> Coefficients:
        """Return the table of the least-squares fit of all samples: coefficients with standard errors and tests.

        It is of least squares whatever `ridge` is, because a ridge has no p values.

        Parameters
        ----------
        outcome : int
            The number of the outcome, from 0, for a fit with several.
        level : float
            The confidence level of the intervals.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> x, y = load_diabetes(return_X_y=True, as_frame=True)
        >>> bmi = GramRegressor().fit(x, y).summary()["bmi"]
        >>> round(bmi.estimate, 1), round(bmi.se, 1)
        (519.8, 66.5)

        """
        check_is_fitted(self, "moments_")
        moments = self.moments_
        d, t = moments.cross.shape
        if not self.fit_intercept:
            raise InvalidParameter("summary: expected a fit with an intercept, got fit_intercept=False; fit with one")
        if moments.weight != moments.n:
            raise InvalidParameter(
                f"summary: expected samples without weights, got {moments.n} of weight {moments.weight:g}; fit without"
            )
        if not -1 < outcome < t:
            raise InvalidParameter(f"outcome: expected a number from 0 to {t - 1}, got {outcome}; choose one of these")
        terms = [str(name) for name in getattr(self, "feature_names_in_", [f"x{i}" for i in range(1, d + 1)])]
        target = "y" if self._flat else f"y{outcome + 1}"
        scatter = np.zeros((d + 1, d + 1))
        scatter[:d, :d] = packing.unpack(moments.packed, d)
        scatter[d, :d] = scatter[:d, d] = moments.cross[:, outcome]
        scatter[d, d] = moments.squares[outcome]
        noise = SLACK * solve.EPS * np.append(moments.handled, moments.squares[outcome])
        means = np.append(moments.mean, moments.target_mean[outcome])
        sums = Sums((*terms, target), moments.n, means, np.zeros(d + 1), scatter, noise)
        table = LeastSquares(sums).table(dict(zip(terms, terms, strict=True)), level=level)
        if not (shrunk := self.ridge_):
            return table
        note = f"coef_ is shrunk by a ridge of {shrunk:.4g}, and this table is not."
        return replace(table, notes=(*table.notes, note))

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

    def _checked(self, X: Any, y: Any, sample_weight: Any, **options: Any) -> tuple[Any, Any, Array | None]:
        return super()._checked(X, y, sample_weight, multi_output=True, y_numeric=True, **options)


def _columns(y: Any) -> Any:
    return y[:, None] if y.ndim == 1 else y

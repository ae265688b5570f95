"""Estimators for scikit-learn from moments that add up: a classifier and a regressor, and the base of both.

The moments are of weighted samples with numeric targets, see `fedgram.moments.weighted`. Classes are targets too, as
one-hot rows.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any, ClassVar, Literal, Self, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin, clone
from sklearn.utils import check_array
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from fedgram.core import schema, wire
from fedgram.core.arrays import Array, unmasked
from fedgram.core.classes import NUMERIC, as_classes
from fedgram.core.columns import as_columns, difference
from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch, RefusedMessage
from fedgram.heads.least_squares import Confidence, of_regression
from fedgram.inference.linear import LeastSquares, Sums
from fedgram.inference.table import Coefficients
from fedgram.models import LinearModel
from fedgram.moments import packing, solve
from fedgram.moments.regression import Regression, Ridge
from fedgram.moments.weighted import SLACK, ClassMoments, Samples, WeightedMoments, leave_one_out

# The share of the weight below which a class counts as empty.
LEAST_SHARE = 1e-12


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
    def confidence(self) -> Confidence:
        """The temperature and the offsets of scores, if the targets are classes."""
        shares = self.moments.target_mean
        # Of a class whose samples have left, rounding errors remain.
        counts = self.moments.weight * np.where(shares > LEAST_SHARE, shares, 0.0)
        freedom = self._problem.degrees_of_freedom(self.ridge) - self.intercept
        return of_regression(self._problem, counts, self.weights, freedom)


Setting: TypeAlias = Ridge | Literal["loo"]
Held: TypeAlias = WeightedMoments | ClassMoments
# scikit-learn's checks convert features of other types to the first of these.
DTYPES = (np.float64, np.float32)


class GramEstimator(wire.Saved, BaseEstimator):  # type: ignore[misc]
    """Base of least squares from moments that add up. Subclasses define the targets and the predictions."""

    wire_version: ClassVar[int] = 1
    wire_fields: ClassVar[Mapping[str, wire.Field]] = {}
    _dtype: np.dtype[Any]  # of the features: float32 gives predictions in float32

    def __init__(self, ridge: Setting = "auto", *, fit_intercept: bool = True) -> None:
        self.ridge = ridge
        self.fit_intercept = fit_intercept

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @property
    def coef_(self) -> npt.NDArray[Any]:
        """The weights, in the shape and type that scikit-learn's linear models have."""
        return np.asarray(self._shown(self._solution().weights.T), dtype=self._dtype)

    @property
    def intercept_(self) -> Any:
        """The intercept; zero without one."""
        return self._dtype.type(self._shown(self._solution().offset))

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
        """Return the predictions of `coef_` and `intercept_`, float32 if both the fit and X are."""
        solution = self._solution()
        X = validate_data(self, unmasked(X, "X"), accept_sparse="csr", dtype=DTYPES, reset=False)
        weights, offset = np.asarray(self._shown(solution.weights.T)), self._shown(solution.offset)
        scores = safe_sparse_dot(X, weights.T, dense_output=True) + offset
        return scores.astype(np.result_type(self._dtype, X.dtype), copy=False)

    def _checked(self, X: Any, y: Any, sample_weight: Any, **options: Any) -> tuple[Any, Any, Array | None]:
        """Return features, targets and weights as scikit-learn checks them; the options are its own."""
        first = options.get("reset", True)
        X, y = validate_data(self, unmasked(X, "X"), unmasked(y, "y"), accept_sparse="csr", dtype=DTYPES, **options)
        self._dtype = X.dtype if first else np.result_type(self._dtype, X.dtype)
        return X, y, checked_weights(sample_weight, X)

    def _sums(self, samples: Samples) -> Held:
        """Return the sums of samples that are kept, from which the moments follow."""
        return WeightedMoments.of(samples)

    def _fit(self, samples: Samples) -> None:
        """Fit these samples alone, and solve at once, so that warnings come from this call."""
        ridge = self._setting()
        held = self._sums(samples)
        moments = held if isinstance(held, WeightedMoments) else held.balanced()
        if ridge == "loo":
            ridge = leave_one_out(moments.regression(intercept=self.fit_intercept), samples)
        model = Solution(moments, ridge, self.fit_intercept)
        self._held, self.moments_, self._model, _ = held, moments, model, model.weights

    def _take(self, held: Held) -> None:
        """Set these sums; the model is solved on first use."""
        ridge = self._setting("partial_fit, +, - and *")
        moments = held if isinstance(held, WeightedMoments) else held.balanced()
        self._held, self.moments_, self._model = held, moments, Solution(moments, ridge, self.fit_intercept)

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

    def __mul__(self, factor: float) -> Self:
        """Return the fit with all weights of samples multiplied by a factor > 0: 0.99 forgets one per cent."""
        check_is_fitted(self, "moments_")
        return self._with(self._held * factor, self)

    __rmul__ = __mul__

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the model as an ONNX file, see `LinearModel.to_onnx`.

        Parameters
        ----------
        path : str or PathLike
            The file to write.

        """
        self._linear_model().to_onnx(path, centre=self.moments_.mean)

    def _linear_model(self) -> LinearModel:
        """Return the model without its moments."""
        raise NotImplementedError

    def to_fields(self) -> dict[str, Any]:
        """Return the fields for the wire: the settings, and the sums, so that a fit that was loaded still adds up."""
        check_is_fitted(self, "moments_")
        return {
            "ridge": self.ridge if isinstance(self.ridge, str) else float(self.ridge),
            "chosen": self._model.setting,
            "fit_intercept": bool(self.fit_intercept),
            "dtype": str(self._dtype),
            "columns": list(getattr(self, "feature_names_in_", ())),
            "sums": list(self._held.parts) if isinstance(self._held, ClassMoments) else [self._held],
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Return the fit in fields from the wire, any of which may be wrong."""
        plain = {name: schema.read(kind, fields[name], name, error=RefusedMessage) for name, kind in _PLAIN.items()}
        settings = cls._settings(fields) | {"fit_intercept": plain["fit_intercept"]}
        made, sums = cls(plain["ridge"], **settings), fields["sums"]
        made._setting()
        solve.check_ridge(0.0 if plain["chosen"] == "auto" else plain["chosen"])
        if not all(part is None or isinstance(part, WeightedMoments) for part in sums):
            raise RefusedMessage("field 'sums' must be moments")
        there = [part for part in sums if part is not None]
        if not there or len({len(part.mean) for part in there}) > 1:
            raise RefusedMessage("field 'sums' must be moments of the same features")
        made._dtype, made.n_features_in_ = np.dtype(plain["dtype"]), len(there[0].mean)
        if columns := as_columns(plain["columns"], made.n_features_in_):
            made.feature_names_in_ = np.array(columns, dtype=object)
        made._read_targets(fields, sums)
        made._model = Solution(made.moments_, plain["chosen"], made.fit_intercept)
        return made

    @classmethod
    def _settings(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Return further settings from fields of the wire."""
        return {}

    def _read_targets(self, fields: dict[str, Any], sums: list[WeightedMoments | None]) -> None:
        """Set the sums, and what targets they are of, from fields of the wire."""
        raise NotImplementedError

    def check(self) -> None:
        """Accept the fit: its moments are checked when they are decoded."""

    def _aligned(self, other: "GramEstimator") -> tuple[Any, Any]:
        """Return the sums of both for the same targets; raise for other settings, features or targets."""
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
        self._check_kept(other._held)
        return self._held, other._held

    def _check_kept(self, other: Held) -> None:
        """Raise for other sums than those that were kept: a setting was changed after the fit."""
        if type(self._held) is not type(other):
            raise Mismatch("class_weight was changed after a fit: fit anew with the class_weight that both have now")

    def _with(self, held: Held, other: Self) -> Self:
        """Return an estimator like this one, fitted to these sums of itself and `other`."""
        fitted: Self = clone(self)
        fitted.n_features_in_, fitted._dtype = self.n_features_in_, np.result_type(self._dtype, other._dtype)
        if hasattr(self, "feature_names_in_"):
            fitted.feature_names_in_ = self.feature_names_in_
        fitted._take(held)
        return fitted


_PLAIN: dict[str, Any] = {
    "ridge": float | Literal["auto", "loo"],
    "chosen": float | Literal["auto"],
    "fit_intercept": bool,
    "dtype": Literal["float32", "float64"],
    "columns": Sequence[str],
}


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


@wire.register_message
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
    class_weight : dict, "balanced" or None
        The weights of classes by label, which multiply the weights of their samples; 1 for a class that is not named.
        "balanced" gives all classes that have samples the same weight, in the sum of all fits: then a Gram matrix is
        kept for each class.

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

    wire_name: ClassVar[str] = "gram-classifier"

    def __init__(
        self,
        ridge: Setting = "auto",
        *,
        fit_intercept: bool = True,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
    ) -> None:
        super().__init__(ridge, fit_intercept=fit_intercept)
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit features X (n, d) and labels y (n,)."""
        X, y, weights = self._checked(X, y, sample_weight, reset=True)
        classes, indices = np.unique(y, return_inverse=True)
        self._fit(self._weighed(Samples(X, indices, weights, len(classes)), classes))
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
        held: Any = self._sums(self._weighed(Samples(X, known.searchsorted(y), weights, len(known)), known))
        if not first:
            self._check_kept(held)
        self._take(held if first else self._held + held)
        self.classes_ = known
        return self

    def _weighed(self, samples: Samples, classes: npt.NDArray[Any]) -> Samples:
        """Return the samples with their weights multiplied by those of their classes, as far as samples decide them."""
        given, own = self.class_weight, samples.weights
        if isinstance(given, Mapping):
            if not all(isinstance(weight, Real) and 0 <= float(weight) < np.inf for weight in given.values()):
                raise InvalidParameter(f"class_weight: expected finite numbers ≥ 0, got {given!r}")
            # scikit-learn refuses an unknown label if another class has no weight: it may be misspelt.
            factors = compute_class_weight(dict(given), classes=classes, y=classes)[samples.y]
        elif given == "balanced":
            if self._by_class:
                return samples
            masses = np.bincount(samples.y, own, len(classes))
            factors = (masses.sum() / np.count_nonzero(masses) / np.where(masses > 0, masses, 1.0))[samples.y]
        elif given is None:
            return samples
        else:
            raise InvalidParameter(f"class_weight: expected weights by label, 'balanced' or None, got {given!r}")
        return samples._replace(weights=factors if own is None else factors * own)

    def _sums(self, samples: Samples) -> Held:
        return ClassMoments.of(samples) if self._by_class else super()._sums(samples)

    @property
    def _by_class(self) -> bool:
        """Whether moments are kept for each class, to be balanced after sums and differences; "loo" has none."""
        return isinstance(self.class_weight, str) and self.class_weight == "balanced" and self.ridge != "loo"

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
        """Return a probability per class, (n, c): softmax(scores / `temperature_` + `offsets_`).

        Where classes differ in frequency, the most probable class may be another than the predicted one.
        """
        scores = self._scores(X)
        if len(self.classes_) == 1:
            return np.ones_like(scores)
        scores = np.hstack([-scores, scores]) if len(self.classes_) == 2 else scores
        return np.asarray(softmax(scores / self.temperature_ + self.offsets_, axis=1), dtype=scores.dtype)

    @property
    def temperature_(self) -> float:
        """The divisor that turns scores into log-odds; chosen from moments alone, see `fedgram.heads.least_squares`."""
        temperature = self._solution().confidence.temperature
        assert temperature is not None
        return 2 * temperature  # the scores shown are for targets 1 and -1, not 1 and 0

    @property
    def offsets_(self) -> Array:
        """The offsets of the classes in log-odds, (c,), zero for equally frequent classes; from moments alone, too."""
        offsets = self._solution().confidence.offsets
        assert offsets is not None
        return offsets

    def _shown(self, values: Array) -> Array:
        """Return the values for targets 1 and -1, as in `RidgeClassifier`; with two classes, those of the second."""
        signed: Array = 2 * values - values.sum(axis=0)
        return signed[1:] if len(values) == 2 else signed

    def _linear_model(self) -> LinearModel:
        found = (self._solution().weights, self._solution().offset)
        weights, offset = (2 * values - values.sum(axis=-1, keepdims=True) for values in found)
        labels = self.classes_.tolist()
        if self.classes_.dtype.kind in "bf" and all(label == int(label) for label in labels):
            labels = [int(label) for label in labels]
        columns = tuple(getattr(self, "feature_names_in_", ()))
        return LinearModel(
            weights, as_classes(labels), offset, columns=columns, temperature=self.temperature_, offsets=self.offsets_
        )

    def to_fields(self) -> dict[str, Any]:
        """Return the fields for the wire."""
        check_is_fitted(self, "moments_")
        labels, weights = self.classes_.tolist(), self.class_weight
        if self.classes_.dtype.kind == "O" and not all(isinstance(label, str) for label in labels):
            raise InvalidData(f"classes to save: expected texts or numbers, got {labels[:5]}; convert the labels first")
        names, sent = self.classes_.dtype.kind in "OSU", cast("Any", weights)
        if isinstance(weights, Mapping):
            keys = [key.item() if isinstance(key, np.generic) else key for key in weights]
            sent = {"labels": keys, "weights": [float(weight) for weight in weights.values()]}
        return super().to_fields() | {"classes": labels if names else self.classes_, "class_weight": sent}

    @classmethod
    def _settings(cls, fields: dict[str, Any]) -> dict[str, Any]:
        given = fields["class_weight"]
        if isinstance(given, Mapping):
            kinds = {"labels": Sequence[str | bool | int | float], "weights": Sequence[float]}
            found = {name: schema.read(kind, given[name], name, error=RefusedMessage) for name, kind in kinds.items()}
            return {"class_weight": dict(zip(found["labels"], found["weights"], strict=True))}
        return {"class_weight": schema.read(Literal["balanced"] | None, given, "class_weight", error=RefusedMessage)}

    def _read_targets(self, fields: dict[str, Any], sums: list[WeightedMoments | None]) -> None:
        labels = fields["classes"]
        if not isinstance(labels, np.ndarray):
            labels = np.array(schema.read(Sequence[str], labels, "classes", error=RefusedMessage))
        if labels.ndim != 1 or not np.array_equal(labels, np.unique(labels)):
            raise RefusedMessage("field 'classes' must be labels in order, each of them once")
        each, count = (1, len(labels)) if self._by_class else (len(labels), 1)
        if len(sums) != count or any(part is not None and len(part.target_mean) != each for part in sums):
            raise RefusedMessage(f"field 'sums' must be moments of {len(labels)} classes")
        self.classes_ = labels
        held: Any = ClassMoments(tuple(sums)) if self._by_class else sums[0]
        self._held, self.moments_ = held, held.balanced() if self._by_class else held

    def _aligned(self, other: GramEstimator) -> tuple[Any, Any]:
        mine, theirs = super()._aligned(other)
        assert isinstance(other, GramClassifier)
        classes = self._classes_with(other)
        return (
            mine.spread(classes.searchsorted(self.classes_), len(classes)),
            theirs.spread(classes.searchsorted(other.classes_), len(classes)),
        )

    def _with(self, held: Held, other: Self) -> Self:
        fitted = super()._with(held, other)
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


@wire.register_message
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

    wire_name: ClassVar[str] = "gram-regressor"

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

        The table is that of least squares for any `ridge`, because a ridge has no p values.

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
        if not isinstance(outcome, int | np.integer) or not -1 < outcome < t:
            raise InvalidParameter(
                f"outcome: expected a whole number from 0 to {t - 1}, got {outcome!r}; choose one of these"
            )
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

    def _linear_model(self) -> LinearModel:
        solution, columns = self._solution(), tuple(getattr(self, "feature_names_in_", ()))
        return LinearModel(solution.weights, NUMERIC, solution.offset, columns=columns)

    def to_fields(self) -> dict[str, Any]:
        """Return the fields for the wire."""
        return super().to_fields() | {"flat": self._flat}

    def _read_targets(self, fields: dict[str, Any], sums: list[WeightedMoments | None]) -> None:
        self._flat = schema.read(bool, fields["flat"], "flat", error=RefusedMessage)
        [first] = sums
        if first is None or (self._flat and len(first.target_mean) != 1):
            raise RefusedMessage("field 'sums' must be the moments of one outcome")
        self._held = self.moments_ = first

    def _outcomes(self) -> str:
        return "shape (n,)" if self._flat else f"shape (n, {self.moments_.cross.shape[1]})"

    def _aligned(self, other: GramEstimator) -> tuple[Any, Any]:
        mine, theirs = super()._aligned(other)
        assert isinstance(other, GramRegressor)
        if self._outcomes() != other._outcomes():
            raise Mismatch(f"cannot combine fits of different outcomes: {self._outcomes()} and {other._outcomes()}")
        return mine, theirs

    def _with(self, held: Held, other: Self) -> Self:
        fitted = super()._with(held, other)
        fitted._flat = self._flat
        return fitted

    def _checked(self, X: Any, y: Any, sample_weight: Any, **options: Any) -> tuple[Any, Any, Array | None]:
        return super()._checked(X, y, sample_weight, multi_output=True, y_numeric=True, **options)


def _columns(y: Any) -> Any:
    return y[:, None] if y.ndim == 1 else y

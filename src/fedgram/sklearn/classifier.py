"""Least-squares classification that adds up, with probabilities."""

from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.special import softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data

from fedgram.core.arrays import Array, unmasked
from fedgram.core.errors import InvalidData, Mismatch
from fedgram.moments.weighted import Samples, WeightedMoments
from fedgram.sklearn.base import DTYPES, GramEstimator, checked_weights


class GramClassifier(ClassifierMixin, GramEstimator):  # type: ignore[misc]
    """The classifier of scikit-learn's `RidgeClassifier`, from moments that add up, and with probabilities.

    `ridge` is a number ≥ 0, as `alpha` of scikit-learn's `RidgeClassifier`; or "auto", the one of least generalised
    cross-validation error, which moments alone decide, so that `fit`, `partial_fit` and `+` agree; or "loo", the one
    of least leave-one-out error, for `fit` only. With `fit_intercept` there is an intercept, which no ridge shrinks.

    A sample weight of 2 is a sample that is there twice; "loo" leaves it out with all its weight.

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
        """Return a score per class, (n, c), or for two classes that of the second, (n,)."""
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
        """What scores are divided by to be log-odds; chosen from the moments alone, see `fedgram.heads.temperature`."""
        return 2 * self._solution().temperature  # targets are 1 and -1, not 1 and 0, in the scores that are shown

    def _shown(self, values: Array) -> Array:
        """Return the values for targets 1 and -1, as `RidgeClassifier` has them; for two classes, of the second."""
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

    def _checked(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> tuple[Any, Any, Array | None]:
        X, y = validate_data(self, unmasked(X, "X"), unmasked(y, "y"), accept_sparse="csr", dtype=DTYPES, reset=reset)
        check_classification_targets(y)
        return X, column_or_1d(y, warn=True), checked_weights(sample_weight, X)

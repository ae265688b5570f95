"""Estimators for scikit-learn that add up: a fit of one table plus a fit of another is the fit of both."""

from fedgram.core.extras import needing

with needing("sklearn", "fedgram.sklearn"):
    from fedgram.sklearn.estimators import GramClassifier, GramRegressor

__all__ = ["GramClassifier", "GramRegressor"]

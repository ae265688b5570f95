"""The least-squares classifier of moments, with the temperature that makes probabilities of its scores."""

from fedgram.heads.temperature import of_regression
from fedgram.models import LinearModel
from fedgram.moments.moments import Moments


def classifier(moments: Moments, ridge: float, *, intercept: bool) -> LinearModel:
    """Return `moments.model(ridge, intercept=intercept)`, and how sure it may be."""
    problem = moments.regression(intercept=intercept)
    factor = problem.factor(ridge)
    weights = factor.solve(problem.cross)
    temperature = of_regression(problem, moments.counts.astype(float), weights, factor.freedom(ridge))
    kind = moments.kind
    return LinearModel(weights, kind.classes, problem.offset(weights), kind.features, kind.columns, temperature)

"""The least-squares classifier of moments, with the temperature that makes probabilities of its scores."""

from dataclasses import replace

from fedgram.heads.adapt import OwnRidge
from fedgram.heads.likelihood import Labels
from fedgram.heads.temperature import of_left_out, of_regression
from fedgram.models import LinearModel
from fedgram.moments.moments import Moments

# What is expected of a client's own regression: where its scores are right they are near 0 and 1, and nearly sure.
EXPECTED = 0.1


def classifier(moments: Moments, ridge: float, *, intercept: bool) -> LinearModel:
    """Return `moments.model(ridge, intercept=intercept)`, and how sure it may be."""
    problem = moments.regression(intercept=intercept)
    factor = problem.factor(ridge)
    weights = factor.solve(problem.cross)
    temperature = of_regression(problem, moments.counts.astype(float), weights, factor.freedom(ridge))
    kind = moments.kind
    return LinearModel(weights, kind.classes, problem.offset(weights), kind.features, kind.columns, temperature)


def own_classifier(moments: Moments, own: OwnRidge, labels: Labels, *, intercept: bool) -> LinearModel:
    """Return the classifier of a client's own samples with the ridge that was chosen; left-out scores say how sure."""
    model = moments.model(own.ridge, intercept=intercept)
    return replace(model, temperature=of_left_out(own.left_out, labels, EXPECTED))

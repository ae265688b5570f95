"""The least-squares model of moments; for classes, with the temperature that makes probabilities of its scores."""

from dataclasses import replace

from fedgram.core.blocks import Blocks
from fedgram.heads.adapt import OwnRidge
from fedgram.heads.likelihood import Labels
from fedgram.heads.temperature import calibrated, of_regression
from fedgram.models import LinearModel
from fedgram.moments.moments import Moments
from fedgram.moments.outcomes import feature_columns, regression_of

# What is expected of a client's own regression: where its scores are right they are near 0 and 1, and nearly sure.
EXPECTED = 0.1


def least_squares(moments: Moments, ridge: float, outcomes: int = 0, *, intercept: bool) -> LinearModel:
    """Return the model of the classes, and how sure it may be; or of the last `outcomes` columns, if there are any."""
    problem = regression_of(moments, outcomes, intercept=intercept)
    factor = problem.factor(ridge)
    weights = factor.solve(problem.cross)
    kind, temperature = moments.kind, None
    if not outcomes:
        temperature = of_regression(problem, moments.counts.astype(float), weights, factor.freedom(ridge))
    columns = feature_columns(moments, outcomes)
    return LinearModel(weights, kind.classes, problem.offset(weights), kind.features, columns, temperature)


def own_classifier(moments: Moments, own: OwnRidge, labels: Labels | Blocks[Labels], *, intercept: bool) -> LinearModel:
    """Return the classifier of a client's own samples with the ridge that was chosen; left-out scores say how sure."""
    model = moments.model(own.ridge, intercept=intercept)
    return replace(model, temperature=calibrated(own.left_out, labels, EXPECTED).temperature)

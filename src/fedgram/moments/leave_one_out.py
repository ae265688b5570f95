"""The ridge of least leave-one-out error: exact, without a single refit, but the samples are needed."""

import numpy as np

from fedgram.moments import solve
from fedgram.moments.choice import least
from fedgram.moments.regression import STEPS, Regression
from fedgram.moments.weighted import Samples


def leave_one_out(problem: Regression, samples: Samples) -> float:
    """Return the ridge among `STEPS` mean eigenvalues with which models without a sample err least on it.

    `problem` is the regression of these samples. A model without sample i misses its target by eᵢ / (1 - hᵢ), where eᵢ
    is the residual of the model with it and hᵢ its element of the hat matrix's diagonal. Where nothing varies, any
    ridge gives the same: 1.
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
            # The only sample has no others to be predicted from.
            left = np.maximum(1 - leverage, solve.EPS)
            errors[i] += own @ ((residuals / left[:, None]) ** 2).sum(axis=1)
    return least(ridges, errors)

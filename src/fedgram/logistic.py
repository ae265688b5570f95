"""Everybody's logistic model, where the samples are elsewhere: from their moments, and their slopes round after round.

The log-likelihood bends nowhere more than half the Gram matrix does (Böhning 1992). So a step that would be right for
half the Gram matrix always goes uphill: no learning rate, and the moments tell all that it takes.
"""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh
from scipy.special import softmax

from fedgram import solve
from fedgram.accumulate import ROWS_AT_ONCE, as_block
from fedgram.head import deviations, log_frequencies
from fedgram.likelihood import Labels
from fedgram.models import LinearModel
from fedgram.moments import Moments
from fedgram.solve import Array


def slope(x: npt.NDArray[Any], labels: Labels, model: LinearModel) -> tuple[Array, float]:
    """Return the slope [X 1]ᵀ(Y - P) of the log-likelihood, (d + 1, c), and how undecided the model is: Σ 1 - ‖p‖²."""
    total, undecided = np.zeros((x.shape[1] + 1, len(model.classes))), 0.0
    for start in range(0, len(x), ROWS_AT_ONCE):
        rows = x[start : start + ROWS_AT_ONCE]
        unexplained = -softmax(model.scores(rows), axis=1)
        undecided += len(rows) - (unexplained**2).sum()
        unexplained[np.arange(len(rows)), labels[start : start + ROWS_AT_ONCE]] += 1
        total += as_block(rows, bias=True).T @ unexplained
    return total, float(undecided)


class Logistic:
    """Multinomial logistic regression with a ridge on standardised features, one accelerated step after another.

    With "auto" the ridge follows the evidence (MacKay 1992): it is how many numbers the samples determine, divided by
    the squares of the weights. It settles as the weights do, or grows without end where there is nothing to learn.
    """

    def __init__(self, total: Moments, ridge: float | Literal["auto"]) -> None:
        self._total, self._mean = total, total.cross.sum(axis=1) / total.n
        gram, level = total.gram - total.n * np.outer(self._mean, self._mean), solve.rounding_level(total.d, total.n)
        self._scale = _units(total, np.diag(gram) / total.n, level)
        gram /= np.outer(self._scale, self._scale)
        self._curvatures, self._directions = eigh(gram, overwrite_a=True, check_finite=False)
        # Where nothing varies there is nothing to learn, and what seems to be a slope is rounding.
        self._curvatures[self._curvatures <= level * self._curvatures[-1]] = 0
        self._auto = ridge == "auto"
        self.ridge = float(total.d if ridge == "auto" else ridge)
        # Weights of standardised features, and below them the intercepts; classes that nobody has stay impossible.
        self._point = np.zeros((total.d + 1, len(total.classes)))
        self._point[-1] = log_frequencies(total.counts)
        self._ahead, self._pace = self._point.copy(), 1.0

    @property
    def model(self) -> LinearModel:
        """The model so far."""
        return self._as_model(self._point)

    @property
    def ahead(self) -> LinearModel:
        """The model whose slope comes next: a bit further in the direction of the last step (Nesterov)."""
        return self._as_model(self._ahead)

    def climb(self, slope: Array, undecided: float) -> None:
        """Take a step, given everybody's `slope` at `ahead`."""
        self._update_ridge(undecided)
        rise = np.vstack([(slope[:-1] - np.outer(self._mean, slope[-1])) / self._scale[:, None], slope[-1:]])
        rise[:-1] -= self.ridge * self._ahead[:-1]
        lengths = np.where(self._curvatures > 0, 1 / (self._curvatures / 2 + self.ridge), 0)
        climbed = self._directions @ (lengths[:, None] * (self._directions.T @ rise[:-1]))
        point = self._ahead + np.vstack([climbed, rise[-1:] * (2 / self._total.n)])
        step = point - self._point
        if (rise * step).sum() < 0:  # overshot: begin anew to pick up speed
            self._pace = 1.0
        pace = (1 + np.sqrt(1 + 4 * self._pace**2)) / 2
        self._ahead = point + (self._pace - 1) / pace * step
        self._point, self._pace = point, pace

    def _update_ridge(self, undecided: float) -> None:
        squares, free = (self._point[:-1] ** 2).sum(), np.count_nonzero(self._total.counts) - 1
        if self._auto and squares > 0:
            known = self._curvatures * undecided / (free * self._total.n)
            self.ridge = float(free * (known / (known + self.ridge)).sum() / squares)

    def _as_model(self, point: Array) -> LinearModel:
        weights = point[:-1] / self._scale[:, None]
        kind, intercept = self._total.kind, point[-1] - self._mean @ weights
        return LinearModel(weights, kind.classes, intercept, kind.features, kind.columns)


def _units(total: Moments, variances: Array, level: float) -> Array:
    """Return the features' deviations: within classes, or all in all if there is none, or infinite if they are
    constant.

    In units of infinity a feature is zero, and so is its weight.
    """
    within, constant = deviations(total)
    squares = total.packed[solve.packed_diagonal(total.d)] / total.n
    varies = variances > level * np.maximum(squares, 1e-300)
    return np.where(varies, np.where(constant, np.sqrt(np.abs(variances)), within), np.inf)

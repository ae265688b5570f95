"""Logistic regression from pooled moments and summed gradients.

The curvature of the log-likelihood is at most half the Gram matrix, everywhere (Böhning 1992). So Newton's step with
half the Gram matrix in the place of the curvature never lowers the log-likelihood: it needs no learning rate, and the
moments are enough to compute it. This holds for plain steps, from any point. The accelerated climb takes such steps
from points ahead of the model, so the log-likelihood may fall in some rounds.
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from fedgram.core.arrays import Array, Blocks, as_blocks
from fedgram.core.classes import Classes
from fedgram.core.errors import RefusedMessage
from fedgram.heads.head import NEVER, deviations, log_frequencies
from fedgram.heads.likelihood import Labels
from fedgram.models import LinearModel
from fedgram.moments import packing, solve
from fedgram.moments.accumulate import ROWS_AT_ONCE, as_block, as_features
from fedgram.moments.moments import Moments
from fedgram.moments.regression import STEPS

# Lower bound of the logistic model's ridge, as a share of that of least squares.
FLOOR = 1 / 3
# Largest distance between two scores of a sample that a party accepts. A plain step moves the scores of all samples
# together by at most 2‖Y - P‖ ≤ √(8n), and an accelerated step by as much more each time: by √(8n)·k² in k rounds,
# 1.1e6 in 20 rounds over a million samples. (Measured: 500, in 60 rounds over features with Cauchy's law.)
FARTHEST = 1e6
# Scores of classes without samples are huge, and their squares overflow; a class so far behind is impossible.
IMPOSSIBLE = -1e3


class Said(NamedTuple):
    """The statistics of samples under a model: the gradient of their log-likelihood, [X 1]ᵀ(Y - P), and five numbers.

    Three are for the ridge: `unexplained` is ‖Y - P‖², `undecided` is Σ 1 - ‖p‖², and `left_out` is the same by models
    that have not seen the sample. Two are for the temperature: if all scores were multiplied by 1 + t, the
    log-likelihood by such models would rise by `sharper` · t - `bend` · t²/2.
    """

    gradient: Array
    unexplained: float
    undecided: float
    left_out: float
    sharper: float
    bend: float


def gradient(
    x: npt.NDArray[Any] | Blocks[npt.NDArray[Any]],
    labels: Labels | Blocks[Labels],
    model: LinearModel,
    leverage: float = 0.0,
) -> Said:
    """Return the statistics of samples x (n, d) under the model; they and their labels may be in blocks.

    `leverage` is the mean pull of a sample on its own scores, per unit of its residual.
    """
    total, sums = np.zeros((len(model.weights) + 1, len(model.classes))), np.zeros(4)
    sharper = 0.0
    for rows, own in _few_at_once(x, labels):
        scores, residual = _residuals(rows, own, model)
        p = -residual
        p[np.arange(len(rows)), own] += 1
        left_out = scores - leverage * residual
        without = softmax(left_out, axis=1)
        left_out = np.maximum(left_out - left_out.max(axis=1, keepdims=True), IMPOSSIBLE)
        expected = (without * left_out).sum(axis=1)
        spread = (without * left_out**2).sum() - (expected**2).sum()
        sharper += float((left_out[np.arange(len(rows)), own] - expected).sum())
        sums += (residual**2).sum(), len(rows) - (p**2).sum(), len(rows) - (without**2).sum(), spread
        total += as_block(rows, bias=True).T @ residual
    unexplained, undecided, by_others, bend = sums.clip(0).tolist()  # rounding may leave less than nothing
    return Said(total, unexplained, undecided, by_others, sharper, bend)


def check_asked(asked: Any, width: int, classes: Classes, seen: npt.NDArray[np.int64]) -> None:
    """Raise for a payload that `Logistic` never sends to samples (n, width): it is a linear model and a leverage.

    Scores are log-probabilities as they are, so a temperature and offsets are refused. `seen` are the samples of each
    class; one that is here cannot be among those that all clients lack.
    """
    named: dict[str, Any] = asked if isinstance(asked, dict) and asked.keys() == {"model", "leverage"} else {}
    model, leverage = named.get("model"), named.get("leverage")
    is_number = isinstance(leverage, int | float) and not isinstance(leverage, bool)
    wrong = {
        "a table of 'model' and 'leverage'": not named,
        "a linear model with an intercept": not isinstance(model, LinearModel) or model.intercept is None,
        "'leverage' as a finite number from 0": not (is_number and 0 <= float(leverage or 0) < np.inf),
    }
    if isinstance(model, LinearModel) and model.intercept is not None:
        shape = (width, len(classes))
        wrong |= {
            f"weights of shape {shape} for the agreed classes": model.weights.shape != shape
            or model.classes != classes,
            "a model without a temperature": model.temperature is not None,
            "a model without offsets": model.offsets is not None,
            "finite weights": not (np.isfinite(model.weights).all() and np.isfinite(model.intercept).all()),
        }
        if not any(wrong.values()):
            absent = model.intercept <= NEVER / 2
            wrong["scores of each class that this client has"] = bool((absent & (seen > 0)).any())
    if found := next((what for what, is_wrong in wrong.items() if is_wrong), None):
        raise RefusedMessage(f"step 'gradient': expected {found}, got something else; ask for a round of fedlogit")


def weights_of(
    x: npt.NDArray[Any] | Blocks[npt.NDArray[Any]], labels: Labels | Blocks[Labels], model: LinearModel
) -> Iterator[Array]:
    """Yield the weights of samples in the gradient at a model, their residuals Y - P (n, c), in blocks.

    Scores further apart than training can lead to are refused.
    """
    for rows, own in _few_at_once(x, labels):
        scores, residual = _residuals(rows, own, model)
        possible = scores if model.intercept is None else scores[:, model.intercept > NEVER / 2]
        if possible.size and np.ptp(possible, axis=1).max() > FARTHEST:
            raise RefusedMessage(
                f"step 'gradient': expected a model whose scores are at most {FARTHEST:g} apart, got one that training "
                "cannot lead to; ask for a round of fedlogit"
            )
        yield residual


def _residuals(rows: npt.NDArray[Any], labels: Labels, model: LinearModel) -> tuple[Array, Array]:
    """Return the scores (n, c) of samples, and Y - P."""
    scores = model.scores(rows)
    residual = -softmax(scores, axis=1)
    residual[np.arange(len(rows)), labels] += 1
    return scores, residual


def _few_at_once(
    x: npt.NDArray[Any] | Blocks[npt.NDArray[Any]], labels: Labels | Blocks[Labels]
) -> Iterator[tuple[npt.NDArray[Any], Labels]]:
    for block, own in zip(as_blocks(x), as_blocks(labels), strict=True):
        rows = as_features(block)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = slice(start, start + ROWS_AT_ONCE)
            yield rows[some], own[some]


class Logistic:
    """Multinomial logistic regression with a ridge on standardised features, one accelerated step after another.

    With "auto" the ridge follows generalised cross-validation of the least-squares problem that a step solves (Gu
    1992): scores XW + (Y - P)/w regressed on the features with weights w, the mean curvature. It needs only the
    moments that have been sent, and the gradient. If samples can be separated, such a ridge would fall without end. So
    it stays above `FLOOR` times the ridge of least squares on the labels, at the curvature of left-out samples.
    """

    def __init__(self, total: Moments, ridge: float | Literal["auto"]) -> None:
        problem = total.regression(intercept=True)
        self._total, self._mean = total, problem.mean
        self._scale = _units(total, problem.packed[packing.diagonal(total.d)] / total.n)
        problem = problem.scaled(1 / self._scale)
        # Directions without variation are left out: a gradient along them would be rounding.
        self._curvatures, self._directions = problem.eigenpairs
        self._free = max(int(np.count_nonzero(total.counts)) - 1, 1)
        self._weight = self._per_sample(problem.squares)
        # The ridge of least squares on the labels, which is also right for the first step, from weights of zero.
        self._squares = problem.cross_validated() if ridge == "auto" else None
        self.ridge = float(ridge if self._squares is None else self._squares * self._weight)
        # Weights of standardised features, and below them the intercepts; classes without samples stay impossible.
        self._point = np.zeros((total.d + 1, len(total.classes)))
        self._point[-1] = log_frequencies(total.counts)
        self._ahead, self._pace = self._point.copy(), 1.0
        self.temperature = 1.0  # of scores, for left-out samples

    @property
    def model(self) -> LinearModel:
        """The model so far."""
        return self._as_model(self._point)

    @property
    def ahead(self) -> LinearModel:
        """The model whose gradient comes next: a bit further in the direction of the last step (Nesterov)."""
        return self._as_model(self._ahead)

    @property
    def leverage(self) -> float:
        """The mean pull of a sample on its own scores under `ahead`, per unit of its residual."""
        return self.pull / max(1 - self._weight * self.pull, 1e-3)

    @property
    def pull(self) -> float:
        """The same to first order, with the residual unchanged when the sample is left out."""
        return float((self._curvatures / (self._weight * self._curvatures + self.ridge)).sum()) / self._total.n

    def climb(self, said: Said) -> None:
        """Take a step, given the statistics of all samples under `ahead`."""
        gradient = said.gradient
        rise = np.vstack([(gradient[:-1] - np.outer(self._mean, gradient[-1])) / self._scale[:, None], gradient[-1:]])
        self._update_ridge(said, rise)
        # Newton's step in the logarithm of the sharpness, which stays positive.
        self.temperature = float(np.exp(np.clip(-said.sharper / said.bend, -1.0, 1.0))) if said.bend > 0 else 1.0
        rise[:-1] -= self.ridge * self._ahead[:-1]
        lengths = 1 / (self._curvatures / 2 + self.ridge)
        climbed = self._directions @ (lengths[:, None] * (self._directions.T @ rise[:-1]))
        point = self._ahead + np.vstack([climbed, rise[-1:] * (2 / self._total.n)])
        step = point - self._point
        if (rise * step).sum() < 0:  # overshot: begin anew to pick up speed
            self._pace = 1.0
        pace = (1 + np.sqrt(1 + 4 * self._pace**2)) / 2
        self._ahead = point + (self._pace - 1) / pace * step
        self._point, self._pace = point, pace

    def _update_ridge(self, said: Said, rise: Array) -> None:
        self._weight = self._per_sample(said.undecided)
        if self._squares is None or not len(self._curvatures):
            return
        weights, gradient = (self._directions.T @ rows[:-1] for rows in (self._ahead, rise))
        # Moments of the scores XW + (Y - P)/w, less their means.
        cross = self._curvatures[:, None] * weights + gradient / self._weight
        squares = (weights * (cross + gradient / self._weight)).sum()
        squares += (said.unexplained - (rise[-1] ** 2).sum() / self._total.n) / self._weight**2
        ridge = solve.generalised_cross_validation(
            self._curvatures, cross, STEPS * self._curvatures.mean(), freedom=self._total.n - 1, squares=float(squares)
        )
        self.ridge = max(ridge * self._weight, FLOOR * self._squares * self._per_sample(said.left_out))

    def _per_sample(self, undecided: float) -> float:
        """Return the mean curvature of a sample's log-likelihood along the directions that its scores can take."""
        return max(float(undecided) / (self._free * self._total.n), 1e-9)

    def _as_model(self, point: Array) -> LinearModel:
        weights = point[:-1] / self._scale[:, None]
        schema, intercept = self._total.schema, point[-1] - self._mean @ weights
        return LinearModel(weights, schema.classes, intercept, schema.features, schema.columns)


def _units(total: Moments, variances: Array) -> Array:
    """Return the features' standard deviations: within classes, or overall if there is none, or infinite if constant.

    In units of infinity a feature is zero, and so is its weight.
    """
    within, constant = deviations(total)
    return np.where(variances > 0, np.where(constant, np.sqrt(variances), within), np.inf)

"""How large an answer to a round can be, given the moments that the party has joined with.

A party knows its moments, and so does the store; what the samples behind them can say to a further question is bounded
by them. Each bound has room for rounding, and nothing else: honest answers are never refused.
"""

from dataclasses import dataclass
from math import inf, isfinite, log, sqrt
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.errors import RefusedMessage
from fedgram.models import LinearModel
from fedgram.moments import solve
from fedgram.moments.basis import Basis
from fedgram.moments.moments import Moments
from fedgram.protocol.replies import MUCH

if TYPE_CHECKING:
    from fedgram.methods.analytic.apfl import APFL

REMEDY = "answer with the table that was summarized"
VANISHING = 1e-300  # squares below are lost, and what they are squares of is not


@dataclass(frozen=True, eq=False)
class Own:
    """The moments that a party has joined with, in the columns of a round, and how far off rounding may put squares.

    `noise` (d,) is for the diagonal; an element off it is off by no more than the root of the product of two.
    """

    moments: Moments
    noise: Array
    outcomes: int = 0  # how many of the last columns are numeric outcomes

    @classmethod
    def of(cls, basis: Basis, sent: Moments) -> Self:
        """Return moments of what was sent in the columns of a basis."""
        # Shifted columns are differences: rounding is as large as what they are differences of.
        parts = np.abs(basis.values) * np.sqrt(sent.squares[basis.rows])
        size = np.bincount(basis.places, parts, minlength=len(basis.shift)) + np.abs(basis.shift) * sqrt(sent.n)
        outcomes = 0 if basis.outcomes is None else len(basis.outcomes)
        return cls(basis.moments(sent), 8 * solve.rounding_level(sent.d, sent.n) * size**2, outcomes)

    @property
    def n(self) -> int:
        """How many samples."""
        return self.moments.n


def check_gradient(reply: dict[str, Any], own: Own, _: Any, payload: Any) -> None:
    """Refuse what FedLogit's step cannot say of a model: a gradient Σ xᵢ rᵢᵀ of residuals r = y - p, and five sums.

    A residual is from -1 to 1, so |g_jc| ≤ √(Σᵢ r_ic²) √A_jj (Cauchy and Schwarz), and Σᵢ r_ic² is at most n and at
    most Σᵢ ‖rᵢ‖², which is `unexplained`. The intercept's part is n_c - Σᵢ p_ic.
    """
    from fedgram.heads.logistic import IMPOSSIBLE  # takes a while

    n, counts = own.n, own.moments.counts
    c = len(counts)
    _check_range("unexplained", reply["unexplained"], 0, 2 * n, "‖y - p‖² is at most 2 for each sample")
    residuals = min(reply["unexplained"], n) + VANISHING * n
    lengths = np.append(np.sqrt(own.moments.squares + own.noise), sqrt(n))
    high = np.outer(lengths * sqrt(residuals), np.ones(c)) * MUCH
    low, slack = -high, n * (MUCH - 1)
    low[-1], high[-1] = np.maximum(low[-1], counts - n - slack), np.minimum(high[-1], counts + slack)
    wrong = np.argwhere(~((low <= reply["gradient"]) & (reply["gradient"] <= high)))
    if len(wrong):
        row, column = wrong[0].tolist()
        names = (*own.moments.kind.columns, "the intercept")
        raise RefusedMessage(
            f"the gradient of {names[row]!r} for class {own.moments.classes[column]!r} is "
            f"{reply['gradient'][row, column]:g}, and its own moments allow {low[row, column]:g} to "
            f"{high[row, column]:g}, √(Σr² Σx²): {REMEDY}"
        )
    for name in ("undecided", "left_out"):
        _check_range(name, reply[name], 0, n * (1 - 1 / c), "1 - ‖p‖² is at most 1 - 1/c for each sample")
    apart = _apart(own, payload["model"], payload["leverage"])
    # The label's score less the mean score, which is no further below the highest than the entropy, at most log c.
    lowest, highest = -min(-IMPOSSIBLE * n, sqrt(n) * apart), min(log(c) * n, sqrt(n) * apart)
    _check_range("sharper", reply["sharper"], lowest, highest, "scores lie no further apart by its own moments")
    # The variance of log p, at most 1 + log²(c - 1)/4 (Reeb and Wolf 2015), or a quarter of the squared range.
    most = min((1 + log(max(c - 1, 1)) ** 2 / 4) * n, apart**2 / 4)
    _check_range("bend", reply["bend"], 0, most, "log-probabilities vary no more")


def _apart(own: Own, model: LinearModel, leverage: float) -> float:
    """Return a bound of √Σᵢ rangeᵢ², where the range is how far a sample's scores can lie apart.

    That of scores s is at most √2 ‖s - mean‖, and leaving a sample out moves them by `leverage` times its residual.
    """
    gram, sums = own.moments.gram, own.moments.cross.sum(axis=1)
    whole = np.block([[gram, sums[:, None]], [sums[None, :], np.array([[own.n]])]])
    weights = np.vstack([model.weights, np.zeros(model.width) if model.intercept is None else model.intercept])
    centred = weights - weights.mean(axis=1, keepdims=True)
    level = 8 * solve.rounding_level(len(sums), own.n)
    noise = np.append(own.noise, level * own.n)
    with np.errstate(over="ignore", invalid="ignore"):  # a class that nobody has is infinitely far away
        squares = float(np.vdot(centred, whole @ centred) + np.square(np.sqrt(noise) @ np.abs(centred)).sum())
        # What all classes have in common cancels, and leaves its rounding.
        rounding = level * float((np.sqrt(np.diag(whole) + noise) @ np.abs(weights)).sum())
    found = sqrt(2 * max(squares, 0)) + 2 * abs(leverage) * sqrt(own.n) + rounding
    return found if isfinite(found) else inf


def check_features(reply: Moments, own: Own, method: "APFL", _: Any) -> None:
    """Refuse moments of APFL's random features that samples with the party's own moments cannot have.

    Numeric outcomes are among both moments, and must be the same in both.
    """
    if not np.array_equal(reply.counts, own.moments.counts):
        raise RefusedMessage(
            f"it is of {reply.counts.tolist()} samples by class, and its summary of {own.moments.counts.tolist()}: "
            f"{REMEDY}"
        )
    inputs = len(own.moments.squares) - own.outcomes
    primary = method.primary(inputs)
    gram = own.moments.gram[:inputs, :inputs]
    largest = primary.largest_squares(gram, own.n, np.sqrt(own.noise[:inputs])) * MUCH
    found = reply.squares[: primary.dim_out]
    wrong = np.flatnonzero(~(found <= largest))
    if len(wrong):
        raise RefusedMessage(
            f"the sum of squares of random feature {wrong[0]} is {found[wrong[0]]:g}, and its own moments allow at "
            f"most {largest[wrong[0]]:g}: {REMEDY}"
        )
    _check_outcomes(reply, own)


def _check_outcomes(reply: Moments, own: Own) -> None:
    """Refuse other sums and products of the numeric outcomes than the summary has."""
    if not own.outcomes:
        return
    last = slice(-own.outcomes, None)
    noise = np.sqrt(own.noise[last] * reply.d)  # few samples come as a factor of all columns, which rounds more
    # A sum of n numbers is off by √n times the root of what their squares are off by.
    sums = np.abs(reply.cross[last] - own.moments.cross[last]) <= sqrt(own.n) * noise[:, None]
    products = np.abs(reply.gram[last, last] - own.moments.gram[last, last]) <= np.outer(noise, noise)
    if not (sums.all() and products.all()):
        raise RefusedMessage(f"its outcomes have other sums or products than in its summary: {REMEDY}")


def _check_range(name: str, value: float, low: float, high: float, rule: str) -> None:
    """Refuse a number outside its range, but for rounding."""
    slack = (MUCH - 1) * max(-low, high, 0)
    if not low - slack <= value <= high + slack:
        raise RefusedMessage(f"{name!r} is {value:g}, and can be {low:g} to {high:g} ({rule}): {REMEDY}")

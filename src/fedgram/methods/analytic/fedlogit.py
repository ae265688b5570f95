"""FedLogit: the logistic model of all data, step by step, and Bayes' rule at every client."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, isfinite, log, sqrt
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.errors import RefusedMessage
from fedgram.core.schema import Count, Positive
from fedgram.evaluation import MUCH
from fedgram.heads import logistic
from fedgram.heads.head import Head, personal_model
from fedgram.heads.logistic import Logistic, Said
from fedgram.models import LinearModel
from fedgram.moments import solve
from fedgram.moments.moments import Moments
from fedgram.protocol.byfiles import REMEDY, Joined, check_range
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.disclosure import Weighing
from fedgram.protocol.method import step
from fedgram.protocol.onemessage import Publishing
from fedgram.protocol.registry import register
from fedgram.protocol.replies import Number, Question, UpTo

VANISHING = 1e-9  # per sample, for sums that are 0 up to rounding, as with a single class
LOST = 1e-300  # squares below underflow, while their roots do not
CALIBRATED = 1.0  # factor of the head's scores: a model trained for the likelihood is calibrated


@register
@dataclass(frozen=True, kw_only=True)
class FedLogit(Publishing):
    """FedLogit — ours: the logistic model of all data in a few small rounds without a learning rate, personalized.

    FedGram with a better head, if clients can be asked more than once. The pooled Gram matrix bounds the curvature of
    the log-likelihood, so only gradients, (d + 1) × c numbers a round, are needed to climb it. The
    ridge is found by cross-validation on the way, for which clients add three numbers; two more give the temperature of
    the global model. Gradients add up, so the model for all is the same however the data is spread. Clients personalize
    as in FedGram, and so can clients that come later: the fit keeps the head.

    If a client fails between rounds, its earlier messages stay in the model, as fit.notes["remains"] says. Its moments
    stay in the class frequencies and in the bound, which is then larger than necessary but still a bound.

    Parameters
    ----------
    rounds : int
        The number of rounds, each with one gradient from every client.
    ridge : float or "auto"
        The ridge of the logistic model; "auto" finds it by cross-validation on the way.
    refine : bool
        Whether clients may add regressions on their own samples, as in FedGram.

    """

    revision: ClassVar[int] = 3
    personal = True
    finds_columns = True
    adds = True
    quick = MappingProxyType({"rounds": 4})

    rounds: Count = 20
    ridge: Positive | Literal["auto"] = "auto"
    refine: bool = True

    @property
    def shift_invariant(self) -> bool:
        """True: the intercept makes up for constants that are subtracted from columns."""
        return True

    # server
    def serve(self, clients: Clients) -> LinearModel:
        """Return the global model, after climbing the likelihood and publishing the head."""
        total = clients.sum(self.summarize, validate=True)
        # Columns that a study makes have one unit, and the squares of a constant one are rounding; others have units of
        # their own, so that each has its own bound.
        squares = total.squares if clients.agreement.basis is None else np.full(total.d, total.squares.max())
        clients.agreement = replace(clients.agreement, squares=squares)
        ascent = Logistic(total, self.ridge)
        members = clients.names
        remains: dict[str, str] = {}
        for number in clients.rounds_of(self.rounds):
            asked = {"model": ascent.ahead, "leverage": ascent.leverage}
            ascent.climb(Said(**clients.sum(self.gradient, asked)))
            gone = set(members).difference(clients.names, remains)
            remains |= {name: _remaining(number) for name in members if name in gone}
            clients.report(number, ascent.model)
        if remains:
            clients.note("remains", remains)
        clients.message = Head.of_model(ascent.model, total, ascent.pull)
        clients.warn_of_two(self.reveals(clients.message))
        clients.each(self.personalize, clients.message)
        return replace(ascent.model, temperature=ascent.temperature)

    def reveals(self, published: Head) -> str:
        """Return "class counts"."""
        return "class counts"

    def global_model(self, published: Head) -> LinearModel:
        """Return the model that the head was made of."""
        return published.model()

    def left_out_changes(self, published: Head, client: ClientSide) -> tuple[Array, Array]:
        """Return the changes of the head's scores from leaving each sample's residual out."""
        return published.changes_for(client.x, client.y)

    # client
    @step
    def summarize(self, client: ClientSide) -> Moments:
        """Return X_kᵀX_k and X_kᵀY_k."""
        return client.moments()

    @step(
        reply=lambda method, question: method.gradient_of(question),
        weighs=Weighing(lambda _, client, asked: _residuals(client, asked), linear=True),
        by_files=lambda reply, joined, _, asked: check_gradient(reply, joined, asked),
    )
    def gradient(self, client: ClientSide, asked: Any = None) -> dict[str, Any]:
        """Return the gradient of the client's log-likelihood, with sums about the model's errors and uncertainty."""
        _check(client, asked)
        return logistic.gradient(client.x_blocks, client.y_blocks, **asked)._asdict()

    def gradient_of(self, question: Question) -> dict[str, Any]:
        """Return the rule for a client's reply to `gradient`."""
        n, c = question.samples, len(question.classes)
        # Σ xᵢ rᵢ of residuals up to 1 is at most √n √(Σ xᵢ²), by Cauchy and Schwarz; twice that is room for rounding.
        squares = np.full(question.shape[0], inf) if question.squares is None else question.squares
        lengths = np.sqrt(np.append(np.maximum(squares, 0), n))
        gradient = UpTo(np.outer(2 * sqrt(max(n, 1)) * lengths, np.ones(c)))
        # By files, a party's own moments are known and give closer bounds: see `check_gradient`.
        undecided, far = Number(0, n * (1 - 1 / c) * MUCH + VANISHING * n), abs(logistic.IMPOSSIBLE)
        return {
            "gradient": gradient,
            "unexplained": Number(0, 2 * n * MUCH),
            "undecided": undecided,
            "left_out": undecided,
            "sharper": Number(-far * n * MUCH, n * log(c) * MUCH + VANISHING * n),
            "bend": Number(0, n * (1 + log(max(c - 1, 1)) ** 2 / 4) * MUCH),
        }

    @step
    def personalize(self, client: ClientSide, head: Head) -> None:
        """Keep Bayes' rule with the client's own frequencies, and its own regressions if they are worth it."""
        expected, member = CALIBRATED, client.member
        x, y = client.x_blocks, client.y_blocks
        made = personal_model(head, x, y, temperature=expected, member=member, refine=self.refine)
        client.keep(made.model, share=made.of_head)


def _check(client: ClientSide, asked: Any) -> None:
    """Raise for a request that `serve` does not make."""
    seen = np.zeros(len(client.classes), dtype=np.int64)
    for y in client.y_blocks:
        seen += np.bincount(y, minlength=len(seen))
    logistic.check_asked(asked, client.shape[0], client.classes, seen)


def _residuals(client: ClientSide, asked: dict[str, Any]) -> Iterator[Array]:
    return logistic.weights_of(client.x_blocks, client.y_blocks, asked["model"])


def _remaining(lost: int) -> str:
    """Return the part of the model that is from a client which failed in a round."""
    rounds = {0: "no gradients", 1: "the gradient of round 0"}.get(lost, f"the gradients of rounds 0 to {lost - 1}")
    return f"its moments in the bound and in the class frequencies, {rounds}"


def check_gradient(reply: dict[str, Any], own: Joined, asked: dict[str, Any]) -> None:
    """Raise if no samples with a party's moments can give this reply to a round.

    The reply has a gradient Σ xᵢ rᵢᵀ of residuals r = y - p, and five sums. A residual is from -1 to 1, so |g_jc| ≤
    √(Σᵢ r_ic²) √A_jj (Cauchy and Schwarz), and Σᵢ r_ic² is at most n and at most Σᵢ ‖rᵢ‖², which is `unexplained`. The
    intercept's part is n_c - Σᵢ p_ic.
    """
    n, counts = own.n, own.moments.counts
    c = len(counts)
    check_range("unexplained", reply["unexplained"], 0, 2 * n, "‖y - p‖² is at most 2 for each sample")
    residuals = min(reply["unexplained"], n) + LOST * n
    lengths = np.append(np.sqrt(own.moments.squares + own.noise), sqrt(n))
    high = np.outer(lengths * sqrt(residuals), np.ones(c)) * MUCH
    low, slack = -high, n * (MUCH - 1)
    low[-1], high[-1] = np.maximum(low[-1], counts - n - slack), np.minimum(high[-1], counts + slack)
    wrong = np.argwhere(~((low <= reply["gradient"]) & (reply["gradient"] <= high)))
    if len(wrong):
        row, column = wrong[0].tolist()
        names = (*own.moments.schema.columns, "the intercept")
        raise RefusedMessage(
            f"the gradient of {names[row]!r} for class {own.moments.classes[column]!r} is "
            f"{reply['gradient'][row, column]:g}, and its own moments allow {low[row, column]:g} to "
            f"{high[row, column]:g}, √(Σr² Σx²): {REMEDY}"
        )
    for name in ("undecided", "left_out"):
        check_range(name, reply[name], 0, n * (1 - 1 / c), "1 - ‖p‖² is at most 1 - 1/c for each sample")
    apart = _apart(own, asked["model"], asked["leverage"])
    # `sharper` sums the label's score less the mean score, which is at most the entropy (≤ log c) below the highest.
    lowest, highest = -min(-logistic.IMPOSSIBLE * n, sqrt(n) * apart), min(log(c) * n, sqrt(n) * apart)
    check_range("sharper", reply["sharper"], lowest, highest, "scores lie no further apart by its own moments")
    # The variance of log p, at most 1 + log²(c - 1)/4 (Reeb and Wolf 2015), or a quarter of the squared range.
    most = min((1 + log(max(c - 1, 1)) ** 2 / 4) * n, apart**2 / 4)
    check_range("bend", reply["bend"], 0, most, "log-probabilities vary no more")


def _apart(own: Joined, model: LinearModel, leverage: float) -> float:
    """Return a bound of √Σᵢ rangeᵢ², with the range of each sample's scores.

    The range of scores s is at most √2 ‖s - mean‖. Leaving a sample out moves them by `leverage` times its residual.
    """
    gram, sums = own.moments.gram, own.moments.cross.sum(axis=1)
    whole = np.block([[gram, sums[:, None]], [sums[None, :], np.array([[own.n]])]])
    weights = np.vstack([model.weights, np.zeros(model.width) if model.intercept is None else model.intercept])
    centred = weights - weights.mean(axis=1, keepdims=True)
    level = 8 * solve.rounding_level(len(sums), own.n)
    noise = np.append(own.noise, level * own.n)
    with np.errstate(over="ignore", invalid="ignore"):  # a class without samples is infinitely far away
        squares = float(np.vdot(centred, whole @ centred) + np.square(np.sqrt(noise) @ np.abs(centred)).sum())
        # The mean over the classes cancels, but its rounding errors stay.
        rounding = level * float((np.sqrt(np.diag(whole) + noise) @ np.abs(weights)).sum())
    found = sqrt(2 * max(squares, 0)) + 2 * abs(leverage) * sqrt(own.n) + rounding
    return found if isfinite(found) else inf

"""FedLogit: the logistic model of all data, step by step, and Bayes' rule at every client."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, log, sqrt
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np

from fedgram.core.arrays import Array
from fedgram.heads import logistic
from fedgram.heads.head import Head
from fedgram.heads.logistic import Logistic, Said
from fedgram.heads.personal import personal_model
from fedgram.models import LinearModel
from fedgram.moments.moments import Moments
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.disclosure import Weighing
from fedgram.protocol.method import step
from fedgram.protocol.onemessage import Publishing
from fedgram.protocol.parameters import Count, Positive
from fedgram.protocol.registry import register
from fedgram.protocol.replies import MUCH, Number, Question, UpTo

VANISHING = 1e-9  # of one class, sums that are 0 but for rounding
CALIBRATED = 1.0  # what is trained for the likelihood is as sure as it should be


@register
@dataclass(frozen=True, kw_only=True)
class FedLogit(Publishing):
    """FedLogit — ours: the logistic model of all data in a few small rounds without a learning rate, personalized.

    FedGram with a better head, for whoever can ask clients more than once. The pooled Gram matrix bounds how the
    log-likelihood bends, so the gradients, (d + 1) × c numbers a round, are all that is still needed to climb it. The
    ridge is found by cross-validation on the way, for which clients add three numbers; two more give the temperature of
    the global model. Gradients add up, so the model for all is the same however the data is spread. Clients personalize
    as in FedGram, and so can clients that come later: the fit keeps the head.

    A client that fails between rounds leaves what it has sent: fit.notes["remains"] says what that is. Its moments stay
    in the bound, which is then larger than it need be and bounds all the same, and in the class frequencies.
    """

    revision: ClassVar[int] = 2
    personal = True
    finds_columns = True
    quick = MappingProxyType({"rounds": 4})

    rounds: Count = 20
    ridge: Positive | Literal["auto"] = "auto"
    refine: bool = True

    @property
    def shift_invariant(self) -> bool:
        """The intercept takes what is subtracted from columns."""
        return True

    # server
    def serve(self, clients: Clients) -> LinearModel:
        """Climb, then publish the head."""
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
        """How many samples each class has."""
        return "class counts"

    # client
    @step
    def summarize(self, client: ClientSide) -> Moments:
        """Return X_kᵀX_k and X_kᵀY_k."""
        return client.moments()

    @step(
        reply=lambda method, question: method.gradient_of(question),
        weighs=Weighing(lambda _, client, asked: _residuals(client, asked), linear=True),
    )
    def gradient(self, client: ClientSide, asked: Any = None) -> dict[str, Any]:
        """Return the gradient of the log-likelihood here, how wrong the model is, and how undecided."""
        _check(client, asked)
        return logistic.gradient(client.x_blocks, client.y_blocks, **asked)._asdict()

    def gradient_of(self, question: Question) -> dict[str, Any]:
        """Return what a client's gradient must be."""
        n, c = question.samples, len(question.classes)
        # Σ xᵢ rᵢ of residuals up to 1 is at most √n √(Σ xᵢ²), by Cauchy and Schwarz; twice that is room for rounding.
        squares = np.full(question.shape[0], inf) if question.squares is None else question.squares
        lengths = np.sqrt(np.append(np.maximum(squares, 0), n))
        gradient = UpTo(np.outer(2 * sqrt(max(n, 1)) * lengths, np.ones(c)))
        # As in fedgram.exchange.bounds, where a party's own moments are known and say more.
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
        client.keep(personal_model(head, x, y, temperature=expected, member=member, refine=self.refine))


def _check(client: ClientSide, asked: Any) -> None:
    """Refuse what `serve` does not ask."""
    seen = np.zeros(len(client.classes), dtype=np.int64)
    for y in client.y_blocks:
        seen += np.bincount(y, minlength=len(seen))
    logistic.check_asked(asked, client.shape[0], client.classes, seen)


def _residuals(client: ClientSide, asked: dict[str, Any]) -> Iterator[Array]:
    return logistic.weights_of(client.x_blocks, client.y_blocks, asked["model"])


def _remaining(lost: int) -> str:
    """Return what is in the model of a client that failed in a round."""
    rounds = {0: "no gradients", 1: "the gradient of round 0"}.get(lost, f"the gradients of rounds 0 to {lost - 1}")
    return f"its moments in the bound and in the class frequencies, {rounds}"

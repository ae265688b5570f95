"""FedGram: Bayes' rule from pooled moments, and what a client's own samples add to it."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedgram.heads.head import Head
from fedgram.heads.personal import personal_model
from fedgram.heads.system import System
from fedgram.methods.analytic.fedhip import FedHiP
from fedgram.models import LinearModel
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.onemessage import OneMessage
from fedgram.protocol.parameters import Positive
from fedgram.protocol.pool import Pool
from fedgram.protocol.registry import register

# Gaussians are too sure of themselves, since features depend on each other more than they know.
OVERCONFIDENT = 0.5


@register
@dataclass(frozen=True, kw_only=True)
class FedGram(OneMessage):
    """FedGram — ours: Bayes' rule with pooled Gaussians and a client's own class frequencies, refined.

    The pooled moments give the classes' means and their common covariance, hence a head for all. A client
    multiplies in how often it has seen each class, with a temperature for the head's over-confidence. For the case
    that its features are shifted it adds the scores of regressions on its own samples. All that is chosen, is chosen
    for the likelihood of samples that were left out; regressions that gain nothing there are not used. The result is
    a linear model with calibrated scores: log-probabilities but for a constant.

    A numeric outcome has no classes for Bayes' rule: then the pooled ridge is published, with `shrinkage` as its ridge
    per sample, and clients personalize it by FedHiP's step, with regressions on own samples alone only if `refine`.

    One message up, d × c numbers down. `docs/methods/fedgram.md` says why it works and what else was tried.
    """

    revision: ClassVar[int] = 2
    personal = True
    numeric = True

    shrinkage: Positive | Literal["auto"] = "auto"
    refine: bool = True

    @property
    def shift_invariant(self) -> bool:
        """Means and covariances are those of the columns less any numbers."""
        return True

    # server
    def publish(self, pool: Pool) -> Head | System:
        """Turn the pooled moments into means and a covariance, or for numeric outcomes into a ridge regression."""
        if pool.outcomes:
            ridge = FedHiP() if self.shrinkage == "auto" else FedHiP(beta=self.shrinkage * pool.total.n)
            return ridge.publish(pool)
        return Head.of_gaussians(pool.total, self.shrinkage)

    def reveals(self, published: Head | System) -> str:
        """How many samples each class has; for numeric outcomes what FedHiP reveals."""
        return FedHiP().reveals(published) if isinstance(published, System) else "class counts"

    def global_model(self, published: Head | System) -> LinearModel:
        """Return the head with the pooled class frequencies, or the pooled ridge regression."""
        return published.model()

    # client
    @step
    def personalize(self, client: ClientSide, published: Head | System) -> None:
        """Keep Bayes' rule with the client's own frequencies, and its own regressions if they are worth it."""
        if isinstance(published, System):
            FedHiP(alone=self.refine).personalize(client, published)
            return
        expected, member = OVERCONFIDENT, client.member
        x, y = client.x_blocks, client.y_blocks
        client.keep(personal_model(published, x, y, temperature=expected, member=member, refine=self.refine))

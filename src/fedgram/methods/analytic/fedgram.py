"""FedGram: Bayes' rule from pooled moments, and what a client's own samples add to it."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedgram.core.arrays import Array
from fedgram.core.schema import Positive
from fedgram.heads.head import Head, personal_model
from fedgram.heads.system import System
from fedgram.methods.analytic.fedhip import FedHiP
from fedgram.models import LinearModel
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.onemessage import OneMessage
from fedgram.protocol.pool import Pool
from fedgram.protocol.registry import register

# Factor of the head's scores: Gaussian heads are overconfident, because they underestimate how features depend on each
# other.
OVERCONFIDENT = 0.5


@register
@dataclass(frozen=True, kw_only=True)
class FedGram(OneMessage):
    """FedGram — ours: Bayes' rule with pooled Gaussians and a client's own class frequencies, refined.

    The pooled moments give the classes' means and their common covariance, and so a head for all clients. By Bayes'
    rule, a client multiplies its own class frequencies in, with a temperature for the head's over-confidence. In case
    its features are shifted, it adds the scores of regressions on its own samples. All choices maximise the likelihood
    of left-out samples, and regressions that do not increase it are not used. The result is a linear model with
    calibrated scores: log-probabilities up to a constant.

    Numeric outcomes have no classes for Bayes' rule: then the pooled ridge regression is published, and clients
    personalize it by FedHiP's step.

    One message up, d × c numbers down. `docs/methods/fedgram.md` says why it works and what else was tried.

    Parameters
    ----------
    shrinkage : float or "auto"
        The number that is added to the diagonal of the pooled covariance of standardised features; for numeric outcomes
        the ridge per sample. "auto" chooses it on the pooled moments.
    refine : bool
        Whether clients may add regressions on their own samples.

    """

    revision: ClassVar[int] = 2
    personal = True
    numeric = True

    shrinkage: Positive | Literal["auto"] = "auto"
    refine: bool = True

    @property
    def shift_invariant(self) -> bool:
        """True: subtracting constants from columns shifts the means alone, and predictions stay the same."""
        return True

    # server
    def publish(self, pool: Pool) -> Head | System:
        """Return the head of the pooled Gaussians, or for numeric outcomes the pooled ridge regression."""
        if not pool.targets.has_classes:
            ridge = FedHiP() if self.shrinkage == "auto" else FedHiP(beta=self.shrinkage * pool.total.n)
            return ridge.publish(pool)
        return Head.of_gaussians(pool.total, self.shrinkage)

    def reveals(self, published: Head | System) -> str:
        """Return "class counts", or for numeric outcomes the part that FedHiP reveals."""
        return FedHiP().reveals(published) if isinstance(published, System) else "class counts"

    def global_model(self, published: Head | System) -> LinearModel:
        """Return the head with the pooled class frequencies, or the pooled ridge regression."""
        return published.model()

    def without(self, published: Head | System, client: ClientSide) -> System | None:
        """Return the pooled ridge regression without a member's samples; None for a head, which cannot be reduced."""
        return FedHiP().without(published, client) if isinstance(published, System) else None

    def left_out_changes(self, published: Head | System, client: ClientSide) -> tuple[Array, Array] | None:
        """Return the changes of the head's scores from leaving each sample out of its class's mean."""
        return None if isinstance(published, System) else published.changes_for(client.x, client.y)

    # client
    @step
    def personalize(self, client: ClientSide, published: Head | System) -> None:
        """Keep Bayes' rule with the client's own frequencies, and its own regressions if they are worth it."""
        if isinstance(published, System):
            FedHiP(alone=self.refine).personalize(client, published)
            return
        expected, member = OVERCONFIDENT, client.member
        x, y = client.x_blocks, client.y_blocks
        made = personal_model(published, x, y, temperature=expected, member=member, refine=self.refine)
        client.keep(made.model, share=made.of_head)

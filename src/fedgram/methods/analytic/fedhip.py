"""FedHiP: heterogeneity-invariant personalized federated learning, in closed form."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedgram.core.arrays import Blocks
from fedgram.core.errors import NotMoments
from fedgram.core.schema import NotNegative
from fedgram.heads import adapt
from fedgram.heads.least_squares import EXPECTED, calibrated
from fedgram.heads.likelihood import WORTHWHILE, Labels
from fedgram.heads.system import System
from fedgram.models import LinearModel
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.onemessage import OneMessage
from fedgram.protocol.pool import Pool
from fedgram.protocol.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class FedHiP(OneMessage):
    """FedHiP — Tang et al. 2025, Algorithm 1: each client's samples count 1 + α times in its own model.

    (1): client k minimises ‖Y − XP‖² + α‖Y_k − X_kP‖² + β‖P‖², the first term over all clients. Its model does not
    depend on how the other data are spread. The paper's α is 10 to 30, its β 0 to 5, both chosen by hand. "auto" takes
    for each client the α of least leave-one-out error on its own samples, exactly and without refitting, and the β of
    least generalised cross-validation error from the pooled moments. Under strong label skew, a ridge regression on
    the own samples alone can be better than any α. So with "auto" a client takes that regression if left-out labels are
    more likely under it (`alone`). Squared error would choose it too often: with many classes it rewards the regression
    for scores of absent classes that are exactly zero.

    The paper has no intercept: `intercept=False`.

    Parameters
    ----------
    alpha : float or "auto"
        The extra weight of a client's own samples in its model, α in (1); "auto" chooses it for each client.
    beta : float or "auto"
        The ridge, β in (1); "auto" chooses it on the pooled moments. It does not shrink an intercept.
    intercept : bool
        Whether models have an intercept, a client's own ones included.
    alone : bool
        Whether a client with `alpha="auto"` may take the regression on its own samples alone.

    """

    revision: ClassVar[int] = 2
    personal = True
    numeric = True

    alpha: NotNegative | Literal["auto"] = "auto"
    beta: NotNegative | Literal["auto"] = "auto"
    intercept: bool = True
    alone: bool = True

    @property
    def shift_invariant(self) -> bool:
        """With an intercept the models are those of the columns less any numbers."""
        return self.intercept

    # phase 1 is OneMessage's: F_kᵀF_k and F_kᵀY_k go up, which (6) and (7) are made of
    # server: phase 2
    def publish(self, pool: Pool) -> System:
        """Factor once: the total is S_K − KβI, and S_K M_K — (9)–(11)."""
        return System.of(pool.total, ridge=self.beta, intercept=self.intercept, targets=pool.targets)

    def reveals(self, published: System) -> str:
        """All of the total: S - βI, and SG."""
        return "Gram matrix and class sums"

    def global_model(self, published: System) -> LinearModel:
        """Return G_K — (12)."""
        return published.model()

    def without(self, published: System, client: ClientSide) -> System | None:
        """Return the system of the other samples."""
        try:
            return published.without(client.x_blocks, client.target_blocks)
        except NotMoments:  # samples that were not in it, as of a corrected table
            return None

    # client: phase 3
    @step
    def personalize(self, client: ClientSide, published: System) -> None:
        """Keep P_k — (13), (14)."""
        x, targets = client.x_blocks, client.target_blocks
        if self.alpha != "auto":
            client.keep(published.emphasize(x, targets, self.alpha))
            return
        model, chosen = published.choose(x, targets, member=client.member)
        if self.alone:
            own = adapt.own_ridge(x, targets, intercept=self.intercept)
            if own is not None and _is_better(own, chosen, client.y_blocks):
                model = client.least_squares(own, intercept=self.intercept)
        client.keep(model)


def _is_better(own: adapt.OwnRidge, shared: adapt.Chosen, labels: Blocks[Labels]) -> bool:
    """Return whether left-out labels are more likely by own samples alone; for numbers, whether errors are smaller."""
    if shared.log_likelihood is None:
        return own.error < shared.error
    return calibrated(own.left_out, labels, EXPECTED).log_likelihood - shared.log_likelihood > WORTHWHILE

"""FedProx: clients are held back from drifting away from the global weights."""

from dataclasses import dataclass

from fedgram.core.schema import NotNegative
from fedgram.methods.gradient.fedavg import FedAvg
from fedgram.nets import Hooks, Now, Tensor, pull
from fedgram.protocol.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedProx — Li et al. 2020, Algorithm 2: FedAvg with (μ/2)‖w - wᵗ‖² added to each client's loss.

    The paper tunes μ for each data set, between 0.001 and 1. With μ = 0 it is FedAvg.

    Parameters
    ----------
    mu
        μ, the strength of the proximal term.

    """

    pulls = ("mu",)

    mu: NotNegative = 0.01

    def hooks(self) -> Hooks:
        """Return the proximal term; clients start at wᵗ."""
        return Hooks(gradient=self._hold)

    def _hold(self, now: Now) -> Tensor:
        return pull(self.mu, now.weights, now.start)

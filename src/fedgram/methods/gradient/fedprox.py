"""FedProx: clients are held back from drifting away from the global weights."""

from dataclasses import dataclass

from fedgram.methods.gradient.fedavg import FedAvg
from fedgram.nets import Hooks, pull
from fedgram.protocol.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedProx — Li et al. 2020, Algorithm 2: FedAvg with (μ/2)‖w - wᵗ‖² added to each client's loss.

    The paper tunes μ for each data set, between 0.001 and 1. With μ = 0 it is FedAvg.
    """

    pulls = ("mu",)

    mu: float = 0.01

    def __post_init__(self) -> None:
        """Refuse a negative μ."""
        super().__post_init__()
        self.check_pulls()

    def hooks(self) -> Hooks:
        """Return the proximal term; clients start at wᵗ."""
        return Hooks(gradient=lambda now: pull(self.mu, now.weights, now.start))

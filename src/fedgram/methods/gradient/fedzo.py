"""FedZO: FedAvg with gradients that are estimated from forward passes."""

from dataclasses import dataclass
from types import MappingProxyType

from fedgram.methods.gradient.fedavg import FedAvg
from fedgram.nets import Hooks
from fedgram.nets.estimates import OnSphere
from fedgram.nets.layers import Vector
from fedgram.protocol.clients import Clients
from fedgram.protocol.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class FedZO(FedAvg):
    """FedZO — Fang et al. 2022, Algorithm 1: local steps along (d/(b₂μ)) Σ [L(w + μv) - L(w)] v, not the gradient.

    The b₂ `directions` v are uniform on the unit sphere of R^d, drawn anew for each step; no back-propagation. The
    estimate is unbiased as μ → 0, and its square is about d/b₂ times that of the gradient: `lr` must be smaller than
    SGD's by as much. The server takes the plain mean of the clients, as the paper does, or with `by_samples` FedAvg's.
    With many directions and a small μ it is FedAvg.
    """

    quick = MappingProxyType({**FedAvg.quick, "rounds": 3, "lr": 0.1})

    local_steps: int | None = 20
    batch: int = 25
    lr: float = 0.001
    momentum: float = 0.0
    directions: int = 20
    mu: float = 0.001
    by_samples: bool = False

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        super().__post_init__()
        self.hooks()

    # server
    def average(self, clients: Clients, global_weights: Vector) -> Vector:
        """Let those who are asked train; return the mean of their weights."""
        mean: Vector = clients.mean(self.train, global_weights, to=self.asked(clients), weighted=self.by_samples)
        return mean

    # client
    def hooks(self) -> Hooks:
        """Return the estimate that takes the gradient's place."""
        return Hooks(estimate=OnSphere(self.directions, self.mu))

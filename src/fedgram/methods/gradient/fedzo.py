"""FedZO: FedAvg with gradients that are estimated from forward passes."""

from dataclasses import dataclass
from types import MappingProxyType

from fedgram.core.schema import BelowOne, Count, Positive
from fedgram.methods.gradient.fedavg import FedAvg
from fedgram.nets import Hooks, Vector
from fedgram.nets.estimates import OnSphere
from fedgram.protocol.clients import Clients
from fedgram.protocol.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class FedZO(FedAvg):
    """FedZO — Fang et al. 2022, Algorithm 1: local steps along (d/(b₂μ)) Σ [L(w + μv) - L(w)] v, not the gradient.

    The b₂ `directions` v are uniform on the unit sphere of R^d, drawn anew for each step; no back-propagation. The
    estimate is unbiased as μ → 0, and its squared norm is about d/b₂ times the gradient's: `lr` must be smaller than
    SGD's by as much. The server takes the plain mean of the clients, as the paper does, or with `by_samples` FedAvg's.
    With many directions and a small μ it is FedAvg.

    Parameters
    ----------
    local_steps
        H, how many estimated steps a client takes in a round.
    batch
        b₁, how many samples an estimate is made with.
    lr
        η, the learning rate.
    momentum
        The momentum of the steps; the paper has none.
    directions
        b₂, how many directions an estimate is made of.
    mu
        μ, how far along each direction the loss is looked at.
    by_samples
        Whether clients weigh by their samples in the mean.

    """

    quick = MappingProxyType({**FedAvg.quick, "rounds": 3, "lr": 0.1})

    local_steps: Count | None = 20
    batch: Count = 25
    lr: Positive = 0.001
    momentum: BelowOne = 0.0
    directions: Count = 20
    mu: Positive = 0.001
    by_samples: bool = False

    # server
    def average(self, clients: Clients, global_weights: Vector) -> Vector:
        """Return the mean of the weights that the asked clients train."""
        mean: Vector = clients.mean(self.train, global_weights, to=self.asked(clients), weighted=self.by_samples)
        return mean

    # client
    def hooks(self) -> Hooks:
        """Return the estimate that takes the gradient's place."""
        return Hooks(estimate=OnSphere(self.directions, self.mu))

"""pFedZO: pFedMe with gradients that are estimated from forward passes."""

from dataclasses import dataclass
from types import MappingProxyType

from fedgram.core.schema import Count, Positive
from fedgram.methods.gradient.pfedme import PFedMe
from fedgram.nets.estimates import OnSphere
from fedgram.protocol.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class PFedZO(PFedMe):
    """pFedZO — Chen et al. 2024: pFedMe, whose inner steps take FedZO's estimate for the gradient of f_k.

    The paper was not at hand: this is what its abstract and FedACnnL say of it. As for FedZO, `lr` must be smaller than
    with gradients. With the exact gradient it is pFedMe.

    Parameters
    ----------
    lr
        The learning rate of the inner steps.
    directions
        b₂, how many directions an estimate is made of.
    mu
        μ, how far along each direction the loss is looked at.

    """

    quick = MappingProxyType({**PFedMe.quick, "local_steps": 5})

    lr: Positive = 0.001
    directions: Count = 20
    mu: Positive = 0.001

    # client
    def estimate(self) -> OnSphere:
        """Return the estimate that takes the gradient's place."""
        return OnSphere(self.directions, self.mu)

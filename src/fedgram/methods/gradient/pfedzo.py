"""pFedZO: pFedMe with gradients that are estimated from forward passes."""

from dataclasses import dataclass
from types import MappingProxyType

from fedgram.methods.gradient.pfedme import PFedMe
from fedgram.nets.estimates import OnSphere
from fedgram.protocol.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class PFedZO(PFedMe):
    """pFedZO — Chen et al. 2024: pFedMe, whose inner steps take FedZO's estimate for the gradient of f_k.

    The paper was not at hand: this is what its abstract and FedACnnL say of it. As for FedZO, `lr` must be smaller than
    with gradients. With the exact gradient it is pFedMe.
    """

    quick = MappingProxyType({**PFedMe.quick, "local_steps": 5})

    lr: float = 0.001
    directions: int = 20
    mu: float = 0.001

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        super().__post_init__()
        self.estimate()

    # client
    def estimate(self) -> OnSphere:
        """Return the estimate that takes the gradient's place."""
        return OnSphere(self.directions, self.mu)

"""FedHiP: heterogeneity-invariant personalized federated learning, in closed form."""

from dataclasses import dataclass
from typing import Literal

from fedgram.errors import InvalidParameter
from fedgram.methods.base import Method, step
from fedgram.methods.clients import Clients
from fedgram.methods.clientside import ClientSide
from fedgram.methods.registry import register
from fedgram.models import LinearModel
from fedgram.moments import Moments
from fedgram.system import System


@register
@dataclass(frozen=True, kw_only=True)
class FedHiP(Method):
    """FedHiP — Tang et al. 2025, Algorithm 1: each client's samples count 1 + α times in its own model.

    (1): client k minimises ‖Y − XP‖² + α‖Y_k − X_kP‖² + β‖P‖², the first term over all clients. Its model does not
    depend on how the other data are spread. The paper's α is 10 to 30, chosen by hand; "auto" takes for each
    client the α of least leave-one-out error on its own samples, exactly and without refitting.
    """

    personal = True

    alpha: float | Literal["auto"] = "auto"
    beta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.beta < float("inf"):
            raise InvalidParameter(f"beta must be a number > 0, got {self.beta}")
        if self.alpha != "auto" and not 0 <= self.alpha < float("inf"):
            raise InvalidParameter(f"alpha must be a number ≥ 0 or 'auto', got {self.alpha}")

    # server: phase 2
    def serve(self, clients: Clients) -> LinearModel:
        """Add the clients' moments, factor once, and let every client personalize."""
        total = clients.sum(self.summarize)  # S_K − KβI, and S_K M_K — (9)–(11)
        world = System.of(total, ridge=self.beta)
        clients.each(self.personalize, world)
        return world.model()  # G_K — (12)

    # client: phases 1 and 3
    @step
    def summarize(self, client: ClientSide) -> Moments:
        """Return F_kᵀF_k and F_kᵀY_k: what (6) and (7) are made of."""
        return client.moments()

    @step
    def personalize(self, client: ClientSide, world: System) -> None:
        """Keep P_k — (13), (14)."""
        client.keep(world.personalize(client.x, client.y, self.alpha))

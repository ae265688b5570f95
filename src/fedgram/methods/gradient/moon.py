"""MOON: a sample's features are drawn to those of the global model, and away from those of the client's last one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedgram.core.errors import InvalidParameter
from fedgram.methods.gradient.fedavg import FedAvg
from fedgram.nets import PLAIN, Hooks, Now
from fedgram.nets.layers import Vector
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import like_payload

if TYPE_CHECKING:
    from torch import Tensor


@register
@dataclass(frozen=True, kw_only=True)
class MOON(FedAvg):
    """MOON — Li, He & Song 2021, (3): FedAvg with a contrast of features added to each client's loss.

    The term is μ · mean(-log(e^{s(z, z_g)/τ} / (e^{s(z, z_g)/τ} + e^{s(z, z_p)/τ}))), with the cosine s, features z of
    the model in training, z_g of the global model that the client was sent, and z_p of the client's own model as its
    last training left it (before the first one: the first weights). The paper tunes μ between 0.1 and 10.

    z is what the last layer sees. The authors put two more layers below it, in all methods that they compare: bring
    such a network for the same. Without layers below the last there is nothing to move, and MOON is FedAvg; as it is
    with μ = 0.
    """

    remembers = True

    mu: float = 1.0
    tau: float = 0.5

    def __post_init__(self) -> None:
        """Refuse a negative μ, and a temperature that nothing can be divided by."""
        super().__post_init__()
        self.check_not_negative("mu")
        if not 0 < self.tau < float("inf"):
            raise InvalidParameter(f"tau must be a number > 0, got {self.tau}")

    @step(batched=True, reply=like_payload)
    def train(self, clients: Sequence[ClientSide], global_weights: Sequence[Vector]) -> list[Vector]:
        """Return the weights after SGD with the contrast; remember them for the next time."""
        net = self.net_of(clients[0])
        carried = {"global": global_weights, "previous": [client.state["own"] for client in clients]}
        moves = self.mu > 0 and net.base.stop > net.buffers
        trained = self.descend(clients, global_weights, Hooks(term=self._contrast, carried=carried) if moves else PLAIN)
        for client, vector in zip(clients, trained, strict=True):
            self.remember(client, vector)
        return trained

    def _contrast(self, now: Now) -> "Tensor":
        """Return μ · softplus((s(z, z_p) - s(z, z_g))/τ), which is the term above: the mean over each batch."""
        from torch.nn.functional import cosine_similarity, softplus

        alike = [cosine_similarity(now.features, now.said_by(name)[0], dim=1) for name in ("previous", "global")]
        each = softplus((alike[0] - alike[1]) / self.tau)
        return self.mu * (each * now.share).sum(1)

"""FedAvg+FT and FedProx+FT: the global model, fine-tuned by every client at the end."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedgram.core.errors import InvalidParameter
from fedgram.methods.gradient.fedavg import FedAvg
from fedgram.methods.gradient.fedprox import FedProx
from fedgram.nets import TrainedNet
from fedgram.nets.layers import Vector
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class FedAvgFT(FedAvg):
    """FedAvg+FT — FedAvg, then each client trains the global model further on its own samples and keeps the result.

    Neither FedHiP nor APFL says how long their +FT trains; `tune_epochs` is ours.
    """

    name = "fedavg+ft"
    personal = True

    tune_epochs: int = 5

    def __post_init__(self) -> None:
        """Refuse to tune for less than an epoch."""
        super().__post_init__()
        if self.tune_epochs < 1:
            raise InvalidParameter(f"tune_epochs must be a whole number ≥ 1, got {self.tune_epochs}")

    def serve(self, clients: Clients) -> TrainedNet:
        """Return the global model, once every client has tuned it for itself."""
        model = super().serve(clients)
        clients.each(self.tune, model.vector)
        return model

    @step(batched=True, reply=None)
    def tune(self, clients: Sequence[ClientSide], global_weights: Sequence[Vector]) -> list[None]:
        """Keep the global model, trained further by plain SGD."""
        for client, own in zip(
            clients, self.descend(clients, global_weights, epochs=self.tune_epochs, steps=None), strict=True
        ):
            self.keep(client, own)
        return [None] * len(clients)


@register
@dataclass(frozen=True, kw_only=True)
class FedProxFT(FedAvgFT, FedProx):
    """FedProx+FT — FedProx, then fine-tuned as in FedAvg+FT."""

    name = "fedprox+ft"

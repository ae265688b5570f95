"""FedAvg+FT and FedProx+FT: the global model, fine-tuned by every client at the end."""

from dataclasses import dataclass
from typing import Any

from fedgram.core.schema import Count
from fedgram.methods.gradient.fedavg import FedAvg
from fedgram.methods.gradient.fedprox import FedProx
from fedgram.methods.gradient.gradient_method import Training, training_step
from fedgram.nets import TrainedNet, Vector
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class FedAvgFT(FedAvg):
    """FedAvg+FT — FedAvg, then each client trains the global model further on its own samples and keeps the result.

    Neither FedHiP nor APFL says how long their +FT trains; `tune_epochs` is ours. A schedule of the learning rate ends
    with the rounds: tuning uses the full rate `lr`.

    Parameters
    ----------
    tune_epochs
        The number of epochs for which each client tunes the global model.

    """

    name = "fedavg+ft"
    personal = True

    tune_epochs: Count = 5

    def serve(self, clients: Clients) -> TrainedNet:
        """Return the global model, after every client has tuned a copy for itself."""
        model = super().serve(clients)
        clients.each(self.tune, model.vector)
        return model

    @training_step(reply=None)
    def tune(self, client: ClientSide, global_weights: Vector) -> Training[None]:
        """Keep the global model, trained further by plain SGD."""
        tuned: dict[str, Any] = {"lr": self.lr, "epochs": self.tune_epochs, "steps": None}
        self.keep(client, (yield from self.descend(client, global_weights, **tuned)))


@register
@dataclass(frozen=True, kw_only=True)
class FedProxFT(FedAvgFT, FedProx):
    """FedProx+FT — FedProx, then fine-tuned as in FedAvg+FT."""

    name = "fedprox+ft"

"""FedRep: many epochs of the client's own head, then a few of the shared base."""

from dataclasses import dataclass
from typing import Any

from fedgram.core.schema import Count, Natural
from fedgram.methods.gradient.fedper import FedPer
from fedgram.methods.gradient.gradient_method import Training, training_step
from fedgram.nets import Vector
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.registry import register
from fedgram.protocol.replies import like_payload


@register
@dataclass(frozen=True, kw_only=True)
class FedRep(FedPer):
    """FedRep — Collins et al. 2021, Algorithm 1: FedPer whose clients train the head first, and then the base.

    With the base φ that came, the head h_k takes `head_epochs` of SGD; with that head fixed, the base takes `epochs`
    (or `local_steps`). The server takes the plain mean of the bases, as printed, or with `by_samples` FedAvg's. A
    client's model is its head on the base that it trained, as in FedPer; a client that was never asked keeps the shared
    base under the first head.

    Parameters
    ----------
    head_epochs
        τ, how many epochs the head is trained for; with 0 the first heads stay.
    epochs
        Passes over the samples in which the base is trained.
    by_samples
        Whether clients weigh by their samples in the mean of the bases.

    """

    head_epochs: Natural = 10
    epochs: Count = 1
    by_samples: bool = False

    # server
    def share(self, clients: Clients, shared: Vector) -> Vector:
        """Return the mean of the bases that the asked clients train."""
        mean: Vector = clients.mean(self.train, shared, to=self.asked(clients), weighted=self.by_samples)
        return mean

    # client
    @training_step(reply=like_payload)
    def train(self, client: ClientSide, shared: Vector) -> Training[Vector]:
        """Return the base after SGD of the head, then of the base; the head stays here."""
        start = self.completed(client, shared)
        base, head = self.halves(self.net_of(client))
        if self.head_epochs:
            # Random numbers of its own, so that the base's training shuffles as FedPer's does.
            often: dict[str, Any] = {"rng": client.rng.spawn(1)[0], "epochs": self.head_epochs, "steps": None}
            start = yield from self.descend(client, start, only=head, **often)
        own = yield from self.descend(client, start, only=base)
        self.take(client, own)
        return own[: len(shared)]

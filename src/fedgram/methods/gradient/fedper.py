"""FedPer: the base is shared, each client's head is its own."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedgram.methods.gradient.base import GradientMethod
from fedgram.nets.layers import Vector
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import like_payload


@register
@dataclass(frozen=True, kw_only=True)
class FedPer(GradientMethod):
    """FedPer — Arivazhagan et al. 2019: FedAvg on all layers but the last, which stays at the client.

    A client's model is what it trained last: its base before averaging, with its own head. A client that was never
    asked keeps the shared base under the first head.
    """

    personal = True
    remembers = True
    judged_by_own = True
    needs_base = True

    # server
    def serve(self, clients: Clients) -> None:
        """Let every client end with a network of its own."""
        net, first = self.begin(clients)
        self.check_base(net)
        shared = first[net.base]
        for number in clients.rounds_of(self.rounds):
            shared = self.share(clients, shared)
            clients.report(number)
        self.give_to_the_unasked(clients, shared)

    def share(self, clients: Clients, shared: Vector) -> Vector:
        """Let those who are asked train; return the mean of their bases."""
        mean: Vector = clients.mean(self.train, shared, to=self.asked(clients))
        return mean

    # client
    @step(batched=True, reply=like_payload)
    def train(self, clients: Sequence[ClientSide], shared: Sequence[Vector]) -> list[Vector]:
        """Return the base after local SGD; the head stays here."""
        trained = self.descend(clients, list(map(self.completed, clients, shared)))
        for client, own in zip(clients, trained, strict=True):
            self.take(client, own)
        return [own[: len(base)] for own, base in zip(trained, shared, strict=True)]

    @step
    def adopt(self, client: ClientSide, global_weights: Vector) -> None:
        """Keep the shared base with the client's own head."""
        self.keep(client, self.completed(client, global_weights))

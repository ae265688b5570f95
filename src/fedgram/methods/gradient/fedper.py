"""FedPer: the base is shared, each client's head is its own."""

from dataclasses import dataclass

from fedgram.methods.gradient.gradient_method import Averaging, OwnModels, Training, training_step
from fedgram.nets import Vector
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import like_payload


@dataclass(frozen=True, kw_only=True)
class PrivateHead(OwnModels):
    """Base of methods whose clients share all layers but the last, which is each client's own."""

    needs_base = True

    # client
    @training_step(reply=like_payload)
    def train(self, client: ClientSide, shared: Vector) -> Training[Vector]:
        """Return the base after local SGD; the head stays here."""
        own = yield from self.descend(client, self.completed(client, shared))
        self.take(client, own)
        return own[: len(shared)]

    @step
    def adopt(self, client: ClientSide, global_weights: Vector) -> None:
        """Keep the shared base with the client's own head."""
        self.keep(client, self.completed(client, global_weights))


@register
@dataclass(frozen=True, kw_only=True)
class FedPer(PrivateHead, Averaging):
    """FedPer — Arivazhagan et al. 2019: FedAvg on all layers but the last, which stays at the client.

    A client's model is what it trained last: its base before averaging, with its own head. A client that was never
    asked keeps the shared base under the first head.
    """

    adds = True

    # server
    def serve(self, clients: Clients) -> None:
        """Let every client end with a network of its own."""
        net, first = self.begin(clients)
        self.check_base(net)
        shared = self.averaged(clients, net, first[net.base])
        for number in clients.rounds_of(self.rounds):
            shared.move(self.share(clients, shared.weights))
            clients.report(number)
        self.give_to_the_unasked(clients, shared.weights)

    def share(self, clients: Clients, shared: Vector) -> Vector:
        """Return the mean of the bases that the asked clients train."""
        mean: Vector = clients.mean(self.train, shared, to=self.asked(clients))
        return mean

"""Training alone by gradients: what gradient methods that share something have to beat."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedgram.methods.gradient.base import GradientMethod
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class Alone(GradientMethod):
    """Alone — each client trains by itself, round after round, and sends nothing; there is no global model.

    All begin with the same weights. Many methods are this when what they share is switched off.
    """

    personal = True
    remembers = True
    judged_by_own = True

    # server
    def serve(self, clients: Clients) -> None:
        """Let every client end with a network of its own."""
        self.begin(clients)
        for number in clients.rounds_of(self.rounds):
            for _ in clients.call(self.train, to=self.asked(clients)):
                pass
            clients.report(number)

    # client
    @step(batched=True, reply=None)
    def train(self, clients: Sequence[ClientSide]) -> list[None]:
        """Keep the weights after SGD from where the client was."""
        trained = self.descend(clients, [client.state["own"] for client in clients])
        for client, own in zip(clients, trained, strict=True):
            self.take(client, own)
        return [None] * len(clients)

"""Training alone by gradients: the baseline for gradient methods that share something."""

from dataclasses import dataclass

from fedgram.methods.gradient.gradient_method import OwnModels, Training, training_step
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class Alone(OwnModels):
    """Alone — each client trains by itself, round after round, and sends nothing; there is no global model.

    All begin with the same weights. Many methods equal it when their sharing is switched off.
    """

    adds = True

    # server
    def serve(self, clients: Clients) -> None:
        """Let every client end with a network of its own."""
        self.begin(clients)
        for number in clients.rounds_of(self.rounds):
            for _ in clients.call(self.train, to=self.asked(clients)):
                pass
            clients.report(number)

    # client
    @training_step(reply=None)
    def train(self, client: ClientSide) -> Training[None]:
        """Keep the weights after SGD from the client's present weights."""
        self.take(client, (yield from self.descend(client, client.state["own"])))

"""FedBABU: the base is trained under a head that never changes; clients fine-tune at the end."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedgram.core.schema import Natural
from fedgram.methods.gradient.gradient_method import Averaging, Training, training_step
from fedgram.nets import TrainedNet, Vector
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.registry import register
from fedgram.protocol.replies import like_payload


@register
@dataclass(frozen=True, kw_only=True)
class FedBABU(Averaging):
    """FedBABU — Oh, Kim and Yun 2022, Algorithm 1: FedAvg of the base alone, under the random head that all begin with.

    Clients train and send all layers but the last. The last layer keeps its initial weights at every client and in the
    global model. At the end each client trains the global model for `tune_epochs` and keeps the result.

    Parameters
    ----------
    tune_epochs
        τ, how many epochs a client fine-tunes for; with 0 clients keep the global model.
    tune
        What is fine-tuned: all layers, the head, or the base; the paper compares the three.

    """

    adds = True
    personal = True
    remembers = True
    needs_base = True

    tune_epochs: Natural = 5
    tune: Literal["all", "head", "base"] = "all"

    # server
    def serve(self, clients: Clients) -> TrainedNet:
        """Return the global model, once every client has tuned it for itself."""
        net, first = self.begin(clients)
        self.check_base(net)
        shared = self.averaged(clients, net, first[net.base])
        for number in clients.rounds_of(self.rounds):
            shared.move(clients.mean(self.train, shared.weights, to=self.asked(clients)))
            clients.report(number, self.model(clients, np.append(shared.weights, first[net.head])))
        clients.each(self.finish, shared.weights)
        return self.model(clients, np.append(shared.weights, first[net.head]))

    # client
    @training_step(reply=like_payload)
    def train(self, client: ClientSide, shared: Vector) -> Training[Vector]:
        """Return the base after local SGD under the first head."""
        base, _ = self.halves(self.net_of(client))
        return (yield from self.descend(client, self.completed(client, shared), only=base))[: len(shared)]

    @training_step(reply=None)
    def finish(self, client: ClientSide, shared: Vector) -> Training[None]:
        """Keep the global model, fine-tuned."""
        base, head = self.halves(self.net_of(client))
        tuned, only = self.completed(client, shared), {"all": None, "head": head, "base": base}[self.tune]
        if self.tune_epochs:
            often: dict[str, Any] = {"lr": self.lr, "epochs": self.tune_epochs, "steps": None}
            tuned = yield from self.descend(client, tuned, only=only, **often)
        self.keep(client, tuned)

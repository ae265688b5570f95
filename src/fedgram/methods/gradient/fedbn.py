"""FedBN: batch normalisation stays at the client, all else is averaged."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.methods.gradient.gradient_method import Averaged, Averaging, Training, training_step
from fedgram.models import Model
from fedgram.nets import TrainedNet, Vector
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import like_payload


@register
@dataclass(frozen=True, kw_only=True)
class FedBN(Averaging):
    """FedBN — Li et al. 2021, Algorithm 1: FedAvg that leaves batch normalisation at the clients.

    Its scales, shifts, running means and variances are each client's own; other kinds of normalisation are shared.
    The server takes the plain mean, as printed, or with `by_samples` FedAvg's. A client's model is the averaged one
    with its own normalisation, and there is no global model. Without batch normalisation in the network (of the
    built-in ones only "cnn" has it) it is FedAvg, with equal weights.

    Parameters
    ----------
    by_samples
        Whether clients weigh by their samples in the mean.

    """

    adds = True
    personal = True
    remembers = True

    by_samples: bool = False

    # server
    def serve(self, clients: Clients) -> None:
        """Let every client end with the averaged model under its own normalisation."""
        net, first = self.begin(clients)
        shared = Averaged(first[~net.norms], int((~net.norms[: net.buffers]).sum()), self._server)
        for number in clients.rounds_of(self.rounds):
            mean = clients.mean(self.train, shared.weights, to=self.asked(clients), weighted=self.by_samples)
            shared.move(mean)
            whole = np.array(first)
            whole[~net.norms] = shared.weights
            clients.report(number, self.model(clients, whole))
        clients.each(self.adopt, shared.weights)

    # client
    @training_step(reply=like_payload)
    def train(self, client: ClientSide, shared: Vector) -> Training[Vector]:
        """Return all but batch normalisation after local SGD, and remember that."""
        own = yield from self.descend(client, self._normalised(client, shared))
        self.remember(client, own)
        return own[~self.net_of(client).norms]

    @step
    def adopt(self, client: ClientSide, global_weights: Vector) -> None:
        """Keep the averaged model with the client's own normalisation."""
        self.keep(client, self._normalised(client, global_weights))

    @step
    def evaluate(self, client: ClientSide, model: Model | None = None) -> Any:
        """Judge the averaged model with the client's own normalisation."""
        if isinstance(model, TrainedNet):
            model = self.own_model(client, self._normalised(client, model.vector[~model.net.norms]))
        return super().evaluate(client, model)

    def _normalised(self, client: ClientSide, shared: Vector) -> Vector:
        """Return the whole vector: the shared part, and the client's own batch normalisation."""
        whole = np.array(client.state["own"])
        whole[~self.net_of(client).norms] = shared
        return whole

"""FedAvg: clients train, the server averages."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedgram.methods.gradient.base import GradientMethod
from fedgram.nets import PLAIN, Hooks, TrainedNet
from fedgram.nets.layers import Vector
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import like_payload


@register
@dataclass(frozen=True, kw_only=True)
class FedAvg(GradientMethod):
    """FedAvg — McMahan et al. 2017, Algorithm 1: local SGD from the global weights, then their mean by samples.

    >>> import fedgram as fg
    >>> data = fg.data.digits()
    >>> parts = fg.partition.dirichlet(data.y, clients=6, alpha=1.0, seed=0)
    >>> clients = fg.make_clients(data, parts)
    >>> fit = fg.FedAvg(rounds=2).fit(clients, classes=10)
    >>> fit.model.weights.shape, len(fit.rounds)
    ((64, 10), 2)
    """

    # server
    def serve(self, clients: Clients) -> TrainedNet:
        """Return the global model of the last round."""
        _, global_weights = self.begin(clients)
        for number in clients.rounds_of(self.rounds):
            global_weights = self.average(clients, global_weights)
            clients.report(number, None if self.judged_by_own else self.model(clients, global_weights))
        if self.judged_by_own:
            self.give_to_the_unasked(clients, global_weights)
        return self.model(clients, global_weights)

    def average(self, clients: Clients, global_weights: Vector) -> Vector:
        """Let those who are asked train; return the mean of their weights, by samples."""
        mean: Vector = clients.mean(self.train, global_weights, to=self.asked(clients))
        return mean

    # client
    @step(batched=True, reply=like_payload)
    def train(self, clients: Sequence[ClientSide], global_weights: Sequence[Vector]) -> list[Vector]:
        """Return the weights after local SGD."""
        return self.descend(clients, global_weights, self.hooks())

    def hooks(self) -> Hooks:
        """Return what a method that averages in the same way adds to its clients' loss."""
        return PLAIN

"""FedAvg: clients train, the server averages."""

from dataclasses import dataclass

from fedgram.methods.gradient.gradient_method import Averaging, Training, training_step
from fedgram.nets import PLAIN, Hooks, TrainedNet, Vector
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.registry import register
from fedgram.protocol.replies import like_payload


@register
@dataclass(frozen=True, kw_only=True)
class FedAvg(Averaging):
    """FedAvg — McMahan et al. 2017, Algorithm 1: local SGD from the global weights, then their mean by samples.

    >>> import fedgram as fg
    >>> data = fg.data.digits()
    >>> parts = fg.partition.dirichlet(data.y, clients=6, alpha=1.0, seed=0)
    >>> clients = fg.make_clients(data, parts)
    >>> fit = fg.FedAvg(rounds=2).fit(clients, classes=10)
    >>> fit.model.weights.shape, len(fit.rounds)
    ((64, 10), 2)
    """

    adds = True

    # server
    def serve(self, clients: Clients) -> TrainedNet:
        """Return the global model of the last round."""
        world = self.averaged(clients, *self.begin(clients))
        for number in clients.rounds_of(self.rounds, first=world.rounds):
            world.move(self.average(clients, world.weights))
            clients.report(number, None if self.judged_by_own else self.model(clients, world.weights))
            self.save(clients, world)
        if self.judged_by_own:
            self.give_to_the_unasked(clients, world.weights)
        return self.model(clients, world.weights)

    def average(self, clients: Clients, global_weights: Vector) -> Vector:
        """Return the mean of the weights that the asked clients train, by samples."""
        mean: Vector = clients.mean(self.train, global_weights, to=self.asked(clients))
        return mean

    # client
    @training_step(reply=like_payload)
    def train(self, client: ClientSide, global_weights: Vector) -> Training[Vector]:
        """Return the weights after local SGD."""
        return (yield from self.descend(client, global_weights, self.hooks()))

    def hooks(self) -> Hooks:
        """Return the hooks of the clients' training; methods that average in the same way add their own."""
        return PLAIN

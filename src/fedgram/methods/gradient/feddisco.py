"""FedDisco: clients whose classes are spread unevenly weigh less in the mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedgram.core.schema import NotNegative
from fedgram.methods.gradient.fedavg import FedAvg
from fedgram.nets import TrainedNet
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import LabelCounts, Number

Counts = npt.NDArray[np.int64]
NEARLY_NOTHING = 1e-12


@register
@dataclass(frozen=True, kw_only=True)
class FedDisco(FedAvg):
    """FedDisco — Ye et al. 2023, (4): FedAvg with the weights relu(n_k/Σn - a d_k + b), scaled to a sum of 1.

    d_k is the Kullback-Leibler divergence of the client's label frequencies from `target`, divided by the sum of those
    of all participating clients, as in the authors' program. "uniform" frequencies need one number of each client,
    once; "pooled" ones need its label counts. If no weight is positive, those of FedAvg are taken. n_k/Σn and d_k are
    about 1/K for K clients, so with many of them b = 0.1 makes all weights nearly equal: that is the paper's setting.
    With a = b = 0 it is FedAvg.

    Parameters
    ----------
    a
        a, the factor of the divergence that is subtracted from a client's weight.
    b
        b, the number that is added to every weight.
    target
        T, the label frequencies that a client's are compared with: even ones, or those of all clients together.

    """

    adds = False

    a: NotNegative = 0.5
    b: NotNegative = 0.1
    target: Literal["uniform", "pooled"] = "uniform"

    # server
    def serve(self, clients: Clients) -> TrainedNet:
        """Return the global model of the last round."""
        net, first = self.begin(clients)
        away = self._away(clients)
        world = self.averaged(clients, net, first)
        for number in clients.rounds_of(self.rounds, first=world.rounds):
            chosen = self.asked(clients)
            weights = self.weights(chosen, clients.samples, away)
            world.move(clients.mean(self.train, world.weights, to=chosen, weights=weights))
            clients.report(number, self.model(clients, world.weights))
            self.save(clients, world)
        return self.model(clients, world.weights)

    def _away(self, clients: Clients) -> dict[str, float]:
        """Return the divergence of each client's label frequencies from the target."""
        if self.target == "uniform":
            return dict(clients.ask(self.differ))
        counts = dict(clients.ask(self.count))
        pooled = np.sum(list(counts.values()), axis=0)
        return {name: divergence(own, pooled) for name, own in counts.items()}

    def weights(self, chosen: Sequence[str], samples: Mapping[str, int], away: Mapping[str, float]) -> dict[str, float]:
        """Return the participating clients' weights, times their sum of samples: exactly FedAvg's with a = b = 0."""
        total, apart = sum(samples[name] for name in chosen), sum(away[name] for name in sorted(chosen)) or 1.0
        found = {name: samples[name] + total * (self.b - self.a * away[name] / apart) for name in chosen}
        # A tiny weight in place of 0: if only such clients reply, they are averaged by samples, as in FedAvg.
        return {name: max(weight, NEARLY_NOTHING * samples[name]) for name, weight in found.items()}

    # client
    # Rounding may take the divergence of a single class a little beyond log c.
    @step(reply=lambda _, question: Number(0, log(len(question.classes)) + 1e-9))
    def differ(self, client: ClientSide) -> float:
        """Return the divergence of the label frequencies from uniform ones."""
        return divergence(self.count(client), np.ones(len(client.classes), dtype=np.int64))

    @step(reply=LabelCounts())
    def count(self, client: ClientSide) -> Counts:
        """Return the client's number of samples of each class."""
        return np.bincount(client.y, minlength=len(client.classes))


def divergence(own: Counts, target: npt.NDArray[Any]) -> float:
    """Return KL(π ‖ T) of the frequencies that two arrays of counts stand for.

    >>> divergence(np.array([5, 5, 0]), np.array([1, 1, 2])) == log(2)
    True
    """
    mine = own > 0
    share = own[mine] / own.sum()
    return max(float(share @ np.log(share * target.sum() / target[mine])), 0.0)

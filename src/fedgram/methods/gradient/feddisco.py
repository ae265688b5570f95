"""FedDisco: clients whose classes are spread unevenly weigh less in the mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

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
    """FedDisco — Ye et al. 2023, (4): FedAvg whose mean has weights relu(n_k/Σn - a d_k + b), by their sum.

    d_k is the Kullback-Leibler divergence of the client's label frequencies from `target`, divided by the sum of those
    of all who take part, as in the authors' program. "uniform" frequencies need one number of each client, once;
    "pooled" ones need its label counts. If no weight is positive, those of FedAvg are taken. n_k/Σn and d_k are about
    1/K for K clients, so with many of them b = 0.1 makes all weights nearly equal: that is the paper's. With
    a = b = 0 it is FedAvg.
    """

    a: float = 0.5
    b: float = 0.1
    target: Literal["uniform", "pooled"] = "uniform"

    def __post_init__(self) -> None:
        """Refuse negative a and b."""
        super().__post_init__()
        self.check_not_negative("a", "b")

    # server
    def serve(self, clients: Clients) -> TrainedNet:
        """Return the global model of the last round."""
        _, global_weights = self.begin(clients)
        away = self._away(clients)
        for number in clients.rounds_of(self.rounds):
            chosen = self.asked(clients)
            weights = self.weights(chosen, clients.samples, away)
            global_weights = clients.mean(self.train, global_weights, to=chosen, weights=weights)
            clients.report(number, self.model(clients, global_weights))
        return self.model(clients, global_weights)

    def _away(self, clients: Clients) -> dict[str, float]:
        """Return by client how far its label frequencies are from the target."""
        if self.target == "uniform":
            return dict(clients.ask(self.differ))
        counts = dict(clients.ask(self.count))
        pooled = np.sum(list(counts.values()), axis=0)
        return {name: divergence(own, pooled) for name, own in counts.items()}

    def weights(self, chosen: Sequence[str], samples: Mapping[str, int], away: Mapping[str, float]) -> dict[str, float]:
        """Return the weights of those who take part, times the number of their samples: FedAvg's exactly if off."""
        total, apart = sum(samples[name] for name in chosen), sum(away[name] for name in sorted(chosen)) or 1.0
        found = {name: samples[name] + total * (self.b - self.a * away[name] / apart) for name in chosen}
        # Next to nothing instead of nothing: it counts where only such clients reply, by samples then, as in FedAvg.
        return {name: max(weight, NEARLY_NOTHING * samples[name]) for name, weight in found.items()}

    # client
    # Rounding may take the divergence of a single class a little beyond log c.
    @step(reply=lambda _, question: Number(0, log(len(question.classes)) + 1e-9))
    def differ(self, client: ClientSide) -> float:
        """Return how far the label frequencies are from uniform ones."""
        return divergence(self.count(client), np.ones(len(client.classes), dtype=np.int64))

    @step(reply=LabelCounts())
    def count(self, client: ClientSide) -> Counts:
        """Return how many samples of each class there are."""
        return np.bincount(client.y, minlength=len(client.classes))


def divergence(own: Counts, target: npt.NDArray[Any]) -> float:
    """Return KL(π ‖ T) of the frequencies that two arrays of counts stand for.

    >>> divergence(np.array([5, 5, 0]), np.array([1, 1, 2])) == log(2)
    True
    """
    mine = own > 0
    share = own[mine] / own.sum()
    return max(float(share @ np.log(share * target.sum() / target[mine])), 0.0)

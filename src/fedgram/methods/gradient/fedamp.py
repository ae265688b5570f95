"""FedAMP: clients with similar weights attract each other."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.schema import NotNegative, Positive
from fedgram.methods.gradient.gradient_method import OwnModels, Training, training_step
from fedgram.nets import Hooks, Now, Tensor, Vector, pull
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.registry import register
from fedgram.protocol.replies import learnt

DECAY, EVERY = 0.1, 30


@register
@dataclass(frozen=True, kw_only=True)
class FedAMP(OwnModels):
    """FedAMP — Huang et al. 2021, Algorithm 1: a cloud model u_i = Σ_j ξ_ij w_j for each client, near which it trains.

    ξ_ij = α_t A'(‖w_i - w_j‖²) with A'(x) = e^(-x/σ)/σ; the client's own weight ξ_ii makes the sum 1. α_t falls to a
    tenth every 30 rounds, but not below λ times the learning rate, where SGD would overshoot. It is also kept so small
    that no client's own weight is negative. A client trains from u_i, with (λ/2α_t)‖w - u_i‖² added to its loss. With
    `alpha` tiny each client trains alone.

    Parameters
    ----------
    alpha
        α, the step size of the attraction, which falls to a tenth every 30 rounds.
    sigma
        σ, the squared distance at which attraction fades.
    lam
        λ, how strongly clients are drawn to their cloud models.

    """

    alpha: Positive = 1e4
    sigma: Positive = 1e6
    lam: NotNegative = 1.0

    # server
    def serve(self, clients: Clients) -> None:
        """Let every client end with a model of its own."""
        net, first = self.begin(clients)
        own = dict.fromkeys(clients.names, first)
        for number in clients.rounds_of(self.rounds):
            names = [name for name in own if name in clients.names]
            vectors = np.stack([own[name] for name in names]).astype(np.float64)
            alpha = self._alpha(number, len(names))
            cloud = (self.attention(vectors[:, net.buffers :], alpha) @ vectors).astype(np.float32)
            places = {name: place for place, name in enumerate(names)}
            tasks = {name: {"cloud": cloud[places[name]], "pull": self.lam / alpha} for name in self.asked(clients)}
            own.update(clients.call(self.train, per_client=tasks))
            clients.report(number)

    def _alpha(self, number: int, clients: int) -> float:
        falling = min(self.alpha * DECAY ** (number // EVERY), self.sigma / max(clients - 1, 1))
        return max(falling, self.lam * self.lr)

    def attention(self, vectors: Array, alpha: float) -> Array:
        """Return ξ (clients, clients): each row sums to 1."""
        squares = np.square(vectors).sum(axis=1)
        distances = np.maximum(squares[:, None] + squares - 2 * vectors @ vectors.T, 0)
        shares: Array = alpha * np.exp(-distances / self.sigma) / self.sigma
        np.fill_diagonal(shares, 0)
        np.fill_diagonal(shares, 1 - shares.sum(axis=1))
        return shares

    # client
    @training_step(reply=lambda _, question: learnt(question.payload["cloud"]))
    def train(self, client: ClientSide, task: dict[str, Any]) -> Training[Vector]:
        """Return the weights after SGD near the cloud model; keep them, too."""
        hooks = Hooks(gradient=_draw, shared=float(task["pull"]))
        own = yield from self.descend(client, task["cloud"], hooks)
        self.take(client, own)
        return own


def _draw(now: Now) -> Tensor:
    return pull(now.shared, now.weights, now.start)

"""FedAMP: clients with similar weights attract each other."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidParameter
from fedgram.methods.gradient.base import GradientMethod
from fedgram.nets import Hooks, pull
from fedgram.nets.layers import Vector
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import learnt

DECAY, EVERY = 0.1, 30


@register
@dataclass(frozen=True, kw_only=True)
class FedAMP(GradientMethod):
    """FedAMP — Huang et al. 2021, Algorithm 1: a cloud model u_i = Σ_j ξ_ij w_j for each client, near which it trains.

    ξ_ij = α_t A'(‖w_i - w_j‖²) with A'(x) = e^(-x/σ)/σ, the rest of 1 is the client's own; α_t falls to a tenth
    every 30 rounds, not below λ times the learning rate, where SGD would overshoot, and is held so small that no
    client's own share is negative. A client trains from u_i, with (λ/2α_t)‖w - u_i‖² added to its loss. With
    `alpha` tiny each client trains alone.
    """

    personal = True
    remembers = True
    judged_by_own = True

    alpha: float = 1e4
    sigma: float = 1e6
    lam: float = 1.0

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        super().__post_init__()
        self.check_not_negative("lam")
        for name in ("alpha", "sigma"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InvalidParameter(f"{name} must be a number > 0, got {getattr(self, name)}")

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
    @step(batched=True, reply=lambda _, question: learnt(question.payload["cloud"]))
    def train(self, clients: Sequence[ClientSide], tasks: Sequence[dict[str, Vector]]) -> list[Vector]:
        """Return the weights after SGD near the cloud model; keep them, too."""
        strength = float(tasks[0]["pull"])
        hooks = Hooks(gradient=lambda now: pull(strength, now.weights, now.start))
        trained = self.descend(clients, [task["cloud"] for task in tasks], hooks)
        for client, own in zip(clients, trained, strict=True):
            self.take(client, own)
        return trained

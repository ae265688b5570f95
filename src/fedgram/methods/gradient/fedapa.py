"""FedAPA: the server learns for each client how much of every client's base to mix in."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidParameter
from fedgram.methods.gradient.base import GradientMethod
from fedgram.nets.layers import Vector
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import like_payload


@register
@dataclass(frozen=True, kw_only=True)
class FedAPA(GradientMethod):
    """FedAPA — Sun et al. 2025, Algorithm 1: the server learns how much each client should take of every other.

    The weights A_i descend on ½‖θ_i - θ̄_i‖², how far a client goes from what it was given.

    A client trains the mixture θ̄_i = Σ_j a_ij θ_j of all bases with its own head, which is never sent. What it
    changes, Δ, moves its weights. (7) is printed with the wrong sign; the gradient of the proxy loss is -⟨θ_j, Δ⟩,
    and the authors' program descends, too. Clip to [0, 1], self weight μ and normalisation are the paper's (the
    program sets the self weight to 1, with momentum at the server, and takes clients one after another).
    `partial=False` shares the head as well. The result holds the weights: fit.notes["aggregation weights"], a row
    for each client.
    """

    personal = True
    remembers = True
    judged_by_own = True
    needs_base = True

    participation: float = 0.6
    eta: float = 0.01
    mu: float = 0.5
    clip: bool = True
    self_weight: bool = True
    normalize: bool = True
    partial: bool = True

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        super().__post_init__()
        self.check_not_negative("eta")
        if not 0 <= self.mu <= 1:
            raise InvalidParameter(f"mu must be from 0 to 1, got {self.mu}")

    # server
    def serve(self, clients: Clients) -> None:
        """Let every client end with a model of its own."""
        net, first = self.begin(clients)
        if self.partial:
            self.check_base(net)
        shared = net.base if self.partial else slice(0, net.size)
        places = {name: i for i, name in enumerate(clients.names)}
        bases = np.tile(first[shared].astype(np.float64), (len(places), 1))  # Θ
        weights = np.eye(len(places))  # A
        for number in clients.rounds_of(self.rounds):
            chosen = self.asked(clients)
            here = [places[name] for name in clients.names]  # those that were lost are nobody's any more
            mixed = {name: self._mix(weights[places[name]][here], bases[here]) for name in chosen}  # θ̄_i — (5)
            before = bases[:, net.buffers :].copy()
            for name, trained in clients.call(self.train, per_client=mixed):
                i = places[name]
                bases[i] = trained
                change = (trained.astype(np.float64) - mixed[name])[net.buffers :]  # Δθ_i — (6)
                weights[i] = self.adjust(weights[i] + self.eta * before @ change, i)  # (7), downhill
            clients.report(number)
        clients.note("aggregation weights", weights)

    def _mix(self, weights: Array, bases: Array) -> Vector:
        total = weights.sum()
        return (weights @ bases / (total if self.normalize and total > 0 else 1)).astype(np.float32)

    def adjust(self, weights: Array, i: int) -> Array:
        """Return a client's weights after clipping, self weight and normalisation: lines 11 to 13."""
        if self.clip:
            weights = weights.clip(0, 1)
        if self.self_weight:
            weights[i] = self.mu
        total = weights.sum()
        if not self.normalize:
            return weights
        # With μ = 0 and all others clipped, nobody is left but the client itself.
        return np.asarray(weights / total if total > 0 else np.eye(len(weights))[i])

    # client
    @step(batched=True, reply=like_payload)
    def train(self, clients: Sequence[ClientSide], mixtures: Sequence[Vector]) -> list[Vector]:
        """Return the base after local SGD; the head stays here."""
        trained = self.descend(clients, list(map(self.completed, clients, mixtures)))
        for client, own in zip(clients, trained, strict=True):
            self.take(client, own)
        return [own[: len(mixed)] for own, mixed in zip(trained, mixtures, strict=True)]

"""FedAPA: the server learns for each client how much of every client's base to mix in."""

from dataclasses import dataclass

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.schema import NotNegative, PositiveShare, Share
from fedgram.methods.gradient.gradient_method import OwnModels, Training, training_step
from fedgram.nets import Vector
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.registry import register
from fedgram.protocol.replies import like_payload


@register
@dataclass(frozen=True, kw_only=True)
class FedAPA(OwnModels):
    """FedAPA — Sun et al. 2025, Algorithm 1: the server learns how much each client should take of every other.

    The weights A_i descend on ½‖θ_i - θ̄_i‖², half the squared distance that a client moves away from its mixture.

    A client trains the mixture θ̄_i = Σ_j a_ij θ_j of all bases with its own head, which is never sent. Its
    change Δ moves its weights, by (7). (7) is printed with the wrong sign; the gradient of the proxy loss is -⟨θ_j, Δ⟩,
    and the authors' program descends, too. Clip to [0, 1], self weight μ and normalisation are the paper's (the
    program sets the self weight to 1, with momentum at the server, and takes clients one after another).
    `partial=False` shares the head as well. The result holds the weights: fit.notes["aggregation weights"], a row
    for each client.

    Parameters
    ----------
    participation
        C, the share of the clients that is asked in each round.
    eta
        η, the learning rate of the aggregation weights.
    mu
        μ, a client's weight of its own base.
    clip
        Whether weights are clipped to [0, 1]: line 11.
    self_weight
        Whether a client's own weight is set to μ: line 12.
    normalize
        Whether weights are scaled to a sum of 1: line 13.
    partial
        Whether the head stays at the client.

    """

    needs_base = True

    participation: PositiveShare = 0.6
    eta: NotNegative = 0.01
    mu: Share = 0.5
    clip: bool = True
    self_weight: bool = True
    normalize: bool = True
    partial: bool = True

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
            here = [places[name] for name in clients.names]  # lost clients have no weight any more
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
        # With μ = 0 and all others clipped, only the client itself is left.
        return np.asarray(weights / total if total > 0 else np.eye(len(weights))[i])

    # client
    @training_step(reply=like_payload)
    def train(self, client: ClientSide, mixture: Vector) -> Training[Vector]:
        """Return the base after local SGD; the head stays here."""
        own = yield from self.descend(client, self.completed(client, mixture))
        self.take(client, own)
        return own[: len(mixture)]

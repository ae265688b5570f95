"""pFedMe: personal models and a global one that is pulled after them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from fedgram.core.errors import InvalidParameter
from fedgram.methods.gradient.base import GradientMethod
from fedgram.nets import Hooks, Now, TrainedNet, pull
from fedgram.nets.layers import Vector
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import like_payload

if TYPE_CHECKING:
    from torch import Tensor


@register
@dataclass(frozen=True, kw_only=True)
class PFedMe(GradientMethod):
    """pFedMe — T. Dinh et al. 2020, Algorithm 1: θ_k = argmin f_k(θ) + (λ/2)‖θ - w_k‖², then w_k ← w_k - ηλ(w_k - θ_k).

    Each of a client's `local_steps` batches is used for `inner` steps of θ (learning rate `lr`), and then one of
    w_k (`eta`). The server mixes the mean of the w_k in by β. θ_k is the client's model. With λ = 0 the global
    model stays where it was and θ_k is local training.
    """

    pulls = ("lam",)

    personal = True
    remembers = True
    judged_by_own = True
    # Its own values are for hundreds of rounds.
    quick = MappingProxyType({**GradientMethod.quick, "rounds": 3, "eta": 0.06})

    momentum: float = 0.0
    local_steps: int | None = 20
    lam: float = 15.0
    inner: int = 5
    eta: float = 0.005
    beta: float = 1.0

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        super().__post_init__()
        self.check_not_negative("eta", "beta")
        self.check_pulls()
        if self.inner < 1:
            raise InvalidParameter(f"inner must be a whole number ≥ 1, got {self.inner}")

    # server
    def serve(self, clients: Clients) -> TrainedNet:
        """Return the global model of the last round."""
        net, global_weights = self.begin(clients)
        for number in clients.rounds_of(self.rounds):
            mean = clients.mean(self.train, global_weights, to=self.asked(clients))
            global_weights = ((1 - self.beta) * global_weights + self.beta * mean).astype(np.float32)
            global_weights[: net.buffers] = mean[: net.buffers]
            clients.report(number)
        self.give_to_the_unasked(clients, global_weights)
        return self.model(clients, global_weights)

    # client
    @step(batched=True, reply=like_payload)
    def train(self, clients: Sequence[ClientSide], global_weights: Sequence[Vector]) -> list[Vector]:
        """Return the client's global weights w_k; keep its personal ones θ_k."""
        hooks = Hooks(
            gradient=lambda now: pull(self.lam, now.weights, now.carried["center"]),
            after=self._follow,
            carried={"center": self.trained_part(clients, global_weights)},
            estimate=self.estimate(),
        )
        personal, carried = self.descend_with(clients, global_weights, hooks, repeat=self.inner)
        buffers = self.net_of(clients[0]).buffers
        for client, own in zip(clients, personal, strict=True):
            self.take(client, own)
        return [
            np.concatenate([own[:buffers], center]) for own, center in zip(personal, carried["center"], strict=True)
        ]

    def estimate(self) -> Callable[[Now], "Tensor"] | None:
        """Return what takes the gradient's place in a method like this one; None is back-propagation."""
        return None

    def _follow(self, now: Now) -> None:
        if now.last_use:
            center = now.carried["center"]
            center.sub_(center - now.weights, alpha=self.eta * self.lam)

"""FedDyn: each client's loss is corrected until all agree where the minimum is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

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
class FedDyn(GradientMethod):
    """FedDyn — Acar et al. 2021, Algorithm 1: each client's loss is corrected by a memory of its own gradient.

    It gets α⟨w, h_k⟩ + (α/2)‖w - wᵗ‖², with a memory h_k at each client.

    h_k adds up w_k - wᵗ, so that -αh_k is the gradient of the client's own loss where it ended. Clients begin the next
    round at the mean of those who took part plus the mean of all h_k. As in the authors' program that mean of the
    participants, not the corrected point, is the model; all clients weigh the same. With α = 0 it is their mean alone,
    FedAvg for clients of one size.
    """

    pulls = ("alpha",)

    alpha: float = 0.01

    def __post_init__(self) -> None:
        """Refuse a negative α."""
        super().__post_init__()
        self.check_pulls()

    # server
    def serve(self, clients: Clients) -> TrainedNet:
        """Return the mean of the last participants."""
        net, global_weights = self.begin(clients)
        memory = np.zeros(len(global_weights))  # the mean of all h_k
        mean = global_weights
        for number in clients.rounds_of(self.rounds):
            chosen = self.asked(clients)
            mean = clients.mean(self.train, global_weights, to=chosen, weighted=False)
            replied = len(set(chosen).intersection(clients.names))
            memory += replied / len(clients.names) * (mean.astype(np.float64) - global_weights)
            memory[: net.buffers] = 0  # no gradient moves them
            global_weights = (mean + memory).astype(np.float32) if self.alpha else mean
            clients.report(number, self.model(clients, mean))
        return self.model(clients, mean)

    # client
    @step(batched=True, reply=like_payload)
    def train(self, clients: Sequence[ClientSide], global_weights: Sequence[Vector]) -> list[Vector]:
        """Return the weights after SGD on the corrected loss, and remember how far they went."""
        starts = self.trained_part(clients, global_weights)
        memories = [client.state.get("h", np.zeros_like(start)) for client, start in zip(clients, starts, strict=True)]
        vectors = self.descend(clients, global_weights, Hooks(gradient=self._correct, carried={"h": memories}))
        ends = self.trained_part(clients, vectors)
        for client, memory, start, end in zip(clients, memories, starts, ends, strict=True):
            client.state["h"] = memory + (end - start)
        return vectors

    def _correct(self, now: Now) -> "Tensor":
        return pull(self.alpha, now.weights, now.start).add_(now.carried["h"], alpha=self.alpha)

"""Ditto: a personal model beside the global one, drawn towards it."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedgram.methods.gradient.fedavg import FedAvg
from fedgram.nets import Hooks, pull
from fedgram.nets.layers import Vector
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import like_payload


@register
@dataclass(frozen=True, kw_only=True)
class Ditto(FedAvg):
    """Ditto — Li et al. 2021, Algorithm 1: FedAvg, and for each client v_k = argmin F_k(v) + (λ/2)‖v - wᵗ‖².

    v_k starts from the common first weights and lasts from round to round; it trains as long as the global model,
    against the wᵗ that the client has just received. With λ = 0 a client trains alone.
    """

    pulls = ("lam",)

    personal = True
    remembers = True
    judged_by_own = True

    lam: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a negative λ."""
        super().__post_init__()
        self.check_pulls()

    @step(batched=True, reply=like_payload)
    def train(self, clients: Sequence[ClientSide], global_weights: Sequence[Vector]) -> list[Vector]:
        """Return the global weights after local SGD; keep the personal ones."""
        trained = super().train(clients, global_weights)
        center = self.trained_part(clients, global_weights)
        towards = Hooks(
            gradient=lambda now: pull(self.lam, now.weights, now.carried["center"]), carried={"center": center}
        )
        starts = [client.state["own"] for client in clients]
        for client, own in zip(clients, self.descend(clients, starts, towards), strict=True):
            self.take(client, own)
        return trained

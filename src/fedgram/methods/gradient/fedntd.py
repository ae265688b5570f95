"""FedNTD: clients keep what the global model says about the classes that a sample does not have."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedgram.core.errors import InvalidParameter
from fedgram.methods.gradient.fedavg import FedAvg
from fedgram.nets import PLAIN, Hooks, Now
from fedgram.nets.layers import Vector
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import like_payload

if TYPE_CHECKING:
    from torch import Tensor

# The score of the class that is left out. Not minus infinity, whose difference with itself is no number.
LEFT_OUT = -1e30


@register
@dataclass(frozen=True, kw_only=True)
class FedNTD(FedAvg):
    """FedNTD — Lee et al. 2022, (4) and (5): FedAvg with β τ² KL(q̃_g ‖ q̃) added to each client's loss.

    q̃ is the softmax of scores/τ over the classes other than the sample's own, q̃_g the same of the global model that
    the client was sent. The true class is free to move, and what is known of the others is not forgotten. With two
    classes there is a single other one and the term is zero. With β = 0 it is FedAvg.
    """

    beta: float = 1.0
    tau: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a negative β, and a temperature that nothing can be divided by."""
        super().__post_init__()
        self.check_not_negative("beta")
        if not 0 < self.tau < float("inf"):
            raise InvalidParameter(f"tau must be a number > 0, got {self.tau}")

    @step(batched=True, reply=like_payload)
    def train(self, clients: Sequence[ClientSide], global_weights: Sequence[Vector]) -> list[Vector]:
        """Return the weights after SGD, with the global model as a teacher of the other classes."""
        on = self.beta > 0 and len(clients[0].classes) > 2
        return self.descend(
            clients, global_weights, Hooks(error=self._distil, carried={"global": global_weights}) if on else PLAIN
        )

    def _distil(self, now: Now) -> "Tensor":
        """Return β τ (q̃ - q̃_g), the gradient of β τ² KL(q̃_g ‖ q̃) by the scores, of the mean over each batch."""
        _, taught = now.said_by("global")
        apart = self._others(now.scores, now.y) - self._others(taught, now.y)
        return apart.mul_((self.beta * self.tau * now.share).unsqueeze(1))

    def _others(self, scores: "Tensor", y: "Tensor") -> "Tensor":
        """Return q̃, with a zero for the sample's own class."""
        return (scores / self.tau).scatter_(1, y.unsqueeze(1), LEFT_OUT).softmax(1)

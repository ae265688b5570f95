"""FedNTD: clients keep what the global model says about the classes that a sample does not have."""

from dataclasses import dataclass

from fedgram.core.schema import NotNegative, Positive
from fedgram.methods.gradient.fedavg import FedAvg
from fedgram.methods.gradient.gradient_method import Training, training_step
from fedgram.nets import Hooks, Now, Tensor, Vector
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.registry import register
from fedgram.protocol.replies import like_payload

# The score of the class that is left out. Not minus infinity, whose difference with itself is not a number.
LEFT_OUT = -1e30


@register
@dataclass(frozen=True, kw_only=True)
class FedNTD(FedAvg):
    """FedNTD — Lee et al. 2022, (4) and (5): FedAvg with β τ² KL(q̃_g ‖ q̃) added to each client's loss.

    q̃ is the softmax of scores/τ over the classes other than the sample's own, q̃_g the same for the global model that
    the client was sent. The true class is free to move, and knowledge of the other classes is kept. With two
    classes there is a single other one and the term is zero. With β = 0 it is FedAvg.

    Parameters
    ----------
    beta
        β, the strength of the distillation.
    tau
        τ, the temperature of the softmax.

    """

    beta: NotNegative = 1.0
    tau: Positive = 1.0

    @training_step(reply=like_payload)
    def train(self, client: ClientSide, global_weights: Vector) -> Training[Vector]:
        """Return the weights after SGD, with the global model as a teacher of the other classes."""
        if self.beta == 0 or len(client.classes) <= 2:
            return (yield from self.descend(client, global_weights))
        hooks = Hooks(error=self._distil)
        return (yield from self.descend(client, global_weights, hooks, carried={"global": global_weights}))

    def _distil(self, now: Now) -> Tensor:
        """Return β τ (q̃ - q̃_g), the gradient by the scores of β τ² KL(q̃_g ‖ q̃), as a mean over each batch."""
        _, taught = now.said_by("global")
        apart = self._others(now.scores, now.y) - self._others(taught, now.y)
        return apart.mul_((self.beta * self.tau * now.share).unsqueeze(1))

    def _others(self, scores: Tensor, y: Tensor) -> Tensor:
        """Return q̃, with a zero for the sample's own class."""
        return (scores / self.tau).scatter_(1, y.unsqueeze(1), LEFT_OUT).softmax(1)

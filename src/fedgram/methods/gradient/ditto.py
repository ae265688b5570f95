"""Ditto: a personal model beside the global one, drawn towards it."""

from dataclasses import dataclass

from fedgram.core.schema import NotNegative
from fedgram.methods.gradient.fedavg import FedAvg
from fedgram.methods.gradient.gradient_method import OwnModels, Training, training_step
from fedgram.nets import Hooks, Now, Tensor, Vector, pull
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.registry import register
from fedgram.protocol.replies import like_payload


@register
@dataclass(frozen=True, kw_only=True)
class Ditto(OwnModels, FedAvg):
    """Ditto — Li et al. 2021, Algorithm 1: FedAvg, and for each client v_k = argmin F_k(v) + (λ/2)‖v - wᵗ‖².

    v_k starts from the common first weights and lasts from round to round; it trains as long as the global model,
    against the wᵗ that the client has just received. With λ = 0 a client trains alone.

    Parameters
    ----------
    lam
        λ, how strongly the personal model is drawn to the global one.

    """

    pulls = ("lam",)

    lam: NotNegative = 1.0

    @training_step(reply=like_payload)
    def train(self, client: ClientSide, global_weights: Vector) -> Training[Vector]:
        """Return the global weights after local SGD; keep the personal ones."""
        trained = yield from self.descend(client, global_weights)
        center = {"center": self.trained_part(client, global_weights)}
        own = yield from self.descend(client, client.state["own"], Hooks(gradient=self._draw), carried=center)
        self.take(client, own)
        return trained

    def _draw(self, now: Now) -> Tensor:
        return pull(self.lam, now.weights, now.carried["center"])

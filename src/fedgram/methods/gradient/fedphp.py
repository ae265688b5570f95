"""FedPHP: each client inherits a moving average of its own past models, which also teaches the next one."""

from dataclasses import dataclass

import numpy as np

from fedgram.core.schema import Share
from fedgram.methods.gradient.fedavg import FedAvg
from fedgram.methods.gradient.gradient_method import OwnModels, Training, training_step
from fedgram.nets import Hooks, Now, Tensor, Vector
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.registry import register
from fedgram.protocol.replies import like_payload

TEMPERATURE = 4.0


@register
@dataclass(frozen=True, kw_only=True)
class FedPHP(OwnModels, FedAvg):
    """FedPHP — Li et al. 2021: FedAvg, beside which each client keeps p ← μ_t p + (1 - μ_t) w, and learns from it.

    μ_t grows with the rounds a client has taken part in, up to `mu`. While it trains, the loss is (1 - λ) CE + λ
    KD, where KD is the cross entropy with p's output at temperature 4 (one of the two transfers of the authors'
    program). p is the client's model. With λ = 0 clients send the same as in FedAvg.

    Parameters
    ----------
    mu
        μ, the largest share of the past that the moving average keeps.
    lam
        λ, how much the inherited model teaches.

    """

    mu: Share = 0.9
    lam: Share = 0.1

    @training_step(reply=like_payload)
    def train(self, client: ClientSide, global_weights: Vector) -> Training[Vector]:
        """Return the weights after SGD with the inherited model as a teacher, and update the inherited model."""
        count = client.state.get("count", 0)
        # A client that has never trained has nothing to teach.
        lam = np.array([self.lam if count else 0.0], dtype=np.float32)
        if self.lam:
            carried = {"teacher": client.state["own"], "lam": lam}
            vector = yield from self.descend(client, global_weights, Hooks(term=self._transfer), carried=carried)
        else:
            vector = yield from self.descend(client, global_weights)
        usual = max(int(self.participation * self.rounds), 1)
        inherited = min(self.mu * count / usual, self.mu)  # μ_t
        client.state["count"] = count + 1
        self.take(client, (inherited * client.state["own"] + (1 - inherited) * vector).astype(np.float32))
        return vector

    def _transfer(self, now: Now) -> Tensor:
        """Return λ (KD - CE), which makes (1 - λ) CE + λ KD of the loss."""
        lam = now.carried["lam"].squeeze(1)
        if not lam.any():
            return lam
        _, taught = now.said_by("teacher")
        said = -(taught / TEMPERATURE).softmax(1) * now.scores.log_softmax(1)
        return lam * ((said.sum(1) * now.share).sum(1) - now.losses)

"""FedPHP: each client inherits a moving average of its own past models, which also teaches the next one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

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

TEMPERATURE = 4.0


@register
@dataclass(frozen=True, kw_only=True)
class FedPHP(FedAvg):
    """FedPHP — Li et al. 2021: FedAvg, beside which each client keeps p ← μ_t p + (1 - μ_t) w, and learns from it.

    μ_t grows with the rounds a client has taken part in, up to `mu`. While it trains, the loss is (1 - λ) CE + λ
    KD, where KD is the cross entropy with what p says at temperature 4 (one of the two transfers of the authors'
    program). p is the client's model. With λ = 0 what is sent is that of FedAvg.
    """

    personal = True
    remembers = True
    judged_by_own = True

    mu: float = 0.9
    lam: float = 0.1

    def __post_init__(self) -> None:
        """Refuse shares beyond 0 … 1."""
        super().__post_init__()
        for name in ("mu", "lam"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidParameter(f"{name} must be from 0 to 1, got {getattr(self, name)}")

    @step(batched=True, reply=like_payload)
    def train(self, clients: Sequence[ClientSide], global_weights: Sequence[Vector]) -> list[Vector]:
        """Return the weights after SGD with the inherited model as a teacher; inherit them."""
        counts = [client.state.get("count", 0) for client in clients]
        carried = {
            "teacher": [client.state["own"] for client in clients],
            # Who has never trained has nothing to teach.
            "lam": [np.array([self.lam if count else 0.0], dtype=np.float32) for count in counts],
        }
        hooks = Hooks(term=self._transfer, carried=carried) if self.lam else PLAIN
        trained = self.descend(clients, global_weights, hooks)
        usual = max(int(self.participation * self.rounds), 1)
        for client, count, vector in zip(clients, counts, trained, strict=True):
            inherited = min(self.mu * count / usual, self.mu)  # μ_t
            client.state["count"] = count + 1
            mixed = inherited * client.state["own"] + (1 - inherited) * vector
            self.take(client, mixed.astype(np.float32))
        return trained

    def _transfer(self, now: Now) -> "Tensor":
        """Return λ (KD - CE), which makes (1 - λ) CE + λ KD of the loss."""
        lam = now.carried["lam"].squeeze(1)
        if not lam.any():
            return lam
        _, taught = now.said_by("teacher")
        said = -(taught / TEMPERATURE).softmax(1) * now.scores.log_softmax(1)
        return lam * ((said.sum(1) * now.share).sum(1) - now.losses)

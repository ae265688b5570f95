"""FedAS: the shared base is drawn to what the client knew before, and averaged by how much clients have to teach."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgram.core.errors import InvalidData, InvalidParameter
from fedgram.methods.gradient.fedper import FedPer
from fedgram.nets import Hooks, Now
from fedgram.nets.fisher import fisher_trace
from fedgram.nets.layers import Vector
from fedgram.nets.prototypes import away, class_means, class_sums
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import Number, Question, check, learnt

if TYPE_CHECKING:
    from torch import Tensor

LEAST = 1e-20  # a weight that is nothing beside any other; where all are, they weigh the same
MOST = 1e30  # more than training leaves anybody: with it a single client would be the mean


@dataclass(frozen=True)
class Weighed:
    """A reply of F_k θ_k and F_k, with a θ_k such as training makes of a base."""

    base: Vector

    def check(self, value: Any, question: Question, where: str) -> None:
        """Refuse anything else."""
        weight = Number(LEAST, MOST)
        check(value, {"base": self.base, "weight": weight}, question, where)
        learnt(self.base, unit=value["weight"]).check(value["base"], question, f"{where}/base")


@register
@dataclass(frozen=True, kw_only=True)
class FedAS(FedPer):
    """FedAS — Yang et al. 2024: FedPer whose base is aligned before training, and averaged by Fisher information.

    Align: the base that comes is trained for `align_epochs` so that a sample's features are near p_c, the mean of its
    class under the base that the client had before; then the client trains as in FedPer. Synchronise: θ = Σ F_k θ_k /
    Σ F_k, where F_k is the trace of the empirical Fisher matrix after training, the mean over the client's samples of
    ‖∇ log p(y|x)‖². With `synchronize=False` bases are averaged by samples; without both it is FedPer.
    """

    # After more epochs scores are so large that their rounding shows.
    quick = MappingProxyType({**FedPer.quick, "epochs": 5})

    align_lr: float = 0.01
    align_epochs: int = 1
    align_batch: int = 16
    synchronize: bool = True

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        super().__post_init__()
        self.check_not_negative("align_lr", "align_epochs")
        if self.align_batch < 1:
            raise InvalidParameter(f"align_batch must be a whole number ≥ 1, got {self.align_batch}")

    # server
    def share(self, clients: Clients, shared: Vector) -> Vector:
        """Let those who are asked train; return Σ F_k θ_k / Σ F_k, of which the server needs the two sums only."""
        if not self.synchronize:
            return super().share(clients, shared)
        mean = clients.mean(self.train, shared, to=self.asked(clients), weighted=False)
        base: Vector = (mean["base"] / mean["weight"]).astype(np.float32)
        return base

    # client
    @step(batched=True, reply=lambda method, question: method.reply(question.payload))
    def train(self, clients: Sequence[ClientSide], shared: Sequence[Vector]) -> list[Any]:
        """Return the base after alignment and local SGD, times F_k, and F_k; the head stays here."""
        starts = list(map(self.completed, clients, shared))
        if self.align_epochs:
            starts = self._aligned(clients, starts)
        trained = self.descend(clients, starts)
        for client, own in zip(clients, trained, strict=True):
            self.take(client, own)
        bases = [own[: len(base)] for own, base in zip(trained, shared, strict=True)]
        if not self.synchronize:
            return bases
        weights = list(map(self._fisher, clients, trained))
        return [
            {"base": (base * weight).astype(np.float32), "weight": weight}
            for base, weight in zip(bases, weights, strict=True)
        ]

    def reply(self, base: Vector) -> Any:
        """Return what a reply to `train` must be."""
        return Weighed(base) if self.synchronize else learnt(base)

    def _aligned(self, clients: Sequence[ClientSide], starts: Sequence[Vector]) -> list[Vector]:
        """Return the starts with their bases drawn to the client's old prototypes; no gradient reaches the head."""
        net = self.net_of(clients[0])
        old = [class_means(*class_sums(net, client.state["own"], client.x, client.y)) for client in clients]
        aligned, _ = self.descend_with(
            clients,
            starts,
            Hooks(term=_align, carried={"prototypes": [means.astype(np.float32) for means in old]}),
            # Of its own, so that training shuffles as in FedPer.
            rngs=[client.rng.spawn(1)[0] for client in clients],
            lr=self.align_lr,
            epochs=self.align_epochs,
            batch=self.align_batch,
            steps=None,
            momentum=0.0,
            weight_decay=0.0,
        )
        return aligned

    def _fisher(self, client: ClientSide, own: Vector) -> float:
        """Return F_k."""
        fisher = fisher_trace(self.net_of(client), own, client.x, client.y)
        if not fisher <= MOST:
            raise InvalidData(f"the Fisher information is {fisher}: take a smaller lr than {self.lr}")
        return max(fisher, LEAST)


def _align(now: Now) -> "Tensor":
    """Return Σ over classes of the batch of the mean of (z - p_c)², in place of the cross entropy."""
    real = (now.share > 0).float()
    alike = (now.y.unsqueeze(2) == now.y.unsqueeze(1)) * real.unsqueeze(1)  # (clients, batch, batch)
    each = away(now, now.carried["prototypes"]) * real / alike.sum(2).clamp(min=1)
    return each.sum(1) - now.losses

"""FedDBE: each client's own shift of the features is learned apart from what is shared."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgram.core.errors import InvalidParameter
from fedgram.methods.gradient.base import GradientMethod
from fedgram.models import Model
from fedgram.nets import Hooks, Net, Now, TrainedNet
from fedgram.nets.layers import Shape, Vector
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import like_payload

if TYPE_CHECKING:
    from torch import Tensor


@register
@dataclass(frozen=True, kw_only=True)
class FedDBE(GradientMethod):
    """FedDBE — Zhang et al. 2023 (DBE): FedAvg with a personal bias of the features and a common mean of them.

    The bias (PRBM) is added to the features before the head, trained with everything else, and never sent. The
    term (MR) (κ/2) · mean((r̄ - r_k)²) draws the client's mean features r_k, running over batches with momentum μ,
    to the consensus r̄ of a first training that is thrown away. A client's model is the global one with its own
    bias. On frozen features with a linear head there is nothing for MR to move. κ and μ are the authors' for
    Fashion-MNIST.
    """

    personal = True

    kappa: float = 50.0
    mu: float = 1.0
    bias: bool = True

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        super().__post_init__()
        self.check_not_negative("kappa")
        if not 0 < self.mu <= 1:
            raise InvalidParameter(f"mu must be more than 0 and at most 1, got {self.mu}")

    def net(self, shape: Shape, classes: int, *, memory: bool = True) -> Net:
        """Return the network with room for the bias."""
        return super().net(shape, classes, memory=memory)

    # server
    def serve(self, clients: Clients) -> TrainedNet:
        """Return the global model, without anybody's bias."""
        net, first = self.begin(clients)
        consensus = clients.mean(self.meet, first)  # r̄
        clients.each(self.agree, consensus)
        global_weights = first[: net.own.start]
        for number in clients.rounds_of(self.rounds):
            global_weights = clients.mean(self.train, global_weights, to=self.asked(clients))
            clients.report(number, self._unbiased(clients, global_weights))
        clients.each(self.adopt, global_weights)
        return self._unbiased(clients, global_weights)

    def _unbiased(self, clients: Clients, global_weights: Vector) -> TrainedNet:
        net = self.net(clients.shape, len(clients.classes))
        return self.model(clients, np.append(global_weights, np.zeros(net.features, dtype=np.float32)))

    # client
    @step(batched=True, reply=lambda method, question: method.features_of(question))
    def meet(self, clients: Sequence[ClientSide], firsts: Sequence[Vector]) -> list[Vector]:
        """Return the mean features of a plain training, whose weights are forgotten."""
        hooks = Hooks(after=self._follow_unbiased, carried={"mean": self._nothing(clients)})
        return self.descend_with(clients, firsts, hooks)[1]["mean"]

    @step
    def agree(self, client: ClientSide, consensus: Vector) -> None:
        """Remember the consensus."""
        client.state["consensus"] = consensus

    @step(batched=True, reply=like_payload)
    def train(self, clients: Sequence[ClientSide], global_weights: Sequence[Vector]) -> list[Vector]:
        """Return the shared weights after local SGD; the bias stays here."""
        carried = {"mean": self._nothing(clients), "consensus": [client.state["consensus"] for client in clients]}
        starts = [self._biased(client, received) for client, received in zip(clients, global_weights, strict=True)]
        net = self.net_of(clients[0])
        moved = self.kappa > 0 and net.base.stop > net.buffers  # frozen features have none, and no mean to follow
        follow = (self._follow if moved else None) if self.bias else self._follow_unbiased
        hooks = Hooks(term=self._regularize if moved else None, after=follow, carried=carried)
        trained = self.descend(clients, starts, hooks)
        own = net.own
        for client, vector in zip(clients, trained, strict=True):
            client.state["bias"] = vector[own].copy()  # not the whole stack with it
        return [vector[: own.start] for vector in trained]

    @step
    def adopt(self, client: ClientSide, global_weights: Vector) -> None:
        """Keep the global model with the client's own bias."""
        self.keep(client, self._biased(client, global_weights))

    @step
    def evaluate(self, client: ClientSide, model: Model | None = None) -> Any:
        """Judge the global model with the client's own bias."""
        if isinstance(model, TrainedNet):
            model = self.own_model(client, self._biased(client, model.vector[: model.net.own.start]))
        return super().evaluate(client, model)

    def _biased(self, client: ClientSide, global_weights: Vector) -> Vector:
        nothing = np.zeros(self.net_of(client).features, dtype=np.float32)
        return np.append(global_weights, client.state.get("bias", nothing))

    def _nothing(self, clients: Sequence[ClientSide]) -> list[Vector]:
        return [np.zeros(self.net_of(client).features, dtype=np.float32) for client in clients]

    def _mean(self, now: Now) -> "Tensor":
        """Return r_k with this batch in it."""
        batch = (now.features @ now.share.unsqueeze(2)).squeeze(2)
        return (1 - self.mu) * now.carried["mean"] + self.mu * batch

    def _regularize(self, now: Now) -> "Tensor":
        return self.kappa / 2 * (self._mean(now) - now.carried["consensus"]).square().mean(1)

    def _follow(self, now: Now) -> None:
        now.carried["mean"].copy_(self._mean(now))

    def _follow_unbiased(self, now: Now) -> None:
        self._follow(now)
        now.weights[:, -now.net.features :] = 0

"""FedDBE: each client's own shift of the features is learned apart from what is shared."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.core.schema import NotNegative, PositiveShare
from fedgram.methods.gradient.gradient_method import Averaged, Averaging, Training, training_step
from fedgram.models import Model
from fedgram.nets import Hooks, Net, Now, Shape, Tensor, TrainedNet, Vector
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import like_payload


@register
@dataclass(frozen=True, kw_only=True)
class FedDBE(Averaging):
    """FedDBE — Zhang et al. 2023 (DBE): FedAvg with a personal bias of the features and a common mean of them.

    The bias (PRBM) is added to the features before the head, trained with everything else, and never sent. The
    term (MR) (κ/2) · mean((r̄ - r_k)²) draws the client's mean features r_k, running over batches with momentum μ,
    to the consensus r̄ of a first training that is thrown away. A client's model is the global one with its own
    bias. On frozen features with a linear head there is nothing for MR to move. κ and μ are the authors' for
    Fashion-MNIST.

    Parameters
    ----------
    kappa
        κ, how strongly mean features are drawn to the consensus.
    mu
        μ, how much of the running mean each batch replaces.
    bias
        Whether clients have a personal bias of the features (PRBM).

    """

    adds = True
    personal = True

    kappa: NotNegative = 50.0
    mu: PositiveShare = 1.0
    bias: bool = True

    def net(self, shape: Shape, classes: int, *, memory: bool = True) -> Net:
        """Return the network with room for the bias."""
        return super().net(shape, classes, memory=memory)

    # server
    def serve(self, clients: Clients) -> TrainedNet:
        """Return the global model, without a client's bias."""
        net, first = self.begin(clients)
        consensus = clients.mean(self.meet, first)  # r̄
        clients.each(self.agree, consensus)
        world = Averaged(first[: net.own.start], net.buffers, self._server)
        for number in clients.rounds_of(self.rounds):
            world.move(clients.mean(self.train, world.weights, to=self.asked(clients)))
            clients.report(number, self._unbiased(clients, world.weights))
        clients.each(self.adopt, world.weights)
        return self._unbiased(clients, world.weights)

    def _unbiased(self, clients: Clients, global_weights: Vector) -> TrainedNet:
        net = self.net(clients.shape, len(clients.classes))
        return self.model(clients, np.append(global_weights, np.zeros(net.features, dtype=np.float32)))

    # client
    @training_step(reply=lambda method, question: method.features_of(question))
    def meet(self, client: ClientSide, first: Vector) -> Training[Vector]:
        """Return the mean features of a plain training, whose weights are forgotten."""
        hooks, nothing = Hooks(after=self._follow_unbiased), self._nothing(client)
        _, carried = yield from self.descend_with(client, first, hooks, carried={"mean": nothing})
        return carried["mean"]

    @step
    def agree(self, client: ClientSide, consensus: Vector) -> None:
        """Remember the consensus."""
        client.state["consensus"] = consensus

    @training_step(reply=like_payload)
    def train(self, client: ClientSide, global_weights: Vector) -> Training[Vector]:
        """Return the shared weights after local SGD; the bias stays here."""
        net = self.net_of(client)
        moved = self.kappa > 0 and net.base.stop > net.buffers  # frozen features have none, and no mean to follow
        follow = (self._follow if moved else None) if self.bias else self._follow_unbiased
        hooks = Hooks(term=self._regularize if moved else None, after=follow)
        carried = {"mean": self._nothing(client), "consensus": client.state["consensus"]}
        vector = yield from self.descend(client, self._biased(client, global_weights), hooks, carried=carried)
        client.state["bias"] = vector[net.own].copy()  # not the whole stack with it
        return vector[: net.own.start]

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
        return np.append(global_weights, client.state.get("bias", self._nothing(client)))

    def _nothing(self, client: ClientSide) -> Vector:
        return np.zeros(self.net_of(client).features, dtype=np.float32)

    def _mean(self, now: Now) -> Tensor:
        """Return r_k with this batch in it."""
        batch = (now.features @ now.share.unsqueeze(2)).squeeze(2)
        return (1 - self.mu) * now.carried["mean"] + self.mu * batch

    def _regularize(self, now: Now) -> Tensor:
        return self.kappa / 2 * (self._mean(now) - now.carried["consensus"]).square().mean(1)

    def _follow(self, now: Now) -> None:
        now.carried["mean"].copy_(self._mean(now))

    def _follow_unbiased(self, now: Now) -> None:
        self._follow(now)
        now.weights[:, -now.net.features :] = 0

"""FedDyn: each client's loss is corrected until all agree where the minimum is."""

from dataclasses import dataclass

import numpy as np

from fedgram.core.schema import NotNegative
from fedgram.methods.gradient.gradient_method import GradientMethod, Training, training_step
from fedgram.nets import Hooks, Now, Tensor, TrainedNet, Vector, pull
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.registry import register
from fedgram.protocol.replies import like_payload


@register
@dataclass(frozen=True, kw_only=True)
class FedDyn(GradientMethod):
    """FedDyn — Acar et al. 2021, Algorithm 1: each client's loss is corrected by a memory of its own gradient.

    The correction adds α⟨w, h_k⟩ + (α/2)‖w - wᵗ‖² to the loss, with a memory h_k at each client.

    h_k adds up w_k - wᵗ, so that -αh_k is the gradient of the client's own loss where its training ended. Clients begin
    the next round at the mean of the participants plus the mean of all h_k. As in the authors' program, the model is
    the mean of the participants without this correction; all clients weigh the same. With α = 0 there is no correction,
    and it is FedAvg for clients of one size.

    Parameters
    ----------
    alpha
        α, the strength of the correction and of the proximal term.

    """

    adds = True
    pulls = ("alpha",)

    alpha: NotNegative = 0.01

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
    @training_step(reply=like_payload)
    def train(self, client: ClientSide, global_weights: Vector) -> Training[Vector]:
        """Return the weights after SGD on the corrected loss, and remember how far they went."""
        start = self.trained_part(client, global_weights)
        memory = client.state.get("h", np.zeros_like(start))
        hooks = Hooks(gradient=self._correct)
        vector = yield from self.descend(client, global_weights, hooks, carried={"h": memory})
        client.state["h"] = memory + (self.trained_part(client, vector) - start)
        return vector

    def _correct(self, now: Now) -> Tensor:
        return pull(self.alpha, now.weights, now.start).add_(now.carried["h"], alpha=self.alpha)

"""pFedMe: personal models and a global one that is pulled after them."""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from fedgram.core.schema import BelowOne, Count, NotNegative
from fedgram.methods.gradient.gradient_method import Averaged, Averaging, OwnModels, Training, training_step
from fedgram.nets import Hooks, Now, Tensor, TrainedNet, Vector, pull
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.registry import register
from fedgram.protocol.replies import like_payload


@register
@dataclass(frozen=True, kw_only=True)
class PFedMe(OwnModels, Averaging):
    """pFedMe — T. Dinh et al. 2020, Algorithm 1: θ_k = argmin f_k(θ) + (λ/2)‖θ - w_k‖², then w_k ← w_k - ηλ(w_k - θ_k).

    Each of a client's `local_steps` batches is used for `inner` steps of θ (learning rate `lr`), and then one of
    w_k (`eta`). The server mixes the mean of the w_k in by β. θ_k is the client's model. With λ = 0 the global
    model stays where it was and θ_k is local training.

    Parameters
    ----------
    momentum
        The momentum of the inner steps; the paper has none.
    local_steps
        R, the number of batches of a client in a round.
    lam
        λ, how strongly θ is drawn to w.
    inner
        K, the number of steps of θ for each batch.
    eta
        η, the learning rate of w.
    beta
        β, the weight of the clients' mean in the new global model.

    """

    adds = True
    pulls = ("lam",)

    # The defaults are for hundreds of rounds; a check has a few.
    quick = MappingProxyType({**Averaging.quick, "rounds": 3, "eta": 0.06})

    momentum: BelowOne = 0.0
    local_steps: Count | None = 20
    lam: NotNegative = 15.0
    inner: Count = 5
    eta: NotNegative = 0.005
    beta: NotNegative = 1.0

    # server
    def serve(self, clients: Clients) -> TrainedNet:
        """Return the global model of the last round."""
        net, first = self.begin(clients)
        world = Averaged(first, net.buffers, self._server)
        for number in clients.rounds_of(self.rounds):
            mean = clients.mean(self.train, world.weights, to=self.asked(clients))
            mixed = ((1 - self.beta) * world.weights + self.beta * mean).astype(np.float32)
            mixed[: net.buffers] = mean[: net.buffers]
            world.move(mixed)
            clients.report(number)
        self.give_to_the_unasked(clients, world.weights)
        return self.model(clients, world.weights)

    # client
    @training_step(reply=like_payload)
    def train(self, client: ClientSide, global_weights: Vector) -> Training[Vector]:
        """Return the client's global weights w_k; keep its personal ones θ_k."""
        hooks = Hooks(gradient=self._draw, after=self._follow, estimate=self.estimate())
        center = {"center": self.trained_part(client, global_weights)}
        own, carried = yield from self.descend_with(client, global_weights, hooks, carried=center, repeat=self.inner)
        self.take(client, own)
        return np.concatenate([own[: self.net_of(client).buffers], carried["center"]])

    def _draw(self, now: Now) -> Tensor:
        return pull(self.lam, now.weights, now.carried["center"])

    def estimate(self) -> Callable[[Now], Tensor] | None:
        """Return the estimate of the gradient, for subclasses; None stands for back-propagation."""
        return None

    def _follow(self, now: Now) -> None:
        if now.last_use:
            center = now.carried["center"]
            center.sub_(center - now.weights, alpha=self.eta * self.lam)

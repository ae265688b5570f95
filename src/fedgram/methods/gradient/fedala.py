"""FedALA: before training, each client learns how much of the global head to take over."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.core.schema import Count, NotNegative, PositiveShare
from fedgram.methods.gradient.fedavg import FedAvg
from fedgram.methods.gradient.gradient_method import OwnModels, Training, training_step
from fedgram.nets import Hooks, Now, Tensor, Vector
from fedgram.nets.sgd import PLAIN_SGD
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.registry import register
from fedgram.protocol.replies import like_payload

SETTLED, WINDOW, MOST_PASSES = 0.1, 10, 100


@register
@dataclass(frozen=True, kw_only=True)
class FedALA(OwnModels, FedAvg):
    """FedALA — Zhang et al. 2023, Algorithm 1: start from Θ_i + (Θ - Θ_i) ⊙ W_i, with W_i learned on own samples.

    W_i has an entry in [0, 1] for each number of the last `layers` layers; below, the global ones are taken. The first
    time it is trained until the loss settles, then for one pass a round, over a random `fraction` of the samples
    and with learning rate `eta`. As with the other methods here, the model that a client has trained is the one it
    is judged by; the authors' program judges the one before training. With W_i = 1 (`eta` = 0) it is FedAvg whose
    clients keep what they trained.

    Parameters
    ----------
    layers
        p, how many of the last layers are mixed number by number.
    fraction
        s, the share of the samples that W is learned with.
    eta
        η, the learning rate of W.

    """

    layers: Count = 1
    fraction: PositiveShare = 0.8
    eta: NotNegative = 1.0

    @training_step(reply=like_payload)
    def train(self, client: ClientSide, global_weights: Vector) -> Training[Vector]:
        """Return the weights after local SGD from the mixture; keep them, too."""
        start, share = global_weights, None
        if "trained" in client.state:  # before that, a client has nothing of its own to mix in
            start, share = yield from self._mixture(client, global_weights)
        trained = yield from self.descend(client, start, stage=1)
        client.state["trained"] = True
        if share is not None:
            client.state["share"] = np.array(share)
        self.take(client, trained)
        return trained

    def _mixture(self, client: ClientSide, global_weights: Vector) -> Training[tuple[Vector, Vector]]:
        """Return Θ_i + (Θ - Θ_i) ⊙ W_i — (4) to (6) — and W_i."""
        own, last = np.array(global_weights), self.net_of(client).last(self.layers)
        own[last] = client.state["own"][last]
        share = yield from self._share(client, own, global_weights)
        return (own + (global_weights - own) * share).astype(np.float32), share

    def _share(self, client: ClientSide, own: Vector, global_weights: Vector) -> Training[Vector]:
        """Return W_i, trained by projected gradient descent."""
        share: Vector = client.state.get("share", np.ones_like(global_weights))
        # Random numbers of its own, so that what follows shuffles as in every other method.
        rng, losses = client.rng.spawn(1)[0], list[float]()
        plan: dict[str, Any] = {"lr": self.eta, "optimizer": PLAIN_SGD, "weight_decay": 0.0, "epochs": 1, "steps": None}
        carried = {"own": self.trained_part(client, own), "global": self.trained_part(client, global_weights)}
        carried["loss"] = np.zeros(1, dtype=np.float32)
        hooks = Hooks(of=_mix, after=_project)
        while self.eta and (not losses or not ("share" in client.state or _settled(losses))):
            share, after = yield from self.descend_with(
                client, share, hooks, carried=carried, rng=rng, fraction=self.fraction, **plan
            )
            losses.append(float(after["loss"][0]))
        return share


def _mix(share: Tensor, carried: Mapping[str, Tensor]) -> Tensor:
    return carried["own"] + (carried["global"] - carried["own"]) * share


def _project(now: Now) -> None:
    now.weights.clamp_(0, 1)
    now.carried["loss"].copy_(now.losses.unsqueeze(1))


def _settled(losses: Sequence[float]) -> bool:
    return len(losses) >= MOST_PASSES or (len(losses) > WINDOW and float(np.std(losses[-WINDOW:])) < SETTLED)

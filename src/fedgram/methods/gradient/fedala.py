"""FedALA: before training, each client learns how much of the global head to take over."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedgram.core.errors import InvalidParameter
from fedgram.methods.gradient.fedavg import FedAvg
from fedgram.nets import Hooks, Now
from fedgram.nets.layers import Vector
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import like_payload

if TYPE_CHECKING:
    from torch import Tensor

SETTLED, WINDOW, MOST_PASSES = 0.1, 10, 100


@register
@dataclass(frozen=True, kw_only=True)
class FedALA(FedAvg):
    """FedALA — Zhang et al. 2023, Algorithm 1: start from Θ_i + (Θ - Θ_i) ⊙ W_i, with W_i learned on own samples.

    W_i has an entry in [0, 1] for each number of the last `layers` layers; below, the global ones are taken. The first
    time it is trained until the loss settles, then for one pass a round, over a random `fraction` of the samples
    and with learning rate `eta`. As with the other methods here, the model that a client has trained is the one it
    is judged by; the authors' program judges the one before training. With W_i = 1 (`eta` = 0) it is FedAvg whose
    clients keep what they trained.
    """

    personal = True
    remembers = True
    judged_by_own = True

    layers: int = 1
    fraction: float = 0.8
    eta: float = 1.0

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        super().__post_init__()
        self.check_not_negative("eta")
        if self.layers < 1:
            raise InvalidParameter(f"layers must be a whole number ≥ 1, got {self.layers}")
        if not 0 < self.fraction <= 1:
            raise InvalidParameter(f"fraction must be more than 0 and at most 1, got {self.fraction}")

    @step(batched=True, reply=like_payload)
    def train(self, clients: Sequence[ClientSide], global_weights: Sequence[Vector]) -> list[Vector]:
        """Return the weights after local SGD from the mixture; keep them, too."""
        starts = dict(zip([client.name for client in clients], global_weights, strict=True))
        # Who has not trained yet has nothing of its own to mix in.
        mixing = [client for client in clients if "trained" in client.state]
        mixtures, shares = self._mixtures(mixing, [starts[client.name] for client in mixing])
        trained = self.descend(clients, [mixtures.get(client.name, starts[client.name]) for client in clients])
        # Only now that nothing can fail any more: a step that is repeated must begin with the same state.
        for client, own in zip(clients, trained, strict=True):
            client.state["trained"] = True
            if client.name in shares:
                client.state["share"] = np.array(shares[client.name])
            self.take(client, own)
        return trained

    def _mixtures(
        self, clients: Sequence[ClientSide], global_weights: Sequence[Vector]
    ) -> tuple[dict[str, Vector], dict[str, Vector]]:
        """Return Θ_i + (Θ - Θ_i) ⊙ W_i of each client — (4) to (6) — and W_i."""
        if not clients:
            return {}, {}
        net = self.net_of(clients[0])
        own = []
        for client, received in zip(clients, global_weights, strict=True):
            mixed = np.array(received)
            mixed[net.last(self.layers)] = client.state["own"][net.last(self.layers)]
            own.append(mixed)
        shares = self._shares(clients, global_weights, own)
        mixtures = {
            client.name: (mine + (received - mine) * shares[client.name]).astype(np.float32)
            for client, mine, received in zip(clients, own, global_weights, strict=True)
        }
        return mixtures, shares

    def _shares(
        self, clients: Sequence[ClientSide], global_weights: Sequence[Vector], own: Sequence[Vector]
    ) -> dict[str, Vector]:
        """Return W_i, trained by projected gradient descent."""
        both = zip(self.trained_part(clients, own), self.trained_part(clients, global_weights), strict=True)
        parts = {client.name: pair for client, pair in zip(clients, both, strict=True)}
        shares = {client.name: client.state.get("share", np.ones_like(global_weights[0])) for client in clients}
        losses: dict[str, list[float]] = {client.name: [] for client in clients}
        # Random numbers of its own, so that what follows shuffles as in every other method.
        rngs = {client.name: client.rng.spawn(1)[0] for client in clients}
        plan = {"lr": self.eta, "momentum": 0.0, "weight_decay": 0.0, "epochs": 1, "steps": None}
        learning = list(clients)
        while learning and self.eta:
            names = [client.name for client in learning]
            mine, received = zip(*(parts[name] for name in names), strict=True)
            carried = {"own": mine, "global": received, "loss": [np.zeros(1, dtype=np.float32)] * len(names)}
            vectors, after = self.descend_with(
                learning,
                [shares[name] for name in names],
                Hooks(of=_mix, after=_project, carried=carried),
                [rngs[name] for name in names],
                fraction=self.fraction,
                **plan,
            )
            for name, vector, loss in zip(names, vectors, after["loss"], strict=True):
                shares[name] = vector
                losses[name].append(float(loss[0]))
            learning = [one for one in learning if "share" not in one.state and not _settled(losses[one.name])]
        return shares


def _mix(share: "Tensor", carried: Mapping[str, "Tensor"]) -> "Tensor":
    return carried["own"] + (carried["global"] - carried["own"]) * share


def _project(now: Now) -> None:
    now.weights.clamp_(0, 1)
    now.carried["loss"].copy_(now.losses.unsqueeze(1))


def _settled(losses: Sequence[float]) -> bool:
    return len(losses) >= MOST_PASSES or (len(losses) > WINDOW and float(np.std(losses[-WINDOW:])) < SETTLED)

"""APPLE: every client publishes a core model, and learns for itself how much of each core to take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import cos, pi
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedgram.core.errors import InvalidParameter
from fedgram.methods.gradient.base import GradientMethod
from fedgram.nets import Hooks, Now, pull
from fedgram.nets.layers import Vector, as_tensor
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register

if TYPE_CHECKING:
    from torch import Tensor

LAST = 0.001  # what an exponential λ falls to


@register
@dataclass(frozen=True, kw_only=True)
class APPLE(GradientMethod):
    """APPLE — Luo and Wu 2022, Algorithm 1: a client's model is v_i = Σ_j p_ij w_j, a mixture of all clients' cores.

    A client trains its own core w_i and its p_i on CE(v_i) + λ_r (μ/2)‖p_i - p⁰‖²; the others' cores stay as they
    came. p_i begins at p⁰_j = n_j/Σn, may have any sign, and is never sent. λ_r falls from 1 to 0 over the first
    `until` of the rounds. The server stores cores and sends all of them to everybody: of those who are not asked, or
    lost, the last that they sent. With `start` = "self" (p⁰ = e_i) and `lr_p` = 0 each client trains alone.
    """

    personal = True
    remembers = True
    judged_by_own = True
    # A core's gradient is p_ii times that of the model, and moves the model by p_ii times as much again.
    quick = MappingProxyType({**GradientMethod.quick, "lr": 0.5})

    lr_p: float = 0.001
    mu: float = 0.1
    schedule: Literal["exponential", "cosine"] = "exponential"
    until: float = 0.1
    start: Literal["samples", "self"] = "samples"

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        super().__post_init__()
        self.check_not_negative("lr_p", "mu")
        if not 0 <= self.until <= 1:
            raise InvalidParameter(f"until must be from 0 to 1, got {self.until}")
        if self.lr_p * self.mu >= 2 * (1 + self.momentum):
            most = 2 * (1 + self.momentum) / self.lr_p
            raise InvalidParameter(f"mu must be less than {most:g} with lr_p {self.lr_p:g}, got {self.mu}")

    # server
    def serve(self, clients: Clients) -> None:
        """Let every client end with a mixture of its own."""
        _, first = self.begin(clients)
        places = {name: place for place, name in enumerate(sorted(clients.names))}
        sizes = np.array([clients.samples[name] for name in places])
        begun = np.eye(len(sizes)) if self.start == "self" else np.tile(sizes / sizes.sum(), (len(sizes), 1))  # p⁰
        seats = {name: {"place": place, "p": begun[place].astype(np.float32)} for name, place in places.items()}
        clients.each(self.settle, per_client=seats)
        cores = np.tile(first, (len(sizes), 1))
        for number in clients.rounds_of(self.rounds):
            for name, core in list(clients.call(self.train, cores, to=self.asked(clients))):
                cores[places[name]] = core
            clients.report(number)

    # client
    @step
    def settle(self, client: ClientSide, seat: dict[str, Any]) -> None:
        """Remember which of the cores is the client's own, and begin with p⁰."""
        client.state |= {"place": seat["place"], "start": np.array(seat["p"]), "p": np.array(seat["p"])}

    @step(batched=True, reply=lambda method, question: method.vector_of(question))
    def train(self, clients: Sequence[ClientSide], sent: Sequence[Vector]) -> list[Vector]:
        """Return the client's core after SGD on it and on p; keep the mixture."""
        # All are sent the same cores, and nobody copies them: they are the most that a client has to hold.
        means, cores = np.split(sent[0], [self.net_of(clients[0]).buffers], axis=1)
        mine = list(np.eye(len(cores), dtype=np.float32)[[client.state["place"] for client in clients]])
        starts = [
            # Running means are mixed by p⁰: with p, variances could be negative.
            np.concatenate([client.state["start"] @ means, client.state["own"][means.shape[1] :], client.state["p"]])
            for client in clients
        ]
        carried = {"mine": mine, "start": [client.state["start"] for client in clients]}
        trained = self.descend(clients, starts, self._hooks(cores, clients[0].round, carried))
        ends = [means.shape[1], starts[0].size - len(cores)]
        for client, row, own in zip(clients, trained, mine, strict=True):
            running, core, p = np.split(row, ends)
            client.state["p"] = np.array(p)
            self.remember(client, row[: ends[1]])
            self.keep(client, np.concatenate([running, mix(core, p, own, cores)]))  # v_i
        return [row[: ends[1]] for row in trained]

    def _hooks(self, cores: Vector, number: int, carried: Mapping[str, Sequence[Vector]]) -> Hooks:
        """Return what makes SGD on [w_i | p_i] of SGD on the network's weights v_i."""
        count, fixed, strength, ratio = len(cores), as_tensor(cores), self.strength(number), self.lr_p / self.lr

        def mixture(trained: "Tensor", along: Mapping[str, "Tensor"]) -> "Tensor":
            p = trained[:, -count:]
            # The same numbers with a gradient so many times as large: p has a learning rate of its own.
            p = p.detach() + (p - p.detach()) * ratio
            return mix(trained[:, :-count], p, along["mine"], fixed)  # type: ignore[no-any-return]

        def hold(now: Now) -> "Tensor":
            pulled, p = now.weights.new_zeros(now.weights.shape), now.weights[:, -count:]
            # Weight decay is for weights: what the loop adds for p is taken away.
            pulled[:, -count:] = ratio * pull(strength, p, now.carried["start"]) - self.weight_decay * p
            return pulled

        return Hooks(of=mixture, gradient=hold, carried=carried)

    def strength(self, number: int) -> float:
        """Return λ_r μ in a round."""
        passed = number / (self.until * self.rounds) if self.until else 1.0
        if passed >= 1:
            return 0.0
        return self.mu * (LAST**passed if self.schedule == "exponential" else (1 + cos(pi * passed)) / 2)


def mix(core: Any, p: Any, mine: Any, cores: Any) -> Any:
    """Return v = Σ_j p_j w_j, where the client's own core is the one in training; of arrays or of tensors."""
    return (p * (1 - mine)) @ cores + (p * mine).sum(-1)[..., None] * core

"""APPLE: every client publishes a core model, and learns for itself how much of each core to take."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import cos, pi
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from fedgram.core.errors import InvalidParameter
from fedgram.core.schema import NotNegative, Share
from fedgram.methods.gradient.gradient_method import OwnModels, Training, once, training_step
from fedgram.nets import Hooks, Now, Tensor, Vector, pull
from fedgram.nets.layers import as_tensor
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register

LAST = 0.001  # what an exponential λ falls to


@register
@dataclass(frozen=True, kw_only=True)
class APPLE(OwnModels):
    """APPLE — Luo and Wu 2022, Algorithm 1: a client's model is v_i = Σ_j p_ij w_j, a mixture of all clients' cores.

    A client trains its own core w_i and its p_i on CE(v_i) + λ_r (μ/2)‖p_i - p⁰‖²; the others' cores stay as they
    came. p_i begins at p⁰_j = n_j/Σn, may have any sign, and is never sent. λ_r falls from 1 to 0 over the first
    `until` of the rounds. The server stores cores and sends all of them to every client: of clients that are not
    asked, or lost, the last that they sent. With `start` = "self" (p⁰ = e_i) and `lr_p` = 0 each client trains alone.

    Parameters
    ----------
    lr_p
        η₂, the learning rate of p.
    mu
        μ, the strength of the penalty on p.
    schedule
        How λ_r falls.
    until
        L, the share of the rounds after which λ_r is 0.
    start
        p⁰: the clients' shares of the samples, or the client's own core alone.

    """

    # A core's gradient is p_ii times that of the model, and moves the model by p_ii times as much again.
    quick = MappingProxyType({**OwnModels.quick, "lr": 0.5})

    lr_p: NotNegative = 0.001
    mu: NotNegative = 0.1
    schedule: Literal["exponential", "cosine"] = "exponential"
    until: Share = 0.1
    start: Literal["samples", "self"] = "samples"

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        super().__post_init__()
        self.check_sgd("p has its own learning rate with SGD only")
        if self.lr_p * self.mu >= 2 * (1 + self.momentum):
            most = 2 * (1 + self.momentum) / self.lr_p
            raise InvalidParameter(
                f"mu: expected a number < {most:g} with lr_p {self.lr_p:g}, got {self.mu}; lower it, or lr_p"
            )

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

    @training_step(reply=lambda method, question: method.vector_of(question))
    def train(self, client: ClientSide, sent: Vector) -> Training[Vector]:
        """Return the client's core after SGD on it and on p; keep the mixture."""
        # All are sent the same cores, and no client copies them: they are the most that it has to hold.
        net, state = self.net_of(client), client.state
        means, cores = np.split(sent, [net.buffers], axis=1)
        mine = np.eye(len(cores), dtype=np.float32)[state["place"]]
        # Running means are mixed by p⁰: with p, variances could be negative.
        start = np.concatenate([state["start"] @ means, state["own"][net.buffers :], state["p"]])
        mixing = yield from once(sent, lambda _: _Mixing(as_tensor(cores), self, client.round))
        hooks = Hooks(of=mixing.mixture, gradient=mixing.hold)
        row = yield from self.descend(client, start, hooks, carried={"mine": mine, "start": state["start"]})
        running, core, p = np.split(row, [net.buffers, len(row) - len(cores)])
        state["p"] = np.array(p)
        own = row[: len(row) - len(cores)]
        self.remember(client, own)
        self.keep(client, np.concatenate([running, mix(core, p, mine, cores)]))  # v_i
        return own

    def strength(self, number: int) -> float:
        """Return λ_r μ in a round."""
        passed = number / (self.until * self.rounds) if self.until else 1.0
        if passed >= 1:
            return 0.0
        return self.mu * (LAST**passed if self.schedule == "exponential" else (1 + cos(pi * passed)) / 2)


@dataclass(frozen=True, eq=False)
class _Mixing:
    """Hooks that turn SGD on the network's weights v_i into SGD on [w_i | p_i], in one round."""

    cores: Tensor
    method: APPLE
    number: int

    @property
    def ratio(self) -> float:
        """The learning rate of p as a multiple of the other."""
        return self.method.lr_p / self.method.lr

    def mixture(self, trained: Tensor, along: Mapping[str, Tensor]) -> Tensor:
        """Return v_i."""
        count = len(self.cores)
        p = trained[:, -count:]
        # The same numbers with a gradient so many times as large: p has a learning rate of its own.
        p = p.detach() + (p - p.detach()) * self.ratio
        return mix(trained[:, :-count], p, along["mine"], self.cores)  # type: ignore[no-any-return]

    def hold(self, now: Now) -> Tensor:
        """Return the gradient of the penalty on p."""
        count, strength = len(self.cores), self.method.strength(self.number)
        pulled, p = now.weights.new_zeros(now.weights.shape), now.weights[:, -count:]
        # Weight decay is for weights: what the loop adds for p is taken away.
        pulled[:, -count:] = self.ratio * pull(strength, p, now.carried["start"]) - self.method.weight_decay * p
        return pulled


def mix(core: Any, p: Any, mine: Any, cores: Any) -> Any:
    """Return v = Σ_j p_j w_j, where the client's own core is the one in training; of arrays or of tensors."""
    return (p * (1 - mine)) @ cores + (p * mine).sum(-1)[..., None] * core

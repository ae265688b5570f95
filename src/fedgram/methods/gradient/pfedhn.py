"""pFedHN: a network at the server generates each client's weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedgram.core.schema import BelowOne, Count, Natural, NotNegative, Positive
from fedgram.core.threads import torch_threads
from fedgram.methods.gradient.fedper import PrivateHead
from fedgram.nets import Module, Vector
from fedgram.nets.factories import seeded
from fedgram.protocol.clients import Clients
from fedgram.protocol.registry import register

if TYPE_CHECKING:
    from torch.optim import Optimizer


@register
@dataclass(frozen=True, kw_only=True)
class PFedHN(PrivateHead):
    """pFedHN — Shamsian et al. 2021, Algorithm 1: the server learns a network h, and client i trains from θ_i = h(v_i).

    v_i is the client's embedding, which is learnt like the numbers ψ of h. What a client changes, Δ_i, moves both down
    the gradient -(∂θ_i/∂(ψ, v_i))ᵀΔ_i. The paper asks one client at a time; here a round's clients train side by side,
    and the server takes one step down the mean of their gradients, whose norm is cut at `clip`. h begins as the
    common first weights for every v_i. With `partial` (pFedHN-PC) the base is generated, and a client's head is its
    own, never sent. A client's model is what it trained last; one that was never asked keeps what is generated for it
    at the end. With `server_lr` = 0 all train from the first weights in every round.

    Parameters
    ----------
    server_lr
        α, the learning rate of the hypernetwork.
    server_momentum
        The momentum of its SGD.
    server_weight_decay
        The weight decay of its SGD.
    embedding
        The length of v_i; none is 1 + K/4 for K clients.
    hidden
        The width of the hypernetwork's layers.
    depth
        How many hidden layers follow upon the first.
    clip
        The largest norm of the hypernetwork's gradient.
    partial
        Whether the head stays at the client (pFedHN-PC).

    """

    server_lr: NotNegative = 0.1
    server_momentum: BelowOne = 0.9
    server_weight_decay: NotNegative = 1e-3
    embedding: Count | None = None
    hidden: Count = 100
    depth: Natural = 3
    clip: Positive = 50.0
    partial: bool = False

    # server
    def serve(self, clients: Clients) -> None:
        """Let every client end with a network of its own."""
        net, first = self.begin(clients)  # which says what to install where torch is missing
        from torch.optim import SGD

        if self.partial:
            self.check_base(net)
        names = sorted(clients.names)
        means, weights = np.split(first[net.base] if self.partial else first, [net.buffers])
        with seeded(clients.rng):
            hyper = self.hypernetwork(len(names), weights)
        optimizer = SGD(hyper.parameters(), self.server_lr, self.server_momentum, weight_decay=self.server_weight_decay)

        def generated(wanted: Sequence[str]) -> dict[str, Vector]:
            weights = generate(hyper, [names.index(name) for name in wanted])  # θ_i = h(v_i; ψ)
            return {name: np.append(means, own) for name, own in zip(wanted, weights, strict=True)}

        for number in clients.rounds_of(self.rounds):
            sent = generated(self.asked(clients))
            trained = dict(sorted(clients.call(self.train, per_client=sent)))
            changes = {names.index(name): (own - sent[name])[net.buffers :] for name, own in trained.items()}
            learn(hyper, optimizer, changes, self.clip)
            shares = [clients.samples[name] for name in trained]
            buffers = [own[: net.buffers] for own in trained.values()]
            means = np.average(buffers, axis=0, weights=shares).astype(np.float32)
            clients.report(number)
        unasked = [name for name in clients.names if name not in clients.contributors]
        clients.each(self.adopt, per_client=generated(unasked) if unasked else {})

    def hypernetwork(self, clients: int, weights: Vector) -> Module:
        """Return h, which gives all clients the same weights until it has learnt; its size is `hidden` times theirs."""
        import torch
        from torch import nn

        embedding = 1 + clients // 4 if self.embedding is None else self.embedding
        last = nn.Linear(self.hidden, len(weights))
        with torch.no_grad():
            last.weight.zero_()
            last.bias.copy_(torch.from_numpy(weights))
        return nn.Sequential(*trunk(clients, embedding, self.hidden, self.depth), last)


def trunk(clients: int, embedding: int, hidden: int, depth: int) -> list[Module]:
    """Return layers from a client's place to hidden values: its embedding, a layer, and `depth` more behind ReLU."""
    from torch import nn

    more = [layer for _ in range(depth) for layer in (nn.ReLU(), nn.Linear(hidden, hidden))]
    return [nn.Embedding(clients, embedding), nn.Linear(embedding, hidden), *more]


def generate(hyper: Module, places: Sequence[int]) -> Vector:
    """Return the weights (places, …) that a hypernetwork generates."""
    import torch

    with torch.no_grad(), torch_threads(len(places) * _size(hyper)):
        weights: Vector = hyper(torch.tensor(places)).numpy()
    return weights


def learn(hyper: Module, optimizer: "Optimizer", changes: Mapping[int, Vector], clip: float) -> None:
    """Take one step down the mean of the gradients -(∂θ_i/∂(ψ, v_i))ᵀΔ_i."""
    import torch
    from torch.nn.utils import clip_grad_norm_

    with torch_threads(len(changes) * _size(hyper)):
        optimizer.zero_grad()
        mean = torch.from_numpy(np.stack(list(changes.values())) / np.float32(-len(changes)))
        hyper(torch.tensor(list(changes))).backward(mean)
        clip_grad_norm_(hyper.parameters(), clip)
        optimizer.step()


def _size(hyper: Module) -> int:
    return sum(numbers.numel() for numbers in hyper.parameters())

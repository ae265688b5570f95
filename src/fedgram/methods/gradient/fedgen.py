"""FedGen: the server learns what features the clients' heads expect of each class, and clients learn from these."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgram.core.errors import InvalidParameter
from fedgram.methods.gradient.fedavg import FedAvg
from fedgram.nets import PLAIN, Hooks, Net, Now, TrainedNet
from fedgram.nets.generator import Counts, Fitting, Generator, Source, generator_net
from fedgram.nets.layers import Vector
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import LabelCounts, learnt

if TYPE_CHECKING:
    from torch import Tensor


@register
@dataclass(frozen=True, kw_only=True)
class FedGen(FedAvg):
    """FedGen — Zhu, Hong & Zhou 2021, Algorithm 1: FedAvg with features G(y, ε) that a generator makes for a label y.

    The server fits G to the heads of those who took part: Σ_k (n_ky/n_y) CE(head_k(G(y, ε)), y), with y drawn by their
    pooled label counts and ε from a normal distribution, plus `diversity` times a term that keeps features of
    different ε apart. From the second round on a client adds to its loss α_t CE(head(G(ŷ, ε)), ŷ), with ŷ drawn by the
    counts of all that G was fitted to, and β_t KL(softmax head(G(y, ε)) ‖ softmax of its scores) for its own samples.
    α_t, β_t and Adam's learning rate fall by `decay` each round. A class that G was never fitted to adds nothing.

    (4) of the paper has the cross entropy of the mean scores; the mean of cross entropies is the authors' program's.
    With α = β = 0 there is no generator, and it is FedAvg.
    """

    # Its own values are for hundreds of rounds.
    quick = MappingProxyType({**FedAvg.quick, "alpha": 1.0, "beta": 1.0, "hidden": 32, "generator_steps": 20})

    # A head that is drawn to what the server's generator says forgets the samples.
    pulls = ("alpha",)

    alpha: float = 10.0
    beta: float = 10.0
    diversity: float = 1.0
    decay: float = 0.98
    noise: int = 32
    hidden: int = 256
    generator_lr: float = 3e-4
    generator_weight_decay: float = 0.01
    generator_steps: int = 50
    generator_batch: int = 32

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        super().__post_init__()
        self.check_not_negative("alpha", "beta", "diversity", "generator_lr", "generator_weight_decay")
        for name, least in {"noise": 1, "hidden": 1, "generator_steps": 1, "generator_batch": 2}.items():
            if getattr(self, name) < least:
                raise InvalidParameter(f"{name} must be a whole number ≥ {least}, got {getattr(self, name)}")
        if not 0 < self.decay <= 1:
            raise InvalidParameter(f"decay must be more than 0 and at most 1, got {self.decay}")

    # server
    def serve(self, clients: Clients) -> TrainedNet:
        """Return the global model of the last round."""
        net, first = self.begin(clients)
        self.check_linear_head(net)
        on = self.alpha > 0 or self.beta > 0
        counts: dict[str, Counts] = dict(clients.ask(self.count)) if on else {}
        plan = Fitting(
            self.generator_lr, self.generator_weight_decay, self.generator_steps, self.generator_batch, self.diversity
        )
        generator = Generator(self._generator(net), clients.rng, plan)
        heads: dict[str, Vector] = {}
        sent: dict[str, Any] = {"weights": first}

        def heard(name: str, vector: Vector) -> None:
            heads[name] = vector[net.head].copy()

        for number in clients.rounds_of(self.rounds):
            heads.clear()
            sent["weights"] = clients.mean(self.train, sent, to=self.asked(clients), heard=heard)
            clients.report(number, self.model(clients, sent["weights"]))
            if on and number + 1 < self.rounds:
                generator.fit(heads, counts, clients.rng, self.decay**number)
                sent |= generator.message
        return self.model(clients, sent["weights"])

    def _generator(self, net: Net) -> Net:
        return generator_net(net.classes, net.features, noise=self.noise, hidden=self.hidden)

    # client
    @step(reply=LabelCounts())
    def count(self, client: ClientSide) -> Counts:
        """Return how many samples of each class there are."""
        return np.bincount(client.y, minlength=len(client.classes))

    @step(batched=True, reply=lambda _, question: learnt(question.payload["weights"]))
    def train(self, clients: Sequence[ClientSide], sent: Sequence[Any]) -> list[Vector]:
        """Return the weights after SGD with what the generator makes."""
        hooks = self._hooks(clients, sent[0]) if "generator" in sent[0] else PLAIN  # all are sent the same
        return self.descend(clients, [one["weights"] for one in sent], hooks)

    def _hooks(self, clients: Sequence[ClientSide], sent: Mapping[str, Any]) -> Hooks:
        # Children of the clients' generators, so that samples are shuffled as in FedAvg.
        rngs = [client.rng.spawn(1)[0] for client in clients]
        generator = self._generator(self.net_of(clients[0]))
        source = Source(generator, sent["generator"], sent["labels"], self.noise, rngs)
        fallen = self.decay ** clients[0].round
        return Hooks(
            gradient=partial(self._learn, source, fallen * self.alpha) if self.alpha else None,
            error=partial(self._agree, source, fallen * self.beta) if self.beta else None,
            carried=source.place,
        )

    def _learn(self, source: Source, alpha: float, now: Now) -> "Tensor":
        """Return the gradient of α_t CE(head(G(ŷ, ε)), ŷ), which the head alone has."""
        y = source.labels(now, self.generator_batch)
        return source.gradient(now, source.hidden(now, y, [self.generator_batch] * len(y)), y).mul_(alpha)

    def _agree(self, source: Source, beta: float, now: Now) -> "Tensor":
        """Return the gradient of β_t KL(softmax head(G(y, ε)) ‖ softmax scores) by the scores, of the batch's mean."""
        hidden = source.hidden(now, now.y, (now.share > 0).sum(1).tolist())
        apart = now.scores.softmax(1) - source.scores(now, hidden).softmax(1)
        return apart.mul_((beta * now.share * source.known[now.y]).unsqueeze(1))

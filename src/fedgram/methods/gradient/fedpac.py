"""FedPAC: features are aligned by shared prototypes, and each client's head is the best mixture of all heads."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.simplex import best_mixtures
from fedgram.methods.gradient.fedper import FedPer
from fedgram.nets import Hooks, Net, Now, prototypes
from fedgram.nets.layers import Vector
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import LARGEST_LEARNT, ByClass, Learnt, Number, Numbers, Question, learnt

if TYPE_CHECKING:
    from torch import Tensor

SMALLEST = 1e-3  # heads of less weight are left out


@register
@dataclass(frozen=True, kw_only=True)
class FedPAC(FedPer):
    """FedPAC — Xu et al. 2023, Algorithm 1: a shared base, features drawn to shared prototypes, and mixed heads.

    A client trains its head for an epoch (`head_lr`), then its base with λ · mean((z - c̄_y)²) beside the cross entropy.
    Before, it measures with the base that came h_kc = π_c m_c, its class means times their frequencies, and their
    variance V_k. Its next head is Σ_j α_kj φ_j with the weights on the simplex that minimise αᵀ(diag(V) + G_k)α, where
    G_k[j, l] = Σ_c ⟨h_kc - h_jc, h_kc - h_lc⟩; fit.notes["head weights"] has those of the last round, clients by name.
    With `mix_heads=False` heads stay private; with λ = 0, too, it is FedPer that trains head and base in turn.
    """

    rates = ("lr", "head_lr")

    lam: float = 1.0
    head_lr: float = 0.1
    mix_heads: bool = True

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        super().__post_init__()
        self.check_not_negative("lam", "head_lr")

    # server
    def serve(self, clients: Clients) -> None:
        """Let every client end with a network of its own."""
        net, first = self.begin(clients)
        self.check_base(net)
        base, pooled = first[net.base], None
        heads = dict.fromkeys(clients.names, first[net.head] if self.mix_heads else first[:0])
        for number in clients.rounds_of(self.rounds):
            asked = self.asked(clients)
            given = {name: {"shared": np.append(base, heads[name]), "prototypes": pooled} for name in asked}
            total, told = np.zeros(len(base)), {}
            for name, reply in clients.call(self.train, per_client=given):
                # Added up as they come, so that the server never holds all bases.
                total += clients.samples[name] * reply["shared"][net.base].astype(np.float64)
                told[name] = reply | {"head": np.array(reply.pop("shared")[len(base) :])}
            base = (total / sum(clients.samples[name] for name in told)).astype(np.float32)
            replies = [told[name] for name in sorted(told)]
            if self.lam:
                pooled = prototypes.pooled_means([reply["features"] for reply in replies], net.classes)
            if self.mix_heads:
                h = np.stack([prototypes.all_classes(reply["features"], "h", net.classes).ravel() for reply in replies])
                mixed = best_mixtures(h, np.array([reply["variance"] for reply in replies]), SMALLEST)  # α
                new = mixed @ np.stack([reply["head"] for reply in replies]).astype(np.float64)
                heads |= zip(sorted(told), new.astype(np.float32), strict=True)
                clients.note("head weights", mixed)
            clients.report(number)
        self.give_to_the_unasked(clients, base)

    # client
    @step(batched=True, reply=lambda method, question: method.told(question))
    def train(self, clients: Sequence[ClientSide], given: Sequence[Any]) -> list[Any]:
        """Return what is shared after training first the head, then the base, and statistics of the features."""
        net = self.net_of(clients[0])
        starts = [self.completed(client, sent["shared"]) for client, sent in zip(clients, given, strict=True)]
        before = [prototypes.class_sums_and_square(net, own, c.x, c.y) for c, own in zip(clients, starts, strict=True)]
        head = np.zeros(net.size - net.buffers, dtype=np.float32)
        head[net.head.start - net.buffers :] = 1
        # Random numbers of its own, so that the base's training shuffles as FedPer's does.
        rngs, once = [client.rng.spawn(1)[0] for client in clients], {"lr": self.head_lr, "epochs": 1, "steps": None}
        headed, _ = self.descend_with(clients, starts, Hooks(only=[head] * len(clients)), rngs, **once)
        hooks = Hooks(only=[1 - head] * len(clients))
        if given[0]["prototypes"] is not None:
            aims = [prototypes.aims(*own[:2], one["prototypes"]) for own, one in zip(before, given, strict=True)]
            hooks = replace(hooks, term=self._align, carried={"prototypes": aims})
        trained = self.descend(clients, headed, hooks)
        told = [self._told(net, *each) for each in zip(clients, trained, before, strict=True)]
        for client, own in zip(clients, trained, strict=True):
            self.take(client, own)
        return [r | {"shared": own[: len(sent["shared"])]} for r, own, sent in zip(told, trained, given, strict=True)]

    def _align(self, now: Now) -> "Tensor":
        return self.lam * (prototypes.away(now, now.carried["prototypes"]) * now.share).sum(1)

    def _told(
        self, net: Net, client: ClientSide, own: Vector, before: tuple[Array, prototypes.Counts, float]
    ) -> dict[str, Any]:
        """Return V and h by the base that came, and the sums of features by the trained one: what is of use."""
        (sums, counts, square), n = before, len(client.y)
        told: dict[str, Any] = {}
        tables: dict[str, Any] = {}
        if self.mix_heads:
            h = sums / n  # π_c m_c
            tables["h"] = h.astype(np.float32)
            told["variance"] = max((square / n - float(np.vdot(h, h))) / n, 0.0)
        if self.lam:
            after, _ = prototypes.class_sums(net, own, client.x, client.y)
            tables |= {"counts": counts, "sums": after.astype(np.float32)}
        return told | ({"features": prototypes.only_present(counts, **tables)} if tables else {})

    def told(self, question: Question) -> dict[str, Any]:
        """Return what a client's reply must be."""
        sent: Any = question.payload
        told: dict[str, Any] = {"shared": learnt(sent["shared"])}
        tables: dict[str, Numbers | Learnt] = {}
        if self.mix_heads:
            tables["h"] = self.features_of(question)
            told["variance"] = Number(0, self.net_for(question).features * LARGEST_LEARNT**2)
        if self.lam:
            tables["counts"] = Numbers((), "int32", 1, question.samples)
            tables["sums"] = self.features_of(question, samples=question.samples)
        return told | ({"features": ByClass(tables)} if tables else {})

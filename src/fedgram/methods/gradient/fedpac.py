"""FedPAC: features are aligned by shared prototypes, and each client's head is the best mixture of all heads."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import nnls

from fedgram.core.arrays import Array
from fedgram.core.schema import NotNegative
from fedgram.methods.gradient.fedper import FedPer
from fedgram.methods.gradient.gradient_method import Averaged, Training, training_step
from fedgram.nets import Hooks, Net, Now, Tensor, Vector, prototypes
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.registry import register
from fedgram.protocol.replies import LARGEST_LEARNT, ByClass, Learnt, Number, Numbers, Question, learnt

SMALLEST = 1e-3  # heads of less weight are left out


@register
@dataclass(frozen=True, kw_only=True)
class FedPAC(FedPer):
    """FedPAC — Xu et al. 2023, Algorithm 1: a shared base, features drawn to shared prototypes, and mixed heads.

    A client trains its head for an epoch (`head_lr`), then its base with λ · mean((z - c̄_y)²) beside the cross
    entropy. Before training it computes, with the base received, h_kc = π_c m_c, its class means times class
    frequencies, and their variance V_k. Its next head is Σ_j α_kj φ_j with the weights on the simplex that minimise
    αᵀ(diag(V) + G_k)α, where G_k[j, l] = Σ_c ⟨h_kc - h_jc, h_kc - h_lc⟩; fit.notes["head weights"] has the weights of
    the last round, with the clients in the order of their names. With `mix_heads=False` heads stay private; with λ = 0
    as well, it is FedPer that trains head and base in turn.

    Parameters
    ----------
    lam
        λ, how strongly features are drawn to the shared prototypes.
    head_lr
        The learning rate of the head's epoch.
    mix_heads
        Whether heads are mixed; otherwise they stay private.

    """

    adds = False
    rates = ("lr", "head_lr")

    lam: NotNegative = 1.0
    head_lr: NotNegative = 0.1
    mix_heads: bool = True

    # server
    def serve(self, clients: Clients) -> None:
        """Let every client end with a network of its own."""
        net, first = self.begin(clients)
        self.check_base(net)
        shared, pooled = Averaged(first[net.base], net.buffers, self._server), None
        heads = dict.fromkeys(clients.names, first[net.head] if self.mix_heads else first[:0])
        for number in clients.rounds_of(self.rounds):
            asked = self.asked(clients)
            given = {name: {"shared": np.append(shared.weights, heads[name]), "prototypes": pooled} for name in asked}
            total, told = np.zeros(net.base.stop), {}
            for name, reply in clients.call(self.train, per_client=given):
                # Added up as they come, so that the server never holds all bases.
                total += clients.samples[name] * reply["shared"][net.base].astype(np.float64)
                told[name] = reply | {"head": np.array(reply.pop("shared")[net.base.stop :])}
            shared.move((total / sum(clients.samples[name] for name in told)).astype(np.float32))
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
        self.give_to_the_unasked(clients, shared.weights)

    # client
    @training_step(reply=lambda method, question: method.told(question))
    def train(self, client: ClientSide, sent: dict[str, Any]) -> Training[Any]:
        """Return the shared part after training first the head, then the base, and statistics of the features."""
        net, start = self.net_of(client), self.completed(client, sent["shared"])
        before = prototypes.class_sums_and_square(net, start, client.x, client.y)
        base, head = self.halves(net)
        # Random numbers of its own, so that the base's training shuffles as FedPer's does.
        once: dict[str, Any] = {"lr": self.scheduled(self.head_lr, client.round), "epochs": 1, "steps": None}
        headed = yield from self.descend(client, start, only=head, rng=client.rng.spawn(1)[0], **once)
        if sent["prototypes"] is None:
            own = yield from self.descend(client, headed, only=base)
        else:
            aims = {"prototypes": prototypes.aims(*before[:2], sent["prototypes"])}
            own = yield from self.descend(client, headed, Hooks(term=self._align), carried=aims, only=base)
        told = self._told(net, client, own, before)
        self.take(client, own)
        return told | {"shared": own[: len(sent["shared"])]}

    def _align(self, now: Now) -> Tensor:
        return self.lam * (prototypes.away(now, now.carried["prototypes"]) * now.share).sum(1)

    def _told(
        self, net: Net, client: ClientSide, own: Vector, before: tuple[Array, prototypes.Counts, float]
    ) -> dict[str, Any]:
        """Return the statistics in use: V and h with the base received, sums of features with the trained base."""
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
        """Return the rule for a client's reply."""
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


def smallest_on_simplex(q: Array) -> Array:
    """Return α ≥ 0 with Σα = 1 that minimises αᵀQα, for a positive semidefinite Q (n, n).

    Least squares without negative values solve it: the x ≥ 0 that minimises xᵀQx + s(Σx - 1)² has the same optimality
    conditions as α = x / Σx, for any s > 0.

    >>> smallest_on_simplex(np.diag([1.0, 3.0]))
    array([0.75, 0.25])
    """
    largest = np.diagonal(q).max()
    if not largest > np.finfo(float).tiny:  # every α is as good
        return np.full(len(q), 1 / len(q))
    q = q / largest
    diagonal = np.diagonal(q)
    # In units of each point's own size, so that one of an absurd size takes no digits from the others.
    units = 1 / np.sqrt(np.maximum(diagonal, 1e-9 * diagonal[diagonal > 0].min()))
    units /= units.max()
    scaled = q * units * units[:, None]
    values, vectors = np.linalg.eigh(scaled / (np.trace(scaled) / len(q)))
    root = np.sqrt(values.clip(0))[:, None] * vectors.T  # rootᵀ root = Q in these units
    try:
        y, _ = nnls(np.vstack([root, units]), np.append(np.zeros(len(q)), 1.0), maxiter=100 * len(q))
    except RuntimeError:  # no end in sight: the best of single points
        return np.asarray(np.eye(len(q))[diagonal.argmin()])
    x = units * y
    return np.asarray(x / x.sum())


def best_mixtures(points: Array, variances: Array, smallest: float = 0.0) -> Array:
    """Return for each point h_k the weights α_k that estimate it best by Σ_j α_kj h_j, (K, K), from points (K, m).

    Point j is known up to its variance V_j: α_k minimises ‖h_k - Σ_j α_j h_j‖² + Σ_j α_j² V_j = αᵀ(G_k + diag(V))α on
    the simplex, where G_k[j, l] = ⟨h_k - h_j, h_k - h_l⟩. Weights below `smallest` are then dropped, never all of them.
    """
    centered = points - points.mean(axis=0)  # only differences count, and products of small numbers are more exact
    products, rows = centered @ centered.T, []
    for k, own in enumerate(products):
        weights = smallest_on_simplex(own[k] - own[:, None] - own + products + np.diag(variances))
        kept = np.where(weights < min(smallest, weights.max() / 2), 0, weights)
        rows.append(kept / kept.sum())
    return np.stack(rows)

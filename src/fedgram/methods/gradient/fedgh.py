"""FedGH: the server trains one head for all on the clients' mean features."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from fedgram.core.errors import InvalidData
from fedgram.methods.gradient.base import GradientMethod
from fedgram.nets import Hooks, Net, Plan, net_for, train
from fedgram.nets.layers import Vector
from fedgram.nets.prototypes import class_means, class_sums, only_present
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import ByClass, Question


@register
@dataclass(frozen=True, kw_only=True)
class FedGH(GradientMethod):
    """FedGH — Yi et al. 2023: clients keep their bases; the server trains the head on their mean features by class.

    A client puts the global head φ on its own base, trains both, and sends for each of its classes the mean r_kc of
    the features. The server takes `server_epochs` gradient steps on the mean cross entropy of φ over all pairs (r_kc,
    c). The paper steps once for each client in turn; all pairs at once do not depend on who comes first, and ten steps
    are as many as its ten clients a round make. A client's model is what it trained.
    """

    personal = True
    remembers = True
    judged_by_own = True
    needs_base = True

    # After more epochs scores are so large that their rounding shows.
    quick = MappingProxyType({**GradientMethod.quick, "epochs": 5})

    server_lr: float = 0.01
    server_epochs: int = 10

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        super().__post_init__()
        self.check_not_negative("server_lr", "server_epochs")

    # server
    def serve(self, clients: Clients) -> None:
        """Let every client end with a network of its own."""
        net, first = self.begin(clients)
        self.check_base(net)
        # As a network of its own the head is trained by the same loop as any other.
        alone, head = net_for("linear", (net.features,), net.classes), first[net.head]
        self.check_linear_head(net)
        for number in clients.rounds_of(self.rounds):
            told = dict(clients.call(self.train, head, to=self.asked(clients)))
            head = self.taught(alone, head, [told[name] for name in sorted(told)], clients.rng)
            clients.report(number)

    def taught(self, net: Net, head: Vector, told: Sequence[Any], rng: np.random.Generator) -> Vector:
        """Return the head after the server's gradient steps on all clients' mean features."""
        if not self.server_epochs:
            return head
        means, labels = (np.concatenate([pairs[name] for pairs in told]) for name in ("means", "classes"))
        plan = Plan(lr=self.server_lr, batch=len(labels), epochs=self.server_epochs)
        # A head without constants keeps them at zero.
        start = np.append(head, np.zeros(net.size - len(head), dtype=np.float32))
        hooks = Hooks(only=[(np.arange(net.size) < len(head)).astype(np.float32)])
        [[trained], _] = train(net, [(means, labels.astype(np.int64))], [start], [rng], plan, hooks)
        if not np.isfinite(trained).all():
            raise InvalidData(f"the server's training of the head diverged: take a smaller server_lr than {plan.lr}")
        return trained[: len(head)]

    # client
    @step(batched=True, reply=lambda method, question: method.pairs(question))
    def train(self, clients: Sequence[ClientSide], heads: Sequence[Vector]) -> list[Any]:
        """Return the mean features of the client's classes, after SGD of its own base and the head that came."""
        trained = self.descend(clients, list(map(self.started, clients, heads)))
        net = self.net_of(clients[0])
        replies = []
        for client, own in zip(clients, trained, strict=True):
            sums, counts = class_sums(net, own, client.x, client.y)
            replies.append(only_present(counts, means=class_means(sums, counts).astype(np.float32)))
        for client, own in zip(clients, trained, strict=True):
            self.take(client, own)
        return replies

    def started(self, client: ClientSide, head: Vector) -> Vector:
        """Return what the client begins with: its own base under the global head."""
        return np.concatenate([client.state["own"][: -len(head)], head])

    def pairs(self, question: Question) -> ByClass:
        """Return what a client's mean features must be."""
        return ByClass({"means": self.features_of(question)})

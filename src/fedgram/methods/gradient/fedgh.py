"""FedGH: the server trains one head for all on the clients' mean features."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from fedgram.core.errors import InvalidData
from fedgram.core.schema import Natural, NotNegative
from fedgram.methods.gradient.gradient_method import OwnModels, Training, training_step
from fedgram.nets import Hooks, Net, Plan, Vector, net_for, train
from fedgram.nets.prototypes import class_means, class_sums, only_present
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.registry import register
from fedgram.protocol.replies import ByClass, Question


@register
@dataclass(frozen=True, kw_only=True)
class FedGH(OwnModels):
    """FedGH — Yi et al. 2023: clients keep their bases; the server trains the head on their mean features by class.

    A client puts the global head φ on its own base, trains both, and sends for each of its classes the mean r_kc of
    the features. The server takes `server_epochs` gradient steps on the mean cross entropy of φ over all pairs (r_kc,
    c). The paper takes one step per client in turn; steps on all pairs do not depend on the order of clients, and the
    default of ten steps equals the paper's ten clients a round. A client's model is the one that it trained.

    Parameters
    ----------
    server_lr
        The learning rate of the server's steps.
    server_epochs
        The number of steps that the server takes in a round.

    """

    needs_base = True

    # After more epochs, scores are so large that rounding errors are visible.
    quick = MappingProxyType({**OwnModels.quick, "epochs": 5})

    server_lr: NotNegative = 0.01
    server_epochs: Natural = 10

    # server
    def serve(self, clients: Clients) -> None:
        """Let every client end with a network of its own."""
        net, first = self.begin(clients)
        self.check_base(net)
        # The head is trained as a linear network, by the same loop as other networks.
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
    @training_step(reply=lambda method, question: method.pairs(question))
    def train(self, client: ClientSide, head: Vector) -> Training[Any]:
        """Return the mean features of the client's classes, after SGD of its own base and the global head."""
        own = yield from self.descend(client, self.started(client, head))
        sums, counts = class_sums(self.net_of(client), own, client.x, client.y)
        self.take(client, own)
        return only_present(counts, means=class_means(sums, counts).astype(np.float32))

    def started(self, client: ClientSide, head: Vector) -> Vector:
        """Return the first weights of a client's training: its own base with the global head."""
        return np.concatenate([client.state["own"][: -len(head)], head])

    def pairs(self, question: Question) -> ByClass:
        """Return the rule for a client's mean features in its reply."""
        return ByClass({"means": self.features_of(question)})

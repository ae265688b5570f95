"""FedPCL: each client learns a projection of its own by comparing samples with the class means of all clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgram.core.errors import InvalidParameter
from fedgram.methods.gradient.base import GradientMethod
from fedgram.nets import Hooks, Net, Now, net_for
from fedgram.nets.layers import Shape, Vector, as_tensor
from fedgram.nets.nearest import NEVER, NearestPrototype
from fedgram.nets.prototypes import filled
from fedgram.protocol import replies
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import SOMETHING, Numbers, Question

if TYPE_CHECKING:
    from torch import Tensor

PROJECTION = "mlp:256"  # relu(Linear(d, 256)) below the last layer
ONE = 1 + 1e-5  # rounding may take a mean of vectors of length one a little beyond


@dataclass(frozen=True)
class Means:
    """A reply of class means on the unit sphere, in the order of the classes that are `known`."""

    width: int

    def check(self, value: Any, question: Question, where: str) -> None:
        """Refuse anything else."""
        known = Numbers((len(question.classes),), "bool")
        replies.check(value, {"known": known, "means": SOMETHING}, question, where)
        rows = Numbers((int(value["known"].sum()), self.width), "float32", low=-ONE, high=ONE)
        rows.check(value["means"], question, f"{where}/means")


@register
@dataclass(frozen=True, kw_only=True)
class FedPCL(GradientMethod):
    """FedPCL — Tan et al. 2022, Algorithm 1: private projections, drawn to every client's mean of a sample's class.

    z, the features at length one, is what a client's own projection makes of a sample. C_p(c) is the mean of z over
    client p's samples of class c, C̄(c) the plain mean of these over the clients that have the class, which also stands
    in where one lacks it. The loss is L_g + L_p: the cross entropy of softmax_c(z·C̄(c)/τ), and the mean over
    clients p of that of softmax_c(z·C_p(c)/τ). There is no head: a client predicts the nearest of its own means.

    A client sends its means and is sent those of all. Nobody has any before the first round, in which none trains. The
    projection is all layers below the last, so on a backbone's features relu(Linear(d, 256)). The authors train
    with Adam; this is SGD, as in the papers that compare with it. With τ → ∞ the projection stays where it began.
    """

    personal = True
    remembers = True
    judged_by_own = True
    needs_base = True

    tau: float = 0.07

    def __post_init__(self) -> None:
        """Refuse a temperature that nothing can be divided by."""
        super().__post_init__()
        if not 0 < self.tau < float("inf"):
            raise InvalidParameter(f"tau must be a number > 0, got {self.tau}")

    def net(self, shape: Shape, classes: int, *, memory: bool = False) -> Net:
        """Return the network; for features the paper's projection unless another is asked for."""
        if self.network == "auto" and len(shape) == 1:
            return net_for(PROJECTION, tuple(shape), classes, memory=memory)
        return super().net(shape, classes, memory=memory)

    # server
    def serve(self, clients: Clients) -> None:
        """Let every client end with a projection and class means of its own."""
        net, _ = self.begin(clients)
        self.check_base(net)
        sent: dict[str, Any] = {}  # the last means of every client that has taken part
        for number in clients.rounds_of(self.rounds):
            here = [sent[name] for name in sorted(clients.names) if name in sent]
            means = {
                "known": np.array([one["known"] for one in here], dtype=bool).reshape(len(here), net.classes),
                "means": np.concatenate([np.zeros((0, net.features), np.float32), *(one["means"] for one in here)]),
            }
            sent.update(clients.call(self.train, means, to=self.asked(clients)))
            clients.report(number)

    # client
    @step(batched=True, reply=lambda method, question: Means(method.net_for(question).features))
    def train(self, clients: Sequence[ClientSide], sent: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the class means after SGD; the projection stays here."""
        vectors = [client.state["own"] for client in clients]
        if len(sent[0]["known"]):
            # All are sent the same, and nobody copies it: it is the most that a client has to hold.
            sets, known = as_tensor(filled(**sent[0])), as_tensor(sent[0]["known"].any(axis=0))
            vectors = self.descend(clients, vectors, Hooks(term=partial(self._contrast, sets, known)))
        models = list(map(self._nearest, clients, vectors))
        for client, vector, model in zip(clients, vectors, models, strict=True):
            self.remember(client, vector)
            client.keep(model)
        return [{"known": model.known, "means": model.prototypes[model.known]} for model in models]

    def keep(self, client: ClientSide, vector: Vector) -> None:
        """Keep a projection with the client's class means by it."""
        client.keep(self._nearest(client, vector))

    def _nearest(self, client: ClientSide, vector: Vector) -> NearestPrototype:
        net, features = self.net_of(client), client.data.features
        return NearestPrototype.of(net, vector, client.x, client.y, client.classes, features)

    def _contrast(self, sets: "Tensor", known: "Tensor", now: Now) -> "Tensor":
        """Return L_g + L_p without the cross entropy of the head, which the loop adds.

        `sets` (1 + p, c, width) are the mean set and that of each client, `known` (c,) the classes that somebody has.
        """
        from torch.nn.functional import cross_entropy, normalize

        z = normalize(now.features, dim=1, eps=1e-8).transpose(0, 1)
        scores = (sets.flatten(0, 1) @ (z.flatten(1) / self.tau)).view(*sets.shape[:2], *now.y.shape)
        scores.masked_fill_(~known[:, None, None], NEVER)
        losses = cross_entropy(scores, now.y.expand(len(sets), -1, -1), reduction="none")
        # A class that nobody has sent yet, but this client has, is nothing to be drawn to.
        each = (losses * now.share * known[now.y]).sum(2)
        return each[0] + each[1:].mean(0) - now.losses

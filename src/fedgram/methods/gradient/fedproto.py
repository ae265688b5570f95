"""FedProto: clients share the means of their features by class, and nothing else."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fedgram.core.errors import InvalidParameter
from fedgram.core.schema import NotNegative
from fedgram.methods.gradient.fedpcl import NEVER
from fedgram.methods.gradient.gradient_method import OwnModels, Training, training_step
from fedgram.nets import Hooks, Now, Tensor, Vector
from fedgram.nets.prototypes import away, class_means, class_sums
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.registry import register
from fedgram.protocol.replies import Learnt, Numbers, Question


@register
@dataclass(frozen=True, kw_only=True)
class FedProto(OwnModels):
    """FedProto — Tan et al. 2022, Algorithm 1: a sample's features are drawn to the prototype of its class.

    The term is λ · mean((z - C_y)²) of the features z.

    C_y is the mean over clients of their mean features of class y, weighted by samples. A client sends these means and
    the number of samples behind each; its network never leaves it. It predicts with its own head or, with
    `predict` = "prototype", by the nearest prototype among its own classes. With λ = 0 each client trains alone.

    Parameters
    ----------
    lam
        λ, how strongly features are drawn to the prototypes.
    predict
        Whether a client predicts with its head, or by the nearest prototype.

    """

    adds = True
    needs_base = True

    lam: NotNegative = 1.0
    predict: Literal["head", "prototype"] = "head"

    # server
    def serve(self, clients: Clients) -> None:
        """Let every client end with a network of its own."""
        net, _ = self.begin(clients)
        if self.predict == "head":
            self.check_base(net)
        elif net.head.stop - net.head.start == net.classes * net.features:
            raise InvalidParameter(f"predict='prototype' needs a head with bias, and that of {net.network!r} has none")
        prototypes = np.zeros((net.classes, net.features), dtype=np.float32)
        known = np.zeros(net.classes, dtype=np.float32)
        for number in clients.rounds_of(self.rounds):
            global_means = {"prototypes": prototypes, "known": known}
            sums: Any = clients.sum(self.train, global_means, to=self.asked(clients))
            met = sums["counts"] > 0
            prototypes[met] = sums["features"][met] / sums["counts"][met, None]
            known[met] = 1
            clients.report(number)

    # client
    @training_step(reply=lambda method, question: method.sums_of(question))
    def train(self, client: ClientSide, sent: dict[str, Vector]) -> Training[dict[str, Any]]:
        """Return the sums of the features of each class after SGD, and the numbers of samples."""
        carried = {name: sent[name] for name in ("prototypes", "known")}
        own = yield from self.descend(client, client.state["own"], Hooks(term=self._regularize), carried=carried)
        sums = self._sums(client, own)
        self.take(client, own)
        if self.predict == "prototype":
            self.keep(client, self._by_prototype(client, own, sums, sent))
        return sums

    def sums_of(self, question: Question) -> dict[str, Numbers | Learnt]:
        """Return the rule for a client's sums in its reply."""
        sums = self.features_of(question, samples=question.samples)
        counts = Numbers((len(question.classes),), "int32", low=0, high=question.samples)
        return {"features": replace(sums, shape=(*counts.shape, *sums.shape)), "counts": counts}

    def _regularize(self, now: Now) -> Tensor:
        """Return λ mean((z - C_y)²) for each client; a class without a prototype adds nothing."""
        apart = away(now, now.carried["prototypes"])
        return self.lam * (apart * now.share * now.carried["known"].gather(1, now.y)).sum(1)

    def _sums(self, client: ClientSide, own: Vector) -> dict[str, Any]:
        sums, counts = class_sums(self.net_of(client), own, client.x, client.y)
        # The network computes with 32 bits; more would only be more to send.
        return {"features": sums.astype(np.float32), "counts": counts}

    def _by_prototype(self, client: ClientSide, own: Vector, sums: dict[str, Any], given: dict[str, Vector]) -> Vector:
        """Return the network with a head whose best score is the nearest prototype: z·C_y - ½‖C_y‖²."""
        mine = sums["counts"] > 0
        prototypes = class_means(sums["features"], sums["counts"])
        shared = mine & (given["known"] > 0)
        prototypes[shared] = given["prototypes"][shared]
        constants = np.where(mine, -0.5 * np.square(prototypes).sum(axis=1), NEVER)
        head = np.concatenate([prototypes.ravel(), constants]).astype(np.float32)
        return np.concatenate([own[self.net_of(client).base], head])

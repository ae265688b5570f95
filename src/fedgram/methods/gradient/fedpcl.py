"""FedPCL: each client learns a projection of its own by comparing samples with the class means of all clients."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.classes import Classes
from fedgram.core.columns import Columns
from fedgram.core.errors import Mismatch
from fedgram.core.schema import Positive
from fedgram.methods.gradient.gradient_method import OwnModels, Training, once, training_step
from fedgram.nets import Hooks, Net, Now, Shape, Tensor, Vector, net_for
from fedgram.nets.factories import is_admitted
from fedgram.nets.layers import as_tensor
from fedgram.nets.prototypes import class_means, class_sums, filled, on_sphere
from fedgram.nets.trained_net import NetModel, outputs
from fedgram.protocol import replies
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.registry import register
from fedgram.protocol.replies import SOMETHING, Numbers, Question

NEVER = -1e30  # the score of a class without a mean


@wire.message("nearest-prototype", version=1)
@dataclass(frozen=True, eq=False)
class NearestPrototype(NetModel):
    """A network whose features z, brought to length one, are compared with class means C; its head is not used.

    The score of a class is z·C - ½‖C‖², which is highest for the nearest mean. A class that is not `known` never wins.
    """

    network: str
    shape: Shape
    classes: Classes
    vector: Annotated[Vector, wire.Shape("p")]
    prototypes: Annotated[Vector, wire.Shape("c", "w")]
    known: Annotated[npt.NDArray[np.bool_], wire.Shape("c")]
    features: str = ""
    columns: Columns = ()

    def __post_init__(self) -> None:
        """Refuse arrays that do not fit; a network that this process does not trust is not imported for that."""
        if not is_admitted(self.network):
            return
        wanted = (len(self.classes), self.net.features)
        if np.shape(self.prototypes) != wanted:
            raise Mismatch(
                f"{self.network!r} needs class means of shape {wanted} here, got {np.shape(self.prototypes)}"
            )

    @classmethod
    def of(
        cls,
        net: Net,
        vector: Vector,
        x: npt.NDArray[Any],
        y: npt.NDArray[np.int64],
        classes: Classes,
        features: str = "",
    ) -> "NearestPrototype":
        """Return the model with the means of these samples; it knows the classes that they have."""
        sums, counts = class_sums(net, vector, x, y, unit=True)
        means = class_means(sums, counts).astype(np.float32)
        own = np.array(vector)  # a row of many would keep them all in memory
        return cls(net.network, net.shape, classes, own, means, counts > 0, features)

    def score_block(self, block: npt.NDArray[Any], out: Array) -> None:
        """Write the scores of a block of samples."""
        [(features, _)] = outputs(self.net, self.vector, block)
        means = self.prototypes.astype(np.float64)
        out[:] = on_sphere(features.astype(np.float64)) @ means.T - 0.5 * np.square(means).sum(axis=1)
        out[:, ~self.known] = NEVER


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
class FedPCL(OwnModels):
    """FedPCL — Tan et al. 2022, Algorithm 1: private projections, drawn to every client's mean of a sample's class.

    A client's own projection maps a sample to z, features of length one. C_p(c) is the mean of z over client p's
    samples of class c. C̄(c) is the plain mean of C_p(c) over the clients that have the class, and takes the
    place of C_p(c) for the others. The loss is L_g + L_p: the cross entropy of softmax_c(z·C̄(c)/τ), and the mean over
    clients p of that of softmax_c(z·C_p(c)/τ). There is no head: a client predicts the nearest of its own means.

    A client sends its means and is sent those of all. No client has any before the first round, in which none trains.
    The projection is all layers below the last, so on a backbone's features relu(Linear(d, 256)). The authors train
    with Adam (`optimizer="adam"`); the default is SGD, as in the papers that compare with it. With τ → ∞ the
    projection stays where it began.

    Parameters
    ----------
    tau
        τ, the temperature of the contrast.

    """

    needs_base = True

    tau: Positive = 0.07

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
    @training_step(reply=lambda method, question: Means(method.net_for(question).features))
    def train(self, client: ClientSide, sent: Mapping[str, Any]) -> Training[dict[str, Any]]:
        """Return the class means after SGD; the projection stays here."""
        vector = client.state["own"]
        if len(sent["known"]):
            # Made once for all clients: it is the most that a client has to hold.
            sets = yield from once(sent, _sets)
            vector = yield from self.descend(client, vector, Hooks(term=self._contrast, shared=sets))
        model = self._nearest(client, vector)
        self.remember(client, vector)
        client.keep(model)
        return {"known": model.known, "means": model.prototypes[model.known]}

    def keep(self, client: ClientSide, vector: Vector) -> None:
        """Keep a projection with the client's class means by it."""
        client.keep(self._nearest(client, vector))

    def _nearest(self, client: ClientSide, vector: Vector) -> NearestPrototype:
        net, features = self.net_of(client), client.data.features
        return NearestPrototype.of(net, vector, client.x, client.y, client.classes, features)

    def _contrast(self, now: Now) -> Tensor:
        """Return L_g + L_p without the cross entropy of the head, which the loop adds."""
        from torch.nn.functional import cross_entropy, normalize

        sets, known = now.shared
        z = normalize(now.features, dim=1, eps=1e-8).transpose(0, 1)
        scores = (sets.flatten(0, 1) @ (z.flatten(1) / self.tau)).view(*sets.shape[:2], *now.y.shape)
        scores.masked_fill_(~known[:, None, None], NEVER)
        losses = cross_entropy(scores, now.y.expand(len(sets), -1, -1), reduction="none")
        # A class that no client has sent yet, but this one has, is nothing to be drawn to.
        each = (losses * now.share * known[now.y]).sum(2)
        total: Tensor = each[0] + each[1:].mean(0) - now.losses
        return total


def _sets(sent: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the mean set and that of each client (1 + p, c, width), and which classes (c,) any client has."""
    return as_tensor(filled(**sent)), as_tensor(sent["known"].any(axis=0))

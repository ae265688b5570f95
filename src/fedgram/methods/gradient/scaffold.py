"""SCAFFOLD: control variates take the clients' drift out of their steps."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.core.schema import BelowOne
from fedgram.methods.gradient.gradient_method import Averaged, Averaging, Training, training_step
from fedgram.nets import Hooks, Now, Tensor, TrainedNet, Vector
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.registry import register
from fedgram.protocol.replies import Learnt, Question, learnt


@register
@dataclass(frozen=True, kw_only=True)
class SCAFFOLD(Averaging):
    """SCAFFOLD — Karimireddy et al. 2020, Algorithm 1: local steps y ← y - η(g(y) - c_k + c), with control variates.

    c_k estimates the gradient of client k, and c is the mean of all c_k, so the correction turns a client's steps from
    its own minimum towards the common one. After K steps from x to y, option II: c_k ← c_k - c + (x - y)/(Kη). The
    server adds the plain mean of the y - x to x, and |S|/N times that of the changes of the c_k to c. Its step size η_g
    is `server` = "momentum:0:η_g".

    The paper's clients take steps without momentum. With momentum m the k-th gradient has moved y by a_k η, a_k = (1 -
    m^(K-k+1))/(1 - m), so K is the sum of the a_k here and c_k is the mean of the gradients with these weights. The
    first round is that of FedAvg with equal weights; so are all rounds if clients are alike. PFLlib's program divides
    by the batches of one epoch, however many epochs there are; here K counts all steps.

    Parameters
    ----------
    momentum
        m, of the clients' SGD.

    """

    adds = True

    momentum: BelowOne = 0.0

    def __post_init__(self) -> None:
        """Raise if a value makes no sense."""
        super().__post_init__()
        self.check_sgd("the control variates are means of its gradients")

    # server
    def serve(self, clients: Clients) -> TrainedNet:
        """Return the global model of the last round."""
        net, first = self.begin(clients)
        world, control = Averaged(first, net.buffers, self._server), np.zeros(net.size - net.buffers)  # x, c
        for number in clients.rounds_of(self.rounds):
            chosen, sent = self.asked(clients), {"weights": world.weights, "control": control.astype(np.float32)}
            mean = clients.mean(self.train, sent, to=chosen, weighted=False)
            world.move(mean["weights"])
            replied = len(set(chosen).intersection(clients.names))
            control += replied / len(clients.names) * mean["control"].astype(np.float64)  # |S|/N Δc
            clients.report(number, self.model(clients, world.weights))
        return self.model(clients, world.weights)

    # client
    @training_step(reply=lambda method, question: method.reply_to(question))
    def train(self, client: ClientSide, sent: dict[str, Any]) -> Training[dict[str, Vector]]:
        """Return y and the change of c_k, which the client remembers."""
        common = sent["control"]
        own = client.state.get("control", np.zeros_like(common))
        hooks = Hooks(gradient=_correct)
        trained = yield from self.descend(client, sent["weights"], hooks, carried={"drift": common - own})
        x, y = (self.trained_part(client, vector) for vector in (sent["weights"], trained))
        way = self.scheduled(self.lr, client.round) * self.steps_length(client.n)  # Kη
        change = ((x - y) / way - common).astype(np.float32)  # c_k⁺ - c_k
        client.state["control"] = own + change
        return {"weights": trained, "control": change}

    def reply_to(self, question: Question) -> dict[str, Learnt]:
        """Return the rule for a client's reply."""
        sent: Any = question.payload
        return {"weights": learnt(sent["weights"]), "control": learnt(sent["control"], unit=1 / self.lr)}


def _correct(now: Now) -> Tensor:
    """Return c - c_k, which is added to the gradient."""
    return now.carried["drift"]

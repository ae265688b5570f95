"""FedSelect: each client makes the weights its own that change most, and shares the rest."""

from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedgram.core.schema import BelowOne, Count, Positive, Share
from fedgram.methods.gradient.gradient_method import Averaged, Averaging, OwnModels, Training, training_step
from fedgram.nets import Net, Vector
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.registry import register
from fedgram.protocol.replies import Either, Numbers, Question, learnt

Mask: TypeAlias = npt.NDArray[np.bool_]  # of a whole vector, True for what is personal


@register
@dataclass(frozen=True, kw_only=True)
class FedSelect(OwnModels, Averaging):
    """FedSelect — Tamirisa et al. 2024, Algorithm 1: a mask says which of a client's weights are its own.

    At first none are. Local training alternates `epochs` times: one epoch of the personal weights, then one of the
    shared (with `local_steps`: so many batches of each, once). After every `every` rounds the share `p` of a matrix'
    shared weights that has moved most since the last selection becomes personal, until `alpha` of the matrix is. Biases
    and running means stay shared. The server takes the plain mean of each number over the clients that share it. A
    client receives and sends only the numbers that it shares; it also sends its mask, as bits, when that has changed.
    With p = 0 it is FedAvg with equal weights.

    Parameters
    ----------
    lr
        η, the learning rate.
    momentum
        The momentum of each epoch's SGD.
    p
        p, the share of a matrix' shared weights that becomes personal at a selection.
    alpha
        α, the largest share of a matrix that is personal.
    every
        How many rounds pass between two selections.

    """

    quick = MappingProxyType({**Averaging.quick, "rounds": 3, "every": 1, "lr": 0.3})

    # As in the authors' program. Momentum would begin anew with every half of an alternation.
    lr: Positive = 0.05
    momentum: BelowOne = 0.0
    p: Share = 0.25
    alpha: Share = 0.8
    every: Count = 3

    # server
    def serve(self, clients: Clients) -> None:
        """Let every client end with a network of its own."""
        net, first = self.begin(clients)
        shared = Averaged(first, net.buffers, self._server)
        masks = {name: np.zeros(net.size, dtype=bool) for name in clients.names}
        for number in clients.rounds_of(self.rounds):
            sent = {name: shared.weights[~masks[name]] for name in self.asked(clients)}
            total, sharing = np.zeros(net.size), np.zeros(net.size)
            replies: dict[str, Any] = dict(clients.call(self.train, per_client=sent))
            for name, reply in sorted(replies.items()):
                total[~masks[name]] += reply["shared"]
                sharing += ~masks[name]
                if reply["mask"] is not None:
                    masks[name] = np.unpackbits(reply["mask"], count=net.size).astype(bool)
            mean = np.where(sharing > 0, total / np.maximum(sharing, 1), shared.weights)
            shared.move(mean.astype(np.float32))
            clients.report(number)
        self.give_to_the_unasked(clients, shared.weights)

    # client
    @training_step(reply=lambda method, question: method.shared_part(question))
    def train(self, client: ClientSide, sent: Vector) -> Training[dict[str, Any]]:
        """Return the client's shared weights after training, and its mask if that has changed."""
        mask = client.state.get("mask", np.zeros(len(client.state["own"]), dtype=bool))
        vector = np.array(client.state["own"])
        vector[~mask] = sent
        halves = [mask, ~mask] * (self.epochs if self.local_steps is None else 1)  # LocalAlt
        for stage, moving in enumerate(self.trained_part(client, half.astype(np.float32)) for half in halves):
            if moving.any():
                vector = yield from self.descend(client, vector, only=moving, stage=stage, epochs=1)
        since, chosen = client.state.get("since", client.state["own"]), mask
        if client.round and client.round % self.every == 0:
            chosen, since = self.select(self.net_of(client), mask, np.abs(vector - since)), np.array(vector)
        client.state |= {"mask": chosen, "since": since}
        self.take(client, vector)
        return {"shared": vector[~mask], "mask": None if np.array_equal(chosen, mask) else np.packbits(chosen)}

    def shared_part(self, question: Question) -> dict[str, Any]:
        """Return the rule for a reply: as many numbers as were sent, and None or a bit for each of the vector."""
        bits = Numbers(((self.net_for(question).size + 7) // 8,), "uint8")
        return {"shared": learnt(question.payload), "mask": Either(None, bits)}

    def select(self, net: Net, mask: Mask, moved: Vector) -> Mask:
        """Return the mask with more personal weights, those that have moved most: GradSelect."""
        chosen, shapes = mask.copy(), [shape for shapes in net.layer_shapes for shape in shapes]
        ends = accumulate(map(prod, shapes), initial=net.buffers)
        for shape, (start, end) in zip(shapes, pairwise(ends), strict=True):
            shared = start + np.flatnonzero(~mask[start:end])
            if len(shape) > 1 and 1 - len(shared) / (end - start) < self.alpha:
                order = np.argsort(-moved[shared], kind="stable")  # so that as many as should be are taken, ties or not
                chosen[shared[order[: int(self.p * len(shared))]]] = True
        return chosen

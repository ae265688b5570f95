"""FedSelect: each client makes the weights its own that change most, and shares the rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import InvalidParameter
from fedgram.methods.gradient.base import GradientMethod
from fedgram.nets import Hooks, Net
from fedgram.nets.layers import Vector
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import Either, Numbers, Question, learnt

Mask: TypeAlias = npt.NDArray[np.bool_]  # of a whole vector, True for what is personal


@register
@dataclass(frozen=True, kw_only=True)
class FedSelect(GradientMethod):
    """FedSelect — Tamirisa et al. 2024, Algorithm 1: a mask says which of a client's weights are its own.

    At first none are. Local training alternates `epochs` times: one epoch of the personal weights, then one of the
    shared (with `local_steps`: so many batches of each, once). After every `every` rounds the share `p` of a matrix'
    shared weights that has moved most since the last selection becomes personal, until `alpha` of the matrix is. Biases
    and running means stay shared. The server averages each number over those who share it, all alike; it sends a client
    what that client shares, and gets that back, and the mask as bits when it has changed. With p = 0 it is FedAvg with
    equal weights.
    """

    personal = True
    remembers = True
    judged_by_own = True
    quick = MappingProxyType({**GradientMethod.quick, "rounds": 3, "every": 1, "lr": 0.3})

    # As in the authors' program. Momentum would begin anew with every half of an alternation.
    lr: float = 0.05
    momentum: float = 0.0
    p: float = 0.25
    alpha: float = 0.8
    every: int = 3

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        super().__post_init__()
        for name in ("p", "alpha"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidParameter(f"{name} must be from 0 to 1, got {getattr(self, name)}")
        if self.every < 1:
            raise InvalidParameter(f"every must be a whole number ≥ 1, got {self.every}")

    # server
    def serve(self, clients: Clients) -> None:
        """Let every client end with a network of its own."""
        net, shared = self.begin(clients)
        masks = {name: np.zeros(net.size, dtype=bool) for name in clients.names}
        for number in clients.rounds_of(self.rounds):
            sent = {name: shared[~masks[name]] for name in self.asked(clients)}
            total, sharing = np.zeros(net.size), np.zeros(net.size)
            replies: dict[str, Any] = dict(clients.call(self.train, per_client=sent))
            for name, reply in sorted(replies.items()):
                total[~masks[name]] += reply["shared"]
                sharing += ~masks[name]
                if reply["mask"] is not None:
                    masks[name] = np.unpackbits(reply["mask"], count=net.size).astype(bool)
            shared = np.where(sharing > 0, total / np.maximum(sharing, 1), shared).astype(np.float32)
            clients.report(number)
        self.give_to_the_unasked(clients, shared)

    # client
    @step(batched=True, reply=lambda method, question: method.shared_part(question))
    def train(self, clients: Sequence[ClientSide], sent: Sequence[Vector]) -> list[dict[str, Any]]:
        """Return what the client shares after training, and its mask if that has changed."""
        masks = [client.state.get("mask", np.zeros(len(client.state["own"]), dtype=bool)) for client in clients]
        trained = [np.array(client.state["own"]) for client in clients]
        for vector, mask, shared in zip(trained, masks, sent, strict=True):
            vector[~mask] = shared
        for _ in range(self.epochs if self.local_steps is None else 1):  # LocalAlt
            trained = self._one_epoch(clients, trained, masks)
            trained = self._one_epoch(clients, trained, [~mask for mask in masks])
        replies = []
        for client, vector, mask in zip(clients, trained, masks, strict=True):
            since, chosen = client.state.get("since", client.state["own"]), mask
            if client.round and client.round % self.every == 0:
                chosen, since = self.select(self.net_of(client), mask, np.abs(vector - since)), np.array(vector)
            changed = not np.array_equal(chosen, mask)
            replies.append({"shared": vector[~mask], "mask": np.packbits(chosen) if changed else None})
            client.state |= {"mask": chosen, "since": since}
            self.take(client, vector)
        return replies

    def shared_part(self, question: Question) -> dict[str, Any]:
        """Return what a reply must be: as many numbers as were sent, and a bit for each of the vector or nothing."""
        bits = Numbers(((self.net_for(question).size + 7) // 8,), "uint8")
        return {"shared": learnt(question.payload), "mask": Either(None, bits)}

    def _one_epoch(self, clients: Sequence[ClientSide], starts: list[Vector], masks: list[Mask]) -> list[Vector]:
        """Return the vectors after SGD on the numbers in the masks alone; who has none there does nothing."""
        only = self.trained_part(clients, [mask.astype(np.float32) for mask in masks])
        busy = [i for i, moving in enumerate(only) if moving.any()]
        ended = list(starts)
        if busy:
            hooks = Hooks(only=[only[i] for i in busy])
            trained = self.descend([clients[i] for i in busy], [starts[i] for i in busy], hooks, epochs=1)
            for i, vector in zip(busy, trained, strict=True):
                ended[i] = vector
        return ended

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

"""pFedACnnL: layer-wise networks for groups of similar clients, then for each client, in closed form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np

from fedgram.core.arrays import Array
from fedgram.layerwise import LayerMoments, Network
from fedgram.layerwise.grouping import choose_groups, group, without_small
from fedgram.layerwise.personal import judge, personalized
from fedgram.layerwise.summary import layer_moments
from fedgram.methods.layerwise.fedacnnl import FedACnnL
from fedgram.moments.accumulate import check_finite
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.parameters import Count, Positive
from fedgram.protocol.registry import register
from fedgram.protocol.replies import Numbers, Question

# A member of a smaller group could tell the one other member's moments from the group's.
LEAST_MEMBERS = 3
# The paper's ε, for whoever has nothing to judge by.
UNJUDGED = 2500.0
ROUNDING = 1e-9


@register
@dataclass(frozen=True, kw_only=True)
class PFedACnnL(FedACnnL):
    """pFedACnnL — Gu et al. 2025, section 4: a meta-model per group of clients, then a ridge towards it.

    Clients with similar labels form a group, (8) and (9), which trains a network as FedACnnL does, (10) and (11). Each
    client then solves every layer again on its own samples, drawn by ε towards the meta-model, (12) and (13).
    `cluster=False` is the paper's -WC (one group), `personalize=False` its -WP (the meta-model is the client's model).
    Its values are ε = 2500 and 10 groups. By default all clients are one group, and tell no histograms: with ε
    chosen for each client, groups of similar labels gain nothing, and lose points where samples are few.
    `groups="auto"` finds their number from the label histograms alone.

    `epsilon="auto"` takes ε per client and layer by what it predicts for samples left out, towards a meta-model that
    has not seen the client: the group's moments without its own. Where that predicts better, only the output layer is
    personalized. For all this a client downloads its group's moments, as large as its upload; a number needs no such
    download. Groups of fewer than three then join the nearest larger one. Where a layer's moments are of only two
    clients all the same, because there are no more or others were lost, each could compute the other's: they are not
    sent, and the group takes the paper's ε = 2500.
    """

    revision: ClassVar[int] = 3
    personal = True
    quick = MappingProxyType({"groups": "auto"})

    epsilon: Positive | Literal["auto"] = "auto"
    groups: Count | Literal["auto"] = 1
    cluster: bool = True
    personalize: bool = True

    @property
    def _judges(self) -> bool:
        return self.personalize and self.epsilon == "auto"

    # server
    def serve(self, clients: Clients) -> Network | None:
        """Group the clients, train a meta-model per group, and let every client personalize."""
        seed = self._seed(clients)
        groups = self._grouped(clients, seed) if self.cluster and self.groups != 1 else [clients.names]
        trained = self._train(clients, seed, groups)  # M̂_l — (10), (11)
        networks, left = trained.networks, set(clients.names)
        sent = [
            parts if self._judges and _hides_members(counts) else None
            for parts, counts in zip(trained.moments, trained.members, strict=True)
        ]
        tasks = {
            name: {
                "solution": networks[k].solutions[-1],
                "temperature": networks[k].temperature,
                "moments": sent[k],
                "gammas": trained.gammas,
            }
            for k, names in enumerate(trained.groups)
            for name in names
            if name in left
        }
        clients.each(self.refit, per_client=tasks)
        clients.report(networks[0].depth)
        return networks[0] if len(networks) == 1 else None

    def _grouped(self, clients: Clients, seed: int) -> list[list[str]]:
        """Return the clients' names by group; the same for any order of the clients."""
        encoded = {reply.client: reply.value for reply in clients.call(self.describe, seed)}
        names = sorted(encoded)
        points, shuffle = np.stack([encoded[name] for name in names]), int(clients.rng.integers(2**31))
        found = choose_groups(points, shuffle) if self.groups == "auto" else group(points, self.groups, shuffle)  # 𝔖_k
        if self._judges:
            found = without_small(points, found, LEAST_MEMBERS)
        return [[name for name, k in zip(names, found, strict=True) if k == one] for one in range(found.max() + 1)]

    # client
    @step(reply=lambda method, question: method.description_of(question))
    def describe(self, client: ClientSide, seed: int) -> Array:
        """Return h_i — (8), (9): the label histogram under the narrowest encoding (the paper prints Qy for Qᵀy)."""
        check_finite(client.x)  # before it has a say in who belongs together
        histogram = np.bincount(client.y, minlength=len(client.classes)) / len(client.y)
        # Without a hidden layer there is no encoding: the histogram itself is sent.
        return self._empty(client.x.shape[1:], client.classes, seed).encode(histogram)

    def description_of(self, question: Question) -> Numbers:
        """Return what a client's description must be: a mixture of the descriptions of the classes."""
        seed: Any = question.payload
        classes = self._empty(question.shape, question.classes, seed).encode(np.eye(len(question.classes)))
        return Numbers(classes.shape[1:], low=classes.min() - ROUNDING, high=classes.max() + ROUNDING)

    @step
    def refit(self, client: ClientSide, task: Mapping[str, Any]) -> None:
        """Keep the personal network Ŵ_1 … Ŵ_L — (12), (13) — or, without personalization, the meta-model."""
        meta: Network = client.state["network"].extend(task["solution"])
        meta = replace(meta, temperature=task["temperature"])
        if self.personalize:
            if task["moments"] is not None:
                epsilons = self._judged(client, meta, task["moments"], task["gammas"])
            else:
                epsilons = [UNJUDGED if self.epsilon == "auto" else float(self.epsilon)] * meta.depth
            meta = personalized(meta, client.x, client.y, epsilons, batch=self.batch)
        client.keep(meta)

    def _judged(
        self, client: ClientSide, meta: Network, everyone: Sequence[LayerMoments], gammas: Sequence[float]
    ) -> list[float]:
        """Return ε for each layer, judged with the group's solutions without this client."""
        others = [
            total - layer_moments(meta.truncate(depth), client.x, client.y, batch=self.batch)
            for depth, total in enumerate(everyone)
        ]
        solutions = [rest.solve(meta.problem(depth), gammas[depth]) for depth, rest in enumerate(others)]
        return judge(meta, solutions, client.x, client.y, batch=self.batch)


def _hides_members(counts: Sequence[int]) -> bool:
    """Say whether a member can tell no other one's moments from those of a group, of so many clients in each layer."""
    return all(count >= LEAST_MEMBERS for count in counts) or all(count == 1 for count in counts)

"""FedACnnL: networks trained layer by layer in closed form, across clients."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from fedgram.core.errors import InvalidParameter
from fedgram.heads.leastsquares import least_squares
from fedgram.layerwise import Network, NetworkSoFar, layer_moments, read_stack
from fedgram.layerwise.batches import check_clients, read_limits
from fedgram.layerwise.layers import rows_per_sample
from fedgram.models import Model
from fedgram.moments.moments import Moments
from fedgram.moments.total import Total
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import Method, step
from fedgram.protocol.parameters import NotNegative
from fedgram.protocol.registry import register
from fedgram.protocol.replies import MomentsOf, Question


@register
@dataclass(frozen=True, kw_only=True)
class FedACnnL(Method):
    """FedACnnL — Gu et al. 2025, Algorithm 1: a deep network in one round per layer, without gradients.

    Each layer is a least-squares problem, (1)–(5): from its input (for convolutions, patches) to the labels under a
    random encoding Q_l. Moments of layer inputs add over clients, so the network is that of the pooled data, for any
    partition and any batch size. The paper adds γ once per client in (3) and once in all in (5); this is (5).

    Clients send X_lᵀX_l and X_lᵀY; the server applies Q_l, since X_lᵀ(YQ_l) = (X_lᵀY)Q_l. `network` is a preset ("lr",
    "dnn", "dcnn", "small-dcnn") or layers in a line such as "conv:32:5 pool:2 flatten dense:64". `adaptive=False` is
    the paper's FedACnnL-WA: every batch has `batch` samples. Otherwise batches grow where replies come late, up to
    `batch_max`: a number, or a line such as "4096; ward 3=512" where a client has less memory than the others.

    After round l the network of the first l layers is reported, with the newest one as its output layer.

    >>> import fedgram as fg
    >>> data = fg.data.digits()
    >>> parts = fg.partition.dirichlet(data.y, clients=6, alpha=1.0, seed=0)
    >>> clients = fg.make_clients(data, parts)
    >>> fit = fg.FedACnnL(network="flatten dense:40", gamma=1.0).fit(clients, classes=10)
    >>> [weights.shape for weights in fit.model.weights]
    [(64, 40), (40, 10)]
    """

    network: str = "dnn"
    gamma: NotNegative = 100.0
    batch: int = 256
    batch_max: int | str = 4096
    adaptive: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        read_stack(self.network)
        usual, own = read_limits(self.batch_max)
        if not 1 <= self.batch <= min([usual, *own.values()]):
            raise InvalidParameter(f"batch must be from 1 to batch_max, {self.batch_max}; got {self.batch}")

    @property
    def _judges(self) -> bool:
        """Whether clients are sent moments to choose something by."""
        return False

    # server
    def serve(self, clients: Clients) -> Model | None:
        """Train one network with all clients."""
        [network], _, _ = self._train(clients, self._seed(clients), [clients.names])
        return network

    def _seed(self, clients: Clients) -> int:
        return int(clients.rng.integers(2**31))  # s

    def _train(
        self, clients: Clients, seed: int, groups: Sequence[Sequence[str]]
    ) -> tuple[list[Network], list[list[Moments]], list[list[int]]]:
        """Return a network for each group of clients: lines 2–27 of Algorithm 1.

        With it, for each of its layers, the group's moments, if clients are to judge by them, and how many clients
        replied: some may have been lost.
        """
        group_of = {name: k for k, group in enumerate(groups) for name in group}
        networks = [Network(self.network, clients.shape, clients.classes, seed)] * len(groups)
        moments: list[list[Moments]] = [[] for _ in groups]
        members: list[list[int]] = [[] for _ in groups]
        batches, quickest, most = dict.fromkeys(clients.names, self.batch), 0.0, self._largest(clients)
        for number in clients.rounds_of(networks[0].depth):
            solutions = [network.solutions[-1] if network.solutions else None for network in networks]
            tasks = {
                name: {"seed": seed, "solution": solutions[group_of[name]], "batch": np.array(batches[name])}
                for name in clients.names
            }
            totals, heard = [Total[Moments]() for _ in groups], Counter[int]()
            for client, reply in clients.call(self.summarize, per_client=tasks):
                totals[group_of[client]].add(reply)  # A_0, A_1 — (4)
                heard[group_of[client]] += 1
            for k in sorted(heard):  # a group may have lost all its clients
                total = totals[k].moments()
                networks[k] = replace(self._extended(networks[k], total), features=total.kind.features)
                members[k].append(heard[k])
                if self._judges:  # they are large: ten groups of the DCNN would take 20 GB
                    moments[k].append(total)
            # T_l - T_{l-1} as the server sees it, without the wait for others in the round before.
            seconds = clients.elapsed
            quickest = quickest or min(seconds.values(), default=0.0)
            if self.adaptive and seconds:
                batches = {
                    name: self._batch(batches[name], seconds[name] / quickest, most[name]) for name in clients.names
                }
            self._report(clients, number, networks, group_of)
        return networks, moments, members

    def _extended(self, network: Network, total: Moments) -> Network:
        """Return the network with Ŵ_l — (5), (11); its output layer says how sure it may be."""
        if len(network.solutions) < network.depth - 1:
            return network.extend(total.solve(self.gamma))
        output = least_squares(total, self.gamma, intercept=False)
        return replace(network.extend(output.weights), temperature=output.temperature)

    def _batch(self, before: int, slowness: float, most: int) -> int:
        """Return B_{l+1} — (7) — for a client that took so many times the quickest client's first round.

        As printed, a client that a larger batch has made quick gets the small one back for the next layer, and is slow
        again; so batches never shrink here.
        """
        return min(max(ceil(slowness * self.batch), before), most)

    def _largest(self, clients: Clients) -> dict[str, int]:
        """Return each client's largest batch: B_max, or all its samples if these are fewer."""
        usual, own = read_limits(self.batch_max)
        check_clients(own, clients.names)
        return {name: min(own.get(name, usual), max(clients.samples[name], self.batch)) for name in clients.names}

    def _report(self, clients: Clients, number: int, networks: Sequence[Network], group_of: Mapping[str, int]) -> None:
        """Let clients judge the layers so far, each those of its group."""
        if len(networks) == 1:
            clients.report(number, NetworkSoFar(networks[0]))
            return
        trained = {k: NetworkSoFar(networks[k]) for k in sorted({group_of[name] for name in clients.names})}
        clients.report(number, per_client={name: trained[group_of[name]] for name in clients.names})

    # client
    @step(reply=lambda method, question: method.summary_of(question))
    def summarize(self, client: ClientSide, task: Mapping[str, Any]) -> Moments:
        """Return X_lᵀX_l and X_lᵀY — (6)."""
        network = self._grown(client, task["seed"], task["solution"])
        return layer_moments(network, client.x, client.y, batch=int(task["batch"]))

    def summary_of(self, question: Question) -> MomentsOf:
        """Return what a client's summary of the layer of this round must be."""
        layer, shape = Network(self.network, question.shape, question.classes, seed=0).learning(question.round)
        return MomentsOf(layer.fan_in(shape), rows=rows_per_sample(layer, shape))

    def _grown(self, client: ClientSide, seed: int, solution: Any) -> Network:
        """Return the network as far as it is trained, which the client keeps from round to round."""
        if solution is None:
            network = Network(self.network, client.x.shape[1:], client.classes, seed, features=client.data.features)
        else:
            network = client.state["network"].extend(solution)
        client.state["network"] = network
        return network

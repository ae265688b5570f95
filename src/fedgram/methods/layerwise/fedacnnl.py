"""FedACnnL: networks trained layer by layer in closed form, across clients."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, ClassVar, Literal

import numpy as np

from fedgram.core.arrays import Array
from fedgram.core.classes import Classes
from fedgram.core.errors import InvalidParameter, RefusedMessage, UnknownName
from fedgram.core.schema import Count, NotNegative
from fedgram.heads.least_squares import least_squares
from fedgram.layerwise import LayerMoments, LayerTotal, Network, NetworkSoFar, Problem, layer_moments, read_stack
from fedgram.layerwise.layered_network import Encoding
from fedgram.models import Model
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import Method, step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import MomentsOf, Question

PAPERS_GAMMA = 100.0
# Fewest clients in each half that chooses γ: sums of fewer would reveal one client's samples to the others.
LEAST_IN_HALF = 3
# "auto" goes from there in steps of half a power of ten, at most so many.
STEP, MOST_STEPS = 10**0.5, 12
_EXAMPLE = '4096, or "4096; ward 3=512" where ward 3 has less memory'


@register
@dataclass(frozen=True, kw_only=True)
class FedACnnL(Method):
    """FedACnnL — Gu et al. 2025, Algorithm 1: a deep network in one round per layer, without gradients.

    Each layer is a least-squares problem, (1)–(5): from its input (for convolutions, patches) to the labels under a
    random encoding Q_l. Moments of layer inputs add over clients, so the network is that of the pooled data, for any
    partition and any batch size. The paper adds γ once per client in (3) and once in all in (5); this is (5).

    Z̄_l = YQ_l has the shape of the layer's real output, so Q_l has a block for every position of a feature map:
    `encoding="position"`. "shared" takes one block for all positions; then no layer has a higher rank than there are
    classes. Clients send X_lᵀX_l and the class sums of the layer's inputs, of which the server makes X_lᵀZ̄_l, or
    X_lᵀZ̄_l itself where that is smaller.

    `gamma` is one γ for all layers, or "auto": a γ for each layer by the error for clients left out. Half of the
    clients train a network that the other half judges, and the other way round; then all train with what was chosen.
    That takes twice the rounds, three times the bytes, and at least six clients; with fewer, γ is the paper's.

    `network` is a preset ("lr", "dnn", "dcnn", "small-dcnn") or layers in a line such as "normalize:0.5:0.25
    conv:32:5 pool:2 flatten dense:64". `adaptive=False` is the paper's FedACnnL-WA: every batch has `batch` samples.
    Otherwise batches grow where replies come late, up to `batch_max`: a number, or a line such as "4096; ward 3=512"
    where a client has less memory than the others.

    After round l the network of the first l layers is reported, with the newest one as its output layer.

    Parameters
    ----------
    network
        A preset or layers in a line.
    gamma
        γ, the ridge of each layer, or "auto".
    encoding
        Whether Q_l has a block for each position of a feature map, or one for all.
    batch
        B, how many samples a client puts into the first batch.
    batch_max
        The largest batch, for all or by client.
    adaptive
        Whether batches grow.

    Examples
    --------
    >>> import fedgram as fg
    >>> data = fg.data.digits()
    >>> parts = fg.partition.dirichlet(data.y, clients=6, alpha=1.0, seed=0)
    >>> clients = fg.make_clients(data, parts)
    >>> fit = fg.FedACnnL(network="flatten dense:40", gamma=1.0).fit(clients, classes=10)
    >>> [weights.shape for weights in fit.model.weights]
    [(64, 40), (40, 10)]

    """

    revision: ClassVar[int] = 2

    network: str = "dnn"
    gamma: NotNegative | Literal["auto"] = PAPERS_GAMMA
    encoding: Encoding = "position"
    batch: Count = 256
    batch_max: Count | str = 4096
    adaptive: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        read_stack(self.network)
        usual, own = read_limits(self.batch_max)
        if self.batch > min([usual, *own.values()]):
            raise InvalidParameter(
                f"batch: expected a whole number up to batch_max, here {self.batch_max}, got {self.batch}; lower it, "
                "or raise batch_max"
            )

    @property
    def _judges(self) -> bool:
        """Whether clients are sent moments to choose something by."""
        return False

    # server
    def serve(self, clients: Clients) -> Model | None:
        """Train one network with all clients."""
        return self._train(clients, self._seed(clients), [clients.names]).networks[0]

    def _seed(self, clients: Clients) -> int:
        return int(clients.rng.integers(2**31))  # s

    def _train(self, clients: Clients, seed: int, groups: Sequence[Sequence[str]]) -> "Trained":
        """Return a network for each group of clients: lines 2–27 of Algorithm 1."""
        empty = self._empty(clients.shape, clients.classes, seed)
        saved: dict[str, Any] = clients.restore() or {}
        groups = saved.get("groups", groups)
        group_of = {name: k for k, group in enumerate(groups) for name in group}
        gammas, chosen = (
            (saved["gammas"], saved["chosen"]) if "networks" in saved else self._gammas(clients, empty, saved)
        )
        networks: list[Network] = saved.get("networks", [empty] * len(groups))
        members: list[list[int]] = saved.get("members", [[] for _ in groups])
        moments: list[list[LayerMoments]] = [[] for _ in groups]
        batches = saved.get("batches", dict.fromkeys(clients.names, self.batch))
        quickest, most = saved.get("quickest", 0.0), self._largest(clients)
        if "networks" in saved:  # clients get the newest layer with their next task
            known = [network.truncate(len(network.solutions) - 1) for network in networks]
            told = {name: {"network": known[group_of[name]]} for name in clients.names}
            clients.each(self.take_up, per_client=told, counted=False)
        for round_ in clients.rounds_of(chosen + empty.depth, first=chosen + saved.get("layers", 0)):
            layer, heard = round_ - chosen, Counter[int]()
            totals = [LayerTotal() for _ in groups]
            tasks = self._tasks(clients.names, layer, networks, group_of, batches)
            for client, reply in clients.call(self.summarize, per_client=tasks):
                totals[group_of[client]].add(reply)  # A_0, A_1 — (4)
                heard[group_of[client]] += 1
            for k in sorted(heard):  # a group may have lost all its clients
                total, totals[k] = totals[k].moments(), LayerTotal()
                networks[k] = _extended(networks[k], total, gammas[layer])
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
            clients.report(round_, per_client=lambda: _so_far(networks, group_of, clients.names))
            if not self._judges:  # moments would be too large to save
                state = {"networks": networks, "members": members, "batches": batches, "quickest": quickest}
                state |= {"layers": layer + 1, "gammas": gammas, "chosen": chosen}
                state["groups"] = [list(group) for group in groups]
                clients.save(state)
        return Trained(networks, gammas, moments, members, groups)

    def _gammas(self, clients: Clients, empty: Network, saved: Mapping[str, Any]) -> tuple[list[float], int]:
        """Return γ for each layer, and the number of rounds that their choice took."""
        names = sorted(clients.names)
        if self.gamma != "auto" or (not saved and len(names) < 2 * LEAST_IN_HALF):
            return [PAPERS_GAMMA if self.gamma == "auto" else float(self.gamma)] * empty.depth, 0
        half_of: dict[str, int] = saved.get("halves") or {
            names[i]: place % 2 for place, i in enumerate(clients.rng.permutation(len(names)))
        }
        gammas, halves = list(saved.get("gammas", ())), saved.get("half_networks", [empty, empty])
        if gammas:
            known = [half.truncate(len(half.solutions) - 1) for half in halves]
            tasks = {
                name: {"own": known[h], "other": known[1 - h]} for name, h in half_of.items() if name in clients.names
            }
            clients.each(self.take_up, per_client=tasks, counted=False)
        for layer in clients.rounds_of(empty.depth, first=len(gammas)):
            training, judging = [LayerTotal(), LayerTotal()], [LayerTotal(), LayerTotal()]
            heard = Counter[int]()
            shared = [
                {"layer": layer, "seed": empty.seed, "own": _newest(halves[h]), "other": _newest(halves[1 - h])}
                for h in (0, 1)
            ]
            tasks = {name: shared[h] for h in (0, 1) for name in clients.names if half_of[name] == h}
            for client, reply in clients.call(self.summarize_halves, per_client=tasks):
                training[half_of[client]].add(reply["own"])
                judging[1 - half_of[client]].add(reply["other"])
                heard[half_of[client]] += 1
            if len(heard) < 2:  # without others to judge by, the paper's
                return [*gammas, *[PAPERS_GAMMA] * (empty.depth - layer)], layer + 1
            pairs = [(one.moments(), other.moments()) for one, other in zip(training, judging, strict=True)]
            gamma, solutions = choose_gamma(empty.problem(layer), pairs)
            gammas.append(gamma)
            halves = [half.extend(solution) for half, solution in zip(halves, solutions, strict=True)]
            clients.note("gamma", gammas)
            if not self._judges:
                clients.save({"halves": half_of, "half_networks": halves, "gammas": gammas})
        return gammas, empty.depth

    def _empty(self, shape: tuple[int, ...], classes: Classes, seed: int, features: str = "") -> Network:
        """Return the network with no layer trained."""
        return Network(self.network, shape, classes, seed, features=features, encoding=self.encoding)

    def _tasks(
        self,
        names: Sequence[str],
        layer: int,
        networks: Sequence[Network],
        group_of: Mapping[str, int],
        batches: Mapping[str, int],
    ) -> dict[str, dict[str, Any]]:
        """Return the task of each client: its batch size, and its group's newest layer.

        Clients of the same group and batch size are sent the same object one after the other: it is encoded once.
        """
        kind_of = {name: (group_of[name], batches[name]) for name in names}
        shared = {
            (k, batch): {
                "layer": layer,
                "seed": networks[k].seed,
                "solution": _newest(networks[k]),
                "batch": np.array(batch),
            }
            for k, batch in sorted(set(kind_of.values()))
        }
        return {name: task for kind, task in shared.items() for name in names if kind_of[name] == kind}

    def _batch(self, before: int, slowness: float, most: int) -> int:
        """Return B_{l+1} — (7) — for a client, from its time as a multiple of the quickest client's first.

        With (7) as printed, a client that a larger batch has made quick gets the small batch for the next layer, and is
        slow again. So batches never shrink here.
        """
        return min(max(ceil(slowness * self.batch), before), most)

    def _largest(self, clients: Clients) -> dict[str, int]:
        """Return each client's largest batch: B_max, or all its samples if these are fewer."""
        usual, own = read_limits(self.batch_max)
        check_clients(own, clients.names)
        return {name: min(own.get(name, usual), max(clients.samples[name], self.batch)) for name in clients.names}

    # client
    @step
    def take_up(self, client: ClientSide, networks: Mapping[str, Network]) -> None:
        """Keep the networks of a run that was interrupted, as far as the client had them."""
        client.state.update(networks)

    @step(reply=lambda method, question: method.summary_of(question))
    def summarize(self, client: ClientSide, task: Mapping[str, Any]) -> LayerMoments:
        """Return X_lᵀX_l and X_lᵀZ̄_l, or the sums of which that is made — (6)."""
        if task["solution"] is None:
            client.state.clear()  # the networks and moments by which γ was chosen
        network = self._grown(client, task["seed"], task["solution"])
        return layer_moments(network, client.x, client.y, batch=int(task["batch"]))

    @step(reply=lambda method, question: dict.fromkeys(("own", "other"), method.summary_of(question)))
    def summarize_halves(self, client: ClientSide, task: Mapping[str, Any]) -> dict[str, LayerMoments]:
        """Return the moments of a layer of the client's half's network, and of the other half's."""
        return {
            half: layer_moments(
                self._grown(client, task["seed"], task[half], name=half), client.x, client.y, batch=self.batch
            )
            for half in ("own", "other")
        }

    def summary_of(self, question: Question) -> "LayerMomentsOf":
        """Return the rule for a client's summary of the layer of this round."""
        seed, layer = question.payload["seed"], question.payload["layer"]
        return LayerMomentsOf(self._empty(question.shape, question.classes, seed).problem(layer))

    def _grown(self, client: ClientSide, seed: int, solution: Any, *, name: str = "network") -> Network:
        """Return a network as far as it is trained, which the client keeps from round to round."""
        if solution is None:
            network = self._empty(client.x.shape[1:], client.classes, seed, client.data.features)
        else:
            network = client.state[name].extend(solution)
        client.state[name] = network
        return network


@dataclass(frozen=True)
class Trained:
    """Networks by group and what they were trained with.

    `moments` has those of each group and layer, if clients are to judge by them; `members` how many clients replied:
    some may have been lost.
    """

    networks: list[Network]
    gammas: list[float]
    moments: list[list[LayerMoments]]
    members: list[list[int]]
    groups: Sequence[Sequence[str]]


@dataclass(frozen=True)
class LayerMomentsOf:
    """The kind of reply that is moments of a layer."""

    problem: Problem

    def check(self, value: Any, question: Question, where: str) -> None:
        """Raise if the value is anything else, or has sums that no samples have."""
        if not isinstance(value, LayerMoments):
            raise RefusedMessage(f"{where} must be moments of a layer, got a {type(value).__name__}")
        MomentsOf(self.problem.d, rows=self.problem.rows).check(value.rows, question, f"{where}/rows")
        value.check_sums(self.problem)


def choose_gamma(problem: Problem, pairs: Sequence[tuple[LayerMoments, LayerMoments]]) -> tuple[float, list[Array]]:
    """Return the γ of least error on other samples, with the solutions; `pairs` are moments (to train, to judge).

    Steps are taken from the paper's γ as long as the error falls, so this is the minimum next to it; each step takes a
    factorisation for each pair.
    """
    tried: dict[int, tuple[float, list[Array]]] = {}

    def error(step: int) -> float:
        if step not in tried:
            solutions = [training.solve(problem, PAPERS_GAMMA * STEP**step) for training, _ in pairs]
            losses = [judging.loss(problem, one) for (_, judging), one in zip(pairs, solutions, strict=True)]
            tried[step] = sum(losses), solutions
        return tried[step][0]

    best = 0
    for direction in (1, -1):
        while abs(best + direction) <= MOST_STEPS and error(best + direction) < error(best):
            best += direction
        if best:
            break
    return PAPERS_GAMMA * STEP**best, tried[best][1]


def _extended(network: Network, total: LayerMoments, gamma: float) -> Network:
    """Return the network with Ŵ_l — (5), (11); its output layer says how sure it may be."""
    network = replace(network, features=total.rows.schema.features)
    if len(network.solutions) < network.depth - 1:
        return network.extend(total.solve(network.next_problem, gamma))
    output = least_squares(total.rows, gamma, intercept=False)
    return replace(network.extend(output.weights), temperature=output.temperature, offsets=output.offsets)


def _so_far(networks: Sequence[Network], group_of: Mapping[str, int], names: Sequence[str]) -> dict[str, NetworkSoFar]:
    """Return the layers so far for each client to judge, those of its group."""
    trained = {k: NetworkSoFar.of(networks[k]) for k in sorted({group_of[name] for name in names})}
    return {name: trained[group_of[name]] for name in names}


def _newest(network: Network) -> Array | None:
    return network.solutions[-1] if network.solutions else None


def read_limits(limits: int | str) -> tuple[int, Mapping[str, int]]:
    """Return the largest batch of most clients, and those of clients with limits of their own, from one line of text.

    >>> read_limits("4096; ward 3=512; ward 5=1024")
    (4096, {'ward 3': 512, 'ward 5': 1024})
    """
    usual, *others = str(limits).split(";")
    own: dict[str, int] = {}
    for entry in others:
        name, equals, number = entry.rpartition("=")
        if not equals or not name.strip() or name.strip() in own:
            raise InvalidParameter(
                f"batch_max takes a number and then NAME=NUMBER for each client that differs, as in {_EXAMPLE}; "
                f"got {entry.strip()!r}"
            )
        own[name.strip()] = _at_least_one(number)
    return _at_least_one(usual), own


def check_clients(own: Mapping[str, int], names: Collection[str]) -> None:
    """Raise if a limit names an unknown client."""
    for name in own:
        if name not in names:
            raise UnknownName("client in batch_max", name, names)


def _at_least_one(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise InvalidParameter(f"batch_max takes whole numbers ≥ 1, as in {_EXAMPLE}; got {text.strip()!r}")
    return int(text)

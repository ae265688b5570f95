"""What methods that train by gradients have in common: a network, rounds, and local SGD."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from fedgram.core.errors import InvalidData, InvalidParameter
from fedgram.core.extras import require
from fedgram.models import Model
from fedgram.moments.accumulate import check_finite
from fedgram.nets import PLAIN, Factory, Hooks, Net, Plan, TrainedNet, admit, net_for, read_network, train
from fedgram.nets.factories import is_import, name_of
from fedgram.nets.layers import Shape, Vector
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import Method, step
from fedgram.protocol.replies import Learnt, Question

# A step that takes away more than this part of the weights has forgotten most of the batches before.
FORGETS = 0.2


@dataclass(frozen=True, kw_only=True)
class GradientMethod(Method):
    """Base of methods that train by gradients; the settings are those of FedAPA's experiments.

    `network` is "linear", "mlp", "mlp:WIDTH:…", "lenet5" or "cnn"; "auto" is lenet5 for images and linear for
    features. A line of layers such as "conv:32:5:leaky_relu pool:2 flatten dense:64", or "dcnn", is the network that
    FedACnnL has under that name, with biases. Any other is made by a function (shape, classes) -> torch.nn.Module:
    "package.module:factory", which every side can import, or the function itself.

    In each round a share of the clients (`participation`, or drawn anew from there to `participation_up_to`) trains for
    some `epochs`, or for so many batches
    (`local_steps`), from where the method lets it begin. All these methods draw the same random numbers, so that with
    the same seed they begin with the same weights, ask the same clients and shuffle alike: what differs is the method.
    """

    draws: ClassVar[str] = "gradient"
    rounding: ClassVar[float] = 1e-4
    # Whether the method says nothing without layers below the last; "auto" is then an mlp for features.
    needs_base: ClassVar[bool] = False
    # Settings that are strengths of proximal terms.
    pulls: ClassVar[tuple[str, ...]] = ()
    # Settings that are learning rates of training on samples.
    rates: ClassVar[tuple[str, ...]] = ("lr",)
    # Whether every client has a vector of its own in its state ("own"), from the first: the common first weights.
    remembers: ClassVar[bool] = False
    # Whether rounds are judged by the models that clients keep, which they have from the first, not by the global one.
    judged_by_own: ClassVar[bool] = False
    quick: ClassVar[Mapping[str, Any]] = MappingProxyType({"rounds": 2, "epochs": 8, "batch": 16, "lr": 0.05})

    network: str | Factory = "auto"
    rounds: int = 50
    participation: float = 1.0
    participation_up_to: float | None = None
    epochs: int = 2
    local_steps: int | None = None
    batch: int = 64
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        super().__post_init__()
        # By name, which can be sent. Nothing is imported yet: the name may be somebody else's choice.
        object.__setattr__(self, "network", name_of(self.network))
        read_network(self._network)
        for name in ("rounds", "epochs", "batch", *(["local_steps"] if self.local_steps is not None else [])):
            if getattr(self, name) < 1:
                raise InvalidParameter(f"{name} must be a whole number ≥ 1, got {getattr(self, name)}")
        if not 0 < self.participation <= 1:
            raise InvalidParameter(f"participation must be more than 0 and at most 1, got {self.participation}")
        if self.participation_up_to is not None and not self.participation <= self.participation_up_to <= 1:
            raise InvalidParameter(
                f"participation_up_to must be from participation, here {self.participation}, to 1, "
                f"got {self.participation_up_to}"
            )
        if not 0 < self.lr < float("inf"):
            raise InvalidParameter(f"lr must be a number > 0, got {self.lr}")
        if not 0 <= self.momentum < 1:
            raise InvalidParameter(f"momentum must be at least 0 and less than 1, got {self.momentum}")
        self.check_not_negative("weight_decay")

    def check_not_negative(self, *names: str) -> None:
        """Refuse settings below zero."""
        for name in names:
            if not 0 <= getattr(self, name) < float("inf"):
                raise InvalidParameter(f"{name} must be a number ≥ 0, got {getattr(self, name)}")

    def check_pulls(self) -> None:
        """Refuse strengths of proximal terms that are negative, or so large that SGD would overshoot for ever."""
        self.check_not_negative(*self.pulls)
        most = 2 * (1 + self.momentum) / self.lr
        for name in self.pulls:
            if getattr(self, name) >= most:
                raise InvalidParameter(
                    f"{name} must be less than {most:g} with lr {self.lr:g}, or training diverges; "
                    f"got {getattr(self, name)}"
                )

    def effort(self, n: int) -> float:
        """Return how many samples a client with n of them trains with in a round, to scale."""
        return n if self.local_steps is None else min(n, self.batch)

    def fewest_samples(self, n: int) -> int:
        """Return of how few of a client's n samples a reply may be made: some batches need not be all of them.

        Steps that forget leave little but the last batch, which may be a short one.
        """
        fastest = max(getattr(self, name) for name in self.rates)
        if fastest * (self.weight_decay + sum(getattr(self, name) for name in self.pulls)) > FORGETS:
            return min(n, n % self.batch or self.batch)
        return n if self.local_steps is None else min(n, self.local_steps * self.batch)

    def imports(self) -> list[str]:
        """Return the network's factory, if it has one."""
        return [self._network] if is_import(self._network) else []

    @property
    def _network(self) -> str:
        return name_of(self.network)

    # server
    def begin(self, clients: Clients) -> tuple[Net, Vector]:
        """Return the network and its first weights; clients that cannot train are told apart now."""
        require("torch", "nets", f"the method {self.name}")
        net = self.net(clients.shape, len(clients.classes))
        first = net.initial(clients.rng)
        clients.each(self.ready, first if self.remembers or self.judged_by_own else None)
        return net, first

    def asked(self, clients: Clients) -> list[str]:
        """Return who takes part in this round."""
        return clients.sample(self.participation, up_to=self.participation_up_to)

    def check_base(self, net: Net) -> None:
        """Refuse a network without layers below the last, where the method is about these."""
        if net.base.stop == net.buffers:
            raise InvalidParameter(f"{self.name} needs layers below the last, and {net.network!r} has none: use mlp")

    def check_linear_head(self, net: Net) -> None:
        """Refuse a network whose head is anything but a matrix, with constants or without."""
        shapes, matrix = list(net.layer_shapes[-1]), (net.classes, net.features)
        if shapes not in ([matrix], [matrix, (net.classes,)]):
            what = f"that of {net.network!r} has parameters of shapes {shapes}"
            raise InvalidParameter(
                f"{self.name} works on a plain linear head, and {what}: make it an nn.Linear as it is"
            )

    def give_to_the_unasked(self, clients: Clients, global_weights: Vector) -> None:
        """Let clients that never took part keep the global model; what they began with is nobody's."""
        unasked = set(clients.names).difference(clients.contributors)
        clients.each(self.adopt, global_weights, to=[name for name in clients.names if name in unasked])

    def model(self, clients: Clients, vector: Vector) -> TrainedNet:
        """Return a vector as a model."""
        net = self.net(clients.shape, len(clients.classes))
        return TrainedNet(net.network, net.shape, clients.classes, vector, clients.features, net.memory)

    # client
    @step
    def ready(self, client: ClientSide, first: Vector | None = None) -> None:
        """Refuse what would spoil the global weights: samples that are not finite, a network that is not to be had."""
        check_finite(client.x)
        self.net_of(client)
        if first is None:
            return
        if self.remembers:
            self.remember(client, first)
        if self.judged_by_own:
            self.keep(client, first)

    @step
    def adopt(self, client: ClientSide, global_weights: Vector) -> None:
        """Keep the global model."""
        self.keep(client, global_weights)

    @step
    def evaluate(self, client: ClientSide, model: Model | None = None) -> Any:
        """Judge a model; it may be the first thing that this process hears of the network."""
        for network in self.imports():
            admit(network)
        return super().evaluate(client, model)

    def net(self, shape: Shape, classes: int, *, memory: bool = False) -> Net:
        """Return the network for such samples. Steps are performed only where its factory is trusted."""
        network = "mlp" if self.network == "auto" and self.needs_base and len(shape) == 1 else self._network
        return net_for(admit(network), tuple(shape), classes, memory=memory)

    def net_of(self, client: ClientSide) -> Net:
        """Return the network as a client sees it."""
        return self.net(client.x.shape[1:], len(client.classes))

    def net_for(self, question: Question) -> Net:
        """Return the network as the server sees it when it asks."""
        return self.net(question.shape, len(question.classes))

    def vector_of(self, question: Question) -> Learnt:
        """Return what a client may send as the whole vector."""
        return Learnt((self.net_for(question).size,))

    def features_of(self, question: Question, *, samples: int = 1) -> Learnt:
        """Return what a client may tell of features: a mean of them, or a sum over so many samples."""
        return Learnt((self.net_for(question).features,), unit=samples)

    def keep(self, client: ClientSide, vector: Vector) -> None:
        """Let the client keep a vector as its own model, which it predicts with."""
        client.keep(self.own_model(client, vector))

    def own_model(self, client: ClientSide, vector: Vector) -> TrainedNet:
        """Return a vector as a model, at the client."""
        net = self.net_of(client)
        return TrainedNet(net.network, net.shape, client.classes, vector, client.data.features, net.memory)

    def remember(self, client: ClientSide, vector: Vector) -> None:
        """Let the client find a vector in its state in the next round."""
        client.state["own"] = np.array(vector)  # a row of many would keep them all in memory

    def take(self, client: ClientSide, vector: Vector) -> None:
        """Let the client remember a vector, and keep it as its own model."""
        self.remember(client, vector)
        self.keep(client, client.state["own"])

    def completed(self, client: ClientSide, shared: Vector) -> Vector:
        """Return what a client begins with that was sent the first part of the vector: the rest is its own."""
        return np.concatenate([shared, client.state["own"][len(shared) :]])

    def trained_part(self, clients: Sequence[ClientSide], vectors: Sequence[Vector]) -> list[Vector]:
        """Return vectors without their buffers, as hooks see weights."""
        return [vector[self.net_of(clients[0]).buffers :] for vector in vectors]

    def descend(
        self, clients: Sequence[ClientSide], starts: Sequence[Vector], hooks: Hooks = PLAIN, **changes: Any
    ) -> list[Vector]:
        """Return each client's vector after local SGD from its start."""
        return self.descend_with(clients, starts, hooks, **changes)[0]

    def descend_with(
        self,
        clients: Sequence[ClientSide],
        starts: Sequence[Vector],
        hooks: Hooks,
        rngs: Sequence[np.random.Generator] | None = None,
        **changes: Any,
    ) -> tuple[list[Vector], dict[str, list[Vector]]]:
        """Do what `descend` does, and also return what the hooks carried along."""
        usual = {name: getattr(self, name) for name in ("lr", "momentum", "weight_decay", "batch", "epochs")}
        vectors, carried = train(
            self.net_of(clients[0]),
            [(client.x, client.y) for client in clients],
            starts,
            rngs or [client.rng for client in clients],
            Plan(**usual | {"steps": self.local_steps} | changes),
            hooks,
        )
        if not all(np.isfinite(vector).all() for vector in vectors):
            took = changes.get("lr", self.lr)
            raise InvalidData(f"training diverged: take a smaller lr than {took}, or scale the samples")
        return vectors, carried

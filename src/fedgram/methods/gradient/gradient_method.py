"""Base classes of methods that train by gradients: a network, rounds, local training, and averaging."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from inspect import isgenerator
from time import monotonic
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidData, InvalidParameter
from fedgram.core.extras import require
from fedgram.core.schema import BelowOne, Count, NotNegative, Positive, PositiveShare
from fedgram.models import Model
from fedgram.moments.accumulate import check_finite
from fedgram.nets import PLAIN, Factory, Hooks, Net, Plan, TrainedNet, admit, net_for, read_network, train
from fedgram.nets.factories import is_import, name_of
from fedgram.nets.layers import Shape, Vector
from fedgram.nets.optimizers import (
    CLIENT_OPTIMIZERS,
    SCHEDULES,
    SERVER_OPTIMIZERS,
    SGD,
    ClientOptimizer,
    Schedule,
    ServerOptimizer,
    as_text,
    read,
)
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import Method, step
from fedgram.protocol.replies import Learnt, Question, Reply

T = TypeVar("T")
# A client's step that asks to train on the way, and returns a T.
Training: TypeAlias = Generator[Any, Any, T]

# A step that removes more than this share of the weights forgets most of the earlier batches.
FORGETS = 0.2


@dataclass(frozen=True, kw_only=True)
class GradientMethod(Method):
    """Base of methods that train by gradients; the settings are those of FedAPA's experiments.

    `network` is "linear", "mlp", "mlp:WIDTH:…", "lenet5" or "cnn"; "auto" is lenet5 for images and linear for
    features. A line of layers such as "conv:32:5:leaky_relu pool:2 flatten dense:64", or "dcnn", is the network that
    FedACnnL has under that name, with biases. Any other is made by a function (shape, classes) -> torch.nn.Module:
    "package.module:factory", which every side can import, or the function itself.

    In each round a share of the clients trains: `participation`, or a share drawn from there to `participation_up_to`.
    They train for some `epochs`, or for `local_steps` batches, from the weights that the method gives them. All these
    methods draw the same random numbers. So with the same seed they begin with the same weights, ask the same clients
    and shuffle alike: only the method differs.

    Parameters
    ----------
    network
        "linear", "mlp", "mlp:WIDTH:…", "lenet5", "cnn", a line of layers, "package.module:factory" or a function;
        "auto" is lenet5 for images and linear for features.
    rounds
        T, how many rounds there are.
    participation
        C, the share of the clients that is asked in each round.
    participation_up_to
        The largest share, where the share is drawn anew in each round; none keeps `participation`.
    epochs
        E, how often a client goes through its samples in a round.
    local_steps
        K, how many batches a client trains with in a round, in place of epochs.
    batch
        B, how many samples a step of a client takes.
    lr
        η, the clients' learning rate.
    momentum
        m, the momentum of the clients' SGD, which begins anew in each round.
    weight_decay
        The share of the weights that is added to each gradient of a client.
    optimizer
        The clients' optimizer: "sgd" or "adam:β₁:β₂:ε"; none is "sgd".
    lr_schedule
        The factor of `lr` by round: "constant", "step:EVERY:BY", "cosine:LAST" or "exponential:BY"; none is "constant".

    """

    draws: ClassVar[str] = "gradient"
    rounding: ClassVar[float] = 1e-4
    # Whether the method needs layers below the last; "auto" is then an mlp for features.
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
    rounds: Count = 50
    participation: PositiveShare = 1.0
    participation_up_to: PositiveShare | None = None
    epochs: Count = 2
    local_steps: Count | None = None
    batch: Count = 64
    lr: Positive = 0.01
    momentum: BelowOne = 0.9
    weight_decay: NotNegative = 0.0
    optimizer: str | ClientOptimizer | None = None
    lr_schedule: str | Schedule | None = None

    def __post_init__(self) -> None:
        """Raise if a value makes no sense."""
        super().__post_init__()
        # By name, which can be sent. Nothing is imported yet: the name may be another party's choice.
        object.__setattr__(self, "network", name_of(self.network))
        read_network(self._network)
        self.check_choices("optimizer", "lr_schedule")
        if self.participation_up_to is not None and self.participation_up_to < self.participation:
            raise InvalidParameter(
                f"participation_up_to: expected a number from participation, here {self.participation}, to 1, "
                f"got {self.participation_up_to}"
            )
        self.check_pulls()

    def check_choices(self, *names: str) -> None:
        """Keep optimizers and schedules as texts, which can be sent, and raise if one cannot be read."""
        for name in names:
            object.__setattr__(self, name, as_text(getattr(self, name)))
            getattr(self, f"_{name}")

    @property
    def _optimizer(self) -> ClientOptimizer:
        return read("optimizer", as_text(self.optimizer) or "sgd", CLIENT_OPTIMIZERS, momentum=self.momentum)

    @property
    def _lr_schedule(self) -> Schedule:
        return read("lr_schedule", as_text(self.lr_schedule) or "constant", SCHEDULES)

    def scheduled(self, lr: float, number: int) -> float:
        """Return a learning rate in a round, by the schedule."""
        return lr * self._lr_schedule.factor(number, self.rounds)

    def check_pulls(self) -> None:
        """Refuse strengths of proximal terms that are so large that SGD would overshoot for ever."""
        optimizer = self._optimizer
        if not isinstance(optimizer, SGD):
            return  # the steps of others do not grow with the gradient
        most = 2 * (1 + optimizer.momentum) / self.lr
        for name in self.pulls:
            if getattr(self, name) >= most:
                raise InvalidParameter(
                    f"{name}: expected a number < {most:g} with lr {self.lr:g}, got {getattr(self, name)}; "
                    "training would diverge: lower it, or lr"
                )

    def check_sgd(self, why: str) -> None:
        """Raise if the clients' optimizer is not SGD."""
        if not isinstance(self._optimizer, SGD):
            raise InvalidParameter(f"optimizer: expected sgd, got {self.optimizer!r}; {why}")

    def steps_length(self, n: int) -> float:
        """Return ‖a‖₁ of a client with n samples: the length of its steps of SGD, in gradients times η."""
        optimizer = self._optimizer
        assert isinstance(optimizer, SGD)
        return optimizer.length(self.plan().batches(n))

    def effort(self, n: int) -> float:
        """Return a client's relative work in a round: its number of samples, at most a batch with `local_steps`."""
        return n if self.local_steps is None else min(n, self.batch)

    def fewest_samples(self, n: int) -> int:
        """Return the smallest number of a client's n samples that a reply may be made of.

        Where steps forget earlier batches, a reply is mostly of the last batch, which may be short.
        """
        fastest = max(getattr(self, name) for name in self.rates)
        if not isinstance(self._optimizer, SGD):
            fastest = 1.0  # steps are as long as the rate, however small the gradient is
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
        """Return the network and its first weights; clients that cannot train fail here."""
        require("torch", "nets", f"the method {self.name}")
        net = self.net(clients.shape, len(clients.classes))
        first = net.initial(clients.rng)
        clients.each(self.ready, first if self.remembers or self.judged_by_own else None)
        return net, first

    def asked(self, clients: Clients) -> list[str]:
        """Return the names of the clients that take part in this round."""
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
        """Let clients that never took part keep the global model."""
        unasked = set(clients.names).difference(clients.contributors)
        clients.each(self.adopt, global_weights, to=[name for name in clients.names if name in unasked])

    def model(self, clients: Clients, vector: Vector) -> TrainedNet:
        """Return a vector as a model."""
        net = self.net(clients.shape, len(clients.classes))
        return TrainedNet(net.network, net.shape, clients.classes, vector, clients.features, net.memory)

    # client
    @step
    def ready(self, client: ClientSide, first: Vector | None = None) -> None:
        """Raise where samples are not finite or the network cannot be made: both would spoil the global weights."""
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
        """Return the sums that score a model on the test samples; its network may be new to this process."""
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
        """Return the rule for a whole vector in a client's reply."""
        return Learnt((self.net_for(question).size,))

    def features_of(self, question: Question, *, samples: int = 1) -> Learnt:
        """Return the rule for features in a client's reply: a mean of them, or a sum over so many samples."""
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
        """Return a whole vector to begin with: the first part as sent, the rest the client's own."""
        return np.concatenate([shared, client.state["own"][len(shared) :]])

    def trained_part(self, client: ClientSide, vector: Vector) -> Vector:
        """Return a vector without its buffers, as hooks see weights."""
        return vector[self.net_of(client).buffers :]

    def halves(self, net: Net) -> tuple[Vector, Vector]:
        """Return the base and the head as marks for `Hooks.only`: 1 where the numbers move."""
        head = (np.arange(net.buffers, net.size) >= net.head.start).astype(np.float32)
        return 1 - head, head

    def plan(self, number: int = 0, **changes: Any) -> Plan:
        """Return the plan of a client's training in a round, by the hyper-parameters; `changes` replace fields.

        >>> import fedgram as fg
        >>> fg.FedAvg(epochs=2, batch=64).plan().batches(100)
        4
        """
        usual = {name: getattr(self, name) for name in ("weight_decay", "batch", "epochs")}
        usual |= {"lr": self.scheduled(self.lr, number), "optimizer": self._optimizer, "steps": self.local_steps}
        return Plan(**usual | changes)

    def descend(self, client: ClientSide, start: Vector, hooks: Hooks = PLAIN, **options: Any) -> Training[Vector]:
        """Return the client's vector after local SGD from its start; `options` are those of `descend_with`."""
        return (yield from self.descend_with(client, start, hooks, **options))[0]

    def descend_with(
        self,
        client: ClientSide,
        start: Vector,
        hooks: Hooks = PLAIN,
        *,
        carried: Mapping[str, npt.NDArray[Any]] = MappingProxyType({}),
        only: Vector | None = None,
        draws: np.random.Generator | None = None,
        rng: np.random.Generator | None = None,
        stage: int = 0,
        **changes: Any,
    ) -> Training[tuple[Vector, dict[str, Vector]]]:
        """Return the result of `descend`, and the vectors that were carried along.

        `carried`, `only` and `draws` are the client's own values for the hooks. `rng` shuffles in place of the
        client's. Descents of a higher stage wait for those of a lower one, so that more clients train together.
        `changes` replace fields of the plan.
        """
        plan = self.plan(client.round, **changes)
        found: tuple[Vector, dict[str, Vector]]
        net, samples = self.net_of(client), (client.x, client.y)
        found = yield Descent(net, samples, start, rng or client.rng, plan, hooks, carried, only, draws, stage)
        return found


@dataclass(frozen=True, kw_only=True)
class OwnModels(GradientMethod):
    """Base of methods whose clients remember a vector, and keep it as the model by which rounds are judged."""

    personal = True
    remembers = True
    judged_by_own = True


@dataclass(frozen=True)
class Descent:
    """A client's request to train, made by its step; the answer is the trained vector and the vectors carried along."""

    net: Net
    samples: tuple[Any, Any]
    start: Vector
    rng: np.random.Generator
    plan: Plan
    hooks: Hooks
    carried: Mapping[str, npt.NDArray[Any]]
    only: Vector | None
    draws: np.random.Generator | None
    stage: int

    def goes_with(self, other: "Descent") -> bool:
        """Return whether both can train together: nothing but the clients' own values differs."""
        mine, theirs = self.hooks.shared, other.hooks.shared
        return (
            self.net is other.net
            and (self.stage, self.plan) == (other.stage, other.plan)
            and self.carried.keys() == other.carried.keys()
            and (self.only is None, self.draws is None) == (other.only is None, other.draws is None)
            and (mine is theirs or (isinstance(mine, float) and mine == theirs))
            and self.hooks.functions == other.hooks.functions
        )


@dataclass(frozen=True)
class Once:
    """A client's request for a value that is computed from a common payload, once for all clients that were sent it."""

    sent: Any
    make: Callable[[Any], Any]


def once(sent: Any, make: Callable[[Any], T]) -> Training[T]:
    """Return `make(sent)`, made once for all clients of a batch that were sent the same object."""
    made: T = yield Once(sent, make)
    return made


def training_step(reply: Reply) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a function of one client as a step in which clients train together.

    The function is a generator: `yield from self.descend(client, start)` waits until all clients of the batch have
    asked to train, which they then do side by side, and returns this client's vector. If the step fails for one client,
    all are as they were before, so that it can be repeated.
    """

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def perform(self: Any, clients: Sequence[ClientSide], *payloads: Sequence[Any]) -> list[Any]:
            before = [(dict(client.state), client.model, client.personal) for client in clients]
            try:
                return together([function(self, *own) for own in zip(clients, *payloads, strict=True)])
            except BaseException:
                for client, (state, model, personal) in zip(clients, before, strict=True):
                    client.state.clear()
                    client.state.update(state)
                    client.model, client.personal = model, personal
                raise

        return step(batched=True, reply=reply)(perform)

    return mark


def together(steps: Sequence[Any]) -> list[Any]:
    """Return the replies of steps, which are generators that ask to train, or replies already."""
    replies, made, waiting = list(steps), dict[int, Any](), dict[int, Descent]()
    answers: dict[int, Any] = {i: None for i, one in enumerate(steps) if isgenerator(one)}
    while answers or waiting:
        for i, answer in answers.items():
            try:
                asked = steps[i].send(answer)
                while isinstance(asked, Once):
                    if id(asked.sent) not in made:
                        made[id(asked.sent)] = asked.make(asked.sent)
                    asked = steps[i].send(made[id(asked.sent)])
                waiting[i] = asked
            except StopIteration as end:
                replies[i] = end.value
        answers = {}
        if waiting:
            first = waiting[min(waiting, key=lambda i: (waiting[i].stage, i))]
            group = [i for i in sorted(waiting) if waiting[i].goes_with(first)]
            answers = dict(zip(group, _trained([waiting.pop(i) for i in group]), strict=True))
    return replies


def _trained(group: Sequence[Descent]) -> list[tuple[Vector, dict[str, Vector]]]:
    """Return the vector of each client, and what it carried along, after they have trained together."""
    first = group[0]
    hooks = replace(
        first.hooks,
        carried={name: [one.carried[name] for one in group] for name in first.carried},
        only=None if first.only is None else [one.only for one in group if one.only is not None],
        draws=None if first.draws is None else [one.draws for one in group if one.draws is not None],
    )
    samples, starts, rngs = ([getattr(one, name) for one in group] for name in ("samples", "start", "rng"))
    vectors, carried = train(first.net, samples, starts, rngs, first.plan, hooks)
    if not all(np.isfinite(vector).all() for vector in vectors):
        raise InvalidData(f"training diverged: take a smaller lr than {first.plan.lr}, or scale the samples")
    return [(vector, {name: rows[i] for name, rows in carried.items()}) for i, vector in enumerate(vectors)]


# Seconds between two checkpoints of a method whose rounds are short.
SAVE_EVERY = 10.0


@dataclass(frozen=True, kw_only=True)
class Averaging(GradientMethod):
    """Base of methods whose server averages models, or parts of them.

    The clients' mean goes through an optimizer at the server: the mean itself (FedAvg), a step towards it with momentum
    (FedAvgM), or an adaptive step (FedAdam, FedYogi). Running means of the network, which no gradient moves, are always
    averaged.

    Parameters
    ----------
    server
        The server's optimizer: "mean", "momentum:β:η", "adam:η:β₁:β₂:τ" or "yogi:η:β₁:β₂:τ"; none is "mean". Numbers
        may be left out.

    """

    server: str | ServerOptimizer | None = None

    def __post_init__(self) -> None:
        """Raise if a value makes no sense."""
        super().__post_init__()
        self.check_choices("server")

    @property
    def _server(self) -> ServerOptimizer:
        return read("server", as_text(self.server) or "mean", SERVER_OPTIMIZERS)

    def averaged(self, clients: Clients, net: Net, first: Vector) -> "Averaged":
        """Return the global weights as they are before the first round, or after the last of an interrupted run.

        Only a run whose clients remember nothing can be taken up again.
        """
        found = Averaged(first, net.buffers, self._server)
        saved: Any = None if self.remembers or self.judged_by_own else clients.restore()
        if saved is not None:
            found.weights, found.state, found.rounds = saved["weights"], dict(saved["state"]), saved["rounds"]
        return found

    def save(self, clients: Clients, averaged: "Averaged") -> None:
        """Save the global weights and the state of the server's optimizer, at most every few seconds.

        Nothing is saved if clients remember something, which a run that goes on would lack.
        """
        averaged.rounds = clients.round + 1
        if monotonic() - averaged.saved >= SAVE_EVERY:
            state = {"weights": averaged.weights, "state": averaged.state, "rounds": averaged.rounds}
            clients.save(state, whole=True)
            averaged.saved = monotonic()


@dataclass
class Averaged:
    """Global weights, or a part of them, with the server's optimizer and what that remembers."""

    weights: Vector
    buffers: int  # numbers at the beginning that no gradient moves
    optimizer: ServerOptimizer
    state: dict[str, Array] = field(default_factory=dict)
    rounds: int = 0  # that have passed
    saved: float = field(default_factory=monotonic)

    def move(self, mean: Vector) -> None:
        """Take the server's step towards the mean of the clients."""
        new = self.optimizer.towards(mean, self.weights, self.state)
        if new is not mean:
            new[: self.buffers] = mean[: self.buffers]
        self.weights = new

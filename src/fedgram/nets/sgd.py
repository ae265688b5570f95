"""The training loop of all gradient methods: SGD on the vectors of one client, or of many at once.

Clients train together in chunks that fit the processor's cache. Each has its own samples, order, number of batches and
vector, and its result is the same as if it trained alone, to rounding. Small last batches are never dropped.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import ceil, prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import InvalidParameter
from fedgram.core.extras import require
from fedgram.core.threads import Limit, jobs_at_once, side_by_side, torch_threads
from fedgram.nets.layers import Tensor, Vector, as_numbers
from fedgram.nets.optimizers import SGD, ClientOptimizer
from fedgram.nets.vector import Net

# Most bytes of clients that train together, about the size of a processor's cache: their batches, and for each client
# five vectors: first and present weights, gradient, velocity and result.
CHUNK_BYTES, VECTORS = 2**23, 5
PLAIN_SGD = SGD()
ONLY = "only"
Samples: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]
Order: TypeAlias = Iterator[npt.NDArray[np.int64]]


@dataclass(frozen=True)
class Plan:
    """The plan of a training: a number of epochs, or of batches (`steps`), each batch used `repeat` times."""

    lr: float = 0.01
    optimizer: ClientOptimizer = PLAIN_SGD
    weight_decay: float = 0.0  # a part of the weights that is added to the gradient
    batch: int = 32
    epochs: int = 1
    steps: int | None = None
    repeat: int = 1
    fraction: float = 1.0  # of the samples, drawn anew for each epoch

    def batches(self, n: int) -> int:
        """Return the number of batches of a client with n samples."""
        return self.steps or self.epochs * ceil(ceil(self.fraction * n) / self.batch)

    def order(self, n: int, rng: np.random.Generator) -> Order:
        """Yield the samples of each batch, epoch after epoch in a new order."""
        while True:
            order = rng.permutation(n)[: ceil(self.fraction * n)]
            yield from (order[start : start + self.batch] for start in range(0, len(order), self.batch))


@dataclass
class Now:
    """The state of training that hooks see. The first dimension is that of the clients still in training."""

    net: Net
    weights: Tensor  # (clients, trained)
    start: Tensor  # weights at the beginning
    carried: Mapping[str, Tensor]
    x: Tensor  # prepared samples
    y: Tensor  # (clients, batch)
    share: Tensor  # (clients, batch) 1/size of the batch, or 0 where a smaller batch is filled up
    last_use: bool  # of this batch
    buffers: Tensor  # (clients, …) running means, which a forward pass in training moves
    rngs: Sequence[np.random.Generator]  # each client's own, if the gradient is estimated or hooks draw
    shared: Any = None  # `Hooks.shared`, the same for all clients
    # Missing if the gradient is estimated:
    features: Tensor = field(init=False)  # (clients, width, batch)
    scores: Tensor = field(init=False)  # (clients, classes, batch)

    @cached_property
    def losses(self) -> Tensor:
        """Each client's mean cross entropy, (clients,), without what hooks add."""
        from torch.nn.functional import cross_entropy

        return (cross_entropy(self.scores, self.y, reduction="none") * self.share).sum(1)

    def said_by(self, name: str) -> tuple[Tensor, Tensor]:
        """Return the features and scores of the batch by the vectors carried under this name, without gradients."""
        import torch

        buffers, weights = self.carried[name].tensor_split([self.net.buffers], dim=1)
        with torch.no_grad():
            return self.net.forward(self.net.parts(weights), buffers, self.x)


def _identity(weights: Tensor, _: Mapping[str, Tensor]) -> Tensor:
    return weights


@dataclass(frozen=True)
class Hooks:
    """The terms and functions that a method adds to plain SGD.

    `gradient` is that of a term that depends on the weights alone, (clients, trained); `term` is any other term of each
    client's loss, (clients,). Gradients flow through features and scores, never through `weights`. `error` is the
    gradient of a term by the scores, (clients, classes, batch), for terms that depend on nothing else: dense layers
    then need no autograd. `of` maps the trained numbers to the network's weights. `after` is called after each step,
    and may change the state in place. `only` has a vector for each client, 1 for the trained numbers that move and 0
    for those that stay fixed. `estimate` returns the gradient (clients, trained) of each client's loss from forward
    passes alone, in place of back-propagation; `term`, `error` and `of` need that, so they do not go with it. `draws`
    are each client's random numbers for hooks that draw, and `shared` is a value that is the same for all clients; both
    are found in `Now`.
    """

    gradient: Callable[[Now], Tensor] | None = None
    term: Callable[[Now], Tensor] | None = None
    error: Callable[[Now], Tensor] | None = None
    of: Callable[[Tensor, Mapping[str, Tensor]], Tensor] = _identity
    after: Callable[[Now], None] | None = None
    carried: Mapping[str, Sequence[Vector]] = field(default_factory=dict)
    only: Sequence[Vector] | None = None
    estimate: Callable[[Now], Tensor] | None = None
    draws: Sequence[np.random.Generator] | None = None
    shared: Any = None

    def __post_init__(self) -> None:
        """Raise if an estimate is combined with terms that it would ignore."""
        if self.estimate is not None and (self.term or self.error or self.of is not _identity):
            raise InvalidParameter(
                "an estimate has no back-propagation for term, error and of: give their gradient instead"
            )

    @property
    def functions(self) -> tuple[Any, ...]:
        """The functions; clients may train together only if theirs are equal."""
        return self.gradient, self.term, self.error, self.of, self.after, self.estimate


PLAIN = Hooks()


def pull(strength: float, weights: Tensor, center: Tensor) -> Tensor:
    """Return the gradient of (strength/2)‖w - center‖², the proximal term of many methods."""
    return (weights - center).mul_(strength)


def train(
    net: Net,
    samples: Sequence[Samples],
    starts: Sequence[Vector],
    rngs: Sequence[np.random.Generator],
    plan: Plan,
    hooks: Hooks = PLAIN,
) -> tuple[list[Vector], dict[str, list[Vector]]]:
    """Return each client's vector after training, and the vectors that hooks carried along.

    Chunks of clients train side by side if that is faster.
    """
    torch = require("torch", "nets", f"the network {net.network}")
    steps = [plan.batches(len(y)) for _, y in samples]
    # Neighbours should need about as many steps, so that few wait for others.
    order = sorted(range(len(samples)), key=lambda i: -steps[i])
    each = 4 * (plan.batch * prod(net.shape) + VECTORS * net.size)
    size = 1 if net.one_by_one else max(1, CHUNK_BYTES // each)
    vectors: list[Vector] = list(starts)
    carried = {name: list(rows) for name, rows in hooks.carried.items()}
    if hooks.only is not None:
        carried[ONLY] = list(hooks.only)

    def train_chunk(chunk: Sequence[int]) -> None:
        own = [rngs[i] for i in chunk]
        feed = _Feed(net.shape, plan, [samples[i] for i in chunk], own)
        along = {name: np.stack([rows[i] for i in chunk]) for name, rows in carried.items()}
        with net.training(own):
            # Child generators, so that drawing does not change the order of samples.
            drawing = [hooks.draws[i] for i in chunk] if hooks.draws is not None else []
            if hooks.estimate is not None:
                drawing = [rng.spawn(1)[0] for rng in own]
            trained = _together(
                net, feed, np.stack([starts[i] for i in chunk]), [steps[i] for i in chunk], plan, hooks, along, drawing
            )
        for row, i in enumerate(chunk):
            vectors[i] = trained[row]
            for name, rows in carried.items():
                rows[i] = along[name][row]

    chunks = [order[begin : begin + size] for begin in range(0, len(order), size)]
    batch, layers = min(size, len(order)) * plan.batch * net.multiplications, len(net.layer_slices)
    allowed = min(Limit.now(), torch.get_num_threads())
    lengths = [sum(steps[i] for i in chunk) for chunk in chunks]
    at_once = 1 if net.only_one else jobs_at_once(batch, lengths, allowed, pieces=layers)
    with torch_threads(batch, pieces=layers):
        side_by_side([partial(train_chunk, chunk) for chunk in chunks], at_once)
    return vectors, carried


def _together(
    net: Net,
    feed: "_Feed",
    vectors: Vector,
    steps: Sequence[int],
    plan: Plan,
    hooks: Hooks,
    along: Mapping[str, Vector],
    rngs: Sequence[np.random.Generator],
) -> Vector:
    """Return the vectors (clients, size) of clients that train together, those with most steps first."""
    import torch

    # Separate tensors, because buffers change in place between the forward and the backward pass of the weights.
    buffers, weights = (part.clone() for part in torch.from_numpy(vectors).tensor_split([net.buffers], dim=1))
    start, take = weights.clone(), plan.optimizer.begin(weights)
    carried = {name: torch.from_numpy(rows) for name, rows in along.items()}
    k = 0
    for step in range(steps[0]):
        still = sum(step < own for own in steps)
        if still != k:
            k, w = still, weights[:still]
            rows = {name: tensor[:k] for name, tensor in carried.items()}
            leaves = _leaves(net, w, hooks)
            began, means, own = start[:k], buffers[:k], rngs[:k]
        x, y, share = feed.next(k)
        x = net.prepare(x)
        for use in range(1, plan.repeat + 1):
            now = Now(net, w, began, rows, x, y, share, use == plan.repeat, means, own, hooks.shared)
            gradient = _gradient(now, hooks, leaves)
            with torch.no_grad():
                if hooks.gradient is not None:
                    gradient.add_(hooks.gradient(now))
                if plan.weight_decay:
                    gradient.add_(w, alpha=plan.weight_decay)
                if hooks.only is not None:
                    gradient.mul_(rows[ONLY])  # before the optimizer, so that fixed numbers have no momentum
                take(w, gradient, plan.lr)
                if hooks.after is not None:
                    hooks.after(now)
    return torch.cat([buffers, weights], dim=1).numpy()


def _gradient(now: Now, hooks: Hooks, leaves: Sequence[Tensor]) -> Tensor:
    """Return the gradient (clients, trained) of each client's loss; set features and scores, unless it is estimated."""
    import torch

    if hooks.estimate is not None:
        with torch.no_grad():
            return hooks.estimate(now)
    net = now.net
    if not net.one_by_one and hooks.term is None and hooks.of is _identity:
        more = None if hooks.error is None else partial(_error, now, hooks.error)
        gradient, now.features, now.scores = dense_gradient(net, now.weights, now.x, now.y, now.share, more)
        return gradient
    parts = leaves if hooks.of is _identity else net.parts(hooks.of(leaves[0], now.carried))
    now.features, now.scores = net.forward(parts, now.buffers, now.x, training=True)
    losses = now.losses if hooks.term is None else now.losses + hooks.term(now)
    if hooks.error is not None:
        losses = losses + (_error(now, hooks.error, now.features, now.scores) * now.scores).sum((1, 2))
    # A parameter that a module does not use has a gradient of zero.
    pieces = torch.autograd.grad(losses.sum(), leaves, materialize_grads=True)
    return torch.cat([piece.flatten(1) for piece in pieces], dim=1)


def _error(now: Now, error: Callable[[Now], Tensor], features: Tensor, scores: Tensor) -> Tensor:
    import torch

    now.features, now.scores = features, scores
    with torch.no_grad():
        return error(now)


def _leaves(net: Net, weights: Tensor, hooks: Hooks) -> list[Tensor]:
    """Return the tensors for autograd to differentiate by, in the order of the vector: views that follow every step."""
    # The network's parameters, if these are trained: the graph then has fewer nodes than from a single leaf.
    pieces = net.parts(weights) if hooks.of is _identity else [weights]
    return [piece.detach().requires_grad_() for piece in pieces]


class _Feed:
    """Feed of the batches of several clients, copied into one array that is used again for each batch."""

    def __init__(
        self, shape: tuple[int, ...], plan: Plan, samples: Sequence[Samples], rngs: Sequence[np.random.Generator]
    ) -> None:
        self._samples = [(as_numbers(x), y) for x, y in samples]
        self._orders = [plan.order(len(y), rng) for (_, y), rng in zip(samples, rngs, strict=True)]
        self._x = np.zeros((len(samples), plan.batch, *shape), dtype=np.float32)
        self._y = np.zeros((len(samples), plan.batch), dtype=np.int64)
        self._share = np.zeros((len(samples), plan.batch), dtype=np.float32)

    def next(self, clients: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the next batch of the first `clients`: samples, labels, and each sample's share of the loss."""
        import torch

        longest = 0
        for i in range(clients):
            (x, y), batch = self._samples[i], next(self._orders[i])
            size = len(batch)
            np.take(x, batch, axis=0, out=self._x[i, :size], mode="clip")  # other modes copy twice
            self._y[i, :size] = y[batch]
            self._share[i, :size] = 1 / size
            self._share[i, size:] = 0
            longest = max(longest, size)
        filled = (slice(clients), slice(longest))
        return (
            torch.from_numpy(self._x[filled]),
            torch.from_numpy(self._y[filled]),
            torch.from_numpy(self._share[filled]),
        )


def dense_gradient(
    net: Net,
    weights: Tensor,
    x: Tensor,
    y: Tensor,
    share: Tensor,
    more: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient (clients, trained) of each client's mean cross entropy by dense layers, features and scores.

    Written by hand: autograd gives the same, but for such small products it takes a fifth more time.

    `more` is given features and scores, and returns the gradient of further terms by the scores.
    """
    import torch

    parts, gradients = net.parts(weights), torch.empty_like(weights)
    outs = net.parts(gradients)
    memory = parts.pop() if net.memory else None
    layers = list(zip(parts[::2], parts[1::2], outs[::2], outs[1::2], strict=False))
    seen = [x]
    for weight, bias, *_ in layers[:-1]:
        seen.append(bias.unsqueeze(2).baddbmm(weight, seen[-1]).relu_())
    features = seen[-1]
    if memory is not None:
        seen[-1] = features + memory.unsqueeze(2)
    head, constants, *_ = layers[-1]
    scores = constants.unsqueeze(2).baddbmm(head, seen[-1])
    one = scores.new_full((1, 1, 1), -1.0).expand(len(y), 1, y.shape[1])
    error = scores.softmax(1).scatter_add_(1, y.unsqueeze(1), one).mul_(share.unsqueeze(1))
    if more is not None:
        error += more(features, scores)
    for place in reversed(range(len(layers))):
        weight, _, weight_gradient, bias_gradient = layers[place]
        torch.bmm(error, seen[place].transpose(1, 2), out=weight_gradient)
        torch.sum(error, 2, out=bias_gradient)
        if memory is not None and place == len(layers) - 1:
            torch.sum(weight.transpose(1, 2).bmm(error), 2, out=outs[-1])
        if place:
            below = features if place == len(layers) - 1 else seen[place]
            error = weight.transpose(1, 2).bmm(error).mul_(below > 0)
    return gradients, features, scores

"""The one loop in which every gradient method trains: SGD on the vectors of one client, or of many at once.

Clients train together as far as a chunk of them fits the processor's cache; each has its own samples, order, number of
batches and vector, and what comes out is what it would be alone, to rounding. No batch is dropped, however small.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import ceil, prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import InvalidParameter
from fedgram.core.extras import require
from fedgram.core.threads import Limit, jobs_at_once, side_by_side, torch_threads
from fedgram.nets import byhand
from fedgram.nets.layers import Vector, as_numbers
from fedgram.nets.vector import Net

if TYPE_CHECKING:
    from torch import Tensor

# What clients that train together may hold: their batches, and for each its first and present weights, gradient,
# velocity and result. About what a processor's cache takes.
CHUNK_BYTES, VECTORS = 2**23, 5
ONLY = "only"
Samples: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]
Order: TypeAlias = Iterator[npt.NDArray[np.int64]]


@dataclass(frozen=True)
class Plan:
    """How to train: so many epochs, or so many batches (`steps`), each batch used `repeat` times."""

    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch: int = 32
    epochs: int = 1
    steps: int | None = None
    repeat: int = 1
    fraction: float = 1.0  # of the samples, drawn anew for each epoch

    def batches(self, n: int) -> int:
        """Return how many batches a client with n samples takes."""
        return self.steps or self.epochs * ceil(ceil(self.fraction * n) / self.batch)

    def order(self, n: int, rng: np.random.Generator) -> Order:
        """Yield the samples of each batch, epoch after epoch in a new order."""
        while True:
            order = rng.permutation(n)[: ceil(self.fraction * n)]
            yield from (order[start : start + self.batch] for start in range(0, len(order), self.batch))


@dataclass
class Now:
    """A moment of training, as hooks see it. First dimension: the clients that are still at it."""

    net: Net
    weights: "Tensor"  # (clients, trained)
    start: "Tensor"  # where they began
    carried: Mapping[str, "Tensor"]
    x: "Tensor"  # prepared samples
    y: "Tensor"  # (clients, batch)
    share: "Tensor"  # (clients, batch) 1/size of the batch, or 0 where a smaller batch is filled up
    last_use: bool  # of this batch
    buffers: "Tensor"  # (clients, …) running means, which a forward pass in training moves
    rngs: Sequence[np.random.Generator]  # each client's own, where the gradient is estimated
    # Not there where it is estimated:
    features: "Tensor" = field(init=False)  # (clients, width, batch)
    scores: "Tensor" = field(init=False)  # (clients, classes, batch)

    @cached_property
    def losses(self) -> "Tensor":
        """Each client's mean cross entropy, (clients,), without what hooks add."""
        from torch.nn.functional import cross_entropy

        return (cross_entropy(self.scores, self.y, reduction="none") * self.share).sum(1)

    def said_by(self, name: str) -> tuple["Tensor", "Tensor"]:
        """Return the features and scores of the batch by whole vectors that are carried along; no gradient flows."""
        import torch

        buffers, weights = self.carried[name].tensor_split([self.net.buffers], dim=1)
        with torch.no_grad():
            return self.net.forward(self.net.parts(weights), buffers, self.x)


def _identity(weights: "Tensor", _: Mapping[str, "Tensor"]) -> "Tensor":
    return weights


@dataclass(frozen=True)
class Hooks:
    """What a method adds to plain SGD.

    `gradient` is that of a term that depends on the weights alone, (clients, trained); `term` is any other term of each
    client's loss, (clients,). Gradients flow through features and scores, never through `weights`. `error` is the
    gradient of a term by the scores, (clients, classes, batch), for terms that depend on nothing else: dense layers
    then need no autograd. `of` makes the network's weights from what is trained. `after` is called after each step, and
    may change what it sees in place. `only` has a vector for each client, 1 for the trained numbers that move and 0 for
    those that stay where they are. `estimate` returns the gradient (clients, trained) of each client's loss from
    forward passes alone, in place of back-propagation; `term`, `error` and `of` need that, so they do not go with it.
    """

    gradient: Callable[[Now], "Tensor"] | None = None
    term: Callable[[Now], "Tensor"] | None = None
    error: Callable[[Now], "Tensor"] | None = None
    of: Callable[["Tensor", Mapping[str, "Tensor"]], "Tensor"] = _identity
    after: Callable[[Now], None] | None = None
    carried: Mapping[str, Sequence[Vector]] = field(default_factory=dict)
    only: Sequence[Vector] | None = None
    estimate: Callable[[Now], "Tensor"] | None = None

    def __post_init__(self) -> None:
        """Refuse what would be left out of an estimate."""
        if self.estimate is not None and (self.term or self.error or self.of is not _identity):
            raise InvalidParameter(
                "an estimate has no back-propagation for term, error and of: give their gradient instead"
            )


PLAIN = Hooks()


def pull(strength: float, weights: "Tensor", center: "Tensor") -> "Tensor":
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
    """Return each client's vector after training, and what hooks carried along.

    Chunks of clients train side by side where that pays off.
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
            # Children, so that samples are shuffled as where nothing else is drawn.
            drawing = [rng.spawn(1)[0] for rng in own] if hooks.estimate is not None else []
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

    # Apart, because buffers change in place while gradients of the weights are on their way.
    buffers, weights = (part.clone() for part in torch.from_numpy(vectors).tensor_split([net.buffers], dim=1))
    start, velocity = weights.clone(), torch.zeros_like(weights)
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
            now = Now(net, w, began, rows, x, y, share, use == plan.repeat, means, own)
            gradient = _gradient(now, hooks, leaves)
            with torch.no_grad():
                if hooks.gradient is not None:
                    gradient.add_(hooks.gradient(now))
                if plan.weight_decay:
                    gradient.add_(w, alpha=plan.weight_decay)
                if hooks.only is not None:
                    gradient.mul_(rows[ONLY])  # before momentum, so that what stays has none
                if plan.momentum:
                    gradient = velocity[:k].mul_(plan.momentum).add_(gradient)
                w.sub_(gradient, alpha=plan.lr)
                if hooks.after is not None:
                    hooks.after(now)
    return torch.cat([buffers, weights], dim=1).numpy()


def _gradient(now: Now, hooks: Hooks, leaves: Sequence["Tensor"]) -> "Tensor":
    """Return the gradient (clients, trained) of each client's loss; now has features and scores, if it took them."""
    import torch

    if hooks.estimate is not None:
        with torch.no_grad():
            return hooks.estimate(now)
    net = now.net
    if not net.one_by_one and hooks.term is None and hooks.of is _identity:
        more = None if hooks.error is None else partial(_error, now, hooks.error)
        gradient, now.features, now.scores = byhand.gradient(net, now.weights, now.x, now.y, now.share, more)
        return gradient
    parts = leaves if hooks.of is _identity else net.parts(hooks.of(leaves[0], now.carried))
    now.features, now.scores = net.forward(parts, now.buffers, now.x, training=True)
    losses = now.losses if hooks.term is None else now.losses + hooks.term(now)
    if hooks.error is not None:
        losses = losses + (_error(now, hooks.error, now.features, now.scores) * now.scores).sum((1, 2))
    # A parameter that a module does not use has a gradient of zero.
    pieces = torch.autograd.grad(losses.sum(), leaves, materialize_grads=True)
    return torch.cat([piece.flatten(1) for piece in pieces], dim=1)


def _error(now: Now, error: Callable[[Now], "Tensor"], features: "Tensor", scores: "Tensor") -> "Tensor":
    import torch

    now.features, now.scores = features, scores
    with torch.no_grad():
        return error(now)


def _leaves(net: Net, weights: "Tensor", hooks: Hooks) -> list["Tensor"]:
    """Return what autograd derives by, in the order of the vector: views, which see every step that is taken."""
    # The network's parameters, if they are what is trained: with fewer nodes on the way than from one leaf.
    pieces = net.parts(weights) if hooks.of is _identity else [weights]
    return [piece.detach().requires_grad_() for piece in pieces]


class _Feed:
    """Puts the batches of several clients into one array, again and again the same."""

    def __init__(
        self, shape: tuple[int, ...], plan: Plan, samples: Sequence[Samples], rngs: Sequence[np.random.Generator]
    ) -> None:
        self._samples = [(as_numbers(x), y) for x, y in samples]
        self._orders = [plan.order(len(y), rng) for (_, y), rng in zip(samples, rngs, strict=True)]
        self._x = np.zeros((len(samples), plan.batch, *shape), dtype=np.float32)
        self._y = np.zeros((len(samples), plan.batch), dtype=np.int64)
        self._share = np.zeros((len(samples), plan.batch), dtype=np.float32)

    def next(self, clients: int) -> tuple["Tensor", "Tensor", "Tensor"]:
        """Return the next batch of the first so many clients: samples, labels, and each sample's share of the loss."""
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

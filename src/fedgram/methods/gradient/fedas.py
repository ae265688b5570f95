"""FedAS: the shared base is drawn to what the client knew before, and averaged by how much clients have to teach."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import InvalidData
from fedgram.core.schema import Count, Natural, NotNegative
from fedgram.core.threads import torch_threads
from fedgram.methods.gradient.fedper import FedPer
from fedgram.methods.gradient.gradient_method import Training, training_step
from fedgram.nets import Hooks, Now, Tensor, Vector
from fedgram.nets.layers import BatchNorm, Convolution, Layer, as_numbers, unpooled
from fedgram.nets.network import BuiltIn
from fedgram.nets.prototypes import away, class_means, class_sums
from fedgram.nets.sgd import CHUNK_BYTES, PLAIN_SGD
from fedgram.nets.vector import Net, split
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.registry import register
from fedgram.protocol.replies import Number, Question, check, learnt

LEAST = 1e-20  # lower bound of a weight, negligible beside any other; clients that all have it weigh the same
MOST = 1e30  # upper bound of a weight, above all that training gives; beyond it a client could replace the mean


@dataclass(frozen=True)
class Weighed:
    """The rule for a reply of F_k θ_k and F_k, with θ_k a trained base."""

    base: Vector

    def check(self, value: Any, question: Question, where: str) -> None:
        """Refuse anything else."""
        weight = Number(LEAST, MOST)
        check(value, {"base": self.base, "weight": weight}, question, where)
        learnt(self.base, unit=value["weight"]).check(value["base"], question, f"{where}/base")


@register
@dataclass(frozen=True, kw_only=True)
class FedAS(FedPer):
    """FedAS — Yang et al. 2024: FedPer whose base is aligned before training, and averaged by Fisher information.

    Align: the base that comes is trained for `align_epochs` so that a sample's features are near p_c, the mean of its
    class under the base that the client had before; then the client trains as in FedPer. Synchronise: θ = Σ F_k θ_k /
    Σ F_k, where F_k is the trace of the empirical Fisher matrix after training, the mean over the client's samples of
    ‖∇ log p(y|x)‖². With `synchronize=False` bases are averaged by samples; without both it is FedPer.

    Parameters
    ----------
    align_lr
        The learning rate of the alignment.
    align_epochs
        How many epochs the base is aligned for; with 0 it is not.
    align_batch
        How many samples a step of the alignment takes.
    synchronize
        Whether bases are averaged by Fisher information, or by samples.

    """

    adds = False  # weights may be smaller than fixed point holds
    # After more epochs scores are so large that their rounding shows.
    quick = MappingProxyType({**FedPer.quick, "epochs": 5})

    align_lr: NotNegative = 0.01
    align_epochs: Natural = 1
    align_batch: Count = 16
    synchronize: bool = True

    # server
    def share(self, clients: Clients, shared: Vector) -> Vector:
        """Return Σ F_k θ_k / Σ F_k, of which the server needs the two sums only."""
        if not self.synchronize:
            return super().share(clients, shared)
        mean = clients.mean(self.train, shared, to=self.asked(clients), weighted=False)
        base: Vector = (mean["base"] / mean["weight"]).astype(np.float32)
        return base

    # client
    @training_step(reply=lambda method, question: method.reply(question.payload))
    def train(self, client: ClientSide, shared: Vector) -> Training[Any]:
        """Return the base after alignment and local SGD, times F_k, and F_k; the head stays here."""
        start = self.completed(client, shared)
        if self.align_epochs:
            start = yield from self._aligned(client, start)
        own = yield from self.descend(client, start)
        base, weight = own[: len(shared)], self._fisher(client, own) if self.synchronize else 0.0
        self.take(client, own)
        return {"base": (base * weight).astype(np.float32), "weight": weight} if self.synchronize else base

    def reply(self, base: Vector) -> Any:
        """Return the rule for a reply to `train`."""
        return Weighed(base) if self.synchronize else learnt(base)

    def _aligned(self, client: ClientSide, start: Vector) -> Training[Vector]:
        """Return the start with its base drawn to the client's old prototypes; no gradient reaches the head."""
        old = class_means(*class_sums(self.net_of(client), client.state["own"], client.x, client.y))
        return (
            yield from self.descend(
                client,
                start,
                Hooks(term=_align),
                carried={"prototypes": old.astype(np.float32)},
                # Of its own, so that training shuffles as in FedPer.
                rng=client.rng.spawn(1)[0],
                lr=self.align_lr,
                epochs=self.align_epochs,
                batch=self.align_batch,
                steps=None,
                optimizer=PLAIN_SGD,
                weight_decay=0.0,
            )
        )

    def _fisher(self, client: ClientSide, own: Vector) -> float:
        """Return F_k."""
        fisher = fisher_trace(self.net_of(client), own, client.x, client.y)
        if not fisher <= MOST:
            raise InvalidData(f"the Fisher information is {fisher}: take a smaller lr than {self.lr}")
        return max(fisher, LEAST)


def _align(now: Now) -> Tensor:
    """Return Σ over classes of the batch of the mean of (z - p_c)², in place of the cross entropy."""
    real = (now.share > 0).float()
    alike = (now.y.unsqueeze(2) == now.y.unsqueeze(1)) * real.unsqueeze(1)  # (clients, batch, batch)
    each = away(now, now.carried["prototypes"]) * real / alike.sum(2).clamp(min=1)
    return each.sum(1) - now.losses


AT_ONCE = 64  # samples of a network that fedgram brings along


def fisher_trace(net: Net, vector: Vector, x: npt.NDArray[Any], y: npt.NDArray[np.int64]) -> float:
    """Return the mean over samples of ‖∇ log p(y|x)‖², the gradient by all that is trained; batch norm as in scoring.

    Every sample has a gradient of its own: the squared norm of a batch's mean gradient would depend on its size. For
    networks without memory.
    """
    import torch

    numbers = torch.from_numpy(np.array(vector)).unsqueeze(0)
    buffers, weights = numbers.tensor_split([net.buffers], dim=1)
    samples, total = as_numbers(x), 0.0
    # For gradients of single samples side by side, as many samples as fit a processor's cache.
    size = AT_ONCE if isinstance(net, BuiltIn) else max(1, CHUNK_BYTES // (4 * net.size))
    for start in range(0, len(y), size):
        block = net.prepare(torch.tensor(samples[start : start + size]).unsqueeze(0))
        labels = torch.from_numpy(y[start : start + size])
        with torch_threads(len(labels) * net.multiplications, pieces=len(net.layer_slices)):
            if isinstance(net, BuiltIn):
                total += sum(_by_layer(net, weights, buffers, block, labels))
            else:
                total += _by_sample(net, weights, buffers, block, labels)
    return total / len(y)


def _by_layer(net: BuiltIn, weights: Tensor, buffers: Tensor, x: Tensor, y: Tensor) -> Iterator[float]:
    """Yield each layer's part, from its input and the gradient by its output: one backward pass for all."""
    import torch
    from torch.nn.functional import cross_entropy

    trained, kept = iter(net.parts(weights)), iter(split(buffers, net.buffer_shapes))
    passed: list[tuple[Layer, Tensor, Tensor, list[Tensor]]] = []
    for layer in unpooled(net.layers):
        own, means = [next(trained) for _ in layer.parameters], [next(kept) for _ in layer.buffers]
        said = layer.apply(x, own, means, False)
        if own:
            passed.append((layer, x, said.requires_grad_(), means))
            said = said.clone()  # the next layer may change it in place
        x = said
    loss = cross_entropy(x, y.unsqueeze(0), reduction="sum")
    errors = torch.autograd.grad(loss, [said for _, _, said, _ in passed])
    for (layer, seen, _, means), error in zip(passed, errors, strict=True):
        yield float(_norms(layer, seen.detach(), error, means).sum(dtype=torch.float64))


def _norms(layer: Layer, seen: Tensor, error: Tensor, means: list[Tensor]) -> Tensor:
    """Return ‖∇‖² of each sample by a layer's parameters, from its input and the gradient by its output."""
    from torch.nn.functional import batch_norm, unfold

    if isinstance(layer, Convolution):
        patches, flat = unfold(seen, layer.kernel), error.flatten(2)
        return flat.bmm(patches.transpose(1, 2)).square().sum((1, 2)) + flat.sum(2).square().sum(1)
    if isinstance(layer, BatchNorm):
        normal = batch_norm(seen, means[0][0], means[1][0])
        return (error * normal).sum((2, 3)).square().sum(1) + error.sum((2, 3)).square().sum(1)
    # A dense layer's gradient is error · inputᵀ, whose norm is a product of two.
    return error.square().sum(1) * (seen.square().sum(1) + 1)


def _by_sample(net: Net, weights: Tensor, buffers: Tensor, x: Tensor, y: Tensor) -> float:
    """Return the sum over samples of ‖∇‖² by autograd, for any module."""
    from torch.func import grad, vmap
    from torch.nn.functional import cross_entropy

    def loss(parts: list[Tensor], sample: Tensor, label: Tensor) -> Tensor:
        _, scores = net.forward(parts, buffers, sample.unsqueeze(0))
        return cross_entropy(scores, label.view(1, 1))

    def norm(pieces: list[Tensor]) -> float:
        return sum(piece.double().square().sum().item() for piece in pieces)

    parts, gradient = net.parts(weights), grad(loss)
    try:
        return norm(vmap(gradient, (None, 0, 0))(parts, x, y))
    except RuntimeError:
        # Not every module can be vectorised: some write in place, some look at values.
        return sum(norm(gradient(parts, *sample)) for sample in zip(x, y, strict=True))

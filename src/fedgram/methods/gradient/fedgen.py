"""FedGen: the server learns a generator of features from the clients' heads, and clients train with its features."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from fedgram.core.schema import Bounds, Count, NotNegative, PositiveShare
from fedgram.core.threads import torch_threads
from fedgram.methods.gradient.fedavg import FedAvg
from fedgram.methods.gradient.gradient_method import Averaged, Training, once, training_step
from fedgram.nets import Hooks, Net, Now, Tensor, TrainedNet, Vector
from fedgram.nets.network import net_for
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.registry import register
from fedgram.protocol.replies import LabelCounts, learnt

Counts = npt.NDArray[np.int64]
EPSILON = 1e-5  # of batch normalisation


@register
@dataclass(frozen=True, kw_only=True)
class FedGen(FedAvg):
    """FedGen — Zhu, Hong & Zhou 2021, Algorithm 1: FedAvg with features G(y, ε) that a generator makes for a label y.

    The server fits G to the heads of the clients that took part: Σ_k (n_ky/n_y) CE(head_k(G(y, ε)), y), with y drawn by
    their pooled label counts and ε from a normal distribution, plus `diversity` times a term that keeps features of
    different ε apart. From the second round on a client adds to its loss α_t CE(head(G(ŷ, ε)), ŷ), with ŷ drawn by the
    pooled counts of all clients whose heads G was fitted to, and β_t KL(softmax head(G(y, ε)) ‖ softmax of its scores)
    for its own samples. α_t, β_t and Adam's learning rate fall by `decay` each round. A class that G was never fitted
    to adds nothing.

    (4) of the paper has the cross entropy of mean scores; here, as in the authors' program, losses are averaged.
    With α = β = 0 there is no generator, and it is FedAvg.

    Parameters
    ----------
    alpha
        α, the strength of the loss of generated samples.
    beta
        β, the strength of the divergence from the scores of generated features.
    diversity
        The strength of the term that keeps generated features apart.
    decay
        The factor of α, β and the generator's learning rate after each round.
    noise
        The length of ε.
    hidden
        The width of the generator's hidden layer.
    generator_lr
        The learning rate of the generator's Adam.
    generator_weight_decay
        The weight decay of the generator's Adam.
    generator_steps
        The number of steps of the generator after a round.
    generator_batch
        The number of labels in a step of the generator, and that clients draw for each batch.

    """

    adds = False

    # The defaults are for hundreds of rounds; a check has a few.
    quick = MappingProxyType({**FedAvg.quick, "alpha": 1.0, "beta": 1.0, "hidden": 32, "generator_steps": 20})

    # With a large α, heads learn from the generator and forget the samples.
    pulls = ("alpha",)

    alpha: NotNegative = 10.0
    beta: NotNegative = 10.0
    diversity: NotNegative = 1.0
    decay: PositiveShare = 0.98
    noise: Count = 32
    hidden: Count = 256
    generator_lr: NotNegative = 3e-4
    generator_weight_decay: NotNegative = 0.01
    generator_steps: Count = 50
    generator_batch: Annotated[int, Bounds(2)] = 32

    def check_pulls(self) -> None:
        """Accept any α: unlike that of a proximal term, its gradient does not grow with the weights."""

    # server
    def serve(self, clients: Clients) -> TrainedNet:
        """Return the global model of the last round."""
        net, first = self.begin(clients)
        self.check_linear_head(net)
        on = self.alpha > 0 or self.beta > 0
        counts: dict[str, Counts] = dict(clients.ask(self.count)) if on else {}
        generator = Generator(self._generator(net), clients.rng, self)
        heads: dict[str, Vector] = {}
        world = Averaged(first, net.buffers, self._server)
        sent: dict[str, Any] = {"weights": first}

        def heard(name: str, vector: Vector) -> None:
            heads[name] = vector[net.head].copy()

        for number in clients.rounds_of(self.rounds):
            heads.clear()
            world.move(clients.mean(self.train, sent, to=self.asked(clients), heard=heard))
            sent["weights"] = world.weights
            clients.report(number, self.model(clients, sent["weights"]))
            if on and number + 1 < self.rounds:
                generator.fit(heads, counts, clients.rng, self.decay**number)
                sent |= generator.message
        return self.model(clients, sent["weights"])

    def _generator(self, net: Net) -> Net:
        return generator_net(net.classes, net.features, noise=self.noise, hidden=self.hidden)

    # client
    @step(reply=LabelCounts())
    def count(self, client: ClientSide) -> Counts:
        """Return the client's number of samples of each class."""
        return np.bincount(client.y, minlength=len(client.classes))

    @training_step(reply=lambda _, question: learnt(question.payload["weights"]))
    def train(self, client: ClientSide, sent: Any) -> Training[Vector]:
        """Return the weights after SGD with generated features."""
        if "generator" not in sent:
            return (yield from self.descend(client, sent["weights"]))
        generator = self._generator(self.net_of(client))
        fallen = self.decay**client.round
        source = yield from once(
            sent, lambda sent: Source(generator, sent["generator"], sent["labels"], self.noise, fallen)
        )
        hooks = Hooks(
            gradient=self._learn if self.alpha else None, error=self._agree if self.beta else None, shared=source
        )
        # A child of the client's random numbers, so that samples are shuffled as in FedAvg.
        return (yield from self.descend(client, sent["weights"], hooks, draws=client.rng.spawn(1)[0]))

    def _learn(self, now: Now) -> Tensor:
        """Return the gradient of α_t CE(head(G(ŷ, ε)), ŷ), which is zero except for the head."""
        source: Source = now.shared
        y = source.labels(now, self.generator_batch)
        hidden = source.hidden(now, y, [self.generator_batch] * len(y))
        return source.gradient(now, hidden, y).mul_(source.fallen * self.alpha)

    def _agree(self, now: Now) -> Tensor:
        """Return the gradient of β_t KL(softmax head(G(y, ε)) ‖ softmax scores) by the scores, of the batch's mean."""
        source: Source = now.shared
        hidden = source.hidden(now, now.y, (now.share > 0).sum(1).tolist())
        apart = now.scores.softmax(1) - source.scores(now, hidden).softmax(1)
        return apart.mul_((source.fallen * self.beta * now.share * source.known[now.y]).unsqueeze(1))


# The generator makes features of a class from a label and noise. The server trains it with batch normalisation. Clients
# get it in evaluation mode, where batch normalisation is a scale and shift of each hidden value, which are folded into
# the layer before: the result is an mlp.


def generator_net(classes: int, features: int, *, noise: int, hidden: int) -> Net:
    """Return the mlp from noise and a label to features, which are its scores."""
    return net_for(f"mlp:{hidden}", (noise + classes,), features)


def draw_labels(counts: Counts, size: int, rngs: Sequence[np.random.Generator]) -> Tensor:
    """Return labels (clients, size), drawn by each client's counts (clients, c)."""
    import torch

    drawn = [rng.choice(len(own), size, p=own / own.sum()) for rng, own in zip(rngs, counts, strict=True)]
    return torch.from_numpy(np.stack(drawn))


def labelled(noise: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return noise (…, width, n) with the labels (…, n) as ones and zeros below: (…, width + classes, n)."""
    import torch

    return torch.cat([noise, torch.nn.functional.one_hot(y, classes).to(noise).transpose(-1, -2)], dim=-2)


def head_scores(heads: Tensor, features: Tensor, classes: int) -> Tensor:
    """Return the scores (heads, c, n) of features (…, width, n) by heads that are rows: a matrix, then constants."""
    size = classes * features.shape[-2]
    scores = heads[:, :size].reshape(len(heads), classes, -1) @ features
    return scores + heads[:, size:].unsqueeze(2) if heads.shape[1] > size else scores


def diversity(noise: Tensor, features: Tensor) -> Tensor:
    """Return exp(-mean ‖ε_i - ε_j‖² · ‖G_i - G_j‖₁) over pairs of rows, both as means over dimensions."""
    import torch

    apart = torch.cdist(noise, noise).square() / noise.shape[1] * torch.cdist(features, features, p=1)
    return (-apart.mean() / features.shape[1]).exp()


@dataclass
class Source:
    """The generator of clients that train together, from which each draws with its own random numbers.

    `vector` are the numbers of the generator `net`, `counts` the label counts, and `fallen` is the factor of α and β in
    this round. Features are never computed: for a head W and the generator's last layer A h + a with hidden values h,
    the scores are (W A) h + W a. The product W A has one row per class, while A h has one column per sample.
    """

    net: Net
    vector: Vector
    counts: Counts
    noise: int
    fallen: float = 1.0
    _seen: tuple[Now, Tensor, Tensor] | None = field(default=None, init=False)

    @cached_property
    def _layers(self) -> list[Tensor]:
        import torch

        return [part[0] for part in self.net.parts(torch.from_numpy(self.vector[None].copy()))]

    @cached_property
    def known(self) -> Tensor:
        """The mask (c,) of the classes that the generator was fitted to."""
        import torch

        return torch.from_numpy(self.counts > 0)

    def labels(self, now: Now, size: int) -> Tensor:
        """Return labels (clients, size) that are drawn by the counts."""
        return draw_labels(np.tile(self.counts, (len(now.rngs), 1)), size, now.rngs)

    def hidden(self, now: Now, y: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the generator's hidden values (clients, hidden, n) for labels y (clients, n).

        `sizes` are the clients' numbers of labels; the rest of a row is padding. A client draws noise for its own
        labels alone, so its random numbers do not depend on the other clients.
        """
        import torch

        drawn = np.zeros((len(y), self.noise, y.shape[1]), dtype=np.float32)
        for row, (rng, size) in enumerate(zip(now.rngs, sizes, strict=True)):
            drawn[row, :, :size] = rng.standard_normal((self.noise, size), dtype=np.float32)
        below, bias, *_ = self._layers
        by_label = (below[:, self.noise :] + bias.unsqueeze(1)).t()  # the part of each label, (c, hidden)
        return (below[:, : self.noise] @ torch.from_numpy(drawn)).add_(by_label[y].transpose(1, 2)).relu_()

    def scores(self, now: Now, hidden: Tensor) -> Tensor:
        """Return the scores (clients, c, n) of the heads in training for the features behind hidden values."""
        weights, constants = self._through(now)
        return constants.baddbmm(weights, hidden)

    def gradient(self, now: Now, hidden: Tensor, y: Tensor) -> Tensor:
        """Return the gradient (clients, trained) of the heads' mean cross entropy, zero except for the heads."""
        import torch

        one = hidden.new_full((1, 1, 1), -1.0).expand(len(y), 1, y.shape[1])
        error = self.scores(now, hidden).softmax(1).scatter_add_(1, y.unsqueeze(1), one).div_(y.shape[1])
        *_, above, constants = self._layers
        total = error.sum(2)
        matrix = (error @ hidden.transpose(1, 2)) @ above.t() + total.unsqueeze(2) * constants
        gradient = torch.zeros_like(now.weights)
        head = _head(now, gradient)
        head.copy_(torch.cat([matrix.flatten(1), total], dim=1)[:, : head.shape[1]])  # a head may have no constants
        return gradient

    def _through(self, now: Now) -> tuple[Tensor, Tensor]:
        """Return W A (clients, c, hidden) and W a with the heads' constants (clients, c, 1), computed once per step."""
        if self._seen is None or self._seen[0] is not now:
            *_, above, constants = self._layers
            head, size = _head(now, now.weights), now.net.classes * now.net.features
            matrix = head[:, :size].view(len(head), now.net.classes, -1)
            moved = matrix @ constants
            self._seen = now, matrix @ above, (moved + head[:, size:] if head.shape[1] > size else moved).unsqueeze(2)
        return self._seen[1:]


def _head(now: Now, trained: Tensor) -> Tensor:
    """Return the last layer's part of trained numbers (clients, trained)."""
    return trained[:, now.net.head.start - now.net.buffers :]


class Generator:
    """A generator that learns, in double precision, so that small differences of heads have small effects."""

    def __init__(self, net: Net, rng: np.random.Generator, method: FedGen) -> None:
        import torch

        first = torch.from_numpy(net.initial(rng).astype(np.float64)).unsqueeze(0)
        self._layers = [part[0].clone().requires_grad_() for part in net.parts(first)]
        hidden = len(self._layers[1])
        self._scale, self._shift = (torch.full((hidden,), value).double() for value in (1.0, 0.0))
        self._mean, self._variance = torch.zeros_like(self._scale), torch.ones_like(self._scale)
        trained = [*self._layers, self._scale.requires_grad_(), self._shift.requires_grad_()]
        lr, decay = method.generator_lr, method.generator_weight_decay
        self._method, self._adam = method, torch.optim.Adam(trained, lr=lr, weight_decay=decay, fused=True)
        self._met: dict[str, Counts] = {}

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return features (n, width) of rows of noise and label, in training mode."""
        from torch.nn.functional import batch_norm, linear

        below, bias, above, constants = self._layers
        moments = self._mean, self._variance, self._scale, self._shift
        seen = batch_norm(linear(inputs, below, bias), *moments, training=True, eps=EPSILON)
        return linear(seen.relu(), above, constants)

    def fit(
        self,
        heads: Mapping[str, Vector],
        counts: Mapping[str, Counts],
        rng: np.random.Generator,
        decay: float = 1.0,
    ) -> None:
        """Take steps towards features that the heads of some clients assign to their classes.

        The loss is Σ_k (n_ky/n_y) CE(head_k(G(y, ε)), y), the mean over a batch of labels y that are drawn by these
        clients' pooled counts, plus the method's `diversity` times the function `diversity`. `decay` is a factor of
        the learning rate.
        """
        import torch
        from torch.nn.functional import cross_entropy

        names = sorted(heads)  # in an order that does not depend on the order of replies
        # Heads stay in single precision: double would cost four times as much and add no information.
        teachers = torch.from_numpy(np.stack([heads[name] for name in names]))
        each = np.stack([counts[name] for name in names])
        pooled, classes = each.sum(axis=0), each.shape[1]
        weights = torch.from_numpy(each / np.maximum(pooled, 1))
        self._adam.param_groups[0]["lr"] = self._method.generator_lr * decay
        batch = self._method.generator_batch
        numbers = teachers.numel() + sum(layer.numel() for layer in self._layers)
        with torch_threads(batch * numbers, pieces=len(self._layers)):
            for _ in range(self._method.generator_steps):
                [y] = draw_labels(pooled[None], batch, [rng])
                noise = torch.from_numpy(rng.standard_normal((self._layers[0].shape[1] - classes, len(y))))
                made = self(labelled(noise, y, classes).t())
                scores = head_scores(teachers, made.t().float(), classes).double()
                wrong = cross_entropy(scores, y.expand(len(teachers), -1), reduction="none")
                loss = (weights[:, y] * wrong).sum(0).mean() + self._method.diversity * diversity(noise.t(), made)
                self._adam.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                self._adam.step()
        self._met |= {name: counts[name] for name in names}

    @property
    def message(self) -> dict[str, npt.NDArray[Any]]:
        """The message to clients: the generator, and the label counts of all clients whose heads it was fitted to."""
        return {"generator": self.vector, "labels": np.sum(list(self._met.values()), axis=0)}

    @property
    def vector(self) -> Vector:
        """The generator in evaluation mode, as the numbers of an mlp."""
        import torch

        with torch.no_grad():
            below, bias, *rest = self._layers
            factor = self._scale / (self._variance + EPSILON).sqrt()
            layers = [below * factor.unsqueeze(1), (bias - self._mean) * factor + self._shift, *rest]
            return torch.cat([layer.flatten() for layer in layers]).float().numpy()

"""A generator: features that a head would take for those of a class, made of a label and noise.

At the server it learns with batch normalisation. What clients are sent is the same in evaluation mode, where batch
normalisation is one scale and shift of each hidden number and goes into the layer before it: an mlp.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedgram.core.threads import torch_threads
from fedgram.nets.layers import Vector
from fedgram.nets.network import net_for
from fedgram.nets.sgd import Now
from fedgram.nets.vector import Net

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-5  # of batch normalisation
Counts = npt.NDArray[np.int64]


def generator_net(classes: int, features: int, *, noise: int, hidden: int) -> Net:
    """Return the mlp that makes features (its scores) of noise and a label."""
    return net_for(f"mlp:{hidden}", (noise + classes,), features)


def draw_labels(counts: Counts, size: int, rngs: Sequence[np.random.Generator]) -> "Tensor":
    """Return labels (clients, size), drawn by each client's counts (clients, c)."""
    import torch

    drawn = [rng.choice(len(own), size, p=own / own.sum()) for rng, own in zip(rngs, counts, strict=True)]
    return torch.from_numpy(np.stack(drawn))


def labelled(noise: "Tensor", y: "Tensor", classes: int) -> "Tensor":
    """Return noise (…, width, n) with the labels (…, n) as ones and zeros below: (…, width + classes, n)."""
    import torch

    return torch.cat([noise, torch.nn.functional.one_hot(y, classes).to(noise).transpose(-1, -2)], dim=-2)


def head_scores(heads: "Tensor", features: "Tensor", classes: int) -> "Tensor":
    """Return the scores (heads, c, n) of features (…, width, n) by heads that are rows: a matrix, then constants."""
    size = classes * features.shape[-2]
    scores = heads[:, :size].reshape(len(heads), classes, -1) @ features
    return scores + heads[:, size:].unsqueeze(2) if heads.shape[1] > size else scores


def diversity(noise: "Tensor", features: "Tensor") -> "Tensor":
    """Return exp(-mean ‖ε_i - ε_j‖² · ‖G_i - G_j‖₁) over pairs of rows, both as means over dimensions."""
    import torch

    apart = torch.cdist(noise, noise).square() / noise.shape[1] * torch.cdist(features, features, p=1)
    return (-apart.mean() / features.shape[1]).exp()


@dataclass
class Source:
    """Where clients that train together draw labels and features from, each with its own random numbers.

    All have the same generator, a `vector` of `net`, and the same label counts. Their training must carry along
    `place`. Features are not made: a head W sees A h + a, what the generator's last layer makes of its hidden values h,
    as (W A) h + W a. The product W A has a row for each class where A h has a column for each sample.
    """

    net: Net
    vector: Vector
    counts: Counts
    noise: int
    rngs: Sequence[np.random.Generator]
    _seen: "tuple[Now, Tensor, Tensor] | None" = field(default=None, init=False)

    @property
    def place(self) -> dict[str, list[npt.NDArray[Any]]]:
        """What tells a moment of training whose random numbers are whose."""
        return {"place": [np.array([place]) for place in range(len(self.rngs))]}

    @cached_property
    def _layers(self) -> "list[Tensor]":
        import torch

        return [part[0] for part in self.net.parts(torch.from_numpy(self.vector[None].copy()))]

    @cached_property
    def known(self) -> "Tensor":
        """Which classes (c,) the generator was fitted to."""
        import torch

        return torch.from_numpy(self.counts > 0)

    def labels(self, now: Now, size: int) -> "Tensor":
        """Return labels (clients, size) that are drawn by the counts."""
        own = self._own(now)
        return draw_labels(np.tile(self.counts, (len(own), 1)), size, own)

    def hidden(self, now: Now, y: "Tensor", sizes: Sequence[int]) -> "Tensor":
        """Return the generator's hidden values (clients, hidden, n) for labels y (clients, n).

        A client has its first so many labels: it draws noise for these alone, whoever trains beside it.
        """
        import torch

        drawn = np.zeros((len(y), self.noise, y.shape[1]), dtype=np.float32)
        for row, (rng, size) in enumerate(zip(self._own(now), sizes, strict=True)):
            drawn[row, :, :size] = rng.standard_normal((self.noise, size), dtype=np.float32)
        below, bias, *_ = self._layers
        by_label = (below[:, self.noise :] + bias.unsqueeze(1)).t()  # what a label adds, (c, hidden)
        return (below[:, : self.noise] @ torch.from_numpy(drawn)).add_(by_label[y].transpose(1, 2)).relu_()

    def scores(self, now: Now, hidden: "Tensor") -> "Tensor":
        """Return what the heads in training say of the features that hidden values stand for: (clients, c, n)."""
        weights, constants = self._through(now)
        return constants.baddbmm(weights, hidden)

    def gradient(self, now: Now, hidden: "Tensor", y: "Tensor") -> "Tensor":
        """Return the gradient (clients, trained) of the heads' mean cross entropy; all but the heads have none."""
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

    def _through(self, now: Now) -> "tuple[Tensor, Tensor]":
        """Return W A (clients, c, hidden) and W a with the heads' constants (clients, c, 1), once for each moment."""
        if self._seen is None or self._seen[0] is not now:
            *_, above, constants = self._layers
            head, size = _head(now, now.weights), now.net.classes * now.net.features
            matrix = head[:, :size].view(len(head), now.net.classes, -1)
            moved = matrix @ constants
            self._seen = now, matrix @ above, (moved + head[:, size:] if head.shape[1] > size else moved).unsqueeze(2)
        return self._seen[1:]

    def _own(self, now: Now) -> list[np.random.Generator]:
        return [self.rngs[place] for place in now.carried["place"][:, 0].tolist()]


@dataclass(frozen=True)
class Fitting:
    """How a generator is fitted: by Adam, so many steps at a time; `spread` is how much `diversity` counts."""

    lr: float = 3e-4
    weight_decay: float = 0.01
    steps: int = 50
    batch: int = 32
    spread: float = 1.0


def _head(now: Now, trained: "Tensor") -> "Tensor":
    """Return the part of trained numbers (clients, trained) that is the last layer's."""
    return trained[:, now.net.head.start - now.net.buffers :]


class Generator:
    """A generator that learns, in double precision: small differences of what it learns from stay small."""

    def __init__(self, net: Net, rng: np.random.Generator, plan: Fitting) -> None:
        import torch

        first = torch.from_numpy(net.initial(rng).astype(np.float64)).unsqueeze(0)
        self._layers = [part[0].clone().requires_grad_() for part in net.parts(first)]
        hidden = len(self._layers[1])
        self._scale, self._shift = (torch.full((hidden,), value).double() for value in (1.0, 0.0))
        self._mean, self._variance = torch.zeros_like(self._scale), torch.ones_like(self._scale)
        trained = [*self._layers, self._scale.requires_grad_(), self._shift.requires_grad_()]
        self._plan, self._adam = plan, torch.optim.Adam(trained, lr=plan.lr, weight_decay=plan.weight_decay, fused=True)
        self._met: dict[str, Counts] = {}

    def __call__(self, inputs: "Tensor") -> "Tensor":
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
        """Take steps towards features that the heads of some clients take for their classes.

        The loss is Σ_k (n_ky/n_y) CE(head_k(G(y, ε)), y), the mean over a batch of labels y that are drawn by these
        clients' pooled counts, plus `spread` times `diversity`. `decay` is a factor of the learning rate.
        """
        import torch
        from torch.nn.functional import cross_entropy

        names = sorted(heads)  # whoever replies first
        # As they came: more digits than they have would cost four times as much and say nothing more.
        teachers = torch.from_numpy(np.stack([heads[name] for name in names]))
        each = np.stack([counts[name] for name in names])
        pooled, classes = each.sum(axis=0), each.shape[1]
        weights = torch.from_numpy(each / np.maximum(pooled, 1))
        self._adam.param_groups[0]["lr"] = self._plan.lr * decay
        numbers = teachers.numel() + sum(layer.numel() for layer in self._layers)
        with torch_threads(self._plan.batch * numbers, pieces=len(self._layers)):
            for _ in range(self._plan.steps):
                [y] = draw_labels(pooled[None], self._plan.batch, [rng])
                noise = torch.from_numpy(rng.standard_normal((self._layers[0].shape[1] - classes, len(y))))
                made = self(labelled(noise, y, classes).t())
                scores = head_scores(teachers, made.t().float(), classes).double()
                wrong = cross_entropy(scores, y.expand(len(teachers), -1), reduction="none")
                loss = (weights[:, y] * wrong).sum(0).mean() + self._plan.spread * diversity(noise.t(), made)
                self._adam.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                self._adam.step()
        self._met |= {name: counts[name] for name in names}

    @property
    def message(self) -> dict[str, npt.NDArray[Any]]:
        """What clients need: the generator, and the label counts of all whose heads it was fitted to."""
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

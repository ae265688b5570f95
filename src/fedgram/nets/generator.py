"""A generator: features that a head would take for those of a class, made of a label and noise.

At the server it learns with batch normalisation. What clients are sent is the same in evaluation mode, where batch
normalisation is one scale and shift of each hidden number and goes into the layer before it: an mlp.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

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


@dataclass(frozen=True)
class Source:
    """Where clients that train together draw labels and features from, each with its own random numbers.

    Their training must carry along `place`, the generators' numbers as "generator" and label counts as "labels".
    """

    net: Net
    noise: int
    rngs: Sequence[np.random.Generator]

    @property
    def place(self) -> dict[str, list[npt.NDArray[Any]]]:
        """What tells a moment of training whose random numbers are whose."""
        return {"place": [np.array([place]) for place in range(len(self.rngs))]}

    def labels(self, now: Now, size: int) -> "Tensor":
        """Return labels (clients, size) that are drawn by the counts."""
        return draw_labels(now.carried["labels"].numpy(), size, self._own(now))

    def features(self, now: Now, y: "Tensor", sizes: Sequence[int]) -> "Tensor":
        """Return features (clients, width, n) for labels y (clients, n).

        A client has its first so many labels: it draws noise for these alone, whoever trains beside it.
        """
        import torch

        drawn = np.zeros((len(y), self.noise, y.shape[1]), dtype=np.float32)
        for row, (rng, size) in enumerate(zip(self._own(now), sizes, strict=True)):
            drawn[row, :, :size] = rng.standard_normal((self.noise, size), dtype=np.float32)
        vectors = now.carried["generator"]
        with torch.no_grad():
            inputs = labelled(torch.from_numpy(drawn), y, now.net.classes)
            return self.net.forward(self.net.parts(vectors), vectors[:, :0], inputs)[1]

    def scores(self, now: Now, features: "Tensor") -> "Tensor":
        """Return what the heads in training say of features: (clients, c, n)."""
        return head_scores(_head(now, now.weights), features, now.net.classes)

    def gradient(self, now: Now, features: "Tensor", y: "Tensor") -> "Tensor":
        """Return the gradient (clients, trained) of the heads' mean cross entropy; all but the heads have none."""
        import torch

        wanted = torch.nn.functional.one_hot(y, now.net.classes).transpose(1, 2)
        error = (self.scores(now, features).softmax(1) - wanted) / y.shape[1]
        parts = [(error @ features.transpose(1, 2)).flatten(1), error.sum(2)]
        gradient = torch.zeros_like(now.weights)
        head = _head(now, gradient)
        head.copy_(torch.cat(parts, dim=1)[:, : head.shape[1]])  # a head may have no constants
        return gradient

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
        teachers = torch.from_numpy(np.stack([heads[name] for name in names])).double()
        each = np.stack([counts[name] for name in names])
        pooled, classes = each.sum(axis=0), each.shape[1]
        weights = torch.from_numpy(each / np.maximum(pooled, 1))
        self._adam.param_groups[0]["lr"] = self._plan.lr * decay
        for _ in range(self._plan.steps):
            [y] = draw_labels(pooled[None], self._plan.batch, [rng])
            noise = torch.from_numpy(rng.standard_normal((self._layers[0].shape[1] - classes, len(y))))
            made = self(labelled(noise, y, classes).t())
            scores = head_scores(teachers, made.t(), classes)
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

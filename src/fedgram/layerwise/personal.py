"""A client's own network: ridge towards the meta-model layer by layer, and how much of it, judged by what was left out.

Written for the labels themselves: with M_l = G_l Q_l and Z̄ = YQ_l the solution of (12) is P_l Q_l, where

    P_l = (XᵀX + εI)⁻¹ (XᵀY + εG_l).
"""

from collections.abc import Sequence
from functools import cached_property
from math import inf
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh

from fedgram.core.arrays import Array
from fedgram.core.errors import InvalidData
from fedgram.heads import adapt
from fedgram.layerwise.layers import Convolution, rows_per_sample
from fedgram.layerwise.network import Network
from fedgram.layerwise.summary import layer_moments
from fedgram.moments import packing, solve
from fedgram.moments.accumulate import Indices, not_finite
from fedgram.moments.moments import Moments

# Where "auto" looks, from the meta-model as it is to hardly any of it; of equal ones the first is taken.
EPSILONS = np.geomspace(1e5, 1e-2, 29)
FOLDS = 5
Samples = npt.NDArray[Any]


def personalized(
    meta: Network,
    x: Samples,
    y: Indices,
    epsilons: Sequence[float],
    *,
    towards: Sequence[Array] | None = None,
    batch: int,
) -> Network:
    """Return the network of samples x (n, …) with label indices y (n,), each layer on what those before it give.

    Layer l is drawn by ε_l towards the meta-model's, or to another solution in `towards`; an infinite ε_l keeps it.
    """
    own = meta.truncate(0)
    for target, epsilon in zip(towards or meta.solutions, epsilons, strict=True):
        kept = epsilon == inf
        own = own.extend(target if kept else own_layer(own, x, y, batch=batch, folds=1).solution(target, epsilon))
    return own


def judge(meta: Network, others: Sequence[Array], x: Samples, y: Indices, *, batch: int) -> list[float]:
    """Return the ε of each layer that predict best for samples left out; `others` are solutions without these samples.

    Layer by layer, ε is judged by that layer's own error. But a hidden layer that has seen the labels flatters the
    layers behind it, and they no longer get what the meta-model's were made for. So there are two candidates, all
    layers or the output layer alone, and the whole network's error on folds of samples left out decides.
    """
    last = meta.depth - 1
    if len(x) == 1:  # nothing is left to learn from
        return [float(EPSILONS[0])] * meta.depth
    candidates = [_epsilons(meta, others, x, y, first, batch) for first in sorted({0, last})]
    if len(candidates) == 1:
        return candidates[0]
    return min(candidates, key=lambda epsilons: _left_out_error(meta, others, x, y, epsilons, batch))


def _epsilons(meta: Network, others: Sequence[Array], x: Samples, y: Indices, first: int, batch: int) -> list[float]:
    """Return ε for each layer from the first on; those before are kept."""
    own, epsilons = meta.truncate(first), [inf] * first
    for target, other in zip(meta.solutions[first:], others[first:], strict=True):
        layer = own_layer(own, x, y, batch=batch)
        epsilons.append(float(EPSILONS[layer.errors(other, EPSILONS).argmin()]))
        own = own.extend(layer.solution(target, epsilons[-1]))
    return epsilons


def _left_out_error(
    meta: Network, others: Sequence[Array], x: Samples, y: Indices, epsilons: Sequence[float], batch: int
) -> float:
    """Return the squared error of scores for each fold by a network of the other folds."""
    one_hot, error, folds = np.eye(len(meta.classes))[y], 0.0, min(FOLDS, len(x))
    targets = [
        known if epsilon == inf else other
        for known, other, epsilon in zip(meta.solutions, others, epsilons, strict=True)
    ]
    for fold in range(folds):
        out = np.arange(len(x)) % folds == fold
        network = personalized(meta, x[~out], y[~out], epsilons, towards=targets, batch=batch)
        error += float(((network.scores(x[out]) - one_hot[out]) ** 2).sum())
    return error


class OwnLayer(Protocol):
    """What a client's samples say about one layer."""

    def solution(self, towards: Array, epsilon: float) -> Array:
        """Return P_l (d, c) — (13) — for the meta-model's G_l (d, c)."""
        ...

    def errors(self, towards: Array, epsilons: npt.ArrayLike) -> Array:
        """Return the squared error on samples left out, up to a constant, for each ε; `towards` has not seen them."""
        ...


def own_layer(network: Network, x: Samples, y: Indices, *, batch: int, folds: int = FOLDS) -> OwnLayer:
    """Return what samples x (n, …) with label indices y (n,) say about the network's first untrained layer.

    `folds` is how many parts of the samples a convolution can be judged by; with one it can only be solved for.
    """
    if not len(x):
        raise InvalidData("there are no samples to solve a layer for")
    layer, shape = network.next_layer, network.next_shape
    convolution, positions, folds = isinstance(layer, Convolution), rows_per_sample(layer, shape), min(folds, len(x))
    if convolution and len(x) * positions > adapt.DUAL_UP_TO * layer.fan_in(shape):
        return _ManyPatches([layer_moments(network, x[i::folds], y[i::folds], batch=batch) for i in range(folds)])
    rows = layer.rows(network.forward(network.checked(x)))
    if not np.isfinite(np.vdot(rows, rows)):
        raise not_finite(x.reshape(len(x), -1))
    labels = np.eye(len(network.classes))[np.repeat(y, positions)]
    if convolution:
        return _FewPatches(rows, labels, np.repeat(np.arange(len(x)) % folds, positions))
    return _Rows(rows, labels)


class _Rows:
    """A dense layer: every sample is a row, and leave-one-out is exact."""

    def __init__(self, x: Array, y: Array) -> None:
        self._x, self._y = x, y

    def solution(self, towards: Array, epsilon: float) -> Array:
        residual = self._y - self._x @ towards
        return towards + adapt.correction(self._x.T, residual, 1 / epsilon)

    def errors(self, towards: Array, epsilons: npt.ArrayLike) -> Array:
        residual = self._y - self._x @ towards
        return self._spectrum.leave_one_out(residual, 1 / np.asarray(epsilons), member=False)

    @cached_property
    def _spectrum(self) -> adapt.Spectrum:
        return adapt.Spectrum.of(np.ascontiguousarray(self._x.T))


class _FewPatches(_Rows):
    """A convolution with at most half as many patches as numbers in a patch: the unknowns are one for each patch.

    Patches of one image are not independent, so whole images are left out, a fold at a time.
    """

    def __init__(self, x: Array, y: Array, fold: npt.NDArray[np.intp]) -> None:
        super().__init__(x, y)
        self._fold = fold  # of each patch

    def errors(self, towards: Array, epsilons: npt.ArrayLike) -> Array:
        steps = np.asarray(epsilons, dtype=np.float64)
        kernel, residual, errors = self._x @ self._x.T, self._y - self._x @ towards, np.zeros(len(steps))
        for fold in range(self._fold.max() + 1):
            out = self._fold == fold
            # In the eigenvectors of the other folds' kernel every ε is a division.
            values, vectors = np.linalg.eigh(kernel[~out][:, ~out])
            loaded, rest = kernel[out][:, ~out] @ vectors, vectors.T @ residual[~out]
            for i, epsilon in enumerate(steps):
                left = residual[out] - loaded @ (rest / (np.maximum(values, 0.0) + epsilon)[:, None])
                errors[i] += np.vdot(left, left)
        return errors


class _ManyPatches:
    """A convolution by the moments of its patches; whole images are left out, a fold at a time."""

    def __init__(self, folds: Sequence[Moments]) -> None:
        self._folds, self._total = folds, Moments.sum(folds)

    def solution(self, towards: Array, epsilon: float) -> Array:
        total = self._total
        factor = solve.factor(total.packed, total.d, ridge=epsilon, n=total.n)
        # As a change of `towards`: directions that no patch has stay, however small ε is.
        explained = np.column_stack([packing.times(total.packed, column) for column in towards.T])
        return towards + factor.solve(total.cross - explained)

    def errors(self, towards: Array, epsilons: npt.ArrayLike) -> Array:
        steps = np.asarray(epsilons, dtype=np.float64)
        errors = np.zeros(len(steps))
        for fold in self._folds:
            # In the eigenvectors of the other folds' Gram matrix every ε is a division.
            values, vectors = eigh(self._total.gram - fold.gram, check_finite=False)
            gram = vectors.T @ fold.gram @ vectors
            cross, rest, meta = (vectors.T @ part for part in (fold.cross, self._total.cross - fold.cross, towards))
            for i, epsilon in enumerate(steps):
                own = (rest + epsilon * meta) / (np.maximum(values, 0.0) + epsilon)[:, None]
                errors[i] += np.vdot(own, gram @ own) - 2 * np.vdot(own, cross)
        return errors

"""A client's own network: ridge towards the meta-model layer by layer, and how much of it, judged by what was left out.

Of (12) the solution is (13), W_l = (XᵀX + εI)⁻¹ (XᵀZ̄ + εM_l). Where a layer is solved for the labels themselves (see
`Problem`), Z̄ is a column for each class and position, and M_l the meta-model's solution for these.
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
from fedgram.heads.leastsquares import EXPECTED
from fedgram.heads.likelihood import WORTHWHILE
from fedgram.heads.temperature import calibrated
from fedgram.layerwise.layers import Convolution
from fedgram.layerwise.network import Network, Problem
from fedgram.layerwise.summary import LayerMoments, LayerTotal, layer_moments
from fedgram.moments import packing, solve
from fedgram.moments.accumulate import Indices, not_finite

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
    layers or the output layer alone. Hidden layers are personalized where the labels of left-out folds are more likely
    under the whole network: by likelihood, as everywhere between own and shared models, because with many classes
    squared error mostly counts how well absent classes are known.
    """
    last = meta.depth - 1
    if len(x) == 1:  # nothing is left to learn from
        return [float(EPSILONS[0])] * meta.depth
    output_alone = _epsilons(meta, others, x, y, last, batch)
    if not last:
        return output_alone
    everything = _epsilons(meta, others, x, y, 0, batch)
    own, shared = (_left_out_likelihood(meta, others, x, y, one, batch) for one in (everything, output_alone))
    return everything if own - shared > WORTHWHILE else output_alone


def _epsilons(meta: Network, others: Sequence[Array], x: Samples, y: Indices, first: int, batch: int) -> list[float]:
    """Return ε for each layer from the first on; those before are kept."""
    own, epsilons = meta.truncate(first), [inf] * first
    for target, other in zip(meta.solutions[first:], others[first:], strict=True):
        layer = own_layer(own, x, y, batch=batch)
        epsilons.append(float(EPSILONS[layer.errors(other, EPSILONS).argmin()]))
        own = own.extend(layer.solution(target, epsilons[-1]))
    return epsilons


def _left_out_likelihood(
    meta: Network, others: Sequence[Array], x: Samples, y: Indices, epsilons: Sequence[float], batch: int
) -> float:
    """Return the log-likelihood of the labels, each fold's under a network of the other folds."""
    scores, folds = np.empty((len(x), len(meta.classes))), min(FOLDS, len(x))
    targets = [
        known if epsilon == inf else other
        for known, other, epsilon in zip(meta.solutions, others, epsilons, strict=True)
    ]
    for fold in range(folds):
        out = np.arange(len(x)) % folds == fold
        network = personalized(meta, x[~out], y[~out], epsilons, towards=targets, batch=batch)
        scores[out] = network.scores(x[out])
    return calibrated(scores, y, meta.temperature or EXPECTED).log_likelihood


class OwnLayer(Protocol):
    """What a client's samples say about one layer."""

    def solution(self, towards: Array, epsilon: float) -> Array:
        """Return the solution (d, columns) — (13) — for the meta-model's (d, columns)."""
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
    problem, folds = network.next_problem, min(folds, len(x))
    convolution = isinstance(problem.layer, Convolution)
    if convolution and len(x) * problem.rows > adapt.DUAL_UP_TO * problem.d:
        parts = [layer_moments(network, x[i::folds], y[i::folds], batch=batch) for i in range(folds)]
        return _ManyPatches(problem, parts)
    rows = problem.layer.rows(network.forward(network.checked(x)))
    if not np.isfinite(np.vdot(rows, rows)):
        raise not_finite(x.reshape(len(x), -1))
    if convolution:
        return _FewPatches(rows, problem.targets(y), np.repeat(np.arange(len(x)) % folds, problem.rows))
    return _Rows(rows, problem.targets(y))


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

    def __init__(self, problem: Problem, folds: Sequence[LayerMoments]) -> None:
        total = LayerTotal()
        for fold in folds:
            total.add(fold)
        self._folds, self._total, self._problem = folds, total.moments(), problem

    def solution(self, towards: Array, epsilon: float) -> Array:
        rows = self._total.rows
        factor = solve.factor(rows.packed, rows.d, ridge=epsilon, n=rows.n)
        # As a change of `towards`: directions that no patch has stay, however small ε is.
        missing = self._total.right_side(self._problem) - packing.times(rows.packed, towards)
        return towards + factor.solve(missing)

    def errors(self, towards: Array, epsilons: npt.ArrayLike) -> Array:
        steps = np.asarray(epsilons, dtype=np.float64)
        whole, errors = self._total.right_side(self._problem), np.zeros(len(steps))
        for fold in self._folds:
            # In the eigenvectors of the other folds' Gram matrix every ε is a division.
            values, vectors = eigh(self._total.rows.gram - fold.rows.gram, check_finite=False)
            gram, left_out = vectors.T @ fold.rows.gram @ vectors, fold.right_side(self._problem)
            cross, rest, meta = (vectors.T @ part for part in (left_out, whole - left_out, towards))
            for i, epsilon in enumerate(steps):
                own = (rest + epsilon * meta) / (np.maximum(values, 0.0) + epsilon)[:, None]
                errors[i] += np.vdot(own, gram @ own) - 2 * np.vdot(own, cross)
        return errors

"""A client's own layer: ridge towards the meta-model, and which ridge is right, judged by what was left out.

Written for the labels themselves: with M_l = G_l Q_l and Z̄ = YQ_l the solution of (12) is P_l Q_l, where

    P_l = (XᵀX + εI)⁻¹ (XᵀY + εG_l).
"""

from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh

from fedgram import adapt, solve
from fedgram.accumulate import Indices
from fedgram.layerwise.layers import Convolution
from fedgram.layerwise.network import Network, slices
from fedgram.layerwise.summary import layer_moments
from fedgram.moments import Moments
from fedgram.solve import Array

FOLDS = 5


class OwnLayer(Protocol):
    """What a client's samples say about one layer."""

    def solution(self, towards: Array, epsilon: float) -> Array:
        """Return P_l (d, c) — (13) — for the meta-model's G_l (d, c)."""
        ...

    def errors(self, towards: Array, epsilons: npt.ArrayLike) -> Array:
        """Return the squared error on samples left out, up to a constant, for each ε; `towards` has not seen them."""
        ...


def own_layer(network: Network, x: npt.NDArray[Any], y: Indices, *, batch: int) -> OwnLayer:
    """Return what samples x (n, …) with label indices y (n,) say about the network's first untrained layer."""
    if isinstance(network.next_layer, Convolution):
        return _Patches(network, x, y, batch)
    rows = [network.forward(x[part]) for part in slices(len(x), batch)]
    return _Rows(np.concatenate(rows), np.eye(len(network.classes))[y])


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


class _Patches:
    """A convolution: patches of one image are not independent, so whole images are left out, a fold at a time."""

    def __init__(self, network: Network, x: npt.NDArray[Any], y: Indices, batch: int) -> None:
        folds = min(FOLDS, len(x))
        self._folds = [layer_moments(network, x[i::folds], y[i::folds], batch=batch) for i in range(folds)]
        self._total = Moments.sum(self._folds)

    def solution(self, towards: Array, epsilon: float) -> Array:
        total = self._total
        factor = solve.factor(total.packed, total.d, ridge=epsilon, n=total.n)
        return factor.solve(total.cross + epsilon * towards)

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

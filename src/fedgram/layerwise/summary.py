"""A client's summary of one layer: moments of the layer's rows, and sums for one encoding at each position.

A client's class sums of whole inputs (for a convolution, of images) give the sums of rows for each class and position,
since a patch of a sum of images is the sum of their patches. They are never larger than those sums themselves. Where
X_lᵀZ̄_l is smaller still, a client sends that instead. Both add up over clients.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Annotated, Any, Self

import numpy as np
import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array
from fedgram.core.errors import RefusedMessage
from fedgram.layerwise.network import Network, Problem, slices
from fedgram.moments import packing, solve
from fedgram.moments.accumulate import Indices, class_sums, not_finite
from fedgram.moments.kind import Kind
from fedgram.moments.moments import Moments
from fedgram.moments.total import Total

# How far sums that say the same may differ, relative to the largest that they can be.
ROUNDING = 1e-6


@wire.message("layer-moments", version=1)
@dataclass(frozen=True, eq=False)
class LayerMoments:
    """Moments of one layer's rows, and for layers with an encoding for each position one of two sums.

    `inputs` has the sum of the layer's inputs for each class that has samples, (present, numbers). `products` is
    X_lᵀZ̄_l (d, width). Dense layers and shared encodings need neither.
    """

    rows: Moments
    inputs: Annotated[Array, wire.Shape(None, None)] | None = None
    products: Annotated[Array, wire.Shape(None, None)] | None = None

    def right_side(self, problem: Problem) -> Array:
        """Return the right-hand side (d, columns) of the layer's normal equations."""
        if self.products is not None:
            return self.products
        if problem.solves_labels:
            return self.rows.cross if self.inputs is None else problem.sums_by_position(self._full()).T
        if self.inputs is not None:
            return problem.products(self.inputs, self._present)
        assert problem.encoding is not None
        return self.rows.cross @ problem.encoding

    def solve(self, problem: Problem, ridge: float) -> Array:
        """Return the layer's solution (d, columns) — (5)."""
        rows = self.rows
        return solve.factor(rows.packed, rows.d, ridge=ridge, n=rows.n).solve(self.right_side(problem))

    def loss(self, problem: Problem, solution: Array) -> float:
        """Return the squared error of a solution (d, columns) for these samples, up to a constant of theirs."""
        explained = packing.times(self.rows.packed, solution) - 2 * self.right_side(problem)
        return float(np.vdot(solution, explained))

    def check_sums(self, problem: Problem) -> None:
        """Raise if the sums have another form than the layer's, or if no samples with these rows can have them."""
        rows, by_position, products = self.rows, problem.positions > 1, sends_products(problem)
        if (rows.counts % problem.rows).any():
            raise RefusedMessage(f"counts: expected multiples of {problem.rows}, the rows of a sample, got others")
        wanted = {
            "inputs": (len(self._present), problem.numbers) if by_position and not products else None,
            "products": (problem.d, problem.layer.width) if by_position and products else None,
        }
        for name, shape in wanted.items():
            array = getattr(self, name)
            if (got := None if array is None else array.shape) != shape:
                raise RefusedMessage(f"{name}: expected shape {shape}, got {got}; another network was summarised")
        root = np.sqrt(rows.squares)
        if self.inputs is not None:
            told = problem.layer.row_sums(self.inputs.reshape(-1, *problem.shape))
            if (np.abs(told - rows.cross.T[rows.counts > 0]) > ROUNDING * sqrt(rows.n) * root).any():
                raise RefusedMessage("inputs: expected sums of the inputs that the rows are made of, got others")
            # A sum over samples is at most √n times the root of the sum of their squares, at every position.
            most = np.sqrt(rows.counts[self._present] / problem.rows)[:, None, None] * root * (1 + ROUNDING)
            if (np.abs(problem.sums_by_position(self.inputs)).reshape(len(most), problem.rows, -1) > most).any():
                raise RefusedMessage("inputs: expected sums of inputs as small as those of the rows, got larger ones")
        if self.products is not None:
            assert problem.encoding is not None
            # Over all rows, the squares of the targets of each channel; with those of the rows, the most there can be.
            squares = (problem.encoding.reshape(problem.classes, problem.positions, -1) ** 2).sum(axis=1)
            most = np.outer(root, np.sqrt(rows.counts / problem.rows @ squares))
            if (np.abs(self.products) > most * (1 + ROUNDING)).any():
                raise RefusedMessage("products: expected products of the rows and the encoded labels, got larger ones")

    def __sub__(self, other: Self) -> "LayerMoments":
        """Return the moments without those of samples that were added before."""
        rows = self.rows - other.rows
        inputs, products = self.inputs, self.products
        if inputs is not None and other.inputs is not None:
            inputs = (self._full() - other._full())[rows.counts > 0]
        if products is not None and other.products is not None:
            products = products - other.products
        return LayerMoments(rows, inputs, products)

    @property
    def _present(self) -> npt.NDArray[np.intp]:
        """The classes that have samples."""
        return np.flatnonzero(self.rows.counts)

    def _full(self) -> Array:
        """Return the sums of inputs with a line for every class."""
        assert self.inputs is not None
        full = np.zeros((len(self.rows.classes), self.inputs.shape[1]))
        full[self.rows.counts > 0] = self.inputs
        return full


class LayerTotal:
    """A running sum of layer moments that arrive one by one."""

    def __init__(self) -> None:
        self._rows = Total[Moments]()
        self._inputs: Array | None = None
        self._products: Array | None = None

    def add(self, part: LayerMoments) -> None:
        """Add the moments of more samples."""
        self._rows.add(part.rows)
        if part.inputs is not None:
            if self._inputs is None:
                self._inputs = np.zeros((len(part.rows.classes), part.inputs.shape[1]))
            self._inputs[part.rows.counts > 0] += part.inputs
        if part.products is not None:
            self._products = part.products if self._products is None else self._products + part.products

    def moments(self) -> LayerMoments:
        """Return the sum; nothing can be added afterwards."""
        rows = self._rows.moments()
        inputs = None if self._inputs is None else self._inputs[rows.counts > 0]
        return LayerMoments(rows, inputs, self._products)


def sends_products(problem: Problem) -> bool:
    """Say whether X_lᵀZ̄_l is smaller than the class sums of the layer's inputs."""
    return problem.d * problem.layer.width < problem.classes * problem.numbers


def layer_moments(network: Network, x: npt.NDArray[Any], y: Indices, *, batch: int) -> LayerMoments:
    """Return the moments of the first untrained layer, for samples x (n, …) with label indices y (n,).

    `batch` samples at a time run through the layers below (6), and not all their patches are there at once, so memory
    grows neither with the samples nor with the positions.
    """
    problem = network.next_problem
    network.checked(x)
    counts = np.bincount(y, minlength=problem.classes)
    [present] = counts.nonzero()
    ranks, inputs = present.searchsorted(y), np.zeros((len(present), problem.numbers))
    kind, few = Kind(network.classes, problem.d, network.features), len(x) * problem.rows < problem.d / 4
    gram = None if few else problem.layer.gram(problem.shape, min(len(x), batch))
    kept = []
    for part in slices(len(x), batch):
        block = network.forward(x[part])
        inputs += class_sums(block.reshape(len(block), problem.numbers), ranks[part], len(present))
        if gram is None:
            kept.append(problem.layer.rows(block))
        else:
            gram.add(block)
    sums = problem.layer.row_sums(inputs.reshape(len(present), *problem.shape))  # linear in the inputs
    how: dict[str, Array]
    if gram is None:
        how = {"factor": solve.triangular_factor(np.concatenate(kept or [np.empty((0, problem.d))]))}
        evidence = np.vdot(how["factor"], how["factor"])
    else:
        how = {"packed": gram.packed()}
        evidence = how["packed"][packing.diagonal(problem.d)].sum()
    if not np.isfinite(evidence):
        raise not_finite(x.reshape(len(x), -1))
    rows = Moments(kind, sums=sums, counts=counts * problem.rows, **how)
    if problem.positions == 1:
        return LayerMoments(rows)
    if sends_products(problem):
        return LayerMoments(rows, products=problem.products(inputs, present))
    return LayerMoments(rows, inputs)

"""Columns made of other columns, and their moments from those of the others: X = ZT + 1tᵀ.

Any affine map of the columns can be applied to moments instead of samples: XᵀX = Tᵀ(ZᵀZ)T + …, XᵀY = Tᵀ(ZᵀY) + t n_cᵀ.
So imputing pooled means, standardising and recoding need no second message.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array, Blocks, as_blocks
from fedgram.core.columns import Columns
from fedgram.core.errors import Mismatch
from fedgram.models import LinearModel
from fedgram.moments import packing
from fedgram.moments.moments import Moments
from fedgram.moments.targets import NumericTargets, Targets


@wire.message("basis", version=1)
@dataclass(frozen=True, eq=False)
class Basis:
    """A matrix T (source, columns), given by its elements other than 0, and a shift t.

    `values[i]` stands in row `rows[i]` and column `places[i]`. `columns` names what comes out, () where columns
    have no names; `shift` has a number for each. Numeric `outcomes` are the last columns, both of what goes in and of
    what comes out.

    >>> basis = Basis.of({"height in m": ({"height": 0.01}, 0.0)}, ("height", "weight"))
    >>> basis.apply(np.array([[180.0, 70.0]]))
    array([[1.8]])
    """

    rows: Annotated[npt.NDArray[np.int64], wire.Shape("k")]
    places: Annotated[npt.NDArray[np.int64], wire.Shape("k")]
    values: Annotated[Array, wire.Shape("k")]
    shift: Annotated[Array, wire.Shape("d")]
    columns: Columns = ()
    source: int = 0  # how many columns go in
    outcomes: NumericTargets | None = None

    @classmethod
    def of(
        cls, made: "dict[str, tuple[dict[str, float], float]]", source: Columns, outcomes: NumericTargets | None = None
    ) -> "Basis":
        """Return the basis in which each column is a sum of source columns times numbers, plus a number."""
        place = {name: i for i, name in enumerate(source)}
        elements = [
            (place[name], j, value) for j, (parts, _) in enumerate(made.values()) for name, value in parts.items()
        ]
        rows, places, values = zip(*elements, strict=True) if elements else ((), (), ())
        return cls(
            np.array(rows, dtype=np.int64),
            np.array(places, dtype=np.int64),
            np.array(values, dtype=np.float64),
            np.array([shift for _, shift in made.values()], dtype=np.float64),
            tuple(made),
            len(source),
            outcomes,
        )

    @classmethod
    def about(cls, centre: Array, columns: Columns = ()) -> "Basis":
        """Return the basis in which each column is itself less a centre (d,).

        >>> Basis.about(np.array([2026.0, 0.0])).apply(np.array([[2027.0, 5.0]]))
        array([[1., 5.]])
        """
        places = np.arange(len(centre))
        return cls(places, places, np.ones(len(centre)), -centre, columns, len(centre))

    @cached_property
    def centre(self) -> Array | None:
        """The numbers subtracted from the source columns, for a basis that does nothing else; else None."""
        d = len(self.shift)
        if self.source != d or len(self.values) != d or (self.values != 1).any():
            return None
        alone = np.array_equal(self.rows, np.arange(d)) and np.array_equal(self.places, np.arange(d))
        return -self.shift if alone else None

    def check(self) -> None:
        """Raise for elements outside the matrix, or a matrix without columns."""
        if self.source < 1:
            raise Mismatch(f"field 'source' of a basis must be at least 1, got {self.source}")
        for name, found, size in (("rows", self.rows, self.source), ("places", self.places, len(self.shift))):
            if found.size and not (found.min() >= 0 and found.max() < size):
                raise Mismatch(f"field {name!r} of a basis must be from 0 to {size - 1}")
        if self.outcomes is not None:
            names = self.outcomes.names
            if self.columns[-len(names) :] != names or not len(names) < min(self.source, len(self.shift)):
                raise Mismatch(f"outcomes {names} must be the last columns of a basis, after others: {self.columns}")
            if ((self.rows >= self.source - len(names)) != (self.places >= len(self.shift) - len(names))).any():
                raise Mismatch(f"a basis must not mix outcomes {names} with other columns")

    @cached_property
    def of_features(self) -> "Basis":
        """The same without the outcomes."""
        if self.outcomes is None:
            return self
        t = len(self.outcomes.names)
        kept = self.places < len(self.shift) - t
        return Basis(
            self.rows[kept],
            self.places[kept],
            self.values[kept],
            self.shift[:-t],
            self.columns[:-t],
            self.source - t,
        )

    @cached_property
    def matrix(self) -> Any:
        """T, sparse."""
        from scipy.sparse import csr_array

        return csr_array((self.values, (self.rows, self.places)), shape=(self.source, len(self.shift)))

    def apply(self, z: npt.NDArray[Any]) -> Array:
        """Return the columns X (n, d) of samples Z (n, p)."""
        if z.ndim != 2 or z.shape[1] != self.source:
            raise Mismatch(f"samples of {self.source} columns are wanted, got shape {z.shape}")
        if self.centre is not None:
            return np.asarray(np.subtract(z, self.centre, dtype=np.float64))
        return np.asarray((self.matrix.T @ np.asarray(z, dtype=np.float64).T).T) + self.shift

    def outcome_values(self, z: npt.NDArray[Any]) -> Array:
        """Return the numeric outcomes (n, t) of samples Z (n, p), as methods see them."""
        return self.apply(z)[:, len(self.of_features.shift) :]

    def parted(self, z: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Array]:
        """Return the features of samples Z (n, p) as clients have them, and their outcomes (n, t) in their units."""
        assert self.outcomes is not None
        return z[:, : self.of_features.source], self.outcomes.as_outcomes(self.outcome_values(z))

    def moments(self, sent: Moments) -> Moments:
        """Return the moments of X from those of Z."""
        if sent.schema.bias or sent.d != self.source:
            raise Mismatch(f"moments of {self.source} columns without a bias are wanted, got {sent.d}")
        sums = np.asarray((self.matrix.T @ sent.cross).T)  # (c, d)
        whole = sums.sum(axis=0)
        half = np.asarray(self.matrix.T @ sent.gram)
        gram = np.asarray((self.matrix.T @ half.T).T)
        gram += np.outer(whole, self.shift) + np.outer(self.shift, whole + sent.n * self.shift)
        sums += np.outer(sent.counts, self.shift)
        kind = replace(sent.schema, dimension=len(self.shift), columns=self.columns)
        packed = packing.pack(np.tril((gram + gram.T) / 2))
        return Moments(kind, sums=sums[sent.counts > 0], counts=sent.counts, packed=packed)

    def same(self, other: "Basis | None") -> bool:
        """Return whether both make the same columns."""
        return other is not None and (
            (self.outcomes is None) == (other.outcomes is None)
            and np.array_equal(self.values, other.values)
            and np.array_equal(self.shift, other.shift)
            and np.array_equal(self.rows, other.rows)
            and np.array_equal(self.places, other.places)
        )

    def back(self, model: LinearModel, source: Columns) -> LinearModel:
        """Return the model of the source columns with the same scores as `model`, a model of the columns made."""
        offset = self.shift @ model.weights
        intercept = offset if model.intercept is None else model.intercept + offset
        return replace(model, weights=np.asarray(self.matrix @ model.weights), intercept=intercept, columns=source)


def with_truth(
    samples: npt.NDArray[Any] | Blocks[npt.NDArray[Any]],
    labels: npt.NDArray[Any] | Blocks[npt.NDArray[Any]],
    basis: Basis | None,
) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """Yield blocks of features as clients have them, each with its label indices or its numeric outcomes.

    Parameters
    ----------
    samples : NDArray or Blocks
        Samples (n, p), numeric outcomes last.
    labels : NDArray or Blocks
        Label indices (n,), in blocks as the samples are; not looked at where outcomes are numbers.
    basis : Basis or None
        The basis of the run, which knows the numeric outcomes.

    """
    if basis is None or basis.outcomes is None:
        yield from zip(as_blocks(samples), as_blocks(labels), strict=True)
    else:
        yield from map(basis.parted, as_blocks(samples))


def targets_under(basis: Basis | None, targets: Targets) -> Targets:
    """Return the targets as methods see them: a basis knows the pooled means of numeric outcomes."""
    return targets if basis is None or basis.outcomes is None else basis.outcomes

"""A labelled data set before it is spread over clients."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedgram.core.classes import Classes, Label
from fedgram.core.columns import Columns
from fedgram.core.errors import InvalidParameter
from fedgram.core.hashing import hash_array, hash_json
from fedgram.core.randomness import generator


def combined(digests: Mapping[str, tuple[str, tuple[int, ...], str]], classes: Classes) -> str:
    """Return one identifier for columns given as name → (dtype, shape, digest) and the classes."""
    listing = [[name, dtype, list(shape), sha] for name, (dtype, shape, sha) in sorted(digests.items())]
    return hash_json([listing, list(classes)])


def fingerprint(columns: Mapping[str, npt.NDArray[Any] | None], classes: Classes) -> str:
    """Return the identifier of a data set that is in memory; columns that are None do not count.

    >>> import numpy as np
    >>> same = [fingerprint({"y": np.array([0, 1])}, classes) for classes in [(0, 1), (0, 1), ("a", "b")]]
    >>> same[0] == same[1], same[0] == same[2]
    (True, False)
    """
    return combined(
        {
            name: (array.dtype.newbyteorder("<").str, array.shape, hash_array(array))
            for name, array in columns.items()
            if array is not None
        },
        classes,
    )


@dataclass(frozen=True)
class Dataset:
    """Samples with labels, and what is known about them.

    `x` is (n, d) features, (n, h, w) or (n, h, w, 3) uint8 images, (n,) texts, or anything else that has `len` and
    gives such an array for a slice. `y` is (n,) and holds indices into `classes`. `groups`, where it exists, names the
    natural owner of each sample, for `partition.by_group`. `x_test`, `y_test` are the data set's own ("standard") test
    set, where it has one, and `groups_test` the owners of its samples, where they have any. `fingerprint` identifies
    the content, `features` the backbone that made x ("" for none). `columns` are the names of a table's features,
    `about` says in one line which columns are used as what, `unused` are those that are not. `left_out` are the places
    of bad samples among all samples of the source, those of the test set last.
    """

    name: str
    x: Any
    y: npt.NDArray[np.int64]
    classes: tuple[Label, ...]
    fingerprint: str
    groups: npt.NDArray[Any] | None = None
    x_test: Any = None
    y_test: npt.NDArray[np.int64] | None = None
    groups_test: npt.NDArray[Any] | None = None
    features: str = ""
    columns: Columns = ()
    about: str = ""
    unused: Columns = ()
    left_out: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.y)

    def pooled(self) -> Self:
        """Return the data set with its own test set among the samples, for clients to hold back their own."""
        if self.x_test is None or self.y_test is None:
            return self
        if (self.groups is None) != (self.groups_test is None):
            raise InvalidParameter(f"{self.name}: its test set has no groups, so it cannot be spread with the rest")
        # A slice, because samples may be files that are read only then.
        x, y = (np.concatenate([a[:], b[:]]) for a, b in ((self.x, self.x_test), (self.y, self.y_test)))
        groups = None if self.groups is None else np.concatenate([self.groups, self.groups_test])
        whole = replace(self, x=x, y=y, groups=groups, fingerprint=f"{self.fingerprint}/pooled")
        return replace(whole, x_test=None, y_test=None, groups_test=None)

    def sample(self, n: int, *, pool: bool = False) -> Self:
        """Return n of the samples, drawn at random but always the same ones.

        The test set stays whole, or with `pool` its samples are drawn from too. Only what was drawn is read.

        >>> from fedgram.data import digits
        >>> len(digits().sample(100))
        100
        """
        pool = pool and self.x_test is not None and self.y_test is not None
        available = len(self) + (len(self.x_test) if pool else 0)
        if not 1 <= n <= available:
            raise InvalidParameter(f"samples must be 1 to the {available:,} that {self.name} has, got {n}")
        chosen = np.sort(generator(0, "sample", self.name).permutation(available)[:n])
        own = chosen[chosen < len(self)]
        x, y = _rows(self.x, own), self.y[own]
        groups = None if self.groups is None else self.groups[own]
        if not pool:
            return replace(self, x=x, y=y, groups=groups, fingerprint=f"{self.fingerprint}/sample-{n}", left_out=())
        assert self.y_test is not None
        others = chosen[len(own) :] - len(self)
        owners = None if self.groups_test is None else self.groups_test[others]
        x_test, y_test = _rows(self.x_test, others), self.y_test[others]
        drawn = replace(self, x=x, y=y, groups=groups, x_test=x_test, y_test=y_test, groups_test=owners)
        return replace(drawn.pooled(), fingerprint=f"{self.fingerprint}/pooled/sample-{n}", left_out=())


def _rows(x: Any, chosen: npt.NDArray[np.int64]) -> Any:
    """Return some of the samples; files among them are still not read."""
    return x[chosen] if isinstance(x, np.ndarray) else x.take(chosen)

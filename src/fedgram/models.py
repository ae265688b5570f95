"""Models: what a method gives back, and what predicts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.core.columns import Columns, as_columns, samples_of
from fedgram.core.errors import InvalidData, Mismatch
from fedgram.core.labels import Classes, read_classes, shorten
from fedgram.core.wire import Field, register_message

ROWS_AT_ONCE = 4096
T = TypeVar("T")


@runtime_checkable
class Model(Protocol):
    """Anything that scores samples for the agreed classes. To cross the wire it is also a registered message."""

    @property
    def classes(self) -> Classes:
        """The classes, in the order of the scores' columns."""
        ...

    def scores(self, x: Any) -> Array:
        """Return one score per sample and class, (n, c): the highest wins."""
        ...

    def predict(self, x: Any) -> npt.NDArray[Any]:
        """Return the label of each sample, (n,)."""
        ...


def finite(scores: Array) -> Array:
    """Return the scores (n, c); refuse any that are not finite, because the first class would win by them."""
    if not np.isfinite(scores).all():
        row = int(np.argmin(np.isfinite(scores).all(axis=1)))
        raise InvalidData(f"sample {row} has scores that are not finite: check its features")
    return scores


def best_labels(scores: Array, classes: Classes) -> npt.NDArray[Any]:
    """Return the label with the highest score, (n,), for scores (n, c)."""
    best: npt.NDArray[np.intp] = scores.argmax(axis=1)
    return np.asarray(classes)[best]


def with_columns(model: T, columns: Columns) -> T:
    """Return the model with the names of the columns that it was made from, unless it has names already."""
    return replace(model, columns=columns) if columns and getattr(model, "columns", None) == () else model  # type: ignore[type-var]


def sent_columns(columns: Columns) -> dict[str, Any]:
    """Return the columns as a field of a message; names that are not there take no bytes."""
    return {"columns": columns} if columns else {}


@register_message
@dataclass(frozen=True, eq=False)
class LinearModel:
    """Scores x @ weights + intercept.

    `weights` is (d, c) float64, `intercept` (c,) or None. `features` is the fingerprint of the features that the
    model was made from, for whoever scores with it to compare; `columns` are their names, where they came from a
    table: a table that is scored is aligned by them, an array is taken as it comes.

    >>> model = LinearModel(np.eye(2), ("cat", "dog"))
    >>> model.predict([[0.1, 0.9], [0.7, 0.2]])
    array(['dog', 'cat'], dtype='<U3')
    """

    weights: Array
    classes: Classes
    intercept: Array | None = None
    features: str = ""
    columns: Columns = ()

    wire_name: ClassVar[str] = "linear-model"
    wire_version: ClassVar[int] = 1
    wire_fields: ClassVar[Mapping[str, Field]] = {
        "weights": Field("float64", ("d", "c")),
        "intercept": Field("float64", ("c",), optional=True),
    }

    def __post_init__(self) -> None:
        """Refuse arrays that do not fit together; lay the weights out as the wire does, so that bits stay the same."""
        object.__setattr__(self, "weights", np.ascontiguousarray(self.weights))
        count = len(self.classes)
        if np.shape(self.weights)[1:] != (count,) or (self.intercept is not None and len(self.intercept) != count):
            shapes = f"{np.shape(self.weights)} and {None if self.intercept is None else np.shape(self.intercept)}"
            raise Mismatch(
                f"a linear model of {count} classes has weights (d, {count}), intercept ({count},); got {shapes}"
            )

    def scores(self, x: Any) -> Array:
        """Return the scores (n, c) of x (n, d), float32 or float64, by blocks of rows."""
        samples = samples_of(x, self.columns)
        if samples.ndim != 2 or samples.shape[1] != len(self.weights):
            raise InvalidData(f"this model scores samples of shape (n, {len(self.weights)}), got {samples.shape}")
        out = np.empty((len(samples), len(self.classes)))
        for start in range(0, len(samples), ROWS_AT_ONCE):
            block = samples[start : start + ROWS_AT_ONCE].astype(np.float64, copy=False)
            np.matmul(block, self.weights, out=out[start : start + len(block)])
        if self.intercept is not None:
            out += self.intercept
        return finite(out)

    def predict(self, x: Any) -> npt.NDArray[Any]:
        """Return the labels (n,) of x (n, d)."""
        return best_labels(self.scores(x), self.classes)

    def to_fields(self) -> dict[str, Any]:
        """Take the model apart for the wire."""
        return {
            "weights": self.weights,
            "classes": shorten(self.classes),
            "intercept": self.intercept,
            "features": self.features,
            **sent_columns(self.columns),
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Put a model together from the wire."""
        d, c = fields["weights"].shape
        columns = as_columns(fields.get("columns", ()), d)
        return cls(**fields | {"classes": read_classes(fields["classes"], c), "columns": columns})

    def check(self) -> None:
        """Accept: finite values are all that a linear model needs."""

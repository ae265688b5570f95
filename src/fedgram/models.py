"""Models, which methods return and which predict: the interface, the linear model, and base classes of other models."""

import json
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedgram.core import wire
from fedgram.core.arrays import Array, as_sparse
from fedgram.core.classes import NUMERIC, Classes
from fedgram.core.columns import Columns, as_columns, samples_of
from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch
from fedgram.core.extras import require
from fedgram.core.filesystem import replace_file, writing

T = TypeVar("T")
S = TypeVar("S", bound=Any)  # samples: an array, or a sparse one
# Divisor that turns scores into log-probabilities; None if scores are that already, up to a constant per sample.
Temperature: TypeAlias = Annotated[float | None, wire.Later()]
# Numbers (c,) that are then added to the scores of each sample; None for zeros.
Offsets: TypeAlias = Annotated[Annotated[Array, wire.Shape("c")] | None, wire.Later()]


@runtime_checkable
class Model(Protocol):
    """A model, which scores samples for the agreed classes or predicts numbers; also a message, to cross the wire."""

    @property
    def classes(self) -> Classes:
        """The classes, in the order of the scores' columns."""

    @property
    def features(self) -> str:
        """The fingerprint of the features that the model was made from, "" if they are the samples themselves."""

    @property
    def columns(self) -> Columns:
        """The names of the samples' columns, () where they came without names."""

    def scores(self, x: Any) -> Array:
        """Return one score per sample and class, (n, c): the highest wins."""

    def predict(self, x: Any) -> npt.NDArray[Any]:
        """Return the label of each sample, (n,)."""


class BlockModel(wire.Saved, ABC):
    """Base of models that score samples block by block; a subclass gives the shape of a sample and a block's scores.

    `features` is the fingerprint of the features that the model was made from, to be compared with those of samples.
    `columns` are their names, if they came from a table: the columns of a table to be scored are put in their order,
    while an array must have that order. Log-probabilities are scores / temperature + offsets; None stands for 1 and 0.
    With offsets, which models of unequally frequent classes have, the highest score, which `predict` returns, may not
    have the highest probability.
    """

    classes: Classes
    features: str
    columns: Columns
    temperature: float | None = None
    offsets: Array | None = None

    @property
    def at_once(self) -> int:
        """The number of samples in a block."""
        return 4096

    @property
    def width(self) -> int:
        """The number of scores of a sample: one for each class, or for each numeric outcome."""
        return len(self.classes)

    @property
    @abstractmethod
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""

    @abstractmethod
    def score_block(self, block: npt.NDArray[Any], out: Array) -> None:
        """Write the scores of a block of samples into `out`, (n, c)."""

    def scores(self, x: Any) -> Array:
        """Return the scores (n, c) of samples: an array, or a table with the model's columns."""
        samples = self.checked(samples_of(x, self.columns))
        out = np.empty((len(samples), self.width))
        at_once = self.at_once
        for start in range(0, len(samples), at_once):
            block = slice(start, start + at_once)
            self.score_block(samples[block], out[block])
        return finite(out)

    def predict(self, x: Any) -> npt.NDArray[Any]:
        """Return the labels (n,) of samples."""
        best: npt.NDArray[np.intp] = self.scores(x).argmax(axis=1)
        return np.asarray(self.classes)[best]

    def predict_proba(self, x: Any) -> Array:
        """Return a probability per sample and class, (n, c)."""
        return probabilities(self, self.scores(x))

    def checked(self, samples: S) -> S:
        """Return the samples; raise if they have another shape."""
        if not self.takes(samples.shape[1:]):
            wanted = ", ".join(map(str, ("n", *self.sample_shape)))
            raise InvalidData(f"this model scores samples of shape ({wanted}), got {samples.shape}")
        return samples

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Return whether a sample may have this shape."""
        return shape == self.sample_shape

    def check(self) -> None:
        """Raise if `columns` does not fit the shape of samples, or the temperature is not positive."""
        as_columns(self.columns, *self.sample_shape[:1])
        if self.temperature is not None and not self.temperature > 0:
            raise Mismatch(f"field 'temperature' must be more than 0, got {self.temperature}")


class WrappedModel(wire.Saved, ABC):
    """Base of models that convert samples by `unwrap` and pass them on to an inner model."""

    model: Model

    @abstractmethod
    def unwrap(self, x: Any) -> Any:
        """Return samples in the form that the inner model takes."""

    @property
    def classes(self) -> Classes:
        """The classes, in the order of the scores' columns."""
        return self.model.classes

    @property
    def features(self) -> str:
        """The fingerprint of the features that the model was made from."""
        return self.model.features

    @property
    def temperature(self) -> float | None:
        """The number that scores are divided by to be log-probabilities, None where they are that already."""
        return temperature_of(self.model)

    @property
    def offsets(self) -> Array | None:
        """The numbers (c,) that are then added to the scores of each sample, None for zeros."""
        return offsets_of(self.model)

    def scores(self, x: Any) -> Array:
        """Return one score per sample and class."""
        return self.model.scores(self.unwrap(x))

    def predict(self, x: Any) -> npt.NDArray[Any]:
        """Return the label of each sample."""
        return self.model.predict(self.unwrap(x))

    def predict_proba(self, x: Any) -> Array:
        """Return a probability per sample and class."""
        return probabilities(self.model, self.scores(x))


def finite(scores: Array) -> Array:
    """Return the scores (n, c); raise InvalidData if any is not finite, because the first class would then win."""
    if not np.isfinite(scores).all():
        row = int(np.argmin(np.isfinite(scores).all(axis=1)))
        raise InvalidData(f"sample {row} has scores that are not finite: check its features")
    return scores


def temperature_of(model: Model) -> float | None:
    """Return the temperature of a model's scores, None where they are log-probabilities already."""
    return getattr(model, "temperature", None)


def offsets_of(model: Model) -> Array | None:
    """Return the numbers (c,) that turn a model's scores, divided by the temperature, into log-probabilities."""
    return getattr(model, "offsets", None)


def probabilities(model: Model, scores: Array) -> Array:
    """Return the probabilities (n, c) that go with a model's scores (n, c): softmax(scores / temperature + offsets).

    >>> sure, unsure = (LinearModel(np.eye(2), ("cat", "dog"), temperature=degrees) for degrees in (0.1, 1.0))
    >>> scores = sure.scores([[0.3, 0.7]])
    >>> probabilities(sure, scores).round(2), probabilities(unsure, scores).round(2)
    (array([[0.02, 0.98]]), array([[0.4, 0.6]]))
    """
    if model.classes == NUMERIC:
        raise InvalidParameter("a model of numeric outcomes predicts numbers and has no probabilities: use predict")
    from scipy.special import softmax

    temperature = temperature_of(model)
    if temperature is not None:
        with np.errstate(over="ignore"):  # infinite scores raise
            scores = finite(scores / temperature)
    offsets = offsets_of(model)
    if offsets is not None:
        scores = scores + offsets
    return np.asarray(softmax(scores, axis=1))


def with_columns(model: T, columns: Columns) -> T:
    """Return the model with the names of the columns that it was made from, unless it has names already."""
    return replace(model, columns=columns) if columns and getattr(model, "columns", None) == () else model  # type: ignore[type-var]


def sent_columns(columns: Columns) -> dict[str, Any]:
    """Return the columns as a field of a message; without names, the field is left out."""
    return {"columns": columns} if columns else {}


@wire.message("linear-model", version=1)
@dataclass(frozen=True, eq=False)
class LinearModel(BlockModel):
    """The model with the scores x @ weights + intercept.

    Parameters
    ----------
    weights : Array
        The weights, (d, c).
    classes : Classes
        The classes, in the order of the scores' columns; NUMERIC where the c scores are numbers.
    intercept : Array or None
        The intercept, (c,).
    features : str
        The fingerprint of the features, "" if they are the samples themselves.
    columns : Columns
        The names of the features, () where they have none.
    temperature : float or None
        The number that scores are divided by to be log-probabilities; None where they are that already.
    offsets : Array or None
        The numbers (c,) that are then added to the scores of each sample; None for zeros.

    Examples
    --------
    >>> model = LinearModel(np.eye(2), ("cat", "dog"))
    >>> model.predict([[0.1, 0.9], [0.7, 0.2]])
    array(['dog', 'cat'], dtype='<U3')

    """

    weights: Annotated[Array, wire.Shape("d", "c")]
    classes: Classes
    intercept: Annotated[Array, wire.Shape("c")] | None = None
    features: str = ""
    columns: Columns = ()
    temperature: Temperature = None
    offsets: Offsets = None

    def __post_init__(self) -> None:
        """Raise Mismatch for arrays that do not fit together; lay out the weights in C order, as the wire does."""
        object.__setattr__(self, "weights", np.ascontiguousarray(self.weights))
        count = self.width
        if np.shape(self.weights)[1:] != (count,) or (self.intercept is not None and len(self.intercept) != count):
            shapes = f"{np.shape(self.weights)} and {None if self.intercept is None else np.shape(self.intercept)}"
            raise Mismatch(
                f"a linear model of {count} classes has weights (d, {count}), intercept ({count},); got {shapes}"
            )

    @property
    def width(self) -> int:
        """The number of scores of a sample."""
        return self.weights.shape[-1] if self.classes == NUMERIC else len(self.classes)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """(d,)."""
        return (len(self.weights),)

    def scores(self, x: Any) -> Array:
        """Return the scores (n, c) of samples: an array, a table with the model's columns, or a sparse matrix."""
        rows = as_sparse(x)
        if rows is None:
            return super().scores(x)
        self.checked(rows)
        return finite(rows @ self.weights + (0.0 if self.intercept is None else self.intercept))

    def to_onnx(self, path: str | os.PathLike[str], *, centre: Array | None = None) -> None:
        """Write the model as an ONNX file, which programs without Python can run.

        The input is "samples", (n, d) in float32: features of a backbone, if the model was made from these. The outputs
        are "scores" (n, c), and for classes "label" (n,), texts or whole numbers, and "probabilities" (n, c). The names
        of the columns are in the file's metadata, as JSON.

        Parameters
        ----------
        path : str or PathLike
            The file to write.
        centre : Array or None
            Numbers (d,) to subtract from samples first, such as their means. The scores are the same, but float32 keeps
            more digits of columns far from zero.

        """
        onnx = require("onnx", "onnx", "a model as an ONNX file")
        made, graph, nodes = onnx.helper, [], []
        where = np.zeros(len(self.weights)) if centre is None else centre.astype(np.float32).astype(np.float64)
        offset = where @ self.weights + (0.0 if self.intercept is None else self.intercept)
        limits = np.finfo(np.float32)
        for name, values in (("centre", where), ("weights", self.weights), ("intercept", offset)):
            narrow = np.clip(values, limits.min, limits.max).astype(np.float32)  # no class has a score of -infinity
            graph.append(onnx.numpy_helper.from_array(narrow, name))
        count, (real, whole) = self.width, (onnx.TensorProto.FLOAT, onnx.TensorProto.INT64)
        nodes.append(made.make_node("Sub", ["samples", "centre"], ["centred"]))
        nodes.append(made.make_node("Gemm", ["centred", "weights", "intercept"], ["scores"]))
        outputs = [made.make_tensor_value_info("scores", real, ["n", count])]
        if self.classes != NUMERIC:
            names = isinstance(self.classes[0], str)
            kind = onnx.TensorProto.STRING if names else whole
            labels = [str(label).encode() if names else label for label in self.classes]
            temperature = np.float32(1.0 if self.temperature is None else self.temperature)
            graph.append(made.make_tensor("classes", kind, [count], labels))
            offsets = np.zeros(count) if self.offsets is None else self.offsets
            graph.append(onnx.numpy_helper.from_array(temperature, "temperature"))
            graph.append(onnx.numpy_helper.from_array(offsets.astype(np.float32), "offsets"))
            nodes.append(made.make_node("ArgMax", ["scores"], ["best"], axis=1, keepdims=0))
            nodes.append(made.make_node("Gather", ["classes", "best"], ["label"]))
            nodes.append(made.make_node("Div", ["scores", "temperature"], ["colder"]))
            nodes.append(made.make_node("Add", ["colder", "offsets"], ["logits"]))
            nodes.append(made.make_node("Softmax", ["logits"], ["probabilities"], axis=1))
            outputs.append(made.make_tensor_value_info("label", kind, ["n"]))
            outputs.append(made.make_tensor_value_info("probabilities", real, ["n", count]))
        samples = made.make_tensor_value_info("samples", real, ["n", len(self.weights)])
        # Versions of 2020, which any runtime of today reads.
        versions: dict[str, Any] = {"opset_imports": [made.make_opsetid("", 13)], "ir_version": 7}
        model = made.make_model(made.make_graph(nodes, "linear-model", [samples], outputs, graph), **versions)
        made.set_model_props(model, {"columns": json.dumps(self.columns)})
        onnx.checker.check_model(model, full_check=True)
        with writing(Path(path)):
            replace_file(Path(path), model.SerializeToString())

    def score_block(self, block: npt.NDArray[Any], out: Array) -> None:
        """Write the scores of samples (n, d), float32 or float64."""
        np.matmul(block.astype(np.float64, copy=False), self.weights, out=out)
        if self.intercept is not None:
            out += self.intercept

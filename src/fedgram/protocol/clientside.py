"""The client's side of a run: what a step sees, and how a request is carried out."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array
from fedgram.core.blocks import Blocks, each, lazily
from fedgram.core.columns import Columns, as_columns
from fedgram.core.errors import FedgramError, InvalidParameter, UnknownName
from fedgram.core.labels import Classes, as_classes, to_indices
from fedgram.core.randomness import generator
from fedgram.core.wire import Payload
from fedgram.data.client import Client
from fedgram.data.streams import StreamedLabels, StreamedRows
from fedgram.heads import adapt
from fedgram.heads.adapt import OwnRidge
from fedgram.models import LinearModel, Model, with_columns
from fedgram.moments.accumulate import as_features
from fedgram.moments.basis import Basis
from fedgram.moments.moments import Moments
from fedgram.protocol.recipe import Recipe, in_source
from fedgram.regressors import Outcomes

Indices = npt.NDArray[np.int64]

if TYPE_CHECKING:
    from fedgram.protocol.method import Method


class ClientSide:
    """What a step sees of its client: x, y, classes, rng, round and a state that lasts for the run.

    `y` and `y_test` (for evaluation only) hold indices into the agreed `classes`. `rng` is derived from (seed, method,
    step, round, client name), so that results depend neither on the engine nor on who comes first. `state` may hold
    payloads only: on other engines it travels.
    """

    def __init__(
        self,
        data: Client,
        *,
        classes: Classes = (),
        columns: Columns = (),
        member: bool = True,
        basis: Basis | None = None,
        recipe: Recipe | None = None,
        minimum_cell: int = 0,
    ) -> None:
        self.data = data.reordered(columns)
        self.member = member  # whether its samples are in what the others send
        self.name = data.name
        self._recipe = recipe  # has rules on who may send
        # Of how few test samples a sum about confidence may be.
        self.minimum_cell = max(minimum_cell, 0 if recipe is None else recipe.minimum_cell)
        self.basis = basis  # how the columns of x are made of those of the data
        self.classes: Classes = ()
        self._indices: Indices | StreamedLabels = np.zeros(0, dtype=np.int64)
        self._test_indices: Indices | StreamedLabels = np.zeros(0, dtype=np.int64)
        self.round = 0
        self.state: dict[str, Payload] = {}
        self.model: Model | None = None
        self.personal = False
        self._purpose: tuple[int, str, str] = (0, "", "")
        if classes:
            self._agree(classes)

    def enter(self, method: str, request: dict[str, Any]) -> None:
        """Get ready for one step: the agreed classes and order of columns, the round, fresh random numbers."""
        if request["classes"] is not None and not self.classes:
            self._agree(as_classes(request["classes"]))
        if request.get("columns") and (data := self.data.reordered(as_columns(request["columns"]))) is not self.data:
            self.data = data
            self._forget("x")
        basis = request.get("basis")
        if isinstance(basis, Basis) and not basis.same(self.basis):
            if self._recipe is not None:
                self._recipe.check_basis(basis)
            self.basis = basis
            self._forget("x", "_outcome_blocks")
        self.round = request["round"]
        self._purpose = (request["seed"], method, request["step"])
        self._forget("rng")

    def _forget(self, *names: str) -> None:
        """Let these be made anew when they are asked for."""
        for name in names:
            self.__dict__.pop(name, None)

    def _agree(self, classes: Classes) -> None:
        """Take the classes as agreed; labels that are not among them are refused here, where they are."""
        self._indices = _indices_of(self.data.y, classes)
        if self.data.y_test is not None:
            self._test_indices = _indices_of(self.data.y_test, classes)
        self._forget("y", "y_test")
        self.classes = classes

    @property
    def n(self) -> int:
        """How many training samples there are."""
        return len(self.data.x)

    @cached_property
    def x(self) -> Any:
        """The training samples, all of them in memory; `x_blocks` takes less where they are read from a large file."""
        return self._made(np.asarray(self.data.x))

    @cached_property
    def y(self) -> Indices:
        """The labels of the training samples, as indices into the classes."""
        return np.asarray(self._indices, dtype=np.int64)

    @cached_property
    def y_test(self) -> Indices:
        """The labels of the test samples, as indices into the classes."""
        return np.asarray(self._test_indices, dtype=np.int64)

    @property
    def x_blocks(self) -> Blocks[npt.NDArray[Any]]:
        """The training samples in blocks: one with all that are in memory, or those of a file, which is read anew."""
        return lazily(self._made, self.data.x) if isinstance(self.data.x, StreamedRows) else [self.x]

    @property
    def y_blocks(self) -> Blocks[Indices]:
        """The labels of `x_blocks`."""
        return _label_blocks(self._indices, self.data.x)

    @property
    def y_test_blocks(self) -> Blocks[Indices]:
        """The labels of the test samples, in blocks as these are."""
        return _label_blocks(self._test_indices, self.data.x_test)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample of x."""
        return self.data.x.shape[1:] if self.basis is None else self.basis.of_features.shift.shape

    @property
    def columns(self) -> Columns:
        """The names of the columns of x, in the agreed order; () where samples have no names."""
        return self.data.columns if self.basis is None else self.basis.of_features.columns

    @property
    def outcomes(self) -> Outcomes | None:
        """The numeric outcomes, None where there are classes; known as soon as the basis is."""
        return None if self.basis is None else self.basis.outcomes

    @property
    def targets(self) -> Array:
        """What is to be predicted of the training samples, (n, c): one-hot rows, or numeric outcomes about 0."""
        if self.basis is None or self.basis.outcomes is None:
            return np.eye(len(self.classes))[self.y]
        return self.basis.outcome_values(np.asarray(self.data.x))

    @property
    def target_blocks(self) -> Blocks[Array]:
        """The targets of `x_blocks`."""
        if not isinstance(self.data.x, StreamedRows):
            return [self.targets]
        if self.outcomes is not None:
            return self._outcome_blocks
        return lazily(lambda labels: np.eye(len(self.classes))[labels], self.y_blocks)

    @cached_property
    def _outcome_blocks(self) -> Blocks[Array]:
        """The numeric outcomes of a large file, apart from it: nobody should read it twice at once for them."""
        assert self.basis is not None
        return each(self.basis.outcome_values, self.data.x)

    def _made(self, samples: Any) -> Any:
        """Return samples of the data in the columns of x, without numeric outcomes."""
        if self.basis is None:
            return samples
        return self.basis.of_features.apply(samples[:, : self.basis.of_features.source])

    @cached_property
    def rng(self) -> np.random.Generator:
        """Random numbers of this step."""
        seed, method, step = self._purpose
        return generator(seed, method, step, self.round, self.name)

    def moments(self, *, bias: bool = False) -> Moments:
        """Return the moments of the client's training samples; numeric outcomes are their last columns."""
        centre, samples = None if self.basis is None else self.basis.centre, self.data.x
        if centre is None or isinstance(samples, StreamedRows):
            return self.moments_of(lambda rows: rows, bias=bias, features=self.data.features)
        about: dict[str, Any] = {"bias": bias, "features": self.data.features, "centre": centre}
        return Moments.of_indices(as_features(samples), self.y, classes=self.classes, columns=self.columns, **about)

    def moments_of(self, make: Callable[[Any], Any], *, features: str, bias: bool = False) -> Moments:
        """Return the moments of what a function makes of x, rows (n, p), with the labels or outcomes of its samples.

        The function is given all samples, or where these are read from a large file, some of them at a time.
        """
        basis, names = self.basis, () if self.outcomes is None else self.outcomes.names
        settings: dict[str, Any] = {"classes": self.classes, "bias": bias, "features": features}

        def moments(samples: Any, rows: Any, labels: Indices) -> Moments:
            made = make(rows)
            if basis is not None and basis.outcomes is not None:
                made = np.column_stack([made, basis.outcome_values(samples)])
            return Moments.of_indices(as_features(made), labels, columns=(*self.columns, *names), **settings)

        if not isinstance(self.data.x, StreamedRows):
            return moments(self.data.x, self.x, self.y)
        return Moments.sum(lazily(lambda z, y: moments(z, self._made(z), y), self.data.x, self.y_blocks))

    def least_squares(self, ridge: float | OwnRidge, *, intercept: bool) -> LinearModel:
        """Return the least-squares model of the client's own samples, with a ridge or with the one that was chosen."""
        from fedgram.heads.leastsquares import least_squares, own_classifier  # takes a while

        # Nothing of this leaves the client, so its samples can be about their own mean.
        mean = adapt.mean_of(self.x_blocks) if intercept else None
        make = (lambda rows: rows) if mean is None else (lambda rows: rows - mean)
        moments = self.moments_of(make, features=self.data.features)
        if isinstance(ridge, OwnRidge) and self.outcomes is None:
            model = own_classifier(moments, ridge, self.y_blocks, intercept=intercept)
        else:
            ridge = ridge.ridge if isinstance(ridge, OwnRidge) else ridge
            model = least_squares(moments, ridge, len(self.outcomes or ()), intercept=intercept)
        if mean is None or model.intercept is None:
            return model
        return replace(model, intercept=model.intercept - mean @ model.weights)

    def admit(self, method: "Method") -> None:
        """Refuse to take part where the study's rules forbid it; a client without samples has nothing to send."""
        if self._recipe is not None and self.n:
            self._recipe.admit(self.data, method.fewest_samples(self.n))

    def keep(self, model: Model) -> None:
        """Keep a personal model; it never leaves the client."""
        if not isinstance(model, Model):
            raise InvalidParameter(f"only models can be kept, got a {type(model).__name__}")
        self.model, self.personal = self.of_the_data(model), True

    def of_the_data(self, model: Any) -> Any:
        """Return a model of x as one of the data as they are, which is what is kept and judged."""
        return in_source(with_columns(model, self.columns), self.basis, self.data.columns)


def _indices_of(labels: Any, classes: Classes) -> Indices | StreamedLabels:
    return labels.indices(classes) if isinstance(labels, StreamedLabels) else to_indices(labels, classes)


def _label_blocks(indices: Indices | StreamedLabels, samples: Any) -> Blocks[Indices]:
    return indices.blocks(samples) if isinstance(indices, StreamedLabels) else [indices]


def perform(method: "Method", sides: Sequence[ClientSide], requests: Sequence[dict[str, Any]]) -> list[Payload]:
    """Carry out the same step at some clients, each with its own request, and return their replies."""
    steps, name = method.steps(), requests[0]["step"]
    if name not in steps:
        raise UnknownName(f"step of {type(method).__name__}", name, steps)
    for side, request in zip(sides, requests, strict=True):
        side.enter(method.purpose, request)
    function, payloads = getattr(method, name), [request["payload"] for request in requests]
    if steps[name]:
        return list(function(sides) if all(payload is None for payload in payloads) else function(sides, payloads))
    return [
        function(side) if payload is None else function(side, payload)
        for side, payload in zip(sides, payloads, strict=True)
    ]


def explain(error: BaseException) -> str:
    """Return what to tell the server of an error: ours are clear already, others need their type."""
    return str(error) if isinstance(error, FedgramError) else f"{type(error).__name__}: {error}"

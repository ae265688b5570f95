"""The client's side of a run: the `ClientSide` that steps take, and the execution of requests."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedgram.core.arrays import Array, Blocks, as_blocks, each, lazily
from fedgram.core.classes import Classes, as_classes, to_indices
from fedgram.core.columns import Columns, as_columns
from fedgram.core.errors import FedgramError, InvalidParameter, Mismatch, UnknownName, Withheld, tell
from fedgram.core.randomness import generator
from fedgram.core.wire import Payload
from fedgram.data.client import Client, StreamedLabels, StreamedRows
from fedgram.evaluation import Performance
from fedgram.heads import adapt
from fedgram.heads.adapt import OwnRidge
from fedgram.models import LinearModel, Model
from fedgram.moments.accumulate import as_features
from fedgram.moments.basis import Basis, targets_under, with_truth
from fedgram.moments.moments import Moments
from fedgram.moments.targets import ClassTargets, Targets
from fedgram.pipeline import Pipeline

Indices = npt.NDArray[np.int64]

if TYPE_CHECKING:
    from fedgram.protocol.method import Method
    from fedgram.studies.study import Study


class ClientSide:
    """A client as a step sees it: x, y, classes, rng, round and a state that lasts for the run.

    `y` and `y_test` (for evaluation only) hold indices into the agreed `classes`. `rng` is derived from (seed, method,
    step, round, client name), so that results depend neither on the engine nor on the order of clients. `state` may
    hold payloads only, because other engines store it as a message.
    """

    def __init__(
        self,
        data: Client,
        *,
        classes: Classes = (),
        columns: Columns = (),
        member: bool = True,
        basis: Basis | None = None,
        study: "Study | None" = None,
        minimum_cell: int = 0,
        targets: Targets | None = None,
    ) -> None:
        self.data = data.reordered(columns)
        self.member = member  # whether its samples are in the total of the run
        self.name = data.name
        self._study = study  # whose thresholds decide whether the client may send
        # The smallest number of test samples that a sum about confidence may cover.
        self.minimum_cell = max(minimum_cell, 0 if study is None else study.minimum_cell)
        self.basis = basis  # maps the columns of the data to those of x
        self.classes: Classes = ()
        self._declared = targets  # set if they are neither classes nor a study's numbers
        self._indices: Indices | StreamedLabels = np.zeros(0, dtype=np.int64)
        self._test_indices: Indices | StreamedLabels = np.zeros(0, dtype=np.int64)
        self.round = 0
        self.state: dict[str, Payload] = {}
        self.model: Model | None = None
        self.share = 1.0  # weight of the published model's scores in it
        self.personal = False
        self._purpose: tuple[int, str, str] = (0, "", "")
        if classes:
            self._agree(classes)

    def enter(self, method: str, request: dict[str, Any]) -> None:
        """Prepare for a step: set the agreed classes, order of columns and round, and fresh random numbers."""
        if request["classes"] is not None and not self.classes:
            self._agree(as_classes(request["classes"]))
        if request.get("columns") and (data := self.data.reordered(as_columns(request["columns"]))) is not self.data:
            self.data = data
            self._forget("x")
        if isinstance(declared := request.get("targets"), Targets):
            if self._study is not None or declared.names:
                raise Mismatch(
                    f"targets: expected those of the study, or labels of another kind without one, got a "
                    f"{type(declared).__name__}; ask without targets"
                )
            self._declared = declared
        basis = request.get("basis")
        if isinstance(basis, Basis) and not basis.same(self.basis):
            if self._study is not None:
                self._study.check_basis(basis)
            self.basis = basis
            self._forget("x", "_outcome_blocks")
        self.round = request["round"]
        self._purpose = (request["seed"], method, request["step"])
        self._forget("rng")

    def _forget(self, *names: str) -> None:
        """Drop cached properties, which are computed again when needed."""
        for name in names:
            self.__dict__.pop(name, None)

    def _agree(self, classes: Classes) -> None:
        """Set the agreed classes; raise here, at the client, for labels that are not among them."""
        self._indices = _indices_of(self.data.y, classes)
        if self.data.y_test is not None:
            self._test_indices = _indices_of(self.data.y_test, classes)
        self._forget("y", "y_test")
        self.classes = classes

    @property
    def n(self) -> int:
        """The number of training samples."""
        return len(self.data.x)

    @property
    def tested(self) -> int:
        """The number of test samples."""
        return 0 if self.data.x_test is None else len(self.data.x_test)

    @cached_property
    def x(self) -> Any:
        """The training samples, all of them in memory; `x_blocks` takes less memory for a large file."""
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
        """The training samples in blocks: a single block in memory, or the blocks of a file, which is read anew."""
        return lazily(self._made, self.data.x) if isinstance(self.data.x, StreamedRows) else [self.x]

    @property
    def y_blocks(self) -> Blocks[Indices]:
        """The labels of `x_blocks`."""
        return _label_blocks(self._indices, self.data.x)

    @property
    def y_test_blocks(self) -> Blocks[Indices]:
        """The labels of the test samples, in the same blocks as these."""
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
    def targets(self) -> Targets:
        """The targets of models: classes, or numeric outcomes, which are known once the basis is."""
        return targets_under(self.basis, self._declared or ClassTargets(self.classes))

    @property
    def target_rows(self) -> Array:
        """The target rows of the training samples, (n, t): one-hot for classes, or numeric outcomes about 0."""
        if self.basis is None or self.basis.outcomes is None:
            return self.targets.rows(self.y)
        return self.basis.outcome_values(np.asarray(self.data.x))

    @property
    def target_blocks(self) -> Blocks[Array]:
        """The target rows of `x_blocks`."""
        if not isinstance(self.data.x, StreamedRows):
            return [self.target_rows]
        return self._outcome_blocks if self.targets.names else lazily(self.targets.rows, self.y_blocks)

    @cached_property
    def _outcome_blocks(self) -> Blocks[Array]:
        """The numeric outcomes of a large file, in a temporary file, so that the data are not read twice at once."""
        assert self.basis is not None
        return each(self.basis.outcome_values, self.data.x)

    def _made(self, samples: Any) -> Any:
        """Return samples of the data mapped to the columns of x, without numeric outcomes."""
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
        """Return the moments of make(x), rows (n, p), with the labels or outcomes of the samples.

        The function is given all samples at once, or those of a large file block by block.
        """
        basis, names = self.basis, self.targets.names
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
        """Return the least-squares model of the client's own samples, with a given ridge or a chosen `OwnRidge`."""
        from fedgram.heads.least_squares import least_squares, own_classifier  # takes a while

        # These moments never leave the client, so its samples can be centred at their own mean.
        mean = adapt.mean_of(self.x_blocks) if intercept else None
        make = (lambda rows: rows) if mean is None else (lambda rows: rows - mean)
        moments = self.moments_of(make, features=self.data.features)
        targets = self.targets
        if isinstance(ridge, OwnRidge) and targets.has_classes:
            model = own_classifier(moments, ridge, self.y_blocks, intercept=intercept)
        else:
            ridge = ridge.ridge if isinstance(ridge, OwnRidge) else ridge
            model = least_squares(moments, ridge, targets, intercept=intercept)
        if mean is None or model.intercept is None:
            return model
        return replace(model, intercept=model.intercept - mean @ model.weights)

    def admit(self, method: "Method") -> None:
        """Raise if the study's rules forbid the client to take part. A client without samples may: it sends nothing."""
        if self._study is not None and self.n:
            self._study.admit(self.data, method.fewest_samples(self.n))

    def keep(self, model: Model, *, share: float = 1.0) -> None:
        """Keep a personal model; it never leaves the client.

        If the model's scores are a sum with the published model's scores as a term, `share` is the weight of that term.
        """
        if not isinstance(model, Model):
            raise InvalidParameter(f"only models can be kept, got a {type(model).__name__}")
        self.model, self.share, self.personal = self.of_the_data(model), share, True

    def of_the_data(self, model: Any) -> Any:
        """Return the model expressed in the client's raw columns, the form that is kept and judged."""
        return Pipeline.of(model, self.basis, self.targets, self.data.columns)

    def judge(self, model: Model) -> Performance:
        """Return sums over the test samples that score a model of the raw columns."""
        samples = with_truth(as_blocks(self.data.x_test), self.y_test_blocks, self.basis)
        return self.targets.judge(model, samples, least=self.minimum_cell)


def _indices_of(labels: Any, classes: Classes) -> Indices | StreamedLabels:
    return labels.indices(classes) if isinstance(labels, StreamedLabels) else to_indices(labels, classes)


def _label_blocks(indices: Indices | StreamedLabels, samples: Any) -> Blocks[Indices]:
    return indices.blocks(samples) if isinstance(indices, StreamedLabels) else [indices]


def perform(method: "Method", sides: Sequence[ClientSide], requests: Sequence[dict[str, Any]]) -> list[Payload]:
    """Return the replies of some clients to the same step, each with its own request."""
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
    """Return the text of an error for the server; errors other than fedgram's get their type in front."""
    if isinstance(error, Withheld):
        return tell(error)
    return str(error) if isinstance(error, FedgramError) else f"{type(error).__name__}: {error}"

"""Any torch module as a network: its parameters and buffers as one vector.

The vector is [frozen parameters, float buffers | parameters | head's parameters | memory], each in the module's own
order. Buffers of whole numbers (`num_batches_tracked`) and those outside the state dict are not part of it: they
begin every training as the factory makes them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import InvalidParameter
from fedgram.core.extras import require
from fedgram.nets.factories import ONE_AT_A_TIME, build, seeded
from fedgram.nets.layers import Module, Shape, Tensor, Vector
from fedgram.nets.vector import Net, channels_first, split

if TYPE_CHECKING:
    from torch import nn

TRIAL = 2  # samples in the trial of a new network


@dataclass(frozen=True)
class ModuleNet(Net):
    """A network that a factory makes.

    The head is the last `nn.Linear`, or the layer that the module names in its attribute `head`. The head's inputs are
    the features. A batch of one sample uses the running statistics of batch normalisation.
    """

    one_by_one: ClassVar[bool] = True
    at_once: ClassVar[int] = 128
    only_one: ClassVar[bool] = True  # clients share one module, and torch's one random generator

    def __post_init__(self) -> None:
        """Try the network on two samples, so that errors are raised before training."""
        torch = require("torch", "nets", f"the network {self.network}")
        self._check_norms()
        buffers, weights = self._halves(self._numbers(self._module))
        x = torch.zeros(TRIAL, *channels_first(self.shape))
        try:
            with torch.no_grad():
                seen, scores = self._call(weights, buffers, None, x, training=False)
        except Exception as error:
            what = f"network {self.network!r} cannot take samples of shape {tuple(x.shape[1:])}"
            raise InvalidParameter(f"{what}: {type(error).__name__}: {error}").telling(what) from error
        if not isinstance(scores, torch.Tensor) or scores.shape != (TRIAL, self.classes):
            got = f"shape {tuple(scores.shape)}" if isinstance(scores, torch.Tensor) else f"a {type(scores).__name__}"
            raise self._wrong(
                f"must return scores with a column for each of the {self.classes} classes, so of shape "
                f"{(TRIAL, self.classes)} for {TRIAL} samples; it returned {got}"
            )
        if seen is None or seen.shape != (TRIAL, self.features):
            got = "nothing: forward never calls it" if seen is None else f"shape {tuple(seen.shape)}"
            raise self._wrong(
                f"the head {self._head_name!r} must be called with a row of features for each sample, so with shape "
                f"{(TRIAL, self.features)} for {TRIAL} samples; it got {got}"
            )

    def _check_norms(self) -> None:
        """Raise for batch normalisation without running statistics: its predictions would depend on the batch."""
        for name, norm in self._norms.items():
            if norm.running_mean is None:
                raise self._wrong(
                    f"its batch normalisation {name!r} keeps no running statistics (track_running_stats=False), so "
                    "that a sample's scores would depend on the others in its batch: let it track them"
                )

    @cached_property
    def _module(self) -> Module:
        """The module that is called; of its own numbers, only buffers outside the vector are used."""
        return build(self.network, channels_first(self.shape), self.classes, np.random.default_rng(0))

    @cached_property
    def _head_name(self) -> str:
        from torch import nn

        linear = [name for name, module in self._module.named_modules() if isinstance(module, nn.Linear)]
        if not linear:
            raise self._wrong("has no nn.Linear, which its scores must come from: make its last layer one")
        said = getattr(self._module, "head", None)
        name = said if isinstance(said, str) else "head" if isinstance(said, nn.Linear) else linear[-1]
        if name not in linear:
            raise self._wrong(f"says head = {name!r}, which is not an nn.Linear of it: these are {', '.join(linear)}")
        head = self._module.get_submodule(name)
        assert isinstance(head, nn.Linear)
        if head.out_features != self.classes:
            raise self._wrong(
                f"its head {name!r} has {head.out_features} outputs, and there are {self.classes} classes: "
                'name the layer that gives the scores in the module, as head = "name"'
            )
        if not all(parameter.requires_grad for parameter in head.parameters()):
            raise self._wrong(f"its head {name!r} is frozen: set requires_grad")
        return name

    @cached_property
    def _head(self) -> "nn.Linear":
        return self._module.get_submodule(self._head_name)  # type: ignore[return-value]

    @cached_property
    def _kept(self) -> dict[str, Tensor]:
        """The numbers that are not trained: frozen parameters and float buffers, by name."""
        state = self._module.state_dict().keys()
        frozen = {name: p for name, p in self._module.named_parameters() if not p.requires_grad}
        buffers = {name: b for name, b in self._module.named_buffers() if name in state and b.is_floating_point()}
        return {**frozen, **buffers}

    @cached_property
    def _layers(self) -> dict[str, dict[str, Tensor]]:
        """The trained parameters, by layer and name; the head comes last, wherever it is in the module."""
        head = {id(parameter) for parameter in self._head.parameters()}
        layers: dict[str, dict[str, Tensor]] = {}
        last: dict[str, Tensor] = {}
        for name, parameter in self._module.named_parameters():
            if not parameter.is_floating_point():
                raise self._wrong(f"its parameter {name!r} holds {parameter.dtype}: only real numbers can be trained")
            if id(parameter) in head:
                last[name] = parameter
            elif parameter.requires_grad:
                layers.setdefault(name.rpartition(".")[0], {})[name] = parameter
        return {**layers, self._head_name: last}

    @cached_property
    def _names(self) -> list[str]:
        """The names of all tensors that are in the vector, in its order."""
        return [*self._kept, *(name for layer in self._layers.values() for name in layer)]

    @property
    def features(self) -> int:
        """The number of features, which are the head's inputs."""
        return self._head.in_features

    @cached_property
    def buffer_shapes(self) -> list[Shape]:
        """Shapes of frozen parameters and float buffers."""
        return [tuple(tensor.shape) for tensor in self._kept.values()]

    @cached_property
    def layer_shapes(self) -> list[list[Shape]]:
        """Shapes of the parameters of each submodule that has any."""
        return [[tuple(tensor.shape) for tensor in layer.values()] for layer in self._layers.values()]

    @cached_property
    def norms(self) -> npt.NDArray[np.bool_]:
        """The mask of the vector's numbers that belong to `torch.nn` batch normalisation."""
        are = [name.rpartition(".")[0] in self._norms for name in self._names]
        lengths = [prod(shape) for shape in (*self.buffer_shapes, *self._parameter_shapes)]
        return np.repeat([*are, False], [*lengths, self.size - self.own.start])

    @cached_property
    def multiplications(self) -> int:
        """The number of multiplications for scoring a sample, in the matrix products and convolutions of submodules."""
        import torch

        found = []

        def count(module: Module, _: object, out: Any) -> None:
            weight = getattr(module, "weight", None)
            if isinstance(weight, torch.Tensor) and weight.ndim > 1 and isinstance(out, torch.Tensor):
                found.append(weight.numel() * out.numel() // (len(weight) * TRIAL))

        buffers, weights = self._halves(self._numbers(self._module))
        hooks = [module.register_forward_hook(count) for module in self._module.modules()]
        try:
            with torch.no_grad():
                self._call(weights, buffers, None, torch.zeros(TRIAL, *channels_first(self.shape)), training=False)
        finally:
            for hook in hooks:
                hook.remove()
        return sum(found)

    def initial(self, rng: np.random.Generator) -> Vector:
        """Return the numbers of a new module."""
        new = self._numbers(build(self.network, channels_first(self.shape), self.classes, rng))
        return np.append(new, np.zeros(self.size - len(new), dtype=np.float32))

    def prepare(self, x: Tensor) -> Tensor:
        """Return samples of the one client: rows, or images (n, channels, height, width), with values as they are."""
        samples = x[0]
        if len(self.shape) == 3:
            return samples.permute(0, 3, 1, 2).contiguous()
        return samples.unsqueeze(1) if len(self.shape) == 2 else samples

    def forward(
        self, parts: Sequence[Tensor], buffers: Tensor, x: Tensor, *, training: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return features (1, width, n) and scores (1, classes, n) of prepared samples."""
        memory = parts[-1] if self.memory else None
        weights = parts[:-1] if self.memory else parts
        features, scores = self._call(weights, buffers, memory, x, training=training)
        return features.t().unsqueeze(0), scores.t().unsqueeze(0)

    @contextmanager
    def training(self, rngs: Sequence[np.random.Generator]) -> Iterator[None]:
        """Seed dropout from the client's own random numbers, and count batches from the beginning."""
        [rng] = rngs
        # A child generator, so that samples are shuffled as in a network without dropout.
        with seeded(rng.spawn(1)[0]):
            self._uncounted.update({name: buffer.clone() for name, buffer in self._outside.items()})
            try:
                yield
            finally:
                self._uncounted.clear()

    def module(self, vector: Vector) -> Module:
        """Return a module as the factory makes it, with these numbers; a memory goes into the head's constants."""
        import torch

        module = build(self.network, channels_first(self.shape), self.classes, np.random.default_rng(0))
        mine = {id(tensor) for tensor in self._module.state_dict(keep_vars=True).values()}
        if any(id(tensor) in mine for tensor in module.state_dict(keep_vars=True).values()):
            # A copy, because the factory may return the same trained module each time, which must not change.
            module = deepcopy(module)
        buffers, weights = self._halves(vector)
        with torch.no_grad():
            for name, value in zip(self._names, [*split(buffers, self.buffer_shapes), *weights], strict=True):
                _tensor(module, name).copy_(value[0])
            if self.memory:
                head = module.get_submodule(self._head_name)
                assert isinstance(head, torch.nn.Linear)
                if head.bias is None:
                    raise self._wrong(f"its head {self._head_name!r} has no bias, which a client's own would go into")
                head.bias.add_(head.weight @ torch.from_numpy(np.array(vector[self.own])))
        return module.eval()

    @cached_property
    def _uncounted(self) -> dict[str, Tensor]:
        """Buffers outside the vector, while a client trains."""
        return {}

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Restore counters and dropout's random numbers after a pass of training inside."""
        import torch

        counted, state = {name: buffer.clone() for name, buffer in self._uncounted.items()}, torch.get_rng_state()
        # Passes in double precision need the module's constants in double precision, too.
        self._uncounted.update({name: b.double() for name, b in counted.items() if b.is_floating_point()})
        try:
            yield
        finally:
            self._uncounted.update(counted)
            torch.set_rng_state(state)

    @cached_property
    def _outside(self) -> dict[str, Tensor]:
        return {name: buffer for name, buffer in self._module.named_buffers() if name not in self._kept}

    @cached_property
    def _norms(self) -> dict[str, Module]:
        from torch.nn.modules.batchnorm import _BatchNorm

        return {name: module for name, module in self._module.named_modules() if isinstance(module, _BatchNorm)}

    def _halves(self, vector: Vector) -> tuple[Tensor, list[Tensor]]:
        """Return the buffers (1, …) of a vector, and views of its parameters."""
        import torch

        row = torch.from_numpy(np.array(vector)).unsqueeze(0)
        return row[:, : self.buffers], split(row[:, self.buffers : self.own.start], self._parameter_shapes)

    def _numbers(self, module: Module) -> Vector:
        """Return the numbers of a module in the order of the vector, without memory."""
        tensors = [_tensor(module, name).detach().flatten().numpy() for name in self._names]
        return np.concatenate(tensors).astype(np.float32)

    def _call(
        self, parts: Sequence[Tensor], buffers: Tensor, memory: Tensor | None, x: Tensor, *, training: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the head's inputs (n, width), and the scores (n, classes)."""
        from torch.func import functional_call

        # `data`, because for autograd a change of one view of the buffers is a change of all of them.
        kept, seen = [view.data for view in split(buffers, self.buffer_shapes)], []
        numbers = {name: part[0] for name, part in zip(self._names, [*kept, *parts], strict=True)}

        def look(_: Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
            seen.append(inputs[0])
            return None if memory is None else (inputs[0] + memory, *inputs[1:])

        with ONE_AT_A_TIME, self._head.register_forward_pre_hook(look):
            self._module.train(training)
            for norm in self._norms.values() if training and len(x) == 1 else ():
                norm.eval()
            given = self._uncounted | numbers
            scores = functional_call(self._module, given, (x,))
            if training:
                # Some modules replace a buffer instead of writing to it.
                for name, buffer in zip(self._kept, kept, strict=True):
                    if given[name] is not numbers[name]:
                        buffer[0].copy_(given[name].detach())
                self._uncounted.update({name: given[name] for name in self._uncounted})
        # Models of transformers return an object with the scores in `logits`.
        return seen[-1] if seen else None, getattr(scores, "logits", scores)  # type: ignore[return-value]

    def _wrong(self, what: str) -> InvalidParameter:
        return InvalidParameter(f"network {self.network!r}: {what}").telling()


def _tensor(module: Module, name: str) -> Tensor:
    owner, _, last = name.rpartition(".")
    return getattr(module.get_submodule(owner), last)  # type: ignore[no-any-return]

"""Torch modules by name: lines of layers, and networks that users bring.

A user's network is a function `(shape, classes) -> torch.nn.Module`, known by a name that can be sent.

"package.module:factory" names a function that every side imports for itself. A name may come from another party, and
importing runs code, so only names that were admitted in this process are imported (`admit`). A method that the user
builds here admits its network; a model from a file or from another party does not.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, reduce
from importlib import import_module
from threading import RLock
from typing import Any, TypeAlias

import numpy as np

from fedgram.core.errors import InvalidParameter
from fedgram.core.extras import require
from fedgram.layerwise.layer_types import PRESETS, Normalization
from fedgram.layerwise.layered_network import Network, modules_of
from fedgram.nets.layers import Module, Shape, centered

Factory: TypeAlias = Callable[[Shape, int], Any]
LAYERS = ("normalize", "conv", "pool", "flatten", "dense")
# Held while torch's global random generator is seeded, and while a module is called with other numbers than its own.
ONE_AT_A_TIME = RLock()
BUILT_IN = ("auto", "linear", "mlp", "lenet5", "cnn")
_admitted: set[str] = set()
_given: dict[str, Factory] = {}  # functions that no other process can import, by their names in this process


def is_import(network: str) -> bool:
    """Return whether a network's name is that of a factory.

    >>> is_import("package.module:factory"), is_import("mlp:64:32"), is_import("conv:32:5 flatten")
    (True, False, False)
    """
    if network in _given:
        return True
    module, _, path = network.partition(":")
    plain = path.partition("#")[0].replace("<", "").replace(">", "")  # lambdas have < and > in their names
    return module not in BUILT_IN and all(part.isidentifier() for part in f"{module}.{plain}".split("."))


def name_of(network: str | Factory) -> str:
    """Return a network's name; a function that others cannot import gets a name known in this process only."""
    if isinstance(network, str):
        return network
    module, path = getattr(network, "__module__", "") or "", getattr(network, "__qualname__", type(network).__name__)
    name = f"{module}:{path}"
    with suppress(AttributeError):
        if module != "__main__" and _at(sys.modules.get(module), path) is network:
            return name
    for number in range(1, len(_given) + 2):  # two functions may have the same name
        if _given.setdefault(f"{name}#{number}", network) is network:
            break
    return f"{name}#{number}"


def admit(network: str | Factory) -> str:
    """Return the name of a network after admitting it: from now on this process may import its factory."""
    _admitted.add(name := name_of(network))
    return name


def is_admitted(network: str) -> bool:
    """Return whether this process may build the network: it is built in, or was admitted."""
    return not is_import(network) or network in _admitted or network in _given


def build(network: str, shape: Shape, classes: int, rng: np.random.Generator) -> Module:
    """Return a new module of a network for samples of this shape, with random weights."""
    require("torch", "nets", f"the network {network}")
    import torch
    from torch.nn.parameter import is_lazy

    factory, what = _factory(network), f"for samples of shape {shape} and {classes} classes"
    if isinstance(factory, torch.nn.Module):
        raise InvalidParameter(
            f"network {network!r} is a module, not a function that makes one: give "
            "network=lambda shape, classes: module, or better a function of a module that others can import"
        ).telling()
    with seeded(rng):
        try:
            module = factory(shape, classes)
        except Exception as error:
            raise InvalidParameter(
                f"network {network!r}: its factory fails {what}: {type(error).__name__}: {error}"
            ).telling(f"network {network!r}: its factory fails here {what}") from error
    if not isinstance(module, torch.nn.Module):
        raise InvalidParameter(
            f"network {network!r}: a factory must return a torch.nn.Module, but this one's result is of type "
            f"{type(module).__name__}"
        ).telling()
    if any(is_lazy(number) for number in (*module.parameters(), *module.buffers())):
        raise InvalidParameter(
            f"network {network!r}: it has lazy layers, whose sizes are not known yet: give them in the factory"
        ).telling()
    whole: Module = module.float()
    return whole


def _factory(network: str) -> Factory:
    if is_stack(network):
        return partial(stack_module, network)
    if network in _given:
        return _given[network]
    if not is_admitted(network):
        raise InvalidParameter(
            f"network {network!r} is code that this process was not told to trust: if you do, call "
            f"fedgram.nets.admit({network!r}) first (fedgram predict: --network {network})"
        ).telling()
    module, _, path = network.partition(":")
    if "#" in path or "<" in path:
        raise InvalidParameter(
            f"network {network!r} is a function of the program that started the run, which no other process can "
            'import: put it into a module that is installed on both sides, and give network="package.module:factory"'
        ).telling()
    try:
        factory = _at(import_module(module), path)
    except Exception as error:
        raise InvalidParameter(
            f"network {network!r} cannot be imported here ({type(error).__name__}: {error}): install its package, or "
            "put its folder on PYTHONPATH, on every machine that takes part"
        ).telling(f"network {network!r} cannot be imported here: its package must be installed at this node") from error
    if not callable(factory):
        raise InvalidParameter(
            f"network {network!r} is of type {type(factory).__name__}: "
            "name a function (shape, classes) -> torch.nn.Module"
        ).telling()
    return factory  # type: ignore[no-any-return]


def _at(module: Any, path: str) -> Any:
    return reduce(getattr, path.split("."), module)


def is_stack(network: str) -> bool:
    """Return whether a network's name is a line of layers, or a preset that stands for one.

    >>> is_stack("conv:32:5:leaky_relu pool:2 flatten"), is_stack("dcnn"), is_stack("mlp:128:64")
    (True, True, False)
    """
    first = network.split(maxsplit=1)[0] if network.strip() else ""
    return first in PRESETS or first.partition(":")[0] in LAYERS


def stack_module(network: str, shape: Shape, classes: int) -> Module:
    """Return a new module for images (channels, height, width) or rows (d,); layers have biases, as usual in torch.

    Images from 0 … 1 are taken to -1 … 1 first, unless the line begins with a normalisation of its own.
    """
    from torch import nn

    stack = Network(network, (*shape[1:], shape[0]) if len(shape) == 3 else shape, tuple(range(classes)), seed=0)
    centre = len(shape) == 3 and not isinstance(stack.layers[0], Normalization)
    modules = [centered()] if centre else []
    for layer, before in zip(stack.layers, stack.shapes, strict=False):
        modules += modules_of(layer, before, bias=True)
    return nn.Sequential(*modules)


@contextmanager
def seeded(rng: np.random.Generator) -> Iterator[None]:
    """Seed torch's global random generator from `rng`; afterwards its earlier state is restored.

    Other threads that seed it wait meanwhile.
    """
    import torch

    with ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(rng.integers(2**63)))
        yield

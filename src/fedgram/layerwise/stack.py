"""A stack of layers as one line of text, for the API, the command line and TOML files alike.

Layers stand in order with spaces between: `normalize:MEAN:STD`, `conv:CHANNELS:SIZE[:ACTIVATION]`, `pool:SIZE`,
`flatten`, `dense:WIDTH[:ACTIVATION]`, or the name of a preset. The output layer, dense with one column per class, is
always added at the end.

>>> read_stack("conv:32:5:tanh pool:2 flatten")
(Convolution(width=32, size=5, activation='tanh'), AveragePooling(size=2), Flatten())
>>> read_stack("normalize:0.5:0.25 dnn")
(Normalization(mean=(0.5,), std=(0.25,)), Flatten(), Dense(width=128, activation='relu'), Dense(width=64, ...))
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from fedgram.core.errors import FedgramError, InvalidParameter, UnknownName
from fedgram.layerwise.layers import AveragePooling, Convolution, Dense, Flatten, Layer, Normalization

PRESETS: Mapping[str, str] = MappingProxyType(
    {
        "lr": "flatten",
        "dnn": "flatten dense:128 dense:64",
        "dcnn": "conv:512:5:leaky_relu pool:2 conv:1024:3:leaky_relu pool:2 conv:2048:3:leaky_relu "
        "conv:2048:3:leaky_relu flatten",
        "small-dcnn": "conv:32:5:leaky_relu pool:2 conv:64:3:leaky_relu pool:2 conv:64:3:leaky_relu flatten",
    }
)
"""The paper's networks; for CIFAR-10 `dcnn` takes hours of two cores, `small-dcnn` minutes."""


@lru_cache(maxsize=64)
def read_stack(text: str) -> tuple[Layer, ...]:
    """Return the layers of a line of text, which may name presets."""
    return tuple(_read_layer(word) for part in text.split() for word in PRESETS.get(part, part).split())


def _read_layer(word: str) -> Layer:
    name, *arguments = word.split(":")
    if name not in _KINDS:
        raise UnknownName("layer or network", name, [*_KINDS, *PRESETS])
    read, example = _KINDS[name]
    try:
        return read(arguments)
    except FedgramError:
        raise
    except (TypeError, ValueError):
        raise InvalidParameter(f"layer {word!r}: expected {example}") from None


def _sized(kind: Callable[..., Layer]) -> Callable[[Sequence[str]], Layer]:
    """Return a reader of layers with sizes and, at the end, the name of an activation."""

    def read(arguments: Sequence[str]) -> Layer:
        *sizes, activation = [*arguments, ""] if not arguments or _is_number(arguments[-1]) else arguments
        return kind(*map(int, sizes), *filter(None, [activation]))

    return read


def _read_normalization(arguments: Sequence[str]) -> Layer:
    mean, std = ([float(number) for number in argument.split(",")] for argument in arguments)
    return Normalization(tuple(mean), tuple(std))


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


_KINDS: Mapping[str, tuple[Callable[[Sequence[str]], Layer], str]] = {
    "normalize": (_read_normalization, "MEAN:STD as in normalize:0.5:0.25 or normalize:0.49,0.48,0.45:0.25,0.24,0.26"),
    "dense": (_sized(Dense), "a whole number as in dense:128 or dense:128:tanh"),
    "conv": (_sized(Convolution), "whole numbers as in conv:32:5 or conv:32:5:leaky_relu"),
    "pool": (_sized(AveragePooling), "a whole number as in pool:2"),
    "flatten": (_sized(Flatten), "flatten alone"),
}

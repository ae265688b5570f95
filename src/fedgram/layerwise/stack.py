"""A stack of layers as one line of text, for the API, the command line and TOML files alike.

Layers stand in order with spaces between: `conv:CHANNELS:SIZE[:ACTIVATION]`, `pool:SIZE`, `flatten`,
`dense:WIDTH[:ACTIVATION]`. The output layer, dense with one column per class, is always added at the end.

>>> read_stack("conv:32:5:tanh pool:2 flatten")
(Convolution(width=32, size=5, activation='tanh'), AveragePooling(size=2), Flatten())
>>> read_stack("dnn")
(Flatten(), Dense(width=128, activation='relu'), Dense(width=64, activation='relu'))
"""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from fedgram.core.errors import InvalidParameter, UnknownName
from fedgram.layerwise.layers import AveragePooling, Convolution, Dense, Flatten, Layer

PRESETS: Mapping[str, str] = MappingProxyType(
    {
        "lr": "flatten",
        "dnn": "flatten dense:128 dense:64",
        "dcnn": "conv:512:5:leaky_relu pool:2 conv:1024:3:leaky_relu pool:2 conv:2048:3:leaky_relu "
        "conv:2048:3:leaky_relu flatten",
        "small-dcnn": "conv:32:5:leaky_relu pool:2 conv:64:3:leaky_relu pool:2 conv:64:3:leaky_relu flatten",
    }
)
"""The paper's networks; for CIFAR-10 `dcnn` takes half an hour of two cores and more, `small-dcnn` minutes."""

_KINDS = {
    "dense": (Dense, "dense:128 or dense:128:tanh"),
    "conv": (Convolution, "conv:32:5 or conv:32:5:leaky_relu"),
    "pool": (AveragePooling, "pool:2"),
    "flatten": (Flatten, "flatten"),
}


@lru_cache(maxsize=64)
def read_stack(text: str) -> tuple[Layer, ...]:
    """Return the layers of a preset, or of a line of text."""
    return tuple(_read_layer(word) for word in PRESETS.get(text, text).split())


def _read_layer(word: str) -> Layer:
    name, *arguments = word.split(":")
    if name not in _KINDS:
        raise UnknownName("layer or network", name, [*_KINDS, *PRESETS])
    kind, example = _KINDS[name]
    *sizes, activation = [*arguments, ""] if not arguments or _is_number(arguments[-1]) else arguments
    if not all(map(_is_number, sizes)):
        raise InvalidParameter(f"layer {word!r}: sizes are whole numbers, as in {example}")
    try:
        layer: Layer = kind(*map(int, sizes), *filter(None, [activation]))
    except TypeError:
        raise InvalidParameter(f"layer {word!r} is not of the form {example}") from None
    return layer


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()

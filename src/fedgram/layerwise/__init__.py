"""Networks that are trained layer by layer in closed form: layers as data, the trained network, its export."""

from fedgram.layerwise.layer_types import (
    PRESETS,
    AveragePooling,
    Convolution,
    Dense,
    Flatten,
    Layer,
    Normalization,
    read_stack,
)
from fedgram.layerwise.layered_network import LayerMoments, LayerTotal, Network, NetworkSoFar, Problem, layer_moments

__all__ = [
    "PRESETS",
    "AveragePooling",
    "Convolution",
    "Dense",
    "Flatten",
    "Layer",
    "LayerMoments",
    "LayerTotal",
    "Network",
    "NetworkSoFar",
    "Normalization",
    "Problem",
    "layer_moments",
    "read_stack",
]

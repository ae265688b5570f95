"""Networks that are trained layer by layer in closed form: layers as data, the trained network, its export."""

from fedgram.layerwise.layers import AveragePooling, Convolution, Dense, Flatten, Layer, Normalization
from fedgram.layerwise.network import Network, Problem
from fedgram.layerwise.sofar import NetworkSoFar
from fedgram.layerwise.stack import PRESETS, read_stack
from fedgram.layerwise.summary import LayerMoments, LayerTotal, layer_moments

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

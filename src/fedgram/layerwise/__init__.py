"""Networks that are trained layer by layer in closed form: layers as data, the trained network, its export."""

from fedgram.layerwise.layers import AveragePooling, Convolution, Dense, Flatten, Layer
from fedgram.layerwise.network import Network
from fedgram.layerwise.sofar import NetworkSoFar
from fedgram.layerwise.stack import PRESETS, read_stack
from fedgram.layerwise.summary import layer_moments

__all__ = [
    "PRESETS",
    "AveragePooling",
    "Convolution",
    "Dense",
    "Flatten",
    "Layer",
    "Network",
    "NetworkSoFar",
    "layer_moments",
    "read_stack",
]

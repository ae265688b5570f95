"""Frozen backbones, the cache of their features, and random projections.

A backbone is anything that maps a batch of samples to features (n, d). `backbone("lite0:96")` gives a named
one, `TorchBackbone` wraps a module of your own, and `extract` runs any of them over a data set once and keeps
the result.
"""

from fedgram.features.backbones.backbone import Backbone
from fedgram.features.backbones.named_backbones import backbone
from fedgram.features.backbones.torchmodel import TorchBackbone
from fedgram.features.extraction import extract, featurize, load_features, load_samples
from fedgram.features.projection import ACTIVATIONS, RandomFeatures

__all__ = [
    "ACTIVATIONS",
    "Backbone",
    "RandomFeatures",
    "TorchBackbone",
    "backbone",
    "extract",
    "featurize",
    "load_features",
    "load_samples",
]

"""A data set seen through a backbone."""

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from fedgram.core.errors import InvalidParameter
from fedgram.data import load_dataset
from fedgram.data.dataset import Dataset
from fedgram.features.backbones.base import Backbone, Features
from fedgram.features.backbones.specs import backbone as backbone_of
from fedgram.features.backbones.specs import without_folders
from fedgram.features.extract import extract

PIXELS, IMAGES = "pixels", "images"


def load_features(
    name: str | Dataset,
    *,
    backbone: str | Backbone | None = None,
    samples: int | None = None,
    own_test: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> Dataset:
    """Return a data set by name or path (or one that is there already) as features, ready to be spread.

    With `own_test` the data set keeps its own test set apart (and must have one); otherwise that is pooled with
    the rest, for clients to hold back their own. `samples` takes so many of them. Other options are those of
    `load_dataset`.
    """
    data = _load(name, samples, own_test, options)
    # Features of whole data sets are extracted before pooling, so that both ways of testing share them.
    data = featurize(data, backbone, progress=progress)
    return data if own_test else data.pooled()


def load_samples(name: str | Dataset, *, samples: int | None = None, own_test: bool = False, **options: Any) -> Dataset:
    """Return a data set as `load_features` does, with its samples as they are: for what comes before a backbone."""
    data = _load(name, samples, own_test, options)
    return data if own_test else data.pooled()


def featurize(data: Dataset, backbone: str | Backbone | None, *, progress: bool | None = None) -> Dataset:
    """Return the data set with features in place of its samples, extracted once and kept on disk.

    None takes samples that are features already. "images" takes images as they are, (n, height, width,
    channels) scaled to [0, 1], for networks that learn from them; "pixels" lays each out as a row.

    >>> from fedgram.data import digits
    >>> featurize(digits(), None).x.shape
    (1797, 64)
    """
    if backbone is None:
        if _are_features(data.x):
            return data
        wrong = f"holds {_kind(data.x)}, not features: choose a backbone, {_advice(data.x)}"
        raise InvalidParameter(f"{data.name} {wrong}").telling(f"the data set {wrong}")
    if _are_features(data.x):
        wrong = "holds features already: leave the backbone out"
        raise InvalidParameter(f"{data.name} {wrong}").telling(f"the data set {wrong}")
    if backbone in (PIXELS, IMAGES):
        if _kind(data.x) != "images":
            wrong = f"holds {_kind(data.x)}, which have no pixels: {_advice(data.x)}"
            raise InvalidParameter(f"{data.name} {wrong}").telling(f"the data set {wrong}")
        scaled = _scaled if backbone == IMAGES else _pixels
        x, x_test = (None if samples is None else scaled(samples) for samples in (data.x, data.x_test))
        return replace(data, x=x, x_test=x_test, features=str(backbone))
    if isinstance(backbone, str):
        model, name = backbone_of(backbone), without_folders(backbone)
    else:
        model, name = backbone, backbone.name
    x = extract(data.x, model, data_fingerprint=data.fingerprint, progress=progress)
    x_test = None
    if data.x_test is not None:
        x_test = extract(data.x_test, model, data_fingerprint=f"{data.fingerprint}/test", progress=progress)
    return replace(data, x=x, x_test=x_test, features=f"{name}@{model.fingerprint}")


def _load(name: str | Dataset, samples: int | None, own_test: bool, options: dict[str, Any]) -> Dataset:
    data = name if isinstance(name, Dataset) else load_dataset(name, **options)
    if own_test and data.x_test is None:
        raise InvalidParameter(f"data set {data.name!r} has no test set of its own: let clients hold back (test local)")
    if samples is not None:
        data = data.sample(samples, pool=not own_test)
    return data


def _are_features(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.ndim == 2 and x.dtype.kind in "fiub"


def _kind(x: Any) -> str:
    return "texts" if getattr(x, "dtype", None) is not None and x.dtype.kind in "OU" else "images"


def _advice(x: Any) -> str:
    return "minilm" if _kind(x) == "texts" else "such as lite0:96, images or pixels"


def _pixels(x: Any) -> Features:
    images = _scaled(x)
    return images.reshape(len(images), prod(images.shape[1:]))


def _scaled(x: Any) -> Features:
    images = np.asarray(x[:]).astype(np.float32)
    images /= 255
    return images if images.ndim == 4 else images[..., None]

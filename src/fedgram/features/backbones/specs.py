"""Backbones by name, as the command line and experiment files write them."""

import re
from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

from fedgram.core.errors import InvalidParameter, UnknownName
from fedgram.features.backbones.base import Backbone
from fedgram.features.backbones.hub import hub
from fedgram.features.backbones.lite import LITE_SIZES, lite
from fedgram.features.backbones.onnxmodel import onnx_file
from fedgram.features.backbones.text import MiniLM
from fedgram.features.prepare import check_size

# What comes with fedgram or its extras; all else is somebody's file or address.
CATALOGUE = frozenset([*LITE_SIZES, "minilm", "pixels", "images"])
KNOWN = (*LITE_SIZES, "minilm", "pixels", "images", "hub:NAME", "FILE.onnx")
_TAIL = re.compile(r"(?P<name>.+?)(:(?P<size>\d+))?(:(?P<layers>-?\w+(,-?\w+)*))?")


def backbone(spec: str, **options: Any) -> Backbone:
    """Return the backbone of a spec, `name[:size][:layers]`.

    - `lite0`, `lite1`, `lite2`: EfficientNet-Lite, ImageNet weights. `lite0:96`; `lite0:96:4,7,10,14,last`.
    - `FILE.onnx`: any ONNX file. `models/mine.onnx:128`.
    - `hub:NAME`: a model of the hub, or a folder. `hub:facebook/vit-mae-base`; `hub:microsoft/resnet-18:128`.
    - `minilm`: sentence embeddings of texts.

    Options are those of `lite`, `onnx_file`, `hub` and `MiniLM`: `size`, `layers`, `mean`, `std`, `batch`, ….

    >>> backbone("lit0:96")
    Traceback (most recent call last):
    fedgram.core.errors.UnknownName: unknown backbone 'lit0': did you mean 'lite0'? known: FILE.onnx, ...
    """
    of_hub = spec.startswith("hub:")
    found = _TAIL.fullmatch(spec.removeprefix("hub:"))
    if not found:
        raise UnknownName("backbone", spec, KNOWN)
    name = found["name"]
    if found["size"] is not None:
        options.setdefault("size", check_size(int(found["size"])))
    if found["layers"]:
        options.setdefault("layers", _layers(spec, found["layers"]))
    make: Callable[..., Backbone]
    if of_hub:
        make = partial(hub, name)
    elif name in LITE_SIZES:
        make = partial(lite, name)
    elif name == "minilm":
        make = MiniLM
    elif Path(name).suffix == ".onnx":
        make = partial(onnx_file, name)
    else:
        raise UnknownName("backbone", name, KNOWN)
    try:
        signature(make).bind(**options)
    except TypeError as error:
        raise InvalidParameter(f"backbone {spec!r}: {error}") from None
    return make(**options)


def in_catalogue(spec: str) -> bool:
    """Say whether a backbone comes with fedgram: only such may be loaded because a file or a run names it.

    >>> in_catalogue("lite0:96"), in_catalogue("hub:somebody/model"), in_catalogue("model.onnx")
    (True, False, False)
    """
    return spec.partition(":")[0] in CATALOGUE


def without_folders(spec: str) -> str:
    """Return a spec as it may be told to others: a file or folder by its name alone.

    >>> without_folders("/models/mine.onnx:128"), without_folders("hub:microsoft/resnet-18")
    ('mine.onnx:128', 'hub:microsoft/resnet-18')
    """
    of_hub, found = spec.startswith("hub:"), _TAIL.fullmatch(spec.removeprefix("hub:"))
    if found is None or not (Path(found["name"]).suffix == ".onnx" or (of_hub and Path(found["name"]).is_dir())):
        return spec
    return ("hub:" if of_hub else "") + Path(found["name"]).name + spec.removeprefix("hub:")[found.end("name") :]


def _layers(spec: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(-1 if layer == "last" else int(layer) for layer in text.split(","))
    except ValueError:
        raise InvalidParameter(
            f"{spec!r}: layers are numbers or 'last' with commas, as in lite0:96:4,7,10,14,last; got {text!r}"
        ) from None

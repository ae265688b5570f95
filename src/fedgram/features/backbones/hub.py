"""Image models of the model hub, by name or from a folder in its layout (`save_pretrained`)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgram.core.cache import offline
from fedgram.core.errors import CannotLoad, InvalidParameter
from fedgram.core.extras import require
from fedgram.core.hashing import hash_parts
from fedgram.features.backbones.base import opened
from fedgram.features.backbones.onnxmodel import OnnxBackbone
from fedgram.features.backbones.torchmodel import TorchBackbone, frozen
from fedgram.features.prepare import IMAGENET_MEAN, IMAGENET_STD, Preparation

if TYPE_CHECKING:
    import torch

_RECIPE = 1  # raise when the same options give other features
_POOLS = ("auto", "class", "mean")


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

    `pool` says what becomes of a transformer's tokens: "class" takes the class token, "mean" averages the
    patches, "auto" is "class" where there is a class token, but "mean" for ViT-MAE, which was trained to
    describe patches. Maps of convolutions are averaged. `layers` are numbers of layers (or stages), from 0,
    and -1 for the last features. Size and normalisation are the model's own where not given.
    """
    if pool not in _POOLS:
        raise InvalidParameter(f"pool {pool!r} is unknown: give one of {', '.join(_POOLS)}")
    folder = Path(name) if Path(name).is_dir() else _download(name)
    files = _weights(folder)
    if not files or not (folder / "config.json").is_file():
        raise CannotLoad(f"cannot load {name!r}: the folder has no config.json with *.safetensors or *.bin beside it")
    config, processor = (_read(folder / file) for file in ("config.json", "preprocessor_config.json"))
    prepare = Preparation(
        size if size is not None else _size(processor.get("size")) or _size(config.get("image_size")) or 224,
        mean or tuple(processor.get("image_mean", IMAGENET_MEAN)),
        std or tuple(processor.get("image_std", IMAGENET_STD)),
    )
    chosen = tuple(layers or (-1,))

    def build() -> "torch.nn.Module":
        from fedgram.features.backbones.networks import HubFeatures

        return HubFeatures(folder, prepare.size, chosen, pool)

    fingerprint = hash_parts("hub", _RECIPE, sorted(config.items()), *files, chosen, pool, prepare)
    label = Path(name).name
    return frozen(label, fingerprint, build, prepare, batch=batch, device=device, cache=cache)


def _download(name: str) -> Path:
    """Return the folder of a model in the hub's own cache; ask the hub only for what is not there."""
    library = require("huggingface_hub", "hub", f"the model {name}")
    wanted, where = ["*.json", "*.safetensors"], "it can also be a folder in the hub's layout"

    def from_hub() -> Path:
        try:
            folder = Path(library.snapshot_download(name, allow_patterns=wanted, local_files_only=True))
            if _weights(folder):
                return folder
        except library.errors.LocalEntryNotFoundError:
            pass
        if said := offline("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            raise CannotLoad(f"cannot load {name!r}: it is not in the hub's cache, and {said} is set ({where})")
        folder = Path(library.snapshot_download(name, allow_patterns=wanted))
        return folder if _weights(folder) else Path(library.snapshot_download(name, allow_patterns=["*.json", "*.bin"]))

    return opened(f"{name!r} from the model hub ({where})", from_hub, (OSError, ValueError))


def _weights(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = opened(path.name, lambda: json.loads(path.read_text(encoding="utf-8")), (ValueError,))
    return dict(content)


def _size(value: Any) -> int | None:
    """Return the input size from the forms in which the hub's files write it."""
    if isinstance(value, dict):
        value = value.get("height") or value.get("shortest_edge")
    if isinstance(value, list):
        value = value[0]
    return value if isinstance(value, int) else None

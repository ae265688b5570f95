"""Backbones that are torch modules: run as they are, or exported once to ONNX, which is faster on a processor.

After the export torch is not needed, nor even imported.
"""

import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgram.core.cache import cache_folder, cache_lock, writing_cache
from fedgram.core.errors import CannotExport, CannotLoad
from fedgram.core.extras import require
from fedgram.core.hashing import hash_bytes, hash_parts
from fedgram.core.progress_bars import spinner
from fedgram.core.threads import torch_threads
from fedgram.features.backbones.backbone import Features
from fedgram.features.backbones.onnxmodel import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    LocalSession,
    OnnxBackbone,
    OnnxModel,
    Preparation,
    as_images,
)
from fedgram.features.onnxfile import Checked, Input, export

if TYPE_CHECKING:
    import torch

_FILE = "model.onnx"
_VERSION = 2  # raise when exported files of older versions must not be used


class TorchBackbone:
    """Any torch module that maps (n, 3, size, size) to features, maps or tokens; the last two are averaged.

    In place of the module, a function may be given that makes it on first use. The fingerprint, if not given,
    covers the module's parameters, buffers and printed form, not the source of its `forward`. `device` is a
    torch device, or "auto": a GPU where there is one.
    """

    def __init__(
        self,
        module: "torch.nn.Module | Callable[[], torch.nn.Module]",
        *,
        size: int = 224,
        mean: tuple[float, ...] = IMAGENET_MEAN,
        std: tuple[float, ...] = IMAGENET_STD,
        name: str | None = None,
        fingerprint: str | None = None,
        batch: int = 64,
        device: str = "auto",
    ) -> None:
        self._source = module
        self._given_fingerprint = fingerprint
        self._device = device
        self.name = name or type(module).__name__.lower()
        self.prepare = Preparation(size, mean, std)
        self.batch = batch

    @cached_property
    def fingerprint(self) -> str:
        """Digest of weights and options."""
        if self._given_fingerprint:
            return self._given_fingerprint
        state = sorted(self.module.state_dict().items())
        weights = (hash_parts(key, str(t.dtype), tuple(t.shape), t.cpu().numpy().tobytes()) for key, t in state)
        return hash_parts("torch", repr(self.module), *weights, self.prepare)

    @cached_property
    def dim(self) -> int:
        """The number of features of an image."""
        return int(self(np.zeros((1, self.prepare.size, self.prepare.size), dtype=np.uint8)).shape[1])

    @cached_property
    def device(self) -> str:
        """The device that the module runs on."""
        return ("cuda" if has_gpu() else "cpu") if self._device == "auto" else self._device

    @cached_property
    def module(self) -> "torch.nn.Module":
        """The module, on its device, with an output of one row per image."""
        torch = require("torch", "vision", "a torch backbone")
        from fedgram.features.backbones.networks import Pooled

        module = self._source if isinstance(self._source, torch.nn.Module) else self._source()
        return Pooled(module).eval().to(self.device)

    def __call__(self, batch: Any) -> Features:
        """Return the features (n, dim) of images (n, h, w[, 3]) uint8."""
        torch = require("torch", "vision", "a torch backbone")
        with torch.inference_mode(), torch_threads(math.inf):
            return np.asarray(self.module(self._prepared(batch)).float().cpu().numpy())

    def _prepared(self, batch: Any) -> "torch.Tensor":
        import torch

        if not isinstance(batch, np.ndarray) or batch.dtype == object:
            return torch.cat([self._prepared(np.asarray(image)[None]) for image in batch])
        pixels = torch.tensor(as_images(batch, self.prepare.channels), device=self.device)
        planes = pixels.permute(0, 3, 1, 2).float() / 255
        size = (self.prepare.size, self.prepare.size)
        resized = torch.nn.functional.interpolate(planes, size, mode="bilinear", antialias=True)
        mean, std = (torch.tensor(v, device=self.device).view(-1, 1, 1) for v in (self.prepare.mean, self.prepare.std))
        return (resized - mean) / std


def has_gpu() -> bool:
    """Return whether torch can use an NVIDIA GPU; without the driver's own tool torch is not even imported."""
    return shutil.which("nvidia-smi") is not None and bool(require("torch", "vision", "a GPU").cuda.is_available())


def frozen(
    name: str,
    fingerprint: str,
    build: "Callable[[], torch.nn.Module]",
    prepare: Preparation,
    *,
    batch: int,
    device: str,
    cache: Path | str | None,
) -> OnnxBackbone | TorchBackbone:
    """Return the backbone that `build` makes: in ONNX Runtime on a processor, in torch on a GPU.

    `device` is "auto", "onnx", or a torch device ("cpu", "cuda", "mps").
    """
    if device == "onnx" or (device == "auto" and not has_gpu()):
        image = Input((2, prepare.channels, prepare.size, prepare.size), "float32", ("n", None, None, None))

        def open_model() -> OnnxModel:
            return OnnxModel(name, LocalSession(exported(name, fingerprint, build, [image], cache)))

        return OnnxBackbone(name, fingerprint, open_model, prepare, batch)
    return TorchBackbone(
        build,
        size=prepare.size,
        mean=prepare.mean,
        std=prepare.std,
        name=name,
        fingerprint=fingerprint,
        batch=batch,
        device=device,
    )


def exported(
    name: str,
    fingerprint: str,
    build: "Callable[[], torch.nn.Module]",
    inputs: Sequence[Input],
    cache: Path | str | None,
) -> Checked:
    """Return the ONNX model of the module that `build` makes, from the cache if it has a whole one.

    The file and its digest appear together, by renaming a folder; other processes that need the same model wait.
    """
    models = cache_folder(cache, "models")
    folder = models / f"{name}-{hash_parts(_VERSION, fingerprint)[:24]}"
    if model := _whole(folder, name):
        return model
    require("torch", "vision", f"exporting {name}")
    require("onnxscript", "vision", f"exporting {name}")
    with cache_lock(folder.with_suffix(".lock"), f"the export of {name}"):
        if model := _whole(folder, name):
            return model
        with spinner(f"exporting {name} to ONNX (once, some seconds)"):
            module = build().eval()
            with writing_cache(folder), tempfile.TemporaryDirectory(dir=models, prefix=".new-") as scratch:
                fresh, old = Path(scratch) / "fresh", Path(scratch) / "old"
                fresh.mkdir()
                try:
                    export(name, module, inputs, fresh / _FILE)
                except CannotExport as error:
                    raise CannotLoad(f"{error}: run it in torch with device='cpu'") from error
                made = (fresh / _FILE).read_bytes()
                (fresh / "digest").write_text(hash_bytes([made]), encoding="ascii")
                if folder.exists():
                    folder.rename(old)  # damaged; goes with the scratch folder
                fresh.replace(folder)
    return Checked(name, hash_bytes([made]), made)


def _whole(folder: Path, name: str) -> Checked | None:
    try:
        content = (folder / _FILE).read_bytes()
        digest = hash_bytes([content])
        return Checked(name, digest, content) if (folder / "digest").read_text(encoding="ascii") == digest else None
    except (OSError, UnicodeDecodeError):
        return None

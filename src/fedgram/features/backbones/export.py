"""A torch module becomes an ONNX file once; after that torch is not needed, nor even imported."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedgram.core.cache import cache_folder, locked, writing
from fedgram.core.progress import spinner
from fedgram.features.backbones.base import CannotLoad, digest, require
from fedgram.features.onnxfile import CannotExport, Input, export

if TYPE_CHECKING:
    import torch

_VERSION = 1  # raise when exported files of older versions must not be used


def exported(
    name: str,
    fingerprint: str,
    build: "Callable[[], torch.nn.Module]",
    inputs: Sequence[Input],
    cache: Path | str | None,
) -> Path:
    """Return the ONNX file of the module that `build` makes, from the cache if it is there and whole.

    The file and its digest appear together, by renaming a folder; processes that want the same one wait.
    """
    models = cache_folder(cache, "models")
    folder = models / f"{name}-{digest(_VERSION, fingerprint)[:24]}"
    if _whole(folder):
        return folder / "model.onnx"
    require("torch", "vision", f"exporting {name}")
    require("onnxscript", "vision", f"exporting {name}")
    with locked(folder.with_suffix(".lock"), f"the export of {name}"):
        if not _whole(folder):
            with spinner(f"exporting {name} to ONNX (once, some seconds)"):
                module = build().eval()
                with writing(folder), tempfile.TemporaryDirectory(dir=models, prefix=".new-") as scratch:
                    fresh, old = Path(scratch) / "fresh", Path(scratch) / "old"
                    fresh.mkdir()
                    try:
                        export(name, module, inputs, fresh / "model.onnx")
                    except CannotExport as error:
                        raise CannotLoad(f"{error}: run it in torch with device='cpu'") from error
                    (fresh / "digest").write_text(digest(*_files(fresh)), encoding="ascii")
                    if folder.exists():
                        folder.rename(old)  # damaged; goes with the scratch folder
                    fresh.replace(folder)
    return folder / "model.onnx"


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("model.onnx*"))


def _whole(folder: Path) -> bool:
    try:
        return (folder / "digest").read_text(encoding="ascii") == digest(*_files(folder))
    except (OSError, UnicodeDecodeError):
        return False

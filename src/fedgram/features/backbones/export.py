"""A torch module becomes an ONNX file once; after that torch is not needed, nor even imported."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedgram.core.cache import cache_folder, cache_lock, writing_cache
from fedgram.core.errors import CannotExport, CannotLoad
from fedgram.core.extras import require
from fedgram.core.hashing import hash_parts
from fedgram.core.progress import spinner
from fedgram.features.onnxfile import Input, export

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
    folder = models / f"{name}-{hash_parts(_VERSION, fingerprint)[:24]}"
    if _whole(folder):
        return folder / "model.onnx"
    require("torch", "vision", f"exporting {name}")
    require("onnxscript", "vision", f"exporting {name}")
    with cache_lock(folder.with_suffix(".lock"), f"the export of {name}"):
        if not _whole(folder):
            with spinner(f"exporting {name} to ONNX (once, some seconds)"):
                module = build().eval()
                with writing_cache(folder), tempfile.TemporaryDirectory(dir=models, prefix=".new-") as scratch:
                    fresh, old = Path(scratch) / "fresh", Path(scratch) / "old"
                    fresh.mkdir()
                    try:
                        export(name, module, inputs, fresh / "model.onnx")
                    except CannotExport as error:
                        raise CannotLoad(f"{error}: run it in torch with device='cpu'") from error
                    (fresh / "digest").write_text(hash_parts(*_files(fresh)), encoding="ascii")
                    if folder.exists():
                        folder.rename(old)  # damaged; goes with the scratch folder
                    fresh.replace(folder)
    return folder / "model.onnx"


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("model.onnx*"))


def _whole(folder: Path) -> bool:
    try:
        return (folder / "digest").read_text(encoding="ascii") == hash_parts(*_files(folder))
    except (OSError, UnicodeDecodeError):
        return False

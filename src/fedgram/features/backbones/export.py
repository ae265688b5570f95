"""A torch module becomes an ONNX file once; after that torch is not needed, nor even imported."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedgram.core.cache import cache_folder, cache_lock, writing_cache
from fedgram.core.errors import CannotExport, CannotLoad
from fedgram.core.extras import require
from fedgram.core.hashing import hash_bytes, hash_parts
from fedgram.core.progress import spinner
from fedgram.features.onnxfile import Checked, Input, export

if TYPE_CHECKING:
    import torch

_FILE = "model.onnx"
_VERSION = 2  # raise when exported files of older versions must not be used


def exported(
    name: str,
    fingerprint: str,
    build: "Callable[[], torch.nn.Module]",
    inputs: Sequence[Input],
    cache: Path | str | None,
) -> Checked:
    """Return the ONNX model of the module that `build` makes, from the cache if it is there and whole.

    The file and its digest appear together, by renaming a folder; processes that want the same one wait.
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

"""A torch module becomes an ONNX file once; after that torch is not needed, nor even imported."""

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedgram.core.cache import cache_folder, cache_lock, writing_cache
from fedgram.core.errors import CannotLoad
from fedgram.core.extras import require
from fedgram.core.hashing import hash_parts
from fedgram.core.progress import spinner

if TYPE_CHECKING:
    import torch

_VERSION = 1  # raise when exported files of older versions must not be used
_ONE_FILE = 1_800_000_000  # bytes of weights; an ONNX file beyond 2 GB keeps them in a second file


class Input(NamedTuple):
    """An input of a module: an example's shape and type, and which axes may have another length."""

    shape: tuple[int, ...]
    dtype: str
    free: tuple[str | None, ...]


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
                    _export(name, module, inputs, fresh / "model.onnx")
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


def _export(name: str, module: "torch.nn.Module", inputs: Sequence[Input], path: Path) -> None:
    import torch

    examples = tuple(torch.zeros(i.shape, dtype=getattr(torch, i.dtype)) for i in inputs)
    free = tuple({axis: label for axis, label in enumerate(i.free) if label} for i in inputs)
    weights = sum(tensor.nbytes for tensor in module.state_dict().values())
    with _quiet(), torch.inference_mode(False), torch.no_grad():
        try:
            torch.onnx.export(
                module,
                examples,
                str(path),
                dynamo=True,
                dynamic_shapes=free,
                external_data=weights > _ONE_FILE,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            reason = str(error).strip().splitlines()[0]
            raise CannotLoad(f"cannot export {name} to ONNX ({reason}): run it in torch with device='cpu'") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's notes on packages it could use, and on its own deprecated calls, from the user."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)

"""A torch module as an ONNX file."""

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedgram.core.errors import CannotExport
from fedgram.core.extras import require
from fedgram.core.files import replace_file, writing

if TYPE_CHECKING:
    import torch

_ONE_FILE = 1_800_000_000  # bytes of weights; an ONNX file beyond 2 GB keeps them in a second file


class Input(NamedTuple):
    """An input of a module: an example's shape and type, and which axes may have another length."""

    shape: tuple[int, ...]
    dtype: str
    free: tuple[str | None, ...]


def write_onnx(module: "torch.nn.Module", shape: tuple[int, ...], path: str | os.PathLike[str]) -> None:
    """Write a classifier as one ONNX file, whole or not at all: input "samples" (n, *shape), output "scores"."""
    require("onnxscript", "vision", "a network as an ONNX file")
    samples, target = Input((2, *shape), "float32", ("n", *(None for _ in shape))), Path(path)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "model.onnx"
        export(
            "the network",
            module,
            [samples],
            file,
            input_names=["samples"],
            output_names=["scores"],
            external_data=False,
        )
        with writing(target):
            replace_file(target, file.read_bytes())


def export(name: str, module: "torch.nn.Module", inputs: Sequence[Input], path: Path, **options: Any) -> None:
    """Write a module as an ONNX file, with a second one beside it if it is too large for one."""
    import torch

    examples = tuple(torch.zeros(i.shape, dtype=getattr(torch, i.dtype)) for i in inputs)
    free = tuple({axis: label for axis, label in enumerate(i.free) if label} for i in inputs)
    weights = sum(tensor.nbytes for tensor in module.state_dict().values())
    usual = {"dynamo": True, "dynamic_shapes": free, "external_data": weights > _ONE_FILE, "verbose": False}
    with _quiet(), torch.inference_mode(False), torch.no_grad():
        try:
            torch.onnx.export(module, examples, str(path), **usual | options)
        except torch.onnx.OnnxExporterError as error:
            reason = str(error).strip().splitlines()[0]
            raise CannotExport(f"cannot export {name} to ONNX ({reason})") from error


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

"""ONNX files: a torch module as one, and one from elsewhere as bytes that nothing outside of them is part of."""

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedgram.core.errors import CannotExport, CannotLoad
from fedgram.core.extras import require
from fedgram.core.files import read_regular, replace_file, writing
from fedgram.core.hashing import hash_bytes

if TYPE_CHECKING:
    import torch

_ONE_FILE = 1_800_000_000  # bytes of weights; beyond 2 GB they would be in a second file
_MOST_BYTES = (1 << 31) - 1  # of an ONNX file, by its format
_DOMAINS = {"", "ai.onnx", "ai.onnx.ml", "com.microsoft"}  # of operators that come with ONNX Runtime
# Of these, operators whose work is done by a program or a library that the file brings along or names.
_PROGRAMS = {"EPContext", "Snpe", "PythonOp", "PythonOpGrad", "ATen", "ATenGrad", "TritonOp"}


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
        )
        with writing(target):
            replace_file(target, file.read_bytes())


@dataclass(frozen=True)
class Checked:
    """An ONNX model that needs nothing besides its bytes, with the digest of the file that it was read from."""

    name: str
    digest: str
    content: bytes


def read_onnx(path: Path) -> Checked:
    """Return the model of an ONNX file; refuse one that reads other files.

    ONNX Runtime takes the values of a tensor from any file beside the model if the model says so: from a private key or
    a table, whose bytes would then be features. So all tensors are looked at, those inside of operators and functions,
    too, and what is returned is written anew from what was looked at.
    """
    require("onnx", "vision", "reading an ONNX file")
    import onnx
    from google.protobuf.message import DecodeError

    try:
        raw = read_regular(path, most=_MOST_BYTES)
        model = onnx.ModelProto.FromString(raw)
        if not model.HasField("graph"):
            raise DecodeError("it has no graph")
    except OSError as error:
        raise CannotLoad(f"cannot load the model {path.name}: {error.strerror or error}") from error
    except DecodeError as error:
        raise CannotLoad(
            f"cannot load the model {path.name} (if the file is damaged, get it anew): expected an ONNX model ({error})"
        ) from error
    size = model.ByteSize()
    model.DiscardUnknownFields()
    if model.ByteSize() != size:
        raise _refused(path, "fields that this version of onnx does not know", "update onnx, or export it again")
    own = {(function.domain, function.name) for function in model.functions}
    for found in _messages(model):
        if isinstance(found, onnx.TensorProto) and (found.external_data or found.data_location):
            raise _refused(
                path,
                f"the values of tensor {found.name!r} in another file",
                "save it with all weights inside: onnx.save(onnx.load(path), path, save_as_external_data=False)",
            )
        if isinstance(found, onnx.NodeProto) and (found.domain, found.op_type) not in own:
            foreign = found.domain == "com.microsoft" and found.op_type in _PROGRAMS
            if foreign or found.domain not in _DOMAINS:
                what = f"the operator {found.op_type!r} of {found.domain!r}, which a library outside of the file has"
                raise _refused(path, what, "export it with the operators of the ONNX standard")
    del model.metadata_props[:]  # ONNX Runtime can be told to take its settings from these
    return Checked(path.name, hash_bytes([raw]), model.SerializeToString())


def _messages(message: Any) -> Iterator[Any]:
    """Yield a message of protobuf, and all in it."""
    from google.protobuf.message import Message

    left = [message]
    while left:
        yield (found := left.pop())
        for field, value in found.ListFields():
            if field.message_type is not None:
                left.extend([value] if isinstance(value, Message) else value)


def _refused(path: Path, what: str, remedy: str) -> CannotLoad:
    return CannotLoad(f"the model {path.name}: expected a file that is complete in itself, got {what}; {remedy}")


def export(name: str, module: "torch.nn.Module", inputs: Sequence[Input], path: Path, **options: Any) -> None:
    """Write a module as one ONNX file; refuse one that is too large for one."""
    import torch

    examples = tuple(torch.zeros(i.shape, dtype=getattr(torch, i.dtype)) for i in inputs)
    free = tuple({axis: label for axis, label in enumerate(i.free) if label} for i in inputs)
    weights = sum(tensor.nbytes for tensor in module.state_dict().values())
    if weights > _ONE_FILE:
        raise CannotExport(f"cannot export {name} to ONNX: {weights:,} bytes of weights are more than a file can have")
    usual: dict[str, Any] = {"dynamo": True, "dynamic_shapes": free, "external_data": False, "verbose": False}
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

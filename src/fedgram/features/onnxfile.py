"""ONNX files: export of torch modules, and import of files from elsewhere, which are checked."""

import logging
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedgram.core.errors import CannotExport, CannotLoad
from fedgram.core.extras import require
from fedgram.core.filesystem import read_regular, replace_file, writing
from fedgram.core.hashing import hash_bytes

if TYPE_CHECKING:
    import torch

_ONE_FILE = 1_800_000_000  # bytes of weights; beyond 2 GB they would be in a second file
_MOST_BYTES = (1 << 31) - 1  # of an ONNX file, by its format
_DOMAINS = {"", "ai.onnx", "ai.onnx.ml", "com.microsoft"}  # of operators that come with ONNX Runtime
# Of these, operators whose work is done by a program or a library that the file brings along or names.
_PROGRAMS = {"EPContext", "Snpe", "PythonOp", "PythonOpGrad", "ATen", "ATenGrad", "TritonOp"}
# Operators that draw random numbers: ONNX Runtime goes on with them from one call to the next.
_RANDOM = {
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"),
    *("BiasDropout", "BitmaskDropout", "BitmaskBiasDropout", "Sampling"),
}
_TRAINING = 2  # the place of `training_mode` among Dropout's inputs
MOST_PARTS = 1_000_000  # fields of a file: a network of 10,000 layers has some 300,000
MOST_NODES = 50_000  # operators, each function counted as often as it is called


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
    a table, whose bytes would then be features. So all tensors are checked, also those inside of operators and
    functions, and the result is written anew from the checked content.
    """
    require("onnx", "vision", "reading an ONNX file")
    import onnx
    from google.protobuf.message import DecodeError

    try:
        raw = read_regular(path, most=_MOST_BYTES)
        if _parts(raw, onnx.ModelProto.DESCRIPTOR) > MOST_PARTS:
            raise _refused(path, f"of at most {MOST_PARTS:,} parts", "more", "use a smaller model")
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
        fields = "fields that this version of onnx does not know"
        raise _refused(path, _COMPLETE, fields, "update onnx, or export it again")
    functions = _functions(path, model)
    for found in _messages(model):
        if isinstance(found, onnx.TensorProto) and (found.external_data or found.data_location):
            remedy = "save it with all weights inside: onnx.save(onnx.load(path), path, save_as_external_data=False)"
            raise _refused(path, _COMPLETE, f"the values of tensor {found.name!r} in another file", remedy)
        if isinstance(found, onnx.NodeProto) and _called(found) not in functions:
            _check_operator(path, found)
    if _nodes(path, model, functions) > MOST_NODES:
        raise _refused(path, f"of at most {MOST_NODES:,} operators, those of functions at each call", "more", _SMALLER)
    del model.metadata_props[:]  # ONNX Runtime can be told to take its settings from these
    return Checked(path.name, hash_bytes([raw]), model.SerializeToString())


_COMPLETE, _SMALLER = "that is complete in itself", "use a smaller model"


def _refused(path: Path, expected: str, what: str, remedy: str) -> CannotLoad:
    return CannotLoad(f"the model {path.name}: expected a file {expected}, got {what}; {remedy}")


def _check_operator(path: Path, node: Any) -> None:
    """Raise unless an operator comes with ONNX Runtime, and does the same work at each call."""
    name = f"the operator {node.op_type!r}"
    if node.domain not in _DOMAINS or (node.domain == "com.microsoft" and node.op_type in _PROGRAMS):
        what = f"{name} of {node.domain!r}, which a library outside of the file has"
        raise _refused(path, _COMPLETE, what, "export it with the operators of the ONNX standard")
    same, inference = "whose features are the same each time", "export it for inference, not training"
    if node.op_type in _RANDOM or (node.op_type == "Dropout" and any(node.input[_TRAINING:])):
        raise _refused(path, same, f"{name}, which draws random numbers", inference)
    # In training ONNX Runtime adds what it sees to the running mean, for all images to come.
    learning = any(node.output[1:]) or any(
        a.name == "training_mode" and (a.i or a.ref_attr_name) for a in node.attribute
    )
    if node.op_type == "BatchNormalization" and learning:
        raise _refused(path, same, f"{name} in training, which keeps what it sees", inference)
    if node.op_type != "If" and any(a.HasField("g") or a.graphs for a in node.attribute):
        raise _refused(path, "without loops", f"{name}, which repeats a part of the model", "export it without")


_Function = tuple[str, str, str]  # domain, name, overload


def _called(node: Any) -> _Function:
    return node.domain, node.op_type, node.overload


def _functions(path: Path, model: Any) -> dict[_Function, Any]:
    """Return the functions of a model; refuse those that could be taken for others, or for operators."""
    functions: dict[_Function, Any] = {}
    for function in model.functions:
        key = (function.domain, function.name, function.overload)
        if function.domain in _DOMAINS or key in functions:
            what = f"the function {function.name!r} of {function.domain!r}"
            raise _refused(path, "whose functions have names of their own", what, "export it with functions inlined")
        functions[key] = function
    return functions


def _nodes(path: Path, model: Any, functions: dict[_Function, Any]) -> int:
    """Return the number of nodes of a model with each call of a function replaced by its body, up to a limit."""
    import onnx

    calls = {
        key: Counter(_called(found) for found in _messages(body) if isinstance(found, onnx.NodeProto))
        for key, body in [*functions.items(), (None, model.graph)]
    }
    sizes: dict[_Function | None, int] = {}
    try:
        order = [key for key in TopologicalSorter(calls).static_order() if key in calls]
    except CycleError:
        what = "a function that calls itself"
        raise _refused(path, "that comes to an end", what, "export it with functions inlined") from None
    for key in order:
        size = sum(number * (1 + sizes.get(called, 0)) for called, number in calls[key].items())
        sizes[key] = min(size, MOST_NODES + 1)
    return sizes[None]


def _parts(raw: bytes, kind: Any) -> int:
    """Return the number of fields of a protobuf message and of the messages in it, up to a limit.

    It is known before the message is parsed: a part of two bytes may take hundreds in memory.
    """
    from google.protobuf.message import DecodeError

    def number(place: int) -> tuple[int, int]:
        """Return a number of 7 bits a byte, and its end."""
        value = shift = 0
        while shift < 70:
            byte = raw[place]
            place, value, shift = place + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value, place
        raise DecodeError("a number has too many bytes")

    inner: dict[str, dict[int, Any]] = {}
    count, left = 0, [(0, len(raw), kind)]
    try:
        while left and count <= MOST_PARTS:
            place, end, kind = left.pop()
            known = inner.setdefault(kind.full_name, {f.number: f.message_type for f in kind.fields})
            while place < end and count <= MOST_PARTS:
                count += 1
                tag, place = number(place)
                wire = tag & 7
                if wire == 0:
                    _, place = number(place)
                elif wire == 2:
                    length, place = number(place)
                    below = known.get(tag >> 3)
                    if below is not None:
                        left.append((place, min(place + length, end), below))
                    place += length
                elif wire in (1, 5):
                    place += 8 if wire == 1 else 4
                else:
                    raise DecodeError("it has groups of fields")
    except IndexError:
        raise DecodeError("it ends too early") from None
    return count


def _messages(message: Any) -> Iterator[Any]:
    """Yield a message of protobuf, and all in it."""
    from google.protobuf.message import Message

    left = [message]
    while left:
        yield (found := left.pop())
        for field, value in found.ListFields():
            if field.message_type is not None:
                left.extend([value] if isinstance(value, Message) else value)


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

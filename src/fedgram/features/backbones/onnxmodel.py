"""Backbones that run in ONNX Runtime: any ONNX file, and the torch models that were exported to one.

Images are prepared (resized, scaled, shifted) by a small ONNX graph, because ONNX Runtime resizes several times faster
than a loop over images does. Bilinear with anti-aliasing: the same as Pillow's BILINEAR and as torch's
`interpolate(antialias=True)`.

A model from elsewhere runs in a process of its own, with bounds on its time and memory: an operator cannot be
interrupted, and a fault of ONNX Runtime ends the process that it happens in. The child is ended if it takes too long.
It gets one image at a time and sends back one row of features, so that no image's features can depend on another image,
nor on its place in the batch. Both write to each other one line of JSON, then bytes of which the line tells the number.
"""

import json
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from math import prod
from pathlib import Path
from threading import Lock, Timer
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import CannotLoad, FedgramError, InvalidData, InvalidParameter, UnknownName
from fedgram.core.extras import require
from fedgram.core.hashing import hash_parts
from fedgram.core.threads import Limit, onnx_options
from fedgram.features.backbones.backbone import MOST_FEATURES, Features, opened, pooled
from fedgram.features.onnxfile import Checked, read_onnx

OPENING = 120.0  # seconds that opening a model may take
IMAGE = 60.0  # seconds that an image may take
MOST_PIXELS = 1 << 24  # of images that are prepared at a time: 64 of 512 × 512, a single one of 4096 × 4096
MEMORY = 2 << 30  # bytes that a model may take besides its weights
_TIMES_FILE = 6  # bytes of memory for each byte of the file: it is sent, parsed, copied and laid out anew
_LONGEST_LINE = 1 << 20
_CHILD = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {0} import serve; serve()"

Inputs = Sequence[tuple[str, str, Sequence[Any]]]


class ProcessSession:
    """An ONNX model that is open in a process of its own; another process starts where that has ended.

    `inputs` are names, types and shapes, `outputs` names.
    """

    def __init__(self, model: Checked) -> None:
        self._model, self._lock = model, Lock()
        self._child: _Child | None = None
        with self._lock:
            self.inputs, self.outputs = self._opened()

    def run(self, output: str, source: str, images: Features) -> Features:
        """Return the features (n, d) of an output for prepared images (n, …)."""
        rows: list[Features] = []
        for image in images:
            with self._lock:
                rows.append(self._row(output, source, image[None]))
            if rows[-1].shape != rows[0].shape:
                raise CannotLoad(
                    f"output {output!r} of {self._model.name}: expected as many features for each image, got "
                    f"{rows[0].shape[1]:,} and {rows[-1].shape[1]:,}; name another output"
                )
        return np.concatenate(rows)

    def _row(self, output: str, source: str, image: Features) -> Features:
        if self._child is None or self._child.owner != os.getpid():  # after a fork, the child is the parent's
            self._opened()
        child = self._child
        assert child is not None
        with self._guarded(f"an image of shape {image.shape[1:]}", IMAGE):
            child.send({"output": output, "source": source, "shape": image.shape}, image.tobytes())
            found = child.receive()
            if not 0 < (width := int(found["width"])) <= MOST_FEATURES:
                raise ValueError
            return np.frombuffer(child.read(4 * width), dtype=np.float32).reshape(1, width)

    def _opened(self) -> tuple[Inputs, list[str]]:
        self._child = child = _Child()
        with self._guarded("its opening", OPENING):
            content = self._model.content
            most = MEMORY + _TIMES_FILE * len(content)
            about = {"name": self._model.name, "digest": self._model.digest, "size": len(content)}
            child.send(about | {"threads": Limit.now(), "memory": most}, content)
            found = child.receive()
            return found["inputs"], found["outputs"]

    @contextmanager
    def _guarded(self, what: str, seconds: float) -> Iterator[None]:
        """Bound the time of an exchange with the child, and end the child unless the exchange went well."""
        child = self._child
        assert child is not None
        late: list[bool] = []

        def end() -> None:
            late.append(True)
            child.kill()

        timer = Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        except _Refused as refused:  # by the child, which goes on
            raise CannotLoad(str(refused)) from None
        except BaseException as error:
            self._child = None
            status, said = child.end()
            if late:
                raise CannotLoad(
                    f"the model {self._model.name}: expected at most {seconds:g} seconds for {what}, got more; use a "
                    "smaller model"
                ) from None
            if said:
                raise CannotLoad(
                    f"the model {self._model.name}: its process could not begin ({said}); try again, and look at the "
                    "installation if it happens again"
                ) from None
            if isinstance(error, OSError | EOFError | ValueError | KeyError | TypeError):
                raise CannotLoad(
                    f"the model {self._model.name}: expected an answer for {what}, got the end of its process "
                    f"({_of_status(status)}); a model may take {MEMORY >> 30} GB besides its weights"
                ) from None
            raise
        finally:
            timer.cancel()


class _Refused(Exception):
    """An error that the child tells."""


class _Child:
    """The parent's end of a child process."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        path = [os.path.abspath(place) for place in sys.path]
        # Threads of BLAS and pools of malloc count as memory, and are not needed.
        few = {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD.format(__name__), json.dumps(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,  # until it has begun: see `serve`
            cwd=tempfile.gettempdir(),  # not the folder of a table
            env=os.environ | few,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._to, self._from, self._said = self._process.stdin, self._process.stdout, self._process.stderr
        self._finalizer = weakref.finalize(self, _end, self._process, self.owner)

    def send(self, line: dict[str, Any], content: bytes) -> None:
        _send(self._to, line, content)

    def receive(self) -> dict[str, Any]:
        line = _receive(self._from)
        if "refused" in line:
            raise _Refused(line["refused"])
        return line

    def read(self, size: int) -> bytes:
        return _read(self._from, size)

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> tuple[int | None, str]:
        """End the process, and return its status, as far as it had ended by itself, and why it could not begin."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)  # it may be about to end
        status = self._process.poll()
        said = self._said.read(_LONGEST_LINE).decode(errors="replace").strip() if status else ""
        self._finalizer()
        return status, said.splitlines()[-1][:200] if "Traceback" in said else ""


def _end(process: "subprocess.Popen[bytes]", owner: int) -> None:
    for stream in (process.stdin, process.stdout, process.stderr):
        with suppress(OSError):  # closing may fail to send the last bytes
            if stream is not None:
                stream.close()
    if os.getpid() == owner:
        process.kill()
        process.wait()
    else:
        process.returncode = 0  # of a process that is not this one's child


def _of_status(status: int | None) -> str:
    if status is None:
        return "it sent an invalid answer"
    return f"signal {-status}" if status < 0 else f"status {status}"


def _send(stream: BinaryIO | Any, line: dict[str, Any], content: bytes = b"") -> None:
    stream.write(json.dumps(line).encode() + b"\n")
    stream.write(content)
    stream.flush()


def _receive(stream: BinaryIO | Any) -> dict[str, Any]:
    line = stream.readline(_LONGEST_LINE)
    if not line.endswith(b"\n"):
        raise EOFError
    found: dict[str, Any] = json.loads(line)
    return found


def _read(stream: BinaryIO | Any, size: int) -> bytes:
    content: bytes = stream.read(size)
    if len(content) != size:
        raise EOFError
    return content


def serve() -> None:
    """Answer the parent until it closes its end: the child's side."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)  # libraries may write what they like
    os.dup2(nothing, 2)
    about = _receive(source)
    content = _read(source, about["size"])
    _bound(about["memory"])
    try:
        session = LocalSession(Checked(about["name"], about["digest"], content), about["threads"])
    except FedgramError as error:
        return _send(target, {"refused": str(error)})
    del content
    _send(target, {"inputs": session.inputs, "outputs": session.outputs})
    while True:
        try:
            asked = _receive(source)
        except EOFError:
            return None
        shape = asked["shape"]
        image = np.frombuffer(_read(source, 4 * prod(shape)), dtype=np.float32).reshape(shape)
        try:
            row = session.run(asked["output"], asked["source"], image)
        except FedgramError as error:
            _send(target, {"refused": str(error)})
        else:
            _send(target, {"width": row.shape[1]}, row.tobytes())


def _bound(most: int) -> None:
    """Limit this process to `most` more bytes of memory; without effect on systems that have no such limit."""
    try:
        resource = import_module("resource")
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + most,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):
        pass


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)


@dataclass(frozen=True)
class Preparation:
    """Resize to `size` × `size`, then `(pixel / 255 - mean) / std` per channel (three, or one for grey)."""

    size: int
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __post_init__(self) -> None:
        check_size(self.size)
        if len(self.mean) not in (1, 3) or len(self.mean) != len(self.std):
            raise InvalidParameter(f"mean {self.mean} and std {self.std} must both have one value per channel (1 or 3)")
        if min(self.std) <= 0:
            raise InvalidParameter(f"std {self.std} must be positive")

    @property
    def channels(self) -> int:
        """3 for colour, 1 for grey."""
        return len(self.mean)

    def __call__(self, batch: Any) -> Features:
        """Return (n, channels, size, size) float32. Images of unequal sizes: a list or an object array."""
        if isinstance(batch, np.ndarray) and batch.dtype != object:
            (out,) = self._session.run(None, {"images": as_images(batch, self.channels)})
            return np.asarray(out, dtype=np.float32)
        return np.concatenate([self(np.asarray(image)[None]) for image in batch])

    @cached_property
    def _session(self) -> Any:
        ort = require("onnxruntime", "vision", "preparing images")
        return ort.InferenceSession(self.graph(), onnx_options(ort), providers=["CPUExecutionProvider"])

    def graph(self) -> bytes:
        """Return the ONNX model of the preparation: "images" (n, h, w, channels) uint8 to "prepared"."""
        onnx = require("onnx", "vision", "preparing images")
        node, kind = onnx.helper.make_node, onnx.TensorProto
        mean, std = (np.array(v, dtype=np.float32).reshape(-1, 1, 1) for v in (self.mean, self.std))
        constants = {"sizes": np.array([self.size] * 2), "factor": 1 / (255 * std), "shift": -mean / std}
        # exclude_outside: weights beyond the border are left out, as Pillow does; without it borders differ.
        resize = {"mode": "linear", "antialias": 1, "exclude_outside": 1, "axes": [2, 3]}
        graph = onnx.helper.make_graph(
            [
                node("Cast", ["images"], ["pixels"], to=kind.FLOAT),
                node("Transpose", ["pixels"], ["planes"], perm=[0, 3, 1, 2]),
                node("Resize", ["planes", "", "", "sizes"], ["resized"], **resize),
                node("Mul", ["resized", "factor"], ["scaled"]),
                node("Add", ["scaled", "shift"], ["prepared"]),
            ],
            "prepare",
            [onnx.helper.make_tensor_value_info("images", kind.UINT8, ["n", "h", "w", self.channels])],
            [onnx.helper.make_tensor_value_info("prepared", kind.FLOAT, ["n", self.channels, self.size, self.size])],
            [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
        )
        opset = onnx.helper.make_opsetid("", 18)  # the first with anti-aliasing
        model: bytes = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9).SerializeToString()
        return model


def check_size(size: int) -> int:
    """Return the size of a model's input; raise for sizes that image models do not have."""
    if not 8 <= size <= 4096:
        raise InvalidParameter(f"input size {size} is out of range: give 8 … 4096 pixels, such as 96 or 224")
    return size


def as_images(batch: npt.NDArray[Any], channels: int) -> npt.NDArray[np.uint8]:
    """Return uint8 (n, h, w, channels) of (n, h, w) or (n, h, w, 1 or 3); grey and colour are converted.

    >>> as_images(np.zeros((2, 8, 8), dtype=np.uint8), channels=3).shape
    (2, 8, 8, 3)
    """
    if batch.dtype != np.uint8 or batch.ndim not in (3, 4) or (batch.ndim == 4 and batch.shape[3] not in (1, 3)):
        raise InvalidData(
            f"images must be uint8 of shape (n, h, w) or (n, h, w, 3), got {batch.dtype} {batch.shape}: "
            "convert them to 0 … 255 first (features need no backbone)"
        )
    if 0 in batch.shape[1:]:
        raise InvalidData(f"images without pixels: shape {batch.shape}")
    images = batch[..., None] if batch.ndim == 3 else batch
    if images.shape[3] == channels:
        return images
    if channels == 3:
        return np.repeat(images, 3, axis=3)
    return np.rint(images @ _LUMA).astype(np.uint8)[..., None]


class OnnxBackbone:
    """An image model in ONNX Runtime on the processor. The model is opened on first use."""

    def __init__(
        self, name: str, fingerprint: str, open_model: Callable[[], "OnnxModel"], prepare: Preparation, batch: int = 64
    ) -> None:
        self.name, self.fingerprint, self.prepare, self.batch = name, fingerprint, prepare, batch
        self._open_model = open_model

    @cached_property
    def _model(self) -> "OnnxModel":
        return self._open_model()

    @cached_property
    def dim(self) -> int:
        """The number of features of an image."""
        blank = np.zeros((1, self.prepare.size, self.prepare.size, self.prepare.channels), dtype=np.uint8)
        return int(self(blank).shape[1])

    def __call__(self, batch: Any) -> Features:
        """Return the features (n, dim) of images (n, h, w[, 3]) uint8."""
        few = max(1, MOST_PIXELS // self.prepare.size**2)
        return np.concatenate(
            [self._model(self.prepare(batch[k : k + few])) for k in range(0, max(len(batch), 1), few)]
        )


class LocalSession:
    """An ONNX model that is open in this process."""

    def __init__(self, model: Checked, threads: int | None = None) -> None:
        self._name, self._session = model.name, open_session(model, threads)
        self.inputs: Inputs
        self.outputs: list[str]
        self.inputs, self.outputs = opened(  # names may be damaged, too
            f"the model {model.name}",
            lambda: (
                [(i.name, i.type, i.shape) for i in self._session.get_inputs()],
                [o.name for o in self._session.get_outputs()],
            ),
            errors_of_runtime(),
        )

    def run(self, output: str, source: str, images: Features) -> Features:
        """Return the features (n, d) of an output."""
        what = f"the model {self._name} for images of shape {images.shape[1:]}"
        (out,) = opened(what, lambda: self._session.run([output], {source: images}), errors_of_runtime())
        if not isinstance(out, np.ndarray) or out.dtype.kind not in "fiub" or out.shape[:1] != images.shape[:1]:
            raise CannotLoad(f"output {output!r} of {self._name} is not one row of numbers for each image")
        if out.size == 0 or (width := out.shape[1] if out.ndim in (2, 4) else out.shape[-1]) > MOST_FEATURES:
            got = "none" if out.size == 0 else f"{width:,}"
            raise CannotLoad(
                f"output {output!r} of {self._name}: expected 1 to {MOST_FEATURES:,} features, got {got}; "
                "name another output"
            )
        with np.errstate(all="ignore"):  # what is not finite is refused by name where features are kept
            return np.asarray(pooled(out), dtype=np.float32)


class OnnxModel:
    """An open ONNX model with one image input."""

    def __init__(self, name: str, session: LocalSession | ProcessSession, output: str | None = None) -> None:
        self.name = name
        inputs, outputs = session.inputs, session.outputs
        if len(inputs) != 1 or not outputs:
            names = ", ".join(source for source, _, _ in inputs)
            raise CannotLoad(
                f"{name} has {len(inputs)} inputs ({names}) and {len(outputs)} outputs: "
                "an image model takes one and gives at least one"
            )
        [(source, kind, shape)] = inputs
        if kind != "tensor(float)" or len(shape) != 4:
            raise CannotLoad(f"{name} takes {kind} {shape}: an image model takes 4 axes of tensor(float)")
        if isinstance(shape[0], int) and shape[0] != 1:
            raise CannotLoad(
                f"the model {name}: expected images one by one, got an input of {shape[0]}; "
                "export it with a free first axis"
            )
        if output is not None and output not in outputs:
            raise UnknownName("output", output, outputs)
        self._session, self._input, self._output = session, source, output or outputs[0]
        self._channels_last = shape[1] not in (1, 3) and shape[3] in (1, 3)
        self.channels = 1 if shape[3 if self._channels_last else 1] == 1 else 3
        height = shape[1 if self._channels_last else 2]
        self.size = height if isinstance(height, int) else None

    def __call__(self, images: Features) -> Features:
        """Return the features (n, d) of prepared images (n, channels, size, size)."""
        source = np.ascontiguousarray(images.transpose(0, 2, 3, 1)) if self._channels_last else images
        return self._session.run(self._output, self._input, source)


def onnx_file(
    path: Path | str,
    *,
    size: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    output: str | None = None,
    batch: int = 64,
) -> OnnxBackbone:
    """Return any ONNX file that takes images as a backbone.

    The input may be (n, c, h, w) or (n, h, w, c) float; `output` names the output to use, else it is the
    first, and maps or tokens are averaged. Where the file fixes the input size, that is the size; else 224.

    An ONNX file is a program: use one only from a source that you trust. A file that reads other files is refused,
    and it runs in a process of its own, one image at a time, with bounds on time and memory.
    """
    path = Path(path)
    if not path.exists():
        raise CannotLoad(f"cannot load {str(path)!r}: there is no such file")
    checked = read_onnx(path)
    model = OnnxModel(checked.name, ProcessSession(checked), output)
    if size is not None and model.size not in (None, size):
        raise InvalidParameter(f"{path.name} takes images of {model.size} pixels only: leave out the size {size}")
    prepare = Preparation(
        size if size is not None else model.size or 224,
        mean or IMAGENET_MEAN[: model.channels],
        std or IMAGENET_STD[: model.channels],
    )
    return OnnxBackbone(path.name, hash_parts("onnx", checked.digest, prepare, output), lambda: model, prepare, batch)


def open_session(model: Checked, threads: int | None = None) -> Any:
    """Open an ONNX model for the processor, from bytes: without a path, the session cannot read other files."""
    ort = require("onnxruntime", "vision", "running a backbone")
    options = onnx_options(ort)
    if threads is not None:
        options.intra_op_num_threads = threads
    options.log_severity_level = 4  # no messages on the terminal: errors come as exceptions
    options.add_session_config_entry("session.load_model_format", "ONNX")  # otherwise it also accepts its own format
    return opened(
        f"the model {model.name} (if the file is damaged, get it anew)",
        # Without a fallback it raises at once; with one it prints and tries the same again.
        lambda: ort.InferenceSession(model.content, options, providers=["CPUExecutionProvider"], enable_fallback=0),
        errors_of_runtime(),
    )


def errors_of_runtime() -> tuple[type[Exception], ...]:
    """Return the types of errors that ONNX Runtime raises, which share no base class."""
    ort = require("onnxruntime", "vision", "running a backbone")
    kinds = vars(ort.capi.onnxruntime_pybind11_state).values()
    own = (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Exception))
    return (RuntimeError, ValueError, MemoryError, *own)

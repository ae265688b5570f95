"""Backbones that run in ONNX Runtime: any ONNX file, and the torch models that were exported to one."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.core.errors import CannotLoad, InvalidParameter, UnknownName
from fedgram.core.extras import require
from fedgram.core.hashing import hash_parts
from fedgram.core.threads import onnx_options
from fedgram.features.backbones.base import Features, opened, pooled
from fedgram.features.onnxfile import Checked, read_onnx
from fedgram.features.prepare import IMAGENET_MEAN, IMAGENET_STD, Preparation


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
        """How many features an image gets."""
        blank = np.zeros((1, self.prepare.size, self.prepare.size, self.prepare.channels), dtype=np.uint8)
        return int(self(blank).shape[1])

    def __call__(self, batch: Any) -> Features:
        """Return the features (n, dim) of images (n, h, w[, 3]) uint8."""
        return self._model(self.prepare(batch))


class OnnxModel:
    """An open ONNX model with one image input."""

    def __init__(self, model: Checked, output: str | None = None) -> None:
        self.name = model.name
        session = open_session(model)
        inputs, outputs = opened(  # names may be damaged, too
            f"the model {model.name}",
            lambda: (
                [(i.name, i.type, i.shape) for i in session.get_inputs()],
                [o.name for o in session.get_outputs()],
            ),
            errors_of_runtime(),
        )
        if len(inputs) != 1 or not outputs:
            names = ", ".join(name for name, _, _ in inputs)
            raise CannotLoad(
                f"{model.name} has {len(inputs)} inputs ({names}) and {len(outputs)} outputs: "
                "an image model takes one and gives at least one"
            )
        [(source, kind, shape)] = inputs
        if kind != "tensor(float)" or len(shape) != 4:
            raise CannotLoad(f"{model.name} takes {kind} {shape}: an image model takes 4 axes of tensor(float)")
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
        what = f"the model {self.name} for images of shape {source.shape[1:]}"
        (out,) = opened(what, lambda: self._session.run([self._output], {self._input: source}), errors_of_runtime())
        if not isinstance(out, np.ndarray) or out.dtype.kind not in "fiub" or out.shape[:1] != source.shape[:1]:
            raise CannotLoad(f"output {self._output!r} of {self.name} is not one row of numbers for each image")
        return np.asarray(pooled(out), dtype=np.float32)


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

    An ONNX file is a program: use one only from a source that you trust. A file that reads other files is refused;
    how much time and memory it takes is not bounded.
    """
    path = Path(path)
    if not path.exists():
        raise CannotLoad(f"cannot load {str(path)!r}: there is no such file")
    checked = read_onnx(path)
    model = OnnxModel(checked, output)
    if size is not None and model.size not in (None, size):
        raise InvalidParameter(f"{path.name} takes images of {model.size} pixels only: leave out the size {size}")
    prepare = Preparation(
        size if size is not None else model.size or 224,
        mean or IMAGENET_MEAN[: model.channels],
        std or IMAGENET_STD[: model.channels],
    )
    return OnnxBackbone(path.name, hash_parts("onnx", checked.digest, prepare, output), lambda: model, prepare, batch)


def open_session(model: Checked) -> Any:
    """Open an ONNX model for the processor, from bytes: a session that knows no folder reads nothing from one."""
    ort = require("onnxruntime", "vision", "running a backbone")
    options = onnx_options(ort)
    options.log_severity_level = 4  # what matters comes as an exception
    options.add_session_config_entry("session.load_model_format", "ONNX")  # else bytes may be of its own format, too
    return opened(
        f"the model {model.name} (if the file is damaged, get it anew)",
        # Without a fallback it raises at once; with one it prints and tries the same again.
        lambda: ort.InferenceSession(model.content, options, providers=["CPUExecutionProvider"], enable_fallback=0),
        errors_of_runtime(),
    )


def errors_of_runtime() -> tuple[type[Exception], ...]:
    """Return what ONNX Runtime raises; its errors have no base of their own."""
    ort = require("onnxruntime", "vision", "running a backbone")
    kinds = vars(ort.capi.onnxruntime_pybind11_state).values()
    own = (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Exception))
    return (RuntimeError, ValueError, MemoryError, *own)

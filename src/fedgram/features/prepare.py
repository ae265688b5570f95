"""From pixels to what an image model takes: resize, scale, shift.

The work is a small ONNX graph, because ONNX Runtime resizes several times faster than a loop over images
does. Bilinear with anti-aliasing: the same as Pillow's BILINEAR and as torch's
`interpolate(antialias=True)`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import InvalidData, InvalidParameter
from fedgram.core.extras import require
from fedgram.core.threads import onnx_options
from fedgram.features.backbones.base import Features

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
        """Return the ONNX model that does it: "images" (n, h, w, channels) uint8 to "prepared"."""
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
    """Return the size of a model's input; refuse one that no image model has."""
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

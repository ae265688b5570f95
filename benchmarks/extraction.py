"""Extraction against a bare ONNX Runtime loop, and its memory against the number of images.

Both sides read the same PNG-coded photographs, decode, resize to 96 px and run the same EfficientNet-Lite0,
batch by batch; ours also checks, checksums and writes the features to disk. The bare loops hold them in
memory. One loop resizes with Pillow, as most code does; the other, the stricter comparison, has the resizing
merged into the model's graph.
"""

import io
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from PIL import Image
from sklearn.datasets import load_sample_images

from benchmarks.measure import Results
from fedgram.features import backbone, extract
from fedgram.features.backbones.onnxmodel import OnnxBackbone

IMAGES, BATCH, ROUNDS = 768, 64, 5


class Photographs:
    """`n` PNG-coded pieces of two photographs, 48 × 48, decoded when a slice is asked for."""

    def __init__(self, n: int) -> None:
        photographs, rng = load_sample_images().images, np.random.default_rng(0)
        self._n, self._coded = n, []
        for _ in range(IMAGES):
            y, x = rng.integers(0, 379), rng.integers(0, 592)
            coded = io.BytesIO()
            Image.fromarray(photographs[rng.integers(0, 2)][y : y + 48, x : x + 48]).save(coded, "png")
            self._coded.append(coded.getvalue())

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, part: slice) -> np.ndarray[Any, np.dtype[np.uint8]]:
        chosen = (self._coded[i % IMAGES] for i in range(*part.indices(self._n)))
        return np.stack([np.asarray(Image.open(io.BytesIO(coded))) for coded in chosen])


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        net = backbone("lite0:96", device="onnx")
        assert isinstance(net, OnnxBackbone)
        results = Results(f"Extraction, EfficientNet-Lite0 at 96 px, {IMAGES} images, batches of {BATCH}")
        for name, seconds in _times(net, Path(cache)).items():
            results.note(f"images a second, {name}", f"{IMAGES / seconds['loop']:.0f}")
            results.at_most(f"ours / {name}", seconds["ratio"], 1.15)
        if sys.platform == "linux":
            few, many = _peak(2000), _peak(8000)
            results.note("peak memory in MB at 2,000 and 8,000 images", f"{few:.0f}, {many:.0f}")
            results.at_most("memory at 8,000 / at 2,000 images", many / few, 1.1)
        results.show()


def _times(net: OnnxBackbone, cache: Path) -> dict[str, dict[str, float]]:
    """Median over rounds in which every loop runs once, so that a busy machine slows all alike."""
    data, loops = Photographs(IMAGES), _bare_loops(net)
    loops["fedgram"] = lambda data: extract(data, net, data_fingerprint=str(time.time_ns()), cache=cache)
    taken: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(ROUNDS + 1):
        for name, loop in loops.items():
            started = time.perf_counter()
            loop(data)
            taken[name].append(time.perf_counter() - started)
    ours = np.array(taken["fedgram"][1:])  # the first round warms up
    return {
        name: {"loop": min(times[1:]), "ratio": float(np.median(ours / np.array(times[1:])))}
        for name, times in taken.items()
        if name != "fedgram"
    }


def _bare_loops(net: OnnxBackbone) -> dict[str, Callable[[Photographs], Any]]:
    prepare, path = net.prepare, net._model.path
    model = onnx.load(path)
    head = onnx.load_from_string(prepare.graph())
    head.opset_import[0].version, head.ir_version = model.opset_import[0].version, model.ir_version
    merged = onnx.compose.merge_models(head, model, [("prepared", model.graph.input[0].name)])
    providers = ["CPUExecutionProvider"]
    mean, std = (np.array(v, dtype=np.float32) * 255 for v in (prepare.mean, prepare.std))

    def resized(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        size = (prepare.size, prepare.size)
        pixels = np.stack([np.asarray(Image.fromarray(i).resize(size, Image.Resampling.BILINEAR)) for i in images])
        return np.ascontiguousarray(((pixels - mean) / std).transpose(0, 3, 1, 2))

    def loop(source: bytes, ready: Callable[[Any], Any]) -> Callable[[Photographs], Any]:
        session = ort.InferenceSession(source, providers=providers)
        name = session.get_inputs()[0].name
        return lambda data: np.concatenate(
            [session.run(None, {name: ready(data[i : i + BATCH])})[0] for i in range(0, len(data), BATCH)]
        )

    return {
        "bare, Pillow resize": loop(path.read_bytes(), resized),
        "bare, resize in graph": loop(merged.SerializeToString(), lambda images: images),
    }


def _peak(n: int) -> float:
    """Megabytes that a fresh process needs at most to extract n images."""
    run = [sys.executable, "-m", "benchmarks.extraction", str(n)]
    return float(subprocess.run(run, check=True, capture_output=True, text=True).stdout)


def _extract_and_tell(n: int) -> None:
    with tempfile.TemporaryDirectory() as cache:
        extract(Photographs(n), backbone("lite0:96", device="onnx"), data_fingerprint="bench", cache=cache)
    # Linux's getrusage would count the parent's memory too.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    print(int(status.split("VmHWM:")[1].split()[0]) / 1e3)


if __name__ == "__main__":
    _extract_and_tell(int(sys.argv[1])) if len(sys.argv) > 1 else main()

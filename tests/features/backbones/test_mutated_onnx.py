"""Thousands of damaged and forged ONNX files: refused by name, or run within bounds to features of each image alone."""

import numpy as np
import pytest

from fedgram.core.errors import FedgramError
from fedgram.features import backbone
from fedgram.features.backbones import onnxmodel
from fedgram.features.onnxfile import read_onnx
from support import campaign
from support.mutations import damaged

onnx = pytest.importorskip("onnx")
helper, node, Kind = onnx.helper, onnx.helper.make_node, onnx.TensorProto
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
RUNS = campaign.size(3)  # each in a process of its own
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def original():
    """Return a small network with a convolution, a function and a branch."""
    rng = np.random.default_rng(0)
    branch = helper.make_graph(
        [node("Identity", ["maps"], ["z"])], "branch", [], [helper.make_tensor_value_info("z", Kind.FLOAT, None)]
    )
    own = helper.make_function(
        "own", "f", ["a"], ["c"], [node("Sigmoid", ["a"], ["b"]), node("Neg", ["b"], ["c"])], OPSETS
    )
    nodes = [
        node("Conv", ["x", "w", "b"], ["first"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("f", ["first"], ["maps"], domain="own"),
        node("If", ["on"], ["chosen"], then_branch=branch, else_branch=branch),
        node("ReduceMean", ["chosen"], ["means"], axes=[2, 3], keepdims=0),
        node("MatMul", ["means", "m"], ["y"]),
    ]
    shapes = {"w": (4, 3, 3, 3), "b": (4,), "m": (4, 5)}
    values = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()} | {
        "on": np.array(True)
    }
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", Kind.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", Kind.FLOAT, ["n", 5])],
        [onnx.numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=10, functions=[own])


def messages(message):
    """Yield a message and all in it, with the list that holds it, if one does."""
    left = [(message, None)]
    while left:
        found, holder = left.pop()
        yield found, holder
        for field, value in found.ListFields():
            if field.message_type is not None:
                left.extend([(one, value) for one in value] if hasattr(value, "add") else [(value, None)])


NUMBERS = (0, 1, -1, 7, 2**31 - 1, -(2**31), 2**62)
TEXTS = ("", "x", "y", "maps", "own", "com.microsoft", "Relu", "Loop", "Reshape", "\x1b[2J\n", "é" * 300)


def forged(original, rng):
    """Return a model with one to three odd fields, parts left out, and parts twice."""
    made = onnx.ModelProto.FromString(original.SerializeToString())
    for _ in range(rng.integers(1, 4)):
        all_ = list(messages(made))
        found, holder = all_[rng.integers(len(all_))]
        if holder is not None and rng.random() < 0.3:
            holder.remove(found) if rng.random() < 0.5 else holder.append(found)
            continue
        fields = [field for field in found.DESCRIPTOR.fields if field.message_type is None]
        if not fields:
            continue
        field = fields[rng.integers(len(fields))]
        texts = [text if field.type == field.TYPE_STRING else text.encode() for text in TEXTS]
        values = texts if field.cpp_type == field.CPPTYPE_STRING else NUMBERS
        value = values[rng.integers(len(values))]
        try:
            if hasattr(getattr(found, field.name), "extend"):
                getattr(found, field.name).append(value)
            else:
                setattr(found, field.name, value)
        except (TypeError, ValueError):  # a number that this field cannot have
            found.ClearField(field.name)
    return made.SerializeToString()


def read(path, data):
    """Return whether a file is taken to be run."""
    path.write_bytes(data)
    try:
        read_onnx(path)
    except FedgramError as error:
        assert "small.onnx" in str(error)
        assert len(str(error)) < 1000
        return False
    return True


@pytest.mark.campaign
@pytest.mark.parametrize(
    "change", [lambda model, rng: damaged(model.SerializeToString(), rng), forged], ids=["damaged", "forged"]
)
def test_models_are_refused_or_run(original, tmp_path, monkeypatch, change):
    monkeypatch.setattr(onnxmodel, "IMAGE", 20.0)
    path, rng, left = tmp_path / "small.onnx", np.random.default_rng(29), RUNS
    assert read(path, original.SerializeToString())
    for _ in range(max(100, campaign.size(100))):  # of a few none may be readable
        if not read(path, change(original, rng)) or not left:
            continue
        left -= 1
        try:
            net = backbone(str(path), size=8)
            both, alone = net(IMAGES), np.concatenate([net(IMAGES[k : k + 1]) for k in (2, 1, 0)])
        except FedgramError as error:
            assert "\n" not in str(error)
        else:
            np.testing.assert_array_equal(both, alone[::-1])
    assert not left

"""ONNX files of strangers: programs that cannot read other files."""

import os

import numpy as np
import pytest
from typer.testing import CliRunner

from fedgram.cli import app
from fedgram.core.errors import CannotLoad
from fedgram.features import backbone
from fedgram.features.backbones import onnxmodel
from fedgram.features.onnxfile import read_onnx

onnx = pytest.importorskip("onnx")
Image = pytest.importorskip("PIL.Image")
helper, node, Kind = onnx.helper, onnx.helper.make_node, onnx.TensorProto

KEY = b"-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2Vw\n"
IMAGES = np.zeros((2, 8, 8, 3), dtype=np.uint8)
STUDY = """\
[study]
name = "scans"
outcome = "diagnosis"
classes = ["ill", "well"]
minimum_samples = 0
minimum_cell = 0
[columns.scan]
kind = "image"
backbone = "encoder.onnx:8"
digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
features = {features}
"""


def elsewhere(name="secret"):
    """Return a tensor of bytes whose values are those of the key's file."""
    tensor = Kind(name=name, data_type=Kind.UINT8, dims=[len(KEY)], data_location=Kind.EXTERNAL)
    for key, value in (("location", "north.key"), ("offset", "0"), ("length", str(len(KEY)))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def constant(tensor):
    return node("Constant", [], ["secret"], value=tensor)


def graph(nodes, initializers=(), name="leak"):
    """Return a graph that adds the bytes of `secret` to the mean of an image, which is black."""
    rest = [
        node("Cast", ["secret"], ["numbers"], to=Kind.FLOAT),
        node("ReduceMean", ["x"], ["means"], axes=[1, 2, 3], keepdims=0),
        node("Unsqueeze", ["means", "one"], ["column"]),
        node("Add", ["column", "numbers"], ["y"]),
    ]
    return helper.make_graph(
        [*nodes, *rest],
        name,
        [helper.make_tensor_value_info("x", Kind.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", Kind.FLOAT, ["n", len(KEY)])],
        [onnx.numpy_helper.from_array(np.array([1]), "one"), *initializers],
    )


def model(*args, **more):
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph(*args), opset_imports=opsets, ir_version=9, **more)


def branches(tensor):
    """Return a node with the tensor inside an If."""
    value = helper.make_tensor_value_info("inner", Kind.UINT8, [len(KEY)])
    inner = [helper.make_graph([], "branch", [], [value], [tensor]) for _ in range(2)]
    on = onnx.numpy_helper.from_array(np.array(True), "on")
    always = node("Constant", [], ["on"], value=on)
    return [always, node("If", ["on"], ["secret"], then_branch=inner[0], else_branch=inner[1])]


def sparse(tensor):
    places = onnx.numpy_helper.from_array(np.arange(len(KEY)), "places")
    return helper.make_sparse_tensor(tensor, places, [len(KEY)])


def with_sparse():
    made = model([])
    made.graph.sparse_initializer.append(sparse(elsewhere()))
    return made


def with_function():
    body = helper.make_function("own", "Leak", [], ["secret"], [constant(elsewhere())], [helper.make_opsetid("", 17)])
    return model([node("Leak", [], ["secret"], domain="own")], (), functions=[body])


def with_training():
    made = model([constant(inside())])
    made.training_info.add().initialization.CopyFrom(graph([], [elsewhere()]))
    return made


def unmarked():
    """Return a model whose tensor has values in another file, without declaring it."""
    tensor = elsewhere()
    tensor.ClearField("data_location")
    return model([], [tensor])


def inside():
    return onnx.numpy_helper.from_array(np.arange(len(KEY), dtype=np.uint8), "secret")


LEAKS = {
    "an initializer": lambda: model([], [elsewhere()]),
    "a constant": lambda: model([constant(elsewhere())]),
    "an If": lambda: model(branches(elsewhere("inner"))),
    "a sparse initializer": with_sparse,
    "a sparse constant": lambda: model([node("Constant", [], ["secret"], sparse_value=sparse(elsewhere()))]),
    "a list of tensors": lambda: model([constant(inside()), node("Identity", ["x"], ["z"], t=[elsewhere()])]),
    "a function": with_function,
    "training": with_training,
    "an unmarked tensor": unmarked,
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A party's folder: a key, a table, and an image. It is the current one, too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "north.key").write_bytes(KEY)
    Image.fromarray(IMAGES[0]).save("0.png")
    (tmp_path / "north.csv").write_text("scan,diagnosis\n0.png,ill\n0.png,well\n")
    (tmp_path / "study.toml").write_text(STUDY.format(features=len(KEY)))
    return tmp_path


@pytest.mark.parametrize("leak", LEAKS.values(), ids=LEAKS)
def test_values_in_another_file_are_refused_wherever_they_are(folder, leak):
    (folder / "encoder.onnx").write_bytes(leak().SerializeToString())
    with pytest.raises(CannotLoad, match="model encoder.onnx: expected a file that is complete in itself, got the val"):
        backbone("encoder.onnx:8")(IMAGES)


def test_the_same_model_with_its_values_inside_is_taken(folder):
    for made in (model([constant(inside())]), model([], [inside()]), model(branches(inside()))):
        for tensor in made.graph.node[1].attribute:  # of the If
            for value in tensor.g.initializer:
                value.name = "inner"
        (folder / "encoder.onnx").write_bytes(made.SerializeToString())
        np.testing.assert_allclose(np.ptp(backbone("encoder.onnx:8")(IMAGES)[0]), len(KEY) - 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ["study", "backbone", "encoder.onnx:8"],
        ["study", "check", "study.toml", "north.csv"],
        ["summarize", "study.toml", "north.csv", "--party", "north", "--out", "north.fgm"],
        ["run", "--method", "afl", "--data", "images", "--backbone", "encoder.onnx:8"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_no_command_reads_a_key_through_a_backbone(folder, arguments):
    for label in "ab":
        (folder / "images" / label).mkdir(parents=True)
        for k in range(10):
            Image.fromarray(IMAGES[0] + k).save(folder / "images" / label / f"{k}.png")
    (folder / "encoder.onnx").write_bytes(LEAKS["an initializer"]().SerializeToString())
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, CannotLoad)
    assert "got the values of tensor 'secret' in another file; save it with all weights inside" in str(done.exception)
    assert not (folder / "north.fgm").exists()


@pytest.mark.parametrize(
    ("operator", "domain"), [("EPContext", "com.microsoft"), ("PythonOp", "com.microsoft"), ("Leak", "ai.onnx.contrib")]
)
def test_operators_of_other_libraries_are_refused(folder, operator, domain):
    made = model([node(operator, ["x"], ["secret"], domain=domain)])
    (folder / "encoder.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(CannotLoad, match=f"got the operator '{operator}' of '{domain}', which a library"):
        backbone("encoder.onnx")


def test_what_is_run_is_what_was_looked_at(folder, monkeypatch):
    """No settings from the file, no field that was skipped, and no other format that begins like this one."""
    made = model([constant(inside())])
    made.metadata_props.add(key="ort_config", value='{"session_options": {"optimized_model_filepath": "made.onnx"}}')
    (folder / "encoder.onnx").write_bytes(made.SerializeToString())
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    assert backbone("encoder.onnx:8").dim == len(KEY)
    assert not (folder / "made.onnx").exists()
    (folder / "encoder.onnx").write_bytes(made.SerializeToString() + b"\xfa\x3f\x01a")  # field 1023
    with pytest.raises(CannotLoad, match="got fields that this version of onnx does not know; update onnx"):
        backbone("encoder.onnx:8")
    # ONNX Runtime tells its own format by these letters at the fifth byte.
    both = b"\x08\x07\x12\x06ORTMxx" + model([constant(inside())]).SerializeToString()
    (folder / "encoder.onnx").write_bytes(both)
    assert both[4:8] == b"ORTM"
    assert backbone("encoder.onnx:8").dim == len(KEY)


def test_a_process_that_cannot_begin_says_why(folder, monkeypatch):
    """As where the installation changes meanwhile: a model has nothing to do with it."""
    (folder / "encoder.onnx").write_bytes(model([constant(inside())]).SerializeToString())
    with monkeypatch.context() as changed:
        changed.setattr(onnxmodel, "_CHILD", "import json, sys; from {0} import gone")
        with pytest.raises(CannotLoad, match=r"its process could not begin .*ImportError: cannot import name 'gone'"):
            backbone("encoder.onnx:8")
        changed.setattr(onnxmodel, "_CHILD", "import os, sys; print('a note', file=sys.stderr, flush=True); os.abort()")
        with pytest.raises(CannotLoad, match="expected an answer for its opening, got the end of its process .signal"):
            backbone("encoder.onnx:8")
    assert backbone("encoder.onnx:8").dim == len(KEY)


def test_the_digest_is_of_all_that_is_read(folder):
    made = model([constant(inside())])
    (folder / "encoder.onnx").write_bytes(made.SerializeToString())
    first, before = backbone("encoder.onnx:8"), read_onnx(folder / "encoder.onnx").digest
    made.metadata_props.add(key="a", value="b")
    (folder / "encoder.onnx").write_bytes(made.SerializeToString())
    assert read_onnx(folder / "encoder.onnx").digest != before
    (folder / "encoder.onnx").write_bytes(b"")
    assert first(IMAGES).shape == (2, len(KEY)), "the file is read once"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_is_no_model(folder):
    os.mkfifo(folder / "encoder.onnx")
    with pytest.raises(CannotLoad, match="cannot load the model encoder.onnx: expected a regular file"):
        backbone("encoder.onnx")

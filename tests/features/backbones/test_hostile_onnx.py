"""Hostile ONNX files: bounded time and memory, and features that depend on their image alone."""

import gc
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from fedgram.core.errors import CannotLoad, FedgramError, InvalidData
from fedgram.features import backbone, extract
from fedgram.features.backbones import onnxmodel
from fedgram.features.onnxfile import MOST_NODES, MOST_PARTS, read_onnx

onnx = pytest.importorskip("onnx")
helper, node, Kind = onnx.helper, onnx.helper.make_node, onnx.TensorProto

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
MEANS = node("ReduceMean", ["x"], ["means"], axes=[2, 3], keepdims=0)
IMAGES = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)


def value(name, shape=None, kind=Kind.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, *, functions=(), shape=("n", 3, 8, 8), out=None, **constants):
    """Return a model from `x` to `y` of these nodes; `means` are those of an image's channels."""
    graph = helper.make_graph(
        [MEANS, *nodes],
        "hostile",
        [value("x", list(shape))],
        [out or value("y")],
        [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=10, functions=functions)


@pytest.fixture
def opened(tmp_path):
    """Return a function that writes a model and opens it as a backbone."""

    def write(made, **options):
        content = made if isinstance(made, bytes) else made.SerializeToString()
        (tmp_path / "hostile.onnx").write_bytes(content)
        return backbone(str(tmp_path / "hostile.onnx"), **options)

    return write


def function(name, nodes, domain="own", **more):
    return helper.make_function(domain, name, ["a"], ["c"], nodes, OPSETS, **more)


def doubling(depth):
    """Return functions that each call the previous function twice."""
    made = [function("f0", [node("Relu", ["a"], ["c"])])]
    for k in range(depth):
        twice = [node(f"f{k}", ["a"], ["b"], domain="own"), node(f"f{k}", ["b"], ["c"], domain="own")]
        made.append(function(f"f{k + 1}", twice))
    return made


def loop(times=2**62):
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Relu", ["a"], ["b"])],
        "body",
        [value("i", [], Kind.INT64), value("go", [], Kind.BOOL), value("a")],
        [value("on", [], Kind.BOOL), value("b")],
    )
    return model([node("Loop", ["times", "", "means"], ["y"], body=body)], times=np.array(times))


def scan():
    body = helper.make_graph(
        [node("Add", ["a", "i"], ["b"]), node("Identity", ["i"], ["o"])],
        "body",
        [value("a"), value("i")],
        [value("b"), value("o")],
    )
    return model(
        [node("Scan", ["means", "many"], ["y", "z"], body=body, num_scan_inputs=1)], many=np.ones(9, np.float32)
    )


def within_if(inner):
    branch = helper.make_graph([inner], "branch", [], [value("z")])
    return model([node("If", ["on"], ["y"], then_branch=branch, else_branch=branch)], on=np.array(True))


def call(name, domain="own"):
    return node(name, ["means"], ["y"], domain=domain)


def chain(length):
    return [node("Relu", [f"a{k}" if k else "means"], [f"a{k + 1}"]) for k in range(length)]


def learning(**options):
    """Return a model that adds to its running mean, so that an image's features depend on those before it."""
    norm = node("BatchNormalization", ["means", "w", "b", "m", "w"], ["y", "mean", "variance"], **options)
    three = np.ones(3, dtype=np.float32)
    return model([norm], w=three, b=0 * three, m=0 * three)


def learning_function():
    norm = node("BatchNormalization", ["a", "a", "a", "a", "a"], ["c"])
    norm.attribute.add(name="training_mode", ref_attr_name="training", type=onnx.AttributeProto.INT)
    return function("f", [norm], attributes=["training"])


REFUSED = {
    "a loop": (loop, r"expected a file without loops, got the operator 'Loop', which repeats"),
    "a scan": (scan, r"expected a file without loops, got the operator 'Scan'"),
    "a loop in a function": (
        lambda: model([call("f")], functions=[function("f", [loop().graph.node[1]])]),
        "got the operator 'Loop'",
    ),
    "a search": (
        lambda: model([node("BeamSearch", ["means"], ["y"], domain="com.microsoft", decoder=loop().graph)]),
        "got the operator 'BeamSearch', which repeats",
    ),
    "functions that double": (
        lambda: model([call("f60")], functions=doubling(60)),
        f"expected a file of at most {MOST_NODES:,} operators, those of functions at each call, got more",
    ),
    "a function that calls itself": (
        lambda: model([call("f")], functions=[function("f", [node("f", ["a"], ["c"], domain="own")])]),
        "expected a file that comes to an end, got a function that calls itself",
    ),
    "too many nodes": (
        lambda: model([*chain(MOST_NODES), node("Relu", [f"a{MOST_NODES}"], ["y"])]),
        "operators, those of functions",
    ),
    "a function in an operator's place": (
        lambda: model(
            [call("EPContext", "com.microsoft")],
            functions=[function("EPContext", [node("Relu", ["a"], ["c"])], "com.microsoft")],
        ),
        "whose functions have names of their own, got the function 'EPContext' of 'com.microsoft'",
    ),
    "two functions of a name": (
        lambda: model([call("f")], functions=[function("f", [node(o, ["a"], ["c"])]) for o in ("Relu", "Neg")]),
        "names of their own, got the function 'f'",
    ),
    "another overload": (
        lambda: model([call("f")], functions=[function("f", [node("Relu", ["a"], ["c"])], overload="two")]),
        "got the operator 'f' of 'own', which a library",
    ),
    "random numbers": (
        lambda: model([node("RandomNormalLike", ["means"], ["y"], seed=1.0)]),
        "whose features are the same each time, got the operator 'RandomNormalLike', which draws random numbers",
    ),
    "random numbers in a branch": (
        lambda: within_if(node("Bernoulli", ["means"], ["z"])),
        "got the operator 'Bernoulli'",
    ),
    "dropout in training": (
        lambda: model([node("Dropout", ["means", "rate", "on"], ["y"])], rate=np.float32(0.5), on=np.array(True)),
        "got the operator 'Dropout', which draws random numbers; export it for inference",
    ),
    "batch statistics": (
        lambda: learning(training_mode=1),
        "got the operator 'BatchNormalization' in training, which keeps what it sees; export it for inference",
    ),
    "batch statistics of old": (learning, "got the operator 'BatchNormalization' in training"),
    "batch statistics by a function's attribute": (
        lambda: model([call("f")], functions=[learning_function()]),
        "got the operator 'BatchNormalization' in training",
    ),
    "images two by two": (
        lambda: model([node("Relu", ["means"], ["y"])], shape=(2, 3, 8, 8)),
        "expected images one by one, got an input of 2; export it with a free first axis",
    ),
}


@pytest.mark.parametrize(("made", "why"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_bound_or_no_fixed_features_is_refused(opened, made, why):
    start = time.monotonic()
    with pytest.raises(CannotLoad, match=why):
        opened(made())
    assert time.monotonic() - start < 30


def test_functions_and_branches_of_usual_size_are_taken(opened):
    for made in (model([call("f8")], functions=doubling(8)), within_if(node("Relu", ["means"], ["z"]))):
        assert opened(made)(IMAGES).shape == (5, 3)
    without = model([node("Dropout", ["means"], ["y"])])
    assert opened(without)(IMAGES).shape == (5, 3)


def test_parts_are_counted_before_any_is_made(opened, tmp_path):
    """Five million operators of two bytes each would take a gigabyte."""

    def message(tag, content):
        length, size = b"", len(content)
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        return tag + length + bytes([size]) + content

    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CannotLoad, match=f"expected a file of at most {MOST_PARTS:,} parts, got more"):
        opened(message(b"\x3a", b"\x0a\x00" * 5_000_000))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
    assert read_onnx(written(tmp_path, model(chain(2000)))).name == "a.onnx"
    for damaged in (b"\xff" * 20, b"\x3a\x05\x0a", b"\x3b\x01", b"\x3a\x80"):
        with pytest.raises(CannotLoad, match="expected an ONNX model"):
            opened(damaged)


def written(folder, made):
    (folder / "a.onnx").write_bytes(made.SerializeToString())
    return folder / "a.onnx"


LEAKS = {
    "the mean of the batch": [
        node("ReduceMean", ["means"], ["all"], axes=[0], keepdims=1),
        node("Sub", ["means", "all"], ["y"]),
    ],
    "the first image": [node("Gather", ["means", "zero"], ["first"], axis=0), node("Add", ["means", "first"], ["y"])],
    "the place in the batch": [
        node("CumSum", ["means", "zero"], ["y"]),
    ],
    "the order": [node("ReverseSequence", ["means", "lengths"], ["y"], batch_axis=1, time_axis=0)],
}


@pytest.mark.parametrize("nodes", LEAKS.values(), ids=LEAKS)
def test_features_of_an_image_depend_on_that_image_alone(opened, nodes):
    made = model(nodes, zero=np.array(0), lengths=np.array([1, 1, 1]))
    net = opened(made)
    alone = np.concatenate([net(IMAGES[k : k + 1]) for k in range(5)])
    for order in ([0, 1, 2, 3, 4], [4, 0, 3, 1, 2], [2, 2, 1, 1, 0]):
        np.testing.assert_array_equal(net(IMAGES[order]), alone[order])


def test_a_model_of_one_image_at_a_time_is_taken(opened):
    net = opened(model([node("Relu", ["means"], ["y"])], shape=(1, 3, 8, 8)))
    assert net(IMAGES).shape == (5, 3)


GROWING = {
    "Expand": ([node("Expand", ["means", "sizes"], ["big"])], {"sizes": np.array([3_000_000_000, 1, 3])}),
    "Tile": ([node("Tile", ["means", "sizes"], ["big"])], {"sizes": np.array([1, 1_000_000_000])}),
    "ConstantOfShape": ([node("ConstantOfShape", ["sizes"], ["big"])], {"sizes": np.array([1 << 30])}),
    "Pad": ([node("Pad", ["means", "sizes"], ["big"])], {"sizes": np.array([0, 1 << 30, 0, 0])}),
}


@pytest.mark.parametrize(("nodes", "constants"), GROWING.values(), ids=GROWING)
@pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded on Linux only")
def test_memory_is_bounded(opened, nodes, constants):
    end = [node("ReduceSum", ["big"], ["sum"], keepdims=0), node("Add", ["means", "sum"], ["y"])]
    with pytest.raises(CannotLoad, match="hostile.onnx"):
        opened(model([*nodes, *end], **constants))(IMAGES)


@pytest.mark.parametrize(
    "images", [np.zeros((3, 8, 8, 3), np.uint8), [np.zeros((8, 8 + k, 3), np.uint8) for k in range(3)]]
)
def test_images_of_the_largest_size_are_prepared_one_by_one(opened, images, monkeypatch):
    """A file of a hundred bytes that takes 4096 × 4096 pixels made 64 images 27 GB of memory, in our own process."""
    net = opened(model([node("Relu", ["means"], ["y"])], shape=("n", 3, 4096, 4096)))
    sizes = []

    def counted(self, batch):
        sizes.append(len(batch))
        return np.zeros((len(batch), 3, 8, 8), np.float32)

    monkeypatch.setattr(onnxmodel.Preparation, "__call__", counted)
    monkeypatch.setattr(net._open_model(), "_session", Plain())
    assert net(images).shape == (3, 3)
    assert sizes == [1, 1, 1]


class Plain:
    """A session without a model, whose features are an image's means."""

    def run(self, output, source, images):
        return images.mean(axis=(2, 3))


def slow():
    """Return a model whose pooling windows have a million pixels each."""
    far = [node("Resize", ["x", "", "", "sizes"], ["wide"]), node("MaxPool", ["wide"], ["y"], kernel_shape=[999, 999])]
    return model(far, sizes=np.array([1, 3, 2000, 2000]))


def test_time_is_bounded_inside_of_an_operator(opened, monkeypatch):
    monkeypatch.setattr(onnxmodel, "IMAGE", 1.0)
    net = opened(slow())
    start = time.monotonic()
    with pytest.raises(
        CannotLoad, match=r"hostile.onnx: expected at most 1 seconds for an image of shape .*, got more; use a smaller"
    ):
        net(IMAGES)
    assert time.monotonic() - start < 30


def test_opening_is_bounded(opened, monkeypatch):
    monkeypatch.setattr(onnxmodel, "OPENING", 0.01)
    with pytest.raises(CannotLoad, match=r"hostile.onnx: expected at most 0.01 seconds for its opening, got more"):
        opened(model([node("Relu", ["means"], ["y"])]))


def running(net):
    return net._open_model()._session._child._process


def test_a_process_that_ends_is_named_and_replaced(opened):
    """A fault of the runtime does not end our process."""
    net = opened(model([node("Relu", ["means"], ["y"])]))
    before = net(IMAGES)
    os.kill(running(net).pid, signal.SIGABRT if os.name == "posix" else signal.SIGTERM)
    with pytest.raises(
        CannotLoad,
        match=r"expected an answer for an image of shape .*, got the end of its process .signal 6.; a model may",
    ):
        net(IMAGES)
    np.testing.assert_array_equal(net(IMAGES), before)


def test_no_process_stays_behind(opened):
    net = opened(model([node("Relu", ["means"], ["y"])]))
    process = running(net)
    del net
    gc.collect()
    process.wait(10)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_forked_process_has_a_model_of_its_own(opened):
    net = opened(model([node("Relu", ["means"], ["y"])]))
    before = net(IMAGES)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, net(IMAGES).tobytes())
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reader, 1 << 16) == before.tobytes()
    np.testing.assert_array_equal(net(IMAGES), before)
    for end in (reader, writer):
        os.close(end)


ODD_OUTPUTS = {
    "texts": ([node("Cast", ["means"], ["y"], to=Kind.STRING)], "is not one row of numbers"),
    "a sequence": ([node("SequenceConstruct", ["means"], ["y"])], "is not one row of numbers"),
    "no axis": ([node("ReduceMean", ["means"], ["y"], keepdims=0)], "is not one row of numbers"),
    "one axis": ([node("ReduceMean", ["means"], ["y"], axes=[1], keepdims=0)], "must have 2, 3 or 4 axes"),
    "more rows": ([node("Concat", ["means", "means"], ["y"], axis=0)], "is not one row of numbers"),
    "no features": (
        [node("Slice", ["means", "zero", "zero", "one"], ["y"])],
        "expected 1 to 65,536 features, got none",
    ),
    "too many": ([node("Tile", ["means", "many"], ["y"])], "expected 1 to 65,536 features, got 90,000"),
    "as many as it is bright": (
        [
            node("Greater", ["means", "bound"], ["bright"]),
            node("Reshape", ["bright", "flat"], ["which"]),
            node("Compress", ["means", "which"], ["some"], axis=1),
            node("Concat", ["means", "some"], ["y"], axis=1),
        ],
        "expected as many features for each image, got 3 and 6; name another output",
    ),
}


@pytest.mark.parametrize(("nodes", "why"), ODD_OUTPUTS.values(), ids=ODD_OUTPUTS)
def test_outputs_that_are_not_features_are_refused(opened, nodes, why):
    out = helper.make_value_info("y", helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None)))
    made = model(
        nodes,
        out=out if nodes[0].op_type == "SequenceConstruct" else helper.make_empty_tensor_value_info("y"),
        zero=np.array([0]),
        one=np.array([1]),
        many=np.array([1, 30_000]),
        bound=np.float32(0.0),
        flat=np.array([-1]),
    )
    if nodes[0].op_type == "Cast":
        made.graph.output[0].CopyFrom(value("y", None, Kind.STRING))
    net = opened(made)
    with pytest.raises(CannotLoad, match=why):
        net(np.stack([np.full((8, 8, 3), shade, np.uint8) for shade in (0, 255)]))


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e300])
def test_features_that_are_not_finite_are_refused(opened, number, tmp_path):
    wide = [node("Cast", ["means"], ["wide"], to=Kind.DOUBLE), node("Mul", ["wide", "number"], ["y"])]
    net = opened(model(wide, out=value("y", None, Kind.DOUBLE), number=np.float64(number)))
    with pytest.raises(InvalidData, match="hostile.onnx gave a feature that is not a finite number for sample 0"):
        extract(IMAGES, net, data_fingerprint="a", cache=tmp_path / "cache", progress=False)


ODD_MODELS = {
    "an opset to come": lambda made: made.opset_import[0].CopyFrom(helper.make_opsetid("", 10**6)),
    "no opset": lambda made: made.ClearField("opset_import"),
    "an opset twice": lambda made: made.opset_import.append(helper.make_opsetid("", 7)),
    "a negative opset": lambda made: made.opset_import[0].CopyFrom(helper.make_opsetid("", -1)),
    "a version to come": lambda made: setattr(made, "ir_version", 2**40),
    "an output twice": lambda made: made.graph.output.append(value("y")),
    "an output that is not there": lambda made: made.graph.output.append(value("z\x1b]0;owned\x07\n\u202e")),
    "an input twice": lambda made: made.graph.input.append(value("x")),
    "a ring": lambda made: made.graph.node.append(node("Relu", ["q"], ["q"])),
    "a tensor of negative size": lambda made: made.graph.initializer.append(Kind(name="t", data_type=1, dims=[-5])),
    "a tensor of endless size": lambda made: made.graph.initializer.append(Kind(name="t", data_type=1, dims=[2**62])),
    "an unknown type": lambda made: made.graph.initializer.append(Kind(name="t", data_type=99, dims=[1])),
}


@pytest.mark.parametrize("change", ODD_MODELS.values(), ids=ODD_MODELS)
def test_odd_models_are_refused_or_run(opened, change, tmp_path, capfd):
    """By the command line, too: one line without control characters, and exit code 2."""
    made = model([node("Relu", ["means"], ["y"])])
    change(made)
    try:
        assert opened(made)(IMAGES).shape == (5, 3)
    except FedgramError as error:
        assert "\n" not in str(error)
        command = [sys.executable, "-c", "from fedgram.cli import main; main()", "study", "backbone", "hostile.onnx"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert not set("\x1b\x07\u202e").intersection(done.stderr)
        assert done.stderr.count("\n") == 1
    assert capfd.readouterr() == ("", "")

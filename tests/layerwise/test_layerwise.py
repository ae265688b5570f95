"""Layers against torch, moments against all patches at once, and the trained network on its way out."""

import tracemalloc
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedgram as fg
from fedgram import layerwise
from fedgram.core import wire
from fedgram.core.errors import FedgramError, InvalidData, InvalidParameter, Mismatch, UnknownName
from fedgram.features.projection import ACTIVATIONS
from fedgram.layerwise import LayerTotal, Network, layer_moments, read_stack
from fedgram.layerwise.layer_types import RowGram, WindowGram, convolve
from fedgram.layerwise.layered_network import label_encoding
from fedgram.methods.layerwise.pfedacnnl import (
    _FewPatches,
    _ManyPatches,
    choose_groups,
    group,
    own_layer,
    without_small,
)
from fedgram.moments import packing
from support.campaign import examples
from support.problems import relative_error, seeds

ENCODINGS = ["position", "shared"]


def whole(stack, shape, classes=3, seed=0, encoding="position"):
    """Return a network with random solutions in all its layers."""
    rng = np.random.default_rng(seed)
    network = Network(stack, shape, tuple(range(classes)), seed, encoding=encoding)
    while not network.is_whole:
        d, columns = network.next_problem.d, network.next_problem.columns
        network = network.extend(rng.normal(size=(d, columns)) / np.sqrt(d))
    return network


def planes(x):
    return torch.from_numpy(np.moveaxis(x, 3, 1).copy())


@examples(40)
@given(seeds, st.integers(0, 3), st.integers(1, 4), st.integers(1, 3), st.integers(0, 4), st.integers(0, 4))
def test_patches_against_torch(seed, n, size, channels, more_height, more_width):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, size + more_height, size + more_width, channels))
    layer = layerwise.Convolution(5, size)
    w = rng.normal(size=(layer.fan_in(x.shape[1:]), 5))
    kernels = torch.from_numpy(w.reshape(size, size, channels, 5).transpose(3, 2, 0, 1).copy())
    want = np.moveaxis(torch.nn.functional.conv2d(planes(x), kernels).numpy(), 1, 3)
    got = (layer.rows(x) @ w).reshape(n, *layer.shape_out(x.shape[1:]))
    np.testing.assert_allclose(got, want, atol=1e-12)
    positions = (more_height + 1) * (more_width + 1)
    np.testing.assert_allclose(layer.row_sums(x), layer.rows(x).reshape(n, positions, len(w)).sum(axis=1), atol=1e-12)


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_pooling_against_torch(n, size):
    x = np.random.default_rng(0).normal(size=(n, 7, 8, 2))
    want = np.moveaxis(torch.nn.functional.avg_pool2d(planes(x), size).numpy(), 1, 3) if n else np.zeros(0)
    got = layerwise.AveragePooling(size).apply(x)
    assert got.shape[1:] == layerwise.AveragePooling(size).shape_out(x.shape[1:])
    np.testing.assert_allclose(got.ravel(), want.ravel(), atol=1e-12)


@examples(30)
@given(seeds, st.integers(1, 12), st.integers(1, 20), st.sampled_from(["", "conv:4:2 ", "conv:4:2 pool:2 "]))
def test_moments_by_blocks_equal_those_of_all_rows(seed, n, batch, below):
    """Also where there are fewer rows than a quarter of the columns, and the triangular factor is sent."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(n, 7, 6, 2)).astype(np.float32), rng.integers(0, 3, n)
    network = whole(below + "conv:3:2 flatten", x.shape[1:]).truncate(below.count("conv"))
    rows = network.next_problem.layer.rows(network.forward(x))
    labels = np.repeat(y, len(rows) // n)
    got, want = layer_moments(network, x, y, batch=batch).rows, fg.Moments.of(rows, labels, classes=3)
    assert relative_error(got.gram, want.gram) < 1e-12
    assert relative_error(got.cross, want.cross) < 1e-12
    assert np.array_equal(got.counts, want.counts)
    got.check()


@examples(40)
@given(seeds, st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(0, 6), st.integers(0, 6))
def test_windows_without_cutting_them_out(seed, n, size, channels, more_height, more_width):
    """The Gram matrix of patches and their products with weights, from the pixels alone."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, size + more_height, size + more_width, channels))
    rows = layerwise.Convolution(5, size).rows(x)
    gram = WindowGram(x.shape[1:], size)
    for batch in np.array_split(x, 2):
        gram.add(batch)
    assert relative_error(packing.unpack(gram.packed(), rows.shape[1]), rows.T @ rows) < 1e-13
    weights = rng.normal(size=(rows.shape[1], 3))
    np.testing.assert_allclose(convolve(x, weights, size), rows @ weights, atol=1e-12)


@pytest.mark.parametrize(
    ("images", "batch", "side", "ours"),
    [(40, 32, 8, WindowGram), (40, 32, 4, RowGram), (20, 32, 8, RowGram), (40, 8, 8, RowGram)],
)
def test_many_channels_are_summed_without_patches(images, batch, side, ours, monkeypatch):
    """Where windows overlap enough; the moments are the same by either way, and so are the outputs."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(images, side, side, 64)), np.arange(images) % 3
    network = Network("conv:3:3:identity flatten", x.shape[1:], (0, 1, 2), 0)
    layer, gram, made = network.next_problem.layer, layerwise.Convolution.gram, []
    monkeypatch.setattr(layerwise.Convolution, "gram", lambda *about: made.append(gram(*about)) or made[-1])
    rows = layer.rows(x)
    got, want = layer_moments(network, x, y, batch=batch), rows.T @ rows
    assert [type(one) for one in made] == [ours]
    assert relative_error(got.rows.gram, want) < 1e-13
    weights = rng.normal(size=(rows.shape[1], 3))
    np.testing.assert_allclose(layer.multiply(x, weights), rows @ weights, atol=1e-11)
    out = network.extend(weights).forward(x)
    np.testing.assert_allclose(out.reshape(len(rows), 3), rows @ weights, atol=1e-10)


@pytest.mark.parametrize(("size", "shape"), [(5, (32, 32, 3)), (3, (20, 20, 64))])
def test_memory_does_not_grow_with_images_or_positions(size, shape):
    network = Network(f"conv:4:{size} flatten", shape, tuple(range(40)), 0)
    x, y = np.random.default_rng(0).random((400, *shape), dtype=np.float32), np.arange(400) % 2
    tracemalloc.start()
    layer_moments(network, x, y, batch=32)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    all_patches = 400 * (shape[0] - size + 1) ** 2 * size**2 * shape[2] * 8
    assert peak < all_patches / 20


@pytest.mark.parametrize("stack", ["conv:6:2 pool:2 conv:5:2 flatten dense:4", "conv:12:2 conv:5:3 flatten"])
def test_forward_a_few_images_at_a_time(stack, monkeypatch):
    """Results do not depend on the number of samples that pass through a layer at a time."""
    network, x = whole(stack, (9, 8, 3)), np.random.default_rng(1).normal(size=(11, 9, 8, 3))
    want = [network.truncate(depth).forward(x) for depth in range(network.depth + 1)]
    monkeypatch.setattr("fedgram.layerwise.layered_network.FORWARD_BYTES", 4 * 8 * 9 * 8 * 12)
    monkeypatch.setattr("fedgram.layerwise.layered_network.LAYER_BYTES", 2 * 8 * 9 * 8 * 12)
    monkeypatch.setattr("fedgram.layerwise.layer_types.PRODUCT_BYTES", 1)
    for depth, before in enumerate(want):
        np.testing.assert_allclose(network.truncate(depth).forward(x), before, atol=1e-12)


def test_forward_takes_no_more_memory_for_large_windows():
    network, x = whole("conv:4:7 flatten", (32, 32, 16), classes=10), np.ones((64, 32, 32, 16))
    tracemalloc.start()
    network.truncate(1).forward(x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < x.nbytes + 2**25


def test_forward_is_the_plain_network():
    """Activation(X W) with W = G Q, layer by layer; the output layer without encoding or activation."""
    network = whole("flatten dense:6:tanh dense:5", (2, 3))
    x = np.random.default_rng(1).normal(size=(4, 2, 3))
    first, second, last = network.weights
    assert np.array_equal(first, network.solutions[0] @ label_encoding(0, 1, 3, 1, 6))
    assert np.array_equal(last, network.solutions[2])
    want = np.maximum(np.tanh(x.reshape(4, 6) @ first) @ second, 0) @ last
    np.testing.assert_allclose(network.scores(x), want, atol=1e-12)


def test_encodings_are_normal_and_differ():
    q = label_encoding(3, 1, 10, 4, 500)
    assert q.shape == (40, 500)  # a line for each class and position
    assert abs(q.mean()) < 0.05
    assert abs(q.std() - 1) < 0.05
    assert abs(np.corrcoef(q)[np.triu_indices(40, 1)]).max() < 0.3
    assert not np.array_equal(q, label_encoding(3, 2, 10, 4, 500))
    assert not np.array_equal(q, label_encoding(4, 1, 10, 4, 500))


STACKS = [
    ("lr", (6,)),
    ("dnn", (5, 5)),
    ("dnn", (6, 5, 3)),
    ("conv:4:3:leaky_relu pool:2 conv:5:2:gelu flatten dense:7:elu", (9, 10, 3)),
    ("conv:4:2 flatten", (5, 4, 1)),
    ("conv:90:2 flatten", (5, 4, 1)),  # wider than classes · positions
    ("normalize:0.3,0.1,0.2:0.5,2,1.5 conv:4:2 flatten", (5, 4, 3)),
    ("normalize:0.5:0.25 dnn", (6,)),
    *((f"flatten dense:6:{name}", (4,)) for name in ACTIVATIONS),
]


@pytest.mark.parametrize(("stack", "shape"), STACKS)
def test_torch_and_onnx_predict_the_same(stack, shape, tmp_path):
    network = whole(stack, shape, classes=4)
    x = np.random.default_rng(2).normal(size=(7, *shape)).astype(np.float32)
    images = x.reshape(7, *network.shapes[0])
    sent = np.ascontiguousarray(np.moveaxis(images, 3, 1)) if images.ndim == 4 else images
    want = network.scores(x)
    module = network.to_torch()
    assert isinstance(module, torch.nn.Module)
    with torch.no_grad():
        np.testing.assert_allclose(module(torch.from_numpy(sent)).numpy(), want, rtol=1e-4, atol=1e-4)
    network.to_onnx(tmp_path / "network.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "network.onnx")
    [got] = session.run(None, {"samples": sent})
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert np.array_equal(got.argmax(axis=1), want.argmax(axis=1))


def test_network_crosses_the_wire():
    network = whole("conv:4:3 flatten", (6, 6, 2))
    again = wire.decode(wire.encode(network), sender="someone")
    x = np.random.default_rng(0).normal(size=(3, 6, 6, 2))
    assert np.array_equal(again.scores(x), network.scores(x))
    # Never wider than classes times positions: the encoding is not sent.
    assert len(wire.encode(whole("conv:5000:2 flatten", (3, 3, 6), classes=2))) < (24 * 5000 + 20000 * 2) * 8 / 2
    assert len(wire.encode(whole("flatten dense:5000", (50,)))) < 50 * 5000 * 8 / 2


def test_wire_refuses_what_does_not_fit():
    network = whole("dnn", (4,))
    broken = (
        {"solutions": [np.zeros((3, 3))]},
        {"solutions": [1.0]},
        {"stack": "dens:3"},
        {"count": 4},
        {"encoding": "both"},
    )
    for change in broken:
        with pytest.raises(FedgramError):
            Network.from_fields(network.to_fields() | change)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("dens:3", UnknownName, "did you mean 'dense'"),
        ("small_dcnn", UnknownName, "did you mean 'small-dcnn'"),
        ("dense", InvalidParameter, "dense:128"),
        ("dense:4:relu:2", InvalidParameter, "dense:128"),
        ("dense:wide", InvalidParameter, "expected a whole number"),
        ("conv:wide:3", InvalidParameter, "whole numbers"),
        ("conv:8", InvalidParameter, "conv:32:5"),
        ("dense:0", InvalidParameter, "at least 1"),
        ("pool:-1", InvalidParameter, "at least 1"),
        ("dense:3:rleu", UnknownName, "did you mean 'relu'"),
        ("normalize:0.5", InvalidParameter, "normalize:0.5:0.25"),
        ("normalize:0.5:0", InvalidParameter, "numbers above 0"),
        ("normalize:nan:1", InvalidParameter, "finite numbers"),
        ("normalize:half:1", InvalidParameter, "normalize:0.5:0.25"),
    ],
)
def test_stacks_that_cannot_be_read(text, error, words):
    with pytest.raises(error, match=words):
        read_stack(text)


@pytest.mark.parametrize(
    ("text", "shape", "words"),
    [
        ("conv:3:2 flatten", (16,), "takes images"),
        ("conv:3:2", (4, 4, 1), "put flatten before"),
        ("conv:3:5 flatten", (4, 4, 1), "does not fit into images of 4 × 4"),
        ("flatten pool:2", (4, 4, 1), "takes images"),
        ("normalize:0,0:1 flatten", (4, 4, 3), "expected one number or 3"),
    ],
)
def test_stacks_that_do_not_fit_the_samples(text, shape, words):
    with pytest.raises(InvalidParameter, match=words):
        Network(text, shape, (0, 1), 0)


def test_the_papers_dcnn_has_five_layers_and_no_padding():
    network = Network("dcnn", (32, 32, 3), tuple(range(10)), 0)
    assert network.depth == 5
    assert network.shapes == (
        (32, 32, 3), (28, 28, 512), (14, 14, 512), (12, 12, 1024), (6, 6, 1024), (4, 4, 2048), (2, 2, 2048), (8192,),
        (10,),
    )  # fmt: skip


def test_half_trained_networks_do_not_score_or_leave():
    network = Network("dnn", (4,), (0, 1), 0).extend(np.zeros((4, 2)))
    with pytest.raises(InvalidParameter, match="1 of 3 layers"):
        network.scores(np.zeros((1, 4)))
    with pytest.raises(InvalidParameter, match="1 of 3 layers"):
        network.to_torch()
    with pytest.raises(InvalidParameter, match="are trained already"):
        whole("lr", (4,)).extend(np.zeros((4, 3)))
    with pytest.raises(Mismatch):
        network.extend(np.zeros((4, 2)))
    with pytest.raises(InvalidData, match="shape \\(n, 4\\), got \\(1, 5\\)"):
        whole("lr", (4,)).predict(np.zeros((1, 5)))


@examples(15)
@given(seeds, st.integers(2, 20), st.floats(-1, 3))
def test_own_dense_layer_against_a_direct_evaluation(seed, n, log_epsilon):
    rng = np.random.default_rng(seed)
    x, y, epsilon = rng.normal(size=(n, 6)), rng.integers(0, 3, n), 10**log_epsilon
    network, G, Y = Network("lr", (6,), (0, 1, 2), 0), rng.normal(size=(6, 3)), np.eye(3)[y]
    layer = own_layer(network, x, y, batch=4)

    def printed(rows):  # (13)
        return np.linalg.solve(x[rows].T @ x[rows] + epsilon * np.eye(6), x[rows].T @ Y[rows] + epsilon * G)

    np.testing.assert_allclose(layer.solution(G, epsilon), printed(np.arange(n)), atol=1e-9)
    left_out = [((Y[i] - x[i] @ printed(np.arange(n) != i)) ** 2).mean() for i in range(n)]
    np.testing.assert_allclose(layer.errors(G, [epsilon])[0], np.mean(left_out), rtol=1e-6)


def test_own_layers_refuse_what_no_layer_can_be_made_of():
    network, y = Network("conv:5:2 flatten", (4, 4, 70), (0, 1), 0), np.array([0, 1])
    good = np.random.default_rng(0).normal(size=(2, 4, 4, 70))
    spoilt = good.copy()
    spoilt[0, 1, 1, 1] = np.nan
    for x, words in (
        (spoilt, "not finite: nan"),
        (good * 1e200, "squares overflow"),
        (good.reshape(2, 8, 2, 70), "samples of shape"),
        (good[:0], "no samples"),
    ):
        with pytest.raises(InvalidData, match=words):
            own_layer(network, x, y[: len(x)], batch=16)


def printed_targets(network, y, positions):
    """Return the targets of the first layer, row by row: the encoded labels, or one column a label."""
    shared, classes = network.encoding == "shared", len(network.classes)
    lines = np.array([label if shared else label * positions + p for label in y for p in range(positions)])
    labels, width = classes if shared else classes * positions, network.layers[0].width
    if labels <= width:
        return np.eye(labels)[lines]
    return label_encoding(network.seed, 1, classes, labels // classes, width)[lines]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("epsilon", [1e-2, 1e-6, 1e-10])
@pytest.mark.parametrize(("n", "kind"), [(3, _FewPatches), (20, _ManyPatches)])
@pytest.mark.filterwarnings("ignore::fedgram.core.errors.RankDeficient")
def test_own_convolution_with_equal_patches_and_hardly_any_ridge(epsilon, n, kind, encoding):
    """Equal patches have no direction of their own: there the layer stays at the meta-model."""
    rng = np.random.default_rng(0)
    x, y = np.round(rng.uniform(0, 255, size=(n, 4, 4, 70))), np.arange(n) % 2
    x[:, :, :3] = x[:, :1, :1]
    network = Network("conv:5:2 flatten", (4, 4, 70), (0, 1), 0, encoding=encoding)
    problem = network.next_problem
    layer, towards = own_layer(network, x, y, batch=16), rng.normal(size=(280, problem.columns))
    assert isinstance(layer, kind)
    rows, targets = problem.layer.rows(x), printed_targets(network, y, 9)
    want = towards + np.linalg.lstsq(rows, targets - rows @ towards, rcond=1e-7)[0]
    assert relative_error(layer.solution(towards, epsilon), want) < 1e-5


@examples(15)
@given(
    seeds,
    st.integers(2, 9),
    st.floats(-1, 3),
    st.sampled_from([2, 70]),
    st.sampled_from([5, 40]),
    st.sampled_from(ENCODINGS),
)
def test_own_convolution_against_a_direct_evaluation(seed, n, log_epsilon, channels, width, encoding):
    """Whole images are left out, and with them all their patches; also where there are fewer of these than weights."""
    rng = np.random.default_rng(seed)
    x, y, epsilon = rng.normal(size=(n, 4, 4, channels)), rng.integers(0, 3, n), 10**log_epsilon
    network = Network(f"conv:{width}:2 flatten", (4, 4, channels), (0, 1, 2), 0, encoding=encoding)
    d, Y = 4 * channels, printed_targets(network, y, 9)
    G, rows = rng.normal(size=(d, Y.shape[1])), network.next_problem.layer.rows(x)
    image, folds = np.repeat(np.arange(n), 9), min(5, n)
    layer = own_layer(network, x, y, batch=4)

    def printed(kept):  # (13)
        X, Z = rows[kept], Y[kept]
        return np.linalg.solve(X.T @ X + epsilon * np.eye(d), X.T @ Z + epsilon * G)

    assert isinstance(layer, _FewPatches if 9 * n <= d / 2 else _ManyPatches)
    for solvable in (layer, own_layer(network, x, y, batch=4, folds=1)):
        np.testing.assert_allclose(solvable.solution(G, epsilon), printed(np.arange(9 * n)), atol=1e-8)
    squares = sum(
        ((Y[image % folds == f] - rows[image % folds == f] @ printed(image % folds != f)) ** 2).sum()
        for f in range(folds)
    )
    # The errors are up to a constant: two values of ε must differ by as much as they do when evaluated directly.
    errors = layer.errors(G, [epsilon, 1e12])
    towards = ((Y - rows @ G) ** 2).sum()
    np.testing.assert_allclose(errors[0] - errors[1], squares - towards, rtol=1e-8, atol=1e-6)


@examples(20)
@given(seeds, st.integers(1, 30), st.sampled_from([30, 2, 6]), st.integers(1, 5), st.sampled_from([True, False]))
def test_both_messages_of_a_convolution_say_the_same(seed, n, width, clients, by_class):
    """Sums of inputs by class, or X'Z̄: each adds up over clients, and both give the solution of all patches."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(n, 5, 6, 2)), rng.integers(0, 3, n)
    network = Network(f"conv:{width}:3 flatten", (5, 6, 2), (0, 1, 2), seed)
    problem, rows = network.next_problem, network.next_problem.layer.rows(x)
    Z = label_encoding(seed, 1, 3, 12, width).reshape(3, 12, width)[y].reshape(12 * n, width)
    want = np.linalg.solve(rows.T @ rows + 0.5 * np.eye(18), rows.T @ Z)
    total, sent = LayerTotal(), None
    for part in np.array_split(np.argsort(y) if by_class else rng.permutation(n), clients):
        sent = layer_moments(network, x[part], y[part], batch=4)
        total.add(wire.decode(wire.encode(sent)))
    products = 18 * width < 3 * 60  # the smaller one
    assert (sent.products is not None, sent.inputs is None) == (products, products)
    assert relative_error(problem.weights(total.moments().solve(problem, 0.5)), want) < 1e-9
    # Of the same samples, the other message.
    sums = np.zeros((3, 60))
    np.add.at(sums, y, x.reshape(n, 60))
    np.testing.assert_allclose(problem.products(sums, np.arange(3)), rows.T @ Z, atol=1e-10)


@pytest.mark.parametrize("width", [2, 30])
def test_layer_moments_of_clients_that_have_one_class_each_are_taken_away_again(width):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(24, 5, 6, 2)), np.repeat([2, 0, 1], 8)
    network, total = Network(f"conv:{width}:3 flatten", (5, 6, 2), (0, 1, 2), 0), LayerTotal()
    parts = [layer_moments(network, x[y == label], y[y == label], batch=8) for label in (2, 0, 1)]
    for part in parts:
        total.add(part)
    problem, rest = network.next_problem, total.moments() - parts[1]
    want = layer_moments(network, x[y != 0], y[y != 0], batch=8)
    np.testing.assert_allclose(rest.right_side(problem), want.right_side(problem), atol=1e-10)
    assert relative_error(rest.solve(problem, 0.5), want.solve(problem, 0.5)) < 1e-9


def test_layer_moments_that_no_samples_have_are_refused():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 5, 6, 2)), np.arange(20) % 3
    for width in (2, 30):
        problem = Network(f"conv:{width}:3 flatten", (5, 6, 2), (0, 1, 2), 0).next_problem
        good = layer_moments(Network(f"conv:{width}:3 flatten", (5, 6, 2), (0, 1, 2), 0), x, y, batch=8)
        good.check_sums(problem)
        name = "products" if width == 2 else "inputs"
        sums = getattr(good, name)
        if name == "inputs":  # changed so that all patches together have the sums that they had
            _, _, directions = np.linalg.svd(problem.layer.row_sums(np.eye(60).reshape(60, 5, 6, 2)).T)
            with pytest.raises(FedgramError, match="inputs: expected sums of inputs as small"):
                replace(good, inputs=sums + 1e3 * directions[-1]).check_sums(problem)
        counts = good.rows.counts + np.array([1, -1, 0])
        odd = fg.Moments(good.rows.schema, sums=good.rows.cross.T, counts=counts, packed=good.rows.packed)
        with pytest.raises(FedgramError, match="counts: expected multiples of 12"):
            replace(good, rows=odd).check_sums(problem)
        for wrong, words in (
            (None, "expected shape"),
            (sums[:-1], "expected shape"),
            (sums * 100, "expected .* got"),
            (sums + 1e6 * np.eye(*sums.shape), "expected .* got"),
        ):
            with pytest.raises(FedgramError, match=f"{name}: {words}"):
                replace(good, **{name: wrong}).check_sums(problem)
    dense = Network("flatten dense:4", (5, 6, 2), (0, 1, 2), 0)
    plain = layer_moments(dense, x, y, batch=8)
    plain.check_sums(dense.next_problem)
    with pytest.raises(FedgramError, match="inputs: expected shape None"):
        replace(plain, inputs=np.zeros((3, 60))).check_sums(dense.next_problem)


def test_a_convolution_has_a_higher_rank_than_there_are_classes():
    """One encoding for each position; with one that all share, it is the number of classes at most."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 6, 6, 3)), np.arange(200) % 2
    ranks = {}
    for encoding in ENCODINGS:
        network = Network("conv:20:3 flatten", (6, 6, 3), (0, 1), 0, encoding=encoding)
        problem = network.next_problem
        solution = layer_moments(network, x, y, batch=64).solve(problem, 1.0)
        ranks[encoding] = np.linalg.matrix_rank(problem.weights(solution))
    assert ranks == {"position": 20, "shared": 2}


def test_groups():
    rng = np.random.default_rng(0)
    centres = np.repeat(np.eye(4), 6, axis=0)
    points = centres + 0.02 * rng.normal(size=centres.shape)
    assert np.array_equal(choose_groups(points, 0), np.repeat(np.arange(4), 6))
    assert np.array_equal(group(points, 1, 0), np.zeros(24))
    assert len(set(group(points, 24, 0))) == 24
    with pytest.raises(InvalidParameter, match="25 groups for 24 clients"):
        group(points, 25, 0)


def test_equal_clients_are_one_group():
    assert np.array_equal(choose_groups(np.ones((9, 3)), 0), np.zeros(9))
    assert np.array_equal(group(np.ones((9, 3)), 4, 0), np.zeros(9))
    assert np.array_equal(choose_groups(np.random.default_rng(0).normal(size=(60, 30)), 0), np.zeros(60))


def test_small_groups_join_the_nearest():
    points = np.array([[0.0], [0.1], [0.2], [9.0], [9.1], [9.2], [8.0], [1.0]])
    groups = np.array([0, 0, 0, 1, 1, 1, 2, 3])
    assert without_small(points, groups, 3).tolist() == [0, 0, 0, 1, 1, 1, 1, 0]
    assert without_small(points, np.arange(8), 3).tolist() == [0] * 8

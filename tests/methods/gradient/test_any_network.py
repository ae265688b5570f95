"""Gradient methods on networks that users bring: a ResNet-18 and a transformer, in process and simulated by Flower."""

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import torch

import fedgram as fg
from fedgram.core.errors import ClientFailed, InvalidParameter
from fedgram.engines.inprocess import InProcess
from fedgram.nets import TrainedNet, net_for
from support import networks
from support.gradient import GRADIENT

CLASSES = 3
RESNET, GROUPS = f"{networks.HERE}:narrow_resnet18", f"{networks.HERE}:narrow_resnet18_groups"
TRANSFORMER = f"{networks.HERE}:Transformer"
METHODS = ["fedavg", "fedapa", "fedproto"]
QUICK = {"rounds": 2, "epochs": 1, "batch": 8, "lr": 0.02, "participation": 1.0}


def photographs(sizes=(9, 1, 12), size=32):
    """Return clients whose images are of one of three colours, one of them with a single sample."""
    rng, clients = np.random.default_rng(0), []
    for k, n in enumerate(sizes):
        y = np.arange(n + 4) % CLASSES
        x = (
            0.3 * rng.random((n + 4, size, size, 3), dtype=np.float32)
            + 0.7 * np.eye(3, dtype=np.float32)[y][:, None, None]
        )
        clients.append(fg.Client(f"client-{k}", x[:n], y[:n], x[n:], y[n:]))
    return clients


def fit(name, network, clients=None, **options):
    settings = QUICK | options.pop("settings", {})
    return fg.registry[name](network=network, **settings).fit(clients or photographs(), classes=CLASSES, **options)


def results(fitted):
    """Return all vectors that a fit ends with, by client."""
    own = {name: model.vector for name, model in fitted.personal.items()}
    return own if fitted.model is None else {**own, "": fitted.model.vector}


def assert_same(got, want, rtol):
    got, want = results(got), results(want)
    assert got.keys() == want.keys()
    for name, vector in want.items():
        np.testing.assert_allclose(got[name], vector, rtol=rtol, atol=rtol * np.abs(vector).max(), err_msg=name)


@pytest.mark.parametrize("network", [RESNET, GROUPS, TRANSFORMER])
@pytest.mark.parametrize("name", METHODS)
def test_methods_train_it_whoever_comes_first(name, network):
    method = fg.registry[name](network=network, **QUICK)
    fitted, clients = fit(name, network), photographs()
    assert set(fitted.contributors) == {"client-0", "client-1", "client-2"}  # one of them has a single sample
    first = fit(name, network, settings={"lr": 1e-30})
    for client, vector in results(fitted).items():
        assert np.isfinite(vector).all()
        assert not np.array_equal(vector, results(first)[client]), f"{client!r} has not trained"
    assert_same(fit(name, network, clients[::-1]), fitted, method.rounding)
    assert fitted.evaluation.correct == fitted.rounds[-1].correct


@pytest.mark.parametrize("name", sorted(set(GRADIENT) - set(METHODS)))
def test_every_other_method_takes_it_too(name):
    """A perceptron with batch normalisation of whole batches, frozen and unused parameters, and a head without bias."""
    rng = np.random.default_rng(0)
    clients = [fg.Client(f"client-{k}", rng.random((n, 12)), np.arange(n) % CLASSES) for k, n in enumerate((9, 1, 12))]
    few = {"directions": 2} if name in ("fedzo", "pfedzo", "baffle") else {}  # each needs a pass of its own
    fitted = fit(name, f"{networks.HERE}:Counting", clients, settings=few)
    assert set(fitted.contributors) == {"client-0", "client-1", "client-2"}
    assert all(np.isfinite(vector).all() for vector in results(fitted).values())
    assert_same(fit(name, f"{networks.HERE}:Counting", clients[::-1], settings=few), fitted, 1e-4)


def test_threads_change_nothing():
    one, two = (fit("fedavg", TRANSFORMER, engine=InProcess(workers=n, batch=1)) for n in (1, 3))
    assert np.array_equal(one.model.vector, two.model.vector)


def test_running_statistics_are_averaged_by_samples():
    clients, settings = photographs(sizes=(9, 6)), {"rounds": 1}
    fitted = fit("fedavg", RESNET, clients, settings=settings)
    buffers = fitted.model.net.buffers
    alone = [fit("fedavg", RESNET, [client], settings=settings).model.vector for client in clients]
    np.testing.assert_allclose(fitted.model.vector, np.average(alone, axis=0, weights=[9, 6]), rtol=1e-4, atol=1e-6)
    assert buffers == sum(b.numel() for b in fitted.model.to_torch().buffers() if b.is_floating_point())
    assert not np.allclose(alone[0][:buffers], alone[1][:buffers], atol=1e-4)


def test_fedapa_sends_all_but_the_head():
    fitted = fit("fedapa", TRANSFORMER)
    net = fitted.personal["client-0"].net
    sent = 2 * 3 * 4 * net.head.start  # rounds, clients, bytes of a number
    assert sent < fitted.traffic.up < sent + 20_000
    assert len({model.vector[net.head].tobytes() for model in fitted.personal.values()}) == 3


def test_a_function_is_a_network_in_this_process():
    def own(shape, classes):
        return networks.dropping(shape, classes)

    rng = np.random.default_rng(0)
    clients = [fg.Client(f"client-{k}", rng.random((9, 12)), np.arange(9) % CLASSES) for k in range(2)]
    named = fit("fedavg", f"{networks.HERE}:dropping", clients).model
    for given in (own, networks.dropping):
        assert np.array_equal(fit("fedavg", given, clients).model.vector, named.vector)
    again = replace(fg.FedAvg(network=own), rounds=1)
    assert again.network == fg.FedAvg(network=own).network


def test_networks_that_do_not_work_are_named():
    with pytest.raises(InvalidParameter, match="nowhere:make.*cannot be imported"):
        fit("fedavg", "nowhere:make")
    clients = [fg.Client("client-0", np.ones((9, 12)), np.arange(9) % CLASSES)]
    with pytest.raises(InvalidParameter, match="prototype.*bias.*Counting"):
        fit("fedproto", networks.Counting, clients, settings={"predict": "prototype"})


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        *((RESNET, (32, 32, 3)), (TRANSFORMER, (32, 32, 3)), ("cnn", (16, 16)), ("lenet5", (20, 20, 3))),
        *(("mlp:5", (12,)), ("linear", (4, 5, 2)), ("mlp:5", (4, 5))),
    ],
)
def test_export_gives_the_same_scores(network, shape, tmp_path):
    method, rng = fg.FedAvg(network=network), np.random.default_rng(0)
    net = method.net(shape, CLASSES)
    vector = net.initial(rng) + 0.01 * rng.random(net.size, dtype=np.float32)
    model = TrainedNet(network, shape, tuple(range(CLASSES)), vector)
    x = rng.random((5, *shape), dtype=np.float32)
    images = x[..., None] if len(shape) == 2 else x
    planes = np.ascontiguousarray(np.moveaxis(images, 3, 1)) if images.ndim == 4 else images
    want = model.scores(x)
    with torch.inference_mode():
        out = model.to_torch()(torch.from_numpy(planes))
    np.testing.assert_allclose(getattr(out, "logits", out).numpy(), want, rtol=1e-4, atol=1e-4)
    model.to_onnx(tmp_path / "network.onnx")
    [got] = onnxruntime.InferenceSession(tmp_path / "network.onnx").run(None, {"samples": planes})
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    if ":" in network and not network.startswith("mlp"):
        module = getattr(networks, network.partition(":")[2])((3, 32, 32), CLASSES)
        module.load_state_dict(model.state_dict())  # all names, none missing
        with torch.inference_mode():
            out = module.eval()(torch.from_numpy(planes))
        np.testing.assert_allclose(getattr(out, "logits", out).numpy(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_whole_resnet18():
    net = net_for(fg.FedAvg(network=networks.resnet18).net((32, 32, 3), 10).network, (32, 32, 3), 10)
    assert net.size - net.buffers == 11_181_642  # as published for ten classes
    for name in METHODS:
        fitted = fit(name, networks.resnet18)
        assert all(np.isfinite(vector).all() for vector in results(fitted).values())


@pytest.mark.flower
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray leaves files open
@pytest.mark.parametrize("network", [RESNET, TRANSFORMER])
def test_flower_s_simulation_gives_the_same(network, simulation):
    clients = photographs(sizes=(6, 1))
    for name in METHODS:
        here, there = (fit(name, network, clients, settings={"rounds": 1}, **on) for on in ({}, {"engine": simulation}))
        assert there.evaluation.correct == here.evaluation.correct
        if here.model is not None:
            np.testing.assert_allclose(there.model.vector, here.model.vector, rtol=1e-4, atol=1e-5)


@pytest.mark.flower
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray leaves files open
def test_a_network_that_a_node_cannot_import_is_named(simulation):
    def own(shape, classes):
        return networks.lenet5(shape, classes)

    clients = photographs(sizes=(6, 1))
    with pytest.raises(ClientFailed, match="own#.*function of the program that started.*package.module:factory"):
        fit("fedavg", own, clients, engine=simulation)


@pytest.fixture(scope="module")
def simulation():
    from fedgram.engines.flower.simulation import FlowerSimulation

    with FlowerSimulation(nodes=2, workers=1) as engine:
        yield engine

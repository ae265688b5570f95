"""SCAFFOLD, FedNova, FedRep, FedBABU and FedBN against direct evaluations of their equations."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedgram as fg
from fedgram.checks import CLASSES, some_clients
from fedgram.core.errors import InvalidParameter
from fedgram.nets import admit, net_for
from fedgram.nets.optimizers import SGD
from support import networks
from support.gradient import SETTINGS, equal_clients, first_weights, fit, image_clients, watched

WHOLE = {"batch": 1000, "network": "linear"}  # a step takes all samples, so that the order does not count
HIDDEN = SETTINGS | {"network": "mlp:16"}


def gradient(client, w):
    """Return the gradient of a linear model's mean cross entropy over all samples, in double precision."""
    scores = client.x @ w[:-CLASSES].reshape(CLASSES, -1).T + w[-CLASSES:]
    likely = np.exp(scores - scores.max(axis=1, keepdims=True))
    error = (likely / likely.sum(axis=1, keepdims=True) - np.eye(CLASSES)[client.y]) / len(client.y)
    return np.append((error.T @ client.x).ravel(), error.sum(axis=0))


def steps(client, start, count, lr, momentum=0.0, added=0.0):
    """Return the weights after so many steps of SGD with all samples, and the mean gradient that they made."""
    w, v, g = start.copy(), np.zeros_like(start), []
    for _ in range(count):
        g.append(gradient(client, w) + added)
        v = momentum * v + g[-1]
        w = w - lr * v
    weights = [(1 - momentum ** (count - k)) / (1 - momentum) for k in range(count)]
    return w, np.average(g, axis=0, weights=weights)


@pytest.mark.parametrize(("momentum", "server", "eta"), [(0.0, None, 1.0), (0.6, "momentum:0:0.5", 0.5)])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_scaffold_is_its_algorithm(participation, momentum, server, eta):
    """Algorithm 1 of Karimireddy et al., line by line, with option II."""
    settings = {"rounds": 4, "epochs": 3, "lr": 0.5, "momentum": momentum, "participation": participation}
    method, sent, _ = watched(fg.SCAFFOLD(**settings | WHOLE, server=server))
    fitted, clients = fit(method), {client.name: client for client in some_clients()}
    x = first_weights().astype(np.float64)
    c, own = np.zeros_like(x), {name: np.zeros_like(x) for name in clients}
    for number in range(4):
        asked = [name for name in clients if (number, name) in sent]
        assert len(asked) == round(participation * len(clients))
        moved, changed = [], []
        for name in asked:
            np.testing.assert_allclose(sent[number, name]["weights"], x, atol=2e-5)
            np.testing.assert_allclose(sent[number, name]["control"], c, atol=2e-4)
            y, mean = steps(clients[name], x, 3, 0.5, momentum, added=c - own[name])
            new = mean - (c - own[name])  # the mean of the gradients themselves, which equals option II
            moved.append(y - x)
            changed.append(new - own[name])
            own[name] = new
        x = x + eta * np.mean(moved, axis=0)
        c = c + len(asked) / len(clients) * np.mean(changed, axis=0)
    np.testing.assert_allclose(fitted.model.vector, x, atol=3e-5)
    plain = fit(fg.FedAvg(**settings | WHOLE)).model.vector
    assert np.abs(fitted.model.vector - plain).max() > 1e-3


def test_scaffold_with_clients_that_are_alike_is_fedavg():
    [client] = some_clients()[:1]
    alike = [replace(client, name=f"client-{k}") for k in range(3)]
    settings = SETTINGS | WHOLE | {"momentum": 0.5}
    got, want = (fit(method(**settings), alike).model.vector for method in (fg.SCAFFOLD, fg.FedAvg))
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_scaffold_takes_clients_to_the_common_minimum():
    """Where FedAvg's long local training stays away from the minimum of the mean loss, SCAFFOLD reaches it."""

    def away(method):
        w = fit(method, clients).model.vector.astype(np.float64)
        return np.linalg.norm(np.mean([gradient(client, w) for client in clients], axis=0) + 0.05 * w)

    clients = equal_clients()
    settings = WHOLE | {"rounds": 60, "epochs": 20, "lr": 0.5, "momentum": 0.0, "weight_decay": 0.05}
    assert away(fg.SCAFFOLD(**settings)) < away(fg.FedAvg(**settings)) / 20


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_is_its_equation(momentum):
    """Section 4 of Wang et al., with as many steps as a client's samples make batches."""
    settings = {"rounds": 1, "epochs": 2, "batch": 16, "lr": 0.05, "momentum": momentum, "network": "linear"}
    method, _, heard = watched(fg.FedNova(**settings))
    fitted, clients, x = fit(method), some_clients(), first_weights().astype(np.float64)
    total = sum(len(client.y) for client in clients)
    change, effective, lengths = 0, 0, set()
    for client in clients:
        tau, p = 2 * -(-len(client.y) // 16), len(client.y) / total
        a = sum((1 - momentum ** (tau - k)) / (1 - momentum) for k in range(tau))
        assert SGD(momentum).length(tau) == pytest.approx(a, rel=1e-12)
        change = change + p * (x - heard[0, client.name]) / a  # p_k η d_k
        effective += p * a
        lengths.add(a)
    assert len(lengths) > 1
    np.testing.assert_allclose(fitted.model.vector, x - effective * change, atol=1e-6)
    assert np.abs(fitted.model.vector - fit(fg.FedAvg(**settings)).model.vector).max() > 1e-3


@pytest.mark.parametrize("network", ["linear", "mlp:8"])
def test_fednova_with_as_many_steps_is_fedavg(network):
    settings = SETTINGS | {"local_steps": 3, "network": network}
    got, want = (fit(method(**settings)).model.vector for method in (fg.FedNova, fg.FedAvg))
    np.testing.assert_array_equal(got, want)


def test_fednova_averages_running_means():
    fitted = fit(fg.FedNova(rounds=1, epochs=1, batch=32, network="cnn"), image_clients())
    variances = fitted.model.vector[: fitted.model.net.buffers]
    assert (variances[32:64] > 0).all()


def test_fedrep_trains_the_head_and_then_the_base():
    method, _, heard = watched(fg.FedRep(**HIDDEN | {"rounds": 1, "head_epochs": 3, "epochs": 2}))
    fitted, clients = fit(method), some_clients()
    net = method.net((64,), CLASSES)
    first = first_of(HIDDEN)
    still = fit(fg.FedRep(**HIDDEN | {"rounds": 1, "head_epochs": 3, "lr": 1e-30}))
    for client in clients:
        own = fitted.personal[client.name].vector
        assert np.array_equal(own[net.base], heard[0, client.name])
        assert (own[net.head] != first[net.head]).mean() > 0.5
        assert np.array_equal(still.personal[client.name].vector, first)
        # The head equals that of training the head alone: the base's epochs do not change it.
        longer = fit(replace(method, epochs=5), [client]).personal[client.name].vector
        same = fit(replace(method, epochs=1), [client]).personal[client.name].vector
        assert np.array_equal(longer[net.head], same[net.head])
        assert not np.array_equal(longer[net.base], same[net.base])


def test_fedrep_s_head_descends_on_the_base_that_came():
    """One epoch with all samples: a step of the head by the gradient at the start, then one of the base."""
    [client] = some_clients()[:1]
    settings = {"network": "mlp:16", "rounds": 1, "epochs": 1, "batch": 1000, "lr": 0.3, "momentum": 0.0}
    got = fit(fg.FedRep(**settings, head_epochs=2), [client]).personal[client.name].vector
    module = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    nn.utils.vector_to_parameters(torch.from_numpy(first_of(settings)), module.parameters())
    x, y = torch.from_numpy(client.x.astype(np.float32)), torch.from_numpy(client.y)
    for part in (module[2], module[2], module[0]):
        module.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        with torch.no_grad():
            for parameter in part.parameters():
                parameter.sub_(0.3 * parameter.grad)
    want = nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_fedrep_shares_the_plain_mean_of_the_bases():
    ends = {}
    for by_samples in (False, True):
        method, sent, heard = watched(fg.FedRep(**HIDDEN | {"rounds": 2, "by_samples": by_samples}))
        fit(method)
        weights = [len(client.y) if by_samples else 1 for client in some_clients()]
        replies = [heard[0, client.name] for client in some_clients()]
        np.testing.assert_allclose(sent[1, "client-0"], np.average(replies, axis=0, weights=weights), atol=1e-6)
        ends[by_samples] = sent[1, "client-0"]
    assert not np.allclose(ends[True], ends[False], atol=1e-5)


def first_of(settings):
    return fit(fg.FedAvg(network=settings["network"], rounds=1, lr=1e-30)).model.vector


@pytest.mark.parametrize("tune", ["all", "head", "base"])
def test_fedbabu_s_head_stays_until_clients_tune(tune):
    method, sent, heard = watched(fg.FedBABU(**HIDDEN, tune=tune))
    fitted, first, net = fit(method), first_of(HIDDEN), method.net((64,), CLASSES)
    world = fitted.model.vector
    assert np.array_equal(world[net.head], first[net.head])
    assert not np.allclose(world[net.base], first[net.base], atol=1e-3)
    assert {len(payload) for payload in (*sent.values(), *heard.values())} == {net.base.stop}
    weights, last = [len(client.y) for client in some_clients()], max(number for number, _ in heard)
    replies = [heard[last, client.name] for client in some_clients()]
    np.testing.assert_allclose(world[net.base], np.average(replies, axis=0, weights=weights), atol=1e-6)
    for model in fitted.personal.values():
        moved = {"base": net.base, "head": net.head}
        for part, where in moved.items():
            same = np.array_equal(model.vector[where], world[where])
            assert same == (tune not in ("all", part))
    untuned = fit(replace(method, tune_epochs=0))
    assert all(np.array_equal(model.vector, untuned.model.vector) for model in untuned.personal.values())


def test_fedbabu_s_base_descends_under_the_first_head():
    [client] = some_clients()[:1]
    settings = {"network": "mlp:16", "rounds": 1, "epochs": 2, "batch": 1000, "lr": 0.3, "momentum": 0.0}
    got = fit(fg.FedBABU(**settings, tune_epochs=0), [client]).model.vector
    module = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    nn.utils.vector_to_parameters(torch.from_numpy(first_of(settings)), module.parameters())
    x, y = torch.from_numpy(client.x.astype(np.float32)), torch.from_numpy(client.y)
    for _ in range(2):
        module.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        with torch.no_grad():
            for parameter in module[0].parameters():
                parameter.sub_(0.3 * parameter.grad)
    want = nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    np.testing.assert_allclose(got, want, atol=1e-5)


def normalised(shape, classes):
    """Return a perceptron with batch normalisation, and layer normalisation, which is shared."""
    return nn.Sequential(nn.Linear(shape[0], 8), nn.BatchNorm1d(8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, classes))


def test_the_numbers_of_batch_normalisation_are_known():
    network = admit(normalised)
    net = net_for(network, (64,), CLASSES)
    names = [name for name in net._names for _ in range(int(np.prod(net._module.state_dict()[name].shape)))]
    assert {name for name, norm in zip(names, net.norms, strict=True) if norm} == {
        f"1.{part}" for part in ("weight", "bias", "running_mean", "running_var")
    }
    counting = net_for(admit(f"{networks.HERE}:Counting"), (64,), CLASSES, memory=True)
    assert counting.norms.sum() == 4 * 6
    assert len(counting.norms) == counting.size
    cnn = net_for("cnn", (16, 16), CLASSES)
    assert len(cnn.norms) == cnn.size
    assert cnn.norms.sum() == 4 * (32 + 64)
    assert cnn.norms[: cnn.buffers].all()
    module = cnn.module(np.where(cnn.norms, 7, 0).astype(np.float32))
    for name, value in module.state_dict().items():
        if value.is_floating_point():
            owner = module.get_submodule(name.rpartition(".")[0])
            assert (value == (7 if isinstance(owner, nn.BatchNorm2d) else 0)).all(), name
    assert not net_for("mlp:4", (5,), 3, memory=True).norms.any()


def test_fedbn_keeps_batch_normalisation_at_the_client():
    method, sent, heard = watched(fg.FedBN(**SETTINGS | {"network": normalised, "by_samples": True}))
    fitted = fit(method)
    net = method.net((64,), CLASSES)
    assert fitted.model is None
    assert {len(payload) for payload in (*sent.values(), *heard.values())} == {net.size - net.norms.sum()}
    weights = [len(client.y) for client in some_clients()]
    mean = np.average([heard[2, client.name] for client in some_clients()], axis=0, weights=weights)
    own = {model.vector[net.norms].tobytes() for model in fitted.personal.values()}
    assert len(own) == len(weights)
    for model in fitted.personal.values():
        np.testing.assert_allclose(model.vector[~net.norms], mean, atol=1e-6)
    # Each begins its next training with its own: after rounds of no learning, running means are those of its samples.
    still = fit(fg.FedBN(**SETTINGS | {"network": normalised, "lr": 1e-30, "rounds": 6, "batch": 1000}))
    for client in some_clients():
        vector = still.personal[client.name].vector
        module = net.module(vector)
        with torch.no_grad():
            want = module[0](torch.from_numpy(client.x.astype(np.float32))).mean(0).numpy()
        np.testing.assert_allclose(module[1].running_mean.numpy(), want * (1 - 0.9**12), atol=1e-4)


def test_fedbn_judges_rounds_by_the_averaged_model_under_each_client_s_own_normalisation():
    fitted = fit(fg.FedBN(**SETTINGS | {"network": normalised}))
    assert fitted.rounds[-1].correct == fitted.evaluation.correct


def test_fedbn_without_batch_normalisation_is_fedavg():
    got = fit(fg.FedBN(**HIDDEN, by_samples=True)).personal
    want = fit(fg.FedAvg(**HIDDEN)).model.vector
    assert all(np.array_equal(model.vector, want) for model in got.values())


@pytest.mark.parametrize("method", [fg.SCAFFOLD, fg.FedNova])
def test_what_counts_steps_of_sgd_refuses_others(method):
    with pytest.raises(InvalidParameter, match="optimizer: expected sgd, got 'adam'"):
        method(optimizer="adam")


@pytest.mark.parametrize("method", [fg.FedRep, fg.FedBABU])
def test_without_a_base_there_is_nothing_to_share(method):
    with pytest.raises(InvalidParameter, match="layers below the last"):
        fit(method(**SETTINGS, network="linear"))

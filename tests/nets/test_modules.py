"""Any torch module as a network: its vector, its training against torch's own loop, and refusals by name."""

import copy
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

import fedgram as fg
from fedgram.core import errors, wire
from fedgram.nets import Hooks, Plan, TrainedNet, admit, factories, net_for, outputs, train
from fedgram.nets.optimizers import SGD
from support import networks
from support.nets import samples, scores_with_memory


def net_of(factory, shape, classes=10, **options):
    return net_for(admit(factory), shape, classes, **options)


def as_torch(x):
    if x.ndim == 2:
        return torch.from_numpy(x)
    return torch.from_numpy(x if x.ndim == 4 else x[..., None]).permute(0, 3, 1, 2).contiguous()


def train_one(net, x, y, start, seed=2, hooks=None, **plan):
    usual = {"lr": 0.05, "optimizer": SGD(0.9), "batch": 16, "epochs": 2}
    [got], _ = train(net, [(x, y)], [start], [np.random.default_rng(seed)], Plan(**usual | plan), hooks or Hooks())
    return got


MODULES = {
    networks.lenet5: (28, 28),
    networks.cnn: (28, 28, 1),
    networks.narrow_resnet18: (32, 32, 3),
    networks.narrow_resnet18_groups: (32, 32, 3),
    networks.mlp: (12,),
    networks.Counting: (12,),
    networks.Tied: (12,),
}


@pytest.mark.parametrize("factory", MODULES)
def test_training_is_that_of_the_module(factory):
    """The plainest loop of torch, on the module itself, ends with the same state dict and the same scores."""
    shape = MODULES[factory]
    net, (x, y) = net_of(factory, shape), samples(shape, 33)
    start = net.initial(np.random.default_rng(1))
    model = TrainedNet(net.network, shape, tuple(range(10)), start)
    module, rng = model.to_torch().train(), np.random.default_rng(2)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.05, momentum=0.9, weight_decay=0.01)
    for _ in range(2):
        order = rng.permutation(33)
        for batch in (order[:16], order[16:32], order[32:]):
            for norm in module.modules():
                if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
                    norm.train(len(batch) > 1)
            optimizer.zero_grad()
            scores = module(as_torch(x)[batch])
            nn.functional.cross_entropy(getattr(scores, "logits", scores), torch.from_numpy(y[batch])).backward()
            optimizer.step()
    got = train_one(net, x, y, start, weight_decay=0.01)
    after = TrainedNet(net.network, shape, tuple(range(10)), got)
    want = module.state_dict()
    for name, value in after.state_dict().items():
        # The call count of batch normalisation is not in the vector; a decay moves unused weights in torch's loop.
        if "num_batches" not in name and name != "unused":
            np.testing.assert_allclose(value.numpy(), want[name].numpy(), rtol=1e-3, atol=2e-5, err_msg=name)
    assert np.abs(got - start).max() > 1e-3
    with torch.inference_mode():
        scores = module.eval()(as_torch(x))
    np.testing.assert_allclose(after.scores(x), getattr(scores, "logits", scores).numpy(), rtol=1e-3, atol=1e-3)


def test_the_vector_is_buffers_base_head():
    net = net_of(networks.Counting, (12,))
    module = networks.Counting((12,), 10)
    assert net.buffers == 6 + 6 + 6 + 1  # frozen, seen, running mean and variance
    assert net.head == slice(net.size - 60, net.size)
    assert net.features == 6
    first = TrainedNet(net.network, (12,), tuple(range(10)), np.arange(net.size, dtype=np.float32)).state_dict()
    assert first["frozen"].tolist() == [0, 1, 2, 3, 4, 5]
    assert first["norm.running_mean"].tolist() == [7, 8, 9, 10, 11, 12]
    assert first["seen"].tolist() == [6]
    order = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    placed = [float(first[name].flatten()[0]) for name in order]
    assert placed == sorted(placed)
    assert placed[0] == 19
    assert first["last.weight"].flatten().tolist() == list(range(net.size - 60, net.size))
    # The transformer registers its head first, and names it.
    ours = net_of(networks.Transformer, (32, 32, 3))
    assert ours.features == 16
    assert ours.head == slice(ours.size - 170, ours.size)
    # Layers for FedALA are submodules with parameters.
    assert net.last(2) == slice(net.size - 60 - 12, net.size)


def test_buffers_outside_the_vector_begin_anew():
    """With momentum None the running mean is over all batches of a training, without those of earlier trainings."""
    net, (x, y) = net_of(networks.Counting, (12,)), samples((12,), 32)
    start = net.initial(np.random.default_rng(0))
    before = train_one(net, x, y, start)
    assert np.array_equal(train_one(net, x, y, start), before)
    assert before[6] == 4  # `seen` is in the vector: batches of this training
    assert net.initial(np.random.default_rng(0))[6] == 0


def test_one_sample_is_normalised_by_running_statistics():
    for factory, shape in ((networks.narrow_resnet18, (32, 32, 3)), (networks.Counting, (12,)), ("cnn", (28, 28))):
        net, (x, y) = net_of(factory, shape), samples(shape, 1)
        start = net.initial(np.random.default_rng(0))
        got = train_one(net, x, y, start, epochs=1)
        statistics = slice(7, 19) if factory is networks.Counting else slice(0, net.buffers)
        assert np.array_equal(got[statistics], start[statistics])
        assert not np.array_equal(got[net.head], start[net.head])
        assert np.isfinite(got).all()


def test_dropout_draws_from_the_client():
    net, data = net_of(networks.dropping, (12,)), [samples((12,), 20, seed) for seed in range(3)]
    starts, state = [net.initial(np.random.default_rng(0))] * 3, torch.get_rng_state()

    def rngs():
        return [np.random.default_rng(i) for i in range(3)]

    together, _ = train(net, data, starts, rngs(), Plan(batch=8))
    assert torch.equal(torch.get_rng_state(), state)  # other random numbers are not used
    torch.rand(5)
    alone = [
        train(net, [one], [start], [rng], Plan(batch=8))[0][0]
        for one, start, rng in zip(data[::-1], starts, rngs()[::-1], strict=True)
    ]
    assert np.array_equal(together, alone[::-1])
    with ThreadPoolExecutor(3) as pool:
        tasks = zip(data, starts, rngs(), strict=True)
        side_by_side = list(pool.map(lambda t: train(net, [t[0]], [t[1]], [t[2]], Plan(batch=8))[0][0], tasks))
    assert np.array_equal(together, side_by_side)
    # It drops when training, and only then: another client draws another mask, a score is always the same.
    other = train(net, data[:1], starts[:1], [np.random.default_rng(9)], Plan(batch=20))[0][0]
    same = train(net, data[:1], starts[:1], [np.random.default_rng(9)], Plan(batch=20))[0][0]
    mask = train(net, data[:1], starts[:1], [np.random.default_rng(8)], Plan(batch=20))[0][0]
    assert np.array_equal(other, same)
    assert not np.allclose(other, mask, atol=1e-6)  # one batch of all samples: their order does not matter
    scores = [np.concatenate([s for _, s in outputs(net, together[0], data[0][0])]) for _ in range(2)]
    assert np.array_equal(*scores)


def test_shuffling_is_that_of_other_networks():
    """Dropout's numbers come from a child of the client's generator, so samples come in the same order."""
    ours, theirs = np.random.default_rng(4), np.random.default_rng(4)
    for net, rng in ((net_of(networks.mlp, (12,)), ours), (net_for("mlp:8:6", (12,), 10), theirs)):
        train(net, [samples((12,), 20)], [net.initial(np.random.default_rng(0))], [rng], Plan(batch=8))
    assert ours.bit_generator.state == theirs.bit_generator.state


def test_hooks_see_features_and_a_frozen_reference():
    net, (x, y) = net_of(networks.cnn, (28, 28)), samples((28, 28), 12)
    start, seen = net.initial(np.random.default_rng(0)), []

    def term(now):
        buffers, weights = now.carried["teacher"].tensor_split([net.buffers], dim=1)
        before = now.carried["teacher"].clone()
        features, scores = net.forward(net.parts(weights), buffers, now.x)
        assert torch.equal(before, now.carried["teacher"])  # a reference pass moves no running mean
        seen.append((now.features.shape, features.shape, scores.shape))
        return 0.1 * (now.features - features.detach()).square().mean((1, 2))

    hooks = Hooks(term=term, carried={"teacher": [start]})
    assert not np.array_equal(train_one(net, x, y, start, hooks=hooks), train_one(net, x, y, start))
    assert set(seen) == {((1, 128, 12), (1, 128, 12), (1, 10, 12))}


def test_memory_is_added_before_the_head():
    plain, net = net_of(networks.mlp, (12,)), net_of(networks.mlp, (12,), memory=True)
    vector, (x, _) = plain.initial(np.random.default_rng(0)), samples((12,), 4)
    assert np.array_equal(net.initial(np.random.default_rng(0)), np.append(vector, np.zeros(6, np.float32)))
    bias = np.arange(6, dtype=np.float32)
    got = scores_with_memory(plain, net, vector, bias, x)
    model = TrainedNet(net.network, (12,), tuple(range(10)), np.append(vector, bias), memory=True)
    with torch.inference_mode():
        np.testing.assert_allclose(model.to_torch()(torch.from_numpy(x)).numpy(), got, rtol=1e-5, atol=1e-5)


def test_first_weights_are_the_factory_s_and_the_seed_s():
    net = net_of(networks.mlp, (12,))
    one, two = (net.initial(np.random.default_rng(seed)) for seed in (0, 1))
    assert np.array_equal(one, net.initial(np.random.default_rng(0)))
    assert not np.array_equal(one, two)
    assert np.abs(one).max() <= 1 / np.sqrt(6)  # torch's own bounds, not numbers of ours


@pytest.mark.parametrize(
    ("factory", "what"),
    [
        (networks.failing, r"support.networks:failing.*its factory fails.*\(12,\) and 10 classes.*no weights here"),
        (networks.no_module, "no_module.*must return a torch.nn.Module.*result is of type str"),
        (networks.too_wide, "too_wide.*has 11 outputs.*10 classes.*head = "),
        (networks.headless, "headless.*has no nn.Linear.*make its last layer one"),
        (networks.misnamed, "misnamed.*head = 'classifier'.*not an nn.Linear.*these are last"),
        (networks.frozen, "frozen.*head 'last' is frozen"),
        (networks.many_columns, r"many_columns.*column for each of the 10 classes.*\(2, 12\)"),
        (networks.wrong_shape, r"wrong_shape.*cannot take samples of shape \(12,\).*RuntimeError"),
        (networks.many_tokens, r"many_tokens.*row of features for each sample.*\(2, 2, 6\)"),
        (networks.of_the_batch, "of_the_batch.*normalisation '1' keeps no running statistics.*others in its batch"),
        (f"{networks.HERE}:MODULE", "MODULE.* is a module, not a function that makes one"),
        (f"{networks.HERE}:NUMBER", "NUMBER.*is of type int.*name a function"),
        (f"{networks.HERE}:nothing", "nothing.*cannot be imported here.*AttributeError.*PYTHONPATH"),
        ("nowhere.at_all:make", "nowhere.at_all:make.*cannot be imported here.*No module named 'nowhere'"),
    ],
)
def test_bad_networks_are_named(factory, what):
    with pytest.raises(errors.InvalidParameter, match=what) as caught:
        net_of(factory, (12,))
    assert "no weights" not in errors.tell(caught.value)  # a node's message to others has no words of its own code
    assert "support.networks" in errors.tell(caught.value) or "nowhere" in errors.tell(caught.value)


def test_a_trained_module_that_a_factory_gives_again_stays_as_it_is():
    """Training always begins with its numbers; an export has its own copy."""
    before = copy.deepcopy(networks.TRAINED.state_dict())
    net = net_of(networks.of_trained_parts, (12,))
    one, two = (net.initial(np.random.default_rng(0)) + shift for shift in (0, 1))
    models = [net.module(vector.astype(np.float32)) for vector in (one, two)]
    for vector, module in zip((one, two), models, strict=True):
        [(_, wanted)] = outputs(net, vector.astype(np.float32), np.eye(12, dtype=np.float32))
        with torch.no_grad():
            np.testing.assert_allclose(module(torch.eye(12)), wanted, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in networks.TRAINED.state_dict().items())


def test_functions_have_names_that_can_be_sent():
    def own(shape, classes):
        return networks.mlp(shape, classes)

    assert factories.name_of(networks.mlp) == "support.networks:mlp"
    assert factories.name_of(networks.Transformer) == "support.networks:Transformer"
    name = factories.name_of(own)
    assert factories.is_import(name)
    assert name == factories.name_of(own) != factories.name_of(lambda shape, classes: None)
    assert factories.is_import(factories.name_of(networks.mlp_of_part))
    assert fg.FedAvg(network=own).network == name
    assert net_of(own, (12,)).size == net_of(networks.mlp, (12,)).size
    with pytest.raises(errors.InvalidParameter, match="function of the program.*package.module:factory"):
        net_of(name.replace("#1", "#77"), (12,))


def test_nobody_else_decides_what_is_imported(monkeypatch):
    """A model from a file or another party imports no code; nor does a method before its run."""
    imported = []
    monkeypatch.setattr(factories, "import_module", lambda name: imported.append(name) or networks)
    monkeypatch.setattr(factories, "_admitted", set())
    fg.FedAvg(network="somebody.elses:mlp")
    sent = copy.copy(TrainedNet("somebody.elses:mlp", (12,), (0, 1), np.zeros(7, dtype=np.float32)))
    model = wire.decode(wire.encode(sent), sender="someone")
    with pytest.raises(errors.InvalidParameter, match="not told to trust.*nets.admit"):
        model.scores(np.zeros((1, 12)))
    assert not imported
    admit("somebody.elses:mlp")
    with pytest.raises(errors.Mismatch, match="has .* numbers"):
        model.scores(np.zeros((1, 12)))
    assert imported == ["somebody.elses"]


def lazy(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(4), nn.Linear(4, classes))


def test_lazy_layers_are_refused_by_name():
    with pytest.raises(errors.InvalidParameter, match="lazy layers"):
        fg.FedAvg(network=lazy, rounds=1).fit([fg.Client("a", np.zeros((6, 3)), np.arange(6) % 2)])

"""FedGen: a generator learns the heads' expectations of each class, and clients learn from its samples."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

import fedgram as fg
from fedgram.checks import CLASSES, some_clients
from fedgram.core.errors import ClientFailed, InvalidParameter
from fedgram.core.randomness import generator as random_numbers
from fedgram.methods.gradient.fedgen import Generator, draw_labels, generator_net
from fedgram.protocol.method import step
from support.gradient import SETTINGS, breaking, fit
from support.steps import WHOLE, by_hand, outputs_of, side_of

SMALL = {"noise": 4, "hidden": 8, "generator_batch": 6, "generator_steps": 5}
HIDDEN_AVG = SETTINGS | {"network": "mlp:16"}
HIDDEN = HIDDEN_AVG | SMALL


def module_of(net, vector):
    """Return the generator as the paper has it, with batch normalisation, in double precision."""
    below, bias, above, constants = (part[0].double() for part in net.parts(torch.from_numpy(vector).unsqueeze(0)))
    module = nn.Sequential(
        nn.Linear(*below.shape[::-1]), nn.BatchNorm1d(len(bias)), nn.ReLU(), nn.Linear(*above.shape[::-1])
    )
    module = module.double()
    with torch.no_grad():
        for layer, weight, constant in ((module[0], below, bias), (module[3], above, constants)):
            layer.weight.copy_(weight)
            layer.bias.copy_(constant)
    return module


def some_heads(width, seed=3):
    """Return heads and label counts of three clients; the second class belongs to one of them, the last to none."""
    rng = np.random.default_rng(seed)
    heads = {name: rng.standard_normal(4 * (width + 1)).astype(np.float32) for name in "cab"}
    counts = {"c": np.array([3, 0, 9, 0]), "a": np.array([5, 2, 1, 0]), "b": np.array([0, 0, 7, 0])}
    return heads, counts


def loss_of(module, heads, counts, y, noise, spread):
    """Return the loss of the generator: one client, one label, one pair after another."""
    made, total = module(torch.cat([noise, one_hot(y, 4).double()], dim=1)), 0.0
    for k, head in heads.items():
        weight, bias = (
            torch.from_numpy(head).double()[: 4 * made.shape[1]].view(4, -1),
            torch.from_numpy(head).double()[-4:],
        )
        for i, label in enumerate(y.tolist()):
            share = counts[k][label] / sum(own[label] for own in counts.values())
            total = total + share * cross_entropy(weight @ made[i] + bias, y[i]) / len(y)
    apart = [
        (noise[i] - noise[j]).square().mean() * (made[i] - made[j]).abs().mean()
        for i in range(len(y))
        for j in range(len(y))
    ]
    return total + spread * torch.exp(-torch.stack(apart).mean())


def test_the_server_steps_down_the_papers_loss():
    rates = {"generator_lr": 1e-3, "generator_weight_decay": 0.0, "diversity": 0.7}
    net, method = generator_net(4, 5, noise=3, hidden=7), fg.FedGen(**rates, generator_steps=1, generator_batch=6)
    made = Generator(net, np.random.default_rng(0), method)
    module = module_of(net, net.initial(np.random.default_rng(0)))
    heads, counts = some_heads(5)
    made.fit(heads, counts, np.random.default_rng(1), decay=0.5)
    rng, pooled = np.random.default_rng(1), sum(counts.values())
    y = torch.from_numpy(rng.choice(4, 6, p=pooled / pooled.sum()))
    noise = torch.from_numpy(rng.standard_normal((3, 6))).t()
    adam = torch.optim.Adam(module.parameters(), lr=5e-4)
    loss_of(module, heads, counts, y, noise, 0.7).backward()
    adam.step()
    # In evaluation mode, as clients use it: batch normalisation by running means that this one batch has moved.
    inputs = torch.cat([noise, one_hot(y, 4).double()], dim=1)
    _, got = outputs_of(net, made.vector, inputs.numpy())
    np.testing.assert_allclose(got.numpy(), module.eval()(inputs).detach().numpy(), atol=1e-6)
    np.testing.assert_array_equal(made.message["labels"], pooled)


def test_labels_are_those_of_all_that_it_was_ever_fitted_to():
    made = Generator(generator_net(4, 5, noise=3, hidden=7), np.random.default_rng(0), fg.FedGen(generator_steps=1))
    heads, counts = some_heads(5)
    for names in ("ca", "ab"):
        made.fit({name: heads[name] for name in names}, counts, np.random.default_rng(1))
    np.testing.assert_array_equal(made.message["labels"], sum(counts.values()))


def test_the_generator_learns_what_heads_take_for_a_class():
    net = generator_net(4, 5, noise=3, hidden=32)
    (heads, counts), found = some_heads(5), []
    for steps in (1, 100, 1000):
        made = Generator(net, np.random.default_rng(0), fg.FedGen(generator_lr=3e-3, generator_steps=steps))
        made.fit(heads, counts, np.random.default_rng(1))
        inputs = np.concatenate(
            [np.random.default_rng(2).standard_normal((50, 3)), np.tile(np.eye(4)[1], (50, 1))], axis=1
        )
        features = outputs_of(net, made.vector, inputs)[1].numpy()
        head = heads["a"]  # no other client has the class, so only this client teaches it
        found.append(((features @ head[:20].reshape(4, 5).T + head[20:]).argmax(axis=1) == 1).mean())
    assert found[0] < found[-1] == 1


def test_whoever_replies_first_the_generator_is_the_same():
    net, (heads, counts) = generator_net(4, 5, noise=3, hidden=7), some_heads(5)
    vectors = []
    for order in ("abc", "cba"):
        made = Generator(net, np.random.default_rng(0), fg.FedGen())
        made.fit({name: heads[name] for name in order}, counts, np.random.default_rng(1))
        vectors.append(made.vector)
    np.testing.assert_array_equal(*vectors)


def test_no_label_is_drawn_that_nobody_has():
    counts = np.array([[5, 0, 1], [0, 2, 0]])
    y = draw_labels(counts, 400, [np.random.default_rng(0), np.random.default_rng(1)]).numpy()
    assert set(y[0]) == {0, 2}
    assert set(y[1]) == {1}
    assert abs((y[0] == 0).mean() - 5 / 6) < 0.06


def message(method, net, labels):
    """Return weights, a generator and label counts as the server sends them."""
    rng = np.random.default_rng(7)
    vector = method._generator(net).initial(rng) * 3
    return {"weights": net.initial(rng), "generator": vector, "labels": np.asarray(labels)}


@pytest.mark.parametrize("network", ["linear", "mlp:12"])
@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 0.0), (0.0, 2.0), (1.0, 3.0)])
def test_a_client_learns_from_the_generator_as_printed(network, alpha, beta):
    steps = 3
    method = fg.FedGen(**WHOLE, **SMALL, network=network, local_steps=steps, alpha=alpha, beta=beta, decay=0.5)
    side = side_of(some_clients()[0], round=2)
    net = method.net_of(side)
    sent = message(method, net, [7, 3, 1, 1, 1, 9, 2, 2, 0, 4])
    # The same random numbers: the order of samples from the client's own, all else from its first child.
    shuffles = random_numbers(0, "gradient", "train", 2, "client-0")
    child, n = shuffles.spawn(1)[0], len(side.y)

    def made(y, noise):
        inputs = np.concatenate([noise.T, np.eye(CLASSES)[y]], axis=1)
        return outputs_of(method._generator(net), sent["generator"], inputs)[1]

    def head(vector, features):
        weights, constants = vector[net.head][:-CLASSES].view(CLASSES, -1), vector[net.head][-CLASSES:]
        return features @ weights.T + constants

    def term(features, scores, y, vector):
        added, order = 0.0, shuffles.permutation(n)
        if beta:
            made_for = made(side.y[order], child.standard_normal((4, n), dtype=np.float32))
            target = head(vector, made_for).softmax(1).detach()
            said = scores[order].log_softmax(1)
            known = torch.from_numpy(sent["labels"] > 0)[y[order]]
            added = added + 0.25 * beta * ((target * (target.log() - said)).sum(1) * known).mean()
        if alpha:
            drawn = child.choice(CLASSES, 6, p=sent["labels"] / sent["labels"].sum())
            features = made(drawn, child.standard_normal((4, 6), dtype=np.float32))
            added = added + 0.25 * alpha * cross_entropy(head(vector, features), torch.from_numpy(drawn))
        return added

    [got] = method.train([side], [sent])
    want = by_hand(method, side, sent["weights"], steps, term)
    np.testing.assert_allclose(got, want, atol=3e-6)
    [plain] = fg.FedAvg(**WHOLE, network=network, local_steps=steps).train(
        [side_of(some_clients()[0])], [sent["weights"]]
    )
    assert np.abs(got - plain).max() > 1e-3


def test_a_class_that_the_generator_was_never_fitted_to_adds_nothing():
    client = some_clients()[0]
    method = fg.FedGen(**WHOLE, **SMALL, local_steps=3, alpha=0.0)
    net = method.net_of(side_of(client))
    sent = message(method, net, np.bincount(client.y, minlength=CLASSES) == 0)
    assert sent["labels"].any()
    [got] = method.train([side_of(client)], [sent | {"labels": sent["labels"].astype(np.int64)}])
    [plain] = fg.FedAvg(**WHOLE, local_steps=3).train([side_of(client)], [sent["weights"]])
    np.testing.assert_allclose(got, plain, atol=1e-6)  # once by autograd, once written out


def test_who_trains_beside_a_client_does_not_change_its_draws():
    clients, method = some_clients(), fg.FedGen(**HIDDEN, alpha=1.0, beta=1.0)
    net = method.net_of(side_of(clients[0]))
    sent = message(method, net, np.ones(CLASSES, dtype=np.int64))
    together = method.train([side_of(client) for client in clients], [sent] * len(clients))
    for client, vector in zip(clients, together, strict=True):
        [alone] = method.train([side_of(client)], [sent])
        np.testing.assert_allclose(vector, alone, atol=1e-5)


@pytest.mark.parametrize("settings", [SETTINGS, SETTINGS | {"network": "mlp:16", "participation": 0.5}])
def test_fedgen_switched_off_is_fedavg(settings):
    want = fit(fg.FedAvg(**settings)).model.vector
    np.testing.assert_array_equal(fit(fg.FedGen(**settings, alpha=0.0, beta=0.0)).model.vector, want)
    # And its terms vanish with their strengths: samples are shuffled in the same way.
    nearly = fit(fg.FedGen(**settings, **SMALL, alpha=1e-9, beta=1e-9)).model.vector
    np.testing.assert_allclose(nearly, want, atol=1e-6)
    assert not np.allclose(fit(fg.FedGen(**settings, **SMALL)).model.vector, want, atol=1e-4)


def test_in_the_first_round_there_is_no_generator_yet():
    got, want = (fit(method(**SETTINGS | {"rounds": 1})).model.vector for method in (fg.FedGen, fg.FedAvg))
    np.testing.assert_array_equal(got, want)


def test_the_generator_is_fitted_to_the_heads_of_those_who_took_part(monkeypatch):
    seen, plain = [], Generator.fit

    def watched(self, heads, counts, *rest):
        seen.append({name: (head, counts[name]) for name, head in heads.items()})
        return plain(self, heads, counts, *rest)

    monkeypatch.setattr(Generator, "fit", watched)
    fit(fg.FedGen(**HIDDEN | {"participation": 0.5, "rounds": 3}))
    asked = set(fit(fg.FedAvg(**HIDDEN_AVG | {"participation": 0.5, "rounds": 1})).contributors)
    assert len(seen) == 2, "not after the last round, when it would not be sent"
    assert set(seen[0]) == asked
    for client in some_clients():
        if client.name in asked:
            head, counts = seen[0][client.name]
            alone = fit(fg.FedAvg(**HIDDEN_AVG | {"rounds": 1}), [client]).model
            np.testing.assert_allclose(head, alone.vector[alone.net.head], atol=1e-6)
            np.testing.assert_array_equal(counts, np.bincount(client.y, minlength=CLASSES))


def test_adams_learning_rate_falls_from_round_to_round(monkeypatch):
    fallen, plain = [], Generator.fit

    def watched(self, heads, counts, rng, decay):
        fallen.append(decay)
        return plain(self, heads, counts, rng, decay)

    monkeypatch.setattr(Generator, "fit", watched)
    fit(fg.FedGen(**HIDDEN | {"rounds": 4, "local_steps": 1}, decay=0.5))
    assert fallen == [1, 0.5, 0.25]


def test_one_client_a_single_class_a_single_sample_and_a_lost_client_are_taken():
    [client, *_] = some_clients()
    one = replace(client, x=client.x[:1], y=client.y[:1])
    for some in ([client], [one]):
        assert np.isfinite(fit(fg.FedGen(**HIDDEN), some).model.vector).all()
    same = [replace(client, y=client.y * 0, y_test=client.y_test * 0) for client in some_clients()]
    assert fit(fg.FedGen(**HIDDEN), same).evaluation.pooled == 1, "no other class is ever made"
    fitted = fit(breaking(fg.FedGen(**HIDDEN), {"client-2"}, 1), require=5)
    assert set(fitted.lost) == {"client-2"}
    assert np.isfinite(fitted.model.vector).all()


def test_fedgen_sends_counts_once_and_the_generator_from_the_second_round_on():
    size = generator_net(CLASSES, 16, noise=4, hidden=8).size
    for rounds in (1, 4):
        got, want = (
            fit(method).traffic.by_client
            for method in (fg.FedGen(**HIDDEN | {"rounds": rounds}), fg.FedAvg(**HIDDEN_AVG | {"rounds": rounds}))
        )
        for name, account in want.items():
            more = (rounds - 1) * (4 * size + 8 * CLASSES)
            assert more < got[name]["down"] - account["down"] < more + 300 * rounds + 300
            assert 8 * CLASSES < got[name]["up"] - account["up"] < 8 * CLASSES + 400


@pytest.mark.parametrize(
    "said", [np.zeros(CLASSES, dtype=np.int64), np.full(CLASSES, 10**6), np.ones(3, dtype=np.int64), 5]
)
def test_counts_that_cannot_be_are_refused(said):
    class Lying(fg.FedGen):
        @step
        def count(self, client):
            return said

    with pytest.raises(ClientFailed, match="counts of|from 0 to|shape"):
        fit(Lying(**HIDDEN))


@pytest.mark.parametrize(
    "bad",
    [
        {"alpha": -1.0},
        {"beta": -1.0},
        {"decay": 0.0},
        {"noise": 0},
        {"hidden": 0},
        {"generator_batch": 1},
        {"generator_lr": -1.0},
    ],
)
def test_bad_settings_of_fedgen_are_refused(bad):
    with pytest.raises(InvalidParameter, match=next(iter(bad))):
        fg.FedGen(**bad)


def test_a_head_that_is_drawn_to_the_generator_counts_as_made_of_its_last_batch():
    assert fg.FedGen(lr=0.5, alpha=4.0, batch=40).fewest_samples(41) == 1
    assert fg.FedGen().fewest_samples(41) == 41


def test_a_large_alpha_is_accepted_where_a_proximal_term_would_not_be():
    assert fg.FedGen(lr=0.5, alpha=1000.0).alpha == 1000.0

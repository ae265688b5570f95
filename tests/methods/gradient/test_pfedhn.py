"""pFedHN: learning of the server's network from clients' changes, and messages."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedgram as fg
from fedgram.checks import CLASSES, some_clients
from fedgram.core.errors import InvalidParameter
from fedgram.engines.inprocess import InProcess, Room
from fedgram.methods.gradient.pfedhn import generate, learn
from fedgram.nets.factories import seeded
from fedgram.protocol.session import run
from support.gradient import SETTINGS, breaking, first_weights, fit, image_clients

HIDDEN = SETTINGS | {"network": "mlp:16"}
LINEAR = SETTINGS | {"network": "linear"}


def hypernetwork(method, clients=4, numbers=9):
    with seeded(np.random.default_rng(0)):
        hyper = method.hypernetwork(clients, np.arange(numbers, dtype=np.float32))
        torch.nn.init.normal_(hyper[-1].weight, std=0.3)  # as after some learning
    return hyper


def optimizer_of(hyper, lr):
    return torch.optim.SGD(hyper.parameters(), lr)


def test_the_server_descends_on_how_far_clients_go():
    # The gradient of ½ mean ‖θ_i(ψ) - θ̃_i‖² with θ̃_i = θ_i + Δ_i held fixed, by autograd in double precision.
    hyper = hypernetwork(fg.PFedHN())
    rng, places = np.random.default_rng(1), [3, 0]
    changes = {place: rng.normal(size=9).astype(np.float32) for place in places}
    exact = hypernetwork(fg.PFedHN()).double()
    theta = exact(torch.tensor(places))
    wanted = theta.detach() + torch.from_numpy(np.stack([changes[place] for place in places]))
    (0.5 * (theta - wanted).square().sum(1).mean()).backward()
    begun = generate(hyper, range(4))
    learn(hyper, optimizer_of(hyper, 0.01), changes, clip=1e9)
    for moved, parameter in zip(hyper.parameters(), exact.parameters(), strict=True):
        want = parameter.detach() - 0.01 * parameter.grad
        np.testing.assert_allclose(moved.detach().numpy(), want.numpy(), atol=1e-6)
    ended = generate(hyper, range(4))
    for place, change in changes.items():
        assert (ended[place] - begun[place]) @ change > 0, "what is generated follows the client"


def test_a_clients_own_embedding_moves_and_no_other():
    hyper = hypernetwork(fg.PFedHN())
    before = hyper[0].weight.detach().clone()
    learn(hyper, optimizer_of(hyper, 0.1), {2: np.ones(9, dtype=np.float32)}, clip=50)
    moved = (hyper[0].weight != before).any(1).tolist()
    assert moved == [False, False, True, False]


def test_the_gradient_is_cut_at_the_clip():
    hyper = hypernetwork(fg.PFedHN())
    before = [parameter.detach().clone() for parameter in hyper.parameters()]
    learn(hyper, optimizer_of(hyper, 1.0), {1: np.full(9, 1e6, dtype=np.float32)}, clip=0.5)
    steps = [(parameter - old).square().sum() for parameter, old in zip(hyper.parameters(), before, strict=True)]
    assert sum(steps).sqrt().item() == pytest.approx(0.5, rel=1e-4)


def test_it_begins_with_the_common_first_weights():
    method = fg.PFedHN(**LINEAR)
    with seeded(np.random.default_rng(0)):
        hyper = method.hypernetwork(9, first_weights())
        other = fg.PFedHN(embedding=7).hypernetwork(9, first_weights())
    np.testing.assert_array_equal(generate(hyper, range(9)), np.tile(first_weights(), (9, 1)))
    assert hyper[0].weight.shape == (9, 1 + 9 // 4)
    assert other[0].weight.shape == (9, 7)


def test_switched_off_everybody_trains_from_the_first_weights_in_every_round():
    off = fg.PFedHN(**LINEAR, server_lr=0.0)
    once, alone = fit(replace(off, rounds=1)), fit(fg.Alone(**LINEAR | {"rounds": 1}))
    room = Room(off, some_clients(), InProcess())
    run(off, room, classes=CLASSES, seed=0, require="all", progress=None)
    for name, side in room.sides.items():
        np.testing.assert_array_equal(once.personal[name].vector, alone.personal[name].vector)
        ended = side.model.vector
        side.enter("gradient", {"classes": None, "round": off.rounds - 1, "seed": 0, "step": "train"})
        [again] = off.train([side], [first_weights()])
        np.testing.assert_allclose(ended, again, atol=1e-6)  # clients that train together round otherwise


def test_switched_off_with_private_heads_only_the_base_begins_anew():
    off = fg.PFedHN(**HIDDEN | {"rounds": 2}, server_lr=0.0, partial=True)
    once, twice = replace(off, rounds=1), fit(off)
    room = Room(once, some_clients(), InProcess())
    run(once, room, classes=CLASSES, seed=0, require="all", progress=None)
    first = fit(fg.FedAvg(**HIDDEN | {"rounds": 1, "lr": 1e-30})).model.vector
    for name, side in room.sides.items():
        side.enter("gradient", {"classes": None, "round": 1, "seed": 0, "step": "train"})
        once.train([side], [first[off.net_of(side).base]])
        np.testing.assert_allclose(twice.personal[name].vector, side.model.vector, atol=1e-6)


def test_the_servers_network_decays_though_nobody_changes_anything():
    still = LINEAR | {"lr": 1e-30, "rounds": 2}
    method = fg.PFedHN(**still, server_lr=0.2, server_momentum=0.0, server_weight_decay=0.5)
    for model in fit(method).personal.values():  # generated after one step of the server
        np.testing.assert_allclose(model.vector, (1 - 0.2 * 0.5) * first_weights(), rtol=1e-6)


def test_by_default_clients_learn_of_each_other():
    on, off = (fit(fg.PFedHN(**HIDDEN | {"rounds": 15}, server_lr=lr)) for lr in (0.1, 0.0))
    assert on.evaluation.pooled > off.evaluation.pooled + 0.1


@pytest.mark.parametrize("partial", [False, True])
def test_what_is_generated_goes_down_and_as_much_up(partial):
    few, more = (fit(fg.PFedHN(**HIDDEN | {"rounds": n}, partial=partial)).traffic.by_client for n in (1, 2))
    numbers = 64 * 16 + 16 + (0 if partial else 16 * 10 + 10)
    for name in few:
        down, up = more[name]["down"] - few[name]["down"], more[name]["up"] - few[name]["up"]
        assert 4 * numbers <= down < 4 * numbers + 500
        assert 4 * numbers <= up < 4 * numbers + 300


def test_running_means_are_averaged_by_samples():
    seen, replies = {}, {}

    class Watched(fg.PFedHN):
        @fg.step(batched=True)
        def train(self, clients, sent):
            trained = super().train(clients, sent)
            seen.setdefault(clients[0].round, sent[0])
            replies.update({(c.round, c.name): own for c, own in zip(clients, trained, strict=True)})
            return trained

    clients = image_clients()
    fit(Watched(**SETTINGS | {"rounds": 2, "local_steps": 2}, network="cnn", server_lr=0.0), clients)
    sizes = [len(client.y) for client in clients]
    want = np.average([replies[0, client.name] for client in clients], axis=0, weights=sizes)
    np.testing.assert_allclose(seen[1][:192], want[:192], atol=1e-5)
    np.testing.assert_array_equal(seen[1][192:], seen[0][192:])
    assert np.abs(seen[1][:192] - seen[0][:192]).max() > 0.01


def test_private_heads_need_a_base():
    with pytest.raises(InvalidParameter, match="layers below the last"):
        fit(fg.PFedHN(**LINEAR, partial=True))
    assert fit(fg.PFedHN(**SETTINGS | {"rounds": 1}, partial=True)).personal["client-0"].network == "mlp"


def test_who_was_never_asked_keeps_what_is_generated():
    fitted = fit(fg.PFedHN(**LINEAR, participation=0.17))
    unasked = set(fitted.personal) - set(fitted.contributors)
    assert len(unasked) >= 3
    for name in unasked:
        assert np.abs(fitted.personal[name].vector - first_weights()).max() > 1e-4


def test_a_client_lost_on_the_way_leaves_the_others():
    fitted = fit(breaking(fg.PFedHN(**LINEAR), {"client-2"}, 1), require=5)
    assert set(fitted.lost) == {"client-2"}
    assert fitted.evaluation.pooled > 0.5


def test_one_client_and_one_sample_are_enough():
    [client] = some_clients()[:1]
    single = replace(client, x=client.x[:1], y=client.y[:1])
    fitted = fit(fg.PFedHN(**LINEAR | {"lr": 0.5}), [single])
    assert fitted.personal[client.name].predict(single.x) == single.y


@pytest.mark.parametrize(
    "bad",
    [
        {"server_lr": -1.0},
        {"server_momentum": 1.0},
        {"server_weight_decay": -1.0},
        {"depth": -1},
        {"hidden": 0},
        {"embedding": 0},
        {"clip": 0.0},
    ],
    ids=str,
)
def test_bad_settings_are_refused(bad):
    with pytest.raises(InvalidParameter, match=next(iter(bad))):
        fg.PFedHN(**bad)

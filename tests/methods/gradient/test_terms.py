"""Each gradient method's own term acts as in its paper; without it the method is FedAvg or training alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedgram as fg
from fedgram.checks import CLASSES, some_clients
from fedgram.engines.inprocess import InProcess, Room
from fedgram.methods.gradient.gradient_method import together
from fedgram.nets import outputs
from fedgram.protocol.method import step
from fedgram.protocol.session import run
from support.gradient import SETTINGS, alone, equal_clients, first_weights, fit, loss, mean_features, vectors

HIDDEN = {"network": "mlp:16"}


@pytest.mark.parametrize(
    "off",
    [
        fg.FedProx(**SETTINGS, mu=0.0),
        fg.FedAvgFT(**SETTINGS),
        fg.FedProxFT(**SETTINGS, mu=0.0),
        fg.Ditto(**SETTINGS, lam=3.0),  # for any λ the global model is FedAvg's
        fg.FedPHP(**SETTINGS, lam=0.0),
    ],
    ids=lambda method: method.name,
)
def test_switched_off_the_global_model_is_that_of_fedavg(off):
    np.testing.assert_array_equal(fit(off).model.vector, fit(fg.FedAvg(**SETTINGS)).model.vector)


def test_fedala_switched_off_is_fedavg():
    got, want = fit(fg.FedALA(**SETTINGS, eta=0.0)), fit(fg.FedAvg(**SETTINGS))
    np.testing.assert_allclose(got.model.vector, want.model.vector, atol=1e-6)  # own + (world - own) · 1 is rounded


def test_feddbe_switched_off_is_fedavg():
    got, want = fit(fg.FedDBE(**SETTINGS, kappa=0.0, bias=False)), fit(fg.FedAvg(**SETTINGS))
    size = len(want.model.vector)
    np.testing.assert_allclose(got.model.vector[:size], want.model.vector, atol=1e-6)
    assert not got.model.vector[size:].any()


def test_feddyn_switched_off_is_fedavg_for_clients_of_one_size():
    got, want = (fit(method, equal_clients()) for method in (fg.FedDyn(**SETTINGS, alpha=0.0), fg.FedAvg(**SETTINGS)))
    np.testing.assert_allclose(got.model.vector, want.model.vector, atol=1e-6)


@pytest.mark.parametrize(
    "off",
    [
        fg.Ditto(**SETTINGS, lam=0.0),
        fg.FedAMP(**SETTINGS, alpha=1e-12, lam=0.0),
        fg.FedProto(**SETTINGS, lam=0.0),
        fg.FedAPA(**SETTINGS, eta=0.0, participation=1.0),
        fg.PFedMe(**SETTINGS, lam=0.0),
    ],
    ids=lambda method: method.name,
)
def test_switched_off_each_client_trains_alone(off):
    fitted = fit(off)
    for name in fitted.personal:
        np.testing.assert_allclose(fitted.personal[name].vector, alone(off, name), atol=1e-5)


@pytest.mark.parametrize(
    ("weak", "strong"),
    [
        (fg.FedAMP(**SETTINGS, alpha=1e-12, lam=0.0), fg.FedAMP(**SETTINGS)),
        (fg.FedProto(**SETTINGS, lam=0.0), fg.FedProto(**SETTINGS)),
        (fg.FedAPA(**SETTINGS, eta=0.0, participation=1.0), fg.FedAPA(**SETTINGS, participation=1.0)),
        (fg.Ditto(**SETTINGS, lam=0.0), fg.Ditto(**SETTINGS)),
        (fg.FedDBE(**SETTINGS, **HIDDEN, kappa=0.0), fg.FedDBE(**SETTINGS, **HIDDEN)),
        (fg.FedPHP(**SETTINGS, lam=0.0), fg.FedPHP(**SETTINGS)),
        (fg.FedALA(**SETTINGS, eta=0.0), fg.FedALA(**SETTINGS)),
        (fg.PFedMe(**SETTINGS, lam=0.0), fg.PFedMe(**SETTINGS)),
    ],
    ids=lambda method: method.name,
)
def test_by_default_no_term_is_switched_off(weak, strong):
    assert np.abs(vectors(fit(weak)) - vectors(fit(strong))).max() > 1e-4


def test_fedprox_holds_clients_back():
    first = first_weights()
    moved = [
        np.linalg.norm(fit(fg.FedProx(**SETTINGS | {"rounds": 1}, mu=mu)).model.vector - first)
        for mu in (0.0, 0.01, 0.1, 1.0)
    ]
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] < 0.95 * moved[0]


def test_ditto_draws_the_personal_model_to_the_global_one():
    away = []
    for lam in (0.0, 0.3, 3.0):
        fitted = fit(fg.Ditto(**SETTINGS, lam=lam))
        away.append(np.linalg.norm(vectors(fitted) - fitted.model.vector))
    assert away == sorted(away, reverse=True)
    assert away[-1] < 0.8 * away[0]


def test_feddyn_remembers_each_clients_gradient():
    # In the second round the term αh_k must cancel the pull of the client's own loss away from the others'.
    clients, method = equal_clients(), fg.FedDyn(**SETTINGS | {"rounds": 1, "momentum": 0.0}, alpha=0.5)
    room = Room(method, clients, InProcess())
    run(method, room, classes=CLASSES, seed=0, require="all", progress=None)
    first = first_weights()
    mean = fit(method, clients).model.vector
    memories = np.stack([side.state["h"] for side in room.sides.values()])
    np.testing.assert_allclose(memories.mean(axis=0), mean - first, atol=1e-6)  # h_k = w_k - w⁰, and their mean
    # One step of a second round, written out: the gradient is ∇L_k(w) + αh_k + α(w - w) at w = mean + mean(h).
    world = (mean + memories.mean(axis=0)).astype(np.float32)
    one = fg.FedDyn(**SETTINGS | {"momentum": 0.0}, alpha=0.5, local_steps=1)
    off = replace(one, alpha=0.0)
    side = room.sides[clients[0].name]
    memory = side.state["h"]
    side.enter("gradient", {"classes": None, "round": 1, "seed": 0, "step": "train"})
    [plain] = off.train([side], [world])
    side.state["h"] = memory
    side.enter("gradient", {"classes": None, "round": 1, "seed": 0, "step": "train"})
    [corrected] = one.train([side], [world])
    np.testing.assert_allclose(corrected - plain, -one.lr * 0.5 * memory, atol=1e-6)


def test_fedala_steps_downhill_within_bounds():
    # One step by hand from W = ½: W - η ∂L/∂W, cut to [0, 1], where ∂L/∂W = ∂L/∂θ ⊙ (Θ - Θ_i).
    [client] = some_clients()[:1]
    method = fg.FedALA(**SETTINGS | {"batch": 1000}, eta=2.0, fraction=1.0)
    room = Room(method, [client], InProcess())
    run(method, room, classes=CLASSES, seed=0, require="all", progress=None)
    side, rng = room.sides[client.name], np.random.default_rng(0)
    own, world = (rng.normal(size=650).astype(np.float32) * 0.1 for _ in range(2))
    side.state["own"], side.state["share"] = own, np.full(650, 0.5, dtype=np.float32)
    side.enter("gradient", {"classes": None, "round": 9, "seed": 0, "step": "train"})
    [(_, share)] = together([method._mixture(side, world)])
    mixed = torch.tensor(own + (world - own) * 0.5, requires_grad=True)
    scores = torch.from_numpy(client.x.astype(np.float32)) @ mixed[:640].view(10, 64).T + mixed[640:]
    torch.nn.functional.cross_entropy(scores, torch.from_numpy(side.y)).backward()
    want = np.clip(0.5 - 2.0 * mixed.grad.numpy() * (world - own), 0, 1)
    np.testing.assert_allclose(share, want, atol=1e-5)


def test_fedala_learns_what_to_take_over():
    method = fg.FedALA(**SETTINGS)
    room = Room(method, some_clients(), InProcess())
    run(method, room, classes=CLASSES, seed=0, require="all", progress=None)
    for side in room.sides.values():
        share = side.state["share"]
        assert share.min() >= 0
        assert share.max() <= 1
        assert share.min() < 1
    # Its initial model fits its own samples better than the global model does.
    world = fit(method).model.vector
    side = next(iter(room.sides.values()))
    side.enter("gradient", {"classes": None, "round": 9, "seed": 0, "step": "train"})
    [(mixed, _)] = together([method._mixture(side, world)])
    assert loss(method, side, mixed) < loss(method, side, world)


def test_feddbe_draws_mean_features_to_the_consensus():
    clients, away = some_clients(), []
    for kappa in (0.0, 1.0, 5.0):
        method = fg.FedDBE(**SETTINGS, **HIDDEN, kappa=kappa)
        room = Room(method, clients, InProcess())
        run(method, room, classes=CLASSES, seed=0, require="all", progress=None)
        consensus = next(iter(room.sides.values())).state["consensus"]
        means = mean_features(method, fit(method, clients), clients)
        away.append(np.linalg.norm(means.mean(axis=0) - consensus))
        assert all(np.abs(side.state["bias"]).max() > 0 for side in room.sides.values())
    assert away == sorted(away, reverse=True)
    assert away[-1] < 0.7 * away[0]


def test_fedphp_inherits_by_a_moving_average():
    two = fit(fg.FedPHP(**SETTINGS | {"rounds": 2}, mu=0.8, lam=0.0))
    once = fit(fg.FedPHP(**SETTINGS | {"rounds": 1}, mu=0.8, lam=0.0))
    # After two of two rounds: μ_t = 0 the first time, 0.8 · 1/2 the second.
    [client] = some_clients()[:1]
    first = once.personal[client.name].vector
    second = fit(fg.FedPHP(**SETTINGS | {"rounds": 2}, mu=0.0, lam=0.0)).personal[client.name].vector
    np.testing.assert_allclose(two.personal[client.name].vector, 0.4 * first + 0.6 * second, atol=1e-6)


def test_fedphp_learns_from_its_teacher():
    # With a larger weight of the teacher, a client's outputs come nearer to the teacher's.
    far = []
    for lam in (0.0, 0.3, 0.9):
        method = fg.FedPHP(**SETTINGS, lam=lam)
        room = Room(method, some_clients(), InProcess())
        run(method, room, classes=CLASSES, seed=0, require="all", progress=None)
        side = next(iter(room.sides.values()))
        teacher, world = fit(fg.FedPHP(**SETTINGS, lam=0.0)).personal[side.name].vector, first_weights()
        side.state["own"] = teacher
        side.enter("gradient", {"classes": None, "round": 9, "seed": 0, "step": "train"})
        [trained] = method.train([side], [world])
        said, taught = (
            torch.from_numpy(np.concatenate([s for _, s in outputs(method.net_of(side), v, side.x)]))
            for v in (trained, teacher)
        )
        wanted = (taught / 4).softmax(1)
        far.append((wanted * (wanted.log() - said.log_softmax(1))).sum(1).mean().item())
    assert far == sorted(far, reverse=True)


def test_fedamp_attracts_the_similar():
    rng = np.random.default_rng(0)
    near, far = rng.standard_normal(30), rng.standard_normal(30)
    points = np.stack([near, near + 0.1, far, far - 0.1])
    shares = fg.FedAMP(alpha=1.0, sigma=10.0).attention(points, 1.0)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert shares[0, 1] > shares[0, 2]
    assert shares[2, 3] > shares[2, 0]
    distance = np.square(points[0] - points[2]).sum()
    assert shares[0, 2] == pytest.approx(np.exp(-distance / 10) / 10)
    # For any number of clients, no client's own share is negative.
    many = np.zeros((500, 3))
    method = fg.FedAMP()
    assert method.attention(many, method._alpha(0, 500)).min() > -1e-12
    assert method._alpha(60, 2) == pytest.approx(100)


def test_fedamp_trains_near_the_cloud():
    [client] = some_clients()[:1]
    away = []
    for strength in (0.0, 0.5, 5.0):
        method = fg.FedAMP(**SETTINGS)
        room = Room(method, [client], InProcess())
        run(method, room, classes=CLASSES, seed=0, require="all", progress=None)
        side, cloud = room.sides[client.name], first_weights()
        side.enter("gradient", {"classes": None, "round": 9, "seed": 0, "step": "train"})
        [trained] = method.train([side], [{"cloud": cloud, "pull": strength}])
        away.append(np.linalg.norm(trained - cloud))
    assert away == sorted(away, reverse=True)
    assert away[-1] < 0.8 * away[0]


def test_fedamp_sends_each_client_its_cloud(monkeypatch):
    got, plain = [], fg.FedAMP.train

    @step(batched=True)
    def train(self, clients, tasks):
        got.append([task["cloud"] for task in tasks])
        return plain(self, clients, tasks)

    monkeypatch.setattr(fg.FedAMP, "train", train)
    method = fg.FedAMP(**SETTINGS | {"rounds": 2})
    once = vectors(fit(replace(method, rounds=1))).astype(np.float64)
    got.clear()
    fit(method)
    want = method.attention(once, method.alpha) @ once
    np.testing.assert_allclose(got[1], want, atol=1e-6)


def test_fedamp_lasts():
    # α_t falls for ever, and the pull λ/α_t with it would grow beyond what SGD can follow.
    fitted = fit(fg.FedAMP(rounds=240, epochs=1, local_steps=1, lr=0.05))
    assert np.abs(vectors(fitted)).max() < 100


def test_fedproto_draws_nothing_to_prototypes_that_nobody_has_sent():
    one = SETTINGS | {"rounds": 1}
    np.testing.assert_allclose(
        vectors(fit(fg.FedProto(**one, lam=10.0))), vectors(fit(fg.FedProto(**one, lam=0.0))), atol=1e-5
    )


def test_fedproto_draws_features_to_prototypes():
    clients, spread = some_clients(), []
    for lam in (0.0, 1.0, 10.0):
        fitted = fit(fg.FedProto(**SETTINGS, lam=lam), clients)
        means = {}
        for client in clients:
            model = fitted.personal[client.name]
            features = np.concatenate([z for z, _ in outputs(model.net, model.vector, client.x)])
            for label in np.unique(client.y):
                means.setdefault(label, []).append(features[client.y == label].mean(axis=0))
        spread.append(np.mean([np.stack(found).std(axis=0).mean() for found in means.values() if len(found) > 1]))
    assert spread == sorted(spread, reverse=True)
    assert spread[-1] < 0.8 * spread[0]


def test_fedproto_sends_single_precision():
    few, many = (fit(fg.FedProto(**SETTINGS | {"rounds": rounds}, network="mlp:50")).traffic for rounds in (1, 5))
    numbers = CLASSES * (50 + 1)  # class means of 50 features, and how many samples they are of
    for client, account in many.by_client.items():
        for way in ("up", "down"):
            a_round = (account[way] - few.by_client[client][way]) / 4
            assert 4 * numbers <= a_round < 4 * numbers + 700, (client, way)


def test_fedproto_can_predict_by_the_nearest_prototype():
    fitted = fit(fg.FedProto(**SETTINGS, predict="prototype"))
    for client in some_clients():
        assert set(fitted.personal[client.name].predict(client.x_test)) <= set(client.y)
    assert fitted.evaluation.pooled > 0.4


def test_pfedme_follows_its_personal_model():
    [client] = some_clients()[:1]
    options = SETTINGS | {"rounds": 1, "local_steps": 1, "inner": 3, "eta": 0.02, "lam": 2.0}
    fitted = fit(fg.PFedMe(**options), [client])
    first, theta = first_weights(), fitted.personal[client.name].vector
    np.testing.assert_allclose(fitted.model.vector, first - 0.02 * 2.0 * (first - theta), atol=1e-6)
    near = [
        np.linalg.norm(fit(fg.PFedMe(**options | {"lam": lam}), [client]).personal[client.name].vector - first)
        for lam in (0.1, 2.0, 15.0)
    ]
    assert near == sorted(near, reverse=True)
    half = fit(fg.PFedMe(**options, beta=0.5), [client]).model.vector
    np.testing.assert_allclose(half, (first + fitted.model.vector) / 2, atol=1e-6)


def test_fedapa_adjusts_weights_as_printed():
    method = fg.FedAPA()
    np.testing.assert_allclose(method.adjust(np.array([0.9, -0.2, 1.5, 0.3]), 0), np.array([0.5, 0, 1, 0.3]) / 1.8)
    raw = np.array([0.9, -0.2, 1.5])
    np.testing.assert_allclose(fg.FedAPA(clip=False, self_weight=False, normalize=False).adjust(raw, 0), raw)
    np.testing.assert_allclose(fg.FedAPA(mu=0.0).adjust(np.array([0.3, -1.0]), 0), [1, 0])


def test_fedapa_steps_downhill():
    # One round by hand: bases are equal at first, so θ̄ = θ⁰ for all, and a_ij moves by η⟨θ_j, Δ_i⟩.
    options = SETTINGS | {"rounds": 1, "participation": 1.0, "clip": False, "self_weight": False, "normalize": False}
    fitted = fit(fg.FedAPA(**options, eta=0.001))
    still = fit(fg.FedAPA(**options | {"lr": 1e-30}))
    net = next(iter(fitted.personal.values())).net
    first = next(iter(still.personal.values())).vector[net.base].astype(np.float64)
    weights = fitted.notes["aggregation weights"]
    for i, name in enumerate(fitted.contributors):
        change = fitted.personal[name].vector[net.base] - first
        np.testing.assert_allclose(weights[i], np.eye(len(weights))[i] + 0.001 * first @ change, atol=1e-6)
        # Downhill: in the direction of the step the mixture comes nearer to the client's optimum.
        mixed = weights[i] @ np.tile(first, (len(weights), 1))
        if abs(first @ change) > 1e-3:
            assert np.linalg.norm(first + change - mixed) < np.linalg.norm(change)


def test_fedapa_finds_who_has_the_same_task():
    # Two kinds of clients: the second has reversed labels. Each learns to take from its own kind.
    some = some_clients(count=3, samples=600)
    turned = [
        replace(client, name=f"turned-{client.name}", y=(client.y + 5) % CLASSES, y_test=(client.y_test + 5) % CLASSES)
        for client in some
    ]
    method = fg.FedAPA(**SETTINGS | {"rounds": 12, "participation": 1.0}, partial=False)
    weights = fit(method, [*some, *turned]).notes["aggregation weights"]
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    off = ~np.eye(3, dtype=bool)
    same = np.concatenate([weights[:3, :3][off], weights[3:, 3:][off]]).mean()
    other = np.concatenate([weights[:3, 3:].ravel(), weights[3:, :3].ravel()]).mean()
    assert same > other


def test_fedala_shuffles_as_fedavg_does():
    got, want = fit(fg.FedALA(**SETTINGS, eta=1e-30)), fit(fg.FedAvg(**SETTINGS))
    np.testing.assert_allclose(got.model.vector, want.model.vector, atol=1e-5)

"""Gradient methods: each one's own term does what its paper says, and switched off leaves FedAvg or training alone."""

import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedgram as fg
from fedgram import wire
from fedgram.checks import CLASSES, some_clients
from fedgram.engines.inprocess import InProcess, Room
from fedgram.engines.session import run
from fedgram.errors import ClientFailed, InvalidParameter, MissingClients, MissingExtra
from fedgram.methods.base import step
from fedgram.methods.gradient import GradientMethod
from fedgram.nets import outputs

SETTINGS = {"rounds": 3, "epochs": 2, "batch": 16, "lr": 0.05}
GRADIENT = [name for name in fg.registry if issubclass(fg.registry[name], GradientMethod)]
IMAGES = {"network": "mlp:16"}


def fit(method, clients=None, **options):
    return method.fit(some_clients() if clients is None else clients, classes=CLASSES, **options)


def equal_clients():
    """Return clients with as many samples each."""
    return [replace(client, x=client.x[:20], y=client.y[:20]) for client in some_clients() if len(client.x) >= 20]


def alone(method, name):
    [client] = [client for client in some_clients() if client.name == name]
    return fit(method, [client]).personal[name].vector


def vectors(fitted):
    return np.stack([fitted.personal[name].vector for name in sorted(fitted.personal)])


def plain_sgd(client, vector, method, name="client-0"):
    """Return a linear model after the method's local training, written out with numpy in double precision."""
    from fedgram.randomness import generator

    weights, rng = vector.astype(np.float64), generator(0, "gradient", "train", 0, name)
    velocity = np.zeros_like(weights)
    for _ in range(method.epochs):
        order = rng.permutation(len(client.y))
        for start in range(0, len(order), method.batch):
            batch = order[start : start + method.batch]
            x, y = client.x[batch].astype(np.float64), np.eye(CLASSES)[client.y[batch]]
            scores = x @ weights[:-CLASSES].reshape(CLASSES, -1).T + weights[-CLASSES:]
            likely = np.exp(scores - scores.max(axis=1, keepdims=True))
            error = (likely / likely.sum(axis=1, keepdims=True) - y) / len(batch)
            velocity = method.momentum * velocity + np.append((error.T @ x).ravel(), error.sum(axis=0))
            weights = weights - method.lr * velocity
    return weights


def first_weights():
    """Return what every method begins with: the server draws it from the seed."""
    return fit(fg.FedAvg(**SETTINGS | {"rounds": 1, "lr": 1e-30})).model.vector


def test_one_client_is_plain_sgd():
    [client] = some_clients()[:1]
    method = fg.FedAvg(**SETTINGS | {"rounds": 1})
    np.testing.assert_allclose(
        fit(method, [client]).model.vector, plain_sgd(client, first_weights(), method), atol=2e-6
    )


def test_fedavg_is_the_mean_by_samples():
    clients, method = some_clients(), fg.FedAvg(**SETTINGS | {"rounds": 1})
    each = [plain_sgd(client, first_weights(), method, client.name) for client in clients]
    want = np.average(each, axis=0, weights=[len(client.y) for client in clients])
    np.testing.assert_allclose(fit(method).model.vector, want, atol=2e-6)


def test_all_draw_the_same_numbers():
    # Same weights to begin with, same clients, same order of samples: only then is a difference the method's.
    few = SETTINGS | {"participation": 0.5}
    assert fit(fg.FedAvg(**few)).contributors == fit(fg.FedProx(**few)).contributors
    assert np.array_equal(fit(fg.FedProx(**few, mu=0.0)).model.vector, fit(fg.FedAvg(**few)).model.vector)


@pytest.mark.parametrize(
    "off",
    [
        fg.FedProx(**SETTINGS, mu=0.0),
        fg.FedAvgFT(**SETTINGS),
        fg.FedProxFT(**SETTINGS, mu=0.0),
        fg.Ditto(**SETTINGS, lam=3.0),  # whatever λ is, the global model is FedAvg's
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
        (fg.FedDBE(**SETTINGS, **IMAGES, kappa=0.0), fg.FedDBE(**SETTINGS, **IMAGES)),
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
    # In the second round the term αh_k must cancel what the client's own loss would pull it away from the others'.
    clients, method = equal_clients(), fg.FedDyn(**SETTINGS | {"rounds": 1, "momentum": 0.0}, alpha=0.5)
    room = Room(method, clients, None, InProcess())
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
    room = Room(method, [client], None, InProcess())
    run(method, room, classes=CLASSES, seed=0, require="all", progress=None)
    side, rng = room.sides[client.name], np.random.default_rng(0)
    own, world = (rng.normal(size=650).astype(np.float32) * 0.1 for _ in range(2))
    side.state["own"], side.state["share"] = own, np.full(650, 0.5, dtype=np.float32)
    side.enter("gradient", {"classes": None, "round": 9, "seed": 0, "step": "train"})
    _, shares = method._mixtures([side], [world])
    mixed = torch.tensor(own + (world - own) * 0.5, requires_grad=True)
    scores = torch.from_numpy(client.x.astype(np.float32)) @ mixed[:640].view(10, 64).T + mixed[640:]
    torch.nn.functional.cross_entropy(scores, torch.from_numpy(side.y)).backward()
    want = np.clip(0.5 - 2.0 * mixed.grad.numpy() * (world - own), 0, 1)
    np.testing.assert_allclose(shares[client.name], want, atol=1e-5)


def test_fedala_learns_what_to_take_over():
    method = fg.FedALA(**SETTINGS)
    room = Room(method, some_clients(), None, InProcess())
    run(method, room, classes=CLASSES, seed=0, require="all", progress=None)
    for side in room.sides.values():
        share = side.state["share"]
        assert share.min() >= 0
        assert share.max() <= 1
        assert share.min() < 1
    # What it starts from fits its own samples better than the global model does.
    world = fit(method).model.vector
    side = next(iter(room.sides.values()))
    side.enter("gradient", {"classes": None, "round": 9, "seed": 0, "step": "train"})
    mixed = method._mixtures([side], [world])[0][side.name]
    assert loss(method, side, mixed) < loss(method, side, world)


def loss(method, side, vector):
    scores = np.concatenate([block for _, block in outputs(method.net_of(side), vector, side.x)])
    return torch.nn.functional.cross_entropy(torch.from_numpy(scores), torch.from_numpy(side.y)).item()


def mean_features(method, fitted, clients):
    """Return each client's mean features under its own model."""
    found = []
    for client in clients:
        model = fitted.personal[client.name]
        found.append(np.concatenate([z for z, _ in outputs(model.net, model.vector, client.x)]).mean(axis=0))
    return np.stack(found)


def test_feddbe_draws_mean_features_to_the_consensus():
    clients, away = some_clients(), []
    for kappa in (0.0, 1.0, 5.0):
        method = fg.FedDBE(**SETTINGS, **IMAGES, kappa=kappa)
        room = Room(method, clients, None, InProcess())
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
    # The more the teacher counts, the nearer what a client trains comes to saying what the teacher says.
    far = []
    for lam in (0.0, 0.3, 0.9):
        method = fg.FedPHP(**SETTINGS, lam=lam)
        room = Room(method, some_clients(), None, InProcess())
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
    # However many clients, nobody's own share is negative.
    many = np.zeros((500, 3))
    method = fg.FedAMP()
    assert method.attention(many, method._alpha(0, 500)).min() > -1e-12
    assert method._alpha(60, 2) == pytest.approx(100)


def test_fedamp_trains_near_the_cloud():
    [client] = some_clients()[:1]
    away = []
    for strength in (0.0, 0.5, 5.0):
        method = fg.FedAMP(**SETTINGS)
        room = Room(method, [client], None, InProcess())
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
        # Downhill: in the direction of the step the mixture comes nearer to what the client wants.
        mixed = weights[i] @ np.tile(first, (len(weights), 1))
        if abs(first @ change) > 1e-3:
            assert np.linalg.norm(first + change - mixed) < np.linalg.norm(change)


def test_fedapa_finds_who_has_the_same_task():
    # Two kinds of clients: the second has its labels turned round. Each learns to take from its own kind.
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


@pytest.mark.parametrize("name", [name for name in GRADIENT if not name.endswith("+ft")])
def test_the_last_round_is_the_result(name):
    fitted = fit(fg.registry[name](**SETTINGS))
    assert fitted.rounds[-1].correct == fitted.evaluation.correct


@pytest.mark.parametrize("name", ["ditto", "fedala", "fedphp", "pfedme"])
def test_who_was_never_asked_gets_the_global_model(name):
    fitted = fit(fg.registry[name](**SETTINGS | {"rounds": 1, "participation": 0.3}))
    unasked = set(fitted.personal) - set(fitted.contributors)
    assert len(unasked) == 4
    for client in unasked:
        np.testing.assert_array_equal(fitted.personal[client].vector, fitted.model.vector)


def breaking(method, who, number):
    """Return the method with clients that fail in a round."""

    @step(batched=True)
    def train(self, clients, payloads):
        if any(client.name in who and client.round == number for client in clients):
            raise RuntimeError("broken")
        return type(method).train(self, clients, payloads)

    return type(type(method).__name__, (type(method),), {"name": method.name, "train": train})(**method.settings())


def test_a_round_without_any_reply_is_told():
    some = fg.FedAvg(**SETTINGS | {"participation": 0.34})
    asked = set(fit(replace(some, rounds=1)).contributors)
    with pytest.raises(MissingClients, match="none of the clients that were asked"):
        fit(breaking(some, asked, 0), require=3)


@pytest.mark.parametrize("name", ["feddyn", "fedapa", "fedamp", "fedala", "fedavg"])
def test_a_client_lost_at_once_leaves_no_trace(name):
    method = fg.registry[name](**SETTINGS | {"participation": 1.0})
    rest = [client for client in some_clients() if client.name != "client-2"]
    got, want = fit(breaking(method, {"client-2"}, 0), require=5), fit(method, rest)
    assert set(got.absent) == {"client-2"}
    for client in rest:
        np.testing.assert_allclose(
            got.personal.get(client.name, got.model).vector,
            want.personal.get(client.name, want.model).vector,
            atol=1e-4,
        )


def test_fedala_shuffles_as_fedavg_does():
    got, want = fit(fg.FedALA(**SETTINGS, eta=1e-30)), fit(fg.FedAvg(**SETTINGS))
    np.testing.assert_allclose(got.model.vector, want.model.vector, atol=1e-5)


def test_nothing_to_share_is_refused():
    for method in (fg.FedAPA(**SETTINGS, network="linear"), fg.FedProto(**SETTINGS, network="linear")):
        with pytest.raises(InvalidParameter, match="layers below the last"):
            fit(method)


@pytest.mark.parametrize("name", GRADIENT)
def test_no_data_and_no_private_head_is_sent(name, monkeypatch):
    sent, encode = [], wire.encode
    monkeypatch.setattr(
        "fedgram.engines.inprocess.wire.encode", lambda payload: sent.append(encode(payload)) or sent[-1]
    )
    method = fg.registry[name](**SETTINGS, network="mlp:8")
    room = Room(method, some_clients(), None, InProcess())
    run(method, room, classes=CLASSES, seed=0, require="all", progress=None)
    messages = b"".join(sent)
    for side in room.sides.values():
        for row in (side.x[0], side.x[0].astype(np.float32), side.y[:30], side.data.x_test[0]):
            assert np.ascontiguousarray(row).tobytes() not in messages
        if name in ("fedapa", "fedproto"):
            head = side.state["own"][method.net_of(side).head]
            assert head[:20].tobytes() not in messages, "the head is private"
        if name == "feddbe":
            assert side.state["bias"].tobytes() not in messages, "the bias is private"


def image_clients():
    """Return the clients with digits as grey images of 16 × 16."""

    def images(x):
        return x.reshape(-1, 8, 8).repeat(2, 1).repeat(2, 2)

    return [replace(client, x=images(client.x), x_test=images(client.x_test)) for client in some_clients()]


def test_running_means_are_averaged_like_weights():
    method, clients = fg.FedAvg(**SETTINGS | {"rounds": 1}, network="cnn"), image_clients()
    room = Room(method, clients, None, InProcess())
    run(method, room, classes=CLASSES, seed=0, require="all", progress=None)
    sides = list(room.sides.values())
    net = method.net_of(sides[0])
    for side in sides:
        side.enter("gradient", {"classes": None, "round": 0, "seed": 0, "step": "train"})
    first = fit(replace(method, lr=1e-30), clients).model.vector
    first[: net.buffers] = np.repeat([0, 1, 0, 1], [32, 32, 64, 64])
    each = method.train(sides, [first] * len(sides))
    want = np.average(each, axis=0, weights=[len(client.y) for client in clients])
    got = fit(method, clients).model.vector
    np.testing.assert_allclose(got[: net.buffers], want[: net.buffers], atol=1e-4)
    assert np.abs(got[: net.buffers] - first[: net.buffers]).max() > 0.01


@pytest.mark.parametrize("name", GRADIENT)
def test_batch_norm_stays_sound_in_every_method(name):
    fitted = fit(fg.registry[name](**SETTINGS | {"rounds": 4, "local_steps": 4}, network="cnn"), image_clients())
    assert not fitted.evaluation.failed
    models = [*fitted.personal.values(), *([] if fitted.model is None else [fitted.model])]
    for model in models:
        variances = np.split(model.vector[: model.net.buffers], [32, 64, 128])[1::2]
        assert min(part.min() for part in variances) > 0


def test_bytes_are_images_from_0_to_1():
    clients = [replace(c, x=c.x.round(2), x_test=None, y_test=None) for c in image_clients()]
    as_bytes = [replace(c, x=(c.x * 255).round().astype(np.uint8)) for c in clients]
    got, want = (fit(fg.FedAvg(**SETTINGS | {"rounds": 1}, network="cnn"), some).model for some in (as_bytes, clients))
    np.testing.assert_allclose(got.vector, want.vector, atol=0.02)
    np.testing.assert_allclose(got.scores(as_bytes[0].x), got.scores(as_bytes[0].x / 255), atol=1e-4)


def test_images_train_end_to_end():
    big = image_clients()
    for method in (fg.FedAvg(**SETTINGS, network="cnn"), fg.FedAPA(**SETTINGS, network="cnn")):
        fitted = fit(method, big)
        assert fitted.evaluation.pooled > 0.4
    assert len(fitted.rounds) == SETTINGS["rounds"]


def test_evaluations_of_rounds_are_not_charged(monkeypatch):
    untested = [replace(client, x_test=None, y_test=None) for client in some_clients()]
    with_tests, without = fit(fg.FedAvg(**SETTINGS)), fit(fg.FedAvg(**SETTINGS), untested)
    # What a client says in hello, and the model that everybody receives at the end, hardly differ.
    assert with_tests.traffic.down == without.traffic.down
    assert abs(with_tests.traffic.up - without.traffic.up) < 100
    evaluate = fg.FedAvg.evaluate
    monkeypatch.setattr(fg.FedAvg, "evaluate", step(lambda *args: time.sleep(0.05) or evaluate(*args)))
    assert fit(fg.FedAvg(**SETTINGS)).seconds < 0.05 * 6 * SETTINGS["rounds"]


def test_without_torch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"fedavg needs the 'nets' extra.*pip install 'fedgram\[nets\]'"):
        fit(fg.FedAvg(**SETTINGS))


def test_divergence_is_told_by_name():
    wild = fg.FedAvg(**SETTINGS | {"lr": 1e38})
    with pytest.raises(ClientFailed, match="'client-0'.*smaller lr than 1e\\+38"):
        fit(wild)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("fedavg", {"rounds": 0}),
        ("fedavg", {"participation": 0.0}),
        ("fedavg", {"lr": 0.0}),
        ("fedavg", {"momentum": 1.0}),
        ("fedavg", {"weight_decay": -1.0}),
        ("fedavg", {"local_steps": 0}),
        ("fedavg", {"network": "vgg"}),
        ("fedavg+ft", {"tune_epochs": 0}),
        ("fedprox", {"mu": -1.0}),
        ("fedprox", {"mu": 400.0}),
        ("ditto", {"lam": -1.0}),
        ("fedala", {"layers": 0}),
        ("fedala", {"fraction": 0.0}),
        ("feddbe", {"mu": 0.0}),
        ("fedphp", {"lam": 2.0}),
        ("pfedme", {"inner": 0}),
        ("fedamp", {"sigma": 0.0}),
        ("fedproto", {"predict": "magic"}),
        ("fedapa", {"mu": 2.0}),
        ("feddyn", {"alpha": -0.1}),
    ],
)
def test_bad_settings_are_refused(name, bad):
    with pytest.raises(InvalidParameter, match=next(iter(bad))):
        fg.registry[name](**bad)

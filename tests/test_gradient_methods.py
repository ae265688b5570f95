"""Gradient methods: each one's own term does what its paper says, and switched off leaves FedAvg or training alone."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedgram as fg
from fedgram import wire
from fedgram.checks import CLASSES, some_clients
from fedgram.engines.inprocess import InProcess, Room
from fedgram.engines.session import run
from fedgram.errors import ClientFailed, InvalidParameter, MissingExtra
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
    mixed = method._mixtures([side], [world])[side.name]
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


def test_images_train_end_to_end():
    clients = [replace(c, x=c.x.reshape(-1, 8, 8), x_test=c.x_test.reshape(-1, 8, 8)) for c in some_clients()]
    big = [replace(c, x=c.x.repeat(2, 1).repeat(2, 2), x_test=c.x_test.repeat(2, 1).repeat(2, 2)) for c in clients]
    for method in (fg.FedAvg(**SETTINGS, network="cnn"), fg.FedAPA(**SETTINGS, network="cnn")):
        fitted = fit(method, big)
        assert fitted.evaluation.pooled > 0.4
    assert len(fitted.rounds) == SETTINGS["rounds"]


def test_evaluations_of_rounds_cost_no_traffic_and_no_time():
    one, other = (fit(fg.FedAvg(**SETTINGS | {"rounds": rounds})) for rounds in (1, 3))
    assert len(other.rounds) == 3
    train = (other.traffic.up - one.traffic.up) / 2
    assert train == pytest.approx(6 * 4 * 650, rel=0.4)  # six clients' vectors and little else


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

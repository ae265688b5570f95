"""FedSelect: choice of a client's own weights, order of training, and shared weights."""

from dataclasses import replace

import numpy as np
import pytest

import fedgram as fg
from fedgram.checks import CLASSES, some_clients
from fedgram.core.errors import InvalidParameter
from fedgram.engines.inprocess import InProcess, Room
from fedgram.methods.gradient.gradient_method import together
from fedgram.nets import net_for
from fedgram.protocol.session import run
from support.gradient import SETTINGS, breaking, fit, image_clients

HIDDEN = SETTINGS | {"network": "mlp:16"}
NUMBERS = 64 * 16 + 16 + 16 * 10 + 10
MATRICES = [slice(0, 64 * 16), slice(64 * 16 + 16, 64 * 16 + 16 + 16 * 10)]
NET = net_for("mlp:16", (64,), CLASSES)
NONE = np.zeros(NUMBERS, dtype=bool)


def room_of(method, clients=None):
    room = Room(method, some_clients() if clients is None else clients, InProcess())
    run(method, room, classes=CLASSES, seed=0, require="all", progress=None)
    return room


class Watched(fg.FedSelect):
    """FedSelect that keeps what crosses."""

    def __init__(self, **settings):
        super().__init__(**settings)
        object.__setattr__(self, "seen", {})

    @fg.step(batched=True)
    def train(self, clients, sent):
        replies = super().train(clients, sent)
        for client, shared, reply in zip(clients, sent, replies, strict=True):
            self.seen[client.round, client.name] = np.array(shared), reply
        return replies


class Equal(fg.FedAvg):
    """FedAvg that weighs all clients alike."""

    def serve(self, clients):
        _, world = self.begin(clients)
        for _ in clients.rounds_of(self.rounds):
            world = clients.mean(self.train, world, weighted=False)
        return self.model(clients, world)


def test_what_has_moved_most_becomes_personal():
    moved = np.random.default_rng(0).random(NUMBERS)
    chosen = fg.FedSelect(p=0.25).select(NET, NONE, moved)
    for part in MATRICES:
        assert chosen[part].sum() == (part.stop - part.start) // 4
        assert moved[part][chosen[part]].min() > moved[part][~chosen[part]].max()
    assert not chosen[1024:1040].any(), "biases stay shared"
    assert not chosen[-10:].any()


def test_what_is_personal_stays_so_and_grows_by_a_share_of_the_rest():
    method, mask, rng = fg.FedSelect(p=0.5, alpha=0.7), NONE, np.random.default_rng(0)
    shares = []
    for _ in range(4):
        grown = method.select(NET, mask, rng.random(NUMBERS))
        assert grown[mask].all()
        mask = grown
        shares.append(mask[MATRICES[0]].mean())
    assert shares == [0.5, 0.75, 0.75, 0.75], "beyond α it grows no more"


def test_ties_do_not_make_a_whole_matrix_personal():
    chosen = fg.FedSelect(p=0.25).select(NET, NONE, np.zeros(NUMBERS))
    assert [chosen[part].sum() for part in MATRICES] == [256, 40]


def test_a_matrix_too_small_for_a_share_stays_shared():
    tiny = net_for("linear", (1,), 2)
    assert not fg.FedSelect(p=0.25).select(tiny, np.zeros(4, dtype=bool), np.ones(4)).any()
    assert fg.FedSelect(p=1.0).select(tiny, np.zeros(4, dtype=bool), np.ones(4)).tolist() == [True, True, False, False]


def test_only_what_is_personal_trains_and_then_only_what_is_shared():
    # One alternation with one batch: a step on the personal weights, then one on the shared from where that led.
    client = some_clients()[0]
    method = fg.FedSelect(**HIDDEN | {"epochs": 1, "batch": 1000})
    side = room_of(replace(method, rounds=1), [client]).sides[client.name]
    rng = np.random.default_rng(1)
    own, shared = (rng.normal(size=NUMBERS).astype(np.float32) * 0.1 for _ in range(2))
    mask = rng.random(NUMBERS) < 0.3
    side.state |= {"own": own, "mask": mask, "since": own}
    side.enter("gradient", {"classes": None, "round": 1, "seed": 0, "step": "train"})
    [reply] = method.train([side], [shared[~mask]])

    def stepped(vector, moving):
        side.__dict__.pop("rng", None)
        [free] = together([fg.FedAvg(**HIDDEN | {"epochs": 1, "batch": 1000, "momentum": 0.0}).descend(side, vector)])
        return np.where(moving, free, vector)

    begun = np.where(mask, own, shared)
    want = stepped(stepped(begun, mask), ~mask)
    np.testing.assert_allclose(side.state["own"], want, atol=1e-6)
    np.testing.assert_allclose(reply["shared"], want[~mask], atol=1e-6)
    assert reply["mask"] is None
    assert np.abs(want - begun).max() > 1e-3


def test_weight_decay_and_momentum_leave_what_rests_alone():
    side = room_of(fg.FedSelect(**HIDDEN | {"rounds": 1}), some_clients()[:1]).sides["client-0"]
    method = fg.FedSelect(**HIDDEN | {"momentum": 0.9, "weight_decay": 0.1})
    mask = np.arange(NUMBERS) % 3 == 0
    [trained] = together([method.descend(side, side.state["own"], only=mask.astype(np.float32), epochs=1)])
    np.testing.assert_array_equal(trained[~mask], side.state["own"][~mask])
    assert (trained[mask] != side.state["own"][mask]).mean() > 0.5


@pytest.mark.parametrize(
    ("settings", "rounding"), [({"epochs": 1}, 0), ({"local_steps": 5}, 0), ({"epochs": 2}, 1e-6)], ids=str
)
def test_switched_off_it_is_fedavg_with_equal_weights(settings, rounding):
    settings = HIDDEN | {"momentum": 0.0} | settings
    off = Watched(**settings, p=0.0, every=1)
    fit(off)
    sent, _ = off.seen[2, "client-0"]
    want = fit(Equal(**settings | {"rounds": 2})).model.vector
    # Between two epochs small clients wait for large ones here, and the grouping of clients changes the rounding.
    np.testing.assert_allclose(sent, want, rtol=0, atol=rounding)


def test_the_server_averages_a_number_over_those_who_share_it():
    method = Watched(**HIDDEN | {"rounds": 4}, every=1)
    room = room_of(method)
    names = sorted(room.sides)
    masks = {name: np.unpackbits(method.seen[1, name][1]["mask"], count=NUMBERS).astype(bool) for name in names}
    values = np.full((len(names), NUMBERS), np.nan)
    for row, name in enumerate(names):  # what came back in round 2, with the masks of round 1
        assert len(method.seen[2, name][0]) == (~masks[name]).sum()
        values[row, ~masks[name]] = method.seen[2, name][1]["shared"]
    somebody = ~np.isnan(values).all(axis=0)
    assert 0 < np.isnan(values).any(axis=0).sum() < NUMBERS
    mean = np.nanmean(values[:, somebody], axis=0)
    mask = np.unpackbits(method.seen[2, names[0]][1]["mask"], count=NUMBERS).astype(bool)
    got = np.full(NUMBERS, np.nan)
    got[~mask] = method.seen[3, names[0]][0]
    np.testing.assert_allclose(got[somebody & ~mask], mean[~mask[somebody]], atol=1e-6)


def test_nothing_is_selected_in_round_0_and_then_every_so_many_rounds():
    method = Watched(**HIDDEN | {"rounds": 6}, every=2)
    fit(method)
    told = [number for number in range(6) if method.seen[number, "client-0"][1]["mask"] is not None]
    assert told == [2, 4]


def test_what_counts_is_how_far_a_weight_went_since_the_last_selection():
    judged, ended = [], {}

    class Judged(fg.FedSelect):
        @fg.step(batched=True)
        def train(self, clients, sent):
            replies = super().train(clients, sent)
            ended[clients[0].round] = clients[0].state["own"]
            return replies

        def select(self, net, mask, moved):
            judged.append(np.array(moved))
            return super().select(net, mask, moved)

    fit(Judged(**HIDDEN | {"rounds": 5}, every=2), some_clients()[:1])
    first = fit(fg.FedAvg(**HIDDEN | {"rounds": 1, "lr": 1e-30})).model.vector
    np.testing.assert_array_equal(judged, np.abs([ended[2] - first, ended[4] - ended[2]]))
    assert (ended[2] < first).any(), "whichever way it went"


def test_what_nobody_shares_any_more_stays_as_it_was_last_shared():
    class TheSameTwo(Watched):
        def asked(self, clients):
            return clients.names[:2]

    method = TheSameTwo(**HIDDEN | {"rounds": 3}, p=1.0, alpha=1.0, every=1)
    fitted = fit(method)
    last = [np.mean([method.seen[n, name][1]["shared"] for name in ("client-0", "client-1")], axis=0) for n in (1, 2)]
    got = fitted.personal["client-5"].vector  # never asked, it gets the shared weights
    matrices = np.isin(np.arange(NUMBERS), np.concatenate([np.arange(NUMBERS)[part] for part in MATRICES]))
    np.testing.assert_allclose(got[matrices], last[0][matrices], atol=1e-7)
    np.testing.assert_allclose(got[~matrices], last[1], atol=1e-7)


def test_by_default_clients_keep_weights_of_their_own():
    room = room_of(fg.FedSelect(**HIDDEN | {"rounds": 5}))
    masks = np.stack([side.state["mask"] for side in room.sides.values()])
    assert (masks.sum(axis=1) == 256 + 40).all()
    assert len(np.unique(masks, axis=0)) == len(masks), "each its own"


def test_only_shared_numbers_cross_and_masks_as_bits():
    method = fg.FedSelect(**HIDDEN, p=0.5, every=1)
    rounds = [fit(replace(method, rounds=n)).traffic.by_client for n in (1, 2, 3)]
    up, down = (np.diff([[one[way] for one in by.values()] for by in rounds], axis=0) for way in ("up", "down"))
    half, bits = NUMBERS - (512 + 80), NUMBERS / 8
    # Round 1 still shares all, and sends its first mask; round 2 shares half, and sends its second.
    assert ((down[0] >= 4 * NUMBERS) & (down[0] < 4 * NUMBERS + 400)).all()
    assert ((4 * NUMBERS + bits <= up[0]) & (up[0] < 4 * NUMBERS + bits + 400)).all()
    assert ((4 * half <= down[1]) & (down[1] < 4 * half + 400)).all()
    assert ((4 * half + bits <= up[1]) & (up[1] < 4 * half + bits + 400)).all()


def test_running_means_stay_shared():
    method = fg.FedSelect(**SETTINGS | {"rounds": 3, "local_steps": 2}, network="cnn", every=1)
    room = room_of(method, image_clients())
    for side in room.sides.values():
        assert side.state["mask"].any()
        assert not side.state["mask"][:192].any()


def test_a_mask_of_another_size_is_its_senders_failure():
    class Lying(fg.FedSelect):
        @fg.step(batched=True)
        def train(self, clients, sent):
            replies = super().train(clients, sent)
            for client, reply in zip(clients, replies, strict=True):
                if client.name == "client-3":
                    reply["mask"] = np.zeros(3, dtype=np.uint8)
            return replies

    fitted = fit(Lying(**HIDDEN), require=5)
    assert "mask" in fitted.absent["client-3"]


def test_a_client_lost_on_the_way_leaves_the_others():
    fitted = fit(breaking(fg.FedSelect(**HIDDEN | {"lr": 0.3, "rounds": 5}, every=1), {"client-2"}, 2), require=5)
    assert set(fitted.lost) == {"client-2"}
    assert fitted.evaluation.pooled > 0.5


def test_who_was_never_asked_gets_what_is_shared():
    method = fg.FedSelect(**HIDDEN, participation=0.17)
    fitted = fit(method)
    unasked = sorted(set(fitted.personal) - set(fitted.contributors))
    assert len(unasked) >= 3
    first = fit(fg.FedAvg(**HIDDEN | {"rounds": 1, "lr": 1e-30})).model.vector
    for name in unasked:
        np.testing.assert_array_equal(fitted.personal[name].vector, fitted.personal[unasked[0]].vector)
        assert np.abs(fitted.personal[name].vector - first).max() > 1e-4


def test_one_client_and_one_sample_are_enough():
    [client] = some_clients()[:1]
    single = replace(client, x=client.x[:1], y=client.y[:1])
    fitted = fit(fg.FedSelect(**HIDDEN | {"lr": 0.5}, every=1), [single])
    assert fitted.personal[client.name].predict(single.x) == single.y


@pytest.mark.parametrize("bad", [{"p": -0.1}, {"p": 1.1}, {"alpha": 2.0}, {"every": 0}], ids=str)
def test_bad_settings_are_refused(bad):
    with pytest.raises(InvalidParameter, match=next(iter(bad))):
        fg.FedSelect(**bad)

"""Own model or global model, by rows that neither has seen: as if each row had never been there."""

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.errors import NotMoments
from fedgram.data.client import StreamedLabels, StreamedRows
from fedgram.heads.system import System
from fedgram.protocol.comparison import groups_of


class Rows(StreamedRows):
    """Samples that are read anew, 17 at a time."""

    def __init__(self, x):
        self._x = x

    @property
    def sizes(self):
        return tuple(len(block) for block in self)

    @property
    def width(self):
        return self._x.shape[1]

    def __iter__(self):
        return (self._x[start : start + 17] for start in range(0, len(self._x), 17))


def parties(seed=1, sizes=(30, 60, 80, 34), *, noise=1.0):
    rng = np.random.default_rng(seed)
    clients = []
    for k, n in enumerate(sizes):
        y = rng.integers(0, 3, size=n)
        x = noise * rng.normal(size=(n, 6)) + 1.3 * np.eye(3, 6)[y]
        clients.append(fg.Client(f"site-{k}", x, np.array(["a", "b", "c"])[y]))
    return clients


def without(client, row):
    keep = np.arange(len(client.x)) != row
    return fg.Client(client.name, client.x[keep], client.y[keep])


def refitted(method, clients):
    """Return how many rows of the first client are right, by own and by global model, all refitted without each."""
    first, own, shared = clients[0], 0, 0
    for row in range(len(first.x)):
        fit = method.fit([without(first, row), *clients[1:]], classes=("a", "b", "c"))
        own += fit.personal[first.name].predict(first.x[[row]])[0] == first.y[row]
        shared += fit.model.predict(first.x[[row]])[0] == first.y[row]
    return own, shared


@pytest.mark.parametrize("settings", [{"beta": 2.0}, {"beta": 2.0, "intercept": False}, {"beta": 2.0, "alpha": 3.0}])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_can_be_subtracted_gives_what_a_refit_gives(settings, seed):
    clients, method = parties(seed), fg.FedHiP(**settings)
    found = method.fit(clients, classes=("a", "b", "c")).compare(clients[0])
    assert (found.rows, found.how) == (30, "removed")
    assert (found.own.right, found.shared.right) == refitted(method, clients)


def test_a_system_without_samples_is_that_of_the_others():
    for settings in ({"beta": 2.0}, {"beta": 2.0, "intercept": False}):
        clients, method = parties(), fg.FedHiP(**settings)
        whole = method.fit(clients, classes=("a", "b", "c"))
        rest = method.fit(clients[1:], classes=("a", "b", "c")).published
        y = np.searchsorted(["a", "b", "c"], clients[0].y)
        found = whole.published.without(clients[0].x, y)
        assert isinstance(found, System)
        assert np.allclose(found.weights, rest.weights, atol=1e-11)
        assert np.allclose(found.lower, rest.lower, atol=1e-11)
        assert found.n == rest.n
        if rest.mean is not None:
            assert np.allclose(found.mean, rest.mean)
            assert np.allclose(found.frequencies, rest.frequencies)
            assert np.allclose(found.model().scores(clients[0].x), rest.model().scores(clients[0].x))
        with pytest.raises(NotMoments, match="samples to be left out"):
            whole.published.without(100 * clients[0].x, y)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("method", [fg.FedGram(), fg.FedLogit(rounds=5)], ids=lambda method: method.name)
def test_a_head_is_corrected_to_nearly_what_a_refit_gives(method, seed):
    clients = parties(seed)
    fit = method.fit(clients, classes=("a", "b", "c"))
    found = fit.compare(clients[0])
    assert (found.rows, found.how) == (30, "corrected")
    own, shared = refitted(method, clients)
    assert abs(found.own.right - own) <= 1
    assert abs(found.shared.right - shared) <= 1


def test_a_corrected_head_is_no_better_than_chance_on_noise():
    """A head of as many columns as samples knows its samples by heart; the correction must take that away."""
    rng, share = np.random.default_rng(5), {"seen": [], "corrected": []}
    for _ in range(6):
        x, y = rng.normal(size=(150, 60)), np.arange(150) % 2
        clients = [fg.Client(f"site-{k}", x[k::3], y[k::3]) for k in range(3)]
        fit = fg.FedGram(shrinkage=1e-4, refine=False).fit(clients, classes=2)
        share["seen"].append(float((fit.model.predict(clients[0].x) == clients[0].y).mean()))
        share["corrected"].append(fit.compare(clients[0]).shared.right / 50)
    assert np.mean(share["seen"]) > 0.75
    assert np.mean(share["corrected"]) < 0.62


def test_a_newcomers_rows_are_those_that_the_global_model_never_saw():
    clients = parties()
    for method in (fg.FedGram(), fg.FedHiP(), fg.APFL(dim_primary=64, dim_refine=32)):
        fit = method.fit(clients[1:], classes=("a", "b", "c"))
        found = fit.compare(clients[0])
        assert (found.rows, found.how) == (30, "new")
        assert found.shared.right == int((fit.model.predict(clients[0].x) == clients[0].y).sum())
        own = 0
        for row in range(30 if method.name != "apfl" else 0):
            own += fit.personalize(without(clients[0], row)).predict(clients[0].x[[row]])[0] == clients[0].y[row]
        assert found.own.right == own or method.name == "apfl"


@pytest.mark.parametrize(
    ("settings", "how"), [({"exact": True}, "removed"), ({}, "corrected"), ({"gamma": 1.0}, "seen")]
)
def test_two_streams_tell_as_much_as_they_publish(settings, how):
    clients = parties(sizes=(25, 60))
    fit = fg.APFL(dim_primary=40, dim_refine=20, **settings).fit(clients, classes=("a", "b", "c"))
    found = fit.compare(clients[0])
    assert (found.rows, found.how) == (25, how)


def test_rows_that_were_never_in_the_global_model_cannot_be_subtracted():
    """As after a correction: one row lies so far away that nothing is left without it."""
    clients = parties()
    fit = fg.FedHiP(beta=1.0).fit(clients, classes=("a", "b", "c"))
    x = clients[0].x.copy()
    x[3] *= 1000
    found = fit.compare(fg.Client("site-0", x, clients[0].y))
    assert (found.rows, found.how) == (30, "seen")


def test_one_class_cannot_tell_and_keeps_the_global_model():
    clients = parties()
    only = clients[1].y == "a"
    single = fg.Client("single", clients[1].x[only], clients[1].y[only])
    for method in (fg.FedGram(), fg.FedHiP()):
        found = method.fit([single, *clients[2:]], classes=("a", "b", "c")).compare(single)
        assert found.lacking == ("b", "c")
        assert found.own.right > found.shared.right
        assert not found.own_is_better
    alone = fg.FedGram().fit([single], classes=("a", "b", "c")).compare(single)
    assert alone.lacking == ()  # the others have no samples of these, either


def test_skewed_labels_let_the_own_model_win():
    """Rare and frequent classes trade places: own frequencies know that, the global model does not."""
    rng, clients = np.random.default_rng(3), []
    for k, share in enumerate((0.95, 0.05, 0.05)):
        y = rng.random(120) < share
        x = rng.normal(size=(120, 2)) + 0.7 * y[:, None]
        clients.append(fg.Client(f"site-{k}", x, np.where(y, "ill", "well")))
    found = fg.FedGram().fit(clients, classes=("ill", "well")).compare(clients[0])
    assert found.own_is_better
    assert found.own.right > found.shared.right


def test_ties_go_to_the_global_model():
    clients = parties(noise=0.05)
    for method in (fg.FedGram(), fg.FedHiP()):
        found = method.fit(clients, classes=("a", "b", "c")).compare(clients[0])
        assert found.own.right == found.shared.right == 30
        assert not found.own_is_better
    afl = fg.AFL().fit(clients, classes=("a", "b", "c")).compare(clients[0])
    assert (afl.rows, afl.personal, afl.own_is_better) == (0, False, False)
    single = fg.Client("one", clients[0].x[:1], clients[0].y[:1])
    few = fg.FedGram().fit(clients, classes=("a", "b", "c")).compare(single)
    assert (few.rows, few.own_is_better, few.fields()["own"]) == (0, False, None)


def test_many_rows_are_left_out_in_groups_and_streams_are_not_held():
    clients = parties(sizes=(230, 60))
    fit = fg.FedGram().fit(clients, classes=("a", "b", "c"))
    counted = []
    whole = fit.compare(clients[0], progress=counted.append)
    assert counted == [23] * 10
    codes = np.searchsorted(["a", "b", "c"], clients[0].y)
    streamed = fg.Client("site-0", Rows(clients[0].x), StreamedLabels(("a", "b", "c"), codes))
    again = fit.compare(streamed)
    assert (again.own, again.shared, again.rows) == (whole.own, whole.shared, 230)
    one = list(groups_of(30_000))
    assert [len(group) for group in one] == [6000]
    assert sorted(np.concatenate(list(groups_of(2003))).tolist()) == list(range(2003))

"""Late clients and leavers change a fit exactly; newcomers personalize from what was published."""

import numpy as np
import pytest

import fedgram as fg
from fedgram import wire
from fedgram.errors import InvalidData, InvalidParameter, Mismatch, NotMoments, UnknownName
from problems import as_clients, features, relative_error

METHODS = [
    fg.AFL(),
    fg.AFL(gamma=2.0, ri=False),
    fg.FedHiP(),
    fg.APFL(gamma=1.0, dim_primary=16, dim_refine=12),
    fg.APFL(dim_primary=16, dim_refine=12, exact=True),
    fg.FedGram(),
]


@pytest.fixture
def clients():
    rng = np.random.default_rng(0)
    x, y = features(rng, 150, 6), rng.integers(0, 3, 150)
    return as_clients(x, y, np.split(np.arange(150), [40, 90]))


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_joining_late_and_leaving_again_are_exact(method, clients, tmp_path):
    *early, late = clients
    whole = method.fit(clients, classes=3)
    before = method.fit(early, classes=3)
    before.save(tmp_path / "fit")
    before = fg.load(tmp_path / "fit")  # the server may have slept in between
    joined = before.add(before.summarize(late), name=late.name)
    assert relative_error(joined.model.weights, whole.model.weights) < 1e-9
    assert joined.contributors == whole.contributors
    left = joined.remove(joined.summarize(late), name=late.name)
    assert relative_error(left.model.weights, before.model.weights) < 1e-9
    assert left.contributors == before.contributors
    assert joined.personal == {}


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_member_gets_the_same_from_what_was_published(method, clients):
    fit = method.fit(clients, classes=3)
    x = clients[0].x
    for client in clients:
        want = fit.personal.get(client.name, fit.model)
        np.testing.assert_allclose(fit.personalize(client).scores(x), want.scores(x), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_newcomer_needs_only_the_published_bytes(method, clients):
    *early, new = clients
    fit = method.fit(early, classes=3)
    published = wire.decode(wire.encode(fit.published))
    model = method.adapt(published, new)
    np.testing.assert_array_equal(model.scores(new.x), fit.personalize(new).scores(new.x))


def test_a_newcomer_to_fedhip_gets_the_closed_form_of_the_same_total(clients):
    *early, new = clients
    model = fg.FedHiP(alpha=5.0, beta=0.5).fit(early, classes=3).personalize(new)
    x, Y = np.vstack([c.x for c in early]), np.eye(3)[np.concatenate([c.y for c in early])]
    own = np.eye(3)[new.y]
    want = np.linalg.solve(x.T @ x + 5 * new.x.T @ new.x + 0.5 * np.eye(6), x.T @ Y + 5 * new.x.T @ own)
    assert relative_error(model.weights, want) < 1e-9


def test_deleting_some_samples_keeps_the_contributor(clients):
    fit = fg.AFL().fit(clients, classes=3)
    gone = fg.Client("client-0", clients[0].x[:5], clients[0].y[:5])
    rest = fg.Client("client-0", clients[0].x[5:], clients[0].y[5:])
    smaller = fit.remove(fit.summarize(gone))
    assert relative_error(smaller.model.weights, fg.AFL().fit([rest, *clients[1:]], classes=3).model.weights) < 1e-9
    assert smaller.contributors == fit.contributors


def test_what_cannot_be_is_refused(clients):
    fit = fg.AFL().fit(clients[:2], classes=3)
    late = fit.summarize(clients[2])
    with pytest.raises(InvalidData, match="'client-0' has contributed already"):
        fit.add(late, name="client-0")
    with pytest.raises(UnknownName, match="client-2"):
        fit.remove(late, name="client-2")
    with pytest.raises(NotMoments):
        fit.remove(fit.summarize(fg.Client("x", 100 * clients[2].x, clients[2].y)))
    with pytest.raises(Mismatch, match="dimension"):
        fit.add(fg.Moments.of(np.ones((3, 5)), [0, 1, 2], classes=3))
    with pytest.raises(Mismatch, match="features 'other'"):
        fit.personalize(fg.Client("x", clients[2].x, clients[2].y, features="other"))
    with pytest.raises(InvalidParameter, match="local cannot be changed"):
        fg.Local().fit(clients, classes=3).add(late)

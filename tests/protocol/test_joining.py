"""Late clients and leavers change a fit exactly; newcomers personalize from the published model."""

import numpy as np
import pytest

import fedgram as fg
from fedgram.core import wire
from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch, NotMoments, UnknownName
from support.joining import METHODS
from support.problems import relative_error

# FedLogit's published head needs more than moments, and can still be personalized.
PUBLISHING = [*METHODS, fg.FedLogit(rounds=4)]


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


@pytest.mark.parametrize("method", PUBLISHING, ids=str)
def test_a_member_gets_the_same_from_what_was_published(method, clients):
    fit = method.fit(clients, classes=3)
    x = clients[0].x
    for client in clients:
        want = fit.personal.get(client.name, fit.model)
        np.testing.assert_allclose(fit.personalize(client).scores(x), want.scores(x), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("method", PUBLISHING, ids=str)
def test_a_newcomer_needs_only_the_published_bytes(method, clients):
    *early, new = clients
    fit = method.fit(early, classes=3)
    published = wire.decode(wire.encode(fit.published))
    model = method.model_for(published, new)
    np.testing.assert_array_equal(model.scores(new.x), fit.personalize(new).scores(new.x))


def test_a_newcomer_to_fedhip_gets_the_closed_form_of_the_same_total(clients):
    *early, new = clients
    model = fg.FedHiP(alpha=5.0, beta=0.5, intercept=False).fit(early, classes=3).personalize(new)
    x, Y = np.vstack([c.x for c in early]), np.eye(3)[np.concatenate([c.y for c in early])]
    own = np.eye(3)[new.y]
    want = np.linalg.solve(x.T @ x + 5 * new.x.T @ new.x + 0.5 * np.eye(6), x.T @ Y + 5 * new.x.T @ own)
    assert relative_error(model.weights, want) < 1e-9


def test_deleting_some_samples_is_leaving_and_joining_again(clients):
    fit = fg.AFL().fit(clients, classes=3)
    rest = fg.Client("client-0", clients[0].x[5:], clients[0].y[5:])
    without = fit.remove(fit.summarize(clients[0]), name="client-0")
    smaller = without.add(without.summarize(rest), name="client-0")
    assert relative_error(smaller.model.weights, fg.AFL().fit([rest, *clients[1:]], classes=3).model.weights) < 1e-9
    assert set(smaller.contributors) == set(fit.contributors)
    again = smaller.remove(smaller.summarize(rest), name="client-0")
    assert relative_error(again.model.weights, without.model.weights) < 1e-9


def test_the_last_one_stays(clients):
    fit = fg.AFL().fit(clients, classes=3)
    for client in clients[:2]:
        fit = fit.remove(fit.summarize(client), name=client.name)
    with pytest.raises(InvalidData, match="'client-2' is the only contributor"):
        fit.remove(fit.summarize(clients[2]), name="client-2")


@pytest.mark.parametrize("change", [{"seed": 1}, {"activation_primary": "tanh"}, {"dim_primary": 20}])
def test_moments_of_another_projection_are_of_another_kind(change, clients):
    settings = {"gamma": 1.0, "dim_primary": 16, "dim_refine": 12}
    *early, late = clients
    fit = fg.APFL(**settings).fit(early, classes=3)
    other = fg.APFL(**settings | change).fit(early, classes=3)
    with pytest.raises(Mismatch, match="moments of different"):
        fit.add(other.summarize(late), name=late.name)
    assert fit.model.features == fit.personal["client-0"].features == ""
    assert fit.add(fit.summarize(late), name=late.name).model.features == ""


@pytest.mark.parametrize("wrong", [5, "x", None, np.ones(3), b"bytes"])
def test_what_is_no_moments_is_told(wrong, clients):
    fit = fg.AFL().fit(clients, classes=3)
    for change in (fit.add, fit.remove):
        for options in ({}, {"name": "client-0"}):
            with pytest.raises(InvalidData, match="moments such as .* wanted"):
                change(wrong, **options)
    for use in (fit.summarize, fit.personalize):
        with pytest.raises(InvalidData, match="takes an fg.Client"):
            use(wrong)


def test_what_cannot_be_is_refused(clients):
    fit = fg.AFL().fit(clients[:2], classes=3)
    late = fit.summarize(clients[2])
    for change in (fit.add, fit.remove):
        for options in ({}, {"name": ""}, {"name": 5}):
            with pytest.raises(InvalidParameter, match="name must be the client's name"):
                change(late, **options)
    with pytest.raises(InvalidData, match="'client-0' has contributed already"):
        fit.add(late, name="client-0")
    with pytest.raises(UnknownName, match="client-2"):
        fit.remove(late, name="client-2")
    impossible = fg.Moments(late.schema, sums=100 * late.cross.T, counts=late.counts, packed=late.packed)
    with pytest.raises(NotMoments):
        fit.add(impossible, name="client-2")
    with pytest.raises(Mismatch, match="dimension"):
        fit.add(fg.Moments.of(np.ones((3, 5)), [0, 1, 2], classes=3), name="client-2")
    with pytest.raises(Mismatch, match="features 'other'"):
        fit.personalize(fg.Client("x", clients[2].x, clients[2].y, features="other"))
    alone = fg.Local().fit(clients, classes=3)
    for change in (alone.add, alone.remove):
        with pytest.raises(InvalidParameter, match="local cannot be changed"):
            change(late, name="client-2")
    with pytest.raises(InvalidParameter, match="local has nothing published"):
        alone.personalize(clients[0])


@pytest.mark.parametrize("name", ["afl", "fedhip", "apfl", "fedgram", "fedlogit"])
@pytest.mark.parametrize(
    ("x", "told"),
    [
        (np.zeros((0, 4)), "no samples"),
        (np.full((5, 4), np.nan), "finite|NaN"),
        (np.full((5, 4), 1e200), "too large"),
    ],
    ids=["none", "nan", "huge"],
)
def test_newcomers_with_bad_data_are_refused_by_name(name, x, told):
    rng = np.random.default_rng(0)
    small = {"apfl": {"dim_primary": 8, "dim_refine": 8}}.get(name, {})
    fit = fg.registry[name](**small).fit([fg.Client("a", rng.normal(size=(40, 4)), np.arange(40) % 2)], classes=2)
    with pytest.raises(InvalidData, match=told):
        fit.personalize(fg.Client("late", x, np.zeros(len(x), dtype=int)))

"""Answers to FedLogit's rounds: accepted within the bounds of the party's own moments, else refused by name."""

from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.core.errors import RefusedMessage
from fedgram.exchange.format import fgm
from fedgram.exchange.rounds.round_messages import Answer, Round, answer, check_answer
from fedgram.exchange.rounds.round_server import advance, waited_for
from fedgram.features.projection import ACTIVATIONS
from fedgram.heads import logistic
from fedgram.heads.head import NEVER
from fedgram.methods.analytic.apfl import check_features
from fedgram.methods.analytic.fedlogit import check_gradient
from fedgram.models import LinearModel
from fedgram.moments.basis import Basis
from fedgram.protocol.byfiles import Joined
from fedgram.protocol.clientside import ClientSide
from support.stores import STUDY, answered, client, store_of

NAMES = ("north", "south", "east")


def gradient_file(name, asked, reply, n=40):
    said = Answer(asked.payload.number, asked.digest, reply)
    return fgm.encode("answer", said, study=STUDY.fingerprint, party=name, samples=n, columns=STUDY.sent)


@pytest.mark.parametrize("size", [1e15, 1e200, -1e15, np.inf, np.nan])
@pytest.mark.parametrize("field", ["gradient", "unexplained", "undecided", "left_out", "sharper", "bend"])
def test_absurd_answers_are_refused_at_join(tmp_path, field, size):
    store = store_of(tmp_path, *NAMES)
    asked = fgm.read(advance(store, "fedlogit", {"rounds": 1}).data)
    honest = answer(STUDY, asked, client("north")).reply
    wrong = np.full_like(honest["gradient"], size) if field == "gradient" else float(size)
    [found] = store.join(gradient_file("north", asked, honest | {field: wrong}))
    assert found.outcome == "refused"
    if np.isfinite(size):
        assert "'north' refused" in found.why
        assert field in found.why
    assert waited_for(store) == list(NAMES)


def test_the_answer_of_another_table_is_refused_where_it_cannot_be_the_partys(tmp_path):
    store = store_of(tmp_path, *NAMES)
    asked = fgm.read(advance(store, "fedlogit", {"rounds": 1}).data)
    reply = answer(STUDY, asked, client("north")).reply
    gradient = reply["gradient"].copy()
    gradient[0] *= 1e3
    [found] = store.join(gradient_file("north", asked, reply | {"gradient": gradient}))
    assert "the gradient of 'age' for class 'ill' is" in found.why
    assert "its own moments allow" in found.why


@st.composite
def problems(draw):
    """Return a party's samples in a basis that shifts and scales them, and the model of a round."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, d, c = draw(st.integers(1, 30)), draw(st.integers(1, 4)), draw(st.integers(2, 4))
    z = rng.normal(size=(n, d)) * 10.0 ** draw(st.integers(-3, 3)) + draw(st.sampled_from([0.0, 1.0, 1e4]))
    if draw(st.booleans()):
        z[:, 0] = z[0, 0]  # a column that does not vary here
    y = rng.integers(0, draw(st.integers(1, c)), n)
    mean, scale = z.mean(axis=0) + draw(st.sampled_from([0.0, 1.0])), 10.0 ** draw(st.integers(-2, 2))
    names = tuple(f"x{i}" for i in range(d))
    made = {name: ({name: scale}, -scale * mean[i]) for i, name in enumerate(names)}
    basis = Basis.of(made, names)
    # What the classes have in common, and what sets them apart.
    common = rng.normal(size=(d + 1, 1)) * draw(st.sampled_from([0.0, 1.0, 1e4]))
    weights = common + rng.normal(size=(d + 1, c)) * draw(st.sampled_from([0.0, 1e-12, 1e-3, 1.0, 1e4]))
    if draw(st.booleans()):
        weights[-1, -1] = NEVER if (y < c - 1).all() else 0.0  # a class without samples
    model = LinearModel(weights[:-1], tuple(range(c)), weights[-1], "", names)
    return z, y, basis, model, draw(st.sampled_from([0.0, 0.1, 1.0, 1e3]))


def said_of(z, y, basis, model, leverage):
    own = Joined.of(basis, fg.Moments.of(z, y, classes=len(model.classes), columns=basis.columns))
    return own, logistic.gradient(basis.apply(z), y, model, leverage)._asdict()


@given(problems())
def test_honest_gradients_are_never_refused(problem):
    own, reply = said_of(*problem)
    check_gradient(reply, own, {"model": problem[3], "leverage": problem[4]})


def test_a_model_that_is_right_for_sure_has_a_gradient_all_the_same():
    """The other class has p = 1e-200, whose square is 0."""
    z, y, basis = np.array([[1.0]]), np.array([0]), Basis.of({"x": ({"x": 1.0}, 0.0)}, ("x",))
    model = LinearModel(np.array([[460.0, 0.0]]), (0, 1), np.zeros(2), "", ("x",))
    own, reply = said_of(z, y, basis, model, 0.0)
    assert reply["unexplained"] == 0
    assert reply["gradient"][0, 1] < 0
    check_gradient(reply, own, {"model": model, "leverage": 0.0})


def test_what_classes_have_in_common_may_leave_its_rounding():
    """Scores near 1e4 that differ by much less than their last digit: some are computed a whole digit apart."""
    basis = Basis.of({"x": ({"x": 1.0}, 0.0)}, ("x",))
    model = LinearModel(np.array([[1e4, np.nextafter(1e4, 2e4)]]), (0, 1), np.full(2, 1e4), "", ("x",))
    x = np.random.default_rng(0).uniform(0.01, 0.02, size=(2000, 1))
    apart = np.ptp(model.scores(x), axis=1)
    z, y = x[[apart.argmax()]], np.array([0])
    assert apart.max() > 10 * np.ptp(z @ model.weights)
    own, reply = said_of(z, y, basis, model, 0.0)
    check_gradient(reply, own, {"model": model, "leverage": 0.0})


@given(problems(), st.data())
def test_every_entry_just_over_its_bound_is_refused(problem, data):
    _, y, _, model, leverage = problem
    own, reply = said_of(*problem)
    asked = {"model": model, "leverage": leverage}
    n, c = len(y), len(model.classes)
    squares = np.append(own.moments.squares + own.noise, n)
    row, column = data.draw(st.integers(0, len(squares) - 1)), data.draw(st.integers(0, c - 1))
    for sign in (-1, 1):
        gradient = reply["gradient"].copy()
        reply_to_all = reply | {"unexplained": 2.0 * n, "gradient": gradient}
        gradient[row, column] = sign * np.sqrt(n * squares[row]) * (1 - 1e-12) if row < len(squares) - 1 else 0.0
        check_gradient(reply_to_all, own, asked)
        gradient[row, column] = sign * np.sqrt(n * squares[row]) * (1 + 1e-6)
        with pytest.raises(RefusedMessage, match="its own moments allow"):
            check_gradient(reply_to_all, own, asked)
    # Errors become smaller, and so does the gradient.
    gradient = np.zeros_like(reply["gradient"])
    gradient[row, column] = np.sqrt(n * squares[row] / 100) * (1 + 1e-6)
    with pytest.raises(RefusedMessage, match="its own moments allow"):
        check_gradient(reply | {"unexplained": n / 100, "gradient": gradient}, own, asked)
    beyond = (
        ("unexplained", 2 * n * (1 + 1e-6)),
        ("undecided", n * (1 - 1 / c) * (1 + 1e-6)),
        ("left_out", n * (1 - 1 / c) * (1 + 1e-6)),
        ("sharper", n * log(c) * (1 + 1e-5)),
        ("sharper", -1e3 * n * (1 + 1e-6)),
        ("bend", n * (1 + log(max(c - 1, 1)) ** 2 / 4) * (1 + 1e-6)),
        *((name, -1e-6 * n) for name in ("unexplained", "undecided", "left_out", "bend")),
    )
    for name, value in beyond:
        with pytest.raises(RefusedMessage, match=name):
            check_gradient(reply | {name: value}, own, asked)


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
def test_the_variance_of_log_probabilities_is_bounded(classes):
    """One class has probability p and all others share the rest equally: there the variance is largest."""
    shared = np.concatenate([np.geomspace(1e-9, 0.5, 4000), 1 - np.geomspace(1e-9, 0.5, 4000)])
    variance = shared * (1 - shared) * np.log((1 - shared) * (classes - 1) / shared) ** 2
    bound = 1 + log(classes - 1) ** 2 / 4
    assert variance.max() < bound
    assert variance.max() > 0.4 * bound


@pytest.mark.parametrize("activation", ACTIVATIONS)
@given(problem=problems())
def test_moments_of_honest_features_are_never_refused(activation, problem):
    z, y, basis, model, _ = problem
    own, _ = said_of(*problem)
    method = fg.APFL(dim_primary=6, activation_primary=activation)
    phi = method.primary(z.shape[1])(basis.apply(z))
    reply = fg.Moments.of(phi, y, classes=len(model.classes))
    check_features(reply, own, method)
    larger = np.sqrt(method.primary(z.shape[1]).largest_squares(own.moments.gram, own.n, np.sqrt(own.noise)))
    over = fg.Moments.of(np.full((own.n, 6), larger / np.sqrt(own.n) * (1 + 1e-6)), y, classes=len(model.classes))
    if larger[0] > 0:
        with pytest.raises(RefusedMessage, match="random feature 0"):
            check_features(over, own, method)


def test_honest_rounds_join(tmp_path):
    store = store_of(tmp_path, *NAMES)
    for _ in range(4):
        asked = advance(store, "fedlogit", {"rounds": 4})
        joined = store.join(*(answered(name, asked.data) for name in NAMES))
        assert [each.outcome for each in joined] == ["answered"] * 3


RIDGES = st.sampled_from(["auto", 1e-6, 10.0])


@pytest.mark.filterwarnings("ignore::fedgram.core.errors.Revealing")  # so few samples show in their gradient
@given(sizes=st.lists(st.integers(5, 30), min_size=2, max_size=3), seed=st.integers(0, 2**16), ridge=RIDGES)
def test_honest_answers_of_small_studies_are_never_refused(sizes, seed, ridge):
    parties = [client(name, seed, n) for name, n in zip(NAMES, sizes, strict=False)]
    joined = [ClientSide(party, classes=STUDY.classes, columns=STUDY.sent).moments() for party in parties]
    total = sum(joined[1:], joined[0])
    basis = STUDY.basis_of(total)
    ascent = logistic.Logistic(basis.moments(total), ridge)
    for number in range(1, 4):
        payload = {"model": ascent.ahead, "leverage": ascent.leverage}
        asked = Round(number, "fedlogit", {}, basis, payload)
        request = fgm.read(fgm.encode("round", asked, study=STUDY, party="coordinator"))
        said = []
        for party, moments in zip(parties, joined, strict=True):
            data = gradient_file(party.name, request, answer(STUDY, request, party).reply, len(party.y))
            said.append(check_answer(STUDY, request, fgm.read(data), moments).reply)
        ascent.climb(logistic.Said(**{name: sum(one[name] for one in said) for name in said[0]}))

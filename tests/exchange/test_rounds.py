"""APFL by files asks once more, and its publication equals APFL on the same rows in one process."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.classes import NUMERIC
from fedgram.core.errors import InvalidParameter, RefusedMessage, Revealing
from fedgram.core.schema import Natural
from fedgram.exchange.format import fgm
from fedgram.exchange.format.fgm import MOST_FEATURES
from fedgram.exchange.rounds.party_side import fit_of
from fedgram.exchange.rounds.round_messages import Answer, Round, answer
from fedgram.exchange.rounds.round_server import Asked, KnownSums, Unanswered, advance, clients_of, waited_for
from fedgram.exchange.store.publishing import pool_of
from fedgram.exchange.store.study_store import Store
from fedgram.models import LinearModel
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import step
from fedgram.protocol.onemessage import Publishing
from fedgram.protocol.replies import Number as Bounded
from fedgram.studies.encoding import read_client
from fedgram.studies.kinds import Number
from fedgram.studies.study import Study
from studies.test_basis import Table
from support.stores import STUDY, answered, client, store_of

NAMES = ("north", "south", "east")
SETTINGS = {"dim_primary": 32, "dim_refine": 24}
CHOICES = [{}, {"gamma": 1.0, "beta": 1.0, "lam": 0.5}, {"activation_primary": "softplus", "seed": 3}, {"exact": True}]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_apfl_by_files_is_apfl(tmp_path, choice):
    settings = SETTINGS | choice
    store = store_of(tmp_path, *NAMES)
    asked = advance(store, "apfl", settings)
    assert isinstance(asked, Asked)
    assert (asked.number, fgm.read(asked.data).payload.payload) == (1, None)
    store.join(*(answered(name, asked.data) for name in NAMES[:2]))
    assert waited_for(store) == ["east"]
    store.join(answered("east", asked.data))
    published = advance(store, "apfl", settings)
    fit, study = fit_of(fgm.read(published.data))
    assert (fit.total, study) == (None, STUDY)
    wanted = fg.APFL(**settings).fit([client(name) for name in NAMES], study=STUDY, classes=STUDY.classes)
    x = np.concatenate([client(name).x for name in NAMES])
    np.testing.assert_allclose(fit.model.scores(x), wanted.model.scores(x), rtol=1e-9, atol=1e-9)
    assert fit.contributors == wanted.contributors
    for name in NAMES:
        own, other = fit.personalize(client(name)), wanted.personal[name]
        np.testing.assert_allclose(own.scores(x), other.scores(x), rtol=1e-9, atol=1e-9)
    assert not np.allclose(fit.personalize(client("west", seed=9)).scores(x), fit.model.scores(x))
    assert advance(store, "apfl", settings).data == published.data


def numeric_store(path):
    """Return a store of a study with a number as its outcome, the study, and the parties' rows."""
    columns = {"age": Number(range=(0, 120)), "y": Number(range=(0, 40_000), missing="refuse")}
    study = Study("steps", "y", columns, minimum_samples=5)
    rng, parties, store = np.random.default_rng(0), {}, Store(path, study=study)
    for name in NAMES:
        age = rng.uniform(20, 90, 30)
        parties[name] = read_client(study, name, Table({"age": age, "y": 12_000 - 80 * age + rng.normal(0, 500, 30)}))
        moments = ClientSide(parties[name], classes=NUMERIC, columns=study.sent).moments()
        store.join(fgm.encode("summary", moments, study=study, party=name, samples=30, columns=study.sent))
    return store, study, parties


def file_of(study, name, said):
    return fgm.encode("answer", said, study=study.fingerprint, party=name, samples=30, columns=study.sent)


@pytest.mark.filterwarnings("ignore::fedgram.core.errors.Revealing")  # fewer samples than features
@pytest.mark.parametrize("dimension", [8, 200])  # the second is sent as a factor
def test_apfl_of_numeric_outcomes(tmp_path, dimension):
    store, study, parties = numeric_store(tmp_path)
    settings = {"dim_primary": dimension, "dim_refine": 8}
    request = fgm.read(advance(store, "apfl", settings).data)
    said = {name: answer(study, request, parties[name]) for name in NAMES}
    [other] = store.join(file_of(study, "north", said["south"]))
    assert "'north' refused: its outcomes have other sums or products than in its summary" in other.why
    store.join(*(file_of(study, name, said[name]) for name in NAMES))
    fit = fgm.read(advance(store, "apfl", settings).data).payload
    wanted = fg.APFL(**settings).fit(list(parties.values()), study=study)
    table = Table({"age": np.array([30.0, 60.0]), "y": np.zeros(2)})
    np.testing.assert_allclose(fit.predictor().scores(table), wanted.predictor().scores(table), rtol=1e-9)
    own, other = study.model(fit.personalize(parties["north"])), wanted.predictor("north")
    np.testing.assert_allclose(own.scores(table), other.scores(table), rtol=1e-9)


def test_few_samples_and_huge_requests_are_pointed_out_to_the_party(tmp_path):
    request = advance(store_of(tmp_path, *NAMES), "apfl", {"dim_primary": 40}).data
    with pytest.warns(Revealing, match="40 samples in 40 columns"):
        answered("north", request)
    asked = fgm.read(request).payload
    huge = Round(1, "apfl", {"dim_primary": MOST_FEATURES + 1}, asked.basis, None)
    file = fgm.read(fgm.encode("round", huge, study=STUDY, party="coordinator"))
    with pytest.raises(InvalidParameter, match=f"moments of {MOST_FEATURES + 1} features.*at most {MOST_FEATURES}"):
        answer(STUDY, file, client("north"))


def test_a_run_of_another_method_does_not_discard_answers(tmp_path):
    store = store_of(tmp_path, *NAMES)
    asked = advance(store, "fedlogit", {"rounds": 2})
    assert advance(store, "apfl", SETTINGS).number == 1  # without answers
    asked = advance(store, "fedlogit", {"rounds": 2})
    store.join(answered("north", asked.data))
    with pytest.raises(
        InvalidParameter, match=r"fedlogit is at round 1.*--method fedlogit --set rounds=2, or.*--restart"
    ):
        advance(store, "apfl", SETTINGS)
    assert advance(store, "apfl", SETTINGS, restart=True).number == 1


def scaled(moments, factor):
    """Return the moments of the samples times a factor."""
    packed, sums = moments.packed * factor**2, moments.cross.T[moments.counts > 0] * factor
    return fg.Moments(moments.schema, sums=sums, counts=moments.counts.copy(), packed=packed)


def test_moments_that_cannot_be_the_partys_are_refused(tmp_path):
    store = store_of(tmp_path, *NAMES)
    asked, own = fgm.read(advance(store, "apfl", SETTINGS).data), client("north")
    other = Round(1, "apfl", SETTINGS | {"seed": 1}, asked.payload.basis, None)
    elsewhere = fgm.read(fgm.encode("round", other, study=STUDY, party="coordinator"))
    honest = answer(STUDY, asked, own).reply
    wrong = {
        "must be moments, got a dict": {"gradient": np.zeros(3)},
        "number of samples 40, got": answer(STUDY, asked, client("north", n=39)).reply,
        "samples by class": answer(STUDY, asked, client("south")).reply,
        "moments of features": answer(STUDY, elsewhere, own).reply,
        "the sum of squares of random feature": scaled(honest, 1e8),
        "and its own moments allow at most": scaled(honest, 20.0),
    }
    for words, reply in wrong.items():
        said = Answer(1, asked.digest, reply)
        data = fgm.encode("answer", said, study=STUDY.fingerprint, party="north", samples=40, columns=STUDY.sent)
        [found] = store.join(data)
        assert found.outcome == "refused"
        assert words in found.why
        assert "'north' refused" in found.why
    for impossible in (np.nan, 1e300, -1.0):  # not possible as moments of any samples
        packed = honest.packed.copy()
        packed[0] = impossible
        broken = fg.Moments(
            honest.schema, sums=honest.cross.T[honest.counts > 0], counts=honest.counts.copy(), packed=packed
        )
        said = Answer(1, asked.digest, broken)
        data = fgm.encode("answer", said, study=STUDY.fingerprint, party="north", samples=40, columns=STUDY.sent)
        assert store.join(data)[0].outcome == "refused"
    assert waited_for(store) == list(NAMES)


def test_a_step_that_is_not_listed_is_never_answered(tmp_path):
    store = store_of(tmp_path, *NAMES)
    method = fg.FedLogit()
    pool = pool_of(store, store.total())
    clients = clients_of(method, pool, KnownSums(method, pool, []))
    with pytest.raises(InvalidParameter, match="step 'hello' cannot be answered by files; ask for 'gradient'"):
        clients.sum(method.hello)
    with pytest.raises(Unanswered) as asked:
        clients.sum(method.gradient, {"leverage": 0.5})
    assert asked.value.payload == {"leverage": 0.5}


def test_a_method_of_another_package_asks_by_files(tmp_path, monkeypatch):
    """The step's declaration is sufficient."""

    def bounds(reply, joined, method, asked):
        if not 0 <= reply["ill"] <= joined.n + method.room:
            raise RefusedMessage(f"'ill' is {reply['ill']}: expected 0 to {joined.n}")

    @dataclass(frozen=True, kw_only=True)
    class Asking(Publishing):
        finds_columns: ClassVar[bool] = True
        room: Natural = 0

        def serve(self, clients):
            total = clients.sum(self.summarize)
            assert total.n == 120
            said = clients.sum(self.ask, {"of": "ill"})
            assert said["ill"] == sum(np.count_nonzero(client(name).y == "ill") for name in NAMES)
            return LinearModel(np.zeros((total.d, 2)), STUDY.classes, features=STUDY.features)

        @step
        def summarize(self, client) -> fg.Moments:
            return client.moments()

        @step(reply={"ill": Bounded(0, 1e6)}, by_files=bounds)
        def ask(self, client, asked):
            return {"ill": float(np.count_nonzero(client.y == client.classes.index(asked["of"])))}

    monkeypatch.setitem(fg.registry._methods, "asking", Asking)
    store = store_of(tmp_path, *NAMES)
    asked = advance(store, "asking")
    lie = fgm.encode(
        "answer",
        Answer(1, fgm.read(asked.data).digest, {"ill": 41.0}),
        study=STUDY.fingerprint,
        party="north",
        samples=40,
        columns=STUDY.sent,
    )
    [found] = store.join(lie)
    assert "'ill' is 41.0: expected 0 to 40" in found.why
    store.join(*(answered(name, asked.data) for name in NAMES))
    assert fgm.read(advance(store, "asking").data).payload.method == "asking"

"""Every method under a study is that method on the pooled, preprocessed table; clients join and leave as before."""

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.errors import InvalidParameter, Mismatch
from fedgram.pipeline import Pipeline
from fedgram.protocol.fit import load
from fedgram.studies.encoding import read_client
from studies.test_basis import STUDY, Table, by_hand, table

SIZES = (40, 25, 60, 30)
GRADIENT = {"rounds": 2, "epochs": 1, "batch": 16, "lr": 0.05}


@pytest.fixture(scope="module")
def parties():
    """Return the parties' tables with a label that depends on the columns, and the same rows preprocessed together."""
    rng = np.random.default_rng(5)
    whole = table(sum(SIZES), rng)
    x = by_hand(whole)
    whole["y"] = np.where(x @ rng.normal(size=x.shape[1]) + 0.3 * rng.normal(size=len(x)) > 0, "yes", "no")
    ends = np.cumsum(SIZES)[:-1]
    tables = [
        Table(dict(zip(whole, parts, strict=True)))
        for parts in zip(*(np.split(column, ends) for column in whole.values()), strict=True)
    ]
    encoded = [read_client(STUDY, f"party-{k}", part) for k, part in enumerate(tables)]
    made = [
        fg.Client(f"party-{k}", rows, part["y"])
        for k, (rows, part) in enumerate(zip(np.split(x, ends), tables, strict=True))
    ]
    return encoded, made


METHODS = [
    fg.AFL(),
    fg.AFL(intercept=False),
    fg.FedHiP(),
    fg.FedGram(),
    fg.FedLogit(rounds=5),
    fg.APFL(dim_primary=16, dim_refine=16),
    fg.Local(),
    fg.FedAvg(**GRADIENT),
    fg.Ditto(**GRADIENT, network="mlp:8"),
    fg.FedDBE(**GRADIENT, network="mlp:8"),
    fg.FedACnnL(network="dnn"),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.name}")
def test_a_fit_under_a_study_is_one_on_the_preprocessed_table(parties, method):
    encoded, made = parties
    got = method.fit(encoded, study=STUDY, classes=STUDY.classes)
    want = method.fit(made, classes=STUDY.classes)
    close = {"rtol": max(method.rounding, 1e-9), "atol": 1e-4 if method.rounding > 1e-6 else 1e-8}
    z, x = (np.concatenate([client.x for client in clients]) for clients in parties)
    if want.model is not None:
        np.testing.assert_allclose(got.model.scores(z), want.model.scores(x), **close)
    assert got.personal.keys() == want.personal.keys()
    for own, other in zip(encoded, made, strict=True):
        if own.name in want.personal:
            np.testing.assert_allclose(
                got.personal[own.name].scores(own.x), want.personal[own.name].scores(other.x), **close
            )


@pytest.mark.parametrize("method", [fg.AFL(), fg.FedHiP(), fg.FedGram()], ids=lambda method: method.name)
def test_joining_and_leaving_is_as_if_from_the_start(parties, method):
    encoded, _ = parties
    everybody = method.fit(encoded, study=STUDY, classes=STUDY.classes)
    few = method.fit(encoded[:-1], study=STUDY, classes=STUDY.classes)
    late = few.add(few.summarize(encoded[-1]), name=encoded[-1].name)
    np.testing.assert_allclose(late.model.weights, everybody.model.weights, atol=1e-9)
    left = late.remove(late.summarize(encoded[-1]), name=encoded[-1].name)
    np.testing.assert_allclose(left.model.weights, few.model.weights, atol=1e-7)
    own, other = (fit.personalize(encoded[0]).scores(encoded[0].x) for fit in (late, everybody))
    np.testing.assert_allclose(own, other, atol=1e-7)


def test_a_fit_keeps_its_study_and_columns(parties, tmp_path):
    encoded, _ = parties
    fit = fg.FedGram().fit(encoded, study=STUDY, classes=STUDY.classes)
    fit.save(tmp_path / "fit.fedgram")
    again = load(tmp_path / "fit.fedgram")
    assert again.study == STUDY
    assert again.basis.same(fit.basis)
    assert fit.model.columns == STUDY.sent
    assert fit.model.features == fit.total.schema.features == STUDY.features
    np.testing.assert_array_equal(again.personalize(encoded[1]).weights, fit.personalize(encoded[1]).weights)


def test_parties_of_another_study_are_refused(parties):
    encoded, made = parties
    other = STUDY.__class__("another", STUDY.outcome, STUDY.columns, STUDY.classes)
    with pytest.raises(Mismatch, match="study 'mixed' "):
        fg.AFL().fit(encoded, study=other, classes=STUDY.classes)
    with pytest.raises(Mismatch, match="data of no study"):
        fg.AFL().fit(made, study=STUDY, classes=STUDY.classes)


def test_networks_are_kept_with_their_columns(parties):
    encoded, _ = parties
    fit = fg.FedAvg(**GRADIENT, network="mlp:8").fit(encoded, study=STUDY, classes=STUDY.classes)
    assert isinstance(fit.model, Pipeline)
    assert set(fit.model.predict(encoded[0].x)) <= set(STUDY.classes)


def test_what_needs_a_sum_of_its_own_cannot_be_changed_later(parties):
    encoded, _ = parties
    fit = fg.APFL(dim_primary=16, dim_refine=16).fit(encoded, study=STUDY, classes=STUDY.classes)
    with pytest.raises(InvalidParameter, match="cannot be changed"):
        fit.summarize(encoded[0])


def test_a_forgotten_study_is_noticed(parties):
    encoded, _ = parties
    with pytest.raises(Mismatch, match=r"no study was given that makes their columns: fit\(…, study=study\)"):
        fg.AFL().fit(encoded, classes=STUDY.classes)

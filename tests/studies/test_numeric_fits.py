"""Numeric outcomes: every method that takes them is that method on the pooled, preprocessed table."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

import fedgram as fg
from fedgram.core.errors import InvalidData, InvalidParameter
from fedgram.evaluation import NumericErrors
from fedgram.heads import adapt
from fedgram.methods.analytic.apfl import GAMMAS
from fedgram.pipeline import Pipeline
from fedgram.protocol.fit import load
from fedgram.studies import Study
from fedgram.studies.drafting import draft
from fedgram.studies.encoding import as_client, gather, open_for, read_client
from fedgram.studies.kinds import Number
from studies.test_basis import STUDY as CLASSES
from studies.test_basis import Table, by_hand, table
from support.campaign import examples

COST, STAY = Number(unit="EUR", range=(0, 40_000)), Number(unit="days")
NO_LIMITS = {"minimum_group": 0, "maximum_columns_per_row": 0.0}
STUDY = Study("costs", ("cost", "stay"), {**CLASSES.columns, "cost": COST, "stay": STAY}, **NO_LIMITS)
ONE = Study("cost", "cost", {**CLASSES.columns, "cost": COST}, **NO_LIMITS)
TAKES_NUMBERS = [fg.AFL(), fg.FedHiP(), fg.FedGram(), fg.APFL(dim_primary=16, dim_refine=16), fg.Local()]


def named(method):
    return method.name


def split(whole, sizes):
    ends = np.cumsum(sizes)[:-1]
    columns = (np.split(column, ends) for column in whole.values())
    return [Table(dict(zip(whole, parts, strict=True))) for parts in zip(*columns, strict=True)]


def problem(sizes, seed):
    """Return parties' tables, the features of all rows preprocessed together, and the outcomes (n, 2)."""
    rng = np.random.default_rng(seed)
    whole = table(sum(sizes), rng)
    x = by_hand(whole)
    y = x @ rng.normal(size=(x.shape[1], 2)) + 0.3 * rng.normal(size=(len(x), 2))
    y = y * [1500.0, 2.0] + [18_000.0, 9.0]
    del whole["y"]
    whole |= {"cost": y[:, 0].clip(0, 40_000), "stay": y[:, 1]}
    return split(Counted(whole), sizes), x, np.column_stack([whole["cost"], whole["stay"]])


class Counted(Table):
    def __len__(self):
        return len(self["plain"])


def encoded(study, tables):
    kept = [Counted({name: part[name] for name in study.columns}) for part in tables]
    return [read_client(study, f"party-{k}", part) for k, part in enumerate(kept)]


def features(client, study=STUDY):
    return client.x[:, : -len(study.numeric_outcomes)]


@pytest.fixture(scope="module")
def parties():
    """Return training clients with test samples, the preprocessed rows of each, and outcomes of each."""
    sizes = (40, 25, 60, 30)
    tables, x, y = problem(sizes, 7)
    clients = encoded(STUDY, tables)
    # The next party's rows are as good for testing as any that were not trained on.
    tested = [
        replace(client, x_test=other.x[:20], y_test=other.y[:20])
        for client, other in zip(clients, clients[1:] + clients[:1], strict=True)
    ]
    ends = np.cumsum(sizes)[:-1]
    return tested, np.split(x, ends), np.split(y, ends)


@examples(25)
@given(st.lists(st.integers(15, 50), min_size=1, max_size=6), st.integers(0, 10**6), st.booleans())
def test_the_pooled_ridge_is_that_of_the_preprocessed_table(sizes, seed, intercept):
    tables, x, y = problem(sizes, seed)
    clients = encoded(STUDY, tables)
    fit = fg.FedHiP(beta=2.0, alpha=1.0, intercept=intercept).fit(clients, study=STUDY)
    # Without an intercept, the targets are the outcomes about their pooled mean.
    centre = y.mean(axis=0)
    want = Ridge(alpha=2.0, fit_intercept=intercept).fit(x, y - centre).predict(x) + centre
    got = np.concatenate([fit.model.predict(features(client)) for client in clients])
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def test_a_fit_shows_its_errors(parties):
    found = fg.FedHiP().fit(parties[0], study=STUDY)
    errors = found.report()["errors"]["cost"]
    assert f"  errors in cost: RMSE {errors['rmse']:.4g}, MAE {errors['mae']:.4g}, R2 {errors['r2']:.4g}\n" in repr(
        found
    )
    assert "  errors in stay: RMSE" in repr(found)
    assert len(repr(found).splitlines()) <= 10


def test_afl_is_ridge_with_gamma_once_per_client(parties):
    clients, rows, outcomes = parties
    x, y = np.concatenate(rows), np.concatenate(outcomes)
    for method, ridge in ((fg.AFL(), 0.0), (fg.AFL(ri=False, gamma=0.5), 2.0)):
        got = np.concatenate([method.fit(clients, study=STUDY).model.predict(features(client)) for client in clients])
        np.testing.assert_allclose(got, Ridge(alpha=ridge).fit(x, y).predict(x), rtol=1e-9)


@pytest.mark.parametrize("intercept", [True, False])
def test_a_personal_model_counts_own_samples_more(parties, intercept):
    clients, rows, outcomes = parties
    fit = fg.FedHiP(alpha=3.0, beta=2.0, intercept=intercept).fit(clients, study=STUDY)
    x, y = np.concatenate(rows), np.concatenate(outcomes)
    centre = y.mean(axis=0)
    for k, client in enumerate(clients):
        weights = np.concatenate([np.full(len(part), 4.0 if j == k else 1.0) for j, part in enumerate(rows)])
        want = Ridge(alpha=2.0, fit_intercept=intercept).fit(x, y - centre, sample_weight=weights)
        got = fit.personal[client.name].predict(features(client))
        np.testing.assert_allclose(got, want.predict(rows[k]) + centre, rtol=1e-9)


def test_local_is_each_partys_own_ridge(parties):
    clients, rows, outcomes = parties
    fit = fg.Local(ridge=1.5).fit(clients, study=STUDY)
    chosen = fg.Local().fit(clients, study=STUDY)
    scale = np.array([20_000.0, 1.0])  # the common ridge is chosen for outcomes as they are sent
    for client, x, y in zip(clients, rows, outcomes, strict=True):
        got = fit.personal[client.name].predict(features(client))
        np.testing.assert_allclose(got, Ridge(alpha=1.5).fit(x, y).predict(x), rtol=1e-9)
        best = adapt.own_ridge(x, y / scale, intercept=True).ridge
        got = chosen.personal[client.name].predict(features(client))
        np.testing.assert_allclose(got, Ridge(alpha=best).fit(x, y).predict(x), rtol=1e-6)


def test_fedgram_is_the_pooled_ridge_with_fedhips_step(parties):
    clients, *_ = parties
    x = features(clients[0])
    for ours, theirs in (
        (fg.FedGram(), fg.FedHiP()),
        (fg.FedGram(refine=False), fg.FedHiP(alone=False)),
        (fg.FedGram(shrinkage=0.1), fg.FedHiP(beta=15.5)),
    ):
        got, want = ours.fit(clients, study=STUDY), theirs.fit(clients, study=STUDY)
        np.testing.assert_array_equal(got.model.predict(x), want.model.predict(x))
        np.testing.assert_array_equal(got.personal["party-0"].predict(x), want.personal["party-0"].predict(x))


@pytest.mark.parametrize("exact", [False, True])
def test_apfl_projects_features_and_not_outcomes(parties, exact):
    clients, rows, outcomes = parties
    method = fg.APFL(dim_primary=12, dim_refine=8, gamma=float(GAMMAS[14]), beta=2.0, lam=0.5, exact=exact)
    fit = method.fit(clients, study=STUDY)
    maps = [streams(np.concatenate(rows)) for streams in method._maps(rows[0].shape[1])]
    y = np.concatenate(outcomes)
    centre = y.mean(axis=0)
    pooled = Ridge(alpha=float(GAMMAS[14]), fit_intercept=False).fit(maps[0], y - centre)
    got = np.concatenate([fit.model.predict(features(client)) for client in clients])
    np.testing.assert_allclose(got, pooled.predict(maps[0]) + centre, rtol=1e-8)
    phi, psi = (streams[: len(rows[0])] for streams in maps)
    left_over = outcomes[0] - centre - pooled.predict(phi)
    own = Ridge(alpha=2.0, fit_intercept=False).fit(psi, left_over)
    want = pooled.predict(phi) + 0.5 * own.predict(psi) + centre
    np.testing.assert_allclose(fit.personal["party-0"].predict(features(clients[0])), want, rtol=1e-8)


@pytest.mark.parametrize("method", TAKES_NUMBERS, ids=named)
def test_errors_are_those_of_the_test_samples(parties, method):
    clients, *_ = parties
    fit = method.fit(clients, study=STUDY)
    assert fit.evaluation.kind is NumericErrors
    unit, centre = np.array([20_000.0, 1.0]), np.array([20_000.0, 0.0])
    truth = {client.name: client.x_test[:, -2:] * unit + centre for client in clients}
    said = {client.name: fit.personal.get(client.name, fit.model).predict(client.x_test[:, :-2]) for client in clients}
    checked = [(fit.evaluation.by_client[name], truth[name], said[name]) for name in truth]
    checked += [(fit.evaluation.pooled, np.concatenate(list(truth.values())), np.concatenate(list(said.values())))]
    for errors, y, predicted in checked:
        off = predicted - y
        for place, name in enumerate(("cost", "stay")):
            found, column = errors[name], off[:, place]
            assert found.rmse == pytest.approx(np.sqrt(np.mean(column**2)))
            assert found.mae == pytest.approx(np.abs(column).mean())
            assert found.r2 == pytest.approx(1 - (column**2).sum() / ((y[:, place] - y[:, place].mean()) ** 2).sum())


@pytest.mark.parametrize("method", [fg.AFL(), fg.FedHiP(), fg.FedGram()], ids=named)
def test_joining_and_leaving_is_as_if_from_the_start(parties, method):
    clients, *_ = parties
    x = features(clients[0])
    whole, few = method.fit(clients, study=STUDY), method.fit(clients[:-1], study=STUDY)
    late = few.add(few.summarize(clients[-1]), name=clients[-1].name)
    np.testing.assert_allclose(late.model.predict(x), whole.model.predict(x), rtol=1e-9)
    left = late.remove(late.summarize(clients[-1]), name=clients[-1].name)
    np.testing.assert_allclose(left.model.predict(x), few.model.predict(x), rtol=1e-7)
    own, other = (fit.personalize(clients[0]).predict(x) for fit in (late, whole))
    np.testing.assert_allclose(own, other, rtol=1e-7)
    assert not late.evaluation


@pytest.mark.parametrize("method", TAKES_NUMBERS, ids=named)
def test_a_fit_is_saved_with_its_errors_and_outcomes(parties, method, tmp_path):
    clients, *_ = parties
    fit = method.fit(clients, study=STUDY)
    fit.save(tmp_path / "fit.fedgram")
    again = load(tmp_path / "fit.fedgram")
    assert again.evaluation == fit.evaluation
    assert again.study == STUDY
    x = features(clients[0])
    for name, model in fit.personal.items():
        np.testing.assert_array_equal(again.personal[name].predict(x), model.predict(x))
    if fit.model is not None:
        model = again.model
        assert isinstance(model, Pipeline)
        assert model.columns == STUDY.sent[:-2]
        assert model.features == STUDY.features
        assert model.targets.names == ("cost", "stay")


def test_one_outcome_gives_a_number_per_sample(parties):
    tables, *_ = problem((30, 30), 1)
    clients = encoded(ONE, tables)
    model = fg.AFL().fit(clients, study=ONE).model
    assert model.predict(clients[0].x[:, :-1]).shape == (30,)
    with pytest.raises(InvalidParameter, match="a model of cost predicts numbers"):
        model.predict_proba(clients[0].x[:, :-1])
    with pytest.raises(InvalidData, match="samples of shape"):
        model.predict(clients[0].x)


def test_a_table_without_the_outcome_can_be_predicted(parties):
    tables, *_ = problem((30, 30), 1)
    clients = encoded(STUDY, tables)
    model = fg.AFL().fit(clients, study=STUDY).model
    unknown = Table({name: column for name, column in tables[0].items() if name not in STUDY.numeric_outcomes})
    for rows in (Counted(unknown), Counted(tables[0] | {"cost": np.full(30, np.nan)})):
        x, *_ = gather(open_for(STUDY, rows, labelled=False), "refuse")
        np.testing.assert_array_equal(model.predict(x), model.predict(features(clients[0])))


def asked(method, clients, **options):
    """Return the steps before the method's refusal, and the refusal."""
    seen = []
    with pytest.raises(InvalidParameter) as refused:
        method.fit(clients, study=STUDY, progress=lambda step, *_: seen.append(step), **options)
    return seen, str(refused.value)


@pytest.mark.parametrize("name", sorted(set(fg.registry) - {method.name for method in TAKES_NUMBERS}))
def test_methods_that_need_classes_refuse_before_anything_is_sent(parties, name):
    clients, *_ = parties
    seen, why = asked(fg.registry[name](), clients)
    assert not seen
    assert why.startswith(f"{name} needs classes, and the outcome 'cost', 'stay' is a number")


def test_classes_beside_a_numeric_outcome_are_refused(parties):
    clients, *_ = parties
    seen, why = asked(fg.AFL(), clients, classes=("ill", "well"))
    assert not seen
    assert "'ill'" in why


def test_an_outcome_that_may_be_missing_is_refused():
    with pytest.raises(InvalidData, match=r"'cost' cannot be made up .* got missing = 'mean'"):
        Study("cost", "cost", {**CLASSES.columns, "cost": replace(COST, missing="mean")})


def test_a_draft_wants_a_numeric_outcome_filled_in(tmp_path):
    rows = [",100.5", *(f"{20 + k % 20},{100.5 + k * 1.5}" for k in range(40))]
    (tmp_path / "north.csv").write_text("\n".join(["age,cost", *rows]))
    study = Study.parse(draft(tmp_path / "north.csv", "cost").text)
    assert study.numeric_outcomes == ("cost",)
    assert (study.columns["cost"].missing, study.columns["age"].missing) == ("refuse", "mean")


@pytest.mark.parametrize("method", TAKES_NUMBERS, ids=named)
def test_an_outcome_far_from_zero_is_predicted_as_well_as_one_about_it(method):
    found = []
    for offset in (0.0, 2000.0):
        study = Study("years", "year", {"age": Number(), "year": Number()})
        rng = np.random.default_rng(3)
        clients = []
        for k in range(3):
            age = rng.normal(size=60)
            rows = np.column_stack([age, age + 0.5 * rng.normal(size=60) + offset])
            labels = np.zeros(60, dtype=np.int64)
            tested = {"x_test": rows[40:], "y_test": labels[40:]}
            clients.append(as_client(study, f"party-{k}", rows[:40], labels[:40], **tested))
        found.append(method.fit(clients, study=study).evaluation.pooled["year"].r2)
    assert found[0] > 0.7
    assert found[1] == pytest.approx(found[0], abs=1e-6)


def test_a_predictor_takes_tables_and_gives_numbers_but_no_probabilities(parties):
    tables, *_ = problem((30, 30), 1)
    clients = encoded(STUDY, tables)
    fit = fg.FedHiP().fit(clients, study=STUDY)
    unknown = Counted({name: column for name, column in tables[0].items() if name not in STUDY.numeric_outcomes})
    for client, model in ((None, fit.model), ("party-0", fit.personal["party-0"])):
        np.testing.assert_array_equal(fit.predictor(client).predict(unknown), model.predict(features(clients[0])))
    with pytest.raises(InvalidParameter, match="predicts numbers and has no probabilities"):
        fit.predictor().predict_proba(unknown)
    [block] = fit.predictor().read(unknown)
    np.testing.assert_array_equal(block.found, fit.predictor().predict(unknown))
    assert block.probabilities is None

"""Logistic and Poisson regression equal statsmodels on the pooled table; what has no maximum is named."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

import fedgram as fg
from fedgram.core import wire
from fedgram.core.errors import (
    ClientFailed,
    InvalidData,
    InvalidParameter,
    Mismatch,
    NotConverged,
    RefusedMessage,
    Separated,
    UnknownName,
)
from fedgram.inference.newton import Newton, Sums
from fedgram.studies.kinds import Category, Flag, Number
from studies.test_basis import Table
from support.campaign import examples
from support.lying import Spoiled
from support.regressions import COLUMNS, TERMS, design, parties, study_of, trial

sm = pytest.importorskip("statsmodels.api")
CLASSES, COUNTS = study_of(COLUMNS), study_of(COLUMNS, counts=True)
WITH_OFFSET = study_of(COLUMNS | {"log_months": Number(range=(0, 4))}, counts=True)


def fitted(method, study, table, owners, outcome):
    columns = {name: table[name] for name in study.needed if name != "y"}
    return method.fit(parties(study, columns | {"y": table[outcome]}, owners), study=study)


class Reference:
    """Results of statsmodels for a design with a column of ones first, fitted to columns near zero.

    With a column such as 2026 ± 1 as it is, statsmodels itself loses digits. All figures are in the columns' own units.
    """

    def __init__(self, fitted, x):
        apart = x.std(axis=0) > 0
        mean, spread = np.where(apart, x.mean(axis=0), 0.0), np.where(apart, x.std(axis=0), 1.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its tolerance is beyond rounding
            self.fit = fitted((x - mean) / spread)
        back = np.diag(1 / spread)
        back[0] -= mean / spread
        self.params, covariance = back @ self.fit.params, back @ self.fit.cov_params() @ back.T
        self.bse = np.sqrt(np.diag(covariance))
        self.tvalues = self.params / self.bse
        self.pvalues = 2 * norm.sf(np.abs(self.tvalues))
        self.ends = np.column_stack([self.params - REACH * self.bse, self.params + REACH * self.bse])
        self.covariance = covariance

    def __getattr__(self, name):
        return getattr(self.fit, name)


REACH = norm.ppf(0.975)


def logit(y, x):
    return Reference(lambda z: sm.Logit(y, z).fit(disp=0, tol=1e-14, maxiter=60), x)


def poisson(y, x, offset=None):
    family = sm.families.Poisson()
    return Reference(lambda z: sm.GLM(y, z, family=family, offset=offset).fit(tol=1e-14, maxiter=200), x)


def assert_same(table, wanted, rtol=1e-8):
    """Compare estimates, errors, statistics, intervals and likelihoods with statsmodels' results."""
    rows, ends = table.rows, wanted.ends
    for name, found in {
        "estimate": wanted.params,
        "se": wanted.bse,
        "statistic": wanted.tvalues,
    }.items():
        np.testing.assert_allclose([getattr(row, name) for row in rows], found, rtol=rtol, atol=1e-12, err_msg=name)
    for place, row in enumerate(rows):  # an end near 0 is a difference, as exact as the numbers subtracted
        assert (row.low, row.high) == pytest.approx(tuple(ends[place]), abs=rtol * (abs(row.estimate) + 2 * row.se))
    np.testing.assert_allclose([row.p for row in rows], wanted.pvalues, rtol=1e-6, atol=1e-300)
    figures = table.summary
    bic = wanted.bic if hasattr(wanted, "prsquared") else wanted.bic_llf
    for name, value in {"log_likelihood": wanted.llf, "aic": wanted.aic, "bic": bic, "n": wanted.nobs}.items():
        assert figures[name] == pytest.approx(value, rel=rtol), name
    null = wanted.llnull
    assert figures["null_log_likelihood"] == pytest.approx(null, rel=rtol)
    assert figures.get("likelihood_ratio", 0.0) == pytest.approx(2 * (wanted.llf - null), rel=1e-7, abs=1e-9)
    assert figures["df_residual"] == wanted.df_resid


@examples(8)
@given(st.integers(0, 2**16), st.integers(1, 9))
def test_logistic_regression_is_that_of_the_pooled_table_for_any_partition(seed, count):
    table, owners = trial(seed=seed, parties=count)
    fit = fitted(fg.Logistic(), CLASSES, table, owners, "classes")
    found = fit.coefficients()
    assert tuple(row.term for row in found.rows) == TERMS
    wanted = logit((table["classes"] == "yes").astype(float), design(table))
    assert_same(found, wanted)
    assert found.summary["pseudo_r_squared"] == pytest.approx(wanted.prsquared, rel=1e-7)
    assert found.summary["rounds"] <= 8
    probabilities = fit.predictor().predict_proba(
        Table({name: table[name] for name in COLUMNS} | {"y": table["classes"]})
    )
    np.testing.assert_allclose(probabilities[:, 1], wanted.fit.predict(), rtol=1e-9)


@examples(8)
@given(st.integers(0, 2**16), st.integers(1, 9))
def test_poisson_regression_is_that_of_the_pooled_table_for_any_partition(seed, count):
    table, owners = trial(seed=seed, parties=count)
    fit = fitted(fg.Poisson(), COUNTS, table, owners, "counts")
    found, wanted = fit.coefficients(), poisson(table["counts"], design(table))
    assert_same(found, wanted)
    assert found.summary["deviance"] == pytest.approx(wanted.deviance, rel=1e-9)
    assert found.summary["null_deviance"] == pytest.approx(wanted.null_deviance, rel=1e-9)
    assert found.summary["dispersion"] == pytest.approx(wanted.pearson_chi2 / wanted.df_resid, rel=1e-9)
    predicted = fit.predictor().predict(Table({name: table[name] for name in COLUMNS} | {"y": table["counts"]}))
    np.testing.assert_allclose(predicted, wanted.fittedvalues, rtol=1e-9)


@examples(8)
@given(st.integers(0, 2**16), st.integers(1, 9))
def test_an_offset_has_the_coefficient_1(seed, count):
    table, owners = trial(seed=seed, parties=count)
    fit = fitted(fg.Poisson(offset="log_months"), WITH_OFFSET, table, owners, "counts")
    found, wanted = fit.coefficients(), poisson(table["counts"], design(table), table["log_months"])
    assert tuple(row.term for row in found.rows) == TERMS
    assert_same(found, wanted)
    assert found.summary["null_deviance"] == pytest.approx(wanted.null_deviance, rel=1e-9)
    assert "log_months" in found.outcome
    new = {name: table[name] for name in (*COLUMNS, "log_months")} | {"y": table["counts"]}
    predicted = fit.predictor().predict(Table(new))
    np.testing.assert_allclose(predicted, wanted.fittedvalues, rtol=1e-9)


def test_the_exposure_may_be_a_derived_column():
    table, owners = trial()
    columns = COLUMNS | {"months": Number(range=(0, 30)), "log_m": Number(range=(-2, 5))}
    study = replace(study_of(columns, counts=True), derived={"log_m": "log(months)"})
    table["months"] = np.exp(table["log_months"])
    fit = fitted(fg.Poisson(offset="log_m", columns="dose,sex"), study, table, owners, "counts")
    assert_same(fit.coefficients(), poisson(table["counts"], design(table)[:, [0, 1, 3]], table["log_months"]))


@pytest.mark.parametrize("data", ["spector", "fair"])
def test_statsmodels_own_data_by_logistic_regression(data):
    loaded = getattr(sm.datasets, data).load_pandas()
    x, y = loaded.exog, (loaded.endog.to_numpy() > 0).astype(int)
    owners = np.arange(len(y)) % 3
    names = tuple(x.columns)
    clients = [fg.Client(f"c{k}", x.to_numpy(float)[owners == k], y[owners == k], columns=names) for k in range(3)]
    found = fg.Logistic().fit(clients, classes=2).coefficients()
    assert [row.term for row in found.rows] == ["(intercept)", *names]
    assert_same(found, logit(y, sm.add_constant(x.to_numpy(float))))


@pytest.mark.parametrize("data", ["randhie", "cpunish"])
def test_statsmodels_own_data_by_poisson_regression(data):
    loaded = getattr(sm.datasets, data).load_pandas()
    x, y = loaded.exog.to_numpy(float)[:2000], loaded.endog.to_numpy(float)[:2000]
    ends = {name: (x[:, k].min() - 1, x[:, k].max() + 1) for k, name in enumerate(loaded.exog)}
    study = study_of({name: Number(range=tuple(map(float, pair))) for name, pair in ends.items()}, counts=True)
    table = dict(zip(ends, x.T, strict=True)) | {"y": y}
    found = fg.Poisson().fit(parties(study, table, np.arange(len(y)) % 4), study=study).coefficients()
    assert_same(found, poisson(y, sm.add_constant(x)), rtol=2e-8 if data == "cpunish" else 1e-8)


def test_far_columns_without_a_study_keep_their_digits():
    table, owners = trial()
    x = np.column_stack([table["year"] * 1000, 1e5 + table["dose"] * 10])
    y = (table["classes"] == "yes").astype(int)
    clients = [fg.Client(f"c{k}", x[owners == k], y[owners == k]) for k in range(4)]
    found = fg.Logistic().fit(clients, classes=2).coefficients()
    assert_same(found, logit(y, sm.add_constant(x)))
    assert [row.term for row in found.rows] == ["(intercept)", "x1", "x2"]


def test_imputed_means_and_indicators_of_gaps():
    table, owners = trial()
    rng = np.random.default_rng(5)
    gaps = rng.random(len(owners)) < 0.15
    dose = np.where(gaps, np.nan, table["dose"])
    columns = {"dose": Number(range=(-20, 30), missing="flag"), "sex": Category(("F", "M"))}
    fit = fitted(fg.Logistic(), study_of(columns), table | {"dose": dose}, owners, "classes")
    filled = np.where(gaps, np.nanmean(dose), dose)
    x = np.column_stack([np.ones(len(owners)), filled, gaps, table["sex"] == "M"]).astype(float)
    found = fit.coefficients()
    assert [row.term for row in found.rows] == ["(intercept)", "dose", "dose missing", "sex=M"]
    assert_same(found, logit((table["classes"] == "yes").astype(float), x))
    assert [(test.column, test.df) for test in found.joint] == [("dose", 2)]
    mean = study_of({"dose": Number(range=(-20, 30), missing="mean")})
    told = fitted(fg.Logistic(), mean, table | {"dose": dose}, owners, "classes").coefficients()
    for each in (found, told):
        assert any("The pooled mean stands in for missing values: dose." in note for note in each.notes)


def test_the_event_is_chosen_by_name():
    table, owners = trial()
    yes, no = (fitted(fg.Logistic(event=e), CLASSES, table, owners, "classes").coefficients() for e in (None, "no"))
    assert (yes.outcome, no.outcome) == ("y = yes", "y = no")
    np.testing.assert_allclose([r.estimate for r in yes.rows], [-r.estimate for r in no.rows], rtol=1e-9)
    with pytest.raises(UnknownName, match="unknown class for `event` 'maybe'"):
        fitted(fg.Logistic(event="maybe"), CLASSES, table, owners, "classes")


def test_sub_models_and_aliased_columns():
    table, owners = trial()
    columns = COLUMNS | {"twice": Number(range=(-40, 60)), "constant": Number(range=(0, 10))}
    table |= {"twice": 2 * table["dose"] + 1, "constant": np.full(len(owners), 5.0)}
    found = fitted(fg.Logistic(), study_of(columns), table, owners, "classes").coefficients()
    y = (table["classes"] == "yes").astype(float)
    assert found.aliased == ("twice", "constant")
    assert_same(found, logit(y, design(table)))
    part = fitted(fg.Logistic(columns="group, dose"), study_of(columns), table, owners, "classes").coefficients()
    assert (part.aliased, [row.term for row in part.rows]) == ((), ["(intercept)", "dose", "group=b", "group=c"])
    assert_same(part, logit(y, design(table)[:, [0, 1, 4, 5]]))
    [test] = part.joint
    wald = sm.Logit(y, design(table)[:, [0, 1, 4, 5]]).fit(disp=0, tol=1e-12).wald_test(np.eye(4)[2:], scalar=True)
    assert (test.column, test.df) == ("group", 2)
    assert (test.statistic, test.p) == (pytest.approx(wald.statistic, rel=1e-8), pytest.approx(wald.pvalue, rel=1e-8))
    with pytest.raises(UnknownName, match="unknown column of the study 'sox'.*did you mean 'sex'"):
        fitted(fg.Logistic(columns="dose,sox"), CLASSES, table, owners, "classes")


def test_the_intercept_alone():
    table, owners = trial()
    found = fitted(fg.Poisson(columns=""), COUNTS, table, owners, "counts").coefficients()
    assert_same(found, poisson(table["counts"], np.ones((len(owners), 1))))


# No maximum
def test_a_level_with_one_class_is_named_before_any_round():
    table, owners = trial()
    steps = []
    for changed, where in (("M", "'sex=M' is 1"), ("F", "'sex=M' is 0")):
        classes = np.where(table["sex"] == changed, "yes", table["classes"])
        columns = {name: table[name] for name in COLUMNS} | {"y": classes}
        with pytest.raises(
            Separated, match=f"separation by column 'sex': all [0-9]+ rows in which {where} have one class"
        ):
            fg.Logistic().fit(
                parties(CLASSES, columns, owners), study=CLASSES, progress=lambda step, *_: steps.append(step)
            )
    assert "likelihood" not in steps


def test_a_flag_and_a_level_with_counts_of_0_are_named():
    table, owners = trial()
    study = study_of({"dose": Number(range=(-20, 30)), "on": Flag(), "group": Category(("a", "b", "c"))}, counts=True)
    table["on"] = np.where(np.arange(len(owners)) % 10 == 0, "yes", "no")
    for changed, column in ((table["on"] == "yes", "on"), (table["group"] == "a", "group")):
        counts = np.where(changed, 0.0, table["counts"] + 1)
        with pytest.raises(Separated, match=rf"by column '{column}': all [0-9]+ rows in which .* have count 0"):
            fitted(fg.Poisson(), study, table | {"counts": counts}, owners, "counts")


@pytest.mark.parametrize("seed", range(3))
def test_complete_separation_is_named(seed):
    rng = np.random.default_rng(seed)
    table, owners = trial(n=120, seed=seed)
    table["classes"] = np.where(table["dose"] > 5, "yes", "no")
    with pytest.raises(Separated, match="separation by.*'dose'.*they tell all rows of both classes apart"):
        fitted(fg.Logistic(), CLASSES, table, owners, "classes")
    table["classes"] = rng.permutation(table["classes"])
    assert fitted(fg.Logistic(), CLASSES, table, owners, "classes").coefficients().rows


def test_quasi_complete_separation_by_a_combination_is_named():
    """Among rows with a gap in both columns' difference all have one class, which no single column tells."""
    rng = np.random.default_rng(1)
    one, other = rng.integers(0, 3, 300).astype(float), rng.integers(0, 3, 300).astype(float)
    classes = np.where(one > other, "yes", np.where(one < other, "no", rng.choice(["no", "yes"], 300)))
    study = study_of({"one": Number(range=(0, 5)), "other": Number(range=(0, 5)), "noise": Number(range=(-9, 9))})
    table = {"one": one, "other": other, "noise": rng.normal(size=300), "y": classes}
    with pytest.raises(Separated, match="separation by columns 'one', 'other': all rows have one class along them"):
        fg.Logistic().fit(parties(study, table, np.arange(300) % 3), study=study)


def test_a_large_but_finite_coefficient_is_no_separation():
    """A single row of 5,000 on the other side: the odds ratio is large, and as exact as any."""
    n = 10_000
    on = np.arange(n) % 2
    y = np.where(on == 1, (np.arange(n) // 2) % 2, 0)
    y[0] = 1
    clients = [fg.Client(f"c{k}", on[k::3, None].astype(float), y[k::3]) for k in range(3)]
    assert_same(fg.Logistic().fit(clients, classes=2).coefficients(), logit(y, sm.add_constant(on)))


def test_counts_of_0_along_a_number_are_named():
    rng = np.random.default_rng(0)
    x = np.concatenate([np.zeros(60), rng.uniform(1, 2, 30)])
    counts = np.concatenate([rng.poisson(3, 60), np.zeros(30)]).astype(float)
    study = study_of({"x": Number(range=(0, 3))}, counts=True)
    with pytest.raises(Separated, match="separation by column 'x': all counts are 0 along them"):
        fg.Poisson().fit(parties(study, {"x": x, "y": counts}, np.arange(90) % 3), study=study)


def test_too_few_rounds_are_an_error():
    table, owners = trial()
    with pytest.raises(NotConverged, match="expected a step of at most 1e-09 standard errors after 2, got one of"):
        fitted(fg.Logistic(rounds=2), CLASSES, table, owners, "classes")


def test_a_step_that_overshoots_is_halved():
    rng = np.random.default_rng(0)
    x = rng.lognormal(size=(300, 2))
    counts = rng.poisson(np.exp(0.3 * x[:, 0] - 0.2 * x[:, 1])).astype(float)
    study = study_of({"a": Number(range=(0, 100)), "b": Number(range=(0, 100))}, counts=True)
    table = {"a": x[:, 0], "b": x[:, 1], "y": counts}
    fit = fg.Poisson().fit(parties(study, table, np.arange(300) % 3), study=study)
    assert_same(fit.coefficients(), poisson(counts, sm.add_constant(x)))


def test_rounding_of_terms_that_cancel_halves_no_step():
    """Σ yη and Σ μ of counts may be a million each, and their difference 0: it is rounded like a million."""
    newton = Newton(np.zeros(1))
    newton.take(Sums(np.array([1.0]), np.array([[1e6]]), 0.0))
    newton.take(Sums(np.array([0.0]), np.array([[1e6]]), -1e-6))
    assert newton.converged
    newton = Newton(np.zeros(1))
    newton.take(Sums(np.array([1.0]), np.array([[1e6]]), 0.0))
    newton.take(Sums(np.array([0.0]), np.array([[1e6]]), -1e-3))
    assert not newton.converged
    assert newton.point == pytest.approx(0.5e-6)


# Bad input
def test_more_or_fewer_than_two_classes():
    clients = [fg.Client(f"c{k}", np.random.default_rng(k).normal(size=(20, 2)), np.arange(20) % 3) for k in range(2)]
    with pytest.raises(InvalidParameter, match="classes: expected two for logistic, got 3; describe an outcome"):
        fg.Logistic().fit(clients, classes=3)
    with pytest.raises(InvalidParameter, match="expected counts for poisson, got classes"):
        fg.Poisson().fit(clients, classes=3)
    table, owners = trial()
    with pytest.raises(InvalidParameter, match="logistic needs classes, and the outcome 'y' is a number"):
        fitted(fg.Logistic(), COUNTS, table, owners, "counts")


def test_a_class_that_no_party_has_is_named():
    table, owners = trial()
    columns = {name: table[name] for name in COLUMNS} | {"y": np.full(len(owners), "yes")}
    with pytest.raises(InvalidData, match="class 'no': expected rows of both classes, got none of this one"):
        fg.Logistic().fit(parties(CLASSES, columns, owners), study=CLASSES, classes=CLASSES.classes)


@pytest.mark.parametrize(("wrong", "words"), [(1.5, "whole numbers from 0"), (-1.0, "whole numbers from 0")])
def test_other_numbers_than_counts_are_refused_without_their_values(wrong, words):
    table, owners = trial()
    table["counts"] = table["counts"].copy()
    table["counts"][7] = wrong
    study = replace(COUNTS, columns={**COUNTS.columns, "y": Number(range=(-10, 1000))})
    with pytest.raises(ClientFailed, match=words) as refused:
        fitted(fg.Poisson(), study, table, owners, "counts")
    assert "1.5" not in str(refused.value)


def test_counts_of_0_alone_and_few_rows():
    table, owners = trial()
    with pytest.raises(InvalidData, match="outcome 'y': expected counts that are not all 0, got 200 zeros"):
        fitted(fg.Poisson(), COUNTS, table | {"counts": np.zeros(200)}, owners, "counts")
    few = {name: cells[:6] for name, cells in trial(seed=4)[0].items()}
    few |= {"classes": np.array(["no", "yes"] * 3), "sex": np.array(list("FFMMFM")), "group": np.array(list("aabbcc"))}
    with pytest.raises(InvalidData, match=r"rows: expected more than the [0-9] coefficients of the model, got 6"):
        fitted(fg.Logistic(), CLASSES, few, np.zeros(6, dtype=int), "classes")


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"maximum_columns_per_row": 0.33}, "at least 16 training samples for 5 columns, by maximum_columns_per_row"),
        ({"minimum_group": 30}, "minimum_group: study 'classes' asks for at least 30 samples in each group"),
    ],
)
def test_thresholds_of_the_study_hold(rules, words):
    table, owners = trial()
    owners[:10], owners[10:] = 7, np.minimum(owners[10:], 1)
    columns = {name: table[name] for name in COLUMNS} | {"y": table["classes"]}
    study = study_of(COLUMNS, **rules)
    with pytest.raises(ClientFailed, match=words):
        fg.Logistic().fit(parties(study, columns, owners), study=study)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"offset": "sex"}, "offset: expected a column of numbers that may not be missing, got 'sex'"),
        ({"offset": "nothing"}, "unknown column of the study 'nothing'"),
        ({"offset": "dose", "columns": "dose,sex"}, "expected columns besides the offset 'dose'"),
    ],
)
def test_wrong_offsets(settings, words):
    table, owners = trial()
    with pytest.raises((InvalidParameter, UnknownName), match=words):
        fitted(fg.Poisson(**settings), COUNTS, table, owners, "counts")


def test_an_offset_without_variation():
    table, owners = trial()
    constant = table | {"log_months": np.full(200, 2.0)}
    with pytest.raises(InvalidParameter, match="offset: expected a column that varies, got 'log_months'"):
        fitted(fg.Poisson(offset="log_months"), WITH_OFFSET, constant, owners, "counts")


def test_a_client_that_fails_between_rounds_leaves_no_trace():
    table, owners = trial(n=400)
    columns = {name: table[name] for name in COLUMNS} | {"y": table["classes"]}
    clients = parties(CLASSES, columns, owners)
    asked = []

    def failing(value):
        asked.append(value)
        return value if len(asked) < 3 else None

    fit = fg.Logistic().fit(clients, study=CLASSES, require=2, engine=Spoiled("likelihood", failing, "party-1"))
    assert set(fit.lost) == {"party-1"}
    rest = {name: cells[owners != 1] for name, cells in table.items()}
    assert_same(fit.coefficients(), logit((rest["classes"] == "yes").astype(float), design(rest)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda fit: replace(fit, basis=None), "expected an estimate of logistic with its basis"),
        (lambda fit: replace(fit, message=fit.model), "expected an estimate of logistic with its basis"),
        (lambda fit: replace(fit, study=COUNTS), "basis: expected"),
        (lambda fit: replace(fit, settings={"columns": "dose,sox"}), "unknown column of the study 'sox'"),
    ],
)
def test_a_forged_fit_has_no_table(change, words):
    table, owners = trial()
    fit = change(fitted(fg.Logistic(), CLASSES, table, owners, "classes"))
    with pytest.raises((Mismatch, UnknownName), match=words):
        fit.coefficients()


@pytest.mark.parametrize(
    "change",
    [
        {"n": 6},
        {"estimated": np.arange(6)[::-1]},
        {"covariance": -np.eye(6)},
        {"null_log_likelihood": 0.0},  # which the table divides by
        {"null_log_likelihood": 2.0},
    ],
    ids=str,
)
def test_an_estimate_that_cannot_be_is_refused(change):
    table, owners = trial()
    found = replace(fitted(fg.Logistic(), CLASSES, table, owners, "classes").published, **change)
    with pytest.raises(RefusedMessage, match="of an estimate must be"):
        wire.decode(wire.encode(found), sender="north")


@pytest.mark.parametrize("lie", [{"log_likelihood": -10.0}, {"gradient": np.full(6, -1.0)}], ids=["value", "slope"])
def test_a_client_whose_sums_contradict_each_other_is_named(lie):
    table, owners = trial(n=400)
    columns = {name: table[name] for name in COLUMNS} | {"y": table["classes"]}
    spoiled = Spoiled("likelihood", lambda value: value | lie, "party-1")
    fit = fg.Logistic().fit(parties(CLASSES, columns, owners), study=CLASSES, require=2, engine=spoiled)
    assert set(fit.lost) == {"party-1"}
    assert "reply/log_likelihood must change as reply/gradient says" in fit.lost["party-1"]
    rest = {name: cells[owners != 1] for name, cells in table.items()}
    assert_same(fit.coefficients(), logit((rest["classes"] == "yes").astype(float), design(rest)))


def test_a_fit_is_saved_with_its_table(tmp_path):
    table, owners = trial()
    for method, study, outcome in ((fg.Logistic(), CLASSES, "classes"), (fg.Poisson(), COUNTS, "counts")):
        fit = fitted(method, study, table, owners, outcome)
        fit.save(tmp_path / "fit")
        again = fg.load(tmp_path / "fit")
        assert again.coefficients() == fit.coefficients()
        assert again.coefficients(level=0.9).rows[1].low > fit.coefficients().rows[1].low
        with pytest.raises(InvalidParameter, match="level: expected a number between 0 and 1, got 1"):
            again.coefficients(level=1)

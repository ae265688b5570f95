"""The table of a study is statsmodels' table of the pooled rows, in the study's units, for any partition."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgram as fg
from fedgram.core.errors import FedgramError, Skipped
from fedgram.inference.table import INTERCEPT
from fedgram.studies import Study
from fedgram.studies.design import Request, coefficients
from fedgram.studies.encoding import read_client
from studies.test_basis import STUDY as CLASSES
from support.campaign import examples
from support.regression_tables import (
    CELLS,
    COLUMNS,
    COST,
    NO_LIMITS,
    TERMS,
    YEAR,
    Rows,
    about_zero,
    check_rows,
    design,
    figures,
    joined,
    made,
    sent,
    table_of,
)

sm = pytest.importorskip("statsmodels.api")
CENTRE = np.array([YEAR, CELLS, *np.zeros(len(TERMS) - 2)])
ONE = Study("cost", "cost", {**COLUMNS, "cost": COST}, **NO_LIMITS)


def fitted(tables, outcome="cost", places=slice(None)):
    """Return statsmodels' fit of the pooled rows about a centre, with the centre."""
    x, (whole, _) = design(tables)[:, places], joined(tables)
    centre = CENTRE[places]
    return sm.OLS(whole[outcome], sm.add_constant(x - centre, has_constant="add")).fit(), centre


@examples(25)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 10**6), st.sampled_from(["cost", "stay"]))
def test_any_partition_gives_the_table_of_the_pooled_rows(sizes, seed, outcome):
    tables = made([*sizes, 50], seed)
    table = table_of(tables, outcome=outcome)
    fit, centre = fitted(tables, outcome)
    estimates, covariance = about_zero(centre, fit)
    check_rows(table, (INTERCEPT, *TERMS), estimates, np.sqrt(covariance.diagonal()))
    np.testing.assert_allclose(figures(table, "p")[1:], fit.pvalues[1:], rtol=1e-7)
    for ours, theirs in {"r_squared": "rsquared", "f": "fvalue", "aic": "aic", "bic": "bic"}.items():
        assert table.summary[ours] == pytest.approx(getattr(fit, theirs), rel=1e-9), ours
    ward = next(test for test in table.joint if test.column == "ward")
    wanted = fit.f_test(np.eye(len(TERMS) + 1)[[6, 7, 8]])
    assert (ward.statistic, ward.p) == pytest.approx((float(wanted.fvalue), float(wanted.pvalue)), rel=1e-7)


@pytest.mark.parametrize("effects", ["fixed", "random", "robust"])
def test_site_effects_are_those_of_the_pooled_rows(effects):
    tables = made([40, 25, 60, 31, 22], 4)
    x, (whole, sites) = design(tables) - CENTRE, joined(tables)
    y = whole["cost"]
    if effects == "fixed":
        dummies = (sites[:, None] == np.arange(5)).astype(float)
        fit = sm.OLS(y, np.column_stack([x, dummies])).fit()
        check_rows(table_of(tables, site_effects="fixed"), TERMS, fit.params[:-5], fit.bse[:-5])
        return
    if effects == "robust":
        fit = sm.OLS(y, sm.add_constant(x)).fit(cov_type="cluster", cov_kwds={"groups": sites}, use_t=True)
        estimates, covariance = about_zero(CENTRE, fit)
        table = table_of(tables, robust=True)
        check_rows(table, (INTERCEPT, *TERMS), estimates, np.sqrt(covariance.diagonal()), rtol=1e-8)
        assert "f" not in table.summary  # ten terms cannot be tested together by five sites
        return
    table = table_of(tables, site_effects="random")
    fit = sm.MixedLM(y, sm.add_constant(x / x.std(axis=0)), groups=sites).fit()
    assert table.sites.random.site_variance == pytest.approx(float(np.squeeze(fit.cov_re)), rel=1e-3)
    slopes = fit.fe_params[1:] / x.std(axis=0)
    np.testing.assert_allclose(figures(table, "estimate")[1:], slopes, rtol=1e-4, atol=1e-6)
    assert set(table.sites.random.effects) == {f"site-{k}" for k in range(5)}


def test_any_of_the_columns_can_be_the_model():
    tables = made([50, 60], 5)
    places = [2, 5, 6, 7]
    fit, _ = fitted(tables, places=places)
    table = table_of(tables, columns=["crp", "ward"])
    check_rows(table, (INTERCEPT, *(TERMS[place] for place in places)), fit.params, fit.bse)
    assert [row.column for row in table.rows] == ["", "crp", "ward", "ward", "ward"]


def test_a_model_of_the_intercept_alone_is_the_mean_and_the_variance_between_sites():
    tables = made([50, 60, 40], 5)
    cost = joined(tables)[0]["cost"]
    table = table_of(tables, columns=[])
    check_rows(table, (INTERCEPT,), [cost.mean()], [cost.std(ddof=1) / np.sqrt(len(cost))])
    assert table.to_csv().count("\n") == 2
    assert 0 < table_of(tables, columns=[], site_effects="random").sites.random.icc < 1
    fixed = table_of(tables, columns=[], site_effects="fixed", heterogeneity=True)
    assert (fixed.rows, fixed.to_csv().count("\n")) == ((), 1)
    assert [test.column for test in fixed.joint] == ["(site)"]
    assert fixed.text()
    assert table_of(tables, columns=[], robust=True).rows[0].se > 0
    assert table_of(tables, columns=[], ridge=1.0).rows[0].estimate == pytest.approx(cost.mean(), rel=1e-12)


def test_a_gap_that_no_row_has_is_not_a_term():
    tables = made([50, 60], 5)
    for rows in tables:
        rows["bmi"] = np.nan_to_num(rows["bmi"], nan=25.0)
    table = table_of(tables)
    assert table.aliased == ()
    assert [row.term for row in table.rows] == [INTERCEPT, *(term for term in TERMS if term != "bmi missing")]


def test_missing_cells_are_counted_by_column_and_site():
    tables = made([50, 60], 6)
    table = table_of(tables)
    wanted = {
        (name, f"site-{k}"): int(np.isnan(rows[name]).sum() if name in ("crp", "bmi") else (rows[name] == "").sum())
        for name in ("crp", "bmi", "ward", "smoker")
        for k, rows in enumerate(tables)
    }
    assert {(gap.column, gap.site): gap.cells for gap in table.missing} == wanted
    treatments = {gap.column: gap.treatment for gap in table.missing}
    assert treatments == {"crp": "imputed", "bmi": "flagged", "ward": "category", "smoker": "imputed"}
    crp = wanted["crp", "site-0"] + wanted["crp", "site-1"]
    assert any(f"crp ({crp} cells)" in note and "too small" in note for note in table.notes)
    assert not table_of(tables, columns=["year"]).missing


def test_rows_that_a_study_drops_give_the_table_of_complete_cases():
    tables = made([60, 70], 7)
    columns = {**COLUMNS, "crp": replace(COLUMNS["crp"], missing="drop"), "cost": COST}
    study = Study("complete", "cost", columns, **NO_LIMITS)
    with pytest.warns(Skipped, match="left out for missing values"):
        table = table_of(tables, study, columns=["crp", "plain"])
    whole, _ = joined(tables)
    kept = ~np.isnan(whole["crp"])
    fit = sm.OLS(whole["cost"][kept], sm.add_constant(np.column_stack([whole["crp"], whole["plain"]])[kept])).fit()
    check_rows(table, (INTERCEPT, "crp", "plain"), fit.params, fit.bse)
    assert any("complete cases" in note for note in table.notes)


def test_a_ridge_shrinks_standardised_columns():
    from sklearn.linear_model import Ridge

    tables = made([50, 60], 8)
    table = table_of(tables, ridge=5.0)
    x = design(tables)
    fit = Ridge(alpha=5.0).fit((x - CENTRE - (x - CENTRE).mean(axis=0)) / x.std(axis=0), joined(tables)[0]["cost"])
    np.testing.assert_allclose(figures(table, "estimate")[1:], fit.coef_ / x.std(axis=0), rtol=1e-7)
    assert any("standard deviation 1" in note for note in table.notes)


def test_a_fit_has_the_table_too():
    tables = made([40, 50, 60], 9)
    clients = [
        read_client(ONE, f"site-{k}", Rows({name: rows[name] for name in ONE.columns})) for k, rows in enumerate(tables)
    ]
    fit = fg.AFL().fit(clients, study=ONE)
    assert fit.coefficients().rows == table_of(tables, ONE).rows
    random = fit.coefficients(clients=clients, site_effects="random", heterogeneity=True)
    assert random.rows == table_of(tables, ONE, site_effects="random").rows
    assert len(random.heterogeneity) == len(TERMS)
    with pytest.raises(FedgramError, match="expected the sums of each site"):
        fit.coefficients(site_effects="fixed")
    with pytest.raises(FedgramError, match="clients: expected the 3 contributors"):
        fit.coefficients(clients=clients[:2])
    with pytest.raises(FedgramError, match="got one without these moments"):
        replace(fit, total=None).coefficients()
    with pytest.raises(FedgramError, match="got one without these moments"):  # but of features that it made of them
        fg.APFL(dim_primary=16, dim_refine=16).fit(clients, study=ONE).coefficients()
    for method in (fg.FedHiP(), fg.FedGram()):
        assert method.fit(clients, study=ONE).coefficients().rows == fit.coefficients().rows


def test_a_saved_fit_has_its_table(tmp_path):
    tables = made([40, 50], 9)
    clients = [
        read_client(ONE, f"site-{k}", Rows({name: rows[name] for name in ONE.columns})) for k, rows in enumerate(tables)
    ]
    fg.AFL().fit(clients, study=ONE).save(tmp_path / "fit")
    assert fg.load(tmp_path / "fit").coefficients().rows == table_of(tables, ONE).rows


# Refusals
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outcome": None}, "outcome: expected one of cost, stay"),
        ({"outcome": "ward"}, "outcome: expected a numeric outcome of the study"),
        ({"outcome": "price"}, "has no outcome 'price'"),
        ({"columns": ["agee"]}, "has no column for a model 'agee'"),
        ({"columns": ["stay"]}, "has no column for a model 'stay'"),
        ({"columns": "crp"}, "columns: expected a list of names"),
        ({"level": 0.0}, "level: expected a number between 0 and 1"),
        ({"site_effects": "both"}, "unknown site effects 'both'"),
        ({"likelihood": "gls"}, "unknown likelihood 'gls'"),
        ({"robust": True, "site_effects": "fixed"}, "robust errors: expected a model without site effects"),
        ({"ridge": 1.0, "robust": True}, "ridge: expected neither"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(FedgramError, match=message):
        table_of(made([40, 40], 0), **options)


def test_a_study_with_classes_is_sent_to_the_logistic_model():
    moments = fg.Moments.of(np.zeros((4, len(CLASSES.sent))), ["no", "yes"] * 2, classes=CLASSES.classes)
    with pytest.raises(FedgramError, match=r"outcome 'y': expected a number, got classes.*--method logistic"):
        coefficients(CLASSES, moments, Request())


@pytest.mark.parametrize("change", ["smoker", "not smoker", "ward=c", "ward=a", "bmi missing"])
def test_a_row_of_the_table_that_rests_on_few_samples_is_refused_by_name(change):
    tables = made([60, 60], 1)
    for place, rows in enumerate(tables):
        few = 2 if place == 0 else 0
        rows["ward"] = np.where(np.arange(60) % 2 == 0, "a", "b")
        rows["ward"][30:] = "c"
        rows["smoker"] = np.where(np.arange(60) % 3 == 0, "yes", "no")
        rows["bmi"] = np.where(np.arange(60) < 10, np.nan, np.nan_to_num(rows["bmi"], nan=25.0))
        if change == "smoker":
            rows["smoker"] = np.where(np.arange(60) < few, "yes", "no")
        if change == "not smoker":
            rows["smoker"] = np.where(np.arange(60) < few, "no", "yes")
        if change.startswith("ward"):
            level = change[-1]
            rows["ward"] = np.where(np.arange(60) < few, level, "b")
        if change == "bmi missing":
            rows["bmi"] = np.where(np.arange(60) < few, np.nan, np.nan_to_num(rows["bmi"], nan=25.0))
    named = {"not smoker": "smoker, no"}.get(change, change)
    strict = replace(ONE, minimum_group=5)
    with pytest.raises(FedgramError, match=f"at least 5 samples behind each row .* got fewer behind '{named}'"):
        table_of(tables, strict)
    column = named.replace(",", " ").replace("=", " ").split()[0]
    others = [name for name in COLUMNS if name != column]
    assert table_of(tables, strict, columns=others).rows


def test_too_few_rows_at_a_party_are_refused_unless_the_study_allows_them():

    tables = made([60, 20], 2)
    parts = sent(tables, ONE)
    pooled = fg.Moments.sum(moments for _, moments in parts)
    rows = {name: moments.n for name, moments in parts}
    for limit, columns, fits in ((0.33, None, False), (0.33, ["crp", "plain"], True), (0.0, None, True)):
        study = replace(ONE, maximum_columns_per_row=limit)
        request = Request(columns=columns)
        if fits:
            assert coefficients(study, pooled, request, rows=rows).summary["n"] == 80
        else:
            with pytest.raises(FedgramError, match="rows: expected at least 28 of each party.*'site-1'"):
                coefficients(study, pooled, request, rows=rows)


def test_a_site_with_a_small_group_has_no_estimate_of_its_own_for_it():
    tables = made([80, 80, 80], 3)
    tables[0]["smoker"] = np.where(np.arange(80) < 2, "yes", "no")
    table = table_of(tables, replace(ONE, minimum_group=5), heterogeneity=True, columns=["smoker", "plain"])
    found = {one.term: one for one in table.heterogeneity}
    assert found["smoker"].left_out == {"site-0": "the term rests on fewer than 5 rows there"}
    assert [one.site for one in found["plain"].sites] == ["site-0", "site-1", "site-2"]


def test_all_rows_dropped_is_named():
    about = {"classes": ONE.targets.classes, "features": ONE.features, "columns": ONE.sent}
    nothing = fg.Moments.of(np.zeros((0, len(ONE.sent))), [], **about)
    with pytest.raises(FedgramError, match="rows: expected some, got none"):
        coefficients(ONE, nothing, Request())

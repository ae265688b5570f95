"""Tables of several sites with a numeric outcome, and what statsmodels says of the pooled rows."""

import numpy as np

from fedgram.moments.moments import Moments
from fedgram.studies import Study
from fedgram.studies.design import Request, coefficients
from fedgram.studies.encoding import read_client
from fedgram.studies.kinds import Category, Flag, Number
from studies.test_basis import Table

YEAR, CELLS = 2026.0, 1e5
COLUMNS = {
    "year": Number(range=(2024, 2028)),
    "cells": Number(unit="1/nl", range=(99_900, 100_100)),
    "crp": Number(unit="mg/l", range=(0, 60), missing="mean"),
    "bmi": Number(range=(10, 50), missing="flag"),
    "ward": Category(("a", "b", "c"), "category"),
    "smoker": Flag("mean"),
    "plain": Number(),
}
COST = Number(unit="EUR", range=(-20_000, 40_000))
NO_LIMITS = {"minimum_samples": 0, "minimum_cell": 0, "minimum_group": 0, "maximum_columns_per_row": 0.0}
STUDY = Study("costs", ("cost", "stay"), {**COLUMNS, "cost": COST, "stay": Number(unit="days")}, **NO_LIMITS)
TERMS = ("year", "cells", "crp", "bmi", "bmi missing", "ward=b", "ward=c", "ward missing", "smoker", "plain")


class Rows(Table):
    """Columns by name, of which `plain` is never missing."""

    def __len__(self):
        return len(self["plain"])


def made(sizes, seed):
    """Return each site's table, with outcomes that depend on its columns and its name."""
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    site = np.repeat(np.arange(len(sizes)), sizes)
    whole = {
        "year": YEAR + rng.integers(-1, 2, n),
        "cells": CELLS + rng.normal(0, 10, n),
        "crp": rng.gamma(4, 4, n).clip(0, 60),
        "bmi": rng.normal(26, 4, n).clip(10, 50),
        "ward": rng.choice(["a", "b", "c", ""], n),
        "smoker": rng.choice(["yes", "no", ""], n, p=[0.3, 0.6, 0.1]),
        "plain": rng.normal(size=n) + 0.3 * site,
    }
    effect = rng.normal(0, 500, len(sizes))[site]
    error = rng.normal(0, 700, n)
    whole["cost"] = 3000 + 200 * (whole["year"] - YEAR) + 60 * whole["crp"] + 300 * whole["plain"] + effect + error
    whole["cost"] = whole["cost"].clip(-20_000, 40_000)
    whole["stay"] = 5 + 0.1 * (whole["cells"] - CELLS) + rng.normal(size=n)
    for name in ("crp", "bmi"):
        whole[name] = np.where(rng.random(n) < 0.15, np.nan, whole[name])
    ends = np.cumsum(sizes)[:-1]
    parts = zip(*(np.split(column, ends) for column in whole.values()), strict=True)
    return [Rows(zip(whole, part, strict=True)) for part in parts]


def sent(tables, study=STUDY):
    """Return each site's name and moments, as it would send them."""
    found = []
    for place, table in enumerate(tables):
        client = read_client(study, f"site-{place}", Rows({name: table[name] for name in study.columns}))
        about = {"classes": study.targets.classes, "features": study.features, "columns": study.sent}
        found.append((client.name, Moments.of(client.x, client.y, **about)))
    return found


def table_of(tables, study=STUDY, **options):
    """Return fedgram's table from the sites' moments."""
    parts = sent(tables, study)
    pooled = Moments.sum(moments for _, moments in parts)
    options = {"outcome": "cost" if study is STUDY else None} | options
    return coefficients(study, pooled, Request(**options), sites=parts)


def joined(tables):
    """Return all rows by column, and the site of each."""
    whole = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    return whole, np.repeat(np.arange(len(tables)), [len(table) for table in tables])


def design(tables):
    """Return the terms of all rows in the study's units (n, 10), with pooled means in gaps."""
    whole, _ = joined(tables)
    gap = np.isnan(whole["bmi"])
    known = whole["smoker"] != ""
    yes = whole["smoker"] == "yes"
    return np.column_stack(
        [
            whole["year"],
            whole["cells"],
            np.where(np.isnan(whole["crp"]), np.nanmean(whole["crp"]), whole["crp"]),
            np.where(gap, np.nanmean(whole["bmi"]), whole["bmi"]),
            gap,
            *(whole["ward"] == value for value in ("b", "c", "")),
            np.where(known, yes, yes[known].mean()),
            whole["plain"],
        ]
    ).astype(float)


def about_zero(x, fit):
    """Return the coefficients and their covariance of a statsmodels fit on columns less `x`, for columns as they are.

    Columns such as 2026 ± 1 cost statsmodels digits, so it gets them about a centre.
    """
    back = np.eye(len(x) + 1)
    back[0, 1:] = -x
    return back @ fit.params, back @ fit.cov_params() @ back.T


def figures(table, name):
    """Return one figure of all rows of a table."""
    return np.array([getattr(row, name) for row in table.rows])


def check_rows(table, terms, estimates, errors, *, rtol=1e-9):
    """Assert that a table has these terms, coefficients and standard errors."""
    assert [row.term for row in table.rows] == list(terms)
    estimates, errors = np.asarray(estimates), np.asarray(errors)
    np.testing.assert_allclose(figures(table, "se"), errors, rtol=rtol)
    # Relative to the standard error where a coefficient is about 0.
    np.testing.assert_allclose(figures(table, "estimate") / errors, estimates / errors, rtol=rtol, atol=rtol)

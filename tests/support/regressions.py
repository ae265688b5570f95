"""Studies of regressions, parties' tables for them, and statsmodels' results on the pooled table."""

import numpy as np

from fedgram.studies.encoding import read_client
from fedgram.studies.kinds import Category, Number
from fedgram.studies.study import Study
from studies.test_basis import Table

OPEN = {"minimum_samples": 0, "minimum_cell": 0, "maximum_columns_per_row": 0}  # nothing to protect


def study_of(columns, *, counts=False, **rules):
    """Return a study with the outcome y: two classes, or counts."""
    if counts:
        return Study("counts", "y", columns | {"y": Number(range=(0, 1000))}, **OPEN | rules)
    return Study("classes", "y", columns, ("no", "yes"), **OPEN | rules)


def parties(study, table, owners):
    """Return a client for each owner with its rows of a table, a dict of columns."""
    names = sorted(set(owners.tolist()))
    return [
        read_client(study, f"party-{name}", Table({key: cells[owners == name] for key, cells in table.items()}))
        for name in names
    ]


def trial(n=200, seed=0, *, parties=4):
    """Return a table of a made-up trial with both kinds of outcomes, and the rows' owners."""
    rng = np.random.default_rng(seed)
    dose, year = rng.normal(5, 2, n), 2026 + rng.uniform(-1, 1, n)
    sex, group = rng.choice(["F", "M"], n), rng.choice(["a", "b", "c"], n)
    months = rng.uniform(1, 24, n)
    eta = 0.4 * (dose - 5) - 0.8 * (sex == "M") + 0.5 * (group == "c") + (year - 2026)
    return {
        "dose": dose,
        "year": year,
        "sex": sex,
        "group": group,
        "log_months": np.log(months),
        "classes": np.where(rng.random(n) < 1 / (1 + np.exp(-eta)), "yes", "no"),
        "counts": rng.poisson(np.exp(0.3 * eta) * months / 6).astype(float),
    }, rng.integers(0, parties, n)


COLUMNS = {
    "dose": Number(range=(-20, 30)),
    "year": Number(range=(2020, 2030)),
    "sex": Category(("F", "M")),
    "group": Category(("a", "b", "c")),
}
TERMS = ("(intercept)", "dose", "year", "sex=M", "group=b", "group=c")


def design(table):
    """Return the columns of `TERMS`."""
    columns = [np.ones(len(table["dose"])), table["dose"], table["year"], table["sex"] == "M"]
    return np.column_stack([*columns, table["group"] == "b", table["group"] == "c"]).astype(float)

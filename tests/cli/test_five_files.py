"""From five CSV files to a regression table, which is that of statsmodels with all rows in one table."""

import json

import numpy as np
import pytest

from support.command import run

pd = pytest.importorskip("pandas")
smf = pytest.importorskip("statsmodels.formula.api")

HOSPITALS = {"north": 80, "south": 60, "east": 50, "west": 40, "centre": 30}  # patients
STUDY = """
[study]
name = "costs-2026"
outcome = "cost"

[columns.cost]
kind = "number"
unit = "EUR"
range = [0, 40000]
[columns.age]
kind = "number"
unit = "years"
range = [0, 120]
[columns.year]
kind = "number"
range = [2000, 2050]
[columns.ward]
kind = "category"
values = ["surgery", "medicine", "other"]
[columns.smoker]
kind = "flag"
"""


def patients(rng, count):
    """Return the table of a hospital."""
    table = pd.DataFrame(
        {
            "age": rng.normal(60, 15, count).round(1).clip(18, 99),
            "year": rng.integers(2024, 2028, count),
            "ward": rng.choice(["surgery", "medicine", "other"], count),
            "smoker": rng.choice(["yes", "no"], count),
        }
    )
    cost = 4000 + 50 * table.age + 900 * (table.ward == "surgery") + 700 * (table.smoker == "yes")
    table["cost"] = (cost + rng.normal(0, 800, count) + rng.normal(0, 500)).round(2)
    return table


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """Return the tables of five hospitals, and the folder in which they made and joined their files."""
    folder, rng = tmp_path_factory.mktemp("hospitals"), np.random.default_rng(0)
    (folder / "study.toml").write_text(STUDY)
    tables = {name: patients(rng, count) for name, count in HOSPITALS.items()}
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
        fedgram(folder, "summarize", "study.toml", f"{name}.csv", "--party", name, "--out", f"{name}.fgm")
    fedgram(folder, "join", "store", *(f"{name}.fgm" for name in tables))
    return tables, folder


def fedgram(folder, *arguments):
    """Run a command in a folder, and return what it prints."""
    done = run(*arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_table_is_that_of_statsmodels(hospitals):
    tables, folder = hospitals
    printed = json.loads(fedgram(folder, "coefficients", "store", "--json"))
    ours = pd.DataFrame(printed["rows"]).set_index("term")

    pooled = pd.concat(tables.values())
    formula = "cost ~ age + year + C(ward, Treatment('surgery')) + C(smoker)"
    theirs = smf.ols(formula, pooled).fit()
    names = {
        "(intercept)": "Intercept",
        "age": "age",
        "year": "year",
        "ward=medicine": "C(ward, Treatment('surgery'))[T.medicine]",
        "ward=other": "C(ward, Treatment('surgery'))[T.other]",
        "smoker": "C(smoker)[T.yes]",
    }
    assert set(ours.index) == set(names)
    for term, name in names.items():
        row = ours.loc[term]
        assert row.estimate == pytest.approx(theirs.params[name], rel=1e-9)
        assert row.se == pytest.approx(theirs.bse[name], rel=1e-9)
        assert row.statistic == pytest.approx(theirs.tvalues[name], rel=1e-9)
        assert row.p == pytest.approx(theirs.pvalues[name], rel=1e-9)
        assert [row.low, row.high] == pytest.approx(theirs.conf_int().loc[name].tolist(), rel=1e-9)
    figures = {"r_squared": "rsquared", "f": "fvalue", "log_likelihood": "llf", "aic": "aic", "bic": "bic"}
    for name, other in figures.items():
        assert printed["summary"][name] == pytest.approx(getattr(theirs, other), rel=1e-9)


def test_hospitals_have_intercepts_without_another_message(hospitals):
    tables, folder = hospitals
    printed = json.loads(fedgram(folder, "coefficients", "store", "--site-effects", "fixed", "--json"))
    pooled = pd.concat([table.assign(hospital=name) for name, table in tables.items()])
    theirs = smf.ols("cost ~ age + year + C(ward) + C(smoker) + C(hospital)", pooled).fit()
    [age] = [row for row in printed["rows"] if row["term"] == "age"]
    assert [age["estimate"], age["se"]] == pytest.approx([theirs.params["age"], theirs.bse["age"]], rel=1e-9)


def test_the_page_has_the_sites(hospitals):
    tables, folder = hospitals
    fedgram(folder, "coefficients", "store", "--html", "table.html")
    page = (folder / "table.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 5  # a forest plot for each term but the intercept
    residuals = smf.ols("cost ~ age + year + C(ward) + C(smoker)", pd.concat(tables, names=["hospital", None])).fit()
    by_site = (residuals.resid**2).groupby("hospital").mean() ** 0.5
    for name, count in HOSPITALS.items():
        cells = [f"{count}", f"{by_site[name]:.4f}"]
        found = "".join(f'<td class="number">{cell}</td>' for cell in cells)
        assert f'<th scope="row">{name}</th>{found}</tr>' in page


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--html", "study.toml"], "study.toml exists: give another name with --html, or --force"),
        (["--html", "store/index.sqlite"], "--html"),
        (["--html", "nowhere/table.html"], "nowhere is not a folder"),
        (["--html", "one.html", "--out", "./one.html"], "expected another file than --out"),
    ],
)
def test_a_page_is_written_over_nothing_else(hospitals, options, said):
    _, folder = hospitals
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = run("coefficients", "store", *options, cwd=folder)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before

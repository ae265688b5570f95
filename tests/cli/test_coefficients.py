"""`fedgram coefficients` and the same options on `run`: the table of the pooled rows, in every form, or one line."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from fedgram.cli import app
from fedgram.core.errors import FedgramError
from fedgram.exchange.format import fgm
from fedgram.exchange.store.study_store import Store
from fedgram.studies import Study
from support.command import run
from support.regression_tables import COLUMNS, COST, NO_LIMITS, STUDY, made, sent, table_of
from support.stores import store_of

ONE = Study("cost", "cost", {**COLUMNS, "cost": COST}, **NO_LIMITS)
TABLES = made([60, 50, 70], 11)


def fedgram(*options):
    done = CliRunner().invoke(app, list(map(str, options)))
    if isinstance(done.exception, FedgramError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def files(tables, study=ONE):
    about = {"study": study, "columns": study.sent}
    return [
        fgm.encode("summary", moments, party=name, samples=moments.n, **about) for name, moments in sent(tables, study)
    ]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("stores") / "store"
    with Store(path, study=ONE) as made_here:
        made_here.join(*files(TABLES))
    return path


def same(found, wanted):
    assert [row["term"] for row in found] == [row.term for row in wanted.rows]
    for row, other in zip(found, wanted.rows, strict=True):
        for name in ("estimate", "se", "statistic", "p", "low", "high"):
            assert float(row[name]) == pytest.approx(getattr(other, name), rel=1e-9, abs=1e-12), (row["term"], name)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ([], {}),
        (["--columns", "crp,ward", "--level", "0.9"], {"columns": ["crp", "ward"], "level": 0.9}),
        (["--site-effects", "fixed"], {"site_effects": "fixed"}),
        (["--site-effects", "random"], {"site_effects": "random"}),
        (["--site-effects", "random", "--ml"], {"site_effects": "random", "likelihood": "ml"}),
        (["--robust", "site"], {"robust": True}),
    ],
)
def test_a_store_has_the_table_of_the_pooled_rows(store, options, settings):
    wanted = table_of(TABLES, ONE, **settings)
    found = json.loads(fedgram("coefficients", store, *options, "--json"))
    same(found["rows"], wanted)
    assert found["level"] == wanted.level
    assert found["sites"]["rows"] == {"site-0": 60, "site-1": 50, "site-2": 70}
    with Store(store) as opened:
        assert opened.coefficients(**settings).to_dict() == found


def test_heterogeneity_has_an_estimate_of_each_site(store):
    found = json.loads(fedgram("coefficients", store, "--heterogeneity", "--json"))["heterogeneity"]
    assert [len(one["sites"]) for one in found] == [3] * 10
    assert "Differences between sites" in fedgram("coefficients", store, "--heterogeneity")


def test_forms_of_the_table(store, tmp_path):
    wanted = table_of(TABLES, ONE)
    same(list(csv.DictReader(io.StringIO(fedgram("coefficients", store, "--csv")))), wanted)
    assert r"\begin{tabular}{lrrrrrr}" in fedgram("coefficients", store, "--latex")
    text = fedgram("coefficients", store)
    assert text.startswith(" ")
    assert "Linear regression of cost [EUR]" in text
    assert "Missing cells" in text
    out = tmp_path / "table.csv"
    assert fedgram("coefficients", store, "--csv", "--out", out) == ""
    same(list(csv.DictReader(io.StringIO(out.read_text()))), wanted)
    with pytest.raises(FedgramError, match=r"table.csv exists.*--force"):
        fedgram("coefficients", store, "--out", out)
    fedgram("coefficients", store, "--out", out, "--force")
    assert out.read_text() == text


def test_several_outcomes_are_one_message(tmp_path):
    with Store(tmp_path / "store", study=STUDY) as two:
        two.join(*files(TABLES, STUDY))
    for outcome in ("cost", "stay"):
        found = json.loads(fedgram("coefficients", tmp_path / "store", "--outcome", outcome, "--json"))
        same(found["rows"], table_of(TABLES, outcome=outcome))


def test_a_combined_region_has_no_figures_of_its_sites(tmp_path):
    regional = replace(ONE, parties=dict.fromkeys(("region", "site-0", "site-1", "site-2"), ""), regions=("region",))
    parts = files(TABLES, regional)
    with Store(tmp_path / "region", study=regional) as below:
        below.join(*parts[:2])
        combined = below.combine("region")
    with Store(tmp_path / "store", study=regional) as above:
        assert [each.outcome for each in above.join(combined, parts[2])] == ["joined"] * 2
        assert above.coefficients().rows[1].estimate == pytest.approx(table_of(TABLES, ONE).rows[1].estimate, rel=1e-9)
        assert {gap.site for gap in above.coefficients().missing} == {"region", "site-2"}
        with pytest.raises(FedgramError, match="got the combined file of 'region'"):
            above.coefficients(site_effects="fixed")


# Bad input: one line, exit code 2
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--outcome", "ward"], "outcome: expected a numeric outcome of the study (cost), got the column 'ward'"),
        (["--outcome", "price"], "study 'cost' has no outcome 'price'"),
        (["--columns", "age"], "study 'cost' has no column for a model 'age'"),
        (["--level", "1"], "level: expected a number between 0 and 1, got 1"),
        (["--site-effects", "both"], "unknown site effects 'both'"),
        (["--robust", "ward"], "--robust: expected site, got 'ward'"),
        (["--ml"], "--ml: expected --site-effects random, got none"),
        (["--ridge", "-1"], "ridge: expected a number above 0, got -1"),
        (["--csv", "--latex"], "--csv and --latex: expected one form of the table, got 2"),
        (["--out", "missing/table.txt"], "--out: cannot write missing/table.txt"),
    ],
)
def test_wrong_options_are_one_line(store, options, message):
    done = run("coefficients", store, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def changed(change):
    tables = [{name: column.copy() for name, column in table.items()} for table in TABLES]
    change(tables)
    return [type(TABLES[0])(table) for table in tables]


def constant(tables):
    for table in tables:
        table["cost"][:] = 1234.5


def perfect(tables):
    for table in tables:
        table["cost"] = 100 + 7 * table["plain"]


def few(tables):
    for place, table in enumerate(tables):
        tables[place] = {name: column[:3] for name, column in table.items()}


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (constant, [], "outcome 'cost': expected numbers that vary, got the same in all 180 rows"),
        (perfect, [], "outcome 'cost': expected residuals, got a perfect fit"),
        (few, [], "rows: expected more than the"),
        (lambda tables: tables.__delitem__(slice(1, 3)), ["--robust", "site"], "robust errors: expected rows of 2"),
        (lambda tables: tables.__delitem__(slice(1, 3)), ["--site-effects", "random"], "random site effects: expected"),
        (lambda tables: tables.clear(), [], "has no contributions yet"),
    ],
)
def test_nothing_to_estimate_is_one_line(tmp_path, change, options, message):
    with Store(tmp_path / "store", study=ONE) as kept:
        kept.join(*files(changed(change)))
    done = run("coefficients", tmp_path / "store", *options, "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in json.loads(done.stderr)["error"]


def test_a_store_of_classes_is_sent_to_the_logistic_model(tmp_path):
    store_of(tmp_path / "store", "north", "south")
    done = run("coefficients", tmp_path / "store")
    assert done.returncode == 2
    assert "outcome 'y': expected a number, got classes; fedgram publish --method logistic" in done.stderr


def test_a_store_of_another_study_is_one_line(store, tmp_path):
    text = """[study]\nname = "cost"\noutcome = "cost"\n[columns]\n"""
    others = ('age = { kind = "number" }', 'cost = { kind = "number" }')
    (tmp_path / "study.toml").write_text(text + "\n".join(others) + "\n")
    done = run("coefficients", store, "--study", tmp_path / "study.toml")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "is of study 'cost'" in done.stderr
    assert "use another folder for another study" in done.stderr


def test_a_folder_that_is_not_a_store_is_one_line(tmp_path):
    done = run("coefficients", tmp_path)
    assert done.returncode == 2
    assert "is not a store" in done.stderr


# The same options on `run`
@pytest.fixture
def patients(tmp_path):
    path = tmp_path / "patients.csv"
    with path.open("w", newline="") as file:
        write = csv.writer(file)
        write.writerow(["hospital", "age", "crp", "sex", "cost"])
        rng = np.random.default_rng(3)
        for hospital, effect in (("north", 0), ("south", 300), ("east", -200)):
            for _ in range(60):
                age, crp, sex = rng.integers(30, 90), round(rng.normal(20, 5), 2), rng.choice(["F", "M"])
                gap = hospital == "south" and rng.random() < 0.3
                cost = 1000 + effect + 20 * age + 30 * crp + 150 * (sex == "M") + rng.normal(0, 300)
                write.writerow([hospital, age, "" if gap else crp, sex, round(cost, 1)])
    return path


def test_run_prints_the_table_of_its_rows(patients):
    common = ["run", "--data", patients, "--outcome", "cost", "--client-column", "hospital", "--test-fraction", "0.2"]
    done = run(*common, "--coefficients", "--json")
    assert done.returncode == 0, done.stderr
    [found] = json.loads(done.stdout)["coefficients"]
    assert found["summary"]["n"] == 144  # the others are held back
    assert [row["term"] for row in found["rows"]] == ["(intercept)", "age", "crp", "sex=M"]
    [gap] = found["missing"]
    assert (gap["column"], gap["site"], gap["treatment"]) == ("crp", "south", "imputed")
    assert found["sites"]["rows"] == {"north": 48, "south": 48, "east": 48}
    random = run(*common, "--coefficients", "--site-effects", "random")
    assert "Random intercept, REML" in random.stdout
    assert "Predicted site effects (BLUP)" in random.stdout
    assert "north" in random.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--site-effects", "fixed"], "expected --coefficients with them; add it"),
        (["--coefficients", "--level", "2"], "level: expected a number between 0 and 1"),
        (
            ["--coefficients", "--method", "local"],
            "coefficients: expected a fit with a study and its pooled moments",
        ),
    ],
)
def test_wrong_options_of_run_are_one_line(patients, options, message):
    done = run("run", "--data", patients, "--outcome", "cost", "--client-column", "hospital", *options)
    assert done.returncode == 2
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert message in line

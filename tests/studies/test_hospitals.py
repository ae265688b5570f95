"""The example of three hospitals: every way gives the same figures, those of scikit-learn on the pooled table."""

import json
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import fedgram as fg
from fedgram.cli import app
from fedgram.core.errors import Revealing
from fedgram.studies import Study, summarize
from fedgram.studies.encoding import read_client
from fedgram.studies.table_one import describe
from support.hospitals import PROGRAM, pooled, pooled_correct, pooled_model, program, read

pytest.importorskip("sklearn", reason="the patients come with scikit-learn")
pytestmark = pytest.mark.filterwarnings("ignore::fedgram.core.errors.Revealing")  # East has few patients


@pytest.fixture(scope="module")
def example():
    return program()


@pytest.fixture(scope="module")
def folder(example, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hospitals")
    example.make(folder)
    return folder


def run(*options):
    done = CliRunner().invoke(app, ["run", *map(str, options), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_flaws_are_as_described(folder):
    north, south, east = (read(folder / f"{name}.csv") for name in ("north", "south", "east"))
    assert list(north[0]) != list(south[0])
    assert "bp [mmHg]" in south[0]
    assert any("NA" in row.values() for row in south)
    assert len(east) == 12
    assert {(row["sex"], row["progression"]) for row in east} == {("M", "slow")}
    assert {row["patient_id"][0] for row in north} == {"P"}
    everybody = [row["patient_id"] for part in ("", "-test") for row in read(folder / f"all{part}.csv")]
    assert len(everybody) == len(set(everybody)), "no patient is both trained and tested on"


def test_three_files_or_one_give_scikit_learns_figures(example, folder):
    """tests/engines/flower/test_simulation.py has the same on Flower's simulation."""
    right = pooled_correct(example, folder)
    study = ["--study", folder / "study.toml", "--method", "afl"]
    files, tests = (",".join(str(folder / f"{name}{part}.csv") for name in right) for part in ("", "-test"))
    many = run("--data", files, "--test-data", tests, *study)
    one = run(
        "--data",
        folder / "all.csv",
        "--client-column",
        "hospital",
        "--test-data",
        folder / "all-test.csv",
        *study,
    )
    assert run("--data", files, *study[:2])["method"] == "fedgram", "the study's own"
    assert many["correct"] == one["correct"] == [right[name] for name in sorted(right)], "in the order of names"
    assert sum(right.values()) / sum(many["tested"]) > 0.7
    for record in (many, one):
        [warning] = record["warnings"]
        assert "'east' sends sums of 12 samples in 12 columns" in warning


def test_from_python_scores_are_those_of_the_pooled_table(example, folder):
    (x, x_test), (y, _) = pooled(example, folder)
    study = Study.read(folder / "study.toml")
    clients = [read_client(study, name, folder / f"{name}.csv") for name in ("north", "south", "east")]
    test = np.concatenate([read_client(study, name, folder / f"{name}-test.csv").x for name in study.parties])
    fit = fg.AFL().fit(clients, study=study, classes=study.classes)
    np.testing.assert_allclose(fit.model.scores(test), pooled_model(x, y).predict(x_test), atol=1e-9)


def test_the_regression_table_of_glucose_is_that_of_the_pooled_patients(example, folder):
    sm = pytest.importorskip("statsmodels.api")
    text = (folder / "study.toml").read_text().replace('outcome = "progression"', 'outcome = "s6"')
    study = Study.parse(text.replace('classes = ["fast", "slow"]\n', "") + '[columns.progression]\nkind = "ignore"\n')
    clients = [read_client(study, name, folder / f"{name}.csv") for name in example.HOSPITALS]
    table = fg.AFL().fit(clients, study=study).coefficients(columns=["age", "bmi", "bp", "sex", "s1"])
    columns = []
    for name in ("age", "bmi", "bp", "sex", "s1", "s6"):
        cells = [row[name] for row in read(folder / "all.csv")]
        numbers = np.array([cell == "M" if name == "sex" else float(cell.replace("NA", "nan")) for cell in cells])
        columns.append(np.where(np.isnan(numbers), np.nanmean(numbers), numbers))
    *x, y = columns
    fit = sm.OLS(y, sm.add_constant(np.column_stack(x))).fit()
    assert [row.term for row in table.rows] == ["(intercept)", "age", "bmi", "bp", "sex=M", "s1"]
    for ours, theirs in (("estimate", fit.params), ("se", fit.bse), ("p", fit.pvalues)):
        np.testing.assert_allclose([getattr(row, ours) for row in table.rows], theirs, rtol=1e-9)
    assert {gap.column: gap.cells for gap in table.missing}.keys() == {"bmi", "bp"}


def test_the_table_without_a_study_drafts_one(folder):
    record = run("--data", folder / "all.csv", "--label", "progression", "--client-column", "hospital")
    assert record["clients"] == 3
    assert record["accuracy"]["pooled"] > 0.6


def test_east_hears_that_it_is_small(folder, example):
    prepared = example.scenario(folder).prepare()
    with pytest.warns(Revealing, match="'east' sends sums of 12 samples in 12 columns"):
        prepared.fit(fg.AFL())


def test_the_program_runs(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", PROGRAM, tmp_path / "made"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["afl", "fedgram", "fedlogit", "local"]
    assert (tmp_path / "made" / "study.toml").exists()


def test_descriptives_are_those_of_the_raw_tables(example, folder):
    """Flaws and all: columns in another order, units in headers, NA, and a hospital of one kind of patients."""
    study = Study.read(folder / "study.toml")
    tables = {name: read(folder / f"{name}.csv") for name in example.HOSPITALS}
    found = describe(study, ((name, summarize(study, name, folder / f"{name}.csv")) for name in tables))
    everybody = [row for rows in tables.values() for row in rows]
    for variable in found.variables:
        for figures, rows in zip((variable.pooled, *variable.sites), (everybody, *tables.values()), strict=True):
            raw = [row.get(variable.name, row.get(f"{variable.name} [{variable.unit}]")) for row in rows]
            known = [cell for cell in raw if cell not in ("", "NA")]
            assert (figures.known, figures.missing) == (len(known), len(raw) - len(known))
            if variable.kind == "number":
                numbers = np.array(known, dtype=float)
                wanted = numbers.mean(), numbers.std(ddof=1)
                assert (figures.mean, figures.deviation) == pytest.approx(wanted, rel=1e-9)
            else:
                assert figures.counts == tuple(known.count(level) for level in variable.levels)

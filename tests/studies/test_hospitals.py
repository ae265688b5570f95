"""The example of three hospitals: every way gives the same figures, those of scikit-learn on the pooled table."""

import csv
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fedgram as fg
from fedgram.cli import app
from fedgram.core.errors import Revealing
from fedgram.studies import Study
from fedgram.studies.encoding import read_client

pytest.importorskip("sklearn", reason="the patients come with scikit-learn")
PROGRAM = Path(__file__).parents[2] / "examples" / "hospitals.py"
pytestmark = pytest.mark.filterwarnings("ignore::fedgram.core.errors.Revealing")  # East has few patients


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("hospitals", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(example, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hospitals")
    example.make(folder)
    return folder


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def run(*options):
    done = CliRunner().invoke(app, ["run", *map(str, options), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def pooled(example, folder):
    """Return pooled rows to train on and to test on, preprocessed by scikit-learn."""
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = ["age", "bmi", "bp", *example.SERUM]
    tables = [read(folder / f"all{part}.csv") for part in ("", "-test")]
    as_cells = [
        np.array([[np.nan if row[name] == "NA" else float(row[name]) for name in numbers] for row in rows])
        for rows in tables
    ]
    sexes = [np.array([[row["sex"]] for row in rows]) for rows in tables]
    cells = [np.column_stack([values, sex.astype(object)]) for values, sex in zip(as_cells, sexes, strict=True)]
    made = make_pipeline(
        make_column_transformer(
            (SimpleImputer(), list(range(len(numbers)))), (OneHotEncoder(drop="first"), [len(numbers)])
        ),
        StandardScaler(),
    )
    x = [made.fit_transform(cells[0]), made.transform(cells[1])]
    y = [np.array([row["progression"] for row in rows]) for rows in tables]
    return x, y


def test_flaws_are_as_described(folder):
    north, south, east = (read(folder / f"{name}.csv") for name in ("north", "south", "east"))
    assert list(north[0]) != list(south[0])
    assert "bp [mmHg]" in south[0]
    assert any("NA" in row.values() for row in south)
    assert len(east) == 12
    assert {(row["sex"], row["progression"]) for row in east} == {("M", "slow")}
    assert {row["patient_id"][0] for row in north} == {"P"}
    everybody = [row["patient_id"] for part in ("", "-test") for row in read(folder / f"all{part}.csv")]
    assert len(everybody) == len(set(everybody)), "nobody is both trained and tested on"


def test_three_files_or_one_give_scikit_learns_figures(folder, pooled):
    from sklearn.linear_model import LinearRegression

    (x, x_test), (y, y_test) = pooled
    reference = LinearRegression().fit(x, np.column_stack([y == label for label in ("fast", "slow")]).astype(float))
    said = np.array(["fast", "slow"])[reference.predict(x_test).argmax(axis=1)]
    owners = [row["hospital"] for row in read(folder / "all-test.csv")]
    right = [int((said == y_test)[np.array(owners) == name].sum()) for name in ("north", "south", "east")]
    study = ["--study", folder / "study.toml"]
    names = ("north", "south", "east")
    files, tests = (",".join(str(folder / f"{name}{part}.csv") for name in names) for part in ("", "-test"))
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
    # Clients are in the order of their names.
    by_name = [right[names.index(name)] for name in sorted(names)]
    assert many["correct"] == one["correct"] == by_name
    assert sum(right) / len(said) > 0.7


def test_from_python_scores_are_those_of_the_pooled_table(folder, pooled):
    from sklearn.linear_model import LinearRegression

    (x, x_test), (y, _) = pooled
    targets = np.column_stack([y == label for label in ("fast", "slow")]).astype(float)
    study = Study.read(folder / "study.toml")
    clients = [read_client(study, name, folder / f"{name}.csv") for name in ("north", "south", "east")]
    test = np.concatenate([read_client(study, name, folder / f"{name}-test.csv").x for name in study.parties])
    fit = fg.AFL().fit(clients, study=study, classes=study.classes)
    np.testing.assert_allclose(fit.model.scores(test), LinearRegression().fit(x, targets).predict(x_test), atol=1e-9)


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

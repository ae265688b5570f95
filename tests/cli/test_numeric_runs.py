"""`fedgram run` and `compare` with a numeric outcome: output and refusals."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fedgram.cli import app
from fedgram.core.errors import InvalidParameter


def fedgram(*options):
    done = CliRunner().invoke(app, [str(option) for option in options])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture
def table(tmp_path):
    """Return a table of three hospitals; at a small hospital costs depend on age with the opposite sign."""
    rng = np.random.default_rng(0)
    lines = ["age,sex,cost,hospital"]
    for k in range(300):
        age, hospital = rng.integers(20, 90), "west" if k % 10 == 0 else ("north", "south")[k % 2]
        cost = 30 * (110 - age if hospital == "west" else age) + rng.normal(0, 150)
        lines.append(f"{age},{'FM'[k % 2]},{cost:.2f},{hospital}")
    path = tmp_path / "costs.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def options(table):
    return ["--data", table, "--label", "cost", "--client-column", "hospital"]


def test_run_prints_errors_and_the_party_that_does_not_fit(table):
    done = fedgram("run", *options(table))
    assert "RMSE of cost" in done.stdout
    assert "R² " in done.stdout
    [west] = [line for line in done.stdout.splitlines() if line.startswith("west")]
    assert west.endswith("does not fit the others")
    [north] = [line for line in done.stdout.splitlines() if line.startswith("north")]
    assert "fit" not in north
    record = json.loads(fedgram("run", *options(table), "--json").stdout)
    assert record["errors"]["cost"].keys() == {"rmse", "mae", "r2"}


def test_compare_ends_with_a_table_of_errors(table, tmp_path):
    done = fedgram("compare", *options(table), "--methods", "afl,local", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "RMSE of cost (root of the mean squared error over all test samples)" in " ".join(done.stdout.split())
    assert "MAE of cost, R² of cost over all test samples." in done.stdout
    assert (tmp_path / "out" / "report.html").exists()
    printed = fedgram("report", tmp_path / "out", "--metric", "r2", "--format", "markdown").stdout
    assert printed.startswith("R² of cost (share of the variance")


def test_what_needs_classes_is_refused_before_anything_is_written(table, tmp_path):
    with pytest.raises(InvalidParameter, match="fedavg needs classes, and the outcome 'cost' is a number"):
        fedgram("compare", *options(table), "--methods", "afl,fedavg", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(InvalidParameter, match="fedlogit needs classes"):
        fedgram("run", *options(table), "--method", "fedlogit", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_table_of_numbers_alone_with_a_fractional_label_is_a_numeric_outcome_too(tmp_path):
    """In such a table only the label needs a study."""
    path, rng = tmp_path / "plain.csv", np.random.default_rng(0)
    ages = rng.integers(20, 90, 120)
    costs = 30 * ages + rng.normal(0, 150, 120)
    path.write_text("age,cost\n" + "".join(f"{a},{cost:.2f}\n" for a, cost in zip(ages, costs, strict=True)))
    choice = ["--data", path, "--label", "cost", "--partition", "iid", "--clients", 3]
    assert "RMSE of cost" in fedgram("run", *choice).stdout
    done = fedgram("compare", *choice, "--methods", "afl,local", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "RMSE of cost" in done.stdout


def test_all_methods_that_need_classes_are_named_at_once(table, tmp_path):
    with pytest.raises(InvalidParameter, match="^fedavg, fedlogit, fedprox need classes, and the outcome 'cost' is"):
        fedgram("compare", *options(table), "--methods", "afl,fedprox,fedavg,fedlogit", "--out", tmp_path / "out")


def test_data_that_cannot_be_read_are_told_once_for_all_methods(tmp_path):
    path = tmp_path / "plain.csv"
    path.write_text("age,cost\n40,1\n50,2\n")
    done = fedgram("compare", "--data", path, "--methods", "afl,local", "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert done.output.count("name the outcome") == 1
    assert "and 2 more runs" in done.output
    assert "3 of 3 runs failed" in done.output

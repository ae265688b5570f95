"""`fedgram run` and `compare` with a numeric outcome: what they print, and what they refuse."""

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
    """Return a table of three hospitals; a small one has its costs the other way round."""
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

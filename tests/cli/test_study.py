"""`fedgram study`: a draft never overwrites a file, and a table is checked in place."""

import json

import pytest
from typer.testing import CliRunner

from fedgram.cli import app
from fedgram.core.errors import InvalidParameter, Mismatch, UnknownName
from fedgram.core.hashing import readable
from fedgram.studies import Study


def fedgram(*options):
    done = CliRunner().invoke(app, ["study", *map(str, options)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture
def north(tmp_path):
    path = tmp_path / "north.csv"
    rows = [f"W{k},{20 + k % 50},{'FM'[k % 2]},{'ill' if k % 3 else 'well'}" for k in range(60)]
    path.write_text("\n".join(["patient_id,age,sex,diagnosis", *rows]) + "\n")
    return path


@pytest.fixture
def study(north, tmp_path):
    path = tmp_path / "study.toml"
    done = fedgram("new", north, "--outcome", "diagnosis", "--name", "stroke", "--out", path)
    assert done.exit_code == 0
    assert "ignored: patient_id" in done.stdout
    return path


def test_a_draft_is_a_study_that_its_own_table_fits(north, study):
    assert Study.read(study).sent == ("age", "sex=M")
    assert "60 of 60 rows fit study 'stroke': 40 ill, 20 well" in fedgram("check", study, north).stdout
    with pytest.raises(InvalidParameter, match="--force to write over it"):
        fedgram("new", north, "--outcome", "diagnosis", "--out", study)


def test_the_column_that_names_clients_is_not_used_to_predict(tmp_path):
    """Two hospitals in a column look like a category, which a model would use."""
    table, path = tmp_path / "all.csv", tmp_path / "study.toml"
    table.write_text("age,hospital,ill\n" + "".join(f"{20 + k % 30},{'ab'[k % 2]},{k % 3 % 2}\n" for k in range(60)))
    choice = ["new", table, "--outcome", "ill", "--out", path]
    with pytest.raises(UnknownName, match="did you mean 'hospital'"):
        fedgram(*choice, "--client-column", "hospitl")
    with pytest.raises(InvalidParameter, match="'ill' is the outcome"):
        fedgram(*choice, "--client-column", "ill")
    assert "ignored: hospital" in fedgram(*choice, "--client-column", "hospital").stdout
    assert list(Study.read(path).used) == ["age"]
    assert "names the client of each row" in path.read_text()
    assert "60 of 60 rows fit" in fedgram("check", path, table, "--client-column", "hospital").stdout


def test_rows_that_do_not_fit_are_told_by_line(study, tmp_path):
    south = tmp_path / "south.csv"
    south.write_text("sex,age,diagnosis\nM,40,ill\nG,41,ill\nF,400,well\n")
    done = fedgram("check", study, south)
    assert done.exit_code == 1
    assert "1 of 3 rows fit" in done.stdout
    assert "column 'sex' must be one of 'F', 'M': line 3 (got G)" in done.stdout
    assert "line 4 (got 400.0)" in done.stdout
    told = json.loads(fedgram("check", study, south, "--json").stdout)
    assert (told["rows"], told["fit"], sum(told["broken"].values())) == (3, 1, 2)


def test_a_table_with_other_columns_is_refused(study, tmp_path):
    (tmp_path / "south.csv").write_text("gender,age,diagnosis\nM,40,ill\n")
    with pytest.raises(Mismatch, match="lacks column 'sex'"):
        fedgram("check", study, tmp_path / "south.csv")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["M,40,ill"] * 9, "would send nothing: study 'stroke' asks every party for at least 10 training samples"),
        (["M,40,ill"] * 9, "your table has 9; merge with another party before anything is sent"),
        (["M,40,ill"] * 12 + ["F,41,well"], "your table has 1 of class 'well'; leave this class out"),
        (["M,40,ill"] * 12, "12 of 12 rows fit"),
    ],
)
def test_a_party_is_told_beforehand_that_it_is_too_small(study, tmp_path, rows, words):
    (tmp_path / "small.csv").write_text("\n".join(["sex,age,diagnosis", *rows]) + "\n")
    done = fedgram("check", study, tmp_path / "small.csv")
    assert done.exit_code == ("rows fit" not in words)
    assert words in " ".join(done.stdout.split())
    assert ("would send nothing" in done.stdout) == bool(done.exit_code)


def test_a_study_is_shown_with_its_fingerprint(study):
    assert f"fingerprint {readable(Study.read(study).fingerprint)}" in fedgram("show", study).stdout
    assert json.loads(fedgram("show", study, "--json").stdout)["sent"] == ["age", "sex=M"]

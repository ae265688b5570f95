"""`missing = "drop"`: rows that lack a value are left out at the party, everywhere, and counted by column."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import fedgram as fg
from fedgram.cli import app
from fedgram.core.errors import BadSamples, InvalidData, Skipped
from fedgram.data.own import csvfiles
from fedgram.experiments import Scenario
from fedgram.studies import Study, party_tables, streams
from fedgram.studies.encoding import open_for, read_client
from fedgram.studies.party_tables import check_table, sum_up
from fedgram.studies.streams import collect

STUDY = """
[study]
name = "drops"
outcome = "ill"
classes = ["no", "yes"]
maximum_columns_per_row = 1
[columns.age]
kind = "number"
range = [0, 120]
missing = "drop"
[columns.crp]
kind = "number"
range = [0, 50]
outside = "missing"
missing = "drop"
[columns.smoker]
kind = "flag"
missing = "drop"
[columns.stage]
kind = "category"
values = ["a", "b", "c"]
missing = "drop"
[columns.bmi]
kind = "number"
missing = "mean"
"""
HEADER = "age,crp,smoker,stage,bmi,ill"
# Row by row: whole, age missing, crp out of range, flag missing, category missing, three at once, bmi missing.
CELLS = ["40,1,yes,a,20,{}", ",1,no,b,20,{}", "50,99,no,c,20,{}", "50,1,,c,20,{}", "50,1,no,NA,20,{}", ",,,a,2,{}"]
WHOLE = ["61,5,no,b,,{}", "47,9,yes,c,30,{}", "33,2,no,a,25,{}"]
DROPPED = "left out for missing values (age 12, crp 12, smoker 12, stage 6)"


def table(path, rows):
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def lines(cells, times=6):
    return [
        row.format("yes" if (place + turn) % 2 else "no") for turn in range(times) for place, row in enumerate(cells)
    ]


@pytest.fixture
def study():
    return Study.parse(STUDY)


@pytest.fixture
def north(tmp_path):
    return table(tmp_path / "north.csv", lines([*CELLS, *WHOLE]))


@pytest.fixture
def complete(tmp_path):
    """Return the complete cases alone."""
    every = [*CELLS, *WHOLE]
    good = [row for place, row in enumerate(lines(every)) if not 1 <= place % len(every) <= 5]
    return table(tmp_path / "complete.csv", good)


def test_nothing_but_the_values_is_sent(study):
    assert study.sent == ("age", "crp", "smoker", "stage=b", "stage=c", "bmi", "bmi missing")
    assert Study.parse(STUDY.replace('"drop"', '"refuse"', 1)).fingerprint != study.fingerprint


@pytest.mark.parametrize("arrow", [True, False])
def test_moments_are_those_of_the_complete_cases(study, north, complete, arrow, monkeypatch):
    if not arrow:
        monkeypatch.setattr(csvfiles, "_arrow", lambda: None)
    with pytest.warns(Skipped, match="30 rows left out for missing values .age 12, crp 12, smoker 12, stage 6"):
        found = sum_up(study, "north", north)
    alone = sum_up(study, "north", complete)
    np.testing.assert_array_equal(found.moments.packed, alone.moments.packed)
    np.testing.assert_array_equal(found.moments.cross, alone.moments.cross)
    assert (found.moments.n, found.left_out.dropped, found.left_out.bad) == (24, 30, 0)
    assert found.left_out.by_column == {"age": 12, "crp": 12, "smoker": 12, "stage": 6}
    assert alone.left_out.dropped == 0 == len(alone.left_out.by_column)


def test_a_row_that_breaks_a_rule_is_bad_even_if_it_lacks_a_value(study, tmp_path):
    path = table(tmp_path / "a.csv", [*lines(WHOLE), ",1,perhaps,a,20,no", ",1,no,a,20,no"])
    with pytest.raises(BadSamples, match="1 bad row .*perhaps"):
        sum_up(study, "north", path)
    with pytest.warns(Skipped):
        found = sum_up(study, "north", path, on_bad="skip").left_out
    assert (found.bad, found.dropped, found.by_column) == (1, 1, {"age": 1})


def test_a_table_of_which_nothing_is_left_says_why(study, tmp_path):
    path = table(tmp_path / "a.csv", lines([CELLS[1]]))
    with pytest.raises(InvalidData, match="no usable row. 6 rows left out for missing values .age 6"):
        sum_up(study, "north", path)


def test_clients_in_memory_and_from_a_file_have_the_same_rows(study, north, complete, monkeypatch):
    with pytest.warns(Skipped):
        held = read_client(study, "north", north)
    np.testing.assert_array_equal(held.x, read_client(study, "north", complete).x)
    monkeypatch.setattr(streams, "HELD_BYTES", 1)
    with pytest.warns(Skipped):
        streamed = read_client(study, "north", north)
    np.testing.assert_array_equal(np.concatenate(list(streamed.x)), held.x)


def test_rows_set_aside_are_among_the_complete_ones(study, north):
    with pytest.warns(Skipped):
        (x, _), (aside, _) = collect(open_for(study, north), "refuse", aside=lambda rows: rows.x[:, 0] < 0).split()
    assert len(x) + len(aside) == 24
    assert len(aside)


def test_a_run_is_that_of_the_complete_cases(north, complete, tmp_path):
    (tmp_path / "study.toml").write_text(STUDY)
    options = {"study": str(tmp_path / "study.toml"), "clients": 2, "partition": "iid"}
    with pytest.warns(Skipped, match="30 rows left out"):
        found = Scenario(data=str(north), **options).prepare()
    alone = Scenario(data=str(complete), **options).prepare()
    for left, right in zip(found.clients, alone.clients, strict=True):
        np.testing.assert_array_equal(left.x, right.x)


def test_a_row_to_predict_with_a_gap_has_a_reason_instead_of_a_label(study, complete, tmp_path):
    fit = fg.FedGram().fit([read_client(study, "north", complete)], study=study, classes=study.classes)
    fit.save(tmp_path / "fit.fedgram")
    new = table(tmp_path / "new.csv", lines([WHOLE[1], CELLS[1], WHOLE[0]], times=1))
    done = CliRunner().invoke(app, ["predict", str(tmp_path / "fit.fedgram"), str(new)])
    first, gap, last = done.stdout.splitlines()[1:4]
    assert gap.startswith(",,,")
    assert "column 'age' is empty, and the study leaves such rows out" in gap
    assert first.endswith(",")
    assert last.endswith(",")
    assert len(fit.predictor().predict(complete)) == 24
    with pytest.warns(Skipped), pytest.raises(BadSamples, match="1 row left out for missing values .age 1"):
        fit.predictor().predict(new)


def test_a_check_counts_the_rows_by_column(study, north, tmp_path):
    found = check_table(study, north)
    assert (found.rows, found.good, found.fits, found.left_out.dropped) == (54, 24, True, 30)
    (tmp_path / "study.toml").write_text(STUDY)
    options = ["study", "check", str(tmp_path / "study.toml"), str(north)]
    done = CliRunner().invoke(app, options)
    assert done.exit_code == 0
    assert f"30 rows {DROPPED}" in " ".join(done.stdout.split())
    told = json.loads(CliRunner().invoke(app, [*options, "--json"]).stdout)
    assert told["left_out"] == {"rows": 30, "columns": {"age": 12, "crp": 12, "smoker": 12, "stage": 6}}


def test_thresholds_are_of_the_rows_that_are_left(study, tmp_path):
    path = table(tmp_path / "a.csv", [*lines(WHOLE, times=3), *lines([CELLS[1]])])
    with pytest.warns(Skipped), pytest.raises(InvalidData, match="at least 10 training samples"):
        party_tables.summarize(study, "north", path)


def test_a_numeric_outcome_may_be_dropped_but_not_made_up(tmp_path):
    columns = '[columns.x]\nkind = "number"\n[columns.y]\nkind = "number"\nmissing = "{}"\n'
    text = f'[study]\nname = "n"\noutcome = "y"\n{columns}'
    study = Study.parse(text.format("drop"))
    path = tmp_path / "a.csv"
    path.write_text("x,y\n1,2\n2,\n3,4\n")
    with pytest.warns(Skipped):
        np.testing.assert_array_equal(read_client(study, "north", path).x, [[1, 2], [3, 4]])
    with pytest.raises(InvalidData, match="'refuse' or 'drop'"):
        Study.parse(text.format("mean"))


def test_every_pass_counts_anew(study, north):
    opened = open_for(study, north)
    for _ in range(2):
        with pytest.warns(Skipped):
            assert sum(len(rows.x) for rows in opened.good_rows("refuse")) == 24
        assert opened.left_out.dropped == 30
    assert sum(len(rows.x) for rows in opened.clean_rows()) == 24

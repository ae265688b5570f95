"""`study check` tells copies of rows and repeated ids, and ends as `summarize` would."""

import json

import pytest
from typer.testing import CliRunner

from fedgram.cli import app
from fedgram.core.errors import InvalidData
from fedgram.data.own import csvfiles
from fedgram.studies import Study
from fedgram.studies.party_tables import check_table, summarize

STUDY = """
[study]
name = "stroke"
outcome = "ill"
classes = ["no", "yes"]
[columns.Patient_ID]
kind = "ignore"
[columns.ward_id]
kind = "ignore"
[columns.note]
kind = "ignore"
[columns.age]
kind = "number"
[columns.sex]
kind = "category"
values = ["F", "M"]
"""
HEADER = "patient_id,ward_id,note,age,sex,ill"
ROWS = [f"P{k},W{k % 2},,{30 + k % 3},{'FM'[k % 2]},{'yes' if k % 2 else 'no'}" for k in range(24)]


@pytest.fixture
def study():
    return Study.parse(STUDY)


def write(folder, rows, header=HEADER):
    (folder / "study.toml").write_text(STUDY)
    (folder / "a.csv").write_text("\n".join([header, *rows]) + "\n")
    return folder / "a.csv"


def test_rows_that_only_look_alike_to_the_model_are_not_copies(study, tmp_path):
    assert check_table(study, write(tmp_path, ROWS)).repeated == []


def test_copies_of_rows_are_told_by_line(study, tmp_path):
    found = check_table(study, write(tmp_path, [*ROWS, ROWS[3], ROWS[3], ROWS[0]]))
    rows, ids = found.repeated
    assert rows == "3 rows are copies of another row: line 5 and line 26; line 26 and line 27; line 2 and line 28"
    assert ids.startswith("3 rows have an id in column 'patient_id' that another row has: line 5 and line 26")
    assert found.fits, "a copy may be right"


def test_a_change_in_any_column_makes_another_row(study, tmp_path):
    for place, cell in enumerate(("P99", "W7", "x", "77", "F", "no")):
        cells = ROWS[3].split(",")
        cells[place] = cell
        found = check_table(study, write(tmp_path, [*ROWS, ",".join(cells)]))
        assert not any("copies" in line for line in found.repeated)


def test_ids_are_found_by_name_and_only_if_most_rows_have_their_own(study, tmp_path):
    found = check_table(study, write(tmp_path, [*ROWS, ROWS[3].replace("30", "31").replace("yes", "no")]))
    assert found.repeated == ["1 row has an id in column 'patient_id' that another row has: line 5 and line 26"]
    named = check_table(study, tmp_path / "a.csv", key="ward_id").repeated
    assert named[-1].startswith("23 rows have an id in column 'ward_id'")
    assert named[-1].endswith("; …")


def test_rows_without_an_id_do_not_have_the_same_one(study, tmp_path):
    rows = [row.replace(f"P{k},", ",", 1) if k < 4 else row for k, row in enumerate(ROWS)]
    assert check_table(study, write(tmp_path, rows)).repeated == []


def test_the_command_warns_and_ends_with_0(study, tmp_path):
    path = write(tmp_path, [*ROWS, ROWS[3]])
    options = ["study", "check", str(tmp_path / "study.toml"), str(path)]
    done = CliRunner().invoke(app, options)
    assert done.exit_code == 0
    assert "1 row is a copy of another row: line 5 and line 26" in " ".join(done.stdout.split())
    assert len(json.loads(CliRunner().invoke(app, [*options, "--json"]).stdout)["repeated"]) == 2
    missing = CliRunner().invoke(app, [*options, "--id", "case"])
    assert "no id column 'case'" in str(missing.exception)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (ROWS[:9], ["at least 10 training samples", "has 9"]),
        ([*ROWS[::2], ROWS[1]], ["at least 3 training samples of each class that it has", "has 1"]),
        ([*ROWS[::2], *(row.replace(",F,", ",M,") for row in ROWS[:1])], ["sex=M"]),
        (ROWS, []),
    ],
)
def test_a_check_ends_as_a_summary_would(study, tmp_path, rows, words):
    path = write(tmp_path, rows)
    done = CliRunner().invoke(app, ["study", "check", str(tmp_path / "study.toml"), str(path)])
    assert done.exit_code == bool(words)
    for word in words:
        assert word in " ".join(done.stdout.split())
    if words:
        with pytest.raises(InvalidData, match=words[0]):
            summarize(study, "north", path)
    else:
        summarize(study, "north", path)


@pytest.mark.parametrize(
    "ending", [",,,,,\n", ",,,,,\r\n,,,,,\r\n", "\n\n,,,,,\n", " , ,,,, \n\n", ",,,,," * 3000 + "\n"]
)
@pytest.mark.parametrize("last", ["P9,W1,,40,F,yes", "P9,W1,x y,40,F,yes"])
def test_lines_of_empty_cells_at_the_end_are_not_rows(study, tmp_path, ending, last):
    path = write(tmp_path, [*ROWS, last])
    whole = path.read_bytes()
    path.write_bytes(whole + ending.encode())
    found = check_table(study, path)
    assert (found.rows, found.good, found.broken) == (25, 25, {})
    path.write_bytes(whole[:-1] + b"\r\n" + ending.encode() + ROWS[0].encode())
    found = check_table(study, path)
    assert found.rows > 25, "one that is followed by a row is a row, or a line was lost"
    [bad] = [line for line in found.lines() if "age" in line or "value for each" in line][:1]
    assert "line 2" in bad


@pytest.mark.parametrize("arrow", [True, False])
def test_a_last_row_that_ends_in_empty_cells_is_kept_whole(tmp_path, arrow, monkeypatch):
    if not arrow:
        monkeypatch.setattr(csvfiles, "_arrow", lambda: None)
    text = STUDY.replace('values = ["F", "M"]', 'values = ["F", "M"]\nmissing = "category"')
    study = Study.parse(text)
    header = "patient_id,ward_id,note,age,ill,sex"
    for ending in ("", "\n", "\n,,,,,\n", "\r\n,,,,,\r\n\r\n"):
        path = tmp_path / "b.csv"
        path.write_bytes(f"{header}\nP1,,,30,yes,F\nP2,,,31,no,{ending}".encode())
        found = check_table(study, path)
        assert (found.rows, found.good) == (2, 2), ending
    path.write_bytes(f"{header}\n,,,,,\n".encode())
    assert check_table(study, path).rows == 0
    path.write_bytes(f"{header}".encode())
    assert check_table(study, path).rows == 0

"""A party's table under a study: by name, block by block, and messages on rows that break a rule."""

import csv

import numpy as np
import pytest

from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch, Skipped, tell
from fedgram.data.own import blocks, csvfiles
from fedgram.data.own.cells import Coded
from fedgram.studies import Study, kinds
from fedgram.studies.encoding import gather, open_for, read_client
from fedgram.studies.kinds import Category, Number
from fedgram.studies.party_tables import check_table
from studies.test_study_file import STROKE

HEADER = ["age", "sex", "smoker", "patient_id", "diagnosis"]
ROWS = [
    ["30", "F", "yes", "W1", "ill"],
    ["", "M", "no", "W2", "well"],
    ["90", "", "1", "W3", "well"],
    [" 60", "M ", "FALSE", "W4", "ill "],
]
SENT = [[-0.5, 0, 0, 0, 1], [0, 1, 1, 0, 0], [0.5, 0, 0, 1, 1], [0, 0, 1, 0, 0]]


@pytest.fixture
def study():
    return Study.parse(STROKE)


def write(path, rows, header=HEADER, delimiter=","):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])
    return path


@pytest.fixture
def north(tmp_path):
    return write(tmp_path / "north.csv", ROWS)


@pytest.fixture(params=["arrow", "plain"])
def reader(request, monkeypatch):
    """Both ways of reading must agree."""
    if request.param == "plain":
        monkeypatch.setattr(csvfiles, "_with_arrow", lambda *_: None)
    return request.param


def test_what_is_sent(study, north, reader):
    client = read_client(study, "north", north)
    np.testing.assert_allclose(client.x, SENT)
    assert client.y.tolist() == ["ill", "well", "well", "ill"]
    assert client.columns == study.sent
    assert client.features == study.features


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_columns_are_taken_by_name_in_any_order(study, tmp_path, reader, delimiter):
    order = [3, 1, 4, 0, 2]
    path = write(tmp_path / "a.csv", [[row[i] for i in order] for row in ROWS], [HEADER[i] for i in order], delimiter)
    np.testing.assert_allclose(read_client(study, "north", path).x, SENT)


def test_tables_in_memory_and_parquet_are_as_good_as_files(study, north, tmp_path):
    pa, arrow_csv, pq = (pytest.importorskip(f"pyarrow{part}") for part in ("", ".csv", ".parquet"))
    table = arrow_csv.read_csv(north)
    np.testing.assert_allclose(read_client(study, "north", table).x, SENT)
    pq.write_table(table, tmp_path / "north.parquet")
    np.testing.assert_allclose(read_client(study, "north", tmp_path / "north.parquet").x, SENT)
    np.testing.assert_allclose(read_client(study, "north", str(north)).x, SENT)
    assert pa.table({"a": [1]}).num_rows == 1


def test_blocks_do_not_show(study, tmp_path, reader, monkeypatch):
    path = write(tmp_path / "long.csv", ROWS * 500)
    monkeypatch.setattr(blocks, "ROWS", 7)
    monkeypatch.setattr(csvfiles, "BYTES", 1000)
    assert sum(1 for _ in open_for(study, path).rows()) > 10
    np.testing.assert_allclose(read_client(study, "north", path).x, SENT * 500)


def test_a_bad_cell_late_in_a_large_file_spoils_nothing_before_it(study, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(csvfiles, "BYTES", 2000)
    path = write(tmp_path / "long.csv", [*ROWS * 400, ["x", "F", "yes", "W9", "ill"], *ROWS])
    with pytest.raises(InvalidData, match="1 bad row in .*line 1602: column 'age' must hold numbers"):
        read_client(study, "north", path)
    with pytest.warns(Skipped, match="1 bad row"):
        client = read_client(study, "north", path, on_bad="skip")
    np.testing.assert_allclose(client.x, SENT * 401)


@pytest.mark.parametrize(
    ("row", "words", "rule"),
    [
        (["x30", "F", "yes", "W1", "ill"], "column 'age' must hold numbers", None),
        (["1e999", "F", "yes", "W1", "ill"], "column 'age' must hold numbers", None),
        (["130", "F", "yes", "W1", "ill"], "from 0 to 120 years, got 130", "column 'age' must be from 0 to 120 years"),
        (["30", "Fe", "yes", "W1", "ill"], r"got Fe \(did you mean F\?\)", "column 'sex' must be one of 'F', 'M'"),
        (["30", "F", "maybe", "W1", "ill"], "got maybe", "column 'smoker' must be yes or no"),
        (["30", "F", "", "W1", "ill"], "column 'smoker' must not be empty", None),
        (
            ["30", "F", "yes", "W1", "wel"],
            r"got wel \(did you mean well\?\)",
            "outcome 'diagnosis' must be one of 'ill', 'well'",
        ),
        (["30", "F", "yes", "W1", "sick"], "got sick", "outcome 'diagnosis' must be one of 'ill', 'well'"),
        (["30", "F", "yes", "W1", "NA"], "outcome 'diagnosis' must not be empty", None),
        (["30", "F", "yes", "W1"], "a row must have a value for each column", None),
        (["1,5", "F", "yes", "W1", "ill"], "column 'age' must hold numbers", None),
    ],
)
def test_a_row_that_breaks_a_rule_is_named_here_and_only_the_rule_leaves(study, tmp_path, reader, row, words, rule):
    path = write(tmp_path / "bad.csv", [*ROWS, row])
    with pytest.raises(InvalidData, match=f"line 6: .*{words}") as refused:
        read_client(study, "north", path)
    told = refused.value.told
    assert (rule or words) in told
    assert ";" not in told  # one rule is broken, and one is named
    for cell in ("x30", "130", "Fe", "maybe", "sick", "W1", str(tmp_path)):
        assert cell not in told.replace("from 0 to 120", "")
    found = check_table(study, path)
    assert (found.rows, found.good, found.fits) == (5, 4, False)
    assert any("line 6" in line for line in found.lines())


def test_whole_numbers_with_a_point_are_the_values_that_the_study_lists(tmp_path, reader):
    """Pandas writes 1 as 1.0 in a column with gaps, to CSV and to Parquet."""
    described = 'kind = "category"\nvalues = ["1", "2", "03"]\nmissing = "category"\n'
    study = Study.parse(f'[study]\nname = "s"\noutcome = "d"\nclasses = [0, 1]\n[columns.grade]\n{described}')
    path = write(tmp_path / "a.csv", [["1.0", "0.0"], ["2.0", "1"], ["", "1.0"], ["03", "0"]], ["grade", "d"])
    client = read_client(study, "north", path)
    np.testing.assert_array_equal(client.x, [[0, 0, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]])
    assert client.y.tolist() == ["0", "1", "1", "0"]
    with pytest.raises(InvalidData, match="got 3.0"):
        read_client(study, "north", write(tmp_path / "b.csv", [["3.0", "0"]], ["grade", "d"]))


def test_a_column_that_is_called_missing_is_not_counted_as_missing(tmp_path):
    study = Study.parse(
        '[study]\nname = "s"\noutcome = "d"\nclasses = ["a", "b"]\n[columns."teeth missing"]\nkind = "number"\n'
        '[columns.age]\nkind = "flag"\nmissing = "mean"\n'
    )
    found = check_table(study, write(tmp_path / "a.csv", [["7", "", "a"]], ["teeth missing", "age", "d"]))
    assert found.missing == {"age missing": 1}


def test_a_stray_quotation_mark_does_not_hide_where_rows_are(study, tmp_path, reader):
    path = tmp_path / "a.csv"
    path.write_text('age,sex,smoker,patient_id,diagnosis\n30,F,yes,5" pipe,ill\n\n130,F,yes,W,ill\n')
    with pytest.raises(InvalidData, match="line 4: column 'age' must be from 0 to 120 years"):
        read_client(study, "north", path)
    path.write_text('age,sex,smoker,patient_id,diagnosis\n30,F,yes,W,ill\n30,F,yes,"unclosed,ill\n30,F,yes,W,ill\n')
    with pytest.raises(InvalidData, match="line 3: expected quotation marks around a cell to be closed"):
        read_client(study, "north", path)


def test_quoted_names_may_hold_other_delimiters_and_line_breaks(tmp_path, reader):
    path = tmp_path / "a.csv"
    path.write_text('"height, cm";"long\nname";d\n1;2;a\n3;x;b\n')
    columns = "".join(f"[columns.{name}]\nkind = 'number'\n" for name in ('"height, cm"', '"long\\nname"'))
    study = Study.parse(f'[study]\nname = "s"\noutcome = "d"\nclasses = ["a", "b"]\n{columns}')
    with pytest.raises(InvalidData, match="1 bad row in .*line 4: column 'long.*name' must hold numbers"):
        read_client(study, "north", path)


def test_bad_rows_are_refused_or_skipped_and_nothing_else(study, north):
    with pytest.raises(InvalidParameter, match="on_bad must be one of refuse, skip; got 'drop'"):
        read_client(study, "north", north, on_bad="drop")


def test_a_study_of_many_columns_names_some():
    columns = {f"g{k}": Number() for k in range(10_000)}
    lines = Study("wide", "d", columns, ("a", "b")).about()
    assert lines[1].endswith("g99 and 9,900 more")


def test_what_has_no_rows_yet_is_refused(study):
    class Lazy:
        columns = HEADER

    with pytest.raises(InvalidData, match="a Lazy has no rows yet: collect it first"):
        read_client(study, "north", Lazy())


def test_missing_and_unknown_columns_are_refused_by_name(study, tmp_path):
    path = write(tmp_path / "a.csv", [row[1:] for row in ROWS], HEADER[1:])
    with pytest.raises(Mismatch, match="lacks column 'age'"):
        open_for(study, path)
    path = write(tmp_path / "b.csv", [[*row, "1"] for row in ROWS], [*HEADER, "smokr"])
    with pytest.raises(Mismatch, match=r"unknown column 'smokr' \(did you mean 'smoker'\?\): describe what is new"):
        open_for(study, path)
    path = write(tmp_path / "c.csv", [[*row, "1"] for row in ROWS], [*HEADER, "age"])
    with pytest.raises(InvalidData, match="column 'age' occurs twice"):
        open_for(study, path)
    path = write(tmp_path / "d.csv", [row[:4] for row in ROWS], HEADER[:4])
    with pytest.raises(Mismatch, match="lacks column 'diagnosis'"):
        open_for(study, path)
    assert open_for(study, path, labelled=False).outcome is None


def test_a_unit_in_the_header_must_be_the_studys(study, tmp_path):
    good = write(tmp_path / "a.csv", ROWS, ["age [years]", *HEADER[1:]])
    np.testing.assert_allclose(read_client(study, "north", good).x, SENT)
    bad = write(tmp_path / "b.csv", ROWS, ["age (months)", *HEADER[1:]])
    with pytest.raises(Mismatch, match="column 'age \\(months\\)' is in 'months', and the study has 'age' in 'years'"):
        open_for(study, bad)


def test_a_header_with_two_delimiters_is_refused(study, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("age;sex;smoker,patient_id;diagnosis\n1;F;yes,2;ill\n")
    with pytest.raises(InvalidData, match="semicolons and commas between its names"):
        open_for(study, path)


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\x00a", b"PAR1garbage"])
def test_files_that_are_no_tables_are_refused_in_one_sentence(study, tmp_path, content):
    for name in ("a.csv", "a.parquet"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises((InvalidData, Mismatch)):
            gather(open_for(study, tmp_path / name), "refuse")


def test_a_table_without_rows_is_refused(study, tmp_path):
    with pytest.raises(InvalidData, match="no usable row"):
        read_client(study, "north", write(tmp_path / "a.csv", []))


def test_arrays_without_names_are_refused(study):
    with pytest.raises(InvalidData, match="a table with named columns is wanted"):
        read_client(study, "north", np.zeros((3, 5)))


def test_outside_can_be_clipped_or_missing(tmp_path):
    path = write(tmp_path / "a.csv", [["130", "F", "yes", "W1", "ill"]])
    clipped = Study.parse(STROKE.replace("[0, 120]", '[0, 120]\noutside = "clip"'))
    assert read_client(clipped, "north", path).x[0, :2].tolist() == [1.0, 0.0]
    gone = Study.parse(STROKE.replace("[0, 120]", '[0, 120]\noutside = "missing"'))
    assert read_client(gone, "north", path).x[0, :2].tolist() == [0.0, 1.0]


def test_ten_thousand_columns(tmp_path):
    names = [f"c{i}" for i in range(10_000)]
    text = '[study]\nname = "wide"\noutcome = "y"\nclasses = ["a", "b"]\n'
    text += "".join(f'[columns.{name}]\nkind = "number"\n' for name in names)
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 10_000)).round(3)
    path = write(tmp_path / "wide.csv", [[*map(str, row), "ab"[k % 2]] for k, row in enumerate(values)], [*names, "y"])
    np.testing.assert_allclose(read_client(Study.parse(text), "north", path).x, values)


def test_a_value_that_was_composed_otherwise_is_the_value_that_the_study_lists(tmp_path, reader):
    """macOS writes a letter and its dots as two characters."""
    described = 'kind = "category"\nvalues = ["Bern", "Z\u00fcrich"]\n'
    study = Study.parse(f'[study]\nname = "s"\noutcome = "d"\nclasses = [0, 1]\n[columns.city]\n{described}')
    path = write(tmp_path / "a.csv", [["Zu\u0308rich", "-0"], ["Bern", "1"]], ["city", "d"])
    client = read_client(study, "north", path)
    assert (client.x.tolist(), client.y.tolist()) == ([[1.0], [0.0]], ["0", "1"])


def test_a_client_column_may_be_a_number_of_the_study(study, north, tmp_path, reader):
    path = write(tmp_path / "a.csv", [["30", *row[1:]] for row in ROWS if row[1]])
    x, _, groups = gather(open_for(study, path, group="age"), "refuse")
    assert (x[:, 0].tolist(), groups.tolist()) == ([-0.5] * 3, ["30"] * 3)


def test_wrong_cells_of_a_column_with_many_values_are_told_in_time(monkeypatch):
    """For example codes of diagnoses: each was compared with all, which took ten seconds a block."""
    compared = []
    monkeypatch.setattr(kinds, "get_close_matches", lambda cell, values, **_: compared.append(cell) or [])
    column = Category(tuple(f"A{place}" for place in range(1000)))
    cells = Coded.of(f"wrong {place}" for place in range(500))
    [problem] = column.encode("code", cells, None, np.zeros((500, 999), order="F"))
    assert not compared
    assert [problem.of(row) for row in range(500)][-1].endswith("got wrong 499")
    assert len(compared) == kinds.HINTED


def test_values_are_looked_up_not_compared_in_turn():
    values = tuple(f"A{place}" for place in range(50_000))
    assert kinds.spelt(Coded.of(values), values).values == values  # in turn, that takes a minute


UNITS = """
[study]
name = "units"
outcome = "d"
classes = ["ill", "well"]
[columns.area]
kind = "number"
unit = "mm²"
[columns.dose]
kind = "number"
unit = "µg/L"
[columns.Patient_ID]
kind = "ignore"
"""


def test_units_that_differ_only_in_notation_match(tmp_path):
    study = Study.parse(UNITS)
    for header in ("area [mm2],dose (ug/l)", "area (mm^2),dose [μg / l]"):
        path = tmp_path / "a.csv"
        path.write_text(f"{header},d\n1,2,ill\n3,4,well\n")
        np.testing.assert_array_equal(read_client(study, "north", path).x, [[1, 2], [3, 4]])


def test_all_columns_in_another_unit_are_named_at_once(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("area [cm2],dose (mg/l),d\n1,2,ill\n")
    with pytest.raises(Mismatch, match="'area' in 'mm²'; column 'dose \\(mg/l\\)' is in 'mg/l'") as caught:
        open_for(Study.parse(UNITS), path)
    assert tell(caught.value) == "columns have other units than the study"


@pytest.mark.parametrize("header", ["patient_id", "PATIENT_ID", "Patient_ID (mrn)"])
def test_upper_and_lower_case_do_not_count_in_ignored_columns(tmp_path, header):
    path = tmp_path / "a.csv"
    path.write_text(f"area,{header},dose,d\n1,W7,2,ill\n")
    np.testing.assert_array_equal(read_client(Study.parse(UNITS), "north", path).x, [[1, 2]])
    path.write_text(f"area,{header},Dose,d\n1,W7,2,ill\n")
    with pytest.raises(Mismatch, match="lacks column 'dose'"):
        open_for(Study.parse(UNITS), path)

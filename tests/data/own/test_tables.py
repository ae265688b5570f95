"""The user's own CSV and Parquet files, good and bad."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv as arrow_csv

from fedgram.core.errors import Doubtful, InvalidData, InvalidParameter, MissingExtra, Skipped, UnknownName
from fedgram.data.own import tables
from fedgram.data.own.bad import OnBad
from fedgram.data.own.cells import Notation
from fedgram.data.own.files import open_path
from fedgram.data.own.tables import Roles
from support.data import write

GOOD = "a,client,b,label\n1.5,x,2,cat\n-3,y,4e2,dog\n0.1,x,7,cat\n"


@pytest.mark.parametrize(
    "text", [GOOD, GOOD.replace(",", ";"), GOOD.replace(",", "\t"), "\ufeff" + GOOD, GOOD.replace("\n", "\r\n")]
)
def test_csv(tmp_path: Path, arrow: bool, text: str) -> None:
    data = open_path(write(tmp_path / "own.csv", text))
    np.testing.assert_array_equal(data.x, [[1.5, 2], [-3, 400], [0.1, 7]])
    assert data.classes == ("cat", "dog")
    assert data.y.tolist() == [0, 1, 0]
    assert data.groups is not None
    assert data.groups.tolist() == ["x", "y", "x"]
    assert data.name == "own"


def test_both_csv_readers_agree_to_the_last_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2000, 7)) * 10.0 ** rng.integers(-8, 8, (2000, 7)), rng.integers(0, 4, 2000)
    header = ",".join([*"abcdefg", "y"])
    rows = "\n".join(",".join([*map(repr, row.tolist()), str(label)]) for row, label in zip(x, y, strict=True))
    path = write(tmp_path / "own.csv", f"{header}\n{rows}\n")
    with_arrow = open_path(path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    without = open_path(path)
    np.testing.assert_array_equal(with_arrow.x, x)
    np.testing.assert_array_equal(without.x, x)
    np.testing.assert_array_equal(without.y, y)
    assert with_arrow.classes == without.classes == (0, 1, 2, 3)
    assert with_arrow.fingerprint == without.fingerprint


BAD = "a,b,label\n1,2,u\n,2,v\n1,two,u\n1,2\n1,nan,v\n5,6,v\n1,2,\n\n1,-inf,u\n7,8,u\n"


REASONS = [
    "line 3: column 'a' is empty",
    "line 4: column 'b' holds 'two', not a number",
    "line 5: 2 values for 3 columns",
    "line 6: column 'b' is nan",
    "line 8: column 'label' is empty",
]


def test_bad_rows_are_refused_by_line(tmp_path: Path, arrow: bool) -> None:
    with pytest.raises(InvalidData, match="6 bad rows") as failure:
        open_path(write(tmp_path / "own.csv", BAD))
    for reason in REASONS:
        assert reason in str(failure.value)
    assert "and 1 more" in str(failure.value)


def test_bad_rows_are_skipped(tmp_path: Path, arrow: bool) -> None:
    with pytest.warns(Skipped, match="skipped 6 bad rows .*line 3: column 'a' is empty"):
        data = open_path(write(tmp_path / "own.csv", BAD), on_bad="skip")
    np.testing.assert_array_equal(data.x, [[1, 2], [5, 6], [7, 8]])
    assert [data.classes[i] for i in data.y] == ["u", "v", "u"]


@pytest.mark.parametrize("bad", ["NA", "null", "true", "", "2024-01-01", "1,5"])
def test_one_bad_cell_is_found_by_both_readers(tmp_path: Path, arrow: bool, bad: str) -> None:
    with pytest.raises(InvalidData, match=r"1 bad row in .*line 3: "):
        open_path(write(tmp_path / "own.csv", f"a,label\n1,u\n{bad},v\n3,u\n"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a,b\n1,2\n", "no column named label, y, target, class"),
        ("label\n1\n", "no feature columns"),
        ("a,label\n", "holds no usable row"),
        ("a,label\n1,0.5\n2,1.5\n", "labels are whole or names"),
        ("a,label\n1,u\n2,u\n", "at least two"),
    ],
)
def test_tables_that_make_no_sense(tmp_path: Path, arrow: bool, text: str, reason: str) -> None:
    with pytest.raises(InvalidData, match=reason):
        open_path(write(tmp_path / "own.csv", text))


def test_columns_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "own.csv", "a,site,kind,label\n1,s,0,5\n2,t,1,6\n")
    data = open_path(path, label="kind", client="site")
    np.testing.assert_array_equal(data.x, [[1, 5], [2, 6]])
    with pytest.raises(UnknownName, match="did you mean 'kind'"):
        open_path(path, label="kinds")


def test_text_that_is_not_utf8(tmp_path: Path, arrow: bool) -> None:
    path = tmp_path / "own.csv"
    path.write_bytes("a,label\n1,caf\xe9\n2,th\xe9\n".encode("latin-1"))
    with pytest.raises(InvalidData, match="is not UTF-8"):
        open_path(path)


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "own.parquet"
    table = {"a": [1.5, -3.0, 0.1], "client": ["x", "y", "x"], "b": [2, 400, 7], "label": ["cat", "dog", "cat"]}
    pq.write_table(pa.table(table), path)
    data = open_path(path)
    assert data.fingerprint == open_path(write(tmp_path / "own.csv", GOOD)).fingerprint
    np.testing.assert_array_equal(data.x, [[1.5, 2], [-3, 400], [0.1, 7]])


def test_parquet_with_bad_rows(tmp_path: Path) -> None:
    path = tmp_path / "own.parquet"
    pq.write_table(pa.table({"a": [1.0, None, 3.0, float("nan"), 5.0], "y": [0, 1, None, 0, 1]}), path)
    with pytest.raises(
        InvalidData, match=r"3 bad rows .*row 2: column 'a' is empty or NaN; row 3: label or client is empty"
    ):
        open_path(path)
    with pytest.warns(Skipped):
        data = open_path(path, on_bad="skip")
    assert data.x.tolist() == [[1.0], [5.0]]
    assert data.y.tolist() == [0, 1]


def test_parquet_that_is_none_and_one_with_texts(tmp_path: Path) -> None:
    path = tmp_path / "own.parquet"
    path.write_bytes(b"not parquet at all")
    with pytest.raises(InvalidData, match="is not a Parquet file"):
        open_path(path)
    pq.write_table(pa.table({"city": ["a", "b"], "y": [0, 1]}), path)
    with pytest.raises(InvalidData, match=r"column 'city' of .* holds string, not numbers"):
        open_path(path)


def test_without_pyarrow_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"pip install 'fedgram\[tables\]'"):
        open_path(write(tmp_path / "own.parquet", ""))


def test_paths_and_choices_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="does not exist"):
        open_path(tmp_path / "nowhere.csv")
    with pytest.raises(InvalidData, match="is not of a known kind"):
        open_path(write(tmp_path / "own.docx", ""))
    with pytest.raises(InvalidParameter, match="on_bad must be one of refuse, skip; got 'ignore'"):
        open_path(tmp_path, on_bad="ignore")  # type: ignore[arg-type]


def test_pyarrow_reads_from_memory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a Python file object, its threads may need the interpreter after its end: an occasional abort."""
    given, read_csv = [], arrow_csv.read_csv

    def spied(source: object, **options: object) -> object:
        given.append(type(source))
        return read_csv(source, **options)

    monkeypatch.setattr(arrow_csv, "read_csv", spied)
    open_path(write(tmp_path / "own.csv", GOOD))
    assert given == [pa.BufferReader]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("a,label,label", "column 'label' occurs twice"),
        ("a, a,label", "column 'a' occurs twice"),
        ("a,label,Label", "has both 'label' and 'Label': say which is the label column"),
        ("a,client,Client,y", "has both 'client' and 'Client'"),
    ],
)
def test_two_columns_of_one_name_are_refused(tmp_path: Path, arrow: bool, header: str, reason: str) -> None:
    row = ",".join("1" * (header.count(",") + 1))
    with pytest.raises(InvalidData, match=reason):
        open_path(write(tmp_path / "own.csv", f"{header}\n{row}\n{row}\n"))


@pytest.mark.parametrize("cell", ["0x10", "0X1F", "1e5x", "--1"])
def test_both_readers_agree_on_what_a_number_is(tmp_path: Path, arrow: bool, cell: str) -> None:
    with pytest.raises(InvalidData, match=f"1 bad row in .*line 2: column 'a' holds '{cell}', not a number"):
        open_path(write(tmp_path / "own.csv", f"a,label\n{cell},u\n2,v\n"))


def test_what_looks_like_an_identifier_is_named(tmp_path: Path, arrow: bool) -> None:
    rows = "".join(f"{1000 + i},{i % 7},{i},{i / 3},{'uv'[i % 2]}\n" for i in range(30))
    with pytest.warns(Doubtful, match=r"columns 'patient_id', 'number' of .* look like identifiers"):
        data = open_path(write(tmp_path / "own.csv", f"patient_id,score,number,weight,label\n{rows}"))
    assert data.about == "features: patient_id, score, number, weight; label: label"
    assert data.columns == ("patient_id", "score", "number", "weight")


@pytest.mark.parametrize("cell", ["", "NA", "unknown"])
def test_only_bad_rows_are_looked_at_cell_by_cell(
    tmp_path: Path, arrow: bool, monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
    looked: list[list[str]] = []
    why = tables._why_bad

    def counted(row: list[str], roles: Roles, notation: Notation) -> str:
        looked.append(row)
        return why(row, roles, notation)

    monkeypatch.setattr(tables, "_why_bad", counted)
    rows = [f"{i}.5,{'uv'[i % 2]}" for i in range(300)]
    rows[200] = f"{cell},u"
    with pytest.warns(Skipped, match="1 bad row .*line 202: column 'a' "):
        data = open_path(write(tmp_path / "own.csv", "a,label\n" + "\n".join(rows)), on_bad="skip")
    assert looked == [[cell, "u"]]
    assert len(data) == 299


def test_lines_are_counted_past_blank_ones_and_quotes(tmp_path: Path, arrow: bool) -> None:
    text = 'a,label\n1,"two\nlines"\n\n2,v\n\n,u\n'
    with pytest.raises(InvalidData, match="1 bad row in .*line 7: column 'a' is empty"):
        open_path(write(tmp_path / "own.csv", text))


@pytest.mark.filterwarnings("ignore::fedgram.core.errors.Skipped")
@pytest.mark.parametrize("on_bad", ["refuse", "skip"])
def test_a_column_of_texts_is_not_mended_by_skipping_rows(tmp_path: Path, arrow: bool, on_bad: OnBad) -> None:
    path = write(tmp_path / "own.csv", "a,city,label\n1,Paris,u\n2,Rome,v\n3,Bern,u\n")
    with pytest.raises(InvalidData, match="Take column 'city' out or write num") as failure:
        open_path(path, on_bad=on_bad)
    assert "skip" not in str(failure.value)
    assert "if it names the clients, say --client-column" in str(failure.value)
    data = open_path(path, client="city")
    assert data.columns == ("a",)

"""Tables in blocks: the same cells wherever the file is cut, and rows that no reader can lay out."""

import csv
import io
import random
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedgram.core.errors import InvalidData
from fedgram.data.own import csvfiles
from fedgram.data.own.blocks import open_table
from fedgram.data.own.cells import Coded, parse_numbers
from fedgram.data.own.files import open_path
from support.campaign import size
from support.data import write

TEXT = st.text(alphabet='ab,;"\n é', max_size=6)
NUMBER = st.one_of(st.floats(allow_nan=False, width=32).map(repr), st.sampled_from(["", "NA", "x", " 7", "-0.5e3"]))


def whole(path: Path, numbers: list[str], texts: list[str]) -> tuple[list[list[float]], list[list[str]], list[int]]:
    """Return all numbers (NaN as -1e300), all texts, and the places of bad cells of the first number."""
    found: list[list[float]] = [[] for _ in numbers]
    cells: list[list[str]] = [[] for _ in texts]
    bad: list[int] = []
    for block in open_table(path).blocks(numbers, texts):
        for column, name in zip(found, numbers, strict=True):
            column.extend(np.where(np.isnan(values := block.numbers[name]), -1e300, values).tolist())
        for column, name in zip(cells, texts, strict=True):
            column.extend(block.texts[name].tolist())
        bad += [block.start + row for row in np.flatnonzero(block.bad.get(numbers[0], np.zeros(0)))]
    return found, cells, bad


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(NUMBER, TEXT, TEXT), min_size=1, max_size=30),
    size=st.integers(1, 60),
    parsed=st.integers(1, 100),
    newline=st.sampled_from(["\n", "\r\n"]),
    mark=st.sampled_from(["", "\ufeff"]),
)
def test_wherever_the_file_is_cut(tmp_path, monkeypatch, arrow, rows, size, parsed, newline, mark):
    monkeypatch.setattr(csvfiles, "BYTES", size)
    monkeypatch.setattr(csvfiles, "PARSED", parsed)
    file = io.StringIO()
    csv.writer(file, lineterminator=newline).writerows([("a", "b", "c"), *rows])
    path = tmp_path / "own.csv"
    path.write_bytes((mark + file.getvalue() + newline * 2).encode())
    found, cells, bad = whole(path, ["a"], ["b", "c"])
    while rows and not any(cell.strip(" ") for cell in rows[-1]):  # lines of empty cells at the end are not rows
        rows = rows[:-1]
    assert cells == [[row[1] for row in rows], [row[2] for row in rows]]
    wanted, none = parse_numbers([row[0] for row in rows])
    infinite = np.isinf(found[0])  # which are left to callers
    np.testing.assert_array_equal(np.where(infinite, -1e300, found[0]), np.nan_to_num(wanted, nan=-1e300))
    assert sorted({*bad, *np.flatnonzero(infinite)}) == np.flatnonzero(none).tolist()


def test_lines_that_end_as_they_did_long_ago(tmp_path, arrow, monkeypatch):
    monkeypatch.setattr(csvfiles, "BYTES", 8)
    path = tmp_path / "own.csv"
    path.write_bytes(b"a,y\r1,u\r2,v\r3,u\r")
    assert whole(path, ["a"], ["y"]) == ([[1, 2, 3]], [["u", "v", "u"]], [])


def test_an_inch_mark_in_a_cell_encloses_nothing(tmp_path, arrow, monkeypatch):
    monkeypatch.setattr(csvfiles, "BYTES", 64)
    rows = [f"{k},pipe" for k in range(2000)]
    rows[100], rows[300], rows[301] = '100,5" pipe', '300,"of 5"" and\nmore"', '301,"""x"""'
    path = write(tmp_path / "own.csv", "a,what\n" + "\n".join(rows) + "\n")
    pieces = csvfiles._pieces(path, csvfiles.read_header(path), 64)
    assert max(len(piece.content) for piece in pieces) <= 64
    found, cells, bad = whole(path, ["a"], ["what"])
    assert found == [list(range(2000))]
    assert [cells[0][k] for k in (100, 300, 301)] == ['5" pipe', 'of 5" and\nmore', '"x"']
    assert not bad


def test_line_ends_in_cells_are_kept_wherever_pyarrow_ends_a_block(tmp_path, arrow, monkeypatch):
    text = "x\r\n" * 20
    with (tmp_path / "own.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("a", "note"), (1, text), (2, text)])
    for parsed in range(2, 60):
        monkeypatch.setattr(csvfiles, "PARSED", parsed)
        assert whole(tmp_path / "own.csv", ["a"], ["note"])[1] == [[text, text]]


UNCLOSED = {
    "the last cell": '"oops',
    "a doubled mark": '"oops ""again',
    "marks alone": '"""',
    "closed by the next cell in marks": '"oops\n7,"fine"\n8,"fine"',
    "text behind": '"oops" x',
}


@pytest.mark.parametrize("cell", UNCLOSED.values(), ids=UNCLOSED)
@pytest.mark.parametrize("size", [8, 1 << 12])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_an_unclosed_quotation_mark_swallows_nothing(tmp_path, arrow, monkeypatch, cell, size, newline):
    monkeypatch.setattr(csvfiles, "BYTES", size)
    rows = [f"{k},fine" for k in range(1000)]
    rows[3], rows[100] = '3,"two\nlines"', f"100,{cell}"
    path = tmp_path / "own.csv"
    path.write_bytes("\n".join(["a,note", *rows, ""]).replace("\n", newline).encode())
    with pytest.raises(
        InvalidData, match="own.csv, line 103: expected quotation marks around a cell to be closed"
    ) as e:
        whole(path, ["a"], ["note"])
    assert e.value.told == "the table has quotation marks that are not closed"
    with pytest.raises(InvalidData, match="line 103: "):  # also where its column is not requested
        whole(path, ["a"], [])
    with pytest.raises(InvalidData, match="line 103: "):
        open_table(path).find([999])


def test_an_unclosed_quotation_mark_does_not_take_the_file_into_memory(tmp_path, arrow, monkeypatch):
    monkeypatch.setattr(csvfiles, "BYTES", 64)
    monkeypatch.setattr(csvfiles, "MOST_BYTES", 512)
    path = write(tmp_path / "own.csv", 'a,note\n1,fine\n2,"oops\n' + "3,fine\n" * 100_000)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidData, match="line 3: "):
            whole(path, ["a"], ["note"])
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()


def test_an_unclosed_quotation_mark_in_the_header(tmp_path, arrow):
    for header in ('a,"note', 'a,"note" x'):
        with pytest.raises(InvalidData, match="own.csv, line 1: expected quotation marks around a column name"):
            open_table(write(tmp_path / "own.csv", f"{header}\n1,u\n2,v\n"))


PARTS = [
    '"',
    '"',
    '""',
    ",",
    ",",
    ",",
    "\n",
    "\n",
    "\r\n",
    "\r",
    "7",
    "-.5e1",
    "1_0",
    "x",
    "é",
    " ",
    ";",
    "nan(7)",
    "+NaN",
    "\ufeff",  # a byte order mark, as files that were put together have inside
]


def without_last(body):
    """Return the text without lines of empty cells at its end, which are not rows."""
    kept = body.rstrip(", \t\r\n")
    end = re.search("\r\n|\r|\n", body[len(kept) :])
    return "" if not kept else body if end is None else body[: len(kept) + end.end()]


@pytest.mark.campaign
def test_random_files_are_read_as_by_a_strict_reader(tmp_path, arrow, monkeypatch):
    """For any order of marks, delimiters and ends of lines, and any place where the file is cut."""
    rng, path, fine = random.Random(1), tmp_path / "own.csv", 0
    for _ in range(size(1000)):
        quoted = rng.random() < 0.5
        body = "".join(
            f'"{part * 3}"' if quoted and rng.random() < 0.3 and '"' not in part else part
            for part in rng.choices(PARTS, k=rng.randrange(40))
        )
        path.write_bytes(f"a,b\n{body}".encode())
        monkeypatch.setattr(csvfiles, "BYTES", rng.randrange(1, 60))
        monkeypatch.setattr(csvfiles, "PARSED", rng.randrange(2, 100))  # of 1, pyarrow loses rows
        try:
            wanted = [row for row in csv.reader(io.StringIO(without_last(body), newline=""), strict=True) if row]
        except csv.Error:
            with pytest.raises(InvalidData, match=r"line \d+: expected quotation marks"):
                whole(path, ["a"], ["b"])
            continue
        fine += 1
        ragged = np.array([len(row) != 2 for row in wanted], dtype=bool)
        numbers, none = parse_numbers(["" if odd else row[0] for odd, row in zip(ragged, wanted, strict=True)])
        found, cells, bad = whole(path, ["a"], ["b"])
        assert cells == [["" if odd else row[1] for odd, row in zip(ragged, wanted, strict=True)]], body
        np.testing.assert_array_equal(found[0], np.nan_to_num(numbers, nan=-1e300), body)
        assert bad == np.flatnonzero(none | ragged).tolist(), body
    assert fine > size(200)


NUMBERS = {
    "7": 7, " 7\t": 7, "+7": 7, "-7.": -7, "-.5": -0.5, "1E5": 1e5, "1e+05": 1e5, "007": 7, "1e-400": 0,
    "Inf": np.inf, "-INFINITY": -np.inf, "1e400": np.inf, "NaN": np.nan, "-nan": np.nan, "+nAn": np.nan, "": np.nan,
    "1_000": None, "1,000": None, "１２": None, "٣": None, "7\xa0": None, "\x1c7": None, "0x10": None, "1e": None,
    ".": None, "e5": None, "- 7": None, "--7": None, "7f": None, "1d5": None, "nan(7)": None, "infinit": None,
}  # fmt: skip


@pytest.mark.parametrize("others", [[], ["ill"]], ids=["alone", "beside what is not a number"])
def test_what_a_number_is(tmp_path, arrow, others):
    """The same in a CSV file with and without pyarrow, as texts of a Parquet file, and of a table in memory."""
    for cell, number in NUMBERS.items():
        texts = [cell, *others, "1"]
        path = tmp_path / "own.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([("a", "y"), *((text, "u") for text in texts)])
        sources = [path]
        if arrow:
            pq.write_table(pa.table({"a": texts}), tmp_path / "own.parquet")
            sources += [tmp_path / "own.parquet", pa.table({"a": texts})]
        for source in sources:
            [block] = open_table(source).blocks(["a"], [])
            bad = block.bad.get("a", np.zeros(len(texts), dtype=bool))
            value = np.nan if bad[0] and number is None else block.numbers["a"][0]
            if number is not None and np.isinf(number):  # is marked, or left to callers
                assert bad[0] or value == number, (cell, source)
            else:
                assert bad[0] == (number is None), (cell, source)
                np.testing.assert_equal(value, np.nan if number is None else number, f"{cell} {source}")


def test_a_row_of_another_length_spoils_itself_alone(tmp_path, arrow, monkeypatch):
    monkeypatch.setattr(csvfiles, "BYTES", 200)
    rows = [f"{k},u" for k in range(100)]
    rows[40] = "40"
    blocks = list(open_table(write(tmp_path / "own.csv", "a,y\n" + "\n".join(rows))).blocks(["a"], ["y"]))
    ragged = [block.start + row for block in blocks if block.ragged is not None for row in np.flatnonzero(block.ragged)]
    assert ragged == [40]
    assert sum(block.rows for block in blocks) == 100


def test_a_bad_cell_costs_no_other_column(tmp_path, monkeypatch):
    """Pyarrow reads the piece again as texts; Python's reader is not needed."""
    monkeypatch.setattr(csvfiles, "_row_by_row", lambda *_: pytest.fail("read row by row"))
    path = write(tmp_path / "own.csv", "a,b,y\n1,2,u\nx,3,v\n,4,u\n")
    assert whole(path, ["a", "b"], ["y"]) == ([[1, -1e300, -1e300], [2, 3, 4]], [["u", "v", "u"]], [1])


def test_where_rows_are(tmp_path):
    path = write(tmp_path / "own.csv", 'a,y\n1,"two\nlines"\n\n2,v\n3,w\n')
    assert open_table(path).find([0, 2]) == {0: ("line 2", ["1", "two\nlines"]), 2: ("line 6", ["3", "w"])}
    assert open_table(pa.table({"a": [1, 2]})).find([1]) == {1: ("row 2", [])}


@pytest.mark.parametrize("in_memory", [True, False])
def test_columns_of_arrow(tmp_path, monkeypatch, in_memory):
    monkeypatch.setattr("fedgram.data.own.blocks.ROWS", 2)
    table = pa.table(
        {
            " a ": pa.array([1, None, 3, 4, 5]),
            "flag": pa.array([True, False, None, True, True]),
            "word": pa.array(["7", "x", None, "", " 8"]),
            "level": pa.array(["hi", "lo", None, "hi", "lo"]).dictionary_encode(),
            "code": pa.array([10, 20, None, 10, 20]),
        }
    )
    if in_memory:
        source = table.rename_columns([name.strip() for name in table.column_names])
    else:
        pq.write_table(table, tmp_path / "own.parquet", row_group_size=3)
        source = tmp_path / "own.parquet"
    found, cells, bad = whole(source, ["word", "a", "flag"], ["level", "code"])
    assert found == [[7, -1e300, -1e300, -1e300, 8], [1, -1e300, 3, 4, 5], [1, 0, -1e300, 1, 1]]
    assert cells == [["hi", "lo", "", "hi", "lo"], ["10", "20", "", "10", "20"]]
    assert bad == [1]


def test_a_row_group_is_never_in_memory_as_a_whole(tmp_path):
    """Writers make groups of a million rows, which would be gigabytes where there are many columns."""
    rng = np.random.default_rng(0)
    names = list("abcde")
    pq.write_table(pa.table({name: rng.normal(size=400_000) for name in names}), tmp_path / "own.parquet")
    assert pq.ParquetFile(tmp_path / "own.parquet").num_row_groups == 1
    before, most = pa.total_allocated_bytes(), 0
    for _ in open_table(tmp_path / "own.parquet").blocks(names, []):
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < 12 << 20  # a page of each column is 1 MB, all of them are 16


def test_how_much_has_been_read(tmp_path, arrow, monkeypatch):
    monkeypatch.setattr(csvfiles, "BYTES", 50)
    path = write(tmp_path / "own.csv", "a,y\n" + "1,u\n" * 100)
    shares = [block.share for block in open_table(path).blocks(["a"], ["y"])]
    assert shares == sorted(shares)
    assert len(shares) > 5
    assert shares[0] < 0.2
    assert shares[-1] == 1


def test_texts_by_their_values():
    column = Coded.joined([Coded.of(["b", "a", "b"]), Coded.of(["a", "c "])])
    assert column.tolist() == ["b", "a", "b", "a", "c "]
    assert column.stripped().counts() == {"b": 2, "a": 2, "c": 1}
    assert Coded(["u", "u"], np.array([0, 1, 1])).counts() == {"u": 3}
    assert Coded.joined([]).tolist() == []


def test_number_tables_with_two_delimiters_or_decimal_commas(tmp_path, arrow):
    with pytest.raises(InvalidData, match="semicolons and commas between its names: save the table with one of them"):
        open_path(write(tmp_path / "own.csv", "a;b,c;label\n1;2,3;u\n"))
    with pytest.raises(InvalidData, match="line 2: column 'a' holds '1,5', not a number"):
        open_path(write(tmp_path / "own.csv", "a;label\n1,5;u\n2,5;v\n"))


def test_ten_thousand_columns_of_numbers(tmp_path, arrow):
    values = np.random.default_rng(0).normal(size=(3, 10_000)).round(3)
    rows = "\n".join(",".join([*map(str, row), "uvu"[k]]) for k, row in enumerate(values.tolist()))
    header = ",".join([*(f"c{k}" for k in range(10_000)), "y"])
    np.testing.assert_array_equal(open_path(write(tmp_path / "own.csv", f"{header}\n{rows}\n")).x, values)


def test_a_byte_order_mark_inside_a_table_is_part_of_its_cell(tmp_path, arrow, monkeypatch):
    """Files with marks that were put together: pyarrow drops a mark wherever it begins to read."""
    path = write(tmp_path / "own.csv", "\ufeffa,b\n\ufeff1,\ufeffx\n2,y\n\ufeff3,z\n")
    for some in (8, 1 << 20):
        monkeypatch.setattr(csvfiles, "BYTES", some)
        found, cells, bad = whole(path, ["a"], ["b"])
        assert (found, cells, bad) == ([[-1e300, 2, -1e300]], [["\ufeffx", "y", "z"]], [0, 2])
        assert whole(path, ["b"], ["a"])[1] == [["\ufeff1", "2", "\ufeff3"]]


@pytest.mark.parametrize("kind", ["csv", "parquet", "memory"])
def test_a_column_may_be_wanted_as_numbers_and_as_texts(tmp_path, arrow, kind):
    if kind != "csv" and not arrow:
        pytest.skip("needs pyarrow")
    path = write(tmp_path / "own.csv", "ward,b\n1,x\nA,y\n3\n")
    source = path
    if kind != "csv":
        source = pa.table({"ward": ["1", "A", ""], "b": ["x", "y", ""]})
    if kind == "parquet":
        pq.write_table(source, tmp_path / "own.parquet")
        source = tmp_path / "own.parquet"
    [block] = open_table(source).blocks(["ward"], ["b", "ward"])
    np.testing.assert_array_equal(block.numbers["ward"], [1, np.nan, np.nan])
    assert block.texts["ward"].tolist() == ["1", "A", ""]
    assert block.bad["ward"].tolist() == [False, True, kind == "csv"]


def test_times_and_bytes_are_texts_not_numbers(tmp_path):
    """Arrow has times that Python has no object for, zones that the system does not know, and texts without a mark."""
    columns = {
        "ns": pa.array([1, None], pa.timestamp("ns")),
        "far": pa.array([10**18, None], pa.timestamp("us")),
        "zone": pa.array([0, None], pa.timestamp("ms", "Mars/Phobos")),
        "long": pa.array([1500, None], pa.duration("ns")),
        "day": pa.array([1, None], pa.date32()),
        "bytes": pa.array([b"ill", None]),
        "coded": pa.array([1, None], pa.timestamp("ns")).dictionary_encode(),
        "view": pa.array(["ill", None], pa.string_view()),
    }
    table = pa.table(columns)
    pq.write_table(table, tmp_path / "own.parquet")
    for source in (table, tmp_path / "own.parquet"):
        [block] = open_table(source).blocks([], list(columns))
        texts = {name: block.texts[name].tolist() for name in columns}
        assert all(cells[1] == "" for cells in texts.values())
        assert {name: cells[0] for name, cells in texts.items() if name != "far"} == {
            "ns": "1970-01-01 00:00:00.000000001",
            "zone": "1970-01-01 00:00:00.000",
            "long": "1500 ns",
            "day": "1970-01-02",
            "bytes": "ill",
            "coded": "1970-01-01 00:00:00.000000001",
            "view": "ill",
        }
        [block] = open_table(source).blocks(list(columns), [])
        assert all(block.bad[name].tolist() == [True, False] for name in columns)
    with pytest.raises(InvalidData, match="not UTF-8 text"):
        list(open_table(pa.table({"a": [b"\xff"]})).blocks([], ["a"]))


class Frame(dict):
    """A table in memory, as other libraries have them."""

    columns = property(list)

    def __len__(self):
        return len(next(iter(self.values())))


def test_masked_values_and_times_in_memory_are_no_numbers():
    with pytest.raises(InvalidData, match="expected an array without a mask"):
        list(open_table(Frame(a=np.ma.masked_array([1.0, -99.0], [False, True]))).blocks(["a"], []))
    times = Frame(
        when=np.array(["2026-01-31", "NaT"], "M8[ns]"), long=np.array([1, 2], "m8[ns]"), x=np.array([1.0, 2.0])
    )
    [block] = open_table(times).blocks(["when", "long"], [])
    assert {name: marked.tolist() for name, marked in block.bad.items()} == {"when": [True, False], "long": [True] * 2}

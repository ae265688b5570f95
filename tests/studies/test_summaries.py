"""A party's summary of its table, read block by block: equal to its reply in a fit."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest

import fedgram as fg
from fedgram.core.errors import InvalidData, Revealing, Skipped
from fedgram.data.own import blocks, csvfiles
from fedgram.studies import Study, missing_counts, summarize
from fedgram.studies.encoding import read_client
from fedgram.studies.kinds import Category, Flag, Number

STUDY = Study(
    "stroke",
    "diagnosis",
    {
        "age": Number("years", (0, 120), missing="mean"),
        "year": Number(range=(2020, 2030)),
        "sex": Category(("F", "M"), missing="category"),
        "smoker": Flag(missing="flag"),
    },
    ("ill", "well"),
)


def table(path, n, seed=0):
    rng = np.random.default_rng(seed)
    columns = [
        np.where(rng.random(n) < 0.1, "", rng.uniform(0, 120, n).round(2).astype(str)),
        rng.integers(2020, 2031, n).astype(str),
        rng.choice(["F", "M", "NA"], n),
        rng.choice(["yes", "no", ""], n),
        rng.choice(["ill", "well"], n),
    ]
    lines = [",".join(row) for row in zip(*columns, strict=True)]
    path.write_text("age,year,sex,smoker,diagnosis\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture
def north(tmp_path, monkeypatch):
    monkeypatch.setattr(csvfiles, "BYTES", 1000)
    monkeypatch.setattr(blocks, "ROWS", 50)
    return table(tmp_path / "north.csv", 700)


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow"])
def test_the_moments_are_those_of_the_whole_table(north, kind):
    client = read_client(STUDY, "north", north)
    arrow = arrow_csv.read_csv(north)
    pq.write_table(arrow, north.with_suffix(".parquet"))
    source = {"csv": north, "parquet": north.with_suffix(".parquet"), "arrow": arrow}[kind]
    found = summarize(STUDY, "north", source)
    wanted = fg.Moments.of(client.x, client.y, classes=STUDY.classes, features=STUDY.features, columns=STUDY.sent)
    assert found.schema == wanted.schema
    assert found.counts.tolist() == wanted.counts.tolist()
    np.testing.assert_allclose(found.gram, wanted.gram, rtol=1e-12, atol=1e-12 * wanted.n)
    np.testing.assert_allclose(found.cross, wanted.cross, rtol=1e-12, atol=1e-12 * wanted.n)
    assert fg.Moments.from_bytes(found.to_bytes()) == found


def test_how_many_values_are_missing(north):
    rows = [line.split(",") for line in north.read_text().splitlines()[1:]]
    found = missing_counts(STUDY, summarize(STUDY, "north", north))
    for place, name, nothing in ((0, "age", ""), (2, "sex", "NA"), (3, "smoker", "")):
        assert found[name] == {
            label: sum(row[place] == nothing and row[4] == label for row in rows) for label in STUDY.classes
        }
    assert set(found) == {"age", "sex", "smoker"}, "year must not be missing"


def test_a_numeric_outcome(tmp_path):
    study = replace(STUDY, outcome="year", classes=(), columns={**STUDY.columns})
    path = tmp_path / "a.csv"
    path.write_text("age,year,sex,smoker\n" + "".join(f"{k},{2020 + k % 9},F,yes\n" for k in range(30)))
    client, found = read_client(study, "north", path), summarize(study, "north", path)
    assert found.n == 30
    np.testing.assert_allclose(found.gram, client.x.T @ client.x, rtol=1e-12)


def test_bad_rows_are_refused_by_line_or_left_out(north):
    lines = north.read_text().splitlines()
    lines[400] = "ancient,2021,F,yes,ill"
    north.write_text("\n".join(lines))
    with pytest.raises(InvalidData, match="1 bad row in .*line 401: column 'age' must hold numbers") as refused:
        summarize(STUDY, "north", north)
    assert "ancient" not in refused.value.told
    with pytest.warns(Skipped, match="1 bad row"):
        assert summarize(STUDY, "north", north, on_bad="skip").n == 699


def test_a_party_below_the_thresholds_sends_nothing(tmp_path):
    with pytest.raises(InvalidData, match="at least 10 training samples"):
        summarize(STUDY, "tiny", table(tmp_path / "tiny.csv", 9))
    few = table(tmp_path / "few.csv", 60)
    few.write_text(few.read_text().replace("well", "ill") + "3,2021,F,yes,well\n")
    with pytest.raises(InvalidData, match="at least 3 training samples of each class"):
        summarize(STUDY, "few", few)
    loose = replace(STUDY, minimum_samples=3, minimum_cell=1, maximum_columns_per_row=0.0)
    with pytest.warns(Revealing, match="'small' sends sums of 6 samples in 7 columns"):
        summarize(loose, "small", table(tmp_path / "small.csv", 6))


def test_memory_does_not_grow_with_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr(csvfiles, "BYTES", 1 << 16)
    peaks = []
    for n in (4_000, 100_000):
        path = table(tmp_path / "north.csv", n)
        tracemalloc.start()
        summarize(STUDY, "north", path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 1 << 18, peaks  # as numbers, the longer one has 5.6 MB


def test_a_row_of_another_length_is_no_row_of_missing_values(tmp_path):
    """Even where every column may be missing, and no column is a number that would reveal it."""
    study = replace(STUDY, columns={name: STUDY.columns[name] for name in ("sex", "smoker")})
    path = tmp_path / "a.csv"
    path.write_text("sex,smoker,diagnosis\n" + "F,yes,ill\n" * 20 + "M,no,well,3\n")
    with pytest.raises(InvalidData, match="line 22: a row must have a value for each column"):
        summarize(study, "north", path)

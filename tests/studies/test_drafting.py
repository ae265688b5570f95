"""Drafts of a study: columns of numbers are read as numbers, and nothing of them is missed."""

import numpy as np
import pytest

from fedgram.data.own import blocks
from fedgram.experiments import Scenario
from fedgram.studies import Study
from fedgram.studies.drafting import draft
from fedgram.studies.encoding import read_client
from fedgram.studies.kinds import Category, Flag, Ignore, Number

LATE = 300  # rows before a surprise, more than are looked at first


def table(path, **columns):
    names, cells = list(columns), zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(names), *(",".join(map(str, row)) for row in cells)]) + "\n")
    return path


def of_many(first, then, rows=400):
    """Return cells that are of one kind at first, and then of another."""
    return [first(k) if k < LATE else then(k) for k in range(rows)]


@pytest.fixture
def odd(tmp_path):
    rng = np.random.default_rng(0)
    return table(
        tmp_path / "odd.csv",
        age=rng.integers(20, 90, 400),
        pressure=of_many(lambda k: f"{100 + k / 7:.2f}", lambda k: "high" if k == 350 else k / 3),
        code=of_many(lambda k: k % 3, lambda k: "abc"[k % 3]),
        smoker=of_many(lambda k: k % 2, lambda k: ""),
        yes=of_many(lambda k: "01", lambda k: "0.0"),
        row=range(400),
        huge=of_many(lambda k: k / 7, lambda k: "inf" if k == 399 else k / 7),
        label=["ill" if k % 2 else "well" for k in range(400)],
    )


@pytest.mark.parametrize("arrow", [True, False])
def test_surprises_after_the_first_rows_are_seen(odd, arrow, monkeypatch):
    if not arrow:
        monkeypatch.setattr("fedgram.data.own.csvfiles._arrow", lambda: None)
    found = draft(odd)
    columns = found.study.columns
    assert isinstance(columns["age"], Number)
    assert columns["pressure"].range[0] <= 100
    assert found.notes["pressure"] == "1 cells here are not numbers: mend them"
    assert columns["code"] == Category(("0", "1", "2", "a", "b", "c"))
    assert columns["smoker"] == Flag(missing="mean")
    assert columns["yes"] == Flag(missing="refuse")
    assert columns["row"] == Ignore()
    assert "1 cells here are not numbers" in found.notes["huge"]
    assert Study.parse(found.text) == found.study


def test_a_run_parses_its_table_at_most_twice(tmp_path, monkeypatch):
    labels, sexes = ["ab"[k // 30] for k in range(60)], ["FM"[k % 2] for k in range(60)]
    path = table(tmp_path / "own.csv", age=[20 + k % 40 for k in range(60)], sex=sexes, label=labels)
    asked = []
    read = blocks.csv_blocks
    monkeypatch.setattr(blocks, "csv_blocks", lambda *options: asked.append(options) or read(*options))
    scenario = Scenario(data=str(path), clients=2, partition="iid", drop="sex")
    assert len(scenario.prepare().clients) == 2
    assert len(asked) == 2


def test_a_draft_does_not_show_the_smallest_and_the_largest_value(tmp_path):
    path = table(tmp_path / "own.csv", age=[23 + k for k in range(64)], label=["ab"[k % 2] for k in range(64)])
    found = draft(path, columns=["age"])
    assert found.study.columns["age"].range == (0, 200)
    assert not any(number in found.text for number in ("23", "86", "87"))
    assert "DECIDE" in next(line for line in found.text.splitlines() if line.startswith("range"))


def test_a_unit_in_a_header_becomes_the_columns_unit(tmp_path):
    """All parties whose headers have the same unit, or none, can then use the study."""
    header = ["age [years]", "crp (mg/l)", "smoker (now)", "bp", "bp [mmHg]", "Case (id)"]
    rows = [f"{20 + k % 9},{k / 7},{'yn'[k % 2]},{k % 5},{k % 7},x{k % 4}" for k in range(40)]
    path = tmp_path / "own.csv"
    path.write_text("\n".join([",".join([*header, "days [d]"]), *(f"{row},{k / 3}" for k, row in enumerate(rows))]))
    study = draft(path, "days", ignore=["Case"]).study
    kept = {name: getattr(column, "unit", None) for name, column in study.columns.items()}
    assert kept == {
        "age": "years",
        "crp": "mg/l",
        "smoker (now)": None,
        "bp": "",
        "bp [mmHg]": "",  # there is a column bp, too
        "Case (id)": None,
        "days": "d",
    }
    assert study.outcome == "days"
    assert Study.parse(draft(path, "days [d]", ignore=["Case (id)"]).text) == study
    assert len(read_client(study, "own", path).y) == 40


def test_gaps_are_allowed_only_where_there_are_some(tmp_path):
    cells = {name: [f"{k % 7}" for k in range(40)] for name in ("a", "b")}
    flags = {name: ["01"[k % 2] for k in range(40)] for name in ("c", "d")}
    cells["b"][3] = flags["d"][4] = ""
    found = draft(table(tmp_path / "own.csv", **cells, **flags, label=["xy"[k % 2] for k in range(40)]))
    assert {name: column.missing for name, column in found.study.columns.items()} == {
        "a": "refuse",
        "b": "mean",
        "c": "refuse",
        "d": "mean",
    }
    assert found.text.count("no gap here") == 2

"""The forms of a regression table."""

import csv
import io
import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from fedgram.core import extras
from fedgram.core.errors import MissingExtra
from fedgram.core.escaping import unguarded
from fedgram.inference.table import (
    INTERCEPT,
    Coefficient,
    Coefficients,
    Gap,
    Heterogeneity,
    JointTest,
    RandomIntercept,
    SiteEstimate,
    Sites,
)

HOSTILE = "=cmd|' /C calc'!A1 & <b>50 %_x\x1b[2J"
ROWS = (
    Coefficient(INTERCEPT, "", 12.5, 0.5, 25.0, 1e-12, 11.5, 13.5),
    Coefficient("sex=F", "sex", -1.25e-7, 1e-8, -12.5, 0.0421, -1.5e-7, -1.0e-7),
    Coefficient(HOSTILE, HOSTILE, 3.0, 1.0, 3.0, 0.0005, 1.0, 5.0),
)
TABLE = Coefficients(
    "linear",
    "cost",
    "EUR",
    "Random intercept, REML",
    "classical",
    ROWS,
    (JointTest("sex", 4.5, 2, 97.0, 0.0135),),
    level=0.9,
    df=97.0,
    summary={"n": 100, "r_squared": 0.25, "f_p": 1e-9},
    vif={"sex=F": 1.5},
    aliased=("late",),
    notes=("A sentence. " * 20,),
    sites=Sites(
        {"north": 60, "south": 40},
        "random",
        random=RandomIntercept("reml", 4.0, 1.0, 0.2, 321.5, {"north": 0.5, "south": -0.5}, 3.0, 0.04),
    ),
    heterogeneity=(
        Heterogeneity("sex=F", (SiteEstimate("north", 1.0, 0.5),), {"south": "too few"}, 1.0, 0.5, None, 0, None, None),
        Heterogeneity("late", (), {"north": "x", "south": "x"}, None, None, None, 0, None, None),
    ),
    missing=(Gap("crp", "north", 3, "imputed"), Gap("bmi", "", 2, "flagged")),
)


def test_text_has_all_parts_in_aligned_columns():
    text = str(TABLE)
    lines = text.splitlines()
    assert lines[0].strip() == "Linear regression of cost [EUR]"
    assert "\x1b" not in text
    head = next(line for line in lines if "std err" in line)
    assert head.split() == ["coef", "std", "err", "t", "P>|t|", "[0.05", "0.95]"]
    body = lines[lines.index(head) + 2 :][:3]
    assert len({len(line) for line in [head, *body]}) == 1
    assert body[0].split() == ["(intercept)", "12.5000", "0.500", "25.000", "<0.001", "11.500", "13.500"]
    assert body[1].split() == ["sex=F", "-1.25e-07", "1e-08", "-12.500", "0.042", "-1.5e-07", "-1e-07"]
    for part in ("Joint tests", "2, 97", "Variance inflation", "Missing cells", "all sites", "BLUP", "ICC", "321.5000"):
        assert part in text
    assert max(map(len, lines)) <= len(head)
    assert "None" not in text


def test_csv_has_all_digits_and_no_formulas():
    rows = list(csv.DictReader(io.StringIO(TABLE.to_csv())))
    assert [float(row["estimate"]) for row in rows] == [row.estimate for row in ROWS]
    assert float(rows[1]["p"]) == 0.0421
    assert rows[2]["term"].startswith("'=cmd")
    assert unguarded(rows[2]["term"]) == HOSTILE.replace("\x1b", "\\x1b")


def test_rows_without_errors_have_empty_cells():
    ridge = replace(TABLE, rows=(Coefficient("age", "age", 2.0),))
    [row] = csv.DictReader(io.StringIO(ridge.to_csv()))
    assert (row["estimate"], row["se"], row["p"]) == ("2.0", "", "")
    assert "None" not in ridge.text() + ridge.to_latex() + ridge._repr_html_()


def test_odds_ratios_are_exponents_of_the_interval():
    logistic = replace(TABLE, kind="logistic", df=None, joint=(JointTest("sex", 9.0, 2, None, 0.01),))
    row = next(csv.DictReader(io.StringIO(logistic.to_csv())))
    assert float(row["ratio"]) == pytest.approx(268337.2865, rel=1e-9)
    assert "odds ratio" in logistic.text()
    assert "P>|z|" in logistic.text()
    assert "P>chi2" in logistic.text()
    assert logistic.to_dict()["rows"][0]["ratio_low"] == pytest.approx(98715.77101, rel=1e-9)


def test_latex_escapes_names():
    latex = TABLE.to_latex()
    assert latex.count(r" \\") == 4
    assert r"\& \textless{}b\textgreater{}50 \%\_x" in latex
    assert r"\caption{Linear regression of cost [EUR]}" in latex


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], set(), ""

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_html_is_well_formed_and_escapes_names():
    tags = Tags()
    tags.feed(TABLE._repr_html_())
    assert not tags.open
    assert "b" not in tags.seen
    assert "<b>50 %_x" in tags.text


def test_dict_is_json_and_has_every_field():
    found = json.loads(json.dumps(TABLE.to_dict(), allow_nan=False))
    assert found["rows"][1] == {
        "term": "sex=F",
        "column": "sex",
        "estimate": -1.25e-7,
        "se": 1e-8,
        "statistic": -12.5,
        "p": 0.0421,
        "low": -1.5e-7,
        "high": -1e-7,
    }
    assert found["sites"]["random"]["effects"] == {"north": 0.5, "south": -0.5}
    assert found["missing"][0] == {"column": "crp", "site": "north", "cells": 3, "treatment": "imputed"}
    endless = replace(TABLE, summary={"f": float("inf")})
    assert endless.to_dict()["summary"] == {"f": None}


def test_rows_are_found_by_term():
    assert TABLE["sex=F"] is ROWS[1]
    with pytest.raises(KeyError):
        TABLE["sex"]


def test_a_pandas_frame_has_a_row_for_each_term():
    pytest.importorskip("pandas")
    frame = TABLE.to_pandas()
    assert list(frame.index) == [row.term for row in ROWS]
    assert frame.loc["sex=F", "p"] == 0.0421


def test_pandas_is_asked_for_by_name_where_it_is_missing(monkeypatch):
    def missing(name):
        raise ImportError("none", name=name)

    monkeypatch.setattr(extras.importlib, "import_module", missing)
    with pytest.raises(MissingExtra, match=r"pip install 'fedgram\[pandas\]'"):
        TABLE.to_pandas()

"""Commands of a logistic regression by files: rounds, the table and its forms, and wrong options."""

import csv
import io
import json

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.errors import InvalidData, InvalidParameter, Separated, UnknownName
from fedgram.studies import Study
from fedgram.studies.encoding import read_client
from support.command import fedgram, run, told
from support.exchange import PARTIES

SUMMARIES = [f"{name}.fgm" for name in PARTIES]
OPTIONS = ("publish", "store", "--method", "logistic", "--set", "event=ill", "--set", "columns=age,sex,smoker")


@pytest.fixture
def store(folder):
    """Return a folder with a store that all parties have joined."""
    for name in PARTIES:
        fedgram("summarize", "study.toml", f"{name}.csv", "--key", f"{name}.key")
    fedgram("join", "store", *SUMMARIES)
    return folder


def published(*options):
    """Answer rounds until there is a model; return the number of rounds."""
    for rounds in range(25):
        found = told(*options)
        if "round" not in found:
            return rounds
        file = found["file"]
        for name in PARTIES:
            fedgram("summarize", "study.toml", f"{name}.csv", "--key", f"{name}.key", "--round", file)
        fedgram("join", "store", *(f"{name}-{file}" for name in PARTIES))
    raise AssertionError("no end")


def test_a_logistic_regression_from_summaries_to_its_table(store):
    sm = pytest.importorskip("statsmodels.api")
    with pytest.raises(InvalidData, match="expected a published regression by logistic or poisson, got none; make one"):
        fedgram("coefficients", "store")
    rounds = published(*OPTIONS)
    assert 3 <= rounds <= 8
    table = told("coefficients", "store")
    study = Study.read("study.toml")
    clients = [read_client(study, name, f"{name}.csv") for name in PARTIES]
    x = np.concatenate([client.x for client in clients])
    ill = np.concatenate([np.asarray(client.y) == "ill" for client in clients]).astype(float)
    sent = dict(zip(study.sent, x.T, strict=True))
    known = sent["smoker missing"] == 0
    smoker = np.where(known, sent["smoker"], sent["smoker"][known].mean())
    columns = [60 + 60 * sent["age"], sent["sex=M"], sent["sex missing"], smoker, sent["smoker missing"]]
    wanted = sm.Logit(ill, sm.add_constant(np.column_stack(columns))).fit(disp=0, tol=1e-13)
    np.testing.assert_allclose([row["estimate"] for row in table["rows"]], wanted.params, rtol=1e-8)
    np.testing.assert_allclose([row["se"] for row in table["rows"]], wanted.bse, rtol=1e-8)
    np.testing.assert_allclose([row["ratio"] for row in table["rows"]], np.exp(wanted.params), rtol=1e-8)
    assert (table["outcome"], table["summary"]["rounds"]) == ("diagnosis = ill", rounds)
    assert [test["column"] for test in table["joint"]] == ["sex", "smoker"]
    text = fedgram("coefficients", "store", "--level", "0.9")
    assert "Logistic regression of diagnosis = ill" in text
    assert "odds ratio  [0.05  0.95]" in text
    rows = list(csv.DictReader(io.StringIO(fedgram("coefficients", "store", "--csv"))))
    assert float(rows[1]["estimate"]) == table["rows"][1]["estimate"]
    assert r"\begin{tabular}" in fedgram("coefficients", "store", "--method", "logistic", "--latex")
    assert fg.load("global.fgm").coefficients().to_dict()["rows"] == table["rows"]
    assert "covariance of the coefficients" in told("inspect", "global.fgm")["reveals"]
    assert told("evaluate", "global.fgm", "north.csv")["accuracy"] > 0.5
    assert told("publish", *OPTIONS[1:])["version"] == 1


def test_the_table_counts_missing_cells_and_rows_by_site(store):
    """As the table of a linear model does, while the parties are those of the published model."""
    published(*OPTIONS)
    table, study = told("coefficients", "store"), Study.read("study.toml")
    clients = {name: read_client(study, name, f"{name}.csv") for name in PARTIES}
    assert table["sites"]["rows"] == {name: len(client.x) for name, client in clients.items()}
    wanted = set()
    for name, client in clients.items():
        sums = dict(zip(study.sent, np.asarray(client.x).sum(axis=0).tolist(), strict=True))
        for column, treatment in (("sex", "category"), ("smoker", "flagged")):
            if cells := round(sums[f"{column} missing"]):
                wanted.add((column, name, cells, treatment))
    assert len({column for column, *_ in wanted}) == 2
    assert {(gap["column"], gap["site"], gap["cells"], gap["treatment"]) for gap in table["missing"]} == wanted
    assert any("The pooled mean stands in for missing values: smoker." in note for note in table["notes"])
    fedgram("coefficients", "store", "--html", "table.html")
    assert "Missing cells" in (store / "table.html").read_text(encoding="utf-8")
    fedgram("remove", "store", PARTIES[0])
    later = told("coefficients", "store")
    assert (later["missing"], later["sites"]["rows"], later["rows"]) == ([], {}, table["rows"])
    assert "published before parties joined or left" in later["notes"][-1]


def test_wrong_options_are_one_line(store):
    for words, match in (
        (("--set", "columns=age,sox"), "unknown column of the study 'sox'.*did you mean 'sex'"),
        (("--set", "event=sick"), "unknown class for `event` 'sick'"),
        (("--set", "rounds=0"), "rounds: expected"),
    ):
        with pytest.raises((UnknownName, InvalidParameter), match=match):
            fedgram("publish", "store", "--method", "logistic", *words)
    with pytest.raises(InvalidParameter, match="expected counts for poisson, got classes"):
        fedgram("publish", "store", "--method", "poisson")
    with pytest.raises(InvalidData, match="expected a published regression by poisson, got none"):
        fedgram("coefficients", "store", "--method", "poisson")
    with pytest.raises(InvalidParameter, match="method: expected a regression with a table .*, got 'fedgram'"):
        fedgram("coefficients", "store", "--method", "fedgram")
    done = run("publish", "store", "--method", "logistic", "--set", "event=sick")
    assert (done.returncode, len(done.stderr.splitlines()), "Traceback" in done.stderr) == (2, 1, False)
    assert not (store / "round-1.fgm").exists()


def test_options_of_linear_models_are_refused_with_the_remedy(store):
    published(*OPTIONS)
    for words in (("--columns", "age"), ("--site-effects", "fixed"), ("--robust", "site"), ("--ridge", "1")):
        with pytest.raises(InvalidParameter, match="no options but the level for the table of logistic, got others"):
            fedgram("coefficients", "store", *words)


def test_separation_is_one_line_with_the_column(store):
    for name in PARTIES:
        lines = (store / f"{name}.csv").read_text().splitlines()
        cells = [line.split(",") for line in lines]
        for row in cells[1:]:
            row[3] = "M" if row[5] == "ill" else "F"
        (store / f"{name}.csv").write_text("\n".join(map(",".join, cells)) + "\n")
        fedgram("summarize", "study.toml", f"{name}.csv", "--key", f"{name}.key", "--force")
    fedgram("join", "store", *SUMMARIES, "--replace")
    with pytest.raises(Separated, match="separation by column 'sex': all [0-9]+ rows in which .* have one class"):
        fedgram("publish", "store", "--method", "logistic")


def test_a_run_prints_the_table(store):
    data = ",".join(f"{name}.csv" for name in PARTIES)
    words = ("run", "--data", data, "--study", "study.toml", "--method", "logistic", "--test-fraction", "0.1")
    text = fedgram(*words)
    assert "Logistic regression of diagnosis = well" in text
    assert "Maximum likelihood, Newton's method" in text
    found = json.loads(fedgram(*words, "--json", "--level", "0.9"))
    [table] = found["coefficients"]
    assert table["level"] == 0.9
    assert found["method"] == "logistic"

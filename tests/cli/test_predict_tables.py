"""`fedgram predict` with keys and probabilities, and with models that carry their study."""

import csv
import io
import json
import sys
import tracemalloc
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import fedgram as fg
from fedgram.cli import app
from fedgram.core import wire
from fedgram.core.classes import NUMERIC
from fedgram.core.errors import InvalidData, InvalidParameter, Mismatch, Skipped, UnknownName
from fedgram.data.own import csvfiles
from fedgram.models import LinearModel
from fedgram.moments.targets import NumericTargets
from fedgram.pipeline import Pipeline
from fedgram.studies import Study
from fedgram.studies.encoding import read_client
from fedgram.studies.kinds import Category, Ignore, Number
from fedgram.studies.model import StudyModel, judge
from support.campaign import examples
from support.data import write

STUDY = Study(
    "stroke",
    "diagnosis",
    {
        "age": Number("years", (0, 120), missing="mean"),
        "sex": Category(("F", "M")),
        "patient_id": Ignore(),
    },
    ("ill", "well"),
    minimum_samples=1,
    minimum_cell=1,
)


def predict(*arguments: object):
    done = CliRunner().invoke(app, ["predict", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def rows(n: int, seed: int = 0) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    ages, sexes = rng.uniform(20, 90, n), rng.choice(["F", "M"], n)
    ill = ages + 5 * rng.normal(size=n) > 55
    return [
        [f"W{k}", f"{age:.1f}", sex, "ill" if old else "well"]
        for k, (age, sex, old) in enumerate(zip(ages, sexes, ill, strict=True))
    ]


def table(path, found, header=("patient_id", "age", "sex", "diagnosis")):
    return write(path, "".join(",".join(row) + "\n" for row in [header, *found]))


@pytest.fixture
def fit(tmp_path):
    clients = [
        read_client(STUDY, name, table(tmp_path / f"{name}.csv", rows(60, seed)))
        for seed, name in enumerate(("north", "south"))
    ]
    fit = fg.FedGram().fit(clients, study=STUDY, classes=STUDY.classes)
    fit.save(tmp_path / "fit.fedgram")
    return fit


# Another order of columns, no outcome, and rows of every flaw.
NEW = "sex,patient_id,age\nF,a,30\nM,b,old\nM,c,80\nX,d,40\nF,e,\nF,f,130\nM,g\nF,h,85\n"


def test_each_row_has_its_line(tmp_path, fit):
    done = predict(tmp_path / "fit.fedgram", write(tmp_path / "new.csv", NEW), "--id", "patient_id")
    found = read(done.stdout)
    assert list(found[0]) == ["patient_id", "diagnosis", "p(ill)", "p(well)", "problem"]
    assert [row["patient_id"] for row in found] == ["a", "b", "c", "d", "e", "f", "", "h"]
    assert [row["diagnosis"] for row in found] == ["well", "", "ill", "", found[4]["diagnosis"], "", "", "ill"]
    assert [bool(row["problem"]) for row in found] == [False, True, False, True, False, True, True, False]
    assert found[3]["problem"] == "column 'sex' must be one of 'F', 'M', got X"
    assert "must be from 0 to 120 years, got 130" in found[5]["problem"]
    assert "4 of 8 samples are bad: their lines say what is wrong" in done.stderr
    good = write(tmp_path / "good.csv", "age,sex,patient_id\n30,F,a\n80,M,c\n,F,e\n85,F,h\n")
    want = fit.predictor().predict_proba(good)
    got = [[float(row[f"p({name})"]) for name in STUDY.classes] for row in found if not row["problem"]]
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_of_whom_the_model_is(tmp_path, fit):
    new = table(tmp_path / "new.csv", rows(30, 7))
    for name in (None, "north", "south"):
        asked = [] if name is None else ["--client", name]
        found = read(predict(tmp_path / "fit.fedgram", new, *asked).stdout)
        want = fit.predictor(name).predict_proba(new)
        np.testing.assert_allclose([float(row["p(ill)"]) for row in found], want[:, 0], rtol=1e-5)
    with pytest.raises(UnknownName, match="'nort': did you mean 'north'"):
        predict(tmp_path / "fit.fedgram", new, "--client", "nort")


def test_a_model_alone_carries_its_study(tmp_path, fit):
    new = table(tmp_path / "new.csv", rows(30, 7))
    (tmp_path / "own").write_bytes(wire.encode(STUDY.model(fit.personal["north"])))
    assert predict(tmp_path / "own", new).stdout == predict(tmp_path / "fit.fedgram", new, "--client", "north").stdout
    (tmp_path / "bare").write_bytes(wire.encode(fit.personal["north"]))
    with pytest.raises(InvalidParameter, match=r"without that study: save study.model\(model\)"):
        predict(tmp_path / "bare", new)
    with pytest.raises(InvalidParameter, match="leave the client out"):
        predict(tmp_path / "own", new, "--client", "north")


def test_files_and_json(tmp_path, fit):
    labelled = rows(40, 3)
    labelled[4][3] = ""  # not known, which is allowed here
    labelled[6][2] = "?"
    new, model = table(tmp_path / "new.csv", labelled), tmp_path / "fit.fedgram"
    printed = predict(model, new, "--id", "patient_id")
    done = predict(model, new, "--id", "patient_id", "--out", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == printed.stdout
    assert done.stdout == ""
    told = json.loads(predict(model, new, "--json").stdout)
    assert (told["samples"], told["bad"]) == (40, 1)
    labels = [row["diagnosis"] or None for row in read(printed.stdout)]
    assert told["labels"] == labels
    judged = [(a, row[3]) for a, row in zip(labels, labelled, strict=True) if a and row[3]]
    assert told["accuracy"] == pytest.approx(np.mean([a == b for a, b in judged]))
    assert f"{told['accuracy']:.2%} of 38 samples are right" in done.stderr
    assert "labels" not in json.loads(predict(model, new, "--json", "--out", tmp_path / "out.csv", "--force").stdout)


def test_bad_rows_can_be_refused(tmp_path, fit):
    new = write(tmp_path / "new.csv", NEW)
    with pytest.raises(InvalidData, match=r"4 bad rows in .*: line 3: column 'age' must hold numbers, got .*; line 5"):
        predict(tmp_path / "fit.fedgram", new, "--on-bad", "refuse", "--out", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
    late = write(tmp_path / "late.csv", "age,sex\n" + "30,F\n" * 5000 + "x,F\n")
    done = CliRunner().invoke(app, ["predict", str(tmp_path / "fit.fedgram"), str(late), "--on-bad", "refuse"])
    assert isinstance(done.exception, InvalidData)
    assert done.stdout == ""  # not even the lines of the good rows before it
    assert (
        predict(tmp_path / "fit.fedgram", new, "--on-bad", "skip").stdout
        == predict(tmp_path / "fit.fedgram", new).stdout
    )


@pytest.mark.parametrize(
    ("option", "told"), [("--label", "--outcome"), ("--outcome", "--outcome"), ("--backbone", "--backbone")]
)
def test_a_study_says_what_is_what(tmp_path, fit, option, told):
    with pytest.raises(InvalidParameter, match=f"leave out {told} sex"):
        predict(tmp_path / "fit.fedgram", write(tmp_path / "new.csv", NEW), option, "sex")


def test_columns_that_do_not_fit(tmp_path, fit):
    with pytest.raises(Mismatch, match="no id column 'name'"):
        predict(tmp_path / "fit.fedgram", write(tmp_path / "new.csv", NEW), "--id", "name")
    with pytest.raises(Mismatch, match="unknown column 'weight'"):
        predict(tmp_path / "fit.fedgram", write(tmp_path / "new.csv", "age,sex,weight\n3,F,1\n"))
    # A key need not be in the study.
    done = predict(tmp_path / "fit.fedgram", write(tmp_path / "new.csv", "age,sex,ward\n3,F,1\n"), "--id", "ward")
    assert read(done.stdout)[0]["ward"] == "1"
    assert predict(tmp_path / "fit.fedgram", write(tmp_path / "new.csv", "age,sex\n")).stdout.count("\n") == 1


def doubled(study):
    """Return a model that predicts twice the age, which is sent in units of half its range about the middle."""
    head = LinearModel(np.array([[120.0]]), NUMERIC, np.array([120.0]), study.features, ("age",))
    return study.model(Pipeline(head, targets=NumericTargets.named("cost")))


def test_outcomes_that_are_numbers(tmp_path, monkeypatch):
    study = Study("cost", "cost", {"age": Number(range=(0, 120)), "cost": Number()})
    model = doubled(study)
    monkeypatch.setattr(sys.modules["fedgram.cli.predict"], "model_of", lambda path, client: model)
    new = write(tmp_path / "new.csv", "age\n30\nold\n60\n")
    done = predict("model", new)
    assert done.stdout == "cost,problem\n60,\n,\"column 'age' must hold numbers, got old\"\n120,\n"
    assert json.loads(predict("model", new, "--json").stdout) == {
        "samples": 3,
        "bad": 1,
        "accuracy": None,
        "outcomes": ["cost"],
        "labels": [[60.0], None, [120.0]],
        "problems": ["", "column 'age' must hold numbers, got old", ""],
    }


def test_what_was_written_is_told_and_nothing_usable_is_exit_code_1(tmp_path, monkeypatch):
    study = Study("cost", "cost", {"age": Number(range=(0, 120)), "who": Ignore(), "cost": Number()})
    monkeypatch.setattr(sys.modules["fedgram.cli.predict"], "model_of", lambda path, client: doubled(study))
    some = write(tmp_path / "some.csv", "who,age\nA,30\nB,old\n")
    done = predict("model", some, "--id", "who", "--out", tmp_path / "out.csv")
    assert done.exit_code == 0
    assert f"wrote {tmp_path / 'out.csv'}: 2 samples" in done.stderr.replace("\n", "")
    assert "1 of 2 samples are bad: their lines say what is wrong" in done.stderr
    told = json.loads(predict("model", some, "--id", "who", "--json").stdout)
    assert (told["ids"], told["labels"]) == (["A", "B"], [[60.0], None])
    told = json.loads(predict("model", some, "--json", "--out", tmp_path / "other.csv").stdout)
    assert told == {"samples": 2, "bad": 1, "accuracy": None, "file": str(tmp_path / "other.csv")}
    for text in ("age\nold\nyoung\n", "age\n"):
        none = write(tmp_path / "none.csv", text)
        for options in ((), ("--json",), ("--out", tmp_path / "none-out.csv", "--force")):
            done = predict("model", none, *options)
            assert done.exit_code == 1
        assert "none of them could be used" in done.stderr
        assert (tmp_path / "none-out.csv").read_text().count("must hold numbers") == text.count("o")


def test_where_a_table_has_its_numbers_the_errors_are_told(tmp_path, monkeypatch):
    """Bad rows, and rows without a known number, are not counted, as with right labels."""
    study = Study("cost", "cost", {"age": Number(range=(0, 120)), "cost": Number()})
    monkeypatch.setattr(sys.modules["fedgram.cli.predict"], "model_of", lambda path, client: doubled(study))
    new = write(tmp_path / "new.csv", "cost,age\n63,30\n7,old\n116,60\n,50\nunknown,50\n200,100\n")
    done = predict("model", new)
    assert "RMSE of cost 2.887, MAE 2.333, R² 0.9974, over 3 samples" in done.stderr
    assert done.stdout.splitlines()[:3] == ["cost,problem", "60,", ",\"column 'age' must hold numbers, got old\""]
    errors = json.loads(predict("model", new, "--json").stdout)["errors"]["cost"]
    assert errors["rmse"] == pytest.approx((25 / 3) ** 0.5)
    assert errors["mae"] == pytest.approx(7 / 3)
    one = write(tmp_path / "one.csv", "cost,age\n63,30\n")
    assert json.loads(predict("model", one, "--json").stdout)["errors"] == {
        "cost": {"rmse": 3.0, "mae": 3.0, "r2": None}
    }


@pytest.mark.parametrize(("outside", "judged"), [("clip", 3), ("refuse", 2), ("missing", 2)])
def test_numbers_are_judged_by_the_rules_of_the_study(tmp_path, monkeypatch, outside, judged):
    """`predict` and `evaluate` agree on a table's outcomes."""
    study = Study("cost", "cost", {"age": Number(range=(0, 120)), "cost": Number(range=(0, 250), outside=outside)})
    model = doubled(study)
    monkeypatch.setattr(sys.modules["fedgram.cli.predict"], "model_of", lambda path, client: model)
    new = write(tmp_path / "new.csv", "cost,age\n63,30\n1000,60\n200,100\n")
    errors = json.loads(predict("model", new, "--json").stdout)["errors"]["cost"]
    with warnings.catch_warnings(action="ignore", category=Skipped):
        found = judge(model, new, on_bad="skip")
    assert found.samples == judged
    assert errors == pytest.approx(found.errors["cost"].summary(), rel=1e-12)


def test_memory_does_not_grow_with_the_table(tmp_path, fit, monkeypatch):
    monkeypatch.setattr(csvfiles, "BYTES", 1 << 15)
    peaks = []
    for n in (4_000, 150_000):
        new = table(tmp_path / "new.csv", rows(1000, 3) * (n // 1000))
        tracemalloc.start()
        predict(tmp_path / "fit.fedgram", new, "--id", "patient_id", "--out", tmp_path / "out.csv", "--force")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert (tmp_path / "out.csv").read_bytes().count(b"\n") == n + 1
    # The lines alone are 4.5 MB. Readers' buffers differ by about 1 MB.
    assert peaks[1] - peaks[0] < 2 << 20, peaks


def test_other_models_have_keys_and_probabilities_too(tmp_path):
    model = fg.LinearModel(np.array([[1.0, -1.0]]), ("high", "low"), columns=("a",), temperature=0.5)
    (tmp_path / "model").write_bytes(wire.encode(model))
    new = write(tmp_path / "new.csv", "who,a\nx,1\ny,\nz,-2\n")
    with pytest.warns(Skipped):
        done = predict(tmp_path / "model", new, "--id", "who", "--on-bad", "skip")
    found = read(done.stdout)
    assert [(row["who"], row["label"], row["problem"]) for row in found] == [
        ("x", "high", ""),
        ("y", "", "bad"),
        ("z", "low", ""),
    ]
    want = model.predict_proba(np.array([[1.0], [-2.0]]))
    np.testing.assert_allclose([float(found[k]["p(high)"]) for k in (0, 2)], want[:, 0], rtol=1e-5)
    with pytest.raises(Mismatch, match="no id column 'whom'"):
        predict(tmp_path / "model", write(tmp_path / "whole.csv", "who,a\nx,1\n"), "--id", "whom")
    pq.write_table(pa.table({"a": [1.0, 2.0], "b": ["u", "v"]}), tmp_path / "new.parquet")
    assert [
        row["label"] for row in read(predict(tmp_path / "model", tmp_path / "new.parquet", "--probabilities").stdout)
    ]
    np.savez(tmp_path / "new.npz", x=np.ones((2, 1)))
    assert len(read(predict(tmp_path / "model", tmp_path / "new.npz", "--probabilities").stdout)) == 2
    with pytest.raises(InvalidData, match="is not a table"):
        predict(tmp_path / "model", tmp_path / "new.npz", "--id", "who")


PLAIN = fg.LinearModel(np.array([[1.0, -1.0], [0.5, 0.0]]), ("high", "low"), columns=("a", "b"), temperature=0.5)


def plain_rows(n, seed):
    """Return rows of numbers, a tenth of them bad in some way, with a key and a label in some rows."""
    rng = np.random.default_rng(seed)
    found = []
    for k in range(n):
        a, b = (f"{value:.3f}" for value in rng.normal(size=2))
        row = [f"k{k}", b, a, rng.choice(["high", "low", ""])]
        flaw = rng.integers(30)
        found.append({0: [*row[:1], "x", *row[2:]], 1: row[:2], 2: [row[0], row[1], "", row[3]]}.get(flaw, row))
    return found


@examples(10)
@given(st.integers(0, 2**32 - 1), st.integers(20, 200), st.integers(60, 900), st.integers(1, 50))
def test_models_without_a_study_read_tables_in_blocks_too(tmp_path_factory, seed, n, piece, at_once):
    """Any size of block gives the same lines; a bad row keeps its line, and the rest is as for all rows at once."""
    folder = tmp_path_factory.mktemp("predict")
    (folder / "model").write_bytes(wire.encode(PLAIN))
    found = plain_rows(n, seed)
    new = table(folder / "new.csv", found, ("who", "b", "a", "label"))
    arguments = (folder / "model", new, "--id", "who", "--on-bad", "skip")
    with warnings.catch_warnings(action="ignore", category=Skipped):
        whole = predict(*arguments)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(csvfiles, "BYTES", piece)
            patch.setattr("fedgram.cli.predict.ROWS", at_once)
            blocks = predict(*arguments)
            told = json.loads(predict(*arguments, "--json").stdout)
    assert blocks.stdout == whole.stdout
    assert blocks.stderr == whole.stderr
    good = [len(row) == 4 and row[1] != "x" and row[2] != "" for row in found]
    lines = read(blocks.stdout)
    assert [line["who"] for line in lines] == [row[0] if len(row) == 4 else "" for row in found]
    assert [line["problem"] for line in lines] == ["" if fine else "bad" for fine in good]
    chosen = [row for row, fine in zip(found, good, strict=True) if fine]
    x = np.array([[float(row[2]), float(row[1])] for row in chosen])
    labels = PLAIN.predict(x).tolist()
    assert [line["label"] for line, fine in zip(lines, good, strict=True) if fine] == labels
    assert [label for label in told["labels"] if label is not None] == labels
    known = [(label, row[3]) for label, row in zip(labels, chosen, strict=True) if row[3]]
    assert told["accuracy"] == (sum(a == b for a, b in known) / len(known) if known else None)
    assert (told["samples"], told["bad"]) == (n, n - sum(good))


def test_refused_rows_are_refused_before_a_line_is_printed(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(csvfiles, "BYTES", 50)
    (tmp_path / "model").write_bytes(wire.encode(PLAIN))
    new = write(tmp_path / "new.csv", "a,b\n" + "1,2\n" * 100 + "1,x\n")
    with pytest.raises(InvalidData, match="line 102: column 'b' holds 'x'"):
        predict(tmp_path / "model", new)
    assert "high" not in capfd.readouterr().out


def test_memory_does_not_grow_without_a_study_either(tmp_path, monkeypatch):
    monkeypatch.setattr(csvfiles, "BYTES", 1 << 15)
    (tmp_path / "model").write_bytes(wire.encode(PLAIN))
    peaks = []
    for n in (4_000, 100_000):
        new = write(tmp_path / "new.csv", "who,a,b,label\n" + "x,1.5,2.5,high\ny,-1.5,2.5,low\n" * (n // 2))
        tracemalloc.start()
        predict(tmp_path / "model", new, "--id", "who", "--out", tmp_path / "out.csv", "--force")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert (tmp_path / "out.csv").read_bytes().count(b"\n") == n + 1
    # The numbers alone are 1.6 MB, and their lines three times that; a mark and a label are two bytes a row.
    assert peaks[1] - peaks[0] < 1 << 20, peaks


def test_an_interruption_leaves_nothing_half_written(tmp_path, fit, monkeypatch):
    """The old file is whole, without a part of the new one or a temporary file."""
    new, out = table(tmp_path / "new.csv", rows(100, 3)), tmp_path / "out.csv"
    out.write_text("what was there\n")
    before = sorted(tmp_path.iterdir())
    read = StudyModel.read

    def interrupted(*given, **options):
        yield next(read(*given, **options))
        raise KeyboardInterrupt

    monkeypatch.setattr(StudyModel, "read", interrupted)
    done = predict(tmp_path / "fit.fedgram", new, "--out", out, "--force")
    assert done.exit_code != 0
    assert out.read_text() == "what was there\n"
    assert sorted(tmp_path.iterdir()) == before


def test_cells_are_quoted_as_csv_wants_it(tmp_path, fit):
    keys = ["plain", 'say "hi"', "a,b", "two\nlines", "50 %s", ""]
    text = io.StringIO()
    csv.writer(text).writerows([("patient_id", "age", "sex"), *((key, "30", "F") for key in keys)])
    new = write(tmp_path / "new.csv", text.getvalue())
    good = predict(tmp_path / "fit.fedgram", new, "--id", "patient_id").stdout
    assert [row["patient_id"] for row in read(good)] == keys
    write(tmp_path / "new.csv", text.getvalue() + "bad,30,X\n")
    mixed = predict(tmp_path / "fit.fedgram", new, "--id", "patient_id").stdout
    assert mixed.startswith(good), "a bad row changes no other line"
    assert read(mixed)[-1]["problem"] == "column 'sex' must be one of 'F', 'M', got X"

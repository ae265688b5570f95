"""`fedgram personalize` compares a party's own model with the global one, says so, and keeps the better."""

import numpy as np
import pytest

from fedgram.core.errors import InvalidParameter
from fedgram.exchange.format import fgm
from fedgram.exchange.rounds.party_side import model_of
from support.command import fedgram, run, told

pytestmark = pytest.mark.filterwarnings("ignore:.*mine.fgm is not signed")  # parties without keys, for short

STUDY = """
[study]
name = "lumps"
outcome = "found"
classes = ["benign", "malignant"]
minimum_samples = 10
minimum_cell = 3

[columns.radius]
kind = "number"
range = [0, 40]
[columns.texture]
kind = "number"
range = [0, 40]
"""
NUMERIC = STUDY.replace('outcome = "found"\nclasses = ["benign", "malignant"]', 'outcome = "stay"').replace(
    "minimum_cell = 3\n", ""
)
NUMERIC += '[columns.stay]\nkind = "number"\nrange = [-100, 100]\nunit = "days"\n'


def table(seed, rows, malignant):
    """Return a table in which malignant lumps are larger."""
    rng = np.random.default_rng(seed)
    lines = ["radius,texture,found"]
    for _ in range(rows):
        sick = rng.random() < malignant
        radius, texture = rng.normal(16 if sick else 12, 2), rng.normal(20, 4)
        lines.append(f"{radius:.3f},{texture:.3f},{'malignant' if sick else 'benign'}")
    return "\n".join(lines) + "\n"


def numbers(seed, rows, slope):
    """Return a table in which the stay grows or falls with the radius."""
    rng = np.random.default_rng(seed)
    lines = ["radius,texture,stay"]
    for radius, texture in zip(rng.uniform(10, 30, rows), rng.uniform(5, 30, rows), strict=True):
        lines.append(f"{radius:.3f},{texture:.3f},{slope * (radius - 20) + rng.normal():.4f}")
    return "\n".join(lines) + "\n"


def consortium(folder, study, tables, method="fedgram"):
    """Write the study, the parties' tables and the publication of a store of all of them."""
    (folder / "study.toml").write_text(study)
    for name, text in tables.items():
        (folder / f"{name}.csv").write_text(text)
        fedgram("summarize", "study.toml", f"{name}.csv", "--party", name)
    fedgram("join", "store", *(f"{name}.fgm" for name in tables))
    fedgram("publish", "store", "--method", method, "--no-sites")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def lumps(folder):
    consortium(
        folder, STUDY, {"clinic": table(1, 90, 0.5), "screening": table(2, 56, 0.0), "rare": table(3, 120, 0.92)}
    )
    return folder


def test_a_hospital_of_one_class_gets_the_global_model_and_a_sentence(lumps):
    said = " ".join(fedgram("personalize", "global.fgm", "screening.csv", "--party", "screening").split())
    assert "own model 56 of 56 right, 100.0%" in said
    assert "the global model is kept: your rows have no samples of malignant, so they cannot tell" in said
    assert "wrote mine.fgm, the global model" in said
    held_out = lumps / "cancers.csv"
    held_out.write_text(table(9, 40, 1.0))
    kept = told("evaluate", "mine.fgm", "cancers.csv")["accuracy"]
    assert kept == told("evaluate", "global.fgm", "cancers.csv")["accuracy"] > 0.7
    own = " ".join(
        fedgram(
            "personalize", "global.fgm", "screening.csv", "--party", "screening", "--keep", "own", "--force"
        ).split()
    )
    assert "the own model is kept, as --keep own asks, but your rows have no samples of malignant" in own
    assert "wrote mine.fgm, your own model. Do not pass it on: it was made from your own rows." in own
    assert told("evaluate", "mine.fgm", "cancers.csv")["accuracy"] < kept - 0.2


def test_both_models_are_printed_and_the_better_is_kept(lumps):
    found = told("personalize", "global.fgm", "rare.csv", "--party", "rare")
    compared = found["compared"]
    assert (compared["rows"], compared["how"], compared["lacking"]) == (120, "corrected", [])
    assert compared["own"]["right"] > compared["global"]["right"]
    assert compared["own"]["accuracy"] == compared["own"]["right"] / 120
    assert found["kept"] == fgm.read("mine.fgm").payload.kept == "own"
    assert "the own model" in fedgram("inspect", "mine.fgm")
    assert told("inspect", "mine.fgm")["kept"] == "own"
    forced = told("personalize", "global.fgm", "rare.csv", "--party", "rare", "--keep", "global", "--force")
    assert forced["kept"] == fgm.read("mine.fgm").payload.kept == "global"
    assert forced["compared"] == compared
    assert "the global model" in fedgram("inspect", "mine.fgm")
    rows = np.genfromtxt("rare.csv", delimiter=",", skip_header=1, usecols=(0, 1))
    assert np.array_equal(model_of("mine.fgm").model.scores(rows), model_of("global.fgm").model.scores(rows))
    text = " ".join(
        fedgram("personalize", "global.fgm", "rare.csv", "--party", "rare", "--newcomer", "--force").split()
    )
    assert "120 of 120 rows were left out" in text
    assert "to first order" not in text
    assert run("personalize", "global.fgm", "rare.csv", "--party", "rare", "--keep", "best").returncode == 2


def test_numbers_are_compared_by_their_errors(folder):
    tables = {"falling": numbers(1, 40, -1), "rising": numbers(2, 60, 1), "steep": numbers(3, 60, 1)}
    consortium(folder, NUMERIC, tables)
    found = told("personalize", "global.fgm", "falling.csv", "--party", "falling")
    own, shared = (found["compared"][which]["errors"]["stay"]["rmse"] for which in ("own", "global"))
    assert found["kept"] == "own"
    assert found["compared"]["how"] == "removed"
    assert 0.7 < own < 1.6
    assert shared > 8
    rows = np.genfromtxt("falling.csv", delimiter=",", skip_header=1)
    pooled = [np.genfromtxt(f"{name}.csv", delimiter=",", skip_header=1) for name in ("rising", "steep")]
    squared = 0.0
    for row in range(len(rows)):  # by hand; the ridge that the global model has is small
        x, y = np.split(np.vstack([np.delete(rows, row, axis=0), *pooled]), [2], axis=1)
        weights, *_ = np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), y, rcond=None)
        squared += float((np.append(rows[row, :2], 1) @ weights - rows[row, 2])[0] ** 2)
    assert shared == pytest.approx((squared / len(rows)) ** 0.5, rel=0.02)
    text = " ".join(fedgram("personalize", "global.fgm", "rising.csv", "--party", "rising", "--out", "r.fgm").split())
    assert "global model RMSE of stay " in text


def test_a_method_without_personal_models_says_so(folder):
    consortium(folder, STUDY, {"clinic": table(1, 40, 0.5), "other": table(2, 40, 0.5)}, method="afl")
    said = fedgram("personalize", "global.fgm", "clinic.csv", "--party", "clinic")
    assert "the global model is kept: afl makes no models of parties' own" in said
    with pytest.raises(InvalidParameter, match="leave out --keep own"):
        fedgram("personalize", "global.fgm", "clinic.csv", "--party", "clinic", "--keep", "own", "--out", "own.fgm")
    assert not (folder / "own.fgm").exists()


def test_evaluate_knows_the_rows_that_a_model_was_made_of(lumps):
    known = "these are the rows that the model was made of"
    fedgram("personalize", "global.fgm", "rare.csv", "--party", "rare", "--keep", "own")
    first, *rows = (lumps / "rare.csv").read_text().splitlines()
    (lumps / "turned.csv").write_text("\n".join([first, *reversed(rows)]) + "\n")
    (lumps / "some.csv").write_text("\n".join([first, *rows[:-1]]) + "\n")
    for table, warned in (("rare.csv", True), ("turned.csv", True), ("some.csv", False), ("clinic.csv", False)):
        assert (known in run("evaluate", "mine.fgm", table).stderr) is warned, table
    for who, member, warned in (("rare", "--member", True), ("rare", "--newcomer", False)):
        fedgram("personalize", "global.fgm", "rare.csv", "--party", who, member, "--keep", "global", "--force")
        assert (known in run("evaluate", "mine.fgm", "rare.csv").stderr) is warned


def test_evaluate_knows_rows_with_a_number_again(folder):
    consortium(folder, NUMERIC, {name: numbers(seed, 40, 1) for seed, name in enumerate(("north", "south", "east"))})
    fedgram("personalize", "global.fgm", "north.csv", "--party", "north")
    assert "the rows that the model was made of" in run("evaluate", "mine.fgm", "north.csv").stderr
    assert "the rows that the model was made of" not in run("evaluate", "mine.fgm", "south.csv").stderr

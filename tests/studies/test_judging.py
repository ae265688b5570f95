"""A model is judged block by block, as it would be on the whole table at once."""

import tracemalloc

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.errors import BadSamples, InvalidData, Skipped
from fedgram.data.own import csvfiles
from fedgram.evaluation import Calibration
from fedgram.studies import model as models
from fedgram.studies.encoding import read_client
from fedgram.studies.model import judge
from fedgram.studies.study import Study
from support.exchange import TEXT, table, tables

NUMERIC = """
[study]
name = "costs"
outcome = "cost"
minimum_samples = 5
minimum_cell = 1
[columns.age]
kind = "number"
range = [0, 120]
[columns.cost]
kind = "number"
range = [0, 1000]
"""


def fitted(study, paths):
    clients = [read_client(study, path.stem, path) for path in paths]
    return fg.AFL().fit(clients, study=study).predictor()


@pytest.fixture
def classifier(tmp_path):
    return fitted(Study.parse(TEXT), tables(tmp_path).values())


@pytest.fixture
def regressor(tmp_path):
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{name}.csv" for name in ("a", "b", "c")]
    for path in paths:
        age = rng.integers(20, 90, 50)
        lines = (f"{years},{years * 7 + noise:.1f}" for years, noise in zip(age, rng.normal(0, 20, 50), strict=True))
        path.write_text("\n".join(["age,cost", *lines]) + "\n")
    return fitted(Study.parse(NUMERIC), paths), paths[0]


def test_blocks_change_nothing(classifier, regressor, tmp_path, monkeypatch):
    model, path = regressor
    whole, numbers = judge(classifier, tmp_path / "north.csv"), judge(model, path)
    monkeypatch.setattr(models, "ROWS", 7)
    parts, numbers_in_parts = judge(classifier, tmp_path / "north.csv"), judge(model, path)
    assert parts.classes == whole.classes
    assert (parts.samples, parts.accuracy, parts.usual) == (whole.samples, whole.accuracy, whole.usual)
    assert (parts.brier, parts.calibration) == pytest.approx((whole.brier, whole.calibration), rel=1e-12)
    assert numbers_in_parts.errors["cost"].summary() == pytest.approx(numbers.errors["cost"].summary(), rel=1e-12)


def test_it_is_what_an_evaluation_of_the_same_rows_says(classifier, tmp_path):
    client = read_client(classifier.study, "north", tmp_path / "north.csv")
    labels = np.array([classifier.classes.index(label) for label in client.y])
    wanted = Calibration.judged(classifier.model, [(client.x, labels)])
    found = judge(classifier, tmp_path / "north.csv")
    assert (found.accuracy, found.brier) == (wanted.correct / wanted.n, pytest.approx(wanted.brier, rel=1e-12))


def test_the_class_is_the_one_with_the_highest_score(classifier, tmp_path):
    weights = np.zeros((len(classifier.study.sent), 2))
    weights[0] = 0.0, 1e-30  # age about the middle of its range: probabilities are all a half
    model = classifier.study.model(fg.LinearModel(weights, classifier.classes, None, classifier.study.features))
    ages = read_client(model.study, "north", tmp_path / "north.csv").x[:, 0]
    _, labels = zip(
        *(line.split(",")[::5] for line in (tmp_path / "north.csv").read_text().splitlines()[1:]), strict=True
    )
    right = np.mean((ages > 0) == (np.array(labels) == "well"))
    assert judge(model, tmp_path / "north.csv").accuracy == right != np.mean(np.array(labels) == "ill")


def test_numbers_are_judged_in_their_own_unit(regressor):
    model, path = regressor
    _, costs = np.loadtxt(path, delimiter=",", skiprows=1).T
    errors = model.predict(path) - costs
    assert judge(model, path).errors["cost"].rmse == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-9)


def test_a_table_without_rows_is_refused(classifier, tmp_path):
    (tmp_path / "empty.csv").write_text(table(0).splitlines()[0] + "\n")
    with pytest.raises(InvalidData, match="holds no usable row"):
        judge(classifier, tmp_path / "empty.csv")


@pytest.mark.parametrize("label", ["W1000", ""])
def test_rows_with_an_unknown_label_are_refused_or_left_out(classifier, tmp_path, label):
    lines = (tmp_path / "north.csv").read_text().splitlines()
    lines[3] = f"{lines[3].rpartition(',')[0]},{label}"
    (tmp_path / "bad.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(BadSamples, match="line 4: outcome"):
        judge(classifier, tmp_path / "bad.csv")
    (tmp_path / "good.csv").write_text("\n".join([*lines[:3], *lines[4:]]) + "\n")
    with pytest.warns(Skipped, match="1 bad row"):
        assert judge(classifier, tmp_path / "bad.csv", on_bad="skip") == judge(classifier, tmp_path / "good.csv")


def test_a_category_may_have_levels_that_no_row_has(classifier, tmp_path):
    pa, arrow_csv = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.csv")
    found = arrow_csv.read_csv(tmp_path / "north.csv")
    place, levels = found.column_names.index("diagnosis"), ["never", *classifier.classes]
    codes = [levels.index(label) for label in found["diagnosis"].to_pylist()]
    with_levels = found.set_column(place, "diagnosis", pa.DictionaryArray.from_arrays(codes, levels))
    assert judge(classifier, with_levels) == judge(classifier, found)


def test_memory_does_not_grow_with_the_table(classifier, tmp_path, monkeypatch):
    monkeypatch.setattr(csvfiles, "BYTES", 1 << 16)
    peaks = []
    for times in (200, 1600):
        head, *lines = table(1, 60).splitlines()
        (tmp_path / "large.csv").write_text("\n".join([head, *lines * times]) + "\n")
        tracemalloc.start()
        assert judge(classifier, tmp_path / "large.csv").samples == 60 * times
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_an_outcome_that_does_not_vary_has_no_r2_in_json(regressor, tmp_path):
    model, _ = regressor
    path = tmp_path / "one.csv"
    path.write_text("age,cost\n30,100\n40,100\n")
    assert judge(model, path).fields()["errors"]["cost"]["r2"] is None

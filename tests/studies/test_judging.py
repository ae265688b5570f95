"""A model is judged block by block, as it would be on the whole table at once."""

import json
import tracemalloc

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.errors import BadSamples, FedgramError, InvalidData, InvalidParameter, Skipped
from fedgram.data.own import csvfiles
from fedgram.evaluation import Calibration
from fedgram.inference.binary_predictions import wilson
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
unit = "EUR"
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


def test_memory_is_a_few_numbers_a_row(classifier, tmp_path, monkeypatch):
    """Intervals need the probability of each row; the table itself is not kept."""
    monkeypatch.setattr(csvfiles, "BYTES", 1 << 16)
    peaks, counts = [], (12_000, 96_000)
    for rows in counts:
        head, *lines = table(1, 60).splitlines()
        (tmp_path / "large.csv").write_text("\n".join([head, *lines * (rows // 60)]) + "\n")
        tracemalloc.start()
        assert judge(classifier, tmp_path / "large.csv").samples == rows
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 20 * 8 * (counts[1] - counts[0])


def test_an_outcome_that_does_not_vary_has_no_r2_in_json(regressor, tmp_path):
    model, _ = regressor
    path = tmp_path / "one.csv"
    path.write_text("age,cost\n30,100\n40,100\n")
    assert judge(model, path).fields()["errors"]["cost"]["r2"] is None


def chances_of(model, path):
    """Return the probability of each class for each row of a table, and the rows' classes."""
    client = read_client(model.study, "site", path)
    return model.model.predict_proba(client.x), np.array(client.y)


@pytest.mark.parametrize(("event", "threshold"), [(None, None), ("ill", None), ("ill", 0.2), ("well", 0.9)])
def test_an_event_is_judged_by_its_probability(classifier, tmp_path, event, threshold):
    metrics = pytest.importorskip("sklearn.metrics")
    chances, truth = chances_of(classifier, tmp_path / "north.csv")
    judged = judge(classifier, tmp_path / "north.csv", event=event, threshold=threshold)
    name = event or "well"  # the last of the study's classes
    happened, chance = truth == name, chances[:, classifier.classes.index(name)]
    found, named = judged.event_scores, chance >= (threshold or 0.5)
    assert (judged.event, found.threshold) == (name, threshold or 0.5)
    assert list(judged.auroc) == [name]
    assert judged.auroc[name] == found.auroc
    assert found.auroc.value == pytest.approx(metrics.roc_auc_score(happened, chance), rel=1e-12)
    assert found.auroc.how == "DeLong"
    assert found.sensitivity == wilson(np.sum(named & happened), happened.sum(), 0.95)
    assert found.specificity == wilson(np.sum(~named & ~happened), (~happened).sum(), 0.95)
    assert found.ppv == wilson(np.sum(named & happened), named.sum(), 0.95)
    assert found.npv == wilson(np.sum(~named & ~happened), (~named).sum(), 0.95)
    assert found.brier == pytest.approx(metrics.brier_score_loss(happened, chance), rel=1e-12)
    assert judged.brier == pytest.approx(2 * found.brier, rel=1e-12)  # of two classes, each has the same error
    assert judged.macro is None


THREE = """
[study]
name = "wards"
outcome = "ward"
classes = ["a", "b", "c"]
minimum_samples = 5
minimum_cell = 1
[columns.age]
kind = "number"
range = [0, 120]
"""


@pytest.fixture
def of_three(tmp_path):
    """Return a model of three classes, and a table."""
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{name}.csv" for name in ("one", "two")]
    for path in paths:
        ward = rng.choice(["a", "b", "c"], 60)
        ages = {"a": 30, "b": 50, "c": 80}
        lines = (f"{np.clip(rng.normal(ages[each], 15), 0, 120):.1f},{each}" for each in ward)
        path.write_text("\n".join(["age,ward", *lines]) + "\n")
    return fitted(Study.parse(THREE), paths), paths[0]


def test_each_of_several_classes_is_judged_against_the_rest(of_three):
    metrics = pytest.importorskip("sklearn.metrics")
    model, path = of_three
    chances, truth = chances_of(model, path)
    judged = judge(model, path)
    assert (judged.event, judged.event_scores) == (None, None)
    for k, name in enumerate("abc"):
        assert judged.auroc[name].value == pytest.approx(metrics.roc_auc_score(truth == name, chances[:, k]), rel=1e-12)
    assert judged.macro == pytest.approx(metrics.roc_auc_score(truth, chances, multi_class="ovr"), rel=1e-12)
    one = judge(model, path, event="b", threshold=0.3)
    assert one.event_scores.auroc == judged.auroc["b"]
    assert one.event_scores.hits == np.sum((chances[:, 1] >= 0.3) & (truth == "b"))


def test_a_class_that_no_row_has_is_left_out_of_the_mean(of_three, tmp_path):
    model, path = of_three
    lines = [line for line in path.read_text().splitlines() if not line.endswith(",c")]
    (tmp_path / "few.csv").write_text("\n".join(lines) + "\n")
    judged = judge(model, tmp_path / "few.csv")
    assert (judged.auroc["c"].value, judged.auroc["c"].why) == (None, "no samples of the class")
    assert judged.macro == pytest.approx((judged.auroc["a"].value + judged.auroc["b"].value) / 2)


def test_rows_of_one_class_alone_are_judged_as_far_as_they_can_be(classifier, tmp_path):
    lines = [line for line in (tmp_path / "north.csv").read_text().splitlines() if not line.endswith(",ill")]
    (tmp_path / "well.csv").write_text("\n".join(lines) + "\n")
    found = judge(classifier, tmp_path / "well.csv").event_scores
    assert (found.auroc.value, found.auroc.why) == (None, "no samples of another class")
    assert (found.specificity.value, found.specificity.why) == (None, "no samples")
    assert found.sensitivity.value is not None
    assert (found.slope.value, found.slope.why) == (None, "all samples are of one kind")
    assert json.loads(json.dumps(judge(classifier, tmp_path / "well.csv").fields(), allow_nan=False))


def test_errors_have_intervals_in_their_own_unit(regressor):
    model, path = regressor
    judged = judge(model, path, level=0.9)
    for measure, value in judged.errors["cost"].summary().items():
        low, high = judged.intervals["cost"][measure]
        assert low < value < high
    fields = judged.fields()
    assert (fields["level"], fields["resamples"]) == (0.9, 2000)
    assert fields["errors"]["cost"]["unit"] == "EUR"
    assert fields["errors"]["cost"]["intervals"]["rmse"] == judged.intervals["cost"]["rmse"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"level": 1.0}, "level: expected a number between 0 and 1, got 1"),
        ({"level": float("nan")}, "level: expected"),
        ({"threshold": 0.0}, "threshold: expected a number between 0 and 1, got 0"),
        ({"event": "sick"}, "unknown class 'sick'"),
    ],
)
def test_wrong_options_are_refused(classifier, tmp_path, options, words):
    with pytest.raises(FedgramError, match=words):
        judge(classifier, tmp_path / "north.csv", **options)


def test_options_that_do_not_apply_are_refused(regressor, of_three):
    model, path = regressor
    for options in ({"event": "ill"}, {"threshold": 0.5}):
        with pytest.raises(InvalidParameter, match="expected none for a numeric outcome"):
            judge(model, path, **options)
    with pytest.raises(InvalidParameter, match="expected an event beside it, because there are 3 classes"):
        judge(*of_three, threshold=0.5)

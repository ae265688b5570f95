"""Common behaviour of all models: accepted samples, and scores."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import fedgram as fg
from fedgram.core import wire
from fedgram.core.classes import NUMERIC, Classes
from fedgram.core.columns import Columns
from fedgram.core.errors import InvalidData, Mismatch
from fedgram.features.projection import RandomFeatures
from fedgram.layerwise import Network
from fedgram.methods.analytic.apfl import TwoStreams
from fedgram.models import BlockModel
from fedgram.moments.basis import Basis
from fedgram.nets import TrainedNet
from fedgram.pipeline import Pipeline

PETS, COLUMNS = ("cat", "dog"), ("age", "bmi", "bp")
WEIGHTS = np.array([[1.0, -1.0], [0.5, 2.0], [-3.0, 0.0]])
MODELS = {
    "linear": fg.LinearModel(WEIGHTS, PETS, np.array([0.0, 1.0]), columns=COLUMNS),
    "two streams": TwoStreams(
        primary=RandomFeatures(3, 4), weights=np.arange(8.0).reshape(4, 2), classes=PETS, columns=COLUMNS
    ),
    "layer-wise": Network("lr", (3,), PETS, 0, (WEIGHTS,), columns=COLUMNS),
    "network": TrainedNet("linear", (3,), PETS, np.arange(8, dtype=np.float32), columns=COLUMNS),
}


class Table(dict):
    columns = property(list)


@dataclass(frozen=True, eq=False)
class Sums(BlockModel):
    """Scores the sum of a sample's features for one class and nothing for the other; notes how many came at a time."""

    seen: list[int]
    classes: Classes = PETS
    features: str = ""
    columns: Columns = ()
    at_once = 4
    sample_shape = (3,)

    def score_block(self, block, out):
        self.seen.append(len(block))
        out[:, 0], out[:, 1] = block.sum(axis=1), 0.0


def test_samples_are_scored_block_by_block():
    model, x = Sums([]), np.random.default_rng(0).normal(size=(10, 3))
    assert np.array_equal(model.scores(x), np.column_stack([x.sum(axis=1), np.zeros(10)]))
    assert model.seen == [4, 4, 2]
    assert model.predict(x).tolist() == ["cat" if total > 0 else "dog" for total in x.sum(axis=1)]
    assert isinstance(model, fg.Model)


@pytest.mark.parametrize("missing", ["classes", "features", "columns", "scores", "predict"])
def test_a_model_says_all_that_it_takes(missing):
    parts = dict.fromkeys(("classes", "features", "columns", "scores", "predict"), lambda self: ())
    assert isinstance(type("Whole", (), parts)(), fg.Model)
    del parts[missing]
    assert not isinstance(type("Part", (), parts)(), fg.Model)


@pytest.mark.parametrize("name", MODELS)
def test_tables_are_aligned_by_column(name):
    model, x = MODELS[name], np.random.default_rng(1).normal(size=(5, 3))
    shuffled = Table(bp=x[:, 2], more=x[:, 0], age=x[:, 0], bmi=x[:, 1])
    assert np.array_equal(model.scores(shuffled), model.scores(x))
    assert np.array_equal(model.predict(shuffled), model.predict(x))
    with pytest.raises(Mismatch, match="lacks column 'bp'"):
        model.scores(Table(age=x[:, 0], bmi=x[:, 1]))


@pytest.mark.parametrize("name", MODELS)
def test_samples_of_another_shape_are_refused(name):
    for shape in ((2, 4), (3,), (2, 3, 1)):
        with pytest.raises(InvalidData, match=r"scores samples of shape \(n, 3\), got \("):
            MODELS[name].scores(np.zeros(shape))


@pytest.mark.parametrize("name", MODELS)
def test_no_samples_have_no_scores(name):
    assert MODELS[name].scores(np.zeros((0, 3))).shape == (0, 2)
    assert MODELS[name].predict(np.zeros((0, 3))).shape == (0,)


@pytest.mark.parametrize("name", ["linear", "layer-wise", "network"])
def test_scores_that_are_not_finite_are_refused(name):
    x = np.zeros((3, 3))
    x[1, 0] = np.nan
    with pytest.raises(InvalidData, match="sample 1 has scores that are not finite"):
        MODELS[name].scores(x)


@pytest.mark.parametrize("name", MODELS)
def test_from_others_there_are_as_many_columns_as_features(name):
    MODELS[name].check()
    with pytest.raises(InvalidData, match="2 column names for 3 columns"):
        replace(MODELS[name], columns=("age", "bmi")).check()


@pytest.mark.parametrize("name", MODELS)
def test_probabilities_are_those_of_the_scores(name):
    model, x = MODELS[name], np.random.default_rng(2).normal(size=(7, 3))
    scores = model.scores(x)
    has_field = "temperature" in model.__dataclass_fields__
    for degrees in (None, 0.25) if has_field else (None,):
        warm = replace(model, temperature=degrees) if has_field else model
        want = np.exp(scores / (degrees or 1.0))
        np.testing.assert_allclose(warm.predict_proba(x), want / want.sum(axis=1, keepdims=True), rtol=1e-9)
        assert np.array_equal(warm.scores(x), scores)


@pytest.mark.parametrize("name", ["linear", "two streams", "layer-wise"])
def test_offsets_change_probabilities_but_no_prediction(name):
    model, x = MODELS[name], np.random.default_rng(2).normal(size=(7, 3))
    other = wire.decode(wire.encode(replace(model, temperature=0.5, offsets=np.array([0.0, 9.0]))))
    want = np.exp(2 * model.scores(x) + [0.0, 9.0])
    np.testing.assert_allclose(other.predict_proba(x), want / want.sum(axis=1, keepdims=True), rtol=1e-9)
    assert np.array_equal(other.predict(x), model.predict(x))
    assert np.array_equal(Pipeline(other, None, columns=COLUMNS).predict_proba(x), other.predict_proba(x))


@pytest.mark.parametrize("name", ["linear", "two streams"])
@pytest.mark.parametrize("degrees", [0.0, -1.0])
def test_a_temperature_is_positive(name, degrees):
    with pytest.raises(Mismatch, match="'temperature' must be more than 0"):
        replace(MODELS[name], temperature=degrees).check()


def test_a_model_in_another_basis_has_the_same_probabilities():
    model = fg.LinearModel(np.eye(2), PETS, columns=("a", "b"), temperature=0.5, offsets=np.array([1.0, 0.0]))
    basis = Basis.of({"a": ({"x": 2.0}, 1.0), "b": ({"y": 1.0}, 0.0)}, ("x", "y"))
    x = np.random.default_rng(3).normal(size=(6, 2))
    want = model.predict_proba(basis.apply(x))
    np.testing.assert_allclose(Pipeline(model, basis, columns=("x", "y")).predict_proba(x), want)
    np.testing.assert_allclose(basis.back(model, ("x", "y")).predict_proba(x), want)


def run(path, x):
    """Return ONNX Runtime's outputs by name."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"samples": x.astype(np.float32)}), strict=True))


@pytest.mark.parametrize("degrees", [None, 0.25])
@pytest.mark.parametrize("classes", [("cat", "dog", "élan"), (0, 1, 2), (7, -3, 5)])
def test_a_linear_model_as_onnx_gives_the_same(classes, degrees, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 5)).astype(np.float32)
    model = fg.LinearModel(rng.normal(size=(5, 3)), classes, np.array([0.5, -1e300, 0.25]), temperature=degrees)
    for centre in (None, x.mean(axis=0)):
        for one in (model, replace(model, intercept=None)):
            one.to_onnx(tmp_path / "model.onnx", centre=centre)
            found = run(tmp_path / "model.onnx", x)
            usual = np.abs(one.scores(x)) < 1e30
            np.testing.assert_allclose(found["scores"][usual], one.scores(x)[usual], rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(found["probabilities"], one.predict_proba(x), atol=1e-5 / (degrees or 1))
            np.testing.assert_array_equal(found["label"], one.predict(x))


def test_a_linear_model_of_numbers_as_onnx_has_scores_alone(tmp_path):
    rng = np.random.default_rng(0)
    model, x = fg.LinearModel(rng.normal(size=(5, 2)), NUMERIC, rng.normal(size=2)), rng.normal(size=(9, 5))
    model.to_onnx(tmp_path / "model.onnx")
    found = run(tmp_path / "model.onnx", x)
    assert set(found) == {"scores"}
    np.testing.assert_allclose(found["scores"], model.scores(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_is_loaded_again(name, tmp_path):
    model, x = MODELS[name], np.random.default_rng(2).normal(size=(7, 3))
    model.save(tmp_path / "model.safetensors")
    again = fg.load(tmp_path / "model.safetensors")
    assert type(again) is type(model)
    np.testing.assert_array_equal(again.scores(x), model.scores(x))


def test_other_saved_things_are_not_loaded(tmp_path):
    path = tmp_path / "moments.safetensors"
    path.write_bytes(fg.Moments.of(np.eye(4), [0, 1, 0, 1], classes=2).to_bytes())
    with pytest.raises(Mismatch, match="expected a saved fit, model or estimator, got a Moments"):
        fg.load(path)

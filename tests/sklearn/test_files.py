"""Estimators in files predict the same and still add up; as ONNX they predict the same to the rounding of float32."""

import json

import numpy as np
import onnx
import onnxruntime
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError

import fedgram as fg
from fedgram.core import wire
from fedgram.core.errors import InvalidData, RefusedMessage
from fedgram.sklearn import GramClassifier, GramRegressor
from support.campaign import examples
from support.estimators import BOTH, assert_same, problem
from support.problems import seeds

SETTINGS = [
    GramClassifier(),
    GramClassifier("loo", class_weight="balanced"),
    GramClassifier(2.0, fit_intercept=False, class_weight={"bone": 2.0, "skin": 1.5}),
    GramClassifier(0.5, class_weight="balanced"),
    GramRegressor("loo"),
    GramRegressor(1.5, fit_intercept=False),
]


def run(path, x):
    """Return ONNX Runtime's outputs by name."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"samples": x.astype(np.float32)}), strict=True))


@pytest.mark.parametrize("estimator", SETTINGS, ids=str)
def test_a_saved_fit_is_the_same_fit(estimator, tmp_path):
    x, y = problem(type(estimator), np.random.default_rng(0))
    fitted = estimator.fit(x[:40], y[:40])
    fitted.save(tmp_path / "fit.safetensors")
    again = fg.load(tmp_path / "fit.safetensors")
    assert type(again) is type(fitted)
    assert again.get_params() == fitted.get_params()
    assert again.ridge_ == fitted.ridge_
    np.testing.assert_array_equal(again.coef_, fitted.coef_)
    np.testing.assert_array_equal(again.predict(x), fitted.predict(x))
    if estimator.ridge != "loo":
        more = type(estimator)(**estimator.get_params()).fit(x[40:], y[40:])
        assert_same(again + more, fitted + more, x)
        assert_same(again.partial_fit(x[40:], y[40:]), fitted + more, x)


def test_names_types_and_labels_are_kept(tmp_path):
    rng = np.random.default_rng(0)
    x, path = rng.normal(size=(50, 2)).astype(np.float32), tmp_path / "fit.safetensors"
    table = pyarrow.table({"age": x[:, 0], "bmi": x[:, 1]})
    for labels in (
        x[:, 0] > 0,
        np.digitize(x[:, 0], [-1, 1]),
        (x[:, 0] > 0) + 1.0,
        np.where(x[:, 0] > 0, "ill", "well"),
    ):
        GramClassifier().fit(table, labels).save(path)
        again = fg.load(path)
        assert again.feature_names_in_.tolist() == ["age", "bmi"]
        assert again.predict(table).dtype.kind == labels.dtype.kind
        assert again.predict_proba(table).dtype == GramClassifier().fit(table, labels).predict_proba(table).dtype
        assert (again + again).classes_.tolist() == np.unique(labels).tolist()
    GramRegressor().fit(x, x[:, :1]).save(path)
    assert fg.load(path).predict(x).shape == (50, 1)
    assert fg.load(path).predict(x).dtype == np.float32


def test_what_cannot_be_saved_is_refused(tmp_path):
    with pytest.raises(NotFittedError):
        GramClassifier().save(tmp_path / "fit.safetensors")
    fitted = GramClassifier().fit(np.eye(10), np.arange(10) % 2)
    fitted.classes_ = np.array([1, "a"], dtype=object)
    with pytest.raises(InvalidData, match="classes to save: expected texts or numbers"):
        fitted.save(tmp_path / "fit.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ridge", -1.0),
        ("ridge", "best"),
        ("chosen", -2.0),
        ("fit_intercept", "yes"),
        ("dtype", "object"),
        ("columns", ["a"]),
        ("columns", 3),
        ("sums", []),
        ("sums", [None]),
        ("sums", [3]),
        ("sums", None),
        ("classes", np.array([2, 1, 0])),
        ("classes", ["bone", "bone", "skin"]),
        ("classes", ["bone", "skin"]),
        ("class_weight", "even"),
        ("class_weight", {"labels": ["bone"], "weights": []}),
        ("flat", 3),
        ("flat", True),
    ],
)
def test_a_file_that_was_changed_is_refused(kind, field, value):
    fields = kind().fit(*problem(kind, np.random.default_rng(0))).to_fields()
    if field in fields:
        message = wire.to_tree({"fields": fields | {field: value}}, "", arrays := {})["dict"]["fields"]["dict"]
        tree = {"message": kind.wire_name, "version": 1, "fields": message}
        data = wire.container.write(tree, arrays, sealed=True)
        with pytest.raises(RefusedMessage, match="from 'a file' refused"):
            wire.decode(data, sender="a file")


def bound(model, x):
    """Return the rounding error to expect of scores in float32, (n, t)."""
    centred = np.abs(x - model.moments_.mean)
    sizes = centred @ np.abs(np.atleast_2d(model.coef_)).T
    units = np.abs(x) @ np.abs(np.atleast_2d(model.coef_)).T  # samples themselves are rounded
    return np.finfo(np.float32).eps * (4 * sizes + units + 4)


@examples(15)
@given(seeds, st.sampled_from(["three", "two", "whole"]), st.booleans())
def test_onnx_gives_the_same(seed, labels, intercept):
    import tempfile
    from pathlib import Path

    rng = np.random.default_rng(seed)
    x, y = problem(GramClassifier, rng)
    y = {"three": y, "two": y == "lung", "whole": np.unique(y, return_inverse=True)[1] * 7}[labels]
    if len(np.unique(y)) < 2:
        return
    model = GramClassifier(1.0, fit_intercept=intercept).fit(x, y)
    with tempfile.TemporaryDirectory() as folder:
        model.to_onnx(path := Path(folder) / "model.onnx")
        found = run(path, x)
    scores = model.decision_function(x)
    wide = np.column_stack([-scores, scores]) if scores.ndim == 1 else scores
    allowed = bound(model, x)
    assert (np.abs(found["scores"] - wide) <= allowed).all()
    slack = allowed.max(axis=1, keepdims=True)
    assert (np.abs(found["probabilities"] - model.predict_proba(x)) <= slack / model.temperature_ + 1e-6).all()
    ordered = np.sort(wide, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > 2 * slack[:, 0]
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(found["label"][clear].astype(y.dtype), model.predict(x)[clear])


def test_onnx_of_columns_far_from_zero(tmp_path):
    """The same as of float32 samples in double precision: the mean is subtracted before anything is multiplied."""
    rng = np.random.default_rng(0)
    centre = np.array([2026.0, 1e5, 0.0])
    x = (rng.normal(size=(80, 3)) + centre).astype(np.float32)
    model = GramRegressor(0.1).fit(x.astype(float), (x - centre) @ [[1.0, 0], [2, 1], [3, -1]])
    model.to_onnx(tmp_path / "model.onnx")
    found = run(tmp_path / "model.onnx", x)
    assert set(found) == {"scores"}
    np.testing.assert_allclose(found["scores"], model.predict(x.astype(float)), atol=1e-5)


def test_onnx_names_its_columns(tmp_path):
    x = np.random.default_rng(0).normal(size=(50, 2))
    GramClassifier().fit(pyarrow.table({"age": x[:, 0], "bmi": x[:, 1]}), x[:, 0] > 0).to_onnx(tmp_path / "model.onnx")
    [entry] = onnx.load(tmp_path / "model.onnx").metadata_props
    assert (entry.key, json.loads(entry.value)) == ("columns", ["age", "bmi"])


def test_onnx_refuses_labels_that_are_neither_texts_nor_whole_numbers(tmp_path):
    x = np.random.default_rng(0).normal(size=(50, 2))
    model = GramClassifier().fit(x, x[:, 0] > 0)
    model.classes_ = np.array([0.5, 2.0])
    with pytest.raises(InvalidData, match="class 0.5 is neither a whole number nor a name"):
        model.to_onnx(tmp_path / "model.onnx")
    one = GramClassifier().partial_fit(x, np.zeros(50))
    with pytest.raises(InvalidData, match="at least two classes"):
        one.to_onnx(tmp_path / "model.onnx")

"""Files of fits that are well-formed and yet wrong: one clear error when they are read."""

from dataclasses import replace

import numpy as np
import pytest

import fedgram as fg
from fedgram import checks
from fedgram.core.errors import RefusedMessage


@pytest.fixture(scope="module")
def fit():
    return checks.fit(fg.FedGram(), checks.some_clients(3, 120))


def save_with(fit, path, monkeypatch, **changes):
    """Save the fit with other fields."""
    fields = fit.to_fields() | changes
    with monkeypatch.context() as patch:
        patch.setattr(fg.Fit, "to_fields", lambda self: fields)
        fit.save(path)


TIMES = {"computing": 1.0, "communication": 0.0, "idle": 0.5, "asked": 2}
COUNTS = {"correct": {"a": 1}, "tested": {"a": 2}, "failed": {}}


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("model", 5, "'model' of a fit must be a model, got 5"),
        ("model", {"weights": np.eye(2)}, "'model' of a fit must be a model, got a dict"),
        ("method", None, "'method' of a fit must be text, got None"),
        ("settings", ["a"], "'settings' of a fit must be a table, got a list"),
        ("settings", {"gamma": np.eye(2)}, "'settings/gamma' of a fit must be text, a number"),
        ("settings", {"gamma": 10**400}, "'settings/gamma' of a fit must be text, a number"),
        ("seed", "x", "'seed' of a fit must be a whole number ≥ 0, got 'x'"),
        ("contributors", "abc", "'contributors' of a fit must be a list, got 'abc'"),
        ("contributors", ["a", 5], "'contributors/1' of a fit must be text, got 5"),
        ("absent", {"a": 1}, "'absent/a' of a fit must be text, got 1"),
        ("lost", ["a"], "'lost' of a fit must be a table, got a list"),
        ("personal", {"a": "model"}, "'personal/a' of a fit must be a model, got 'model'"),
        ("traffic", 5, "'traffic' of a fit must be a table, got 5"),
        ("traffic", {"a": {"up": 1}}, "'traffic/a' of a fit must have ['down', 'up'], got ['up']"),
        ("traffic", {"a": {"up": "1", "down": 2}}, "'traffic/a/up' of a fit must be a whole number"),
        ("evaluation", [], "'evaluation' of a fit must be a table, got a list"),
        ("evaluation", COUNTS | {"correct": {"a": "1"}}, "'evaluation/correct/a' of a fit must be a whole number"),
        ("evaluation", COUNTS | {"correct": {"a": 3}}, "'evaluation' of a fit: 'a' must have from 0 to 2 correct"),
        ("evaluation", COUNTS | {"correct": {}}, "'evaluation' of a fit: 'a' must have from 0 to 2 correct"),
        ("evaluation", COUNTS | {"more": 1}, "'evaluation' of a fit must have"),
        ("rounds", COUNTS, "'rounds' of a fit must be a list, got a dict"),
        ("rounds", [COUNTS, COUNTS | {"tested": {"a": 2.5}}], "'rounds/1/tested/a' of a fit must be a whole number"),
        ("seconds", "long", "'seconds' of a fit must be a number, got 'long'"),
        ("cpu_seconds", {"server": None}, "'cpu_seconds/server' of a fit must be a number, got None"),
        ("total", {"n": 3}, "'total' of a fit must be moments, got a dict"),
        ("shape", [64, "x"], "'shape/1' of a fit must be a whole number"),
        ("engine", 3, "'engine' of a fit must be text, got 3"),
        ("carried", {"up": -1}, "'carried/up' of a fit must be a whole number"),
        ("notes", [1], "'notes' of a fit must be a table, got a list"),
        ("timing", {"a": 1.0}, "'timing/a' of a fit must be a table, got 1.0"),
        ("timing", {"a": {"idle": 1.0}}, "'timing/a' of a fit must have"),
        ("timing", {"a": TIMES | {"more": 1.0}}, "'timing/a' of a fit must have"),
        ("timing", {"a": TIMES | {"idle": "long"}}, "'timing/a/idle' of a fit must be a number, got 'long'"),
    ],
)
def test_a_field_of_a_wrong_kind_is_named(fit, tmp_path, monkeypatch, field, value, told):
    path = tmp_path / "fit.safetensors"
    save_with(fit, path, monkeypatch, **{field: value})
    with pytest.raises(RefusedMessage) as caught:
        fg.load(path)
    assert str(caught.value).startswith(f"message from {str(path)!r} refused: field ")
    assert told in str(caught.value)


def test_a_field_of_a_model_in_it_is_named(fit, tmp_path, monkeypatch):
    path = tmp_path / "fit.safetensors"
    save_with(fit, path, monkeypatch, model=fg.LinearModel(np.eye(2), (0, 1), features=7))
    with pytest.raises(RefusedMessage) as caught:
        fg.load(path)
    told = f"message from {str(path)!r} refused: linear-model field 'features' must be text, got 7"
    assert str(caught.value) == told


def test_a_fit_as_it_was_saved_is_read(fit, tmp_path, monkeypatch):
    path = tmp_path / "fit.safetensors"
    save_with(fit, path, monkeypatch, rounds=[COUNTS], carried={"up": 3}, notes={"weights": np.eye(2)})
    read = fg.load(path)
    assert read.rounds[0].pooled == 0.5
    assert read.report()["traffic"] == fit.report()["traffic"]


@pytest.mark.parametrize("change", [{"primary": []}, {"refine": {}}, {"lam": "x"}, {"lam": True}])
def test_maps_of_a_wrong_kind(tmp_path, monkeypatch, change):
    fit = checks.fit(fg.APFL(dim_primary=8, dim_refine=8), checks.some_clients(3, 120))
    model = next(iter(fit.personal.values()))
    fields = model.to_fields() | change
    with monkeypatch.context() as patch:
        patch.setattr(type(model), "to_fields", lambda self: fields)
        fit.save(tmp_path / "fit.safetensors")
    with pytest.raises(RefusedMessage):
        fg.load(tmp_path / "fit.safetensors")


@pytest.mark.parametrize("seed", [1.5, True, "0"])
def test_seeds_of_projections(seed):
    from fedgram.features.projection import RandomFeatures

    with pytest.raises(fg.errors.InvalidParameter, match="seed of a projection must be a whole number"):
        RandomFeatures(3, 4, seed=seed)


def test_without_test_samples_there_is_an_evaluation_that_is_false(tmp_path):
    clients = [fg.Client(f"ward-{k}", np.eye(4), [0, 1, 0, 1]) for k in range(2)]
    fit = fg.AFL(intercept=False).fit(clients, classes=2)
    assert not fit.evaluation
    assert np.isnan(fit.evaluation.client_mean)
    assert np.isnan(fit.evaluation.pooled)
    assert fit.report()["accuracy"] is None
    assert fit.report()["untested"] == 2
    fit.save(tmp_path / "fit")
    assert fg.load(tmp_path / "fit").evaluation == fit.evaluation


def test_a_fit_is_shown_in_ten_lines():
    rng = np.random.default_rng(0)
    parties = [fg.Client(f"c{k}", rng.normal(size=(20, 3)), np.arange(20) % 2, *some(rng, k)) for k in range(7)]
    found = replace(fg.FedHiP().fit(parties), absent={"c9": "late"}, lost={"c1": "silent"})
    lines = repr(found).splitlines()
    assert len(lines) <= 10
    assert lines[0].startswith("Fit of fedhip(")
    assert lines[0].endswith("seed 0, engine inprocess")
    assert "  clients: 7: c0, c1, c2, c3, c4, …" in lines
    assert "  absent: 1: c9" in lines
    assert "  lost: 1 after they contributed: c1" in lines
    assert "  personal models: 7: LinearModel of 2 classes" in lines
    assert f"  bytes: {found.traffic.up:,} up, {found.traffic.down:,} down" in lines
    assert f"{found.evaluation.pooled:.2%} pooled" in repr(found)
    untested = repr(fg.AFL().fit([fg.Client(one.name, one.x, one.y) for one in parties]))
    assert "model: LinearModel of 2 classes" in untested
    assert "accuracy" not in untested


def some(rng, k):
    """Return test samples, none for the first client."""
    return (rng.normal(size=(4, 3)), np.arange(4) % 2) if k else (None, None)

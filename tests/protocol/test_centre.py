"""Columns far from zero in runs without a study: summed less a centre that clients agree on, late ones as well."""

import numpy as np
import pytest

import fedgram as fg
from fedgram.core.errors import Doubtful

METHODS = [fg.AFL(), fg.FedHiP(), fg.FedGram(), fg.FedLogit(), fg.Local()]


def clients(offset, shift=1, *, columns=("a", "b", "c", "d")):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 4))
    y = (x[:, 0] + x[:, 1] + 0.5 * rng.normal(size=240) > 0).astype(int)
    x[:, shift] += offset
    return x, [fg.Client(f"c{k}", x[k::3], y[k::3], columns=columns) for k in range(3)]


def probabilities(fit, x):
    models = [fit.model, *(fit.personal[name] for name in sorted(fit.personal))]
    return np.stack([model.predict_proba(x) for model in models if model is not None])


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("ratio", [3e3, 1e6, 1e8])
def test_a_shift_changes_no_probability(method, ratio):
    near, far = (clients(offset) for offset in (0.0, ratio))
    got, want = (probabilities(method.fit(each, classes=2), x) for x, each in (far, near))
    np.testing.assert_allclose(got, want, atol=1e-12 + 1e-14 * ratio)


def test_air_pressure_and_temperature():
    """FedGram ended with a singular matrix (M1)."""
    rng = np.random.default_rng(1)
    x = np.column_stack([101325 + 15 * rng.normal(size=300), 20 + 5 * rng.normal(size=300)])
    y = (x[:, 0] > 101325).astype(int)
    fit = fg.FedGram().fit([fg.Client(f"c{k}", x[k::3], y[k::3]) for k in range(3)], classes=2)
    assert (fit.model.predict(x) == y).mean() > 0.9


@pytest.mark.parametrize("method", METHODS[:3], ids=lambda method: method.name)
def test_who_comes_late_or_leaves_sums_about_the_same_centre(method, tmp_path):
    x, [first, second, third] = clients(1e8)
    late = fg.Client("c2", third.x[:, ::-1], third.y, columns=third.columns[::-1])
    whole, part = (method.fit(some, classes=2) for some in ([first, second, third], [first, second]))
    assert whole.total.schema.centre[1] == pytest.approx(1e8)
    whole.save(tmp_path / "whole.fit")
    for got, want in (
        (part.add(part.summarize(late), name="c2"), whole),
        (whole.remove(whole.summarize(late), name="c2"), part),
        (fg.load(tmp_path / "whole.fit").remove(whole.summarize(late), name="c2"), part),
    ):
        np.testing.assert_allclose(got.model.predict_proba(x), want.model.predict_proba(x), atol=1e-6)
    if method.personal:
        ours = whole.personalize(late).predict_proba(x)  # in the agreed order
        np.testing.assert_allclose(ours, whole.personal["c2"].predict_proba(x), atol=1e-9)


def test_nothing_is_asked_where_columns_are_near_zero():
    (_, near), (_, far) = clients(0.0), clients(1e6)
    asked = [[], []]
    for each, steps in zip((near, far), asked, strict=True):
        fg.AFL().fit(each, classes=2, progress=lambda step, *_, steps=steps: steps.append(step))
    assert [set(steps) - {"hello", "summarize", "receive", "evaluate"} for steps in asked] == [set(), {"column_sums"}]


@pytest.mark.parametrize("method", [fg.APFL(), fg.AFL(intercept=False), fg.FedAvg(rounds=1)], ids=lambda m: m.name)
def test_a_method_that_depends_on_where_zero_is_says_so(method):
    _, some = clients(7e3)
    with pytest.warns(Doubtful, match=rf"column 'b': the mean is more than 100 .* {method.name} depends"):
        method.fit(some, classes=2)

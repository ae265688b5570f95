"""Errors of predicted numbers add up to those of all samples together."""

from math import isnan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from fedgram.core.classes import NUMERIC
from fedgram.evaluation import Errors, Evaluation, NumericErrors, sum_errors
from fedgram.models import LinearModel
from fedgram.moments.targets import NumericTargets
from fedgram.pipeline import Pipeline
from support.campaign import examples
from support.problems import seeds

NAMES = ("cost", "stay")


@examples(40)
@given(seeds, st.lists(st.integers(1, 30), min_size=1, max_size=6), st.sampled_from([0.0, 2026.0, 1e6]))
def test_pooled_errors_are_those_of_all_samples(seed, sizes, offset):
    rng = np.random.default_rng(seed)
    n, outcomes = sum(sizes), NumericTargets(NAMES, np.array([offset, 0.0]), np.array([2.0, 0.5]))
    model = Pipeline(LinearModel(rng.normal(size=(3, 2)), NUMERIC, rng.normal(size=2)), targets=outcomes)
    x, y = rng.normal(size=(n, 3)), outcomes.as_outcomes(rng.normal(size=(n, 2)))
    parts = np.split(np.arange(n), np.cumsum(sizes)[:-1])
    found = Evaluation(
        {f"{k}": NumericErrors.of_sums(sum_errors(model, x[p], y[p]), len(p), NAMES) for k, p in enumerate(parts)},
        {f"{k}": len(p) for k, p in enumerate(parts)},
    )
    predicted = model.predict(x)
    for place, name in enumerate(NAMES):
        truth, said = y[:, place], predicted[:, place]
        assert found.summary()[name]["rmse"] == pytest.approx(root_mean_squared_error(truth, said), rel=1e-9)
        assert found.summary()[name]["mae"] == pytest.approx(mean_absolute_error(truth, said), rel=1e-9)
        if n > 1:
            assert found.summary()[name]["r2"] == pytest.approx(r2_score(truth, said), rel=1e-6)


def test_who_has_no_test_samples_counts_in_no_mean():
    one = {"cost": Errors(2, 8.0, 4.0, 10.0, 2.0)}
    found = Evaluation({"a": NumericErrors(one)}, {"a": 2, "b": 0}, {"b": "broken"})
    assert found.pooled == one
    assert found.untested == 1
    assert found.by_client.keys() == {"a"}
    assert NumericErrors.summary([]) == {}


def test_an_outcome_that_does_not_vary_has_no_share_explained():
    assert isnan(Errors(3, 1.0, 1.0, 6.0, 0.0).r2)
    assert isnan(Errors(0, 0.0, 0.0, 0.0, 0.0).rmse)

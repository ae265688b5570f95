"""Weights of scores that make labels most likely."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import log_softmax

from fedgram.heads.likelihood import Expert, best_weights
from support.campaign import examples

seeds = st.integers(0, 2**32 - 1)


@examples(40)
@given(seeds, st.integers(1, 40), st.integers(1, 3), st.floats(-1, 1), st.floats(-1, 1))
def test_best_weights_are_the_top(seed, n, count, log_scale, log_deviation):
    rng = np.random.default_rng(seed)
    offset, labels, deviation = rng.normal(size=(n, 4)), rng.integers(0, 4, n), 10**log_deviation
    experts = [Expert(10**log_scale * rng.normal(size=(n, 4)), 0.5, deviation) for _ in range(count)]

    def loss(weights):
        logits = offset + sum(w * expert.scores for w, expert in zip(weights, experts, strict=True))
        likely = log_softmax(logits, axis=1)[np.arange(n), labels].sum()
        return ((0.5 - weights) ** 2).sum() / (2 * deviation**2) - likely

    found = best_weights(experts, offset, labels)
    want = minimize(loss, np.full(count, 0.5), bounds=[(0, None)] * count, tol=1e-12)
    assert found.log_likelihood == pytest.approx(-loss(found.values), rel=1e-9, abs=1e-9)
    assert found.log_likelihood >= -want.fun - 1e-6 * (1 + abs(want.fun))
    assert (found.values >= 0).all()


def test_an_expert_who_is_wrong_gets_no_weight():
    right = 3 * np.eye(2)[np.arange(40) % 2]
    experts = Expert(right, 1.0, 1.0), Expert(-right, 0.5, 1.0)
    assert best_weights(experts, 0 * right, np.arange(40) % 2).values[1] == 0

"""Subtraction of estimators with columns far from zero, or with a small remainder."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core.errors import LostPrecision
from fedgram.sklearn import GramRegressor
from support.campaign import examples


@examples(40)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 3.3, 1e3]))
def test_constants_of_a_trillion_are_no_reason_to_refuse(seed, apart):
    """Their means are rounded, so the scatter between them changes (L12)."""
    rng = np.random.default_rng(seed)
    fitted = []
    for constant in (1e12, 1e12 + apart):
        x = rng.normal(size=(rng.integers(5, 80), 2))
        x[:, 1] = constant
        fitted.append(GramRegressor(ridge=1.0).fit(x, x[:, 0] + 0.1 * rng.normal(size=len(x))))
    mine, theirs = fitted
    np.testing.assert_allclose((mine + theirs - theirs).coef_, mine.coef_, atol=1e-9)


def test_what_is_small_beside_what_left_is_said_to_be_rounded():
    rng = np.random.default_rng(0)
    mine, theirs = (
        GramRegressor(ridge=1.0).fit(x, x @ [1.0, 2.0], sample_weight=np.full(40, weight))
        for x, weight in ((rng.normal(size=(40, 2)), 1.0), (rng.normal(size=(40, 2)), 1e12))
    )
    with pytest.warns(LostPrecision, match=r"variance of feature \d may be off by a share of \de-0\d"):
        mine + theirs - theirs

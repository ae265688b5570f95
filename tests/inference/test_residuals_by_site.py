"""Residuals of each site from the pooled model, for any spread of rows over sites."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.inference.linear import LeastSquares, Sums
from fedgram.inference.site_effects import BySite
from support.campaign import examples

NAMES = ("age", "year", "cost")


@given(st.lists(st.integers(0, 4), min_size=12, max_size=60), st.integers(0, 2**32 - 1))
@examples(40)
def test_residuals_by_site_are_those_of_the_pooled_rows(owners, seed):
    rng, owners = np.random.default_rng(seed), np.array(owners)
    x = np.column_stack([rng.normal(60, 10, len(owners)), 2026 + rng.normal(0, 1, len(owners))])
    rows = np.column_stack([x, 1e5 + x @ [3.0, -2.0] + rng.normal(0, 10, len(owners))])
    sites = {f"{k}": Sums.of(rows[owners == k], NAMES) for k in np.unique(owners)}
    first, *rest = sites.values()
    by_site = BySite(LeastSquares(sum(rest, first)))
    for name, sums in sites.items():
        by_site.add(name, sums)
    design = np.column_stack([np.ones(len(x)), x - x.mean(axis=0)])
    y = rows[:, -1] - rows[:, -1].mean()
    residuals = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    found = by_site.plain({}).sites.residual_sd
    assert list(found) == list(sites)
    for name, sd in found.items():
        assert sd == pytest.approx(np.sqrt((residuals[owners == int(name)] ** 2).mean()), rel=1e-7, abs=1e-9)

"""Three clients whose moments are small enough to add up by hand."""

import numpy as np
import pytest

from support.problems import as_clients, features


@pytest.fixture
def clients():
    rng = np.random.default_rng(0)
    x, y = features(rng, 150, 6), rng.integers(0, 3, 150)
    return as_clients(x, y, np.split(np.arange(150), [40, 90]))

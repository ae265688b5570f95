"""Helpers for tests of networks: samples, and checks of a memory."""

import numpy as np

from fedgram.nets import outputs


def samples(shape, n, seed=0, classes=10):
    rng = np.random.default_rng(seed)
    return rng.random((n, *shape), dtype=np.float32), rng.integers(0, classes, n)


def scores_with_memory(plain, net, vector, memory, x):
    """Return the scores of a network of ten classes with a memory: it is added to the features before the head."""
    [(features, got)] = outputs(net, np.append(vector, memory), x)
    [(without, _)] = outputs(plain, vector, x)
    np.testing.assert_array_equal(features, without)
    weights, intercept = np.split(vector[plain.head], [10 * len(memory)])
    want = (features + memory) @ weights.reshape(10, -1).T + intercept
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    return got

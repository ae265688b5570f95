"""Problems for property tests: features of known conditioning, spread in any way."""

import numpy as np
from hypothesis import strategies as st
from scipy.special import log_softmax

import fedgram as fg
from fedgram.moments.solve import UNEQUAL


def features(rng, n, d, *, condition=10.0, rank=None):
    """Return (n, d) features of the given rank whose non-zero singular values span `condition`."""
    rank = min(n, d) if rank is None else min(rank, n, d)
    u, _ = np.linalg.qr(rng.standard_normal((n, rank)))
    v, _ = np.linalg.qr(rng.standard_normal((d, rank)))
    return u * np.geomspace(1.0, 1.0 / condition, rank) * np.sqrt(n) @ v.T


def spread_any_way(rng, n, clients):
    """Return index arrays of a random partition: any sizes, empty clients included."""
    owner = rng.integers(0, clients, n) if rng.random() < 0.7 else np.sort(rng.integers(0, clients, n))
    return [np.flatnonzero(owner == k) for k in range(clients)]


def as_clients(x, y, parts):
    return [fg.Client(f"client-{k}", x[part], y[part]) for k, part in enumerate(parts)]


def redistributions(rng, x, y, own, counts):
    """Yield clients, in any order; "k" always has the same samples, and the others' data are spread anew."""
    others = np.setdiff1d(np.arange(len(x)), own)
    for count in counts:
        parts = [others[part] for part in spread_any_way(rng, len(others), count)]
        clients = [*as_clients(x, y, parts), fg.Client("k", x[own], y[own])]
        rng.shuffle(clients)
        yield clients


def skewed(seed=0, *, n=600, d=12, classes=4, clients=5, noise=1.0):
    """Return Gaussian classes, spread so that each client has mostly classes of its own."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    x = rng.normal(size=(classes, d))[y] + noise * rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) / np.sqrt(d)
    owner = np.where(rng.random(n) < 0.8, y % clients, rng.integers(0, clients, n))
    return x, y, [np.flatnonzero(owner == k) for k in range(clients)]


def logistic_problem(seed=0, *, n=240, d=6, classes=3, signal=1.0):
    """Return samples whose labels really follow a logistic model; features have their own units and offsets."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    y = (x @ (signal * rng.normal(size=(d, classes))) + rng.gumbel(size=(n, classes))).argmax(axis=1)
    y[:classes] = np.arange(classes)
    return x * 10 ** rng.uniform(-1, 1, d) + rng.normal(size=d), y


def patients(seed=0, n=900):
    """Return a table of three measurements in clinical units, far from zero, and labels "ill" and "well"."""
    rng = np.random.default_rng(seed)
    ill = rng.random(n) < 0.3
    means = np.array([62.0, 138.0, 88.0]) + ill[:, None] * np.array([9.0, 16.0, 22.0])
    return means + rng.normal(size=(n, 3)) * np.array([6.0, 10.0, 12.0]), np.where(ill, "ill", "well")


def random_moments(rng, n=30, d=6, classes=3, **options):
    """Return the moments of random samples."""
    return fg.Moments.of(rng.normal(size=(n, d)), rng.integers(0, classes, n), classes=classes, **options)


def relative_error(got, want):
    return np.abs(got - want).max() / max(np.abs(want).max(), np.finfo(float).tiny)


def least_norm(x, targets, **options):
    """Return the least-squares weights of least norm, where columns of very unequal sizes count in units of these."""
    sizes = np.linalg.norm(x, axis=0)
    scale = np.divide(1.0, sizes, out=np.zeros_like(sizes), where=sizes > 1e-12 * sizes.max())  # others are constant
    if scale.max() <= UNEQUAL * scale[scale > 0].min(initial=np.inf):
        return np.linalg.pinv(x, **options) @ targets
    return scale[:, None] * (np.linalg.pinv(x * scale, **options) @ targets)


seeds = st.integers(0, 2**32 - 1)


def log_likelihood(logits, labels):
    """Return the log-likelihood of labels (n,), given logits (n, c) of the classes."""
    return log_softmax(logits, axis=1)[np.arange(len(labels)), labels].sum()

"""Data sets that need no download: handwritten digits, and FedProx's Synthetic(α, β)."""

from importlib.resources import files

import numpy as np

from fedgram.core.errors import InvalidParameter
from fedgram.core.randomness import generator
from fedgram.data.dataset import Dataset

DIMENSION = 60
CLASSES = 10


def digits() -> Dataset:
    """Return the 1,797 handwritten digits of 8 × 8 pixels as 64 features in [0, 1].

    E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998,
    CC BY 4.0 (its test part, as in scikit-learn). It has no further split of its own.

    >>> data = digits()
    >>> data.x.shape, len(data.classes)
    ((1797, 64), 10)
    """
    with files("fedgram.data").joinpath("digits.npz").open("rb") as stream, np.load(stream) as stored:
        x, y = stored["x"], stored["y"]
    return Dataset("digits", x / 16.0, y.astype(np.int64), tuple(range(10)), fingerprint="digits-uci-1998")


def synthetic(alpha: float = 0.5, beta: float = 0.5, *, clients: int = 100, seed: int = 0) -> Dataset:
    """Return Synthetic(alpha, beta), whose clients differ in labelling rules and features, with power-law sizes.

    Li et al. 2020 (FedProx), section 5.1.

    Client k draws u_k ~ N(0, α) and its model W_k, b_k ~ N(u_k, 1); B_k ~ N(0, β) and the mean of its features
    v_k ~ N(B_k, 1); then x ~ N(v_k, diag(j^-1.2)) and y = argmax(W_k x + b_k). α says how much the clients' models
    differ, β how much their features do. The paper does not say whether N(0, α) names variance or standard
    deviation; the authors' program takes the standard deviation, and so does this.

    >>> data = synthetic(0.5, 0.5, clients=3, seed=0)
    >>> data.x.shape[1], len(set(data.groups.tolist()))
    (60, 3)
    """
    if alpha < 0 or beta < 0 or not np.isfinite(alpha + beta):
        raise InvalidParameter(f"alpha and beta must be numbers ≥ 0, got {alpha} and {beta}")
    if clients < 1:
        raise InvalidParameter(f"clients must be at least 1, got {clients}")
    spread = np.arange(1, DIMENSION + 1) ** -0.6  # standard deviations: Σ_jj = j^-1.2
    xs, ys, groups = [], [], []
    for k in range(clients):
        rng = generator(seed, "synthetic", k)
        n = int(rng.lognormal(4, 2)) + 50
        u, b_mean = rng.normal(0, alpha), rng.normal(0, beta)
        W, b = rng.normal(u, 1, (DIMENSION, CLASSES)), rng.normal(u, 1, CLASSES)
        v = rng.normal(b_mean, 1, DIMENSION)
        x = v + spread * rng.standard_normal((n, DIMENSION))
        xs.append(x)
        ys.append((x @ W + b).argmax(axis=1))
        groups.append(np.full(n, f"client-{k:0{len(str(clients - 1))}d}"))
    return Dataset(
        f"synthetic({alpha:g}, {beta:g})",
        np.concatenate(xs),
        np.concatenate(ys),
        tuple(range(CLASSES)),
        fingerprint=f"synthetic-{alpha!r}-{beta!r}-{clients}-{seed}",
        groups=np.concatenate(groups),
    )

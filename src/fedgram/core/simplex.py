"""Best weights on the simplex: not negative, with a sum of one."""

import numpy as np
from scipy.optimize import nnls

from fedgram.core.arrays import Array


def smallest_on_simplex(q: Array) -> Array:
    """Return α ≥ 0 with Σα = 1 that minimises αᵀQα, for a positive semidefinite Q (n, n).

    Least squares without negative values solve it: the x ≥ 0 that minimises xᵀQx + s(Σx - 1)² has the same optimality
    conditions as α = x / Σx, for any s > 0.

    >>> smallest_on_simplex(np.diag([1.0, 3.0]))
    array([0.75, 0.25])
    """
    largest = np.diagonal(q).max()
    if not largest > np.finfo(float).tiny:  # every α is as good
        return np.full(len(q), 1 / len(q))
    q = q / largest
    diagonal = np.diagonal(q)
    # In units of each point's own size, so that one of an absurd size takes no digits from the others.
    units = 1 / np.sqrt(np.maximum(diagonal, 1e-9 * diagonal[diagonal > 0].min()))
    units /= units.max()
    scaled = q * units * units[:, None]
    values, vectors = np.linalg.eigh(scaled / (np.trace(scaled) / len(q)))
    root = np.sqrt(values.clip(0))[:, None] * vectors.T  # rootᵀ root = Q in these units
    try:
        y, _ = nnls(np.vstack([root, units]), np.append(np.zeros(len(q)), 1.0), maxiter=100 * len(q))
    except RuntimeError:  # no end in sight: the best of single points
        return np.asarray(np.eye(len(q))[diagonal.argmin()])
    x = units * y
    return np.asarray(x / x.sum())


def best_mixtures(points: Array, variances: Array, smallest: float = 0.0) -> Array:
    """Return for each point h_k the weights α_k that estimate it best by Σ_j α_kj h_j, (K, K), from points (K, m).

    Point j is known up to its variance V_j: α_k minimises ‖h_k - Σ_j α_j h_j‖² + Σ_j α_j² V_j = αᵀ(G_k + diag(V))α on
    the simplex, where G_k[j, l] = ⟨h_k - h_j, h_k - h_l⟩. Weights below `smallest` are then dropped, never all of them.
    """
    centered = points - points.mean(axis=0)  # only differences count, and products of small numbers are more exact
    products, rows = centered @ centered.T, []
    for k, own in enumerate(products):
        weights = smallest_on_simplex(own[k] - own[:, None] - own + products + np.diag(variances))
        kept = np.where(weights < min(smallest, weights.max() / 2), 0, weights)
        rows.append(kept / kept.sum())
    return np.stack(rows)

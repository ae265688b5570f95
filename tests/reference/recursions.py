"""The papers' own recursions, written down as printed, with misprints corrected.

fedgram does not compute this way: it adds moments and factors once, which is algebraically the same. These
functions are the references that tests compare with and benchmarks measure against. Each takes the clients' data as
(X_k, Y_k) pairs, X_k (n_k, d) features and Y_k (n_k, c) one-hot labels.
"""

from collections.abc import Iterable

import numpy as np

from fedgram.core.arrays import Array

Clients = Iterable[tuple[Array, Array]]
_NONE: Array = np.zeros((0, 0))


def solve(matrix: Array, rhs: Array) -> Array:
    """Return matrix⁻¹ rhs."""
    return np.asarray(np.linalg.solve(matrix, rhs), dtype=np.float64)


def afl(clients: Clients, gamma: float = 1.0, *, ri: bool = True) -> Array:
    """AFL, He et al. 2025, Algorithm 1: the AA law (9)–(11) on regularized clients, then RI (16).

    Two corrections. (8) and (10) print I + C⁻¹C where the sign is minus. The algorithm starts from zero, which
    (10) would have to invert; start from the first client.
    """
    C_agg, W_agg, k = _NONE, _NONE, 0
    for X, Y in clients:
        C = X.T @ X + gamma * np.eye(X.shape[1])  # (15)
        W = solve(C, X.T @ Y)  # (13)
        W_agg = _absolute_aggregation(C_agg, W_agg, C, W) if k else W  # (9)
        C_agg = C_agg + C if k else C  # (11)
        k += 1
    if not ri:
        return W_agg
    return solve(C_agg - k * gamma * np.eye(len(C_agg)), C_agg @ W_agg)  # (16)


def fedhip(clients: Clients, beta: float = 1.0) -> tuple[Array, Array, Array]:
    """FedHiP, Tang et al. 2025, phases 1 and 2, (6)–(12): return S_K, M_K and the global model G_K."""
    S, M, k = _NONE, _NONE, 0
    for F, Y in clients:
        C = F.T @ F + beta * np.eye(F.shape[1])  # (6)
        L = solve(C, F.T @ Y)  # (7)
        S_before, S = S, S + C if k else C  # (9)
        if k:
            mu, nu = solve(S, S_before), solve(S, C)  # (11)
        M = mu @ M + nu @ L if k else L  # (10)
        k += 1
    G = solve(S - (k - 1) * beta * np.eye(len(S)), S @ M)  # (12)
    return S, M, G


def apfl(clients: Clients, gamma: float = 1.0) -> Array:
    """APFL, Fan et al. 2025, primary stream (5)–(10): return G, with γ kept once.

    The paper starts (8) from F_1 = P̂_1; it is Ĝ_1.
    """
    A_sum, F, k = _NONE, _NONE, 0
    for Phi, Y in clients:
        A = Phi.T @ Phi + gamma * np.eye(Phi.shape[1])  # (6)
        G = solve(A, Phi.T @ Y)  # (5)
        F = _absolute_aggregation(A_sum, F, A, G) if k else G  # (8), (9)
        A_sum = A_sum + A if k else A  # (7)
        k += 1
    return solve(A_sum - (k - 1) * gamma * np.eye(len(A_sum)), A_sum @ F)  # (10)


def _absolute_aggregation(C_u: Array, W_u: Array, C_v: Array, W_v: Array) -> Array:
    """Merge two clients' models into the one of their joint data: AFL (9), (10); APFL (8), (9)."""
    I = np.eye(len(C_u))  # noqa: E741
    C = C_u + C_v
    weight_u = I - solve(C_u, C_v) @ (I - solve(C, C_v))
    weight_v = I - solve(C_v, C_u) @ (I - solve(C, C_u))
    return weight_u @ W_u + weight_v @ W_v

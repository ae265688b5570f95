"""The paper's computation of AFL, client after client, to show its result without regularization.

`fedgram compare examples/afl-ablation.toml` runs it beside `fg.AFL`, which adds up moments and cannot fail in this way.
"""

from dataclasses import dataclass

import numpy as np

import fedgram as fg


@fg.register
@dataclass(frozen=True, kw_only=True)
class AFLRecursion(fg.Method):
    """AFL — He et al., CVPR 2025, Algorithm 1, as printed except for two signs: (8) and (10) need I − C⁻¹C.

    With `gamma=0` inverses are Moore–Penrose inverses, as in (3). If a client has fewer samples than features, C_k then
    has no inverse, which the law for merging two clients needs.
    """

    gamma: float = 1.0

    # server: aggregation stage
    def serve(self, clients):
        """Merge the clients one by one, and take the regularization away at the end."""
        replies = sorted(clients.call(self.train))
        _, (C_agg, W_agg) = replies[0]
        for _, (C, W) in replies[1:]:
            W_agg = self._merged(C_agg, W_agg, C, W)  # (9), (10)
            C_agg = C_agg + C  # (11)
        unregularized = C_agg - len(replies) * self.gamma * np.eye(len(C_agg))
        return fg.LinearModel(self._inverse(unregularized) @ C_agg @ W_agg, clients.classes)  # (16)

    def _merged(self, C_u, W_u, C_v, W_v):
        I, inverse = np.eye(len(C_u)), self._inverse(C_u + C_v)  # noqa: E741
        weight_u = I - self._inverse(C_u) @ C_v @ (I - inverse @ C_v)
        weight_v = I - self._inverse(C_v) @ C_u @ (I - inverse @ C_u)
        return weight_u @ W_u + weight_v @ W_v

    def _inverse(self, C):
        return np.linalg.pinv(C, hermitian=True)

    # client: local stage
    @fg.step
    def train(self, client):
        """Return C_k — (15) and W_k — (13)."""
        x, y = client.x.astype(np.float64), np.eye(len(client.classes))[client.y]
        C = x.T @ x + self.gamma * np.eye(x.shape[1])
        return [C, self._inverse(C) @ x.T @ y]

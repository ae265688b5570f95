"""AFL: analytic federated learning."""

from dataclasses import dataclass

from fedgram.core.schema import NotNegative
from fedgram.heads.least_squares import least_squares
from fedgram.models import LinearModel
from fedgram.protocol.onemessage import OneMessage
from fedgram.protocol.pool import Pool
from fedgram.protocol.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class AFL(OneMessage):
    """AFL — He et al., CVPR 2025, Algorithm 1: the joint least-squares classifier, exactly, in one round.

    In the paper each client regularizes with γ, (12) and (13), the server merges pairwise, (9) – (11), and then
    takes the regularization away again, (16). Algebraically γ cancels and all that remains is a sum of moments and
    one solve: the same result for any partition, order and number of clients. The paper's way is kept in the tests.

    The paper has no intercept: `intercept=False`. By default the model has one, which follows from the same sum of
    moments; the result is then exactly least squares with an intercept on the pooled data. Without an intercept,
    features of a backbone lose little accuracy, and columns of a table that are far from zero lose much.

    Parameters
    ----------
    gamma : float
        The regularization of each client, γ in (12). It cancels out unless `ri` is False.
    ri : bool
        Whether the server takes the regularization away again, (16). False is the paper's ablation (its Table 3): γ
        stays in once per client, and shrinks the weights, never the intercept.
    intercept : bool
        Whether the model has an intercept.

    Examples
    --------
    >>> import numpy as np, fedgram as fg
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.normal(size=(90, 4)), rng.integers(0, 3, size=90)
    >>> clients = [fg.Client(f"site-{k}", x[k::3], y[k::3]) for k in range(3)]
    >>> fit = fg.AFL(intercept=False).fit(clients, classes=3)
    >>> bool(np.allclose(fit.model.weights, np.linalg.pinv(x) @ np.eye(3)[y]))
    True

    """

    numeric = True

    gamma: NotNegative = 1.0
    ri: bool = True
    intercept: bool = True

    @property
    def shift_invariant(self) -> bool:
        """Whether subtracting constants from columns leaves predictions as they are, as with an intercept."""
        return self.intercept

    # server: aggregation stage
    def publish(self, pool: Pool) -> LinearModel:
        """Solve once for all clients: the total is C_agg − KγI, and C_agg Ŵ_agg — (9)–(11), (15)."""
        ridge = 0.0 if self.ri else pool.parties * self.gamma  # Ŵ — (16), or Ŵ_agg^r — (14)
        return least_squares(pool.total, ridge, pool.targets, intercept=self.intercept)

"""Local training without federation: the baseline for federated methods."""

from dataclasses import dataclass
from typing import Literal

from fedgram.core.schema import NotNegative
from fedgram.heads import adapt
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import Method, step
from fedgram.protocol.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class Local(Method):
    """Local — a ridge per client on its own samples; nothing is sent, and there is no global model.

    This is what a client can do alone; the reference line at the other end is the centralised solution.

    Parameters
    ----------
    ridge : float or "auto"
        The ridge, which does not shrink the intercept; "auto" takes that of least leave-one-out error on the client's
        own samples, exactly and without refitting.
    intercept : bool
        Whether models have an intercept.

    """

    adds = True
    personal = True
    numeric = True

    ridge: NotNegative | Literal["auto"] = "auto"
    intercept: bool = True

    @property
    def shift_invariant(self) -> bool:
        """Whether subtracting constants from columns leaves predictions as they are, as with an intercept."""
        return self.intercept

    def serve(self, clients: Clients) -> None:
        """Ask every client to train alone."""
        for _ in clients.call(self.train):
            pass

    @step
    def train(self, client: ClientSide) -> None:
        """Keep the ridge solution of the client's own samples."""
        ridge: float | adapt.OwnRidge
        if self.ridge == "auto":
            own = adapt.own_ridge(client.x_blocks, client.target_blocks, intercept=self.intercept)
            ridge = 1.0 if own is None else own
        else:
            ridge = self.ridge
        client.keep(client.least_squares(ridge, intercept=self.intercept))

"""Every client for itself: what federation has to beat."""

from dataclasses import dataclass
from typing import Literal

from fedgram.heads import adapt
from fedgram.protocol.clients import Clients
from fedgram.protocol.clientside import ClientSide
from fedgram.protocol.method import Method, step
from fedgram.protocol.parameters import NotNegative
from fedgram.protocol.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class Local(Method):
    """Local — a ridge per client on its own samples; nothing is sent, and there is no global model.

    This is what a client can do alone; the reference line at the other end is the centralised solution. "auto" takes
    the ridge of least leave-one-out error on the client's own samples, exactly and without refitting. The ridge does
    not shrink the intercept.
    """

    personal = True
    numeric = True

    ridge: NotNegative | Literal["auto"] = "auto"
    intercept: bool = True

    @property
    def shift_invariant(self) -> bool:
        """With an intercept the model is that of the columns less any numbers."""
        return self.intercept

    def serve(self, clients: Clients) -> None:
        """Let every client train alone."""
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

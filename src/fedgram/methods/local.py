"""Every client for itself: what federation has to beat."""

from dataclasses import dataclass

from fedgram.errors import InvalidParameter
from fedgram.methods.base import Method, step
from fedgram.methods.clients import Clients
from fedgram.methods.clientside import ClientSide
from fedgram.methods.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class Local(Method):
    """Local — a ridge per client on its own samples; nothing is sent, and there is no global model.

    For n_k < d this is what a client can do alone; the reference line at the other end is the centralised solution.
    """

    personal = True

    ridge: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.ridge < float("inf"):
            raise InvalidParameter(f"ridge must be a number ≥ 0, got {self.ridge}")

    def serve(self, clients: Clients) -> None:
        """Let every client train alone."""
        for _ in clients.call(self.train):
            pass

    @step
    def train(self, client: ClientSide) -> None:
        """Keep the ridge solution of the client's own samples."""
        client.keep(client.moments().model(self.ridge))
